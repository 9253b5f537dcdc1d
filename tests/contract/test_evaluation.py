"""Evaluation: the first episode of each environment, whatever its length, and the agent is only read."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from tests.contract.jobs import BEACON, COUNTER, ROLLOUT_AGENT, Job, differences, make_config, only

from rollax import InputError, experiments

KEYS = jax.random.split(jax.random.key(1), 16)


def counter_config(step_cap: int) -> experiments.ExperimentConfig:
    evaluation = experiments.EvaluationConfig(episodes=2, step_cap=step_cap)
    return make_config(ROLLOUT_AGENT, COUNTER, 2, 2, env_kwargs={"lengths": (2, 6)}, evaluation=evaluation)


def evaluate_counter(step_cap: int) -> experiments.Evaluation:
    """Evaluates two environments with each of `KEYS`."""
    config = counter_config(step_cap)
    agent_state = experiments.make_trainer(config).agent.init(jax.random.key(0))
    return jax.jit(jax.vmap(experiments.make_evaluate(config), in_axes=(None, 0)))(agent_state, KEYS)


def test_the_mean_is_over_first_episodes() -> None:
    evaluation = evaluate_counter(step_cap=8)
    assert set(np.unique(evaluation.episode_length)) == {2, 6}
    np.testing.assert_array_equal(evaluation.episode_return, evaluation.episode_length)  # not one reward after the end
    assert np.all(evaluation.finished)
    one_of_each = np.sort(evaluation.episode_length, axis=1)[:, 0] < np.sort(evaluation.episode_length, axis=1)[:, 1]
    assert np.any(one_of_each)
    assert np.all(np.mean(evaluation.episode_return, axis=1)[one_of_each] == 4.0)


def test_an_episode_beyond_the_step_cap_is_not_finished() -> None:
    evaluation = evaluate_counter(step_cap=4)
    long = np.asarray(evaluation.episode_length) == 4
    assert np.any(long) and not np.all(long)
    np.testing.assert_array_equal(evaluation.finished, ~long)
    assert np.all(np.asarray(evaluation.episode_length)[~long] == 2)


@only("recurrent")
def test_greedy_evaluation_repeats_itself_and_only_reads_the_agent(job: Job) -> None:
    state, _ = job.run(job.start(), 60)
    before = jax.tree.map(np.array, state.agent)
    first, again = job.evaluate(state.agent, job.keys, False), job.evaluate(state.agent, job.keys, False)
    assert not differences(first, again)
    assert not differences(before, state.agent)
    assert differences(first, job.evaluate(state.agent, job.keys, True))
    # The beacon shows in the first observation only: who does not remember it finds it half of the time.
    assert np.all(np.min(first.episode_return, axis=1) > 2.0)


def test_spaces_other_than_those_of_training_are_refused() -> None:
    config = counter_config(step_cap=8)
    elsewhere = dataclasses.replace(config.evaluation, env=experiments.EnvConfig(BEACON))
    with pytest.raises(InputError, match=r"evaluation\.env"):
        experiments.make_evaluate(dataclasses.replace(config, evaluation=elsewhere))
