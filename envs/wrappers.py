"""Wrappers that keep the environment protocol: automatic resets, episode statistics, many environments at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rollax.envs.base import Environment, EpisodeMetrics, PyTree, TimeStep, select, strongly_typed, with_types_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WrapperState:
    """The state of a wrapper that has one of its own."""

    env: PyTree  # the state inside


class Wrapper:
    """An environment that passes everything on to the one inside; subclasses override what they change."""

    def __init__(self, env: Environment) -> None:
        self.env = env

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        return self.env.reset(key, params)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        return self.env.step(key, state, action, params, *args)

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self.env.observation_space(params)

    def action_space(self, params: PyTree = None) -> PyTree:
        return self.env.action_space(params)

    def carry_over(self, ended: PyTree, fresh: PyTree) -> PyTree:
        """Returns the state that an episode starts with, from the last one's final state and that of a reset.

        An environment may have this method, for what outlives its episodes, such as the level of a curriculum; one
        that has none starts from the fresh state. It works on one environment, inside the step that ends an episode,
        and the first observation stays that of the reset.
        """
        inner: Any = getattr(self.env, "carry_over", None)
        if inner is None:
            return fresh
        if isinstance(fresh, WrapperState):
            return dataclasses.replace(fresh, env=inner(ended.env, fresh.env))
        return inner(ended, fresh)


class AutoReset(Wrapper):
    """Starts a new episode in the step that ends one.

    `observation`, `action_mask` and `is_first` then belong to the new episode; `reward`, both flags, `metrics` and
    `final_observation` to the one that ended. State and time step keep their dtypes from the first reset on, so both
    can be the carry of a scan.
    """

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts an episode; `is_first` is set."""
        state, timestep = strongly_typed(self.env.reset(key, params))
        return state, dataclasses.replace(timestep, is_first=jnp.ones_like(timestep.terminated))

    def step(
        self,
        key: jax.Array,
        state: PyTree,
        action: jax.Array,
        params: PyTree,
        reset: tuple[PyTree, TimeStep] | None = None,
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action and, where that ends the episode, starts the next.

        Args:
            key: The randomness of the step, and of the reset unless that is given.
            state: The environment's state.
            action: The action.
            params: The environment's params.
            reset: What `self.reset` returned for a key of its own. Resets drawn in one batch before a loop are cheaper
                than one drawn in every step.
        """
        if reset is None:
            key, key_reset = jax.random.split(key)
            reset = self.reset(key_reset, params)
        reset_state, reset_timestep = reset
        next_state, timestep = self.env.step(key, state, action, params)
        next_state = with_types_of(next_state, state)
        ended = timestep.ended
        reset_state = with_types_of(self.carry_over(next_state, reset_state), reset_state)
        return select(ended, reset_state, next_state), dataclasses.replace(
            timestep,
            observation=select(
                ended, reset_timestep.observation, with_types_of(timestep.observation, reset_timestep.observation)
            ),
            is_first=ended,
            final_observation=with_types_of(timestep.observation, reset_timestep.observation),
            action_mask=select(ended, reset_timestep.action_mask, timestep.action_mask),
            final_action_mask=timestep.action_mask,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeStatisticsState(WrapperState):
    """The state inside, and the running totals of the current episode."""

    episode_return: jax.Array  # float32 [...], so far, undiscounted
    episode_length: jax.Array  # int32 [...], so far, environment steps


class EpisodeStatistics(Wrapper):
    """Fills `metrics` with the return and length of each finished episode; may stand inside or outside `AutoReset`."""

    def reset(self, key: jax.Array, params: PyTree) -> tuple[EpisodeStatisticsState, TimeStep]:
        """Starts an episode with its totals at zero."""
        state, timestep = self.env.reset(key, params)
        zeros = jnp.zeros(timestep.terminated.shape)
        return EpisodeStatisticsState(state, zeros, zeros.astype(jnp.int32)), timestep

    def step(
        self, key: jax.Array, state: EpisodeStatisticsState, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[EpisodeStatisticsState, TimeStep]:
        """Takes one action; `metrics.valid` is set where it ended an episode."""
        env_state, timestep = self.env.step(key, state.env, action, params, *args)
        episode_return = state.episode_return + timestep.reward
        episode_length = state.episode_length + 1
        ended = timestep.ended
        next_state = EpisodeStatisticsState(
            env=env_state,
            episode_return=jnp.where(ended, 0.0, episode_return),
            episode_length=jnp.where(ended, 0, episode_length),
        )
        metrics = EpisodeMetrics(
            episode_return=jnp.where(ended, episode_return, 0.0),
            episode_length=jnp.where(ended, episode_length, 0),
            valid=ended,
        )
        return next_state, dataclasses.replace(timestep, metrics=metrics)


class Vectorise(Wrapper):
    """`num_envs` environments side by side: the same protocol, with a leading axis `[N]` on every leaf.

    `key` is one key, which is split N ways, or N keys. With `params_axis=0` each environment has its own params.
    """

    def __init__(self, env: Environment, num_envs: int, params_axis: int | None = None) -> None:
        super().__init__(env)
        self.num_envs = num_envs
        self.params_axis = params_axis

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts N episodes."""
        return jax.vmap(self.env.reset, in_axes=(0, self.params_axis))(self._keys(key), params)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree, *args: Any
    ) -> tuple[PyTree, TimeStep]:
        """Takes one action in each environment; a ready-made reset has leaves `[N, ...]` too."""
        in_axes = (0, 0, 0, self.params_axis, *(0 for _ in args))
        return jax.vmap(self.env.step, in_axes=in_axes)(self._keys(key), state, action, params, *args)

    def _keys(self, key: jax.Array) -> jax.Array:
        return key if key.ndim == 1 else jax.random.split(key, self.num_envs)
