"""Agents and an environment that know only the public contract learn through the one loop, by legal actions alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import BEACON, Job, only, toys

from rollax import InputError, envs, experiments
from rollax.importing import import_object

LOWEST_LEGAL_RETURN = -10.0
"""Below that of any episode of legal actions; one illegal action costs ten thousand."""


def beacon(**kwargs: Any) -> Any:
    return envs.make(BEACON, **kwargs)


@toys
def test_a_toy_learns_by_legal_actions_alone(job: Job) -> None:
    start = job.start()
    trained, metrics = job.run(start, 200)
    untrained = job.evaluate(start.agent, job.keys, False)
    greedy = job.evaluate(trained.agent, job.keys, False)
    assert np.mean(untrained.episode_return) < 1.0
    assert np.all(np.mean(greedy.episode_return, axis=1) > 2.5)  # every seed; the goal is 2.5 away
    assert np.all(greedy.finished)
    assert np.nanmean(metrics["episode_return"][:, -20:]) > 2.0  # in training, exploration included
    assert np.nansum(metrics["episodes"]) > 100
    for returns in (metrics["episode_return"], untrained.episode_return, greedy.episode_return):
        assert np.nanmin(returns) > LOWEST_LEGAL_RETURN


def test_one_illegal_action_would_show() -> None:
    env = beacon()

    def act_illegally() -> tuple[jax.Array, envs.TimeStep]:
        state, first = env.reset(jax.random.key(0), env.default_params)
        action = jnp.argmin(first.action_mask)
        return env.action_space().contains(action), env.step(jax.random.key(1), state, action, env.default_params)[1]

    exists, timestep = jax.jit(act_illegally)()
    assert exists
    # Even in the mean over as many episodes as an iteration of the toys can hold.
    assert timestep.reward / 64 < LOWEST_LEGAL_RETURN


@only("recurrent")
def test_the_rollout_tells_a_recurrent_agent_all_that_it_acted_from(job: Job) -> None:
    _, metrics = job.run(job.start(), 20)
    assert np.max(metrics["age_error"]) == 0
    assert np.max(metrics["log_prob_error"]) < 1e-6


@only("sequence")
def test_a_window_tells_a_recurrent_agent_all_that_it_acted_from(job: Job) -> None:
    _, metrics = job.run(job.start(), 20)
    assert np.nanmax(metrics["trace_error"]) < 1e-6


def test_episodes_of_the_beacon_terminate_and_are_truncated() -> None:
    env = envs.Vectorise(beacon(limit=6), 64)

    def play(key: jax.Array) -> Any:
        state, timestep = env.reset(key, env.default_params)

        def step(carry: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state, timestep = carry
            key_action, key_step = jax.random.split(key)
            action = jax.random.categorical(key_action, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
            carry = env.step(key_step, state, action, env.default_params)
            return carry, (carry[1].terminated, carry[1].truncated)

        return state, jax.lax.scan(step, (state, timestep), jax.random.split(jax.random.key(1), 6))[1]

    start, (terminated, truncated) = jax.jit(play)(jax.random.key(0))
    assert len(np.unique(start.x)) == 64  # starts are truly random
    assert set(np.unique(start.beacon)) == {-1.0, 1.0}
    assert not np.any(terminated & truncated)
    assert np.any(terminated)
    assert np.any(truncated[5])
    assert not np.any(truncated[:5])


def test_environments_side_by_side_can_have_params_of_their_own() -> None:
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(beacon())), 3, params_axis=0)

    def play(limits: jax.Array) -> jax.Array:
        params = dataclasses.replace(env.default_params, goal=jnp.full(3, 100.0), limit=limits, noise=jnp.zeros(3))

        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, timestep = env.step(key, state, jnp.full(3, 2), params)
            return state, timestep.metrics.episode_length

        state, _ = env.reset(jax.random.key(0), params)
        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 6))[1]

    lengths = jax.jit(play)(jnp.array([1, 2, 3]))
    np.testing.assert_array_equal(lengths, [[1, 0, 0], [1, 2, 0], [1, 0, 3], [1, 2, 0], [1, 0, 0], [1, 2, 3]])


@only("rollout")
def test_a_config_is_checked_by_the_function_beside_make(job: Job) -> None:
    config = job.config
    make = import_object(config.train.agent, "train.agent")
    wrong = dataclasses.replace(config, agent=dataclasses.replace(config.agent, learning_rate=0.0))
    with pytest.raises(InputError, match=r"agent\.learning_rate = 0\.0 must be above 0"):
        experiments.make_trainer(wrong)
    named = dataclasses.replace(wrong, train=dataclasses.replace(wrong.train, agent=make))
    with pytest.raises(InputError, match=r"agent\.learning_rate = 0\.0 must be above 0"):
        experiments.make_trainer(named)
