"""Torsos with a memory: the interface that every agent uses, and recurrent cells.

A torso without memory is the case whose memory is `()`. Memory is reset where `is_first` says that an observation
starts an episode, before that observation is taken in, and by the torso: acting and learning cannot differ in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents.networks import Network, orthogonal
from rollax.envs.base import PyTree, select
from rollax.errors import InputError

Unrolled = tuple[PyTree, jax.Array, Any]
"""Memory after the last step, features `[T, N, F]`, and those of the successors or None."""


@dataclasses.dataclass(frozen=True, eq=False)
class Torso:
    """Pure functions from sequences of observations, or of features, to features.

    Attributes:
        init: `(key, observation) -> params`, for one step of N environments, leaves `[N, ...]`.
        init_memory: `(N) -> memory`, leaves `[N, ...]`, before the first step of an episode; `()` if there is none.
        unroll: `(params, memory, observation, is_first, successor=None) -> (memory, features, next_features)`.
            Observations have leaves `[T, N, ...]`, `is_first` is bool `[T, N]`; features are float32 `[T, N, F]`.
            `successor` is what truly followed each observation (`Rollout.final_observation`): `next_features` are those
            that it would have, taken in after that observation and in its episode; None without it.
    """

    init: Callable[[jax.Array, PyTree], PyTree]
    init_memory: Callable[[int], PyTree]
    unroll: Callable[..., Unrolled]

    def step(
        self, params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        """Takes in one step of N environments: the memory after it, and features float32 `[N, F]`.

        Args:
            params: From `init`.
            memory: From `init_memory` or the last step.
            observation: Leaves `[N, ...]`.
            is_first: Whether an episode starts with the observation, bool `[N]`.
        """
        row = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (observation, is_first))
        memory, features, _ = self.unroll(params, memory, *row)
        return memory, features[0]

    @property
    def has_memory(self) -> bool:
        """Whether features depend on more than the newest observation; static."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.init_memory(1))))


def feed_forward(network: Network) -> Torso:
    """Returns the torso without memory that a network is."""

    def apply(params: PyTree, observation: PyTree) -> jax.Array:
        steps, num_envs = jax.tree.leaves(observation)[0].shape[:2]
        flat = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]), observation)
        return _checked(network.apply(params, flat), steps * num_envs).reshape(steps, num_envs, -1)

    def unroll(
        params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array, successor: PyTree = None
    ) -> Unrolled:
        return memory, apply(params, observation), None if successor is None else apply(params, successor)

    return Torso(network.init, lambda num_envs: (), unroll)


def stepwise(
    init: Callable[[jax.Array, PyTree], PyTree],
    init_memory: Callable[[int], PyTree],
    step: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, jax.Array]],
) -> Torso:
    """Returns the torso that takes in one step after another, in a scan.

    Args:
        init: As of `Torso`.
        init_memory: As of `Torso`.
        step: `(params, memory, observation) -> (memory, features)`, leaves `[N, ...]`. It need not know of episodes.
    """

    def unroll(
        params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array, successor: PyTree = None
    ) -> Unrolled:
        num_envs = is_first.shape[1]
        fresh = init_memory(num_envs)
        if any(jnp.shape(leaf)[:1] != (num_envs,) for leaf in jax.tree.leaves(fresh)):
            raise InputError(
                f"agent.torso: init_memory({num_envs}) makes leaves of shapes {_shapes(fresh)}; give each "
                "a first axis of the environments, [N, ...]."
            )
        if not _alike(memory, fresh):
            raise InputError(
                f"a memory of shapes {_shapes(memory)} was given to {num_envs} environments, whose memory has "
                f"{_shapes(fresh)}: give the one of the step before, or of init_memory({num_envs})."
            )

        def take_in(memory: PyTree, row: tuple[PyTree, jax.Array]) -> tuple[PyTree, Any]:
            observation, is_first = row
            stepped = step(params, select(is_first, fresh, memory), observation)
            if not isinstance(stepped, tuple | list) or len(stepped) != 2:
                raise InputError(f"agent.torso: step returns a {type(stepped).__name__}: return (memory, features).")
            after, features = stepped
            if not _alike(after, fresh):
                raise InputError(
                    "agent.torso: step returns a memory of another structure, shape or dtype than init_memory makes: "
                    f"{_shapes(after)}, not {_shapes(fresh)}; return one like it."
                )
            return after, (_checked(features, is_first.shape[0]), () if successor is None else after)

        last, (features, memories) = lax.scan(take_in, memory, (observation, is_first))
        if successor is None:
            return last, features, None
        _, ahead = jax.vmap(step, in_axes=(None, 0, 0))(params, memories, successor)
        return last, features, ahead

    return Torso(init, init_memory, unroll)


def chain(*torsos: Torso) -> Torso:
    """Returns the torsos one after another, each on the features of the one before; params and memory are tuples."""

    def init(key: jax.Array, observation: PyTree) -> PyTree:
        num_envs = jax.tree.leaves(observation)[0].shape[0]
        first = jnp.ones((num_envs,), jnp.bool_)
        params, inputs = [], observation
        for torso, key_torso in zip(torsos, jax.random.split(key, len(torsos)), strict=True):
            params.append(torso.init(key_torso, inputs))
            _, features = jax.eval_shape(torso.step, params[-1], torso.init_memory(num_envs), inputs, first)
            inputs = jnp.zeros(features.shape, features.dtype)
        return tuple(params)

    def unroll(
        params: PyTree, memory: PyTree, observation: PyTree, is_first: jax.Array, successor: PyTree = None
    ) -> Unrolled:
        after, inputs = [], observation
        for torso, torso_params, torso_memory in zip(torsos, params, memory, strict=True):
            torso_memory, inputs, successor = torso.unroll(torso_params, torso_memory, inputs, is_first, successor)
            after.append(torso_memory)
        return tuple(after), inputs, successor

    return Torso(init, lambda num_envs: tuple(torso.init_memory(num_envs) for torso in torsos), unroll)


def gru(size: int) -> Torso:
    """Gated recurrent units (Cho et al. 2014, https://arxiv.org/abs/1406.1078); memory is float32 `[N, size]`."""
    return _cell(nn.GRUCell(size, recurrent_kernel_init=orthogonal()))


def lstm(size: int) -> Torso:
    """Long short-term memory (Hochreiter and Schmidhuber 1997); memory is a pair of float32 `[N, size]`."""
    return _cell(nn.OptimizedLSTMCell(size, recurrent_kernel_init=orthogonal()))


def from_flax(module: nn.Module, init_memory: Callable[[int], PyTree]) -> Torso:
    """Returns the torso on features of a flax module that is called as `unroll` is, without its params."""

    def init(key: jax.Array, features: jax.Array) -> PyTree:
        num_envs = features.shape[0]
        return module.init(key, init_memory(num_envs), features[None], jnp.ones((1, num_envs), jnp.bool_))

    apply: Any = module.apply
    return Torso(init, init_memory, apply)


def _checked(features: Any, batch: int) -> jax.Array:
    """Returns the features; raises InputError unless they are floats `[batch, F]`."""
    shape = getattr(features, "shape", None)  # a torso of one's own may return anything
    if shape is None:
        raise InputError(f"agent.torso gives features that are a {type(features).__name__}: return [batch, F].")
    if len(shape) != 2 or shape[0] != batch:
        raise InputError(f"agent.torso gives features of shape {shape} for {batch} observations: return [batch, F].")
    if not jnp.issubdtype(features.dtype, jnp.floating):
        raise InputError(f"agent.torso gives features of {features.dtype}, which have no gradient: return floats.")
    return features


def _shapes(tree: PyTree) -> str:
    """The shapes and dtypes of a tree, in words."""
    return str(jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree))


def _alike(a: PyTree, b: PyTree) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (a, b)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(jnp.shape(x) == jnp.shape(y) and jnp.result_type(x) == jnp.result_type(y) for x, y in pairs)


def _cell(cell: Any) -> Torso:
    def init_memory(num_envs: int) -> PyTree:
        # The cells' initial carry is zeros; the key that they ask for is not used.
        return cell.initialize_carry(jax.random.key(0), (num_envs, cell.features))

    def init(key: jax.Array, features: jax.Array) -> PyTree:
        return cell.init(key, init_memory(features.shape[0]), features)

    return stepwise(init, init_memory, cell.apply)
