"""What logging costs: whole runs with all logs, with the CSV files alone and with none, in turns."""

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


def run_logging(seeds: Sequence[int] = (1, 8), repeats: int = 5) -> list[dict[str, Any]]:
    """Times runs of PPO on CartPole-v1 for 500,000 steps, each with 50 chunks and 20 evaluations of 128 episodes.

    Runs take turns, so that a machine that gets slower does so for all of them.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Runs of each kind; the median counts.

    Returns:
        One row for each number of seeds and kind of log: `steps_per_second` (environment steps of all seeds, learning
        and evaluation included), `cost` (the share of the steps per second without logs that the logs take), and
        `logs`: "none", "csv", and "csv, tensorboard" where that extra is installed.
    """
    settings = [f"log.every={500_000 // CHUNKS}", "checkpoint.every=1_000_000"]
    plain = configs.load("ppo_cartpole", settings)
    kinds = {"none": plain, "csv": plain}
    if importlib.util.find_spec("tensorboardX") is not None:
        kinds["csv, tensorboard"] = configs.load("ppo_cartpole", [*settings, "log.tensorboard=true"])
    rows = []
    for count in seeds:
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        with tempfile.TemporaryDirectory() as folder:
            for repeat in range(repeats):
                for kind, config in kinds.items():
                    out = None if kind == "none" else Path(folder) / f"{kind} {repeat}"
                    rates[kind].append(runner.run(config, count, out=out).summary["steps_per_second"])
        whole = statistics.median(rates["none"])
        for kind, measured in rates.items():
            rate = statistics.median(measured)
            rows.append(
                {
                    "name": "ppo CartPole-v1",
                    "logs": kind,
                    "seeds": count,
                    "steps_per_second": rate,
                    "slowest": min(measured),
                    "fastest": max(measured),
                    "cost": 1.0 - rate / whole,
                }
            )
    return rows
