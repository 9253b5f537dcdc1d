"""PPO with running statistics: the ratio of a second rollout, exact counts, rewards by hand, evaluation that reads."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents import flat

from rollax import envs, experiments
from rollax.agents import Decision, Rollout, actor_critic, normalisation, ppo
from rollax.envs.spaces import Box, Discrete
from rollax.experiments import collection

T, N = 16, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "clip": {},
    "squash": {"squash": True},
    "scale": {"squash": True, "state_dependent_scale": True},
    "gSDE": {"exploration_period": 4, "shared_torso": True},
}


@functools.cache
def trainer_of(name: str) -> experiments.Trainer:
    """Two iterations on Pendulum, each with one minibatch: its metrics are those of the policy that acted."""
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig("Pendulum-v1", {"max_steps_in_episode": 12}),
        train=experiments.TrainConfig("ppo", 2 * T * N, N, T, unroll=1),
        agent=ppo.Config(
            learning_rate=0.01,
            hidden_sizes=(8,),
            num_epochs=1,
            num_minibatches=1,
            normalise_observation=True,
            normalise_reward=True,
            **SETTINGS[name],
        ),
        evaluation=experiments.EvaluationConfig(episodes=3, step_cap=12),
        log=experiments.LogConfig(every=T * N),
    )
    return experiments.make_trainer(config)


def start(trainer: experiments.Trainer) -> experiments.TrainState:
    """The state before the first iteration, with a policy far from its start."""
    state = jax.jit(trainer.init)(jax.random.key(0))
    policy = jax.tree.map(lambda leaf: 100.0 * leaf, state.agent.params.policy)
    params = dataclasses.replace(state.agent.params, policy=policy)
    return dataclasses.replace(state, agent=dataclasses.replace(state.agent, params=params))


@dataclasses.dataclass(frozen=True)
class Second:
    """The second iteration's rollout, and the agent that acted in it."""

    parts: actor_critic.Parts
    state: ppo.State
    rollout: Rollout
    log_prob: np.ndarray  # float32 [T, N], computed step by step while acting
    metrics: dict[str, jax.Array]  # [2], of both iterations in the loop


@functools.cache
def second(name: str) -> Second:
    trainer = trainer_of(name)
    agent = trainer.agent
    assert isinstance(agent.update, functools.partial)
    parts = agent.update.args[0]

    def act_with(state: ppo.State, memory: Any, timestep: envs.TimeStep, noise: Any, explore: bool) -> Any:
        memory, decision = agent.act_with(state, memory, timestep, noise, explore=explore)
        features = flat.features(
            parts.torso, state.params.torso, normalisation.normalise(state.observation_statistics, timestep.observation)
        )
        log_prob = parts.policy(state.params, features, None).log_prob(decision.extras["sample"])
        return memory, Decision(decision.action, {**decision.extras, "acted": log_prob})

    @jax.jit
    def collect(state: experiments.TrainState) -> Rollout:
        _, rollout, _ = collection.collect(
            dataclasses.replace(agent, act_with=act_with),
            trainer.env,
            state.agent,
            state.memory,
            state.env,
            state.env_params,
            state.timestep,
            jax.random.key(1),
            T,
        )
        return rollout

    iteration = jax.jit(trainer.iteration)
    state, first = iteration(start(trainer))
    _, metrics = iteration(state)
    rollout = collect(state)
    metrics = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, metrics)
    return Second(parts, state.agent, rollout, np.asarray(rollout.extras["acted"]), metrics)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_first_ratio_is_one(name: str) -> None:
    parts, state, rollout = second(name).parts, second(name).state, second(name).rollout
    acted = second(name).log_prob.reshape(-1)
    assert acted.std() > 0.1
    assert np.abs(state.observation_statistics.mean).max() > 0.05
    assert float(normalisation.standard_deviation(state.return_statistics)) > 1.5
    if name == "clip":
        assert (np.abs(rollout.action) == 2.0).any()  # clipped: log-probs are of the sample
    indices = np.random.default_rng(0).permutation(T * N)[: T * N // 4]

    @jax.jit
    def log_probs(state: ppo.State, rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array]:
        batch = flat.prepare(parts, state, rollout)
        minibatch = jax.tree.map(lambda leaf: leaf[indices], batch)
        features = flat.features(parts.torso, state.params.torso, minibatch.observation)
        policy = parts.policy(state.params, features, minibatch.action_mask)
        return batch.log_prob, minibatch.log_prob, policy.log_prob(minibatch.sample)

    prepared, old, new = log_probs(state, rollout)
    assert np.abs(np.exp(acted - prepared) - 1).max() <= 1e-5
    assert np.abs(np.exp(new - old) - 1).max() <= 1e-5

    # With the statistics after the rollout it would be another policy.
    later, _, _ = log_probs(actor_critic.observe(state, rollout), rollout)
    assert np.abs(np.exp(acted - later) - 1).max() > 1e-3


@pytest.mark.parametrize("name", SETTINGS)
def test_the_loop_learns_with_the_statistics_that_acted(name: str) -> None:
    metrics = second(name).metrics
    np.testing.assert_array_equal(metrics["clip_fraction"], np.zeros(2))
    np.testing.assert_allclose(metrics["approximate_kl"], np.zeros(2), atol=1e-6)


# Statistics of observations.


def test_observe_counts_every_sample_once() -> None:
    state, rollout = second("clip").state, second("clip").rollout
    for transform in (jax.jit, lambda f: f):
        after = transform(actor_critic.observe)(state, rollout)
        assert float(state.observation_statistics.count) == float(state.return_statistics.count) == T * N
        assert float(after.observation_statistics.count) == float(after.return_statistics.count) == 2 * T * N
        observation = np.asarray(rollout.observation, np.float64).reshape(T * N, 3)
        mean = (np.asarray(state.observation_statistics.mean) + observation.mean(axis=0)) / 2
        np.testing.assert_allclose(after.observation_statistics.mean, mean, atol=1e-5)
        before = np.asarray(state.observation_statistics.squared_deviation)
        spread = np.square(np.asarray(state.observation_statistics.mean) - mean) * T * N + before
        spread += np.square(observation - mean).sum(axis=0)
        np.testing.assert_allclose(after.observation_statistics.squared_deviation, spread, rtol=1e-4)
        assert after.env_steps == 2 * T * N


def test_an_update_leaves_the_statistics_and_observe_the_rest() -> None:
    parts, state, rollout = second("clip").parts, second("clip").state, second("clip").rollout
    after, _ = jax.jit(functools.partial(ppo.update, parts))(state, rollout, jax.random.key(0))
    seen = jax.jit(actor_critic.observe)(after, rollout)
    for name in ("observation_statistics", "return_statistics"):
        for old, new in zip(*map(jax.tree.leaves, (getattr(state, name), getattr(after, name))), strict=True):
            np.testing.assert_array_equal(old, new)
    for old, new in zip(*map(jax.tree.leaves, (after.params, seen.params)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_networks_see_normalised_observations() -> None:
    parts, state, rollout = second("clip").parts, second("clip").state, second("clip").rollout
    statistics = state.observation_statistics
    deviation = np.sqrt(np.asarray(statistics.squared_deviation) / (T * N))
    batch = jax.jit(functools.partial(flat.prepare, parts))(state, rollout)
    expected = (np.asarray(rollout.observation) - np.asarray(statistics.mean)) / deviation
    np.testing.assert_allclose(batch.observation, expected.reshape(T * N, 3), atol=1e-4)


def test_evaluation_only_reads_the_state() -> None:
    trainer, state = trainer_of("clip"), second("clip").state
    evaluate = jax.jit(experiments.make_evaluate(trainer.config), static_argnums=2)
    before = jax.tree.map(np.array, state)
    for explore in (False, True):
        first, again = (evaluate(state, jax.random.key(0), explore) for _ in range(2))
        np.testing.assert_array_equal(first.episode_return, again.episode_return)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
            assert old.tobytes() == np.asarray(new).tobytes()
    # And it does use the statistics.
    moved = dataclasses.replace(state.observation_statistics, mean=state.observation_statistics.mean + 1.0)
    elsewhere = evaluate(dataclasses.replace(state, observation_statistics=moved), jax.random.key(0), False)
    greedy = evaluate(state, jax.random.key(0), False)
    assert (np.asarray(elsewhere.episode_return) != np.asarray(greedy.episode_return)).all()


# Statistics of rewards.


@pytest.mark.parametrize("jitted", [False, True])
def test_discounted_sums_by_hand(jitted: bool) -> None:
    config = ppo.Config(hidden_sizes=(), discount=0.9, normalise_reward=True)
    agent = ppo.make(Box(-1, 1, (1,)), Discrete(2), config)
    act, observe = (jax.jit(agent.act), jax.jit(agent.observe)) if jitted else (agent.act, agent.observe)
    state, memory = agent.init(jax.random.key(0)), agent.init_memory(2)

    def timestep(reward: float, ended: list[bool], is_first: list[bool]) -> envs.TimeStep:
        made = envs.timestep(jnp.zeros((2, 1)), jnp.full(2, reward), jnp.array(ended), jnp.zeros(2, jnp.bool_))
        return dataclasses.replace(made, is_first=jnp.array(is_first))

    # Every reward is 1; the first environment's episode ends with its third step, the second's never.
    before, rollouts = timestep(0.0, [False, False], [True, True]), []
    for ends in ([False, False, True, False], [False, False]):
        rows = []
        for end in ends:
            memory, decision = act(state, memory, before, jax.random.key(0))
            after = timestep(1.0, [end, False], [end, False])
            rows.append(Rollout.row(before, decision, after))
            before = after
        rollouts.append(Rollout.stack(rows))

    def sums(rollout: Rollout) -> np.ndarray:
        return np.asarray(rollout.reward + 0.9 * rollout.extras["discounted_sum"])

    np.testing.assert_allclose(sums(rollouts[0]).T, [[1, 1.9, 2.71, 1], [1, 1.9, 2.71, 3.439]], rtol=1e-6)
    np.testing.assert_allclose(sums(rollouts[1]).T, [[1.9, 2.71], [4.0951, 4.68559]], rtol=1e-6)
    for rollout in rollouts:
        state = observe(state, rollout)
    everything = np.array([1, 1.9, 2.71, 1, 1, 1.9, 2.71, 3.439, 1.9, 2.71, 4.0951, 4.68559])
    assert float(state.return_statistics.count) == 12
    np.testing.assert_allclose(state.return_statistics.mean, everything.mean(), rtol=1e-5)
    np.testing.assert_allclose(normalisation.standard_deviation(state.return_statistics), everything.std(), rtol=1e-5)


@pytest.mark.parametrize("jitted", [False, True])
def test_rewards_are_scaled_and_clipped_but_not_shifted(jitted: bool) -> None:
    config = ppo.Config(hidden_sizes=(), normalise_reward=True, gae_lambda=0.0, normalise_advantage="none")
    parts = ppo.make_parts(Box(-1, 1, (1,)), Discrete(2), config)
    state = ppo.init(parts, jax.random.key(0))
    nothing = jax.tree.map(jnp.zeros_like, state.params)  # values 0: with lambda 0 the advantage is the reward
    statistics = normalisation.Statistics(jnp.float32(4), jnp.float32(5), jnp.float32(16))  # standard deviation 2
    state = dataclasses.replace(state, params=nothing, return_statistics=statistics)
    rewards = jnp.array([[0.0], [2.0], [-4.0], [100.0], [-100.0]])
    flags, rows = jnp.zeros((5, 1), jnp.bool_), jnp.zeros((5, 1, 1))
    extras = {"sample": jnp.zeros((5, 1), jnp.int32), "discounted_sum": jnp.zeros((5, 1))}
    rollout = Rollout(rows, extras["sample"], rewards, flags, flags, flags, rows, None, None, extras)
    prepare = functools.partial(flat.prepare, parts)
    batch = (jax.jit(prepare) if jitted else prepare)(state, rollout)
    np.testing.assert_allclose(batch.advantage, [0, 1, -2, 10, -10], rtol=1e-6)
    np.testing.assert_allclose(batch.target[..., 0], [0, 1, -2, 10, -10], rtol=1e-6)
    fresh = dataclasses.replace(state, return_statistics=normalisation.init(jnp.zeros(())))
    np.testing.assert_allclose(prepare(fresh, rollout).advantage, [0, 2, -4, 10, -10], rtol=1e-6)


def test_without_it_there_is_nothing_to_carry() -> None:
    agent = ppo.make(Box(-1, 1, (1,)), Discrete(2), ppo.Config(hidden_sizes=()))
    state, memory = agent.init(jax.random.key(0)), agent.init_memory(2)
    assert state.observation_statistics is None
    assert state.return_statistics is None
    assert jax.tree.leaves(memory) == []
    _, decision = agent.act(
        state, memory, envs.timestep(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(2, bool)), jax.random.key(0)
    )
    assert set(decision.extras) == {"sample"}
