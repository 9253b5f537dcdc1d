"""The interquartile mean and its interval, against hand-worked numbers and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from rollax import InputError
from rollax.experiments import statistics

NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 100], 4.5),  # two go from either end: (3 + 4 + 5 + 6) / 4
        ([100, 7, 6, 5, 4, 3, 2, 1], 4.5),
        ([0, 10, 20, 1000], 15),
        ([0, 10, 20, 30, 1000], 20),  # floor(5 / 4) = 1 from either end
        ([3, 6, 1000], 1009 / 3),
        ([7], 7),
        ([1, 2, 3, NAN, 4, 5, 6, 7, NAN, 100], 4.5),
        ([NAN, 7], 7),
        ([NAN, NAN], NAN),
        ([], NAN),
        ([-np.inf, 1, 2, np.inf], 1.5),
    ],
)
def test_iqm_by_hand(scores: list[float], expected: float) -> None:
    np.testing.assert_allclose(statistics.iqm(scores), expected, rtol=1e-15)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(8, 5, 6), (1, 2, 3), (9, 10, 11)])
def test_iqm_is_scipys_trimmed_mean(shape: tuple[int, ...], axis: int) -> None:
    scores = np.random.default_rng(0).normal(size=shape)
    before = scores.copy()
    np.testing.assert_allclose(statistics.iqm(scores, axis), scipy.stats.trim_mean(scores, 0.25, axis), rtol=1e-12)
    np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize("confidence", [0.5, 0.95])
@pytest.mark.parametrize("statistic", [statistics.iqm, np.mean])
def test_interval_is_scipys_percentile_bootstrap(statistic: statistics.Statistic, confidence: float) -> None:
    scores = np.random.default_rng(1).gamma(2.0, 50.0, (24, 6))
    low, high = statistics.bootstrap_interval(scores, statistic, confidence, resamples=8000)
    oracle = scipy.stats.bootstrap(
        (scores,), statistic, n_resamples=8000, confidence_level=confidence, method="percentile", rng=7, batch=500
    ).confidence_interval
    width = np.mean(oracle.high - oracle.low)
    np.testing.assert_allclose(low, oracle.low, atol=0.06 * width)
    np.testing.assert_allclose(high, oracle.high, atol=0.06 * width)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    scores = np.random.default_rng(2).normal(5.0, 2.0, (30, 600))  # 600 experiments of 30 seeds
    low, high = statistics.bootstrap_interval(scores, resamples=500)
    assert 0.90 < np.mean((low <= 5.0) & (high >= 5.0)) < 0.97


def test_interval_resamples_whole_rows() -> None:
    score = np.random.default_rng(3).normal(size=16)
    low, high = statistics.bootstrap_interval(np.stack([score, 10 * score, score + 3], axis=1))
    np.testing.assert_allclose(low, [low[0], 10 * low[0], low[0] + 3])
    np.testing.assert_allclose(high, [high[0], 10 * high[0], high[0] + 3])
    # A statistic that can't rank sees through any other resampling: columns that sum to 1 keep doing so.
    share_low, share_high = statistics.bootstrap_interval(np.stack([score, 1 - score], axis=1), np.mean)
    np.testing.assert_allclose(share_low + share_high[::-1], 1)


@pytest.mark.parametrize("shape", [(), (4,), (4, 3), (0,), (2, 0)])
def test_shapes(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(4).normal(size=(5, *shape))
    low, high = statistics.bootstrap_interval(scores, resamples=50)
    assert statistics.iqm(scores).shape == low.shape == high.shape == shape
    assert low.dtype == high.dtype == np.float64
    assert np.all(low <= high)


def test_one_seed_has_no_spread_and_no_seed_no_interval() -> None:
    scores = np.array([[0.1, -3.7, 1e9]])
    for bound in statistics.bootstrap_interval(scores):
        np.testing.assert_array_equal(bound, scores[0])
    for bound in statistics.bootstrap_interval(scores[:0]):
        np.testing.assert_array_equal(bound, [NAN] * 3)


def test_missing_scores_count_in_no_column() -> None:
    scores = np.random.default_rng(5).normal(size=(9, 6))
    scores[2, 1] = scores[[0, 4, 8], 3] = scores[:-1, 4] = scores[:, 5] = NAN
    bounds = np.stack(statistics.bootstrap_interval(scores))
    for column, bound in zip(scores.T, bounds.T, strict=True):
        np.testing.assert_array_equal(bound, np.stack(statistics.bootstrap_interval(column[~np.isnan(column)])))
    np.testing.assert_array_equal(bounds[:, 4], scores[-1, 4])
    assert np.isnan(bounds[:, 5]).all()
    assert not np.isnan(bounds[:, :5]).any()


def test_interval_depends_on_scores_and_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(6).normal(size=(8, 5))
    expected = statistics.bootstrap_interval(scores)
    np.testing.assert_array_equal(statistics.bootstrap_interval(scores), expected)
    assert not np.array_equal(statistics.bootstrap_interval(scores, seed=1), expected)
    monkeypatch.setattr(statistics, "_BLOCK", 7)
    np.testing.assert_array_equal(statistics.bootstrap_interval(scores), expected)


# Several tasks

SCORES = np.array([[0.0, 2.0], [1.0, 4.0], [2.0, NAN], [9.0, NAN]])  # four seeds of one task, two of another


def test_aggregates_by_hand() -> None:
    assert statistics.pooled_iqm(SCORES) == 9 / 4  # 0, 1, 2, 2, 4, 9 without the first and the last
    assert statistics.mean_over_tasks(SCORES) == 3  # of 3 and 3
    three = np.concatenate([SCORES, np.array([[8.0], [NAN], [NAN], [NAN]])], axis=1)
    assert statistics.median_over_tasks(three) == 3  # of 3, 3 and 8
    assert statistics.optimality_gap(SCORES, 3.0) == 3 - (6 / 4 + 5 / 2) / 2
    assert statistics.optimality_gap(SCORES / 10) == pytest.approx(0.7)
    for aggregate in (statistics.pooled_iqm, statistics.mean_over_tasks, statistics.median_over_tasks):
        batched = np.asarray(aggregate(np.stack([SCORES, 2 * SCORES])))
        np.testing.assert_array_equal(batched, [aggregate(SCORES), 2 * np.asarray(aggregate(SCORES))])
        assert np.isnan(aggregate(np.full((2, 2), NAN)))


def test_scores_above_thresholds() -> None:
    above = statistics.above(SCORES, np.array([0.0, 1.0, 9.0]))
    np.testing.assert_array_equal(statistics.mean_over_tasks(np.moveaxis(above, -1, 0)), [(3 / 4 + 1) / 2, 3 / 4, 0])


def test_each_task_is_resampled_by_itself() -> None:
    seen: list[np.ndarray] = []

    def aggregate(drawn: np.ndarray) -> np.ndarray:
        seen.append(drawn)
        return np.zeros(drawn.shape[:-2])

    statistics.stratified_interval(SCORES, aggregate, resamples=300)
    drawn = np.concatenate(seen, axis=1)
    assert drawn.shape == (1, 300, 4, 2)
    first, second = drawn[0, ..., 0], drawn[0, :, :2, 1]
    assert {*np.unique(first)} == {0, 1, 2, 9}
    assert {*np.unique(second)} == {2, 4}
    assert np.isnan(drawn[0, :, 2:, 1]).all()
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 0.2  # 1 / sqrt(300) is 0.06


def test_stratified_interval_is_scipys_with_one_bootstrap_for_each_task() -> None:
    generator = np.random.default_rng(7)
    first, second = generator.normal(0, 1, 12), generator.normal(5, 3, 7)
    scores = np.full((12, 2), NAN)
    scores[:, 0], scores[:7, 1] = first, second
    low, high = statistics.stratified_interval(scores, statistics.mean_over_tasks, resamples=8000)
    oracle = scipy.stats.bootstrap(  # resamples each of the two by itself
        (first, second),
        lambda x, y, axis: (np.mean(x, axis=axis) + np.mean(y, axis=axis)) / 2,
        n_resamples=8000,
        method="percentile",
        rng=8,
    ).confidence_interval
    np.testing.assert_allclose([low, high], oracle, atol=0.06 * (oracle.high - oracle.low))


def test_probability_of_improvement_is_scipys_mann_whitney() -> None:
    generator = np.random.default_rng(9)
    x, y = generator.integers(0, 6, (9, 3)).astype(float), generator.integers(0, 5, (6, 3)).astype(float)  # with ties
    statistic = scipy.stats.mannwhitneyu(x, y, axis=0).statistic
    assert statistics.probability_of_improvement(x, y) == pytest.approx(np.mean(statistic) / 54)
    low, high = statistics.improvement_interval(x, y, resamples=20_000)
    draws = [
        x[generator.integers(0, 9, (9, 20_000, 3)), range(3)],
        y[generator.integers(0, 6, (6, 20_000, 3)), range(3)],
    ]
    wins = np.mean((draws[0][:, None] > draws[1]) + 0.5 * (draws[0][:, None] == draws[1]), axis=(0, 1, -1))
    expected = np.quantile(wins, [0.025, 0.975])
    np.testing.assert_allclose([low, high], expected, atol=0.06 * np.ptp(expected))
    assert statistics.probability_of_improvement(SCORES, SCORES[:, ::-1][:2]) == (2.5 / 8 + 1) / 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 0.0}, "confidence = 0.0"),
        ({"confidence": 95}, "confidence = 95"),
        ({"resamples": 0}, "resamples = 0"),
    ],
)
def test_numbers_out_of_range(options: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        statistics.bootstrap_interval([1.0, 2.0], **options)
    with pytest.raises(InputError, match=words):
        statistics.improvement_interval(SCORES, SCORES, **options)
