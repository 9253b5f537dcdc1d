"""Adapter to jumanji 1.1 (https://github.com/instadeepai/jumanji): its games, packing and routing problems."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import matplotlib.pyplot as plt
import numpy as np
from jumanji import specs

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box, limited
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of

_DOTS_PER_INCH = 32  # of figures that are ten inches wide


class JumanjiEnv:
    """One jumanji environment, without jumanji's automatic reset.

    Observations are the suite's named tuples, their action masks included. Several agents are controlled as one, whose
    reward is the sum of theirs. A mask over whole actions of several parts (the cells of a board) cannot be said part
    by part, so these actions are numbered and the action space is `Discrete`.
    """

    default_params: PyTree = ()

    def __init__(self, env: Any) -> None:
        """Wraps `env`, a `jumanji.Environment`."""
        self.env = env
        observation = jax.eval_shape(env.reset, jax.random.key(0))[1].observation
        self._observation_space = _observation_space(env.observation_spec, observation)
        space = _action_space(env.action_spec)
        self._parts: tuple[int, ...] | None = None  # of an action that is numbered
        mask = getattr(observation, "action_mask", None)
        if mask is not None and isinstance(space, spaces.MultiDiscrete):
            if mask.shape == space.nvec:
                self._parts = space.nvec
                space = spaces.Discrete(math.prod(space.nvec))
            else:  # the mask knows better: MultiCVRP declares one action too many
                space = spaces.MultiDiscrete((mask.shape[1],) * mask.shape[0])
        self._action_space = space

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode."""
        state, first = self.env.reset(key)
        return strongly_typed(state), timestep(
            first.observation, is_first=True, action_mask=_action_mask(first.observation)
        )

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes one action; the end is a truncation where jumanji's discount is not 0."""
        if self._parts is not None:
            action = jnp.stack(jnp.unravel_index(action, self._parts))
        next_state, after = self.env.step(state, action.astype(self.env.action_spec.dtype))
        over = jnp.all(after.discount == 0)
        return with_types_of(next_state, state), timestep(
            after.observation,
            jnp.sum(after.reward),
            after.last() & over,
            after.last() & ~over,
            action_mask=_action_mask(after.observation),
        )

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws the state with the suite's viewer, whose figure becomes the current one of pyplot.

        Raises:
            InputError: The viewer draws outside its frame (MMST).
        """
        with warnings.catch_warnings(), plt.rc_context({"figure.dpi": _DOTS_PER_INCH}):
            warnings.simplefilter("ignore")  # the viewer tries to show the figure, which a canvas of pixels cannot
            try:
                self.env.render(jax.device_get(state))  # ten times as fast as from JAX's arrays
            except AttributeError:  # some viewers need these, and use their `at`
                self.env.render(jax.tree.map(jnp.asarray, state))
        canvas: Any = plt.gcf().canvas
        canvas.draw()
        picture = np.array(canvas.buffer_rgba())[..., :3]
        if (picture == picture[0, 0]).all():
            raise drawing.cannot_draw(type(self.env).__name__)
        return picture


def make(name: str, /, *, max_steps_in_episode: int | None = None, **kwargs: Any) -> Environment:
    """Builds a jumanji environment.

    Args:
        name: An id of `jumanji.registered_environments()`.
        max_steps_in_episode: Steps after which an episode is truncated; None: the environment's `time_limit`, if it has
            one.
        **kwargs: For the environment's constructor.

    Raises:
        InputError: The time limit is no positive whole number.
    """
    env: Any = jumanji.make(name, **kwargs)
    if "time_limit" in inspect.signature(type(env)).parameters:
        max_steps_in_episode = env.time_limit if max_steps_in_episode is None else max_steps_in_episode
        # jumanji ends an episode at its limit as if the task were over, so its own is moved out of reach of ours.
        env = jumanji.make(name, **{**kwargs, "time_limit": max_steps_in_episode + 1})
    return limited(JumanjiEnv(env), max_steps_in_episode)


def _action_mask(observation: PyTree) -> jax.Array | None:
    """Returns the legal actions, bool `[num_actions]`, or `[sum(nvec)]` where an action has parts."""
    mask = getattr(observation, "action_mask", None)
    return None if mask is None else jnp.ravel(mask)


def _action_space(spec: Any) -> spaces.Space:
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values))
    if isinstance(spec, specs.MultiDiscreteArray):
        return spaces.MultiDiscrete(tuple(np.ravel(spec.num_values)))
    if np.issubdtype(spec.dtype, np.integer) and len(spec.shape) == 1 and not np.any(spec.minimum):
        return spaces.MultiDiscrete(tuple(np.broadcast_to(np.asarray(spec.maximum) + 1, spec.shape)))
    return box(spec, spec.minimum, spec.maximum)


def _observation_space(spec: Any, example: PyTree) -> PyTree:
    """Returns the space of observations, in the structure of an example."""
    if isinstance(spec, specs.Array):
        return box(example, getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf))
    return type(example)(
        **{name: _observation_space(child, getattr(example, name)) for name, child in spec._specs.items()}
    )
