"""The program that times other libraries, on stand-ins for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from rollax.experiments import bench_peers

STAND_IN = """
import statistics
import jax
import wandb
from brax.envs.wrappers.training import EpisodeWrapper

def make_train(config):
    steps = config["TOTAL_TIMESTEPS"] * statistics.median([0, 1, 2])
    return lambda key: jax.tree_map(lambda leaf: leaf + steps, jax.random.uniform(key))
"""


def test_it_times_a_peer_that_needs_what_jax_has_dropped(tmp_path: Path) -> None:
    (tmp_path / "purejaxrl").mkdir()
    (tmp_path / "purejaxrl" / "dqn.py").write_text(STAND_IN, encoding="utf-8")
    script = str(Path(__file__).parents[2] / "experiments" / "bench_peers.py")
    words = [sys.executable, script, "purejaxrl-dqn", str(tmp_path), "2"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout.splitlines()[-1])
    assert set(measured) == {"steps_per_second", "compile_seconds", "peak_megabytes", "jax"}


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_rate_counts_the_steps_of_all_seeds(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([2.0, 6.0])  # of one call, and of as many as last 5 seconds: of 2, as 2.5 is rounded to it
    shapes = []

    def seconds(function: object, argument: jax.Array, calls: int) -> float:
        shapes.append((argument.shape, calls))
        return next(durations)

    monkeypatch.setattr(bench_peers, "_seconds", seconds)
    measured = bench_peers.measure(jax.random.uniform, 300, seeds)
    assert measured["steps_per_second"] == 2 * 300 * seeds / 6
    shape = () if seeds == 1 else (seeds,)
    assert shapes == [(shape, 1), (shape, 2)]
    assert measured["compile_seconds"] > 0
    assert measured["jax"] == jax.__version__


def test_the_peak_is_of_this_process_alone() -> None:
    """What `getrusage` says of a process begins, on Linux, with the peak of the one that started it."""
    script = str(Path(bench_peers.__file__))
    program = f"import runpy; module = runpy.run_path({script!r}); print(module['peak_megabytes']())"
    ballast = b"x" * 600_000_000
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert bench_peers.peak_megabytes() > len(ballast) / 1e6
    assert 10 < float(ran.stdout) < len(ballast) / 1e6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rejax-sac", "no/such/clone", "1"], "checkout = 'no/such/clone' has no folder 'src': give a clone of rejax."),
        (["purejaxrl-ppo", ".", "0"], "seeds = 0 must be at least 1."),
        (["purejaxrl-ppo", ".", "many"], "invalid int value: 'many'"),
        (["cleanrl-ppo", ".", "1"], "invalid choice: 'cleanrl-ppo'"),
        (["rejax-td3", ".", "1"], "rejax-td3 cannot be used (No module named 'rejax'): install"),
    ],
)
def test_bad_input_gets_a_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "src").mkdir()
    with pytest.raises(SystemExit) as status:
        bench_peers.main(arguments)
    assert status.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
