"""What logging costs: the share of whole runs that is spent on all logs, on the CSV files alone and on none."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollax.experiments import config as configs
from rollax.experiments import runner

CHUNKS = 50
"""Rows of metrics.csv for each seed: more than twice as many as a run has by default."""


def run_logging(seeds: Sequence[int] = (1, 8), repeats: int = 3) -> list[dict[str, Any]]:
    """Times runs of PPO on CartPole-v1 for 500,000 steps, each with 50 chunks and 20 evaluations of 128 episodes.

    A chunk is logged while the devices work on the next one. So the share of a run's time that the host spends on logs
    is the most that they can cost: nothing of it is lost where the devices leave the host a core, and all of it where
    they need every core. Runs of the different logs take turns.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Runs of each kind; the median counts.

    Returns:
        One row for each number of seeds and kind of log: `steps_per_second` (environment steps of all seeds, learning
        and evaluation included), `cost` (the share of the run's time spent on rows, logs and progress), and `logs`:
        "none", "csv", and "csv, tensorboard" where that extra is installed.
    """
    settings = [f"log.every={500_000 // CHUNKS}", "checkpoint.every=1_000_000"]
    plain = configs.load("ppo_cartpole", settings)
    kinds = {"none": plain, "csv": plain}
    if importlib.util.find_spec("tensorboardX") is not None:
        kinds["csv, tensorboard"] = configs.load("ppo_cartpole", [*settings, "log.tensorboard=true"])
    rows = []
    for count in seeds:
        results: dict[str, list[runner.Result]] = {kind: [] for kind in kinds}
        with tempfile.TemporaryDirectory() as folder:
            for repeat in range(repeats):
                for kind, config in kinds.items():
                    out = None if kind == "none" else Path(folder) / f"{kind} {repeat}"
                    results[kind].append(runner.run(config, count, out=out))
        for kind, measured in results.items():
            rates = [result.summary["steps_per_second"] for result in measured]
            costs = [result.log_seconds / result.summary["run_seconds"] for result in measured]
            rows.append(
                {
                    "name": "ppo CartPole-v1",
                    "logs": kind,
                    "seeds": count,
                    "steps_per_second": statistics.median(rates),
                    "slowest": min(rates),
                    "fastest": max(rates),
                    "cost": statistics.median(costs),
                }
            )
    return rows
