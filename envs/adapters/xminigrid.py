"""Adapter to XLand-MiniGrid 0.9 (https://github.com/dunnolab/xland-minigrid): grid worlds and their meta-learning."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of


class XMiniGridEnv:
    """One XLand-MiniGrid environment, which has no automatic reset of its own. Its time limit is a truncation.

    Its params are the suite's: sizes and `max_steps` are static fields, and a rule set of the XLand environments is
    arrays, so that each of many environments can have its own.
    """

    def __init__(self, env: Any, params: PyTree) -> None:
        """Wraps `env`, a `xminigrid.environment.Environment`, with its params."""
        self.env = env
        self._params = params
        observation = jax.eval_shape(lambda key: env.reset(params, key), jax.random.key(0)).observation
        self._observation_space = box(observation, 0, np.array([NUM_TILES - 1, NUM_COLORS - 1]))
        self._action_space = spaces.Discrete(env.num_actions(params))

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        state = strongly_typed(self.env.reset(params, key))
        return state, timestep(state.observation, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; both flags may be set together."""
        after = with_types_of(self.env.step(params, state, action), state)
        truncated = after.state.step_num >= params.max_steps
        return after, timestep(after.observation, after.reward, after.discount == 0, truncated)

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws the whole grid with the suite's tiles, and what the agent sees of it."""
        return np.asarray(self.env.render(params.replace(render_mode="rgb_array"), state))


def make(name: str, /, **kwargs: Any) -> Environment:
    """Builds an XLand-MiniGrid environment.

    Args:
        name: One of `xminigrid.registered_environments()`.
        **kwargs: For its params (`max_steps`, `view_size`, `ruleset`).
    """
    return XMiniGridEnv(*xminigrid.make(name, **kwargs))
