"""Generalised advantages: by hand, against a long-hand double sum, and against rlax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax.agents.returns import generalised_advantage

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


@MAYBE_JIT
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("terminated", [2.12, 1.00, 6.36, 4.25]),
        ("truncated", [2.5736, 1.63, 6.36, 4.25]),
        ("both", [2.12, 1.00, 6.36, 4.25]),
    ],
)
def test_an_episode_that_ends_in_the_middle(end: str, expected: list[float], transform: Transform) -> None:
    # V of the observation after the reset is 1.5, of the true successor 0.7, and after the last step 2.5.
    after_step_1 = np.array([False, True, False, False])
    never = np.zeros(4, bool)
    advantage = transform(generalised_advantage)(
        jnp.array([[1.0], [2], [3], [4]]),
        jnp.array([[0.5], [1], [1.5], [2]]),
        jnp.array([[1.0], [0.7], [2], [2.5]]),
        jnp.asarray(after_step_1 if end != "truncated" else never)[:, None],
        jnp.asarray(after_step_1 if end != "terminated" else never)[:, None],
        0.9,
        0.8,
    )
    np.testing.assert_allclose(advantage[:, 0], expected, rtol=1e-6)


def double_sum(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    trace_decay: float,
) -> np.ndarray:
    """A_t = sum_k (gamma lambda)^k delta_{t+k} up to the end of the episode or of the data, term by term."""
    T, N = reward.shape
    advantage = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            for k in range(T - t):
                bootstrap = 0.0 if terminated[t + k, n] else next_value[t + k, n]
                delta = reward[t + k, n] + discount * bootstrap - value[t + k, n]
                advantage[t, n] += (discount * trace_decay) ** k * delta
                if terminated[t + k, n] or truncated[t + k, n]:
                    break
    return advantage


@MAYBE_JIT
@pytest.mark.parametrize(("discount", "trace_decay"), [(0.99, 0.95), (0.9, 1.0), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)])
def test_against_a_double_sum(discount: float, trace_decay: float, transform: Transform) -> None:
    random = np.random.default_rng(0)
    reward, value, next_value = random.normal(size=(3, 20, 5))
    terminated, truncated = random.random((2, 20, 5)) < 0.25
    assert (terminated & ~truncated).any()
    assert (truncated & ~terminated).any()
    assert (terminated & truncated).any()
    arrays = (reward, value, next_value, terminated, truncated)
    numbers = (jnp.float32(discount), jnp.float32(trace_decay))  # hyperparameters are arrays
    arguments = [jnp.asarray(array, jnp.float32 if array.dtype == float else None) for array in arrays]
    advantage = transform(generalised_advantage)(*arguments, *numbers)
    assert advantage.dtype == jnp.float32
    np.testing.assert_allclose(advantage, double_sum(*arrays, discount, trace_decay), atol=1e-5)


@MAYBE_JIT
def test_against_rlax_where_nothing_is_truncated(transform: Transform) -> None:
    random = np.random.default_rng(1)
    reward = random.normal(size=(20, 3)).astype(np.float32)
    values = random.normal(size=(21, 3)).astype(np.float32)
    terminated = random.random((20, 3)) < 0.2
    theirs = jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
        jnp.asarray(reward), jnp.asarray(0.97 * (1 - terminated), jnp.float32), 0.9, jnp.asarray(values)
    )
    ours = transform(generalised_advantage)(
        reward, values[:-1], values[1:], terminated, np.zeros_like(terminated), 0.97, 0.9
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_ends_of_episodes_are_walls() -> None:
    random = np.random.default_rng(2)
    reward, value, next_value = (jnp.asarray(array, jnp.float32) for array in random.normal(size=(3, 8, 2)))
    never = jnp.zeros((8, 2), jnp.bool_)
    ended = never.at[3, 0].set(True)

    def first_four(reward: jax.Array, terminated: jax.Array, truncated: jax.Array) -> jax.Array:
        return generalised_advantage(reward, value, next_value, terminated, truncated, 0.9, 0.9)[:4]

    for flags in ((ended, never), (never, ended)):
        before = first_four(reward, *flags)
        after = first_four(reward.at[4:].add(100.0), *flags)
        np.testing.assert_array_equal(after[:, 0], before[:, 0])
        assert (after[:, 1] > before[:, 1] + 1).all()


def test_vmapped_discounts_are_single_ones() -> None:
    random = np.random.default_rng(3)
    reward, value, next_value = (jnp.asarray(array, jnp.float32) for array in random.normal(size=(3, 6, 2)))
    terminated, truncated = (jnp.asarray(flags) for flags in random.random((2, 6, 2)) < 0.2)

    def advantage(discount: jax.Array) -> jax.Array:
        return generalised_advantage(reward, value, next_value, terminated, truncated, discount, 0.95)

    discounts = jnp.array([0.5, 0.9, 0.99])
    alone = jnp.stack([advantage(discount) for discount in discounts])
    np.testing.assert_allclose(jax.jit(jax.vmap(advantage))(discounts), alone, atol=1e-6)


def test_shapes_that_differ_are_refused() -> None:
    array, flags = jnp.zeros((4, 2)), jnp.zeros((4, 2), jnp.bool_)
    with pytest.raises(AssertionError):
        generalised_advantage(array, array, jnp.zeros((5, 2)), flags, flags, 0.9, 0.9)
    with pytest.raises(AssertionError):
        generalised_advantage(array, array, array, flags, flags[:, :1], 0.9, 0.9)
