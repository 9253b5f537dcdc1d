"""What a rollout says: true last observations, first steps, memories and masks, without a seam between iterations."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import BEACON, COUNTER, make_config

from rollax import experiments
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of
from rollax.envs import TimeStep, spaces

STEPS, ENVS, ITERATIONS = 3, 2, 4


@dataclasses.dataclass(frozen=True)
class SpyConfig:
    """Nothing to tell it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SpyState:
    """Nothing to learn."""

    hyperparameters: Hyperparameters
    env_steps: jax.Array  # int32 []


def make_spy(observation_space: Any, action_space: spaces.Discrete, config: SpyConfig) -> Agent:
    """Returns an agent that counts the steps of each episode in its memory and hands on its rollouts as metrics."""

    def act_with(state: SpyState, memory: Any, timestep: TimeStep, noise: Any, explore: bool = True) -> Any:
        age = jnp.where(timestep.is_first, 0, memory["age"]) + 1
        return {"age": age}, Decision(noise, {"age": age})

    return Agent(
        init=lambda key, hyperparameters=None: SpyState(
            hyperparameters_of(config, hyperparameters), jnp.zeros((), jnp.int32)
        ),
        init_memory=lambda num_envs: {"age": jnp.zeros((num_envs,), jnp.int32)},
        noise=lambda key, num_envs: jax.random.randint(key, (num_envs,), 0, action_space.n),
        act_with=act_with,
        observe=lambda state, rollout: state,
        update=lambda state, rollout, key: (state, Update({"rollout": rollout})),  # type: ignore[dict-item]
        consumes="rollout",
    )


@functools.cache
def spy_on(env: str) -> tuple[Rollout, dict[str, jax.Array]]:
    """Returns the rollouts of a chunk, leaves `[ITERATIONS, STEPS, ENVS, ...]`, and its metrics."""
    config = make_config(make_spy, env, ENVS, STEPS, iterations=ITERATIONS, iterations_per_chunk=ITERATIONS)
    trainer = experiments.make_trainer(config)
    assert trainer.chunk_iterations == ITERATIONS
    _, metrics = jax.jit(trainer.train)(jax.random.key(5))
    metrics = dict(metrics)
    return metrics.pop("rollout"), metrics


def joined(leaf: jax.Array) -> np.ndarray:
    """Returns rows of all iterations in one, `[ITERATIONS * STEPS, ENVS, ...]`."""
    return np.asarray(leaf).reshape(-1, *leaf.shape[2:])


def test_the_last_row_of_an_episode_has_the_true_last_observation() -> None:
    rollout, _ = spy_on(COUNTER)
    time = np.tile(np.arange(ITERATIONS * STEPS)[:, None], ENVS)
    np.testing.assert_array_equal(joined(rollout.observation), time % 4)
    np.testing.assert_array_equal(joined(rollout.final_observation), time % 4 + 1)  # at the fourth step 4, and then 0
    np.testing.assert_array_equal(joined(rollout.terminated), time % 4 == 3)
    np.testing.assert_array_equal(joined(rollout.ended), time % 4 == 3)
    np.testing.assert_array_equal(joined(rollout.is_first), time % 4 == 0)
    assert np.all(joined(rollout.reward) == 1.0)
    assert not np.any(joined(rollout.truncated))
    assert rollout.action_mask is None
    assert rollout.final_action_mask is None


def test_memory_goes_from_rollout_to_rollout_and_starts_anew_with_each_episode() -> None:
    rollout, _ = spy_on(COUNTER)
    age = joined(rollout.extras["age"])
    np.testing.assert_array_equal(age, joined(rollout.observation) + 1)
    np.testing.assert_array_equal(rollout.first_memory["age"][0], np.zeros(ENVS))
    np.testing.assert_array_equal(rollout.first_memory["age"][1:], age[STEPS - 1 : -1 : STEPS])


@pytest.mark.parametrize("env", [COUNTER, BEACON], ids=["counter", "beacon"])
def test_rollouts_join_without_a_seam(env: str) -> None:
    rollout, _ = spy_on(env)
    last = rollout.last
    assert last is not None
    for name in ("observation", "is_first", "action_mask"):
        row, after = getattr(rollout, name), getattr(last, name)
        assert jax.tree.structure(row) == jax.tree.structure(after)
        for leaf, leaf_after in zip(jax.tree.leaves(row), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(leaf[1:, 0], leaf_after[:-1])
    for name in ("reward", "terminated", "truncated", "final_observation", "final_action_mask"):
        row, after = getattr(rollout, name), getattr(last, name)
        for leaf, leaf_after in zip(jax.tree.leaves(row), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(leaf[:, -1], leaf_after)


def test_masks_belong_to_their_observations() -> None:
    rollout, _ = spy_on(BEACON)
    assert np.any(joined(rollout.ended))

    def legal(clock: np.ndarray) -> np.ndarray:
        return np.arange(3) != np.round(clock * 8)[..., None] % 3

    assert rollout.action_mask is not None
    assert rollout.final_action_mask is not None
    np.testing.assert_array_equal(rollout.action_mask, legal(rollout.observation["clock"]))
    np.testing.assert_array_equal(rollout.final_action_mask, legal(rollout.final_observation["clock"]))
    ended = joined(rollout.ended)[:-1]
    for path, leaf in jax.tree_util.tree_leaves_with_path(rollout.final_observation):
        following = joined(dict(jax.tree_util.tree_leaves_with_path(rollout.observation))[path])[1:]
        same = np.all((joined(leaf)[:-1] == following).reshape(*ended.shape, -1), axis=-1)
        np.testing.assert_array_equal(same, ~ended)


def test_metrics_count_finished_episodes() -> None:
    _, metrics = spy_on(COUNTER)
    np.testing.assert_array_equal(metrics["episodes"], [0, ENVS, ENVS, ENVS])
    np.testing.assert_array_equal(metrics["episode_length"], [np.nan, 4.0, 4.0, 4.0])
    np.testing.assert_array_equal(metrics["episode_return"], [np.nan, 4.0, 4.0, 4.0])
