"""Transforms that make episodes vary: noise, params drawn anew, one of several tasks, and starts drawn once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep
from rollax.envs.transforming import TransformState, bounded_box, require, with_observation
from rollax.envs.wrappers import Wrapper
from rollax.errors import InputError, nearest

MAX_STARTS = 100_000
"""Starts that `cached_reset` draws at most."""


class ObservationNoise(Wrapper):
    """Adds independent normals of standard deviation `scale` to every float of an observation."""

    def __init__(self, env: Environment, scale: float) -> None:
        super().__init__(env)
        require(scale >= 0, "observation_noise.scale", scale, "must not be negative")
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

        return with_observation(timestep, jax.tree.unflatten(structure, map(add, keys, leaves)))


class ActionNoise(Wrapper):
    """Adds independent normals to actions of a Box, of standard deviation `scale` halves of its bounds, and clips."""

    def __init__(self, env: Environment, scale: float) -> None:
        super().__init__(env)
        require(scale >= 0, "action_noise.scale", scale, "must not be negative")
        self._low, self._high = bounded_box(env, "action_noise")
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
        require(bool(ranges), "randomise", ranges, "needs at least one field with its range, as in length = [0.4, 0.6]")
        for name, values in ranges.items():
            _require_field(env, "randomise", name)
            pair = isinstance(values, Sequence) and len(values) == 2 and values[0] <= values[1]
            require(pair, f"randomise.{name}", values, "must be a range [low, high]")
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
        require(bool(values), "tasks", values, "needs at least one field with its values, as in length = [0.3, 0.7]")
        for name, each in values.items():
            _require_field(env, "tasks", name)
            listed = isinstance(each, Sequence) and len(each) >= 1
            require(listed, f"tasks.{name}", each, "must be a list with a value for each task")
        counts = {name: len(each) for name, each in values.items()}
        require(len(set(counts.values())) == 1, "tasks", counts, "must have as many values for each field")
        space = env.observation_space()
        vector = isinstance(space, spaces.Box) and len(space.shape) == 1
        require(hidden or vector, "tasks", space, "needs a vector observation to show the task in, or hidden = true")
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
        return with_observation(timestep, jnp.concatenate([timestep.observation, code]))


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
        require(1 <= count <= MAX_STARTS, "cached_reset.count", count, f"must be between 1 and {MAX_STARTS}")
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


def _require_field(env: Environment, transform: str, name: str) -> None:
    params = env.default_params
    fields = {field.name for field in dataclasses.fields(params)} if dataclasses.is_dataclass(params) else set()
    if name not in fields:
        hint = nearest(name, fields) if fields else "the environment has no params with fields."
        raise InputError(f"env.transforms: {transform}.{name} is no field of the environment's params: {hint}")
