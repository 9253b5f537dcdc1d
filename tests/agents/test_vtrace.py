"""V-trace: by hand at both kinds of end, against rlax, and on-policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax.agents.returns import n_step_returns, vtrace

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


@MAYBE_JIT
@pytest.mark.parametrize(
    ("end", "advantage", "target"),
    # Ratios are 2, 0.5, 1, 4, all clipped to 1 at most. From the back: delta_3 = 4 + .9 * 2.5 - 2 = 4.25, so v_3 =
    # 6.25; delta_2 = 3 + .9 * 2 - 1.5 = 3.3, so v_2 = 1.5 + 3.3 + .9 * 4.25 = 8.625; A_2 = 3 + .9 * 6.25 - 1.5. Then
    # the end: .5 (2 + .9 * .7 - 1) = .815, or .5 (2 - 1) = .5. At last v_0 = .5 + 1.4 + .9 * .815, or + .9 * .5.
    [
        ("terminated", [1.85, 0.5, 7.125, 4.25], [2.35, 1.5, 8.625, 6.25]),
        ("truncated", [2.1335, 0.815, 7.125, 4.25], [2.6335, 1.815, 8.625, 6.25]),
        ("both", [1.85, 0.5, 7.125, 4.25], [2.35, 1.5, 8.625, 6.25]),
    ],
)
def test_an_episode_that_ends_in_the_middle(
    end: str, advantage: list[float], target: list[float], transform: Transform
) -> None:
    # V of the observation after the reset is 1.5, of the true successor 0.7.
    after_step_1, never = np.array([False, True, False, False]), np.zeros(4, bool)
    result = transform(vtrace)(
        jnp.array([[1.0], [2], [3], [4]]),
        jnp.array([[0.5], [1], [1.5], [2]]),
        jnp.array([[1.0], [0.7], [2], [2.5]]),
        jnp.asarray(after_step_1 if end != "truncated" else never)[:, None],
        jnp.asarray(after_step_1 if end != "terminated" else never)[:, None],
        0.9,
        jnp.log(jnp.array([[2.0], [0.5], [1.0], [4.0]])),
    )
    np.testing.assert_allclose(result[0][:, 0], advantage, rtol=1e-6)
    np.testing.assert_allclose(result[1][:, 0], target, rtol=1e-6)


def arrays(truncations: bool) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    reward, next_value, log_ratio = random.normal(size=(3, 12, 5)).astype(np.float32)
    terminated = random.random((12, 5)) < 0.2
    truncated = (random.random((12, 5)) < 0.2) & truncations
    value = np.concatenate([random.normal(size=(1, 5)), next_value[:-1]]).astype(np.float32)
    return tuple(jnp.asarray(each) for each in (reward, value, next_value, terminated, truncated, log_ratio))


@pytest.mark.parametrize("numbers", [(1.0, 1.0, 1.0), (0.7, 1.0, 1.0), (0.9, 1.5, 0.8)], ids=str)
def test_against_rlax(numbers: tuple[float, float, float]) -> None:
    reward, value, next_value, terminated, truncated, log_ratio = arrays(truncations=False)
    trace_decay, clip_rho, clip_policy_rho = numbers
    advantage, target = jax.jit(vtrace)(reward, value, next_value, terminated, truncated, 0.9, log_ratio, *numbers)
    discount = (0.9 * (1 - terminated)).astype(jnp.float32)
    for env in range(5):
        columns = (each[:, env] for each in (value, next_value, reward, discount, jnp.exp(log_ratio)))
        theirs = rlax.vtrace_td_error_and_advantage(*columns, trace_decay, clip_rho, clip_policy_rho)
        np.testing.assert_allclose(target[:, env] - value[:, env], theirs.errors, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(advantage[:, env], theirs.pg_advantage, rtol=1e-4, atol=1e-5)


def test_a_truncation_hides_the_next_episode() -> None:
    inputs = list(arrays(truncations=False))
    inputs[4] = inputs[4].at[5].set(True)
    run = jax.jit(lambda inputs: jnp.stack(vtrace(*inputs[:5], 0.9, inputs[5])))
    before = run(inputs)[:, :6]
    changed = [each if each.dtype == bool else each.at[6:].add(1.0) for each in inputs]
    np.testing.assert_array_equal(run(changed)[:, :6], before)
    changed[2] = changed[2].at[5].add(1.0)  # while what truly followed counts, unless the step terminated
    differs = (run(changed)[:, 5] != before[:, 5]).all(axis=0)
    np.testing.assert_array_equal(differs, ~inputs[3][5])


def test_on_policy_without_decay_targets_are_n_step_returns() -> None:
    reward, value, next_value, terminated, truncated, _ = arrays(truncations=True)
    assert (truncated & ~terminated).any()
    never_off = jnp.zeros(reward.shape)
    advantage, target = jax.jit(vtrace)(reward, value, next_value, terminated, truncated, 0.9, never_off)
    expected = n_step_returns(reward, next_value, terminated, truncated, 0.9, n=12)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, expected - value, rtol=1e-4, atol=1e-5)
