"""The benchmark of starting: how long a run takes to its first step, with an empty compilation cache and a full one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from rollax.errors import InputError
from rollax.experiments.startup import start_jax

CONFIGS = ("ppo_cartpole", "dqn_cartpole", "sac_pendulum")


def run_compile(
    seeds: Sequence[int] = (1, 8), names: Sequence[str] = CONFIGS, repeats: int = 3
) -> list[dict[str, Any]]:
    """Times whole processes that import Rollax, trace and compile the training loop of a config, and end there.

    Each pair of processes has a cache folder of its own: empty for the first, and as that one left it for the second.

    Args:
        seeds: Numbers of seeds, each one job on all devices of a process.
        names: Configs.
        repeats: Pairs; the medians count.

    Returns:
        One row for each config and number of seeds: `cold_seconds`, `warm_seconds`.

    Raises:
        InputError: A process failed; it says how.
    """
    rows = []
    for name in names:
        for count in seeds:
            cold, warm = [], []
            for _ in range(repeats):
                with tempfile.TemporaryDirectory() as cache:
                    seconds, where = _process(name, count, cache)
                    cold.append(seconds)
                    warm.append(_process(name, count, cache)[0])
            row = {"cold_seconds": statistics.median(cold), "warm_seconds": statistics.median(warm)}
            rows.append({"name": name, "seeds": count, **row, **where})
    return rows


def _process(name: str, seeds: int, cache: str) -> tuple[float, dict[str, Any]]:
    """Returns the wall time of one process in seconds, and the device and JAX that it ran with."""
    words = [sys.executable, "-m", "rollax.experiments.bench_compile", name, str(seeds)]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    started = time.perf_counter()
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if ran.returncode:
        raise InputError(f"{name} with seeds = {seeds} did not compile: {ran.stderr.strip().splitlines()[-1]}")
    return seconds, json.loads(ran.stdout.splitlines()[-1])


def main(name: str, seeds: int) -> None:
    """Compiles the training loop of a config for so many seeds, and prints the device and JAX as JSON."""
    start_jax(seeds)
    import jax

    from rollax.experiments import config as configs
    from rollax.experiments.sharding import over_seeds, padded, seed_mesh
    from rollax.experiments.trainer import axes, make_trainer

    trainer, mesh = make_trainer(configs.load(name)), seed_mesh(seeds)
    state = over_seeds(trainer.init, mesh, (0,), axes())(jax.random.split(jax.random.key(0), padded(seeds, mesh)))
    over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), donate_argnums=(0,)).lower(state).compile()
    print(json.dumps({"device": jax.local_devices()[0].device_kind, "jax": jax.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
