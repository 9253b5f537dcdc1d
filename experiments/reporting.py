"""What a run reports: rows of metrics.csv and evaluations.csv from arrays of all seeds, and scores over seeds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rollax.experiments import statistics
from rollax.experiments.evaluation import Evaluation


def metrics_rows(metrics: dict[str, jax.Array], env_steps: int, seeds: int) -> list[dict[str, Any]]:
    """Returns one row for each seed: means over the chunk's iterations, of episodes weighted by how many ended."""
    columns = {name: np.asarray(value)[:seeds] for name, value in metrics.items()}
    episodes = columns["episodes"]
    means = {"episodes": np.sum(episodes, axis=1)}
    for name, value in columns.items():
        if name != "episodes":
            weights = (episodes if name.startswith("episode_") else np.ones_like(episodes)) * ~np.isnan(value)
            total = np.sum(weights, axis=1)
            mean = np.sum(np.where(weights > 0, value, 0.0) * weights, axis=1) / np.maximum(total, 1)
            means[name] = np.where(total > 0, mean, np.nan)
    return [
        {"seed": seed, "env_steps": env_steps, **{name: value[seed].item() for name, value in means.items()}}
        for seed in range(seeds)
    ]


def evaluation_rows(evaluation: Evaluation, env_steps: int, seeds: int) -> list[dict[str, Any]]:
    """Returns one row of evaluations.csv for each seed; an unfinished episode is counted and not averaged in."""
    returns, lengths, finished = (
        np.asarray(leaf)[:seeds] for leaf in (evaluation.episode_return, evaluation.episode_length, evaluation.finished)
    )
    rows = []
    for seed in range(seeds):
        kept = returns[seed][finished[seed]].astype(np.float64)
        any_finished = kept.size > 0
        rows.append(
            {
                "seed": seed,
                "env_steps": env_steps,
                "return_mean": float(np.mean(kept)) if any_finished else float("nan"),
                "return_std": float(np.std(kept)) if any_finished else float("nan"),
                "length_mean": float(np.mean(lengths[seed][finished[seed]])) if any_finished else float("nan"),
                "finished": int(np.sum(finished[seed])),
                "unfinished": int(np.sum(~finished[seed])),
            }
        )
    return rows


def scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the inter-quartile mean over seeds of each seed's mean return, its 95 % interval, and what is missing."""
    means = np.array([row["return_mean"] for row in rows])
    return {
        "iqm": float(statistics.iqm(means)),
        "interval": [float(bound) for bound in statistics.bootstrap_interval(means)],
        "unfinished": sum(row["unfinished"] for row in rows),
    }


def progress(rows: list[dict[str, Any]]) -> str:
    """Returns the scores of one evaluation as a progress bar shows them: the IQM, and the spread over seeds."""
    means = np.array([row["return_mean"] for row in rows])
    known = means[~np.isnan(means)]
    if not known.size:
        return "no episode ended"
    text = f"greedy return IQM {statistics.iqm(known):.2f}"
    return text if len(rows) == 1 else f"{text}, seeds {known.min():.2f} to {known.max():.2f}"
