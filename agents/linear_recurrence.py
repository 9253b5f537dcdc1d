"""A gated linear recurrence, whose whole sequence is one parallel scan over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents.memory import Torso, Unrolled, from_flax

SHARPNESS = 8.0
"""c below, the constant of the paper."""


def linear_recurrence(size: int) -> Torso:
    """A residual block around real-gated linear recurrent units (RG-LRU, De et al. 2024, https://arxiv.org/abs/2402.19427).

        a_t = exp(-c softplus(L) sigmoid(W_a u_t))
        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (sigmoid(W_i u_t) u_t)
        y_t = x_t + W_o (h_t gelu(W_g n_t)),   u_t = W_u n_t,   n_t = layer_norm(x_t)

    On features `[T, N, size]`; an episode starts with a_t = 0. Memory is h, float32 `[N, size]`.
    """
    return from_flax(GatedLinearRecurrence(size), lambda num_envs: jnp.zeros((num_envs, size)))


class GatedLinearRecurrence(nn.Module):
    """The block; it is called as `Torso.unroll` is, without its params."""

    size: int

    def setup(self) -> None:
        self.norm = nn.LayerNorm()
        self.inputs = nn.Dense(self.size)
        self.output_gate = nn.Dense(self.size)
        self.decay_gate = nn.Dense(self.size)
        self.input_gate = nn.Dense(self.size)
        self.outputs = nn.Dense(self.size)
        self.decay = self.param("decay", _initial_decay, (self.size,))

    def __call__(
        self, memory: jax.Array, x: jax.Array, is_first: jax.Array, successor: jax.Array | None = None
    ) -> Unrolled:
        decay, drive = self._recurrence(x, is_first)
        drive = drive.at[0].add(decay[0] * memory)

        def after(earlier: Any, later: Any) -> Any:
            return earlier[0] * later[0], later[0] * earlier[1] + later[1]

        _, hidden = lax.associative_scan(after, (decay, drive))
        ahead = None
        if successor is not None:
            decay, drive = self._recurrence(successor, jnp.zeros_like(is_first))
            ahead = self._leave(successor, decay * hidden + drive)
        return hidden[-1], self._leave(x, hidden), ahead

    def _recurrence(self, x: jax.Array, is_first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns what the hidden state is multiplied by, and what is added to it."""
        inputs = self.inputs(self.norm(x))
        log_decay = -SHARPNESS * nn.softplus(self.decay) * nn.sigmoid(self.decay_gate(inputs))
        driven = nn.sigmoid(self.input_gate(inputs)) * inputs
        first = is_first[..., None]
        # expm1: 1 - a^2 keeps its digits where a is near 1, and its root a finite gradient.
        scale = jnp.sqrt(jnp.maximum(-jnp.expm1(2.0 * log_decay), 1e-12))
        return jnp.where(first, 0.0, jnp.exp(log_decay)), jnp.where(first, 1.0, scale) * driven

    def _leave(self, x: jax.Array, hidden: jax.Array) -> jax.Array:
        return x + self.outputs(hidden * nn.gelu(self.output_gate(self.norm(x))))


def _initial_decay(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """L for which a, with its gate wide open, is uniform in [0.9, 0.999]."""
    decay = jax.random.uniform(key, tuple(shape), minval=0.9, maxval=0.999)
    return jnp.log(jnp.expm1(-jnp.log(decay) / SHARPNESS))
