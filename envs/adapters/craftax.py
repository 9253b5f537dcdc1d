"""Adapter to craftax 1.6 (https://github.com/MichaelTMatthews/Craftax): Craftax and Craftax-Classic."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box, override
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of


class CraftaxEnv:
    """One craftax environment, without craftax's automatic reset. Its time limit, `max_timesteps`, is a truncation."""

    def __init__(self, env: Any, params: PyTree) -> None:
        """Wraps `env`, one of craftax's environments without automatic reset, with its params."""
        self.env = env
        self._params = params
        observation = jax.eval_shape(lambda key: env.reset_env(key, params)[0], jax.random.key(0))
        declared = env.observation_space(params)
        self._observation_space = box(observation, declared.low, declared.high)
        self._action_space = spaces.Discrete(env.num_actions)

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Generates a world."""
        observation, state = self.env.reset_env(key, params)
        return strongly_typed(state), timestep(observation, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; both flags may be set together."""
        observation, next_state, reward, _, _ = self.env.step_env(key, state, action, params)
        # craftax's `done` is the end of the game or of the time; without a limit in reach it is the first alone.
        endless = params.replace(max_timesteps=jnp.iinfo(jnp.int32).max)
        terminated = self.env.is_terminal(next_state, endless)
        truncated = next_state.timestep >= params.max_timesteps
        return with_types_of(next_state, state), timestep(observation, reward, terminated, truncated)

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws what the environment of pixels shows of a state."""
        pixels = np.round(255 * np.asarray(self._pixels(state))).astype(np.uint8)
        return drawing.enlarged(pixels)

    @functools.cached_property
    def _pixels(self) -> Any:
        """From a state to pixels, which is the same state's, float `[H, W, 3]` from 0 to 1."""
        name = f"{self.env.name.partition('-NoAutoReset')[0].replace('Symbolic', 'Pixels')}-v1"
        return jax.jit(make_craftax_env_from_name(name, auto_reset=False).get_obs)


def make(name: str, /, **kwargs: Any) -> Environment:
    """Builds a craftax environment.

    Args:
        name: `Craftax-Symbolic-v1`, `Craftax-Pixels-v1`, or either of `Craftax-Classic-`.
        **kwargs: Fields of the environment's params, which they override (`max_timesteps`).

    Raises:
        InputError: There is no such field, or a value does not have the type of its default.
    """
    env = make_craftax_env_from_name(name, auto_reset=False)
    return CraftaxEnv(env, override(f"craftax/{name}", env.default_params, kwargs))
