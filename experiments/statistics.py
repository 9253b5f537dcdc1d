"""How sure the score of several seeds is: the interquartile mean and its bootstrap interval.

Both follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021,
https://arxiv.org/abs/2108.13264): the interquartile mean (IQM) is robust to outlying seeds, as the median is, while it
wastes less data, and a percentile bootstrap over the seeds gives its interval.

A seed without a score (no episode of its evaluation finished) is NaN and is left out of its column.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import InputError

# Scores resampled at once: a million float64 take 8 MB.
_BLOCK = 1_000_000


class Statistic(Protocol):
    """A function that reduces one axis of an array, such as `iqm`, `numpy.mean` or `numpy.median`."""

    def __call__(self, scores: NDArray[np.float64], /, *, axis: int) -> ArrayLike:
        """Returns `scores` with `axis` reduced away."""


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
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence} is out of range: choose a share between 0 and 1, such as 0.95.")
    if resamples < 1:
        raise InputError(f"resamples = {resamples} is out of range: choose at least 1, such as 2000.")
    values = np.asarray(scores, np.float64)
    columns = values.reshape(len(values), math.prod(values.shape[1:])).T  # [C, S]
    bounds = np.full((2, columns.shape[0]), np.nan)
    patterns, pattern_of_column = np.unique(~np.isnan(columns), axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        if pattern.any():
            chosen = pattern_of_column.ravel() == index
            drawn = _resample(columns[np.ix_(chosen, pattern)], statistic, resamples, seed)
            bounds[:, chosen] = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=-1)
    low, high = bounds.reshape(2, *values.shape[1:])
    return np.asarray(low), np.asarray(high)


def _resample(columns: NDArray[np.float64], statistic: Statistic, resamples: int, seed: int) -> NDArray[np.float64]:
    """Returns the statistic `[C, resamples]` of resamples of the last axis of `columns` `[C, k]`."""
    num_seeds = columns.shape[1]
    draws = np.random.default_rng(seed).integers(0, num_seeds, (resamples, num_seeds))
    block = max(1, _BLOCK // columns.size)
    blocks = (draws[start : start + block] for start in range(0, resamples, block))
    return np.concatenate([np.asarray(statistic(columns[:, rows], axis=-1)) for rows in blocks], axis=-1)
