"""Adapter to MuJoCo Playground 0.2 (https://github.com/google-deepmind/mujoco_playground): DeepMind Control tasks."""

from __future__ import annotations

from typing import Any

from mujoco_playground import registry

from rollax.envs.adapters.brax import BraxEnv
from rollax.envs.adapters.common import limited
from rollax.envs.base import Environment


def make(name: str, /, **kwargs: Any) -> Environment:
    """Builds a task of the DeepMind Control suite; it has the methods and fields of a brax environment.

    Args:
        name: A name of `mujoco_playground.dm_control_suite.ALL_ENVS`.
        **kwargs: Entries of the task's config, which they override. After `episode_length` steps, 1,000 by default, an
            episode is truncated.

    Raises:
        InputError: `episode_length` is no positive whole number.
    """
    config = registry.get_default_config(name)
    config.impl = "jax"  # the default needs CUDA, and else compiles for half a minute
    env = registry.load(name, config, kwargs)
    return limited(BraxEnv(env), kwargs.get("episode_length", config.episode_length))
