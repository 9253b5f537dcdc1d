"""Returns and advantages: pure functions of time-major arrays that know termination from truncation.

Everywhere `next_value` is the value of the true successor of each step (`Rollout.final_observation`), never of an
observation after a reset. `terminated` stops bootstrapping; `terminated | truncated` cuts the trace.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jax import lax

from rollax.envs.base import PyTree


def generalised_advantage(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: jax.Array | float,
    trace_decay: jax.Array | float,
) -> jax.Array:
    """Generalised advantage estimates (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

        delta_t = r_t + gamma * (1 - terminated_t) * V(s'_t) - V(s_t)
        A_t     = delta_t + gamma * lambda * (1 - ended_t) * A_{t+1},   A_T = 0

    Args:
        reward: float `[T, N]`.
        value: V(s_t), float `[T, N]`.
        next_value: V(s'_t) of the true successor, float `[T, N]`.
        terminated: bool `[T, N]`.
        truncated: bool `[T, N]`.
        discount: gamma, a scalar.
        trace_decay: lambda, a scalar.

    Returns:
        A_t, float `[T, N]`; `A_t + V(s_t)` is the lambda-return.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    return _accumulated(delta, discount * trace_decay * (1.0 - (terminated | truncated)))


def lambda_return(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: jax.Array | float,
    trace_decay: jax.Array | float,
) -> jax.Array:
    """Lambda-returns (Watkins 1989; Sutton and Barto 2018, section 12.1).

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda_t) V(s'_t) + lambda_t G_{t+1})

    with lambda_t = lambda, but 0 where an episode ended and in the last step. With V = max_a Q these are the Q(lambda)
    returns of Peng and Williams (1994).

    Args:
        reward: float `[T, N]`.
        next_value: V(s'_t) of the true successor, float `[T, N]`.
        terminated: bool `[T, N]`.
        truncated: bool `[T, N]`.
        discount: gamma, a scalar.
        trace_decay: lambda, a scalar.

    Returns:
        G_t, float `[T, N]`.
    """
    chex.assert_equal_shape([reward, next_value, terminated, truncated])
    trace = trace_decay * (1.0 - (terminated | truncated))
    continues = discount * (1.0 - terminated)

    def backwards(later: jax.Array, step: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward_t, next_value_t, continues_t, trace_t = step
        total = reward_t + continues_t * ((1.0 - trace_t) * next_value_t + trace_t * later)
        return total, total

    _, totals = lax.scan(backwards, next_value[-1], (reward, next_value, continues, trace), reverse=True, unroll=8)
    return totals


def vtrace(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: jax.Array | float,
    log_ratio: jax.Array,
    trace_decay: jax.Array | float = 1.0,
    clip_rho: jax.Array | float = 1.0,
    clip_policy_rho: jax.Array | float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """V-trace (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, equations 1 and 2, section 4.2).

        delta_t = min(rho_bar, rho_t) (r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t))
        v_t     = V(s_t) + delta_t + gamma (1 - ended_t) lambda min(1, rho_t) (v_{t+1} - V(s_{t+1})),   no more at T
        A_t     = min(rho_bar_policy, rho_t) (r_t + gamma (1 - terminated_t) u_t - V(s_t))

    where u_t is lambda v_{t+1} + (1 - lambda) V(s'_t), but V(s'_t) where an episode ended and in the last step.

    Args:
        reward: float `[T, N]`.
        value: V(s_t), float `[T, N]`.
        next_value: V(s'_t) of the true successor, float `[T, N]`.
        terminated: bool `[T, N]`.
        truncated: bool `[T, N]`.
        discount: gamma, a scalar.
        log_ratio: log rho_t = log pi(a_t|s_t) - log mu(a_t|s_t), float `[T, N]`: mu acted, pi is learnt.
        trace_decay: lambda, a scalar.
        clip_rho: rho_bar, a scalar.
        clip_policy_rho: rho_bar_policy, a scalar.

    Returns:
        A_t and v_t, float `[T, N]` both.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated, log_ratio])
    ratio, ended = jnp.exp(log_ratio), terminated | truncated
    continues = discount * (1.0 - terminated)
    delta = jnp.minimum(clip_rho, ratio) * (reward + continues * next_value - value)
    decay = discount * trace_decay * jnp.minimum(1.0, ratio) * (1.0 - ended)

    target = value + _accumulated(delta, decay)
    goes_on = trace_decay * (1.0 - ended[:-1])
    following = next_value.at[:-1].add(goes_on * (target[1:] - next_value[:-1]))
    advantage = jnp.minimum(clip_policy_rho, ratio) * (reward + continues * following - value)
    return advantage, target


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NStep:
    """The n-step returns of B windows, without the value that each ends in: G = reward + discount * V(successor)."""

    reward: jax.Array  # float32 [B], discounted sum of the rewards up to `last`
    discount: jax.Array  # float32 [B], of the value of `last`'s successor; 0 where that step terminated
    last: jax.Array  # int32 [B], the last row of the window that the return goes through


def n_step(
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: jax.Array | float,
    mask: jax.Array | None = None,
) -> NStep:
    """Folds windows of n successive steps into n-step returns (Watkins 1989; Sutton and Barto 2018, chapter 7).

        G = sum_{k<=m} gamma^k r_k + gamma^(m+1) * (1 - terminated_m) * V(s'_m)

    where m is the first step that ended an episode, or else the last of the window.

    Args:
        reward: r_k, float `[n, B]`.
        terminated: bool `[n, B]`.
        truncated: bool `[n, B]`.
        discount: gamma, a scalar.
        mask: bool `[n, B]`, which steps belong to the window: the first ones, such as `Sample.mask`; None: all.
            Where there are none, reward and discount are 0.

    Returns:
        What `G` is made of. `at_last` gives the rows at m, whose `final_observation` is s'_m.
    """
    chex.assert_equal_shape([reward, terminated, truncated])
    ended = (terminated | truncated).astype(jnp.int32)
    used = jnp.cumsum(ended, axis=0) == ended
    if mask is not None:
        used = used & mask
    steps = jnp.sum(used, axis=0, dtype=jnp.int32)
    last = jnp.maximum(steps - 1, 0)
    powers = discount ** jnp.arange(reward.shape[0], dtype=jnp.float32)
    bootstraps = (steps > 0) & ~at_last(terminated, last)
    return NStep(
        reward=jnp.sum(powers[:, None] * jnp.where(used, reward, 0.0), axis=0),
        discount=jnp.where(bootstraps, powers[last] * discount, 0.0),
        last=last,
    )


def at_last(windows: PyTree, last: jax.Array) -> PyTree:
    """Returns the rows at `last`, int32 `[B]`, of windows with leaves `[n, B, ...]`: leaves `[B, ...]`."""
    return jax.tree.map(lambda leaf: leaf[last, jnp.arange(last.shape[0])], windows)


def n_step_returns(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: jax.Array | float,
    n: int,
    mask: jax.Array | None = None,
) -> jax.Array:
    """The n-step return of each of T successive steps (Watkins 1989; Sutton and Barto 2018, chapter 7).

        G_t = sum_{k<m} gamma^k r_{t+k} + gamma^m * (1 - terminated_{t+m-1}) * V(s'_{t+m-1})

    where m is n, or fewer where the episode or the T steps end before.

    Args:
        reward: float `[T, N]`.
        next_value: V(s'_t) of the true successor, float `[T, N]`.
        terminated: bool `[T, N]`.
        truncated: bool `[T, N]`.
        discount: gamma, a scalar.
        n: Steps until the value, at least 1.
        mask: bool `[T, N]`, which steps there are: the first ones, such as `Sample.mask`; None: all.

    Returns:
        float `[T, N]`, 0 where the mask is False.
    """
    chex.assert_equal_shape([reward, next_value, terminated, truncated])
    steps = reward.shape[0]

    def windows(leaf: jax.Array) -> jax.Array:
        padded = jnp.concatenate([leaf, jnp.zeros((n - 1, *leaf.shape[1:]), leaf.dtype)])
        return jnp.stack([padded[k : k + steps] for k in range(n)]).reshape(n, -1)

    there = windows(jnp.ones(reward.shape, jnp.bool_) if mask is None else mask)
    folded = n_step(windows(reward), windows(terminated), windows(truncated), discount, there)
    return (folded.reward + folded.discount * at_last(windows(next_value), folded.last)).reshape(reward.shape)


def _accumulated(delta: jax.Array, decay: jax.Array) -> jax.Array:
    """Sums from the back: x_t = delta_t + decay_t x_{t+1}, x_T = 0, float `[T, N]`."""

    def backwards(total: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = step
        total = delta_t + decay_t * total
        return total, total

    return lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)[1]
