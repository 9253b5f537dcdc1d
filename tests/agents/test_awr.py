"""AWR: weights, returns and losses of windows by hand, masks, importance weights, and stored memories."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import thorough

from rollax import envs, experiments
from rollax.agents import Rollout, actor_critic, awr
from rollax.envs.spaces import Box, Discrete
from rollax.replay import Sample

LOG_2 = float(np.log(2.0))
SPACE = Box(-9, 9, (1,))


def linear(**changes: Any) -> tuple[actor_critic.Parts, Any]:
    """An agent with equal probabilities for two actions, and V(s) = 2 s."""
    settings = {"hidden_sizes": (), "discount": 0.5, "gae_lambda": 1.0, "normalise_advantage": False}
    config = awr.Config(**{**settings, **changes})
    parts = awr.make_parts(SPACE, Discrete(2), config)
    state = awr.make(SPACE, Discrete(2), config).init(jax.random.key(0))
    policy = {"params": {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}}
    value = {"params": {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.zeros(1)}}
    return parts, dataclasses.replace(state, params=dataclasses.replace(state.params, policy=policy, value=value))


def windows(mask: Any = (True, True, True), weight: float = 1.0) -> Sample:
    """Two equal windows: a step within the episode, one that terminates, and one of the next episode."""

    def column(row: Any) -> jax.Array:
        return jnp.stack([jnp.asarray(row)] * 2, axis=1)

    action = column(jnp.array([0, 1, 1], jnp.int32))
    experience = Rollout(
        observation=column([1.0, 2.0, -1.0])[..., None],  # V = 2, 4, -2
        action=action,
        reward=column([1.0, 2.0, 3.0]),
        terminated=column([False, True, False]),
        truncated=column([False, False, False]),
        is_first=column([True, False, True]),
        final_observation=column([2.0, 3.0, 4.0])[..., None],  # V = 4, 6, 8
        extras={"sample": action, "memory": ((), ())},
    )
    return Sample(experience, jnp.zeros(2, jnp.int32), jnp.full(2, weight), column(jnp.asarray(mask)))


def loss_of(parts: Any, state: Any, sample: Sample) -> tuple[Any, Any, Any]:
    def loss(params: Any) -> Any:
        rows = sample.experience
        return awr.loss(parts, sample.mask, sample.weights, params, state, rows, rows.reward[..., None])

    (total, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(state.params)
    return total, metrics, gradient


@pytest.mark.parametrize("mask", [(True, True, True), (True, True, False)], ids=["all", "until the end"])
def test_losses_by_hand(mask: Any) -> None:
    # Returns are 2, 2 and 3 + .5 * 8 = 7; advantages 0, -2 and 9, of which exp(9 / 2) is above the limit.
    parts, state = linear(temperature=2.0, weight_limit=20.0)
    total, metrics, gradient = loss_of(parts, state, windows(mask))
    counts = np.array(mask)
    weights = np.array([1.0, np.exp(-1.0), 20.0])[counts]
    np.testing.assert_allclose(metrics["policy_loss"], LOG_2 * weights.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], np.array([0.0, 2.0, 40.5])[counts].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["weight"], weights.mean(), rtol=1e-5)
    np.testing.assert_allclose(total, metrics["policy_loss"] + 0.5 * metrics["value_loss"], rtol=1e-5)
    slope = -np.mean(weights * np.array([-0.5, 0.5, 0.5])[counts])
    np.testing.assert_allclose(gradient.policy["params"]["bias"], [-slope, slope], rtol=1e-5)


def test_advantages_are_standardised_over_the_rows_that_count() -> None:
    parts, state = linear(normalise_advantage=True)
    _, metrics, _ = loss_of(parts, state, windows((True, True, False)))
    np.testing.assert_allclose(metrics["weight"], (np.exp(1.0) + np.exp(-1.0)) / 2, rtol=1e-5)  # of 0 and -2: 1 and -1


def test_importance_weights_scale_the_losses() -> None:
    parts, state = linear()
    once, twice = (loss_of(parts, state, windows(weight=weight))[0] for weight in (1.0, 2.0))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-6)
    nothing = loss_of(parts, state, windows(mask=(False, False, False)))
    assert nothing[0] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nothing[2]))


def test_an_update_takes_numpy_arrays() -> None:
    parts, state = linear()
    agent = awr.make(SPACE, Discrete(2), parts.config)
    sample = windows()
    ours, _ = jax.jit(agent.update)(state, sample, jax.random.key(0))
    theirs, report = agent.update(state, jax.tree.map(np.asarray, sample), jax.random.key(0))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), ours.params, theirs.params)
    assert report.priorities is None
    assert agent.consumes == "sequences"


def test_windows_start_from_the_memory_that_acted() -> None:
    config = awr.Config(memory="gru", memory_size=4, hidden_sizes=(4,))
    agent, parts = awr.make(SPACE, Discrete(2), config), awr.make_parts(SPACE, Discrete(2), config)
    state, memory = agent.init(jax.random.key(0)), agent.init_memory(2)
    act, timestep = jax.jit(agent.act), jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), envs.timestep(jnp.ones(1)))
    rows, features = [], []
    for step in range(4):
        seen = dataclasses.replace(timestep, is_first=jnp.full(2, step == 0))
        before = memory.torsos[0]
        memory, decision = act(state, memory, seen, jax.random.key(step))
        features.append(parts.torso.step(state.params.torso, before, seen.observation, seen.is_first)[1])
        rows.append(Rollout.row(seen, decision, timestep))
    rollout = Rollout.stack(rows[2:])
    assert np.any(rollout.extras["memory"][0][1][0] != 0)
    stored = jax.tree.map(lambda leaf: leaf[0], rollout.extras["memory"])
    unrolled, _, _ = parts.forward(state.params, stored, rollout.observation, rollout.is_first)
    np.testing.assert_allclose(unrolled, jnp.stack(features[2:]), atol=1e-6)


@pytest.mark.parametrize("memory", ["none", *thorough("gru")])
def test_the_loop_trains_it_in_both_storages_alike(memory: str) -> None:
    def trained(storage: str) -> Any:
        config = experiments.ExperimentConfig(
            env=experiments.EnvConfig("CartPole-v1"),
            train=experiments.TrainConfig("awr", total_env_steps=512, num_envs=4, num_steps=8),
            agent=awr.Config(memory=memory, memory_size=4, hidden_sizes=(8,), bonus="rnd"),
            replay=experiments.ReplayConfig(kind="sequence", capacity=256, batch_size=8, length=4, storage=storage),
        )
        return jax.jit(experiments.make_train(config))(jax.random.key(0))[0].agent

    states = [trained(storage) for storage in ("array", "ref")]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert states[0].updates > 0
