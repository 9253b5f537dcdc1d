"""The evaluations of finished runs, read back and put together by task and by algorithm. Imports no JAX.

A task is the environment that a run is evaluated in, with its arguments. An algorithm is a name: that of the run's
config, unless the user gives another one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.errors import InputError
from rollax.experiments import logs, run_folder


@dataclasses.dataclass(frozen=True)
class Results:
    """What the seeds of one algorithm scored on one task."""

    env_steps: NDArray[np.int64]  # [P], of one seed, at each evaluation
    returns: NDArray[np.float64]  # [S, P], mean greedy returns; NaN where no episode ended
    absolute: NDArray[np.float64] | None  # [S], the absolute metric; None where it has not been measured
    unfinished: int  # episodes of the last evaluation that did not end, of all seeds; they are in no return
    failed: int  # seeds whose learners stopped being finite, and were held as they were

    @property
    def scores(self) -> NDArray[np.float64]:
        """The returns at the last evaluation, `[S]`."""
        return self.returns[:, -1]


@dataclasses.dataclass(frozen=True)
class _Run:
    path: Path
    name: str  # that the user gave, "" if none
    task: str
    config: Mapping[str, Any]
    results: Results


def task_of(config: Mapping[str, Any]) -> str:
    """Returns the name of a task: the id of the environment that agents are evaluated in, and its arguments if any.

    Args:
        config: The tables of a resolved config.
    """
    env = config.get("evaluation", {}).get("env") or config["env"]
    return ", ".join([str(env["id"]), *(f"{key}={value!r}" for key, value in env.items() if key != "id")])


def number(score: float | None) -> str:
    """Returns a score as text: two decimals, or one where it is large, and a dash for NaN or None."""
    if score is None or math.isnan(score):
        return "–"
    return f"{score:,.1f}" if abs(score) >= 10 else f"{score:.2f}"


def collect(sources: Sequence[str | Path]) -> dict[str, dict[str, Results]]:
    """Reads finished runs.

    Runs of one algorithm on one task are pooled if their configs differ in `train.seed` alone.

    Args:
        sources: Run folders, or `"NAME=FOLDER"` to name the algorithm of a run. A run without such a name has that of
            its config, or, where the runs are of several tasks, the part of it before the first underscore.

    Returns:
        Results by task, and in it by algorithm, in the order of `sources`.

    Raises:
        InputError: There is no run, one isn't finished or has no scores, a file isn't one that a run wrote, or two runs
            can't be pooled.
    """
    runs = [_read(source) for source in sources]
    if not runs:
        raise InputError("there is no run to compare: name the folders that `rollax train --out` wrote.")
    several = len({run.task for run in runs}) > 1
    grouped: dict[str, dict[str, list[_Run]]] = {}
    for run in runs:
        own_name = str(run.config.get("name") or run.path.name)
        name = run.name or (own_name.partition("_")[0] if several else own_name)
        grouped.setdefault(run.task, {}).setdefault(name, []).append(run)
    return {task: {name: _pooled(name, alike) for name, alike in by_name.items()} for task, by_name in grouped.items()}


def _read(source: str | Path) -> _Run:
    name, separator, folder = str(source).partition("=")
    if not separator or Path(source).exists() or "/" in name:
        name, folder = "", str(source)
    elif not (name.strip() and folder):
        raise InputError(f"{str(source)!r} lacks {'a name' if folder else 'a folder'}: write NAME=FOLDER, or FOLDER.")
    run = run_folder.open(folder)
    run.require_seeds()
    summary = run.read_summary()
    config = run.read_config()
    evaluations = run.read_evaluations()
    env_steps, returns = logs.by_seed(evaluations, "return_mean")
    unfinished = int(np.nansum(logs.by_seed(evaluations, "unfinished")[1][:, -1]))
    returns = np.where(np.isfinite(returns), returns, np.nan)
    if np.isnan(returns[:, -1]).all():
        raise InputError(
            f"run {folder!r} has no score: none of its last episodes ended; raise evaluation.step_cap and train again."
        )
    absolute = summary.get("absolute")
    try:
        measured = None if absolute is None else np.array([_score(row) for row in absolute["seeds"]])
        results = Results(env_steps, returns, measured, unfinished, len(summary["failed_seeds"]))
        return _Run(run.path, name, task_of(config), config, results)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"run {folder!r} has files that no run wrote ({error!r}): restore them.") from error


def _score(row: Mapping[str, Any]) -> float:
    """Returns the score of a seed in a summary, where NaN is null."""
    return np.nan if row["return_mean"] is None else float(row["return_mean"])


def _pooled(name: str, runs: Sequence[_Run]) -> Results:
    """Returns the results of runs of one algorithm on one task, their seeds in order."""
    first, *others = runs
    for other in others:
        pair = f"runs {str(first.path)!r} and {str(other.path)!r} are both {name!r} on {first.task}"
        if difference := _difference(first.config, other.config):
            raise InputError(f"{pair} and differ in {difference}: tell them apart with NAME=RUN.")
        if not np.array_equal(first.results.env_steps, other.results.env_steps):
            raise InputError(f"{pair} and were evaluated at other steps: tell them apart with NAME=RUN.")
    roots = [run.config.get("train", {}).get("seed") for run in runs]
    if len(set(roots)) < len(roots):
        raise InputError(
            f"the runs {', '.join(repr(str(run.path)) for run in runs)} are all {name!r} on {first.task}, and two have "
            "the same train.seed, so the same seeds would count twice: leave one out, or tell them apart with NAME=RUN."
        )
    absolute = [run.results.absolute for run in runs if run.results.absolute is not None]
    return Results(
        first.results.env_steps,
        np.concatenate([run.results.returns for run in runs]),
        np.concatenate(absolute) if len(absolute) == len(runs) else None,
        sum(run.results.unfinished for run in runs),
        sum(run.results.failed for run in runs),
    )


def _difference(first: Mapping[str, Any], other: Mapping[str, Any], where: str = "") -> str:
    """Returns the first key in which two configs differ, "" if there is none but their names and `train.seed`."""
    for key in {**first, **other}:
        name = f"{where}{key}"
        pair = first.get(key), other.get(key)
        if pair[0] == pair[1] or name in ("name", "train.seed"):
            continue
        if isinstance(pair[0], Mapping) and isinstance(pair[1], Mapping):
            if inner := _difference(pair[0], pair[1], f"{name}."):
                return inner
        else:
            return name
    return ""
