"""Transforms: wrappers of one raw environment that change what an agent sees, does, or how long an episode lasts.

A config names them under `[env]`, innermost first: `transforms = ["one_hot", {name = "frame_stack", size = 4}]`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep, select, with_types_of
from rollax.envs.wrappers import Wrapper, WrapperState
from rollax.errors import InputError, nearest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformState(WrapperState):
    """The state inside, and what a transform remembers."""

    own: PyTree


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
        _require(size >= 1, "frame_stack.size", size, "must be at least 1")
        for leaf in spaces.leaves(env.observation_space()):
            _require(len(leaf.shape) >= 1, "frame_stack", leaf, "needs observations with at least one axis")
        self._size = size

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Starts an episode with `size` copies of its first observation."""
        state, timestep = self.env.reset(key, params)
        frames = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * self._size, axis=-1), timestep.observation)
        return TransformState(state, frames), _with_observation(timestep, frames)

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action; the oldest frame falls off."""
        env_state, timestep = self.env.step(key, state.env, action, params, *args)

        # Joined, not shifted in place: XLA's CPU compiler gets b.at[1:].set(b[:-1]).reshape(...) wrong.
        def push(frames: jax.Array, newest: jax.Array) -> jax.Array:
            return jnp.concatenate([frames[..., newest.shape[-1] :], newest], axis=-1)

        frames = jax.tree.map(push, state.own, timestep.observation)
        return TransformState(env_state, frames), _with_observation(timestep, frames)

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
        _require(limit >= 1, "time_feature.limit", limit, "must be at least 1")
        space = env.observation_space()
        _require(
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
        return _with_observation(timestep, jnp.append(timestep.observation, share))


class TimeLimit(Wrapper):
    """Cuts an episode off after `limit` steps: a truncation, never a termination."""

    def __init__(self, env: Environment, limit: int) -> None:
        super().__init__(env)
        _require(limit >= 1, "time_limit.limit", limit, "must be at least 1")
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
        _require(count >= 1, "action_repeat.count", count, "must be at least 1")
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
        _require(0 <= probability <= 1, "sticky_action.probability", probability, "must be between 0 and 1")
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
        space = env.action_space()
        bounded = isinstance(space, spaces.Box) and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))
        _require(bounded, "rescale_action", space, "needs a Box with finite bounds as its action space")
        self._low, self._high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))

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
        _require(isinstance(space, spaces.Box), "clip_action", space, "needs a Box as its action space")
        self._low, self._high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes the clipped action."""
        return self.env.step(key, state, jnp.clip(action, self._low, self._high), params, *args)


class ObservationNoise(Wrapper):
    """Adds independent normals of standard deviation `scale` to every float of an observation."""

    def __init__(self, env: Environment, scale: float) -> None:
        super().__init__(env)
        _require(scale >= 0, "observation_noise.scale", scale, "must not be negative")
        if not any(np.issubdtype(leaf.dtype, np.floating) for leaf in spaces.leaves(env.observation_space())):
            raise InputError(
                "env.transforms: observation_noise has no use, as no observation is a float; leave it out."
            )
        self._scale = scale

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        key, key_noise = jax.random.split(key)
        state, timestep = self.env.reset(key, params)
        return state, self._noisy(key_noise, timestep)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action."""
        key, key_noise = jax.random.split(key)
        state, timestep = self.env.step(key, state, action, params, *args)
        return state, self._noisy(key_noise, timestep)

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space without bounds where there is noise."""

        def widen(leaf: spaces.Space) -> spaces.Space:
            floats = np.issubdtype(leaf.dtype, np.floating)
            return spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype) if floats else leaf

        return jax.tree.map(widen, self.env.observation_space(params))

    def _noisy(self, key: jax.Array, timestep: TimeStep) -> TimeStep:
        leaves, structure = jax.tree.flatten(timestep.observation)
        keys = jax.random.split(key, len(leaves))

        def add(key: jax.Array, leaf: jax.Array) -> jax.Array:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            return leaf + self._scale * jax.random.normal(key, leaf.shape, leaf.dtype)

        return _with_observation(timestep, jax.tree.unflatten(structure, map(add, keys, leaves)))


class ActionNoise(Wrapper):
    """Adds independent normals to actions of a Box, of standard deviation `scale` halves of its bounds, and clips."""

    def __init__(self, env: Environment, scale: float) -> None:
        super().__init__(env)
        _require(scale >= 0, "action_noise.scale", scale, "must not be negative")
        space = env.action_space()
        bounded = isinstance(space, spaces.Box) and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))
        _require(bounded, "action_noise", space, "needs a Box with finite bounds as its action space")
        self._low, self._high = (jnp.asarray(bound, jnp.float32) for bound in (space.low, space.high))
        self._scale = scale

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes the action with noise."""
        key, key_noise = jax.random.split(key)
        noise = self._scale * (self._high - self._low) / 2.0 * jax.random.normal(key_noise, action.shape)
        noisy = jnp.clip(action + noise, self._low, self._high).astype(action.dtype)
        return self.env.step(key, state, noisy, params, *args)


class Randomise(Wrapper):
    """Draws numbers of the environment's params anew for each episode, uniformly: domain randomisation.

    `{name = "randomise", length = [0.4, 0.6]}` draws the field `length` of the params from that range; a whole number
    is drawn with both ends. `Vectorise(params_axis=0)` gives each environment params of its own that stay.
    """

    def __init__(self, env: Environment, **ranges: Sequence[float]) -> None:
        super().__init__(env)
        _require(
            bool(ranges), "randomise", ranges, "needs at least one field with its range, as in length = [0.4, 0.6]"
        )
        for name, values in ranges.items():
            _require_field(env, "randomise", name)
            pair = isinstance(values, Sequence) and len(values) == 2 and values[0] <= values[1]
            _require(pair, f"randomise.{name}", values, "must be a range [low, high]")
        self._ranges = {name: (float(low), float(high)) for name, (low, high) in ranges.items()}

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Draws the numbers and starts an episode with them."""
        key, key_draw = jax.random.split(key)
        keys = jax.random.split(key_draw, len(self._ranges))
        drawn = {name: self._draw(name, key, params) for name, key in zip(self._ranges, keys, strict=True)}
        state, timestep = self.env.reset(key, dataclasses.replace(params, **drawn))
        return TransformState(state, drawn), timestep

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action with the episode's numbers."""
        params = dataclasses.replace(params, **state.own)
        env_state, timestep = self.env.step(key, state.env, action, params, *args)
        return TransformState(env_state, state.own), timestep

    def _draw(self, name: str, key: jax.Array, params: PyTree) -> jax.Array:
        low, high = self._ranges[name]
        default = jnp.asarray(getattr(params, name))
        if jnp.issubdtype(default.dtype, jnp.integer):
            return jax.random.randint(key, default.shape, round(low), round(high) + 1, default.dtype)
        return jax.random.uniform(key, default.shape, default.dtype, low, high)


class Tasks(Wrapper):
    """One of K tasks in each episode, drawn uniformly: K values for each of some fields of the environment's params.

    `{name = "tasks", length = [0.3, 0.5, 0.7], gravity = [9.8, 9.8, 5.0]}` makes three. A vector observation ends with
    the task as K numbers, one of which is 1, unless `hidden`.
    """

    def __init__(self, env: Environment, hidden: bool = False, **values: Sequence[float]) -> None:
        super().__init__(env)
        _require(bool(values), "tasks", values, "needs at least one field with its values, as in length = [0.3, 0.7]")
        for name, each in values.items():
            _require_field(env, "tasks", name)
            listed = isinstance(each, Sequence) and len(each) >= 1
            _require(listed, f"tasks.{name}", each, "must be a list with a value for each task")
        counts = {name: len(each) for name, each in values.items()}
        _require(len(set(counts.values())) == 1, "tasks", counts, "must have as many values for each field")
        space = env.observation_space()
        vector = isinstance(space, spaces.Box) and len(space.shape) == 1
        _require(hidden or vector, "tasks", space, "needs a vector observation to show the task in, or hidden = true")
        self._hidden, self._values = hidden, {name: np.asarray(each) for name, each in values.items()}
        self._count = next(iter(counts.values()))

    def reset(self, key: jax.Array, params: PyTree) -> tuple[TransformState, TimeStep]:
        """Draws the task and starts an episode of it."""
        key, key_task = jax.random.split(key)
        task = jax.random.randint(key_task, (), 0, self._count)
        state, timestep = self.env.reset(key, self._of(task, params))
        return TransformState(state, task), self._shown(timestep, task)

    def step(
        self, key: jax.Array, state: TransformState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[TransformState, TimeStep]:
        """Takes one action in the episode's task."""
        env_state, timestep = self.env.step(key, state.env, action, self._of(state.own, params), *args)
        return TransformState(env_state, state.own), self._shown(timestep, state.own)

    def observation_space(self, params: PyTree = None) -> PyTree:
        """The space with the task as its last entries, unless hidden."""
        space = self.env.observation_space(params)
        if self._hidden:
            return space
        more = np.ones(self._count)
        return spaces.Box(np.append(space.low, 0 * more), np.append(space.high, more), dtype=space.dtype)

    def _of(self, task: jax.Array, params: PyTree) -> PyTree:
        def value(name: str) -> jax.Array:
            return jnp.asarray(self._values[name], jnp.asarray(getattr(params, name)).dtype)[task]

        return dataclasses.replace(params, **{name: value(name) for name in self._values})

    def _shown(self, timestep: TimeStep, task: jax.Array) -> TimeStep:
        if self._hidden:
            return timestep
        code = jax.nn.one_hot(task, self._count, dtype=timestep.observation.dtype)
        return _with_observation(timestep, jnp.concatenate([timestep.observation, code]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Starts:
    """The params inside, and the starts that episodes are given."""

    env: PyTree
    states: PyTree  # leaves [count, ...]
    timesteps: TimeStep  # leaves [count, ...]


class CachedReset(Wrapper):
    """Episodes start from one of `count` starts, drawn once: for environments whose reset costs much.

    That is a bias, towards the episodes of these starts: an agent may learn them by heart, the more so the fewer there
    are, and evaluations on the same starts do not show it. Each seed of a job carries all of them in its params.
    """

    def __init__(self, env: Environment, count: int, seed: int = 0) -> None:
        super().__init__(env)
        _require(count >= 1, "cached_reset.count", count, "must be at least 1")
        self._count, self._seed = count, seed

    @functools.cached_property
    def default_params(self) -> Starts:
        """The params inside and the starts, made when they are first asked for."""
        with jax.ensure_compile_time_eval():  # also where that is while something else is traced
            params = self.env.default_params
            keys = jax.random.split(jax.random.key(self._seed), self._count)
            return Starts(params, *jax.jit(jax.vmap(self.env.reset, in_axes=(0, None)))(keys, params))

    def reset(self, key: jax.Array, params: Starts) -> tuple[PyTree, TimeStep]:
        """Takes one of the starts."""
        index = jax.random.randint(key, (), 0, self._count)
        return jax.tree.map(lambda leaf: leaf[index], (params.states, params.timesteps))

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: Starts, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action."""
        return self.env.step(key, state, action, params.env, *args)


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
    if isinstance(transforms, str | Mapping):
        raise InputError(f"env.transforms = {transforms!r} must be a list: write [{transforms!r}].")
    for entry in transforms:
        arguments = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = arguments.pop("name", None)
        if name is None:
            raise InputError(f"env.transforms: {entry!r} lacks its name, one of {', '.join(TRANSFORMS)}.")
        if name not in TRANSFORMS:
            raise InputError(f"env.transforms names {name!r}: {nearest(str(name), TRANSFORMS)}")
        try:
            inspect.signature(TRANSFORMS[name]).bind(env, **arguments)
        except TypeError as error:
            raise InputError(f"env.transforms: {name} does not take {arguments} ({error}).") from error
        env = TRANSFORMS[name](env, **arguments)
    return env


def _require(condition: bool, field: str, value: Any, remedy: str) -> None:
    if not condition:
        raise InputError(f"env.transforms: {field} = {value!r} {remedy}.")


def _require_field(env: Environment, transform: str, name: str) -> None:
    params = env.default_params
    fields = {field.name for field in dataclasses.fields(params)} if dataclasses.is_dataclass(params) else set()
    if name not in fields:
        hint = nearest(name, fields) if fields else "the environment has no params with fields."
        raise InputError(f"env.transforms: {transform}.{name} is no field of the environment's params: {hint}")


def _bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    high = np.array(space.n - 1 if isinstance(space, spaces.Discrete) else np.array(space.nvec) - 1, np.float64)
    return np.zeros_like(high), high


def _with_observation(timestep: TimeStep, observation: PyTree) -> TimeStep:
    return dataclasses.replace(timestep, observation=observation, final_observation=observation)
