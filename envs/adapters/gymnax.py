"""Adapter to gymnax 1.0 (https://github.com/RobertTLange/gymnax), which tells termination from time limits."""

from __future__ import annotations

import inspect
from typing import Any

import gymnax
import jax
import numpy as np
from gymnax.environments import spaces as gymnax_spaces

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import override
from rollax.envs.base import PyTree, TimeStep, strongly_typed, timestep, with_types_of
from rollax.errors import InputError


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

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws classic control, and what is seen as a grid: MinAtar, Catch, DeepSea, Pong and the digits of MNIST.

        Raises:
            InputError: It is another environment.
        """
        if self.env.name in drawing.CLASSIC_CONTROL:
            return drawing.CLASSIC_CONTROL[self.env.name](state, params)
        observation = self.env.observe(jax.random.key(0), state, None, params)
        if observation.ndim not in (2, 3) or observation.size == 1:
            raise drawing.cannot_draw(self.env.name)
        return drawing.grid(observation)


def make(env_id: str, /, **kwargs: Any) -> GymnaxEnv:
    """Builds a registered gymnax environment.

    Args:
        env_id: An id of `gymnax.registered_envs`.
        **kwargs: Those that name a field of the environment's params override it (`max_steps_in_episode`); the others
            go to its constructor (`size` of DeepSea).

    Raises:
        InputError: A keyword is neither, or data that the environment needs cannot be had.
    """
    factory = gymnax.registration._registry[env_id]
    constructor = set(inspect.signature(factory).parameters)
    try:
        env = factory(**{name: value for name, value in kwargs.items() if name in constructor})
    except OSError as error:
        raise InputError(f"env.id = {env_id!r} needs files that could not be had ({error}); choose another.") from error
    overrides = {name: value for name, value in kwargs.items() if name not in constructor}
    return GymnaxEnv(env, override(env_id, env.default_params, overrides, constructor))


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
