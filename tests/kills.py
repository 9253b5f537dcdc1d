"""Kills a small run at random moments, resumes it each time, and compares what is left with an uninterrupted run.

`python -m tests.kills 30` prints one line for each kill and exits with an error if anything differs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CONFIG = """
[env]
id = "CartPole-v1"

[train]
agent = "ppo"
total_env_steps = {total}
num_envs = 4
num_steps = 64

[evaluation]
every = 2048
episodes = 8

[log]
every = 512

[checkpoint]
every = 512
"""
ENVIRONMENT = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}


def command(*words: str) -> list[str]:
    """Returns the command line of `rollax train` in a process of its own."""
    return [sys.executable, "-m", "rollax", "train", "--quiet", *words]


def finish(*words: str) -> None:
    """Runs a command to its end."""
    subprocess.run(command(*words), env=ENVIRONMENT, check=True, capture_output=True)


def newest(folder: Path) -> int:
    """Returns the number of a run's newest complete checkpoint, 0 if there is none."""
    return max((int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def kill(moments: random.Random, longest: float, *words: str) -> bool:
    """Starts a command and kills it at a random moment; returns whether it was alive.

    The moment is up to `longest` seconds after a new checkpoint or, one time in four, up to ten times as long after
    the start, when it may be compiling, reading or dropping rows.
    """
    folder = Path(words[-1])
    before = newest(folder)
    process = subprocess.Popen(command(*words), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if moments.random() < 0.25:
        time.sleep(moments.uniform(0, 10 * longest))
    else:
        deadline = time.monotonic() + 300
        while process.poll() is None and newest(folder) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, longest))
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    if not alive and process.returncode:
        raise RuntimeError(errors.decode())
    return alive


def checkpoint_bytes(folder: Path) -> list[bytes]:
    """Returns every leaf of the final and the best agents of a run."""
    from rollax import experiments
    from rollax.experiments import config as configs
    from rollax.experiments.saving import agents_like

    seeds = json.loads((folder / "summary.json").read_text())["seeds"]
    like = agents_like(experiments.make_trainer(configs.load(folder / "config.toml")), seeds)
    import jax

    agents = [experiments.restore(folder / "checkpoints" / name, like) for name in ("final", "best")]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(agents)]


def compare(killed: Path, whole: Path) -> list[str]:
    """Returns the names of what differs between two finished runs."""
    different = [
        name
        for name in ("evaluations.csv", "metrics.csv", "config.toml")
        if (killed / name).read_bytes() != (whole / name).read_bytes()
    ]
    if checkpoint_bytes(killed) != checkpoint_bytes(whole):
        different.append("the agents")
    return different


def run(folder: Path, kills: int, total_env_steps: int, longest: float = 1.0) -> list[str]:
    """Trains once without and once with kills, in `folder`; returns the names of what differs."""
    moments = random.Random(0)
    config = folder / "small.toml"
    config.write_text(CONFIG.format(total=total_env_steps))
    whole, killed = folder / "whole", folder / "killed"
    finish(str(config), "--seeds", "3", "--out", str(whole))

    def start() -> list[str]:
        begun = (killed / "config.toml").exists()  # if not, it was killed before there was anything to resume
        return [*(["--resume"] if begun else [str(config), "--seeds", "3", "--overwrite", "--out"]), str(killed)]

    for count in range(kills):
        alive = kill(moments, longest, *start())
        steps = sorted(path.name for path in (killed / "checkpoints").glob("*")) if killed.exists() else []
        print(f"kill {count + 1}: {'running' if alive else 'had finished'}; checkpoints {steps}", flush=True)
        if not alive:
            break
    if not (killed / "summary.json").exists():
        finish(*start())
    return compare(killed, whole)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        differences = run(Path(name), int(sys.argv[1]), total_env_steps=4096 * int(sys.argv[1]))
        print("differs: " + ", ".join(differences) if differences else "equal bit for bit")
        sys.exit(1 if differences else 0)
