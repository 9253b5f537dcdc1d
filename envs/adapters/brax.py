"""Adapter to brax 0.14 (https://github.com/google/brax): its locomotion and control tasks."""

from __future__ import annotations

from typing import Any

import jax
from brax import envs as brax_envs

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box, limited
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of
from rollax.envs.drawing_solids import solids


class BraxEnv:
    """One brax environment, without brax's wrappers: no automatic reset and no time limit of its own.

    MuJoCo Playground's environments have the same methods and fields. Observations are unbounded, actions lie between
    -1 and 1 by the convention of both.
    """

    default_params: PyTree = ()

    def __init__(self, env: Any) -> None:
        """Wraps `env`, a `brax.envs.Env` or a `mujoco_playground.MjxEnv`."""
        self.env = env
        self._observation_space = jax.tree.map(box, jax.eval_shape(env.reset, jax.random.key(0)).obs)
        self._action_space = spaces.Box(-1.0, 1.0, (env.action_size,))

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        state = strongly_typed(self.env.reset(key))
        return state, timestep(state.obs, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; brax's `done` is the task's own end."""
        after = with_types_of(self.env.step(state, action), state)
        return after, timestep(after.obs, after.reward, after.done > 0)

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws the bodies of the model.

        Raises:
            InputError: It has none (`fast`).
        """
        if hasattr(state, "data"):  # MuJoCo Playground's
            return solids(self.env.mj_model, state.data.qpos, (state.data.mocap_pos, state.data.mocap_quat))
        model = getattr(getattr(self.env, "sys", None), "mj_model", None)
        if model is None:
            raise drawing.cannot_draw(type(self.env).__name__)
        return solids(model, state.pipeline_state.q)


def make(name: str, /, *, max_steps_in_episode: int | None = 1_000, **kwargs: Any) -> Environment:
    """Builds a brax environment.

    Args:
        name: A name of brax's registry, without `swimmer`.
        max_steps_in_episode: Steps after which an episode is truncated, brax's own default; None: never.
        **kwargs: For the environment's constructor (`backend`, `n_frames`).

    Raises:
        InputError: The time limit is no positive whole number.
    """
    return limited(BraxEnv(brax_envs.get_environment(name, **kwargs)), max_steps_in_episode)
