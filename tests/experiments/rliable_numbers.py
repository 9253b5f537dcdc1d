"""Writes rliable_numbers.json: what rliable says of fixed scores, which test_comparison.py holds Rollax's numbers to.

rliable needs an older pandas than the rest of Rollax's tools, so it has an environment of its own:

    python -m venv /tmp/rliable && /tmp/rliable/bin/pip install rliable 'pandas<3'
    /tmp/rliable/bin/python tests/experiments/rliable_numbers.py

Its `random_state` doesn't reach its resampling, which draws from NumPy's global state: that is what is seeded here.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics

REPS = 50_000
TAUS = np.linspace(0.0, 1.5, 16)


def made_up_scores() -> dict[str, np.ndarray]:
    """Returns scores of two algorithms on five tasks at three points in training, `[runs, 5, 3]`, with ties."""
    generator = np.random.default_rng(20)
    skill = np.array([0.2, 0.5, 0.8, 1.0, 1.3])[:, None] * np.array([0.3, 0.7, 1.0])
    return {
        "first": np.round(skill + 0.25 * generator.normal(size=(10, 5, 3)), 2),
        "second": np.round(0.9 * skill + 0.2 * generator.gamma(1.0, 1.0, (8, 5, 3)), 2),
    }


def main() -> None:
    """Asks rliable, and writes the file beside this one."""
    np.random.seed(0)  # noqa: NPY002
    curves = made_up_scores()
    scores = {name: values[..., -1] for name, values in curves.items()}
    aggregates = {
        "iqm": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "gap": metrics.aggregate_optimality_gap,
    }
    result: dict[str, Any] = {
        "rliable": importlib.metadata.version("rliable"),
        "reps": REPS,
        "scores": {name: values.tolist() for name, values in curves.items()},
        "taus": TAUS.tolist(),
    }
    for name, aggregate in aggregates.items():
        result[name] = _estimates(scores, lambda values, a=aggregate: np.array([a(values)]))
    result["iqm_curve"] = _estimates(
        curves, lambda values: np.array([metrics.aggregate_iqm(values[..., point]) for point in range(3)])
    )
    profiles, bands = library.create_performance_profile(scores, TAUS, reps=2000)
    result["profile"] = {
        name: {"value": profiles[name].tolist(), "low": bands[name][0].tolist(), "high": bands[name][1].tolist()}
        for name in scores
    }
    pair = {"first,second": (scores["first"], scores["second"])}
    result["improvement"] = _estimates(pair, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), 2000)
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(result) + "\n", encoding="utf-8")


def _estimates(scores: dict[str, Any], aggregate: Any, reps: int = REPS) -> dict[str, Any]:
    values, intervals = library.get_interval_estimates(scores, aggregate, reps=reps)
    return {
        name: {"value": values[name].tolist(), "low": intervals[name][0].tolist(), "high": intervals[name][1].tolist()}
        for name in scores
    }


if __name__ == "__main__":
    main()
