"""Running statistics: exact counts, merges against numpy, and samples of any tree and dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.agents import normalisation


def merged(batches: list[np.ndarray]) -> normalisation.Statistics:
    statistics = normalisation.init(batches[0][0, 0])
    for batch in batches:
        statistics = jax.jit(normalisation.merge)(statistics, jnp.asarray(batch))
    return statistics


def test_merges_equal_one_pass_over_all_samples() -> None:
    generator = np.random.default_rng(0)
    batches = [generator.normal(50.0, 5.0, (16, 8, 3)).astype(np.float32) for _ in range(40)]
    statistics = merged(batches)
    everything = np.concatenate(batches).reshape(-1, 3).astype(np.float64)
    assert float(statistics.count) == 40 * 16 * 8
    np.testing.assert_allclose(statistics.mean, everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normalisation.standard_deviation(statistics), everything.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(statistics.mean, 50.0, atol=0.3)
    np.testing.assert_allclose(normalisation.standard_deviation(statistics), 5.0, atol=0.3)


def test_by_hand() -> None:
    statistics = merged([np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[10.0, 20.0]])])
    assert float(statistics.count) == 6
    assert float(statistics.mean) == pytest.approx(40 / 6, rel=1e-6)
    assert float(statistics.squared_deviation / statistics.count) == pytest.approx(43.8889, rel=1e-4)


def test_no_samples_normalise_to_themselves() -> None:
    statistics = normalisation.init({"a": jnp.zeros(2), "b": jnp.zeros((), jnp.int32)})
    observation = {"a": jnp.array([[3.0, -4.0]]), "b": jnp.array([7])}
    scaled = normalisation.normalise(statistics, observation)
    np.testing.assert_array_equal(scaled["a"], [[3.0, -4.0]])
    np.testing.assert_array_equal(scaled["b"], [7.0])


def test_constant_samples_stay_finite_and_outliers_are_clipped() -> None:
    statistics = merged([np.full((4, 4), 2.0, np.float32)])
    assert float(normalisation.normalise(statistics, jnp.float32(2.0))) == 0.0
    assert float(normalisation.normalise(statistics, jnp.float32(1e6))) == 10.0
