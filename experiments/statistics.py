"""How sure the scores of several seeds, on one task or on several, are: what sums them up, and bootstrap intervals.

All of it follows Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021,
https://arxiv.org/abs/2108.13264): the interquartile mean (IQM) is robust to outlying seeds, as the median is, while it
wastes less data; a percentile bootstrap over the seeds gives its interval, and with several tasks it is stratified: the
seeds of each task are resampled among themselves.

A seed without a score (no episode of its evaluation finished) is NaN and is left out. Tasks may have different numbers
of seeds: the array of their scores `[S, M]` is filled up with NaN.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import InputError

# Scores resampled at once: a million float64 take 8 MB.
_BLOCK = 1_000_000

_MOST_RESAMPLES = 100_000


class Statistic(Protocol):
    """A function that reduces one axis of an array, such as `iqm`, `numpy.mean` or `numpy.median`."""

    def __call__(self, scores: NDArray[np.float64], /, *, axis: int) -> ArrayLike:
        """Returns `scores` with `axis` reduced away."""


class Aggregate(Protocol):
    """A function that sums up the seeds of several tasks, such as `pooled_iqm` or `mean_over_tasks`."""

    def __call__(self, scores: NDArray[np.float64], /) -> ArrayLike:
        """Returns `[...]` of scores `[..., S, M]`, S seeds of M tasks; NaN stands for a missing score."""


def iqm(scores: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """Returns the interquartile mean: the mean of what is left when a quarter is cut from either end.

    Of `k` scores in order, `x_(1) <= ... <= x_(k)`, the `floor(k / 4)` lowest and highest are cut, as
    `scipy.stats.trim_mean(scores, 0.25)` does (Agarwal et al. 2021, section 4.3). With fewer than four it is the mean.

    Args:
        scores: Any shape with at least one axis; NaN stands for a missing score and counts nowhere.
        axis: The axis of the seeds.

    Returns:
        `scores` without `axis`, float64; NaN where no score is left.
    """
    ordered = np.sort(np.moveaxis(np.asarray(scores, np.float64), axis, -1), axis=-1)  # NaNs go last
    count = np.sum(~np.isnan(ordered), axis=-1, keepdims=True)
    cut = count // 4
    rank = np.arange(ordered.shape[-1])
    total = np.sum(ordered, axis=-1, where=(rank >= cut) & (rank < count - cut))
    kept = (count - 2 * cut)[..., 0]
    mean: NDArray[np.float64] = np.divide(total, kept, out=np.full_like(total, np.nan), where=kept > 0)
    return mean


def bootstrap_interval(
    scores: ArrayLike,
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the percentile bootstrap interval of a statistic over seeds, for each column.

    Each resample draws as many seeds as there are, with replacement, and takes the whole row of a drawn seed: all
    columns without missing scores see the same resamples, so a band over training is coherent. A column with missing
    scores gets exactly the interval that it would get if its missing seeds weren't in the array.

    Args:
        scores: `[S, ...]`, one row per seed; NaN stands for a missing score.
        statistic: Reduces the seeds; it never sees a NaN.
        confidence: The share of the resampled statistics that lies between low and high, in (0, 1).
        resamples: How many resamples to draw.
        seed: Seeds the draws, so that equal scores give equal intervals.

    Returns:
        `(low, high)`, each `[...]` float64. Both equal the score where there is one seed, and NaN where there is none.

    Raises:
        InputError: If `confidence` or `resamples` is out of range.
    """
    values = np.asarray(scores, np.float64)[:, None]
    return stratified_interval(values, lambda drawn: statistic(drawn[..., 0], axis=-1), confidence, resamples, seed)


def pooled_iqm(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the interquartile mean `[...]` over all seeds of all tasks, of scores `[..., S, M]`.

    A task with more seeds than the others weighs more (Agarwal et al. 2021, section 4.3).
    """
    return iqm(scores.reshape(*scores.shape[:-2], -1), axis=-1)


def mean_over_tasks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean `[...]` over tasks of the mean over seeds, of scores `[..., S, M]`."""
    mean: NDArray[np.float64] = np.mean(_task_means(scores), axis=-1)
    return mean


def median_over_tasks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the median `[...]` over tasks of the mean over seeds, of scores `[..., S, M]`."""
    median: NDArray[np.float64] = np.median(_task_means(scores), axis=-1)
    return median


def optimality_gap(scores: NDArray[np.float64], threshold: float = 1.0) -> NDArray[np.float64]:
    """Returns by how much scores `[..., S, M]` fall short of a threshold: `threshold - mean(min(score, threshold))`.

    What a score has above the threshold makes up for nothing (Agarwal et al. 2021, section 4.3). Lower is better.

    Args:
        scores: `[..., S, M]`, on one scale; the mean is that of `mean_over_tasks`.
        threshold: What counts as solved.
    """
    return threshold - mean_over_tasks(np.minimum(scores, threshold))


def above(scores: NDArray[np.float64], taus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns which scores `[S, M]` are above each of T thresholds, as 1 and 0 `[S, M, T]`; NaN where none is known.

    The mean over seeds and tasks is the performance profile (Agarwal et al. 2021, section 4.2).
    """
    scores = scores[..., None]
    return np.where(np.isnan(scores), np.nan, scores > taus)


def stratified_interval(
    scores: ArrayLike,
    aggregate: Aggregate,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the percentile bootstrap interval of an aggregate of several tasks' seeds, for each column.

    Each resample draws, within each task, as many seeds as it has scores, with replacement. Columns with the same
    missing scores see the same resamples; one with others gets the interval that it would get by itself.

    Args:
        scores: `[S, M, ...]`, S seeds of M tasks; NaN stands for a missing score.
        aggregate: Sums up `[..., S, M]`; the NaN that it sees fill up the tasks that have fewer scores than others.
        confidence: The share of the resampled aggregates that lies between low and high, in (0, 1).
        resamples: How many resamples to draw.
        seed: Seeds the draws, so that equal scores give equal intervals.

    Returns:
        `(low, high)`, each `[...]` float64. Both equal the aggregate where no task has more than one seed, and are NaN
        where there is no score.

    Raises:
        InputError: If `confidence` or `resamples` is out of range.
    """
    _check_bootstrap(confidence, resamples)
    values = np.asarray(scores, np.float64)
    num_seeds, num_tasks, *rest = values.shape
    columns = np.moveaxis(values.reshape(num_seeds, num_tasks, math.prod(rest)), -1, 0)  # [C, S, M]
    bounds = np.full((2, len(columns)), np.nan)
    known = ~np.isnan(columns).reshape(len(columns), num_seeds * num_tasks)
    patterns, pattern_of_column = np.unique(known, axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        if pattern.any():
            chosen = pattern_of_column.ravel() == index
            generator = np.random.default_rng(seed)
            rows = _draw_rows(pattern.reshape(num_seeds, num_tasks), resamples, generator)
            drawn = _resample(columns[chosen], rows, aggregate)
            bounds[:, chosen] = np.quantile(drawn, _tails(confidence), axis=-1)
    low, high = bounds.reshape(2, *rest)
    return np.asarray(low), np.asarray(high)


def probability_of_improvement(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Returns how probable it is that a run of the first algorithm beats one of the second, on a task drawn at random.

    The mean over tasks of the Mann-Whitney U statistic, `mean over pairs of [x > y] + [x = y] / 2` (Agarwal et al.
    2021, section 4.3).

    Args:
        first: `[S, M]`; NaN stands for a missing score.
        second: `[S', M]`, of the same tasks.
    """
    wins = [np.mean(_wins(x, y)) for x, y in _pairs(first, second)]
    return float(np.mean(wins))


def improvement_interval(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the stratified bootstrap interval `(low, high)` of `probability_of_improvement`.

    The seeds of the two algorithms are resampled independently, within each task.

    Args:
        first: `[S, M]`; NaN stands for a missing score.
        second: `[S', M]`, of the same tasks.
        confidence: As of `stratified_interval`.
        resamples: As of `stratified_interval`.
        seed: As of `stratified_interval`.

    Raises:
        InputError: If `confidence` or `resamples` is out of range.
    """
    _check_bootstrap(confidence, resamples)
    generator = np.random.default_rng(seed)
    drawn = np.zeros(resamples)
    pairs = _pairs(first, second)
    for x, y in pairs:
        shares_x, shares_y = (_draw_shares(len(scores), resamples, generator) for scores in (x, y))
        drawn += np.sum((shares_x @ _wins(x, y)) * shares_y, axis=1)
    low, high = np.quantile(drawn / len(pairs), _tails(confidence))
    return float(low), float(high)


def _check_bootstrap(confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence} is out of range: choose a share between 0 and 1, such as 0.95.")
    if not 1 <= resamples <= _MOST_RESAMPLES:
        raise InputError(f"resamples = {resamples} is out of range: choose 1 to {_MOST_RESAMPLES}, such as 2000.")


def _tails(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def _task_means(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean `[..., M]` over the seeds of each task that have a score; NaN where none has."""
    known = ~np.isnan(scores)
    count = np.sum(known, axis=-2)
    total = np.sum(scores, axis=-2, where=known)
    mean: NDArray[np.float64] = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return mean


def _draw_rows(pattern: NDArray[np.bool_], resamples: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Returns which seeds each resample takes `[resamples, k, M]`; -1 fills up a task with less than k scores."""
    counts = np.sum(pattern, axis=0)
    rows = np.full((resamples, np.max(counts), len(counts)), -1)
    for task, count in enumerate(counts):
        if count:
            draws = generator.integers(0, count, (resamples, count))
            rows[:, :count, task] = np.flatnonzero(pattern[:, task])[draws]
    return rows


def _resample(columns: NDArray[np.float64], rows: NDArray[np.int64], aggregate: Aggregate) -> NDArray[np.float64]:
    """Returns the aggregate `[C, resamples]` of the rows drawn of `columns` `[C, S, M]`."""
    num_columns, _, num_tasks = columns.shape
    filled = np.concatenate([columns, np.full((num_columns, 1, num_tasks), np.nan)], axis=1)  # row -1 is NaN
    block = max(1, _BLOCK // columns.size)
    blocks = (rows[start : start + block] for start in range(0, len(rows), block))
    return np.concatenate([np.asarray(aggregate(filled[:, block, np.arange(num_tasks)])) for block in blocks], axis=-1)


def _pairs(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Returns the scores of both algorithms on each task, without the missing ones."""
    return [(x[~np.isnan(x)], y[~np.isnan(y)]) for x, y in zip(first.T, second.T, strict=True)]


def _wins(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns `[len(x), len(y)]`: 1 where x is larger, 1/2 where the two are equal."""
    return 0.5 * ((x[:, None] > y).astype(np.float64) + (x[:, None] >= y))


def _draw_shares(count: int, resamples: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Returns which share of each resample is which of `count` scores, `[resamples, count]`."""
    draws = generator.integers(0, count, (resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(draws.ravel(), minlength=resamples * count).reshape(resamples, count) / count
