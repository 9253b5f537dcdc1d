"""Resets made before the rollout's loop and resets made in its steps: both random, both at the true ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import envs
from rollax.agents import ppo
from rollax.experiments import collection


@pytest.mark.parametrize("limit", [0, 512], ids=["in step", "ahead"])
def test_both_ways_to_reset(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "RESET_AHEAD_BYTES", limit)
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(envs.make("CartPole-v1", max_steps_in_episode=5))), 3)
    agent = ppo.make(env.observation_space(), env.action_space(), ppo.Config(hidden_sizes=(4,)))
    state, memory = agent.init(jax.random.key(0)), agent.init_memory(3)
    params = env.default_params
    env_state, timestep = env.reset(jax.random.key(1), params)

    def collect(key: jax.Array) -> tuple[collection.Rollout, collection.Episodes]:
        _, rollout, episodes = collection.collect(
            agent, env, state, memory, env_state, params, timestep, key, num_steps=16
        )
        return rollout, episodes

    lowered = jax.jit(collect).lower(jax.random.key(2))
    rollout, episodes = lowered.compile()(jax.random.key(2))
    end_times = np.asarray(rollout.truncated).nonzero()[0]
    np.testing.assert_array_equal(end_times.reshape(3, 3), [[4] * 3, [9] * 3, [14] * 3])
    starts = np.asarray(rollout.observation)[np.asarray(rollout.is_first)][3:]  # the first three were given
    assert len(np.unique(starts, axis=0)) == 9
    assert np.abs(starts).max() <= 0.05
    assert int(episodes.count) == 9
    assert float(episodes.episode_return) == 45.0
    ends = np.asarray(rollout.final_observation)[np.asarray(rollout.truncated)]
    assert not np.isin(ends[:, 0], starts[:, 0]).any()


def test_a_key_in_the_state_has_a_size() -> None:
    tree = {"key": jax.random.split(jax.random.key(0), 4), "x": jnp.zeros((4, 3))}
    assert collection._bytes_per_env(tree, 4) == 12 + 8
