"""What transforms share: their state, the sentences on their arguments, the bounds of actions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep
from rollax.envs.wrappers import WrapperState
from rollax.errors import InputError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformState(WrapperState):
    """The state inside, and what a transform remembers."""

    own: PyTree


def require(condition: bool, field: str, value: Any, remedy: str) -> None:
    """Raises InputError, with one sentence on an argument of a transform, unless `condition` holds."""
    if not condition:
        raise InputError(f"env.transforms: {field} = {value!r} {remedy}.")


def bounded_box(env: Environment, name: str) -> tuple[jax.Array, jax.Array]:
    """Returns the bounds of an environment's actions, float32 `[*action_shape]` each.

    Raises:
        InputError: They are no Box with finite bounds; the sentence names the transform.
    """
    space = env.action_space()
    bounded = isinstance(space, spaces.Box) and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))
    require(bounded, name, space, "needs a Box with finite bounds as its action space")
    return jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)


def with_observation(timestep: TimeStep, observation: PyTree) -> TimeStep:
    """Returns a time step, inside an episode or at its end, that shows another observation."""
    return dataclasses.replace(timestep, observation=observation, final_observation=observation)
