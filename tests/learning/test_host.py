"""PPO learns in an environment that the host steps."""

import gymnasium
import jax
import numpy as np
import pytest

from rollax import experiments
from rollax.envs import HostVector

pytestmark = pytest.mark.learning


def test_cartpole() -> None:
    config = experiments.load("ppo_cartpole", ["train.num_steps=32", "train.total_env_steps=150_000"])
    train = experiments.make_host_train(config, HostVector(gymnasium.make_vec("CartPole-v1", num_envs=16)))
    evaluate = experiments.make_host_evaluate(config, HostVector(gymnasium.make_vec("CartPole-v1", num_envs=32)))
    result = train(jax.random.key(0))
    evaluation = evaluate(result.agent, jax.random.key(1))
    assert np.all(evaluation.finished)
    assert np.mean(evaluation.episode_return) >= 450.0
    assert not bool(result.failed.flag)
