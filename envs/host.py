"""Environments that the host steps: a Gymnasium vector environment behind the time steps of this package.

EnvPool's environments of type "gymnasium" are such vector environments too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from rollax.envs import spaces
from rollax.envs.base import EpisodeMetrics, PyTree, TimeStep
from rollax.errors import InputError

_REQUIRED = ("reset", "step", "num_envs", "single_observation_space", "single_action_space", "metadata")


class HostVector:
    """N environments that a Gymnasium vector environment steps, as time steps with NumPy leaves `[N, ...]`.

    All modes of automatic reset tell the same story of each environment. Where a vector environment resets in the same
    step, or is reset by hand through a mask (mode DISABLED), a time step is what `AutoReset` makes of it. Where it
    resets in its next step, whose action it ignores, an environment that has ended first waits (`waiting`): its time
    step has `observation` equal to `final_observation`, and `is_first` is not set. The next one is that of the end
    again, now with `observation` and `is_first` of the new episode, and no action led to it.

    Attributes:
        vector: The vector environment.
        num_envs: N.
    """

    def __init__(self, vector: Any, autoreset_mode: str | None = None) -> None:
        """Wraps a vector environment; nothing is reset yet.

        Args:
            vector: A `gymnasium.vector.VectorEnv`.
            autoreset_mode: "NextStep", "SameStep" or "Disabled"; None takes what its metadata say.

        Raises:
            InputError: It is no vector environment, it does not say how it resets, or a space has no counterpart.
        """
        missing = [name for name in _REQUIRED if not hasattr(vector, name)]
        if missing:
            raise InputError(
                f"a {type(vector).__name__} is no vector environment: it lacks {', '.join(missing)}; make one with "
                "gymnasium.make_vec."
            )
        self.vector = vector
        self.num_envs = int(vector.num_envs)
        self._mode = _mode(vector, autoreset_mode)
        self._observation_space = _convert(vector.single_observation_space, "observation space")
        self._action_space = _convert(vector.single_action_space, "action space")
        if not isinstance(self._action_space, spaces.Space):
            raise InputError(
                f"the action space {vector.single_action_space} has parts: choose an environment whose actions are one "
                "Discrete, MultiDiscrete, MultiBinary or Box."
            )

    def observation_space(self) -> PyTree:
        """Returns the space of one environment's observations, a PyTree of spaces."""
        return self._observation_space

    def action_space(self) -> PyTree:
        """Returns the space of one environment's actions."""
        return self._action_space

    def reset(self, seed: int | None = None) -> TimeStep:
        """Starts N episodes.

        Args:
            seed: Given to the vector environment. EnvPool's are seeded when they are made, and warn.
        """
        given, _ = self.vector.reset(seed=seed)
        observation = self._observation(given)
        none, zeros = _copy([False] * self.num_envs), _copy([0] * self.num_envs, np.float32)
        metrics = EpisodeMetrics(zeros, zeros.astype(np.int32), none)
        self._return = np.zeros(self.num_envs)  # of the episode so far
        self._length = np.zeros(self.num_envs, np.int32)
        self._last = TimeStep(observation, zeros, none, none, ~none, observation, None, None, metrics)
        return self._last

    def step(self, action: Any) -> TimeStep:
        """Takes one action in each environment that does not wait.

        Args:
            action: `[N, *action_shape]`; those of waiting environments are ignored.

        Raises:
            InputError: The vector environment resets in the same step and does not tell the last observation.
        """
        before = self._last
        action = np.asarray(action, self.vector.single_action_space.dtype)
        given, reward, terminated, truncated, info = self.vector.step(action)
        observation = final_observation = self._observation(given)
        # Copies, as the vector environment may write into its own; Any, as they are no arrays of JAX.
        reward, terminated, truncated = _copy(reward, np.float32), _copy(terminated), _copy(truncated)
        ended = terminated | truncated
        is_first = np.zeros_like(ended)
        if ended.any() and self._mode is AutoresetMode.SAME_STEP:
            final_observation, is_first = self._final_observation(observation, ended, info), ended
        if ended.any() and self._mode is AutoresetMode.DISABLED:
            given, _ = self.vector.reset(options={"reset_mask": ended.copy()})
            observation, is_first = _select(ended, self._observation(given), observation), ended
        self._return = np.where(before.is_first, 0.0, self._return) + reward
        self._length = np.where(before.is_first, 0, self._length) + 1
        metrics = EpisodeMetrics(
            episode_return=_copy(np.where(ended, self._return, 0.0), np.float32),
            episode_length=_copy(np.where(ended, self._length, 0), np.int32),
            valid=ended,
        )
        after = TimeStep(observation, reward, terminated, truncated, is_first, final_observation, None, None, metrics)
        waited = waiting(before)
        if waited.any():
            after = _select(waited, dataclasses.replace(before, observation=observation, is_first=waited), after)
        self._last = after
        return after

    def _observation(self, observation: Any) -> PyTree:
        """Returns a copy of an observation in the structure and dtypes of the space: the vector may write into its."""

        def convert(space: Any, value: Any) -> Any:
            if isinstance(space, dict):
                return {name: convert(child, value[name]) for name, child in space.items()}
            if isinstance(space, tuple):
                return tuple(convert(child, part) for child, part in zip(space, value, strict=True))
            return _copy(value, space.dtype)

        return convert(self._observation_space, observation)

    def _final_observation(self, observation: PyTree, ended: np.ndarray, info: Mapping[str, Any]) -> PyTree:
        """Returns the observations before the resets of this step."""
        if "final_obs" not in info:
            raise InputError(
                "a vector environment in mode SameStep ended an episode and gave no info['final_obs'], its last "
                "observation: choose autoreset_mode='NextStep'."
            )
        final = observation
        for env in np.flatnonzero(ended):
            one = self._observation(info["final_obs"][env])
            final = _select(np.arange(self.num_envs) == env, jax.tree.map(lambda leaf: leaf[None], one), final)
        return final


def waiting(timestep: TimeStep) -> Any:
    """Returns which environments have ended and are not reset yet, bool `[N]`: they ignore the next action."""
    return timestep.ended & ~timestep.is_first


def _copy(value: Any, dtype: Any = np.bool_) -> Any:
    return np.array(value, dtype)


def _mode(vector: Any, given: str | None) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode") if given is None else given
    modes = ", ".join(repr(mode.value) for mode in AutoresetMode)
    if mode is None:
        raise InputError(
            f"a {type(vector).__name__} does not say when it resets (metadata['autoreset_mode']): give HostVector the "
            f"autoreset_mode, one of {modes}."
        )
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise InputError(f"autoreset_mode = {mode!r} is unknown: choose one of {modes}.") from error


def _convert(space: Any, name: str) -> PyTree:
    """Returns our counterpart of a Gymnasium space, in the dtypes that JAX computes in."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _convert(child, name) for key, child in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_convert(child, name) for child in space.spaces)
    if np.any(getattr(space, "start", 0)):
        raise InputError(f"the {name} {space} does not start at 0: shift it with a wrapper of Gymnasium.")
    if isinstance(space, gymnasium.spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.MultiDiscrete | gymnasium.spaces.MultiBinary) and len(space.shape) == 1:
        return spaces.MultiDiscrete(tuple(getattr(space, "nvec", [2] * space.shape[0])))
    if isinstance(space, gymnasium.spaces.Box):
        return spaces.Box(space.low, space.high, space.shape, jax.dtypes.canonicalize_dtype(space.dtype))
    raise InputError(
        f"the {name} {space} has no counterpart: use Box, Discrete, MultiDiscrete or MultiBinary with one axis, and "
        "Dict or Tuple of them for observations."
    )


def _select(predicate: Any, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Returns `on_true` where `predicate` `[N]` holds and `on_false` elsewhere; NumPy leaves `[N, ...]`."""

    def choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(predicate.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, on_true, on_false)
