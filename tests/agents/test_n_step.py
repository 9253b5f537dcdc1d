"""n-step returns of windows: by hand at both kinds of end, term by term, and against rlax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax.agents.returns import at_last, n_step, n_step_returns

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


def windows(array: np.ndarray, n: int) -> jax.Array:
    """The windows `[n, T]` that start at each of T steps; what is beyond the data is rubbish."""
    padded = np.concatenate([array, np.full(n - 1, True if array.dtype == bool else 1e9).astype(array.dtype)])
    return jnp.asarray(np.stack([padded[k : k + len(array)] for k in range(n)]))


@MAYBE_JIT
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("truncated", [6.355, 6.355, 5.95, 5.5, 5.95, 5.5]),
        ("terminated", [6.355, 2.71, 1.9, 1, 5.95, 5.5]),
    ],
)
def test_six_steps_with_a_cut(end: str, expected: list[float], transform: Transform) -> None:
    cut, never = np.arange(6) == 3, np.zeros(6, bool)
    mask = jnp.arange(3)[:, None] + jnp.arange(6)[None] < 6
    folded = transform(n_step)(
        windows(np.ones(6, np.float32), 3),
        windows(cut if end == "terminated" else never, 3),
        windows(cut if end == "truncated" else never, 3),
        0.9,
        mask,
    )
    np.testing.assert_allclose(folded.reward + folded.discount * 5.0, expected, rtol=1e-6)
    np.testing.assert_array_equal(folded.last, [2, 2, 1, 0, 1, 0])


@MAYBE_JIT
@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_against_a_sum_term_by_term(discount: float, transform: Transform) -> None:
    random = np.random.default_rng(0)
    n, batch = 4, 64
    reward, value = random.normal(size=(2, n, batch)).astype(np.float32)
    terminated, truncated = random.random((2, n, batch)) < 0.2
    length = random.integers(0, n + 1, batch)
    mask = np.arange(n)[:, None] < length
    folded = transform(n_step)(
        jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated), jnp.float32(discount), jnp.asarray(mask)
    )
    total = folded.reward + folded.discount * at_last(jnp.asarray(value), folded.last)
    for b in range(batch):
        expected = 0.0
        for k in range(length[b]):
            expected += discount**k * reward[k, b]
            if terminated[k, b]:
                break
            if truncated[k, b] or k == length[b] - 1:
                expected += discount ** (k + 1) * value[k, b]
                break
        np.testing.assert_allclose(total[b], expected, rtol=1e-5, atol=1e-5)
    assert {0, 1, 4} <= set(length)


def test_against_rlax() -> None:
    random = np.random.default_rng(1)
    steps, n = 12, 3
    reward, value = random.normal(size=(2, steps)).astype(np.float32)
    terminated = random.random(steps) < 0.25
    folded = n_step(windows(reward, n), windows(terminated, n), jnp.zeros((n, steps), bool), 0.9)
    ours = folded.reward + folded.discount * at_last(windows(value, n), folded.last)
    discounts = jnp.asarray(0.9 * (1.0 - terminated), jnp.float32)
    theirs = rlax.n_step_bootstrapped_returns(jnp.asarray(reward), discounts, jnp.asarray(value), n=n)
    # Up to the last window that lies within the data; rlax goes on with shorter ones.
    np.testing.assert_allclose(ours[: steps - n + 1], theirs[: steps - n + 1], rtol=1e-5)


def test_rows_at_the_last_step_of_each_window() -> None:
    tree = {"a": jnp.arange(6).reshape(3, 2), "b": jnp.arange(12).reshape(3, 2, 2)}
    taken = at_last(tree, jnp.array([2, 0]))
    np.testing.assert_array_equal(taken["a"], [4, 1])
    np.testing.assert_array_equal(taken["b"], [[8, 9], [2, 3]])


def test_an_empty_window_counts_for_nothing() -> None:
    folded = n_step(jnp.ones((2, 1)), jnp.zeros((2, 1), bool), jnp.zeros((2, 1), bool), 0.9, jnp.zeros((2, 1), bool))
    np.testing.assert_array_equal([folded.reward[0], folded.discount[0], folded.last[0]], [0.0, 0.0, 0])


def test_the_discount_has_a_gradient() -> None:
    def total(discount: jax.Array) -> jax.Array:
        folded = n_step(jnp.ones((3, 1)), jnp.zeros((3, 1), bool), jnp.zeros((3, 1), bool), discount)
        return (folded.reward + folded.discount * 5.0)[0]

    np.testing.assert_allclose(jax.grad(total)(jnp.float32(0.9)), 1 + 2 * 0.9 + 15 * 0.81, rtol=1e-5)


# The returns of each of successive steps.


@MAYBE_JIT
@pytest.mark.parametrize(
    ("end", "n", "expected"),
    [
        (None, 1, [5, 9, 17, 33, 65]),
        (None, 2, [5.5, 9.5, 17.5, 33.5, 65]),  # the last step has but one
        (None, 3, [5.75, 9.75, 17.75, 33.5, 65]),
        (None, 9, [5.9375, 9.875, 17.75, 33.5, 65]),
        ("truncated", 3, [5.75, 9.5, 17, 33.5, 65]),
        ("terminated", 3, [1.75, 1.5, 1, 33.5, 65]),
        ("masked", 3, [5.75, 9.5, 17, 0, 0]),
    ],
)
def test_returns_of_five_steps_by_hand(end: str | None, n: int, expected: list[float], transform: Transform) -> None:
    cut, never = jnp.arange(5)[:, None] == 2, jnp.zeros((5, 1), jnp.bool_)
    total = transform(functools.partial(n_step_returns, n=n))(
        jnp.ones((5, 1)),
        jnp.array([8.0, 16, 32, 64, 128])[:, None],
        cut if end == "terminated" else never,
        cut if end == "truncated" else never,
        0.5,
        mask=jnp.arange(5)[:, None] <= 2 if end == "masked" else None,
    )
    np.testing.assert_allclose(total[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 12, 20])
def test_returns_against_rlax_where_nothing_is_truncated(n: int) -> None:
    random = np.random.default_rng(2)
    steps, num_envs = 12, 5
    reward, value = random.normal(size=(2, steps, num_envs)).astype(np.float32)
    terminated = random.random((steps, num_envs)) < 0.2
    never = jnp.zeros((steps, num_envs), jnp.bool_)
    ours = n_step_returns(jnp.asarray(reward), jnp.asarray(value), jnp.asarray(terminated), never, 0.9, n)
    discounts = jnp.asarray(0.9 * (1.0 - terminated), jnp.float32)
    theirs = jax.vmap(functools.partial(rlax.n_step_bootstrapped_returns, n=n), in_axes=1, out_axes=1)(
        jnp.asarray(reward), discounts, jnp.asarray(value)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
