"""Policy heads: from network outputs to a distribution over actions, and from the distribution to legal actions.

A head draws its noise apart from its parameters, so that a rollout's noise can be drawn in one batch before the loop.
`sample` is what the distribution speaks of (log-probs are taken of it); `to_action` makes the environment's action.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError


class Head(Protocol):
    """What the on-policy agents know of a head."""

    @property
    def num_outputs(self) -> int:
        """The width of the network's last layer."""

    def init(self) -> PyTree:
        """Returns parameters that do not depend on the observation."""

    def noise(self, key: jax.Array, num_envs: int) -> jax.Array:
        """Draws the noise `[N, ...]` that `sample` turns into N independent samples."""

    def distribution(self, outputs: jax.Array, params: PyTree, mask: jax.Array | None) -> distrax.Distribution:
        """Returns the distribution `[...]` for outputs `[..., num_outputs]`; illegal actions have no mass."""

    def sample(self, distribution: distrax.Distribution, noise: jax.Array) -> jax.Array:
        """Returns the sample that the noise stands for."""

    def to_action(self, sample: jax.Array) -> jax.Array:
        """Returns the action, inside the space, that a sample stands for."""


@dataclasses.dataclass(frozen=True)
class CategoricalHead:
    """Softmax over n actions; sampled by the Gumbel-max trick."""

    num_outputs: int

    def init(self) -> PyTree:
        return ()

    def noise(self, key: jax.Array, num_envs: int) -> jax.Array:
        return jax.random.gumbel(key, (num_envs, self.num_outputs))

    def distribution(self, outputs: jax.Array, params: PyTree, mask: jax.Array | None) -> distrax.Categorical:
        # A large finite number, not -inf: entropy and gradients stay finite where a single action is legal.
        logits = outputs if mask is None else jnp.where(mask, outputs, -1e9)
        return distrax.Categorical(logits=logits)

    def sample(self, distribution: distrax.Categorical, noise: jax.Array) -> jax.Array:
        return jnp.argmax(distribution.logits + noise, axis=-1).astype(jnp.int32)

    def to_action(self, sample: jax.Array) -> jax.Array:
        return sample


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianHead:
    """Independent normals with a scale that does not depend on the observation.

    Samples are in units of the space: -1 and 1 stand for its bounds where both are finite. `to_action` rescales and
    clips; log-probs are taken before, of the sample.
    """

    space: spaces.Box

    @property
    def num_outputs(self) -> int:
        return spaces.size(self.space)

    def init(self) -> PyTree:
        return jnp.zeros((self.num_outputs,))  # the logarithm of the scale

    def noise(self, key: jax.Array, num_envs: int) -> jax.Array:
        return jax.random.normal(key, (num_envs, self.num_outputs))

    def distribution(self, outputs: jax.Array, params: PyTree, mask: jax.Array | None) -> distrax.Independent:
        return distrax.Independent(distrax.Normal(outputs, jnp.broadcast_to(jnp.exp(params), outputs.shape)), 1)

    def sample(self, distribution: distrax.Independent, noise: jax.Array) -> jax.Array:
        return distribution.distribution.loc + distribution.distribution.scale * noise

    def to_action(self, sample: jax.Array) -> jax.Array:
        low, high = self.space.low, self.space.high
        bounded = np.isfinite(low) & np.isfinite(high)
        finite_low, finite_high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        centre = jnp.asarray((finite_high + finite_low) / 2, jnp.float32)
        half_range = jnp.asarray((finite_high - finite_low) / 2, jnp.float32)
        action = centre + half_range * sample.reshape(*sample.shape[:-1], *self.space.shape)
        action = jnp.clip(action, jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))
        return action.astype(self.space.dtype)


def make(space: spaces.Space, agent: str) -> Head:
    """Returns the head for an action space.

    Args:
        space: The action space.
        agent: The agent's name, for the error.

    Raises:
        InputError: The agent cannot act in such a space.
    """
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space.n)
    if isinstance(space, spaces.Box):
        return GaussianHead(space)
    raise InputError(
        f"action space {space!r} does not fit train.agent = {agent!r}, which acts in Discrete and Box spaces; "
        "choose another environment or agent."
    )
