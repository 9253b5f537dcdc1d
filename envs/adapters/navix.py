"""Adapter to navix 0.7 and 4 (https://github.com/epignatelli/navix): MiniGrid's grid worlds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import navix
import numpy as np
from navix.entities import EntityIds

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of


class NavixEnv:
    """One navix environment, without navix's automatic reset. Its own time limit, `max_steps`, is a truncation."""

    default_params: PyTree = ()

    def __init__(self, env: Any) -> None:
        """Wraps `env`, a `navix.Environment`."""
        self.env = env
        observation = jax.eval_shape(env.reset, jax.random.key(0)).observation
        declared = env.observation_space
        # navix 0.7 declares less than the largest number of an entity, which is the player's.
        high = max(int(declared.maximum), int(EntityIds.PLAYER))
        self._observation_space = box(observation, declared.minimum, high)
        self._action_space = spaces.Discrete(int(env.action_space.n))

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        state = strongly_typed(self.env.reset(key))
        return state, timestep(state.observation, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; both flags may be set together."""
        # Not `step`, which computes a reset beside each step, and after an end returns it in place of a step.
        after = with_types_of(self.env._step(state, action), state)
        truncated = after.t >= self.env.max_steps
        return after, timestep(after.observation, after.reward, after.is_termination(), truncated)

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws the whole grid with the suite's sprites."""
        return drawing.enlarged(np.asarray(navix.observations.rgb(jax.tree.map(jnp.asarray, state.state))))


def make(name: str, /, **kwargs: Any) -> Environment:
    """Builds a navix environment.

    Args:
        name: A name of navix's registry.
        **kwargs: For the environment's constructor (`max_steps`, `observation_fn`).
    """
    return NavixEnv(navix.make(name, **kwargs))
