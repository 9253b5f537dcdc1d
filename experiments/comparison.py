"""`rollax compare`: what several finished runs say of the algorithms that they trained.

It follows Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021,
https://arxiv.org/abs/2108.13264). A seed's score is its mean greedy return at the last evaluation; scores of different
tasks are put on one scale by reference scores before they are pooled. Imports no JAX.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollax.errors import InputError
from rollax.experiments import files, statistics
from rollax.experiments.references import REFERENCES, Reference, read_references
from rollax.experiments.results import Results, collect

_Results = Mapping[str, Mapping[str, Results]]  # by task and algorithm
_Interval = Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]]

_PROFILE_POINTS = 101
_ROUNDING = 1.05
"""Budgets are rounded up to whole iterations: those that differ by less are the same."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Curve:
    """Numbers at P points, and the 95 % bootstrap interval of each."""

    x: NDArray[np.floating] | NDArray[np.integer]  # [P]: environment steps of one seed, or scores
    value: NDArray[np.float64]  # [P]
    low: NDArray[np.float64]  # [P]
    high: NDArray[np.float64]  # [P]


@dataclasses.dataclass(frozen=True)
class Improvement:
    """How probable it is that a run of one algorithm beats one of another, on a task drawn at random."""

    first: str
    second: str
    probability: Estimate


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """How one algorithm did on one task, in returns of its environment."""

    seeds: int
    env_steps: int  # of one seed
    iqm: Estimate
    absolute: Estimate | None  # IQM of the best agents, evaluated anew; None where that has not been done
    curve: Curve  # IQM over environment steps


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The numbers of a comparison; mappings are by the name of the algorithm."""

    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]  # those that are pooled
    normalised: bool  # whether pooled scores are normalised; if not, they are the returns of the one task
    threshold: float | None  # of the optimality gap
    aggregates: Mapping[str, Mapping[str, Estimate]]  # iqm, mean, median, and optimality_gap if there is a threshold
    profiles: Mapping[str, Curve]  # the share of runs that score more than x
    efficiency: Mapping[str, Curve]  # pooled IQM over environment steps, for those with two points within all tasks
    improvements: tuple[Improvement, ...]  # of each pair of algorithms
    by_task: Mapping[str, Mapping[str, TaskScore]]  # every task, those that are not pooled too
    notes: tuple[str, ...]  # sentences on what to keep in mind, and what was left out and why


def compare(
    runs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    normalise: str | Path | None = None,
    threshold: float | None = None,
    resamples: int = 2000,
) -> Comparison:
    """Compares the algorithms of finished runs.

    An algorithm is a name: that of its runs' config, or, where the runs are of several tasks, the part of it before the
    first underscore (shipped configs are `AGENT_ENVIRONMENT`). Runs of one algorithm on one task whose configs differ
    in `train.seed` alone are pooled.

    Args:
        runs: Run folders, or `"NAME=FOLDER"` to name the algorithm of a run.
        out: The folder for `report.html` and its images; None writes nothing.
        normalise: A TOML file of lines `"TASK" = [random, solved]`, beside the known reference scores.
        threshold: Of the optimality gap, in pooled scores. None: 1 where they are normalised, and no gap elsewhere.
        resamples: Of each bootstrap interval.

    Raises:
        InputError: A run isn't finished or has no scores, two runs count the same seeds, no task is left that can be
            pooled, or an argument is out of range.
        OSError: A file of the report can't be written.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise InputError(f"threshold = {threshold} is no score: give a finite number.")
    if out is not None:
        files.require_folder(Path(out), "--out")
    references = read_references(None if normalise is None else Path(normalise))
    results = collect(runs)
    algorithms = tuple(dict.fromkeys(name for by_name in results.values() for name in by_name))
    scales, notes = _scales(results, algorithms, references)
    notes += [
        f"{task!r}, whose reference scores were given, is no task of these runs: {', '.join(results)}."
        for task in references
        if task not in REFERENCES and task not in results
    ]
    normalised = None not in scales.values()
    if threshold is None and normalised:
        threshold = 1.0
    elif threshold is None:
        notes.append("There is no optimality gap, as returns that are not normalised need a threshold for it.")
    interval = functools.partial(statistics.stratified_interval, resamples=resamples)
    scores = {
        name: _filled([_scaled(results[task][name].scores, scale) for task, scale in scales.items()])
        for name in algorithms
    }
    efficiency = _efficiency(results, algorithms, scales, interval)
    notes += [
        f"{name} has no pooled learning curve, as fewer than two points lie within the runs of all its tasks."
        for name in algorithms
        if name not in efficiency
    ]
    comparison = Comparison(
        algorithms=algorithms,
        tasks=tuple(scales),
        normalised=normalised,
        threshold=threshold,
        aggregates={name: _aggregates(scores[name], threshold, interval) for name in algorithms},
        profiles=_profiles(scores, interval),
        efficiency=efficiency,
        improvements=_improvements(scores, resamples),
        by_task={
            task: {name: _task_score(result, interval) for name, result in by_name.items()}
            for task, by_name in results.items()
        },
        notes=(*notes, *_caveats(results)),
    )
    if out is not None:
        from rollax.experiments import report  # matplotlib takes a second to import

        report.write(comparison, Path(out))
    return comparison


def _scales(
    results: _Results, algorithms: Sequence[str], references: Mapping[str, Reference]
) -> tuple[dict[str, Reference | None], list[str]]:
    """Returns the tasks to pool, each with its reference scores, and notes on those that can't be.

    One task can do without reference scores, and is pooled with None.
    """
    shared = [task for task, by_name in results.items() if len(by_name) == len(algorithms)]
    if not shared:
        raise InputError(
            f"no task has runs of all of {', '.join(algorithms)}: compare algorithms on the same tasks, and name runs "
            "of one algorithm alike with NAME=RUN."
        )
    notes = [f"{task} is not pooled, as not every algorithm has runs there." for task in results if task not in shared]
    if len(shared) == 1:
        return {shared[0]: references.get(shared[0])}, notes
    known = {task: references[task] for task in shared if task in references}
    if not known:
        raise InputError(
            f"{shared[0]!r} has no reference scores, so its returns cannot be pooled with those of other tasks: give "
            f'lines such as "{shared[0]}" = [random, solved] in a TOML file, with --normalise FILE.'
        )
    notes += [
        f"{task} is not pooled, as it has no reference scores (--normalise)." for task in shared if task not in known
    ]
    return {**known}, notes


def _scaled(scores: NDArray[np.float64], scale: Reference | None) -> NDArray[np.float64]:
    return scores if scale is None else (scores - scale.low) / (scale.high - scale.low)


def _filled(scores: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Returns the scores `[S, ...]` of each of M tasks as `[max S, M, ...]`, filled up with NaN."""
    filled = np.full((max(map(len, scores)), len(scores), *scores[0].shape[1:]), np.nan)
    for task, values in enumerate(scores):
        filled[: len(values), task] = values
    return filled


def _aggregates(scores: NDArray[np.float64], threshold: float | None, interval: _Interval) -> dict[str, Estimate]:
    aggregates: dict[str, statistics.Aggregate] = {
        "iqm": statistics.pooled_iqm,
        "mean": statistics.mean_over_tasks,
        "median": statistics.median_over_tasks,
    }
    if threshold is not None:
        aggregates["optimality_gap"] = functools.partial(statistics.optimality_gap, threshold=threshold)
    return {name: _estimate(scores, aggregate, interval) for name, aggregate in aggregates.items()}


def _estimate(scores: NDArray[np.float64], aggregate: statistics.Aggregate, interval: _Interval) -> Estimate:
    """Returns an aggregate of scores `[S, M]`."""
    low, high = interval(scores, aggregate)
    return Estimate(float(np.asarray(aggregate(scores))), float(low), float(high))


def _curve(x: NDArray, scores: NDArray[np.float64], aggregate: statistics.Aggregate, interval: _Interval) -> Curve:
    """Returns an aggregate of scores `[S, M, P]` at P points."""
    return Curve(x, np.asarray(aggregate(np.moveaxis(scores, -1, 0))), *interval(scores, aggregate))


def _profiles(scores: Mapping[str, NDArray[np.float64]], interval: _Interval) -> dict[str, Curve]:
    """Returns the share of runs that score more than tau, the mean over tasks (Agarwal et al. 2021, section 4.2)."""
    lowest = min(np.nanmin(values) for values in scores.values())
    highest = max(np.nanmax(values) for values in scores.values())
    taus = np.linspace(lowest, highest, _PROFILE_POINTS)
    return {
        name: _curve(taus, statistics.above(values, taus), statistics.mean_over_tasks, interval)
        for name, values in scores.items()
    }


def _efficiency(
    results: _Results,
    algorithms: Sequence[str],
    scales: Mapping[str, Reference | None],
    interval: _Interval,
) -> dict[str, Curve]:
    """Returns the pooled IQM over environment steps, at the points of the task that has the fewest.

    Budgets are rounded to whole iterations, so tasks are rarely evaluated at the very same steps: the returns of the
    others are interpolated linearly between their evaluations, seed by seed.
    """
    curves = {}
    for name in algorithms:
        of_tasks = {task: results[task][name] for task in scales}
        start = max(result.env_steps[0] for result in of_tasks.values())
        end = min(result.env_steps[-1] for result in of_tasks.values())
        fewest = min((result.env_steps for result in of_tasks.values()), key=len)
        points = fewest[(start <= fewest) & (fewest <= end)]
        if points.size < 2:
            continue
        returns = [
            _scaled(np.stack([np.interp(points, result.env_steps, seed) for seed in result.returns]), scales[task])
            for task, result in of_tasks.items()
        ]
        curves[name] = _curve(points, _filled(returns), statistics.pooled_iqm, interval)
    return curves


def _improvements(scores: Mapping[str, NDArray[np.float64]], resamples: int) -> tuple[Improvement, ...]:
    return tuple(
        Improvement(
            first,
            second,
            Estimate(
                statistics.probability_of_improvement(scores[first], scores[second]),
                *statistics.improvement_interval(scores[first], scores[second], resamples=resamples),
            ),
        )
        for first, second in itertools.combinations(scores, 2)
    )


def _task_score(result: Results, interval: _Interval) -> TaskScore:
    def estimate(scores: NDArray[np.float64]) -> Estimate:
        return _estimate(scores[:, None], statistics.pooled_iqm, interval)

    return TaskScore(
        seeds=len(result.scores),
        env_steps=int(result.env_steps[-1]),
        iqm=estimate(result.scores),
        absolute=None if result.absolute is None else estimate(result.absolute),
        curve=_curve(result.env_steps, result.returns[:, None], statistics.pooled_iqm, interval),
    )


def _caveats(results: _Results) -> list[str]:
    """Returns sentences on single seeds, missing scores, and budgets that differ."""
    sentences = []
    for task, by_name in results.items():
        for name, result in by_name.items():
            missing = int(np.isnan(result.scores).sum())
            if missing:
                sentences.append(
                    f"{missing} of the {len(result.scores)} seeds of {name} on {task} finished no episode at the end "
                    "and are left out."
                )
            if result.unfinished:
                sentences.append(
                    f"{result.unfinished} episodes of the last evaluation of {name} on {task} did not end and are in "
                    "no return."
                )
            if result.failed:
                sentences.append(
                    f"{result.failed} of the {len(result.scores)} seeds of {name} on {task} stopped being finite, and "
                    "score as what they had learnt by then."
                )
            if len(result.scores) - missing == 1:
                sentences.append(
                    f"{name} has the score of one seed on {task}: intervals do not show how much seeds differ there."
                )
        budgets = {name: int(result.env_steps[-1]) for name, result in by_name.items()}
        if max(budgets.values()) > _ROUNDING * min(budgets.values()):
            steps = ", ".join(f"{name} {budget:,}" for name, budget in budgets.items())
            sentences.append(f"Budgets on {task} differ, and scores are those of the end: {steps} steps.")
    return sentences
