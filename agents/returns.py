"""Returns and advantages: pure functions of arrays `[T, N]`, time-major, that know termination from truncation.

Everywhere `next_value` is the value of the true successor of each step (`Rollout.final_observation`), never of an
observation after a reset. `terminated` stops bootstrapping; `terminated | truncated` cuts the trace.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import lax


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
    decay = discount * trace_decay * (1.0 - (terminated | truncated))

    def backwards(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantages = lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)
    return advantages
