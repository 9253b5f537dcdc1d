"""Distributions where distrax has none that works, with its interface (`log_prob`, `entropy`, `mode`)."""

from __future__ import annotations

import dataclasses
from typing import Any

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


def normal_of(distribution: Any) -> Any:
    """Returns the `loc` and `scale` of a head's normals, before any tanh, as an object with both."""
    return distribution if isinstance(distribution, TanhNormal) else distribution.distribution


def kl_divergence(old: Any, new: Any) -> jax.Array:
    """KL(old || new) in nats, float `[...]`, of two distributions of one policy head; a tanh changes nothing of it."""
    if isinstance(old, distrax.Categorical | MultiCategorical):
        return _of_choices(old, new)
    p, q = normal_of(old), normal_of(new)
    return _of_normals(p.loc, p.scale, q.loc, q.scale)


def divergences(old: Any, new: Any) -> dict[str, jax.Array]:
    """What makes the distance of two distributions of one policy head, KL divergences in nats, float `[...]` each.

    Of choices the one of the `policy`; of normals that of the `mean` and that of the `scale` (`normal_divergences`).
    """
    if isinstance(old, distrax.Categorical | MultiCategorical):
        return {"policy": _of_choices(old, new)}
    return normal_divergences(normal_of(old), normal_of(new))


def normal_divergences(old: Any, new: Any) -> dict[str, jax.Array]:
    """How far apart independent normals are in mean and in scale (Abdolmaleki et al. 2018b, section 4.2).

        mean:   KL(N(mu', sigma') || N(mu, sigma'))  = sum_d (mu - mu')^2 / (2 sigma'^2)
        scale:  KL(N(mu', sigma') || N(mu', sigma))  = sum_d log(sigma / sigma') + sigma'^2 / (2 sigma^2) - 1/2

    Args:
        old: With `loc` mu' and `scale` sigma', float `[..., D]`.
        new: With mu and sigma.

    Returns:
        In nats, float `[...]` each.
    """
    return {
        "mean": _of_normals(old.loc, old.scale, new.loc, old.scale),
        "scale": _of_normals(old.loc, old.scale, old.loc, new.scale),
    }


def _of_choices(old: Any, new: Any) -> jax.Array:
    log_old, log_new = (jax.nn.log_softmax(each.logits, axis=-1) for each in (old, new))
    divergence = jnp.sum(jnp.exp(log_old) * (log_old - log_new), axis=-1)
    return divergence if isinstance(old, distrax.Categorical) else jnp.sum(divergence, axis=-1)


def _of_normals(old_loc: jax.Array, old_scale: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
    ratio, shift = old_scale / scale, (old_loc - loc) / scale
    return jnp.sum(0.5 * (jnp.square(ratio) + jnp.square(shift)) - jnp.log(ratio) - 0.5, axis=-1)
