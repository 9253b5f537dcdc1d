"""The environment protocol and the `TimeStep` that every environment returns."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from rollax.errors import InputError

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeMetrics:
    """The return and length of the episode that ended with this time step; zeros where none did."""

    episode_return: jax.Array  # float32 [...], undiscounted
    episode_length: jax.Array  # int32 [...], environment steps
    valid: jax.Array  # bool [...], an episode ended with this time step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeStep:
    """What an environment returns from `reset` and `step`. All leaves share the same leading batch dimensions `...`.

    `terminated` alone stops bootstrapping; `terminated | truncated` cuts traces and resets memory. Nothing bootstraps
    from an observation after a reset: the true successor of a step is `final_observation`.
    """

    observation: PyTree  # [..., *observation_shape], what the policy sees next, after any reset
    reward: jax.Array  # float32 [...]
    terminated: jax.Array  # bool [...], the episode ended by the rules of the task
    truncated: jax.Array  # bool [...], the episode was cut off, by a time limit for example
    is_first: jax.Array  # bool [...], `observation` starts an episode
    final_observation: PyTree  # [..., *observation_shape], before any reset; `observation` where nothing ended
    action_mask: PyTree | None  # bool [..., num_actions], legal actions at `observation`; None: all are
    final_action_mask: PyTree | None  # bool [..., num_actions], legal actions at `final_observation`
    metrics: EpisodeMetrics

    @property
    def ended(self) -> jax.Array:
        """Whether an episode ended with this step, bool [...]."""
        return self.terminated | self.truncated


class Environment(Protocol):
    """A pure environment: nothing it does depends on anything but its arguments, and it never resets itself.

    Raw environments work on one environment at a time and without batch dimensions; wrappers keep the protocol.
    """

    @property
    def default_params(self) -> PyTree:
        """The numbers of the environment as a PyTree, `()` if it has none; `params` below has the same structure."""

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode and returns its state and first time step."""

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action and returns the next state and what came of it."""

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space of observations, a PyTree of spaces; it may depend on concrete, unbatched params."""

    def action_space(self, params: PyTree = None) -> PyTree:
        """The space of actions; it may depend on concrete, unbatched params."""


def timestep(
    observation: PyTree,
    reward: jax.Array | float = 0.0,
    terminated: jax.Array | bool = False,
    truncated: jax.Array | bool = False,
    *,
    is_first: jax.Array | bool = False,
    action_mask: PyTree | None = None,
) -> TimeStep:
    """Returns the time step of one environment, with what a simple environment does not set filled in.

    Args:
        observation: What the agent sees now, a PyTree of arrays `[*observation_shape]`.
        reward: The reward of the step that led here, a scalar.
        terminated: Whether the step ended the episode by the rules of the task.
        truncated: Whether the episode was cut off here, by a time limit for example.
        is_first: Whether the observation starts an episode; `AutoReset` sets it, a raw environment need not.
        action_mask: Which actions are legal at the observation, bool `[num_actions]`.
    """
    observation, action_mask = strongly_typed((observation, action_mask))
    return TimeStep(
        observation=observation,
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, jnp.bool_),
        truncated=jnp.asarray(truncated, jnp.bool_),
        is_first=jnp.asarray(is_first, jnp.bool_),
        final_observation=observation,
        action_mask=action_mask,
        final_action_mask=action_mask,
        metrics=EpisodeMetrics(
            episode_return=jnp.zeros((), jnp.float32),
            episode_length=jnp.zeros((), jnp.int32),
            valid=jnp.zeros((), jnp.bool_),
        ),
    )


def strongly_typed(tree: PyTree) -> PyTree:
    """Returns `tree` with every leaf an array that has no weak type.

    A weak type is lost by checkpoints and by the first step of a loop, and each loss costs a second compilation.
    """
    return jax.tree.map(lambda leaf: _as_dtype(leaf, jnp.asarray(leaf).dtype), tree)


def with_types_of(tree: PyTree, like: PyTree) -> PyTree:
    """Returns `tree` with each leaf in the dtype of the same leaf of `like`, so that it can be a loop's carry.

    Raises:
        InputError: The trees have different structures, or a leaf would lose its fraction or its number.
    """
    trees: list[Any] = [jax.tree.structure(tree), jax.tree.structure(like)]  # PyTreeDef has no type for ==
    if trees[0] != trees[1]:
        raise InputError(
            f"an environment's step returns {trees[0]} and its reset {trees[1]}: return the same from both."
        )

    def convert(path: Any, leaf: Any, target: Any) -> jax.Array:
        given, wanted = jnp.asarray(leaf).dtype, jnp.asarray(target).dtype
        if given != wanted and not jnp.promote_types(given, wanted) == wanted and not _same_kind(given, wanted):
            raise InputError(
                f"an environment's step returns {given} and its reset {wanted} at {jax.tree_util.keystr(path)}: "
                "return the same dtype from both."
            )
        return _as_dtype(leaf, wanted)

    return jax.tree_util.tree_map_with_path(convert, tree, like)


def select(predicate: jax.Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Returns `on_true` where `predicate` `[...]` holds and `on_false` elsewhere; leaves `[..., *shape]`."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(predicate.reshape(predicate.shape + (1,) * (jnp.ndim(a) - predicate.ndim)), a, b)

    return jax.tree.map(choose, on_true, on_false)


def _as_dtype(leaf: Any, dtype: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return lax.convert_element_type(leaf, dtype)


def _same_kind(given: Any, wanted: Any) -> bool:
    kinds = (jnp.floating, jnp.integer, jnp.bool_, jax.dtypes.prng_key)
    return any(jnp.issubdtype(given, kind) and jnp.issubdtype(wanted, kind) for kind in kinds)
