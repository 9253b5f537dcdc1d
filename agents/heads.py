"""Policy heads: from network outputs to a distribution over actions, and from the distribution to legal actions.

A head draws its noise apart from everything else, so that a rollout's noise can be drawn in one batch before the loop.
`sample` is what the distribution speaks of (log-probs are taken of it); `to_action` makes the environment's action.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from rollax.agents.distributions import MultiCategorical, TanhNormal, normal_of
from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError


class Head(Protocol):
    """What the on-policy agents know of a head. `[...]` is `[N]` while acting and `[B]` while learning."""

    @property
    def num_outputs(self) -> int:
        """The width of the policy network's last layer."""

    def init(self, initial_log_scale: jax.Array) -> PyTree:
        """Returns parameters that do not depend on the observation."""

    def init_memory(self, num_envs: int) -> PyTree:
        """Returns what `sample` carries from step to step, leaves `[N, ...]`."""

    def noise(self, key: jax.Array, num_envs: int) -> PyTree:
        """Draws what `sample` turns into N independent samples, leaves `[N, ...]`."""

    def distribution(self, outputs: jax.Array, features: jax.Array, params: PyTree, mask: jax.Array | None) -> Any:
        """Returns the distribution `[...]` for outputs `[..., num_outputs]`; illegal actions have no mass."""

    def sample(
        self, distribution: Any, features: jax.Array, params: PyTree, noise: Any, memory: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        """Returns the next memory and the samples that the noise stands for."""

    def to_action(self, sample: jax.Array) -> jax.Array:
        """Returns the action, inside the space, that a sample stands for."""


@dataclasses.dataclass(frozen=True)
class CategoricalHead:
    """Softmax over n actions; sampled by the Gumbel-max trick."""

    num_outputs: int

    def init(self, initial_log_scale: jax.Array) -> PyTree:
        return ()

    def init_memory(self, num_envs: int) -> PyTree:
        return ()

    def noise(self, key: jax.Array, num_envs: int) -> jax.Array:
        return jax.random.gumbel(key, (num_envs, self.num_outputs))

    def distribution(
        self, outputs: jax.Array, features: jax.Array, params: PyTree, mask: jax.Array | None
    ) -> distrax.Categorical:
        return distrax.Categorical(logits=_masked(outputs, mask))

    def sample(
        self, distribution: Any, features: jax.Array, params: PyTree, noise: Any, memory: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        return memory, jnp.argmax(distribution.logits + noise, axis=-1).astype(jnp.int32)

    def to_action(self, sample: jax.Array) -> jax.Array:
        return sample


@dataclasses.dataclass(frozen=True)
class MultiCategoricalHead:
    """Independent softmaxes, one for each entry of a MultiDiscrete space.

    Outputs and masks are the entries' one after another, `[..., sum(nvec)]`; each is padded to the widest inside.
    """

    nvec: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        return sum(self.nvec)

    def init(self, initial_log_scale: jax.Array) -> PyTree:
        return ()

    def init_memory(self, num_envs: int) -> PyTree:
        return ()

    def noise(self, key: jax.Array, num_envs: int) -> jax.Array:
        return jax.random.gumbel(key, (num_envs, len(self.nvec), max(self.nvec)))

    def distribution(
        self, outputs: jax.Array, features: jax.Array, params: PyTree, mask: jax.Array | None
    ) -> MultiCategorical:
        place = np.arange(max(self.nvec))
        present = place < np.array(self.nvec)[:, None]
        index = np.where(present, np.concatenate([[0], np.cumsum(self.nvec)[:-1]])[:, None] + place, 0)
        legal = jnp.asarray(present) if mask is None else jnp.asarray(present) & mask[..., index]
        return MultiCategorical(_masked(outputs[..., index], legal))

    def sample(
        self, distribution: Any, features: jax.Array, params: PyTree, noise: Any, memory: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        return memory, jnp.argmax(distribution.logits + noise, axis=-1).astype(jnp.int32)

    def to_action(self, sample: jax.Array) -> jax.Array:
        return sample


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianHead:
    """Independent normals.

    Samples are in units of the space: -1 and 1 stand for its bounds where both are finite. `to_action` rescales, and
    clips or squashes by tanh; log-probs are taken before any clipping, and of the action after the tanh.
    """

    space: spaces.Box
    squash: bool  # tanh in place of clipping
    state_dependent_scale: bool  # the scale is a network output too

    @property
    def num_outputs(self) -> int:
        return spaces.size(self.space) * (2 if self.state_dependent_scale else 1)

    def init(self, initial_log_scale: jax.Array) -> PyTree:
        return jnp.full((spaces.size(self.space),), initial_log_scale, jnp.float32)

    def init_memory(self, num_envs: int) -> PyTree:
        return ()

    def noise(self, key: jax.Array, num_envs: int) -> PyTree:
        return jax.random.normal(key, (num_envs, spaces.size(self.space)))

    def distribution(self, outputs: jax.Array, features: jax.Array, params: PyTree, mask: jax.Array | None) -> Any:
        loc, log_scale = outputs, jnp.broadcast_to(params, (*outputs.shape[:-1], spaces.size(self.space)))
        if self.state_dependent_scale:
            loc, change = jnp.split(outputs, 2, axis=-1)
            # Bounded to 3 either way by a root, whose gradient never dies as that of clipping and of tanh does.
            log_scale = log_scale + change / jnp.sqrt(1.0 + jnp.square(change / 3.0))
        return self._normal(loc, jnp.exp(log_scale))

    def sample(
        self, distribution: Any, features: jax.Array, params: PyTree, noise: Any, memory: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        normal = normal_of(distribution)
        return memory, normal.loc + normal.scale * noise

    def to_action(self, sample: jax.Array) -> jax.Array:
        return from_unit(self.space, jnp.tanh(sample) if self.squash else sample)

    def _normal(self, loc: jax.Array, scale: jax.Array) -> Any:
        return TanhNormal(loc, scale) if self.squash else distrax.Independent(distrax.Normal(loc, scale), 1)


@dataclasses.dataclass(frozen=True, eq=False)
class StateDependentExplorationHead(GaussianHead):
    """Normals whose noise is a function of the features (gSDE, Raffin et al. 2022, https://arxiv.org/abs/2005.05719).

    The noise of features f is f @ E with E `[F, D]` drawn once and kept: exploration is smooth in time. Marginally the
    sample is normal with variance f^2 @ scale^2, which is what log-probs and the entropy are taken of. E is drawn anew
    at the start of an episode, and at every step with probability `1 / period`.
    """

    num_features: int
    period: int  # mean steps for which one E is kept

    def init(self, initial_log_scale: jax.Array) -> PyTree:
        # Scaled so that unit features make noise of the asked size.
        log_scale = jnp.asarray(initial_log_scale) - 0.5 * math.log(self.num_features)
        return jnp.full((self.num_features, spaces.size(self.space)), log_scale, jnp.float32)

    def init_memory(self, num_envs: int) -> PyTree:
        return jnp.zeros((num_envs, self.num_features, spaces.size(self.space)))

    def noise(self, key: jax.Array, num_envs: int) -> PyTree:
        key_matrix, key_redraw = jax.random.split(key)
        matrix = jax.random.normal(key_matrix, (num_envs, self.num_features, spaces.size(self.space)))
        return matrix, jax.random.bernoulli(key_redraw, 1.0 / self.period, (num_envs,))

    def distribution(self, outputs: jax.Array, features: jax.Array, params: PyTree, mask: jax.Array | None) -> Any:
        variance = jnp.square(features) @ jnp.exp(2.0 * params)
        return self._normal(outputs, jnp.sqrt(variance + 1e-6))

    def sample(
        self, distribution: Any, features: jax.Array, params: PyTree, noise: Any, memory: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        matrix, redraw = noise
        memory = jnp.where((is_first | redraw)[:, None, None], matrix, memory)
        exploration = jnp.einsum("nf,nfd->nd", features, jnp.exp(params)[None] * memory)
        return memory, normal_of(distribution).loc + exploration


def from_unit(space: spaces.Box, unit: jax.Array) -> jax.Array:
    """Returns the actions `[..., *shape]`, inside the space, that flat ones `[..., D]` in its units stand for.

    -1 and 1 are an entry's bounds where both are finite; elsewhere the unit is that of the space itself.
    """
    centre, half_range = _unit_of(space)
    action = centre + half_range * unit.reshape(*unit.shape[:-1], *space.shape)
    bounds = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))
    return jnp.clip(action, *bounds).astype(space.dtype)


def to_unit(space: spaces.Box, action: jax.Array) -> jax.Array:
    """Returns actions `[..., *shape]` in units of the space, flat, float32 `[..., D]`: the reverse of `from_unit`."""
    centre, half_range = _unit_of(space)
    unit = (jnp.asarray(action, jnp.float32) - centre) / half_range
    return unit.reshape(*unit.shape[: unit.ndim - len(space.shape)], -1)


def _unit_of(space: spaces.Box) -> tuple[jax.Array, jax.Array]:
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
    half_range = np.where(high > low, (high - low) / 2, 1.0)  # an entry with one possible value
    return jnp.asarray((high + low) / 2, jnp.float32), jnp.asarray(half_range, jnp.float32)


def _masked(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    # A large finite number, not -inf: entropy and gradients stay finite where a single action is legal.
    return logits if mask is None else jnp.where(mask, logits, -1e9)


def make(
    space: spaces.Space,
    agent: str,
    num_features: int,
    squash: bool = False,
    state_dependent_scale: bool = False,
    exploration_period: int = 0,
) -> Head:
    """Returns the head for an action space.

    Args:
        space: The action space.
        agent: The agent's name, for the error.
        num_features: Width of the features below the policy network's last layer.
        squash: Whether actions of a Box are squashed by tanh rather than clipped.
        state_dependent_scale: Whether the scale of a Box's normals is a network output.
        exploration_period: Mean steps between draws of gSDE's noise; 0 draws independent noise at each step.

    Raises:
        InputError: The agent cannot act in such a space.
    """
    if not isinstance(space, spaces.Box) and (squash or state_dependent_scale or exploration_period):
        raise InputError(
            "agent.squash, agent.state_dependent_scale and agent.exploration_period have no use in the action space "
            f"{space!r}: leave them out."
        )
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space.nvec)
    if not isinstance(space, spaces.Box):
        raise InputError(
            f"action space {space!r} does not fit train.agent = {agent!r}, which acts in Discrete, MultiDiscrete "
            "and Box spaces; choose another environment or agent."
        )
    if squash and not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
        raise InputError(f"agent.squash = True needs a Box with finite bounds, not {space!r}; set it to false.")
    if exploration_period and state_dependent_scale:
        raise InputError(
            "agent.state_dependent_scale = True does not go with agent.exploration_period, whose scale depends on the "
            "state already: set one of them."
        )
    if exploration_period:
        return StateDependentExplorationHead(space, squash, False, num_features, exploration_period)
    return GaussianHead(space, squash, state_dependent_scale)
