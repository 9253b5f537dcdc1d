"""Adapter to gymnax 1.0 (https://github.com/RobertTLange/gymnax), which tells termination from time limits."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import gymnax
import jax
import numpy as np
from gymnax.environments import spaces as gymnax_spaces

from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep, strongly_typed, timestep, with_types_of
from rollax.errors import InputError, nearest


class GymnaxEnv:
    """One gymnax environment in the protocol of `rollax.envs`, without gymnax's own automatic reset.

    Spaces take their shapes and dtypes from what the environment really returns (several declare another dtype) and
    their bounds from what it declares. Both are read once, from the params given to the constructor.
    """

    def __init__(self, env: Any, params: PyTree | None = None) -> None:
        """Wraps `env`, a `gymnax.environments.environment.Environment`, with concrete, unbatched `params`."""
        self.env = env
        self._params = env.default_params if params is None else params
        observation = jax.eval_shape(lambda key: env.reset_env(key, self._params)[0], jax.random.key(0))
        self._observation_space = _convert_space(env.observation_space(self._params), observation)
        self._action_space = _convert_space(env.action_space(self._params))

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        observation, state = self.env.reset_env(key, params)
        return strongly_typed(state), timestep(observation, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; a time limit sets `truncated`, and both flags may be set together."""
        observation, next_state, reward, terminated, _ = self.env.step_env(key, state, action, params)
        truncated = self.env.is_truncated(next_state, params)
        return with_types_of(next_state, state), timestep(observation, reward, terminated, truncated)


def make(env_id: str, /, **kwargs: Any) -> GymnaxEnv:
    """Builds a registered gymnax environment.

    Args:
        env_id: An id of `gymnax.registered_envs`.
        **kwargs: Those that name a field of the environment's params override it (`max_steps_in_episode`); the others
            go to its constructor (`size` of DeepSea).

    Raises:
        InputError: A keyword is neither, or the environment cannot be built.
    """
    factory = gymnax.registration._registry[env_id]
    constructor = set(inspect.signature(factory).parameters)
    try:
        env = factory(**{name: value for name, value in kwargs.items() if name in constructor})
        params = env.default_params
    except OSError as error:
        raise InputError(f"env.id = {env_id!r} needs files that could not be had ({error}); choose another.") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"env.id = {env_id!r} cannot be built with {kwargs}: {error}.") from error
    fields = {field.name for field in dataclasses.fields(params)}
    for name in kwargs:
        if name not in fields | constructor:
            raise InputError(f"env.{name} is nothing that {env_id} knows: {nearest(name, fields | constructor)}")
    overrides = {name: value for name, value in kwargs.items() if name in fields - constructor}
    params = params.replace(
        **{name: _override(name, value, getattr(params, name)) for name, value in overrides.items()}
    )
    try:
        return GymnaxEnv(env, params)
    except (TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise InputError(f"env.id = {env_id!r} cannot be built with {kwargs}: {error}.") from error


def _override(name: str, value: Any, default: Any) -> Any:
    """Returns the value of a params field in the type of its default."""
    wanted = np.asarray(default)
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        given = np.asarray(None)
    number = given.dtype.kind in "iuf" and wanted.dtype.kind in "iuf"
    if given.shape != wanted.shape or not (number or given.dtype.kind == wanted.dtype.kind):
        raise InputError(f"env.{name} = {value!r} must be a number like its default {default!r}.")
    if name == "max_steps_in_episode" and given < 1:
        raise InputError(f"env.{name} = {value!r} must be at least 1.")
    converted = given.astype(wanted.dtype)
    if wanted.dtype.kind in "iu" and not np.array_equal(converted, given):
        raise InputError(f"env.{name} = {value!r} must be a whole number like its default {default!r}.")
    return converted.item() if converted.ndim == 0 else converted


def _convert_space(space: Any, example: Any = None) -> PyTree:
    if isinstance(space, gymnax_spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        like = space if example is None else example
        return spaces.Box(np.asarray(space.low), np.asarray(space.high), like.shape, like.dtype)
    if isinstance(space, gymnax_spaces.Dict):
        return {
            name: _convert_space(child, None if example is None else example[name])
            for name, child in space.spaces.items()
        }
    if isinstance(space, gymnax_spaces.Tuple):
        children = space.spaces
        return tuple(
            _convert_space(child, None if example is None else example[index]) for index, child in enumerate(children)
        )
    raise InputError(f"a gymnax space of type {type(space).__name__} has no counterpart: use Discrete, Box or Dict.")
