"""The optimiser and its schedules, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError
from rollax.agents import optimisers

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


@MAYBE_JIT
def test_gradients_are_clipped_by_their_global_norm(transform: Transform) -> None:
    # 3 and 4 have norm 5. Adam's first step is g / (|g| + epsilon); epsilon = 1 lets the size of g show.
    @transform
    def step(max_grad_norm: jax.Array) -> Any:
        optimiser = optimisers.clipped_adam(max_grad_norm, jnp.float32(1.0))
        params = {"a": jnp.array([1.0]), "b": jnp.array([[1.0]])}
        gradients = {"a": jnp.array([3.0]), "b": jnp.array([[-4.0]])}
        return optimisers.descend(optimiser, gradients, optimiser.init(params), params, jnp.float32(0.1))[0]

    clipped, whole = step(jnp.float32(1.0)), step(jnp.float32(5.1))
    np.testing.assert_allclose(clipped["a"], [1 - 0.1 * 0.6 / 1.6], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[1 + 0.1 * 0.8 / 1.8]], rtol=1e-6)
    np.testing.assert_allclose(whole["a"], [1 - 0.1 * 3 / 4], rtol=1e-6)
    np.testing.assert_allclose(whole["b"], [[1 + 0.1 * 4 / 5]], rtol=1e-6)


@MAYBE_JIT
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0, 0]),
        ("cosine", [1, 0.853553, 0.5, 0.146447, 0, 0]),
    ],
)
def test_schedules(name: str, expected: list[float], transform: Transform) -> None:
    @transform
    def factor(updates: jax.Array, horizon: jax.Array) -> jax.Array:
        return optimisers.schedule(name, "")(optimisers.progress(updates, horizon))

    updates = jnp.array([0, 2, 4, 6, 8, 99], jnp.int32)
    np.testing.assert_allclose(factor(updates, jnp.float32(8)), expected, atol=1e-6)
    np.testing.assert_array_equal(factor(updates, jnp.float32(0)), np.ones(6))  # no horizon, no end


def test_an_unknown_schedule_is_a_sentence() -> None:
    with pytest.raises(
        InputError, match=r"agent\.epsilon_schedule = 'cosin' is no known schedule: did you mean 'cosine'"
    ):
        optimisers.schedule("cosin", "agent.epsilon_schedule")


def test_no_optimiser_makes_a_false_alarm_of_nan() -> None:
    params = {"w": jnp.ones(3)}
    for optimiser in (optimisers.clipped_radam(1.0), optimisers.clipped_adam(1.0, 1e-5), optimisers.adam(1e-8)):
        with jax.debug_nans(True), jax.disable_jit():
            (after, _), metrics = optimisers.step(
                optimiser, lambda p: (jnp.sum(p["w"] ** 2), {}), params, optimiser.init(params), jnp.float32(0.1)
            )
        assert np.isfinite(after["w"]).all()
        np.testing.assert_allclose(metrics["gradient_norm"], 2 * np.sqrt(3), rtol=1e-6)
        bad = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
        with jax.debug_nans(True), jax.disable_jit(), pytest.raises(FloatingPointError):
            optimisers.descend(optimiser, bad, optimiser.init(params), params, jnp.float32(0.1))
