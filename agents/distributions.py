"""Distributions where distrax has none that works, with its interface (`log_prob`, `entropy`, `mode`)."""

from __future__ import annotations

import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)


def log_tanh_derivative(u: jax.Array) -> jax.Array:
    """Returns log(1 - tanh(u)^2), finite with finite gradients for every finite u: 2 (log 2 - u - softplus(-2u))."""
    return 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TanhNormal:
    """The tanh of independent normals, spoken of by its value u before the tanh.

    distrax's tanh-transformed normal takes the value after the tanh, which rounds to 1 from u = 9 on, and its log-prob
    is NaN there.
    """

    loc: jax.Array  # float [..., D]
    scale: jax.Array  # float [..., D], above 0

    def log_prob(self, u: jax.Array) -> jax.Array:
        """The log-density of the action tanh(u), float `[...]`, at u `[..., D]`."""
        standard = (u - self.loc) / self.scale
        normal = -0.5 * jnp.square(standard) - jnp.log(self.scale) - 0.5 * jnp.log(2.0 * jnp.pi)
        return jnp.sum(normal - log_tanh_derivative(u), axis=-1)

    def entropy(self) -> jax.Array:
        """The differential entropy, float `[...]`: E[log(1 - tanh(u)^2)] by Gauss-Hermite quadrature with 32 nodes."""
        u = self.loc[..., None] + self.scale[..., None] * jnp.asarray(_NODES, self.loc.dtype)
        derivative = log_tanh_derivative(u) @ jnp.asarray(_WEIGHTS, self.loc.dtype)
        normal = jnp.log(self.scale) + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e)
        return jnp.sum(normal + derivative, axis=-1)

    def mode(self) -> jax.Array:
        """The u whose tanh is the median action, `[..., D]`: the greedy action of every squashed policy."""
        return self.loc


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MultiCategorical:
    """Independent categoricals, all padded to the widest.

    distrax's `Independent` around a categorical makes an old-style key, which `jax_legacy_prng_key="error"` refuses.
    """

    logits: jax.Array  # float [..., D, n]

    def log_prob(self, sample: jax.Array) -> jax.Array:
        """The log-probability of the D choices together, float `[...]`, at int `[..., D]`."""
        return jnp.sum(self._categorical().log_prob(sample), axis=-1)

    def entropy(self) -> jax.Array:
        """The entropy of the D choices together, float `[...]`."""
        return jnp.sum(self._categorical().entropy(), axis=-1)

    def mode(self) -> jax.Array:
        """The most likely choices, int `[..., D]`."""
        return self._categorical().mode()

    def _categorical(self) -> distrax.Categorical:
        return distrax.Categorical(logits=self.logits)
