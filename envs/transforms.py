"""Transforms: wrappers of one raw environment that change what an agent sees, does, or how long an episode lasts.

A config names them under `[env]`, innermost first: `transforms = ["one_hot", {name = "frame_stack", size = 4}]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep, select, with_types_of
from rollax.envs.transforming import TransformState, bounded_box, check_arguments, require, with_observation
from rollax.envs.variation import ActionNoise, CachedReset, ObservationNoise, Randomise, Tasks
from rollax.envs.wrappers import Wrapper
from rollax.errors import InputError, nearest

MAX_FRAMES = 1_000
"""Observations that `frame_stack` joins at most."""
MAX_REPEATS = 100
"""Times that `action_repeat` takes an action at most: each is a step of its own in the program."""


class ObservationTransform(Wrapper):
    """Applies a pure function to every observation; subclasses say which, and what space comes out."""

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        state, timestep = self.env.reset(key, params)
        return state, self._observed(timestep)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action."""
        state, timestep = self.env.step(key, state, action, params, *args)
        return state, self._observed(timestep)

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space of transformed observations."""
        return self.transform_space(self.env.observation_space(params))

    def transform(self, observation: PyTree) -> PyTree:
        """Returns the transformed observation."""
        raise NotImplementedError

    def transform_space(self, space: PyTree) -> PyTree:
        """Returns the space of transformed observations."""
        raise NotImplementedError

    def _observed(self, timestep: TimeStep) -> TimeStep:
        observation = self.transform(timestep.observation)
        return dataclasses.replace(timestep, observation=observation, final_observation=observation)


class Flatten(ObservationTransform):
    """One float32 vector in place of a PyTree of observations: its leaves, flattened and one after another."""

    def transform(self, observation: PyTree) -> PyTree:
        leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(observation)]
        return jnp.concatenate(leaves)

    def transform_space(self, space: PyTree) -> PyTree:
        leaves = spaces.leaves(space)
        low, high = (np.concatenate([_bounds(leaf)[side].ravel() for leaf in leaves]) for side in (0, 1))
        return spaces.Box(low, high)


class OneHot(ObservationTransform):
    """A float32 one-hot vector in place of each `Discrete` leaf, and one after another for each `MultiDiscrete`."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._space = env.observation_space()
        if not any(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in spaces.leaves(self._space)):
            raise InputError("env.transforms: one_hot has no use, as no observation is Discrete; leave it out.")

    def transform(self, observation: PyTree) -> PyTree:
        def encode(space: spaces.Space, leaf: jax.Array) -> jax.Array:
            if isinstance(space, spaces.Discrete):
                return jax.nn.one_hot(leaf, space.n)
            if isinstance(space, spaces.MultiDiscrete):
                return jnp.concatenate([jax.nn.one_hot(leaf[index], n) for index, n in enumerate(space.nvec)])
            return leaf

        return jax.tree.map(encode, self._space, observation)

    def transform_space(self, space: PyTree) -> PyTree:
        def encode(leaf: spaces.Space) -> spaces.Space:
            if isinstance(leaf, spaces.Discrete):
                return spaces.Box(0.0, 1.0, (leaf.n,))
            return spaces.Box(0.0, 1.0, (sum(leaf.nvec),)) if isinstance(leaf, spaces.MultiDiscrete) else leaf

        return jax.tree.map(encode, space)


class Select(ObservationTransform):
    """The entries `indices` of a vector observation; hides velocities, for example, from an agent with memory."""

    def __init__(self, env: Environment, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space()
        size = space.shape[0] if isinstance(space, spaces.Box) and len(space.shape) == 1 else 0
        if not indices or not all(0 <= index < size for index in indices):
            raise InputError(
                f"env.transforms: select.indices = {list(indices)} must be entries, from 0 on, of one vector "
                f"observation, not of {space!r}."
            )
        self._indices = np.array(indices)

    def transform(self, observation: PyTree) -> PyTree:
        return observation[self._indices]

    def transform_space(self, space: PyTree) -> PyTree:
        return spaces.Box(space.low[self._indices], space.high[self._indices], dtype=space.dtype)


class FrameStack(Wrapper):
    """The last `size` observations, oldest first, joined along the last axis; an episode starts with copies."""

    def __init__(self, env: Environment, size: int) -> None:
        super().__init__(env)
        require(1 <= size <= MAX_FRAMES, "frame_stack.size", size, f"must be between 1 and {MAX_FRAMES}")
        for leaf in spaces.leaves(env.observation_space()):
            require(len(leaf.shape) >= 1, "frame_stack", leaf, "needs observations with at least one axis")
        self._size = size

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Starts an episode with `size` copies of its first observation."""
        state, timestep = self.env.reset(key, params)
        frames = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * self._size, axis=-1), timestep.observation)
        return TransformState(state, frames), with_observation(timestep, frames)

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action; the oldest frame falls off."""
        env_state, timestep = self.env.step(key, state.env, action, params, *args)

        # Joined, not shifted in place: XLA's CPU compiler gets b.at[1:].set(b[:-1]).reshape(...) wrong.
        def push(frames: jax.Array, newest: jax.Array) -> jax.Array:
            return jnp.concatenate([frames[..., newest.shape[-1] :], newest], axis=-1)

        frames = jax.tree.map(push, state.own, timestep.observation)
        return TransformState(env_state, frames), with_observation(timestep, frames)

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space of stacked observations."""

        def stack(leaf: spaces.Space) -> spaces.Space:
            low, high = _bounds(leaf)
            repeats = (1,) * (low.ndim - 1) + (self._size,)
            return spaces.Box(np.tile(low, repeats), np.tile(high, repeats), dtype=leaf.dtype)

        return jax.tree.map(stack, self.env.observation_space(params))


class TimeFeature(Wrapper):
    """The share of the time limit that has passed, in [0, 1], as one more number of a vector observation."""

    def __init__(self, env: Environment, limit: int) -> None:
        super().__init__(env)
        require(limit >= 1, "time_feature.limit", limit, "must be at least 1")
        space = env.observation_space()
        require(
            isinstance(space, spaces.Box) and len(space.shape) == 1, "time_feature", space, "needs a vector observation"
        )
        self._limit = limit

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Starts an episode at time 0."""
        state, timestep = self.env.reset(key, params)
        time = jnp.zeros((), jnp.int32)
        return TransformState(state, time), self._timed(timestep, time)

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action."""
        env_state, timestep = self.env.step(key, state.env, action, params, *args)
        time = state.own + 1
        return TransformState(env_state, time), self._timed(timestep, time)

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space with the time as its last entry."""
        space = self.env.observation_space(params)
        return spaces.Box(np.append(space.low, 0.0), np.append(space.high, 1.0), dtype=space.dtype)

    def _timed(self, timestep: TimeStep, time: jax.Array) -> TimeStep:
        share = jnp.minimum(time / self._limit, 1.0).astype(timestep.observation.dtype)
        return with_observation(timestep, jnp.append(timestep.observation, share))


class TimeLimit(Wrapper):
    """Cuts an episode off after `limit` steps: a truncation, never a termination."""

    def __init__(self, env: Environment, limit: int) -> None:
        super().__init__(env)
        require(limit >= 1, "time_limit.limit", limit, "must be at least 1")
        self._limit = limit

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Starts an episode."""
        state, timestep = self.env.reset(key, params)
        return TransformState(state, jnp.zeros((), jnp.int32)), timestep

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action."""
        env_state, timestep = self.env.step(key, state.env, action, params, *args)
        time = state.own + 1
        truncated = timestep.truncated | (time >= self._limit)
        return TransformState(env_state, time), dataclasses.replace(timestep, truncated=truncated)


class ActionRepeat(Wrapper):
    """Takes each action `count` times and sums the rewards; it stops where the episode ends."""

    def __init__(self, env: Environment, count: int) -> None:
        super().__init__(env)
        require(1 <= count <= MAX_REPEATS, "action_repeat.count", count, f"must be between 1 and {MAX_REPEATS}")
        self._count = count

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes the action `count` times."""
        keys = jax.random.split(key, self._count)
        state, timestep = self.env.step(keys[0], state, action, params, *args)
        for index in range(1, self._count):
            following, after = self.env.step(keys[index], state, action, params, *args)
            after = dataclasses.replace(after, reward=timestep.reward + after.reward)
            held = (state, timestep)
            state, timestep = select(timestep.ended, held, with_types_of((following, after), held))
        return state, timestep


class StickyAction(Wrapper):
    """Repeats the previous action with a given probability in place of the chosen one (Machado et al. 2018)."""

    def __init__(self, env: Environment, probability: float) -> None:
        super().__init__(env)
        require(0 <= probability <= 1, "sticky_action.probability", probability, "must be between 0 and 1")
        self._probability = probability

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Starts an episode; its first action is never replaced."""
        state, timestep = self.env.reset(key, params)
        return TransformState(state, (spaces.zeros(self.env.action_space()), jnp.zeros((), jnp.bool_))), timestep

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes the action, or the previous one again."""
        key_stick, key_step = jax.random.split(key)
        previous, any_previous = state.own
        stick = any_previous & jax.random.bernoulli(key_stick, self._probability)
        action = select(stick, previous, with_types_of(action, previous))
        env_state, timestep = self.env.step(key_step, state.env, action, params, *args)
        return TransformState(env_state, (action, jnp.ones((), jnp.bool_))), timestep


class RescaleAction(Wrapper):
    """Actions of a Box in [-1, 1], scaled to its bounds."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._low, self._high = bounded_box(env, "rescale_action")

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action in [-1, 1]."""
        share = (action + 1.0) / 2.0
        return self.env.step(key, state, self._low * (1.0 - share) + self._high * share, params, *args)

    def action_space(self, params: PyTree = None) -> PyTree:
        """The unit box."""
        space = self.env.action_space(params)
        return spaces.Box(-1.0, 1.0, space.shape, space.dtype)


class ClipAction(Wrapper):
    """Clips actions of a Box into its bounds, for agents that do not keep to them."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        space = env.action_space()
        require(isinstance(space, spaces.Box), "clip_action", space, "needs a Box as its action space")
        self._low, self._high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes the clipped action."""
        return self.env.step(key, state, jnp.clip(action, self._low, self._high), params, *args)


TRANSFORMS: dict[str, Callable[..., Environment]] = {
    "flatten": Flatten,
    "one_hot": OneHot,
    "select": Select,
    "frame_stack": FrameStack,
    "time_feature": TimeFeature,
    "time_limit": TimeLimit,
    "action_repeat": ActionRepeat,
    "sticky_action": StickyAction,
    "rescale_action": RescaleAction,
    "clip_action": ClipAction,
    "observation_noise": ObservationNoise,
    "action_noise": ActionNoise,
    "randomise": Randomise,
    "tasks": Tasks,
    "cached_reset": CachedReset,
}


def apply(env: Environment, transforms: Sequence[str | Mapping[str, Any]]) -> Environment:
    """Wraps an environment in transforms.

    Args:
        env: A raw environment.
        transforms: Names, or tables with a `name` and the transform's arguments; innermost first.

    Raises:
        InputError: A transform is unknown, has other arguments, or does not fit the environment.
    """
    if isinstance(transforms, str | Mapping) or not isinstance(transforms, Sequence):
        raise InputError(f"env.transforms = {transforms!r} must be a list: write [{transforms!r}].")
    for entry in transforms:
        if not isinstance(entry, str | Mapping):
            raise InputError(f"env.transforms: {entry!r} must be a name, or a table with a name and arguments.")
        arguments = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = arguments.pop("name", None)
        if name is None:
            raise InputError(f"env.transforms: {entry!r} lacks its name, one of {', '.join(TRANSFORMS)}.")
        if name not in TRANSFORMS:
            raise InputError(f"env.transforms names {name!r}: {nearest(str(name), TRANSFORMS)}")
        check_arguments(name, TRANSFORMS[name], env, arguments)
        env = TRANSFORMS[name](env, **arguments)
    return env


def _bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    high = np.array(space.n - 1 if isinstance(space, spaces.Discrete) else np.array(space.nvec) - 1, np.float64)
    return np.zeros_like(high), high
