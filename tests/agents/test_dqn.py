"""DQN: a whole update by hand, its targets at every kind of end, masks, noise, weights, priorities, storages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import envs, experiments, replay
from rollax.agents import Agent, Rollout, dqn, exploration, hyperparameters_of, transitions
from rollax.agents.action_values import DISTRIBUTIONS
from rollax.envs.spaces import Box, Discrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
KINDS = pytest.mark.parametrize("kind", DISTRIBUTIONS)
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
FLOATS = [field.name for field in dataclasses.fields(dqn.Config) if field.type == "float"]
F, A = 2, 3


def make(num_actions: int = A, **changes: Any) -> tuple[Agent, dqn.Parts, dqn.Config]:
    """An agent whose network is linear unless `changes` says otherwise."""
    settings = {"hidden_sizes": (), "num_atoms": 5, "num_quantiles": 5, "num_taus": 5, "value_max": 5.0, **changes}
    config = dqn.Config(**settings)
    agent = dqn.make(Box(-9, 9, (F,)), Discrete(num_actions), config)
    assert isinstance(agent.update, functools.partial)
    return agent, agent.update.args[0], config


def linear(kernel: Any, bias: Any) -> dqn.Params:
    layer = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    return dqn.Params(torso={}, head={"advantage": (layer,)})


def windows(batch: int = 6, n: int = 1, num_actions: int = A, seed: int = 0, **changes: Any) -> replay.Sample:
    """Random windows that go on, with fields replaced."""
    random = np.random.default_rng(seed)
    never = jnp.zeros((n, batch), jnp.bool_)
    fields = {
        "observation": jnp.asarray(random.normal(size=(n, batch, F)), jnp.float32),
        "action": jnp.asarray(random.integers(0, num_actions, (n, batch)), jnp.int32),
        "reward": jnp.asarray(random.normal(size=(n, batch)), jnp.float32),
        "terminated": never,
        "truncated": never,
        "is_first": never,
        "final_observation": jnp.asarray(random.normal(size=(n, batch, F)), jnp.float32),
        "action_mask": None,
        "final_action_mask": None,
        "extras": {},
    }
    rows = Rollout(**{**fields, **{name: value for name, value in changes.items() if name in fields}})
    return replay.Sample(
        experience=rows,
        indices=jnp.arange(batch, dtype=jnp.int32),
        weights=changes.get("weights", jnp.ones(batch)),
        mask=changes.get("mask", jnp.ones((n, batch), jnp.bool_)),
    )


def with_two_networks(agent: Agent, seed: int = 0) -> dqn.State:
    """A state whose online and target network differ."""
    state, other = (jax.jit(agent.init)(jax.random.key(seed + i)) for i in range(2))
    return dataclasses.replace(state, target_params=other.params)


def tree_equal(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b))


# Updates and targets.


@MAYBE_JIT
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("huber", [False, True])
def test_one_update_by_hand(double: bool, huber: bool, transform: Transform) -> None:
    agent, _, _ = make(
        double=double,
        huber=huber,
        huber_threshold=0.5,
        learning_rate=0.1,
        learning_rate_schedule="linear",
        horizon=8.0,
        adam_epsilon=0.01,
        max_grad_norm=0.05,
        target_rate=0.25,
        discount=0.9,
    )
    random = np.random.default_rng(1)
    online, target = ((random.normal(size=(F, A)), random.normal(size=A)) for _ in range(2))
    state = dataclasses.replace(
        agent.init(jax.random.key(0)), params=linear(*online), target_params=linear(*target), updates=jnp.int32(2)
    )
    flags = jnp.array([[0, 1, 0, 0, 1, 0]], bool)
    weights = random.uniform(0.5, 1.5, 6)
    batch = windows(terminated=flags, truncated=jnp.roll(flags, 1), weights=jnp.asarray(weights, jnp.float32))
    after, update = transform(agent.update)(state, batch, jax.random.key(0))

    rows = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), batch.experience)
    action, b = np.asarray(batch.experience.action[0]), np.arange(6)

    def q(network: Any, observation: np.ndarray) -> np.ndarray:
        return observation @ network[0] + network[1]

    best = np.argmax(q(online if double else target, rows.final_observation), axis=-1)
    goal = rows.reward + 0.9 * (1 - rows.terminated) * q(target, rows.final_observation)[b, best]
    error = goal - q(online, rows.observation)[b, action]
    size = np.abs(error)
    losses = np.where(size <= 0.5, 0.5 * error**2, 0.5 * (size - 0.25)) if huber else 0.5 * error**2
    slope = -(np.clip(error, -0.5, 0.5) if huber else error) * weights / 6
    kernel, bias = np.zeros((F, A)), np.zeros(A)
    for i in range(6):
        kernel[:, action[i]] += slope[i] * rows.observation[i]
        bias[action[i]] += slope[i]
    norm = np.sqrt(np.sum(kernel**2) + np.sum(bias**2))
    assert norm > 0.05
    assert (
        len({*np.argmax(q(online, rows.final_observation), -1) - np.argmax(q(target, rows.final_observation), -1)}) > 1
    )
    for gradient, before, aim, name in ((kernel, online[0], target[0], "kernel"), (bias, online[1], target[1], "bias")):
        clipped = gradient * 0.05 / norm
        expected = before - 0.1 * 0.75 * clipped / (np.abs(clipped) + 0.01)
        np.testing.assert_allclose(after.params.head["advantage"][0][name], expected, atol=1e-5)
        followed = aim + 0.25 * (expected - aim)
        np.testing.assert_allclose(after.target_params.head["advantage"][0][name], followed, atol=1e-5)
    np.testing.assert_allclose(update.priorities, size + 1e-6, rtol=1e-4)
    metrics = {
        "loss": losses.mean(),
        "td_error": size.mean(),
        "q_value": q(online, rows.observation)[b, action].mean(),
        "epsilon": 1.0,
        "gradient_norm": norm,
        "learning_rate": 0.075,
    }
    assert update.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(update.metrics[name], value, rtol=1e-4, err_msg=name)
    assert after.updates == 3
    assert after.env_steps == 0


def target_of(agent: Agent, parts: dqn.Parts, state: dqn.State, batch: replay.Sample) -> dqn.Target:
    def target(state: dqn.State, batch: replay.Sample) -> dqn.Target:
        rows = transitions.read(batch, state.hyperparameters["discount"])
        return dqn.make_target(parts, state, rows, jax.random.key(3))

    return jax.jit(target)(state, batch)


VARIANTS = [
    *({"distribution": kind} for kind in DISTRIBUTIONS),
    {"double": True, "dueling": True},
    {"distribution": "implicit", "double": True, "noisy": True},
    *({"munchausen": True, "distribution": kind} for kind in DISTRIBUTIONS),
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_truncation_bootstraps_from_the_true_successor_and_a_termination_from_nothing(changes: Any) -> None:
    agent, parts, _ = make(discount=0.5, munchausen_scale=0.0, **changes)
    state = with_two_networks(agent)
    # Windows of two steps: the second one ends, the first one ends, both go on.
    ends = jnp.array([[0, 1, 0], [1, 0, 0]], bool)
    reward = jnp.array([[1.0, 1.0, 1.0], [2.0, 100.0, 2.0]])
    plain = windows(3, n=2, reward=reward)
    rows = plain.experience

    def target(batch: replay.Sample) -> np.ndarray:
        return np.asarray(target_of(agent, parts, state, batch).value)

    terminated = target(windows(3, n=2, reward=reward, terminated=ends))
    np.testing.assert_allclose(terminated[:2], [1 + 0.5 * 2, 1], rtol=1e-5)
    truncated = windows(3, n=2, reward=reward, truncated=ends)
    bootstrapped = target(truncated)
    assert (np.abs(bootstrapped[:2] - terminated[:2]) > 1e-3).all()
    # Moved one at a time: observations after the end, and those that a window ends in.
    moved = dataclasses.replace(rows, truncated=ends, observation=rows.observation.at[1].add(1.0))
    np.testing.assert_array_equal(target(dataclasses.replace(truncated, experience=moved)), bootstrapped)
    for row, changed in ((0, [False, True, False]), (1, [True, False, True])):
        moved = dataclasses.replace(rows, truncated=ends, final_observation=rows.final_observation.at[row].add(1.0))
        np.testing.assert_array_equal(target(dataclasses.replace(truncated, experience=moved)) != bootstrapped, changed)


def test_double_and_plain_targets() -> None:
    batch = windows(64)
    successor = np.asarray(batch.experience.final_observation[0])
    for double in (False, True):
        agent, parts, _ = make(double=double, discount=0.9)
        state = with_two_networks(agent)
        online, target = (
            successor @ np.asarray(params.head["advantage"][0]["kernel"])
            for params in (state.params, state.target_params)
        )
        best = np.argmax(online if double else target, axis=-1)
        assert 0.1 < np.mean(np.argmax(online, -1) != np.argmax(target, -1)) < 1
        expected = batch.experience.reward[0] + 0.9 * target[np.arange(64), best]
        np.testing.assert_allclose(target_of(agent, parts, state, batch).value, expected, atol=1e-5)


@pytest.mark.parametrize("truncated", [False, True])
def test_munchausen_targets_by_hand(truncated: bool) -> None:
    agent, parts, config = make(munchausen=True, munchausen_temperature=0.5, discount=0.9)
    state = with_two_networks(agent)
    mask, next_mask = (jnp.array(rows)[None] for rows in ([[1, 1, 0]] * 2, [[1, 1, 1], [0, 1, 1]]))
    batch = windows(
        2,
        action=jnp.array([[1, 0]]),
        truncated=jnp.full((1, 2), truncated),
        action_mask=mask.astype(bool),
        final_action_mask=next_mask.astype(bool),
    )
    rows, kernel = batch.experience, np.asarray(state.target_params.head["advantage"][0]["kernel"], np.float64)
    expected = []
    for b in range(2):
        q = (np.asarray(rows.observation[0, b], np.float64) @ kernel)[:2]
        log_prob = (q / 0.5 - np.log(np.sum(np.exp(q / 0.5))))[int(rows.action[0, b])]
        later = (np.asarray(rows.final_observation[0, b], np.float64) @ kernel)[np.asarray(next_mask[0, b]) == 1]
        soft_value = 0.5 * np.log(np.sum(np.exp(later / 0.5)))  # = E (Q - tau log pi)
        expected.append(float(rows.reward[0, b]) + 0.9 * max(0.5 * log_prob, -1) + 0.9 * soft_value)
    assert config.munchausen_scale == 0.9
    np.testing.assert_allclose(target_of(agent, parts, state, batch).value, expected, rtol=1e-4)


@KINDS
def test_masked_windows_count_for_nothing_and_shortened_ones_for_what_they_have(kind: str) -> None:
    agent, _, _ = make(distribution=kind, discount=0.5)
    state = with_two_networks(agent)
    mask = jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    batch = windows(3, n=2, mask=mask)
    update = jax.jit(agent.update)
    after, reported = update(state, batch, jax.random.key(0))
    assert np.isfinite(reported.priorities).tolist() == [True, True, False]
    rows = batch.experience
    rubbish = dataclasses.replace(
        rows,
        reward=rows.reward.at[1, 1].set(9.0).at[:, 2].set(9.0),
        final_observation=rows.final_observation.at[1, 1].set(9.0).at[:, 2].set(9.0),
        observation=rows.observation.at[:, 2].set(9.0),
    )
    again, _ = update(state, dataclasses.replace(batch, experience=rubbish), jax.random.key(0))
    assert tree_equal(after, again)
    none = dataclasses.replace(batch, mask=jnp.zeros_like(mask))
    assert tree_equal(update(state, none, jax.random.key(0))[0].params, state.params)


@KINDS
def test_importance_weights_scale_the_gradient(kind: str) -> None:
    agent, parts, config = make(distribution=kind)
    state = with_two_networks(agent)
    hyper, key = hyperparameters_of(config), jax.random.key(5)

    def gradients(batch: replay.Sample) -> dqn.Params:
        rows = transitions.read(batch, hyper["discount"])
        target = dqn.make_target(parts, state, rows, key)
        loss = functools.partial(dqn.loss, parts)
        return jax.grad(loss, has_aux=True)(state.params, hyper, rows, target, key)[0]

    gradients = jax.jit(gradients)
    each = [gradients(windows(3, weights=jnp.eye(3)[b])) for b in range(3)]
    mixed = gradients(windows(3, weights=jnp.array([0.5, 1.0, 2.0])))
    expected = jax.tree.map(lambda *leaves: 0.5 * leaves[0] + leaves[1] + 2 * leaves[2], *each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), mixed, expected)
    assert not tree_equal(each[0], each[1])


@KINDS
def test_priorities(kind: str) -> None:
    agent, _, _ = make(distribution=kind)
    state, batch = with_two_networks(agent), windows(6)
    _, update = jax.jit(agent.update)(state, batch, jax.random.key(0))
    assert update.priorities is not None
    assert update.priorities.shape == (6,)
    assert update.priorities.dtype == jnp.float32
    assert (update.priorities >= transitions.PRIORITY_FLOOR).all()
    average = update.metrics["td_error"] if kind == "none" else update.metrics["loss"]
    np.testing.assert_allclose(update.priorities.mean(), average + 1e-6, rtol=1e-5)


def test_target_networks_that_follow_and_that_are_copied() -> None:
    batch = windows(8)
    for period, rate in ((1, 0.1), (3, 1.0)):
        agent, _, _ = make(target_period=period, target_rate=rate)
        update = jax.jit(agent.update)
        state = with_two_networks(agent)
        for count in range(1, 7):
            before = state.target_params
            state, _ = update(state, batch, jax.random.key(count))
            if period == 1:
                expected = jax.tree.map(lambda t, p: t + 0.1 * (p - t), before, state.params)
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.target_params, expected)
            else:
                assert tree_equal(state.target_params, state.params if count % 3 == 0 else before)


# Acting.


def timestep_of(observation: Any, mask: Any = None) -> envs.TimeStep:
    count = observation.shape[0]
    timestep = envs.timestep(observation, jnp.zeros(count), jnp.zeros(count, jnp.bool_), action_mask=mask)
    return dataclasses.replace(timestep, is_first=jnp.zeros(count, jnp.bool_))


@MAYBE_JIT
@KINDS
def test_acting_greedily(kind: str, transform: Transform) -> None:
    agent, parts, _ = make(distribution=kind, noisy=True)
    state = jax.jit(agent.init)(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (5, F))
    observation = observation.at[4].set(observation[0])
    act = transform(lambda noise: agent.act_with(state, (), timestep_of(observation), noise, explore=False)[1])
    decision = act(None)
    values = parts.returns(state.params, observation, None, state.hyperparameters).values
    np.testing.assert_array_equal(decision.action, np.argmax(values, axis=-1))
    assert decision.action.dtype == Discrete(A).dtype
    assert decision.action[0] == decision.action[4]
    np.testing.assert_array_equal(act(agent.noise(jax.random.key(2), 5)).action, decision.action)


def test_the_share_of_random_actions() -> None:
    agent, _, _ = make(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100.0)
    state = jax.jit(agent.init)(jax.random.key(0))
    observation = jnp.tile(jnp.array([[1.0, -2.0]]), (20_000, 1))
    act = jax.jit(lambda state, key: agent.act(state, (), timestep_of(observation), key)[1].action)
    best = int(agent.act(state, (), timestep_of(observation[:1]), jax.random.key(0), explore=False)[1].action[0])
    for env_steps, share in ((0, 0.8), (50, 0.5), (100, 0.2), (10**6, 0.2)):
        state = dataclasses.replace(state, env_steps=jnp.int32(env_steps))
        np.testing.assert_allclose(exploration.epsilon(state.hyperparameters, state.env_steps), share, rtol=1e-6)
        frequencies = np.bincount(act(state, jax.random.key(env_steps)), minlength=A) / 20_000
        expected = np.full(A, share / A)
        expected[best] += 1 - share
        np.testing.assert_allclose(frequencies, expected, atol=0.015)


def test_observing_counts_environment_steps() -> None:
    agent, _, _ = make()
    state = agent.init(jax.random.key(0))
    assert agent.observe(state, windows(4, n=3).experience).env_steps == 12


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_illegal_actions_are_never_taken_and_never_bootstrapped_from(changes: Any) -> None:
    agent, parts, _ = make(discount=0.9, munchausen_scale=0.0, **changes)
    state = with_two_networks(agent)
    mask = jnp.array([[True, False, True], [False, True, False]])
    observation = jax.random.normal(jax.random.key(1), (2, F))
    timestep = timestep_of(observation, mask)
    actions = jax.jit(jax.vmap(lambda key: agent.act(state, (), timestep, key)[1].action))(
        jax.random.split(jax.random.key(2), 100)
    )
    assert [set(np.unique(column)) for column in np.asarray(actions).T] == [{0, 2}, {1}]
    greedy = agent.act(state, (), timestep, jax.random.key(0), explore=False)[1].action
    assert mask[jnp.arange(2), greedy].all()

    # The value of an illegal action of the successor changes nothing, whether the window is truncated or goes on.
    def raised(params: dqn.Params, action: int) -> dqn.Params:
        def raise_it(path: Any, leaf: jax.Array) -> jax.Array:
            if "'advantage'" in jax.tree_util.keystr(path) and leaf.ndim == 1:
                by_action = leaf.reshape(A, -1)
                return by_action.at[action].add(jnp.linspace(-1, 3, by_action.shape[1] + 1)[1:]).reshape(leaf.shape)
            return leaf

        return jax.tree_util.tree_map_with_path(raise_it, params)

    if changes.get("dueling") or changes.get("noisy"):
        return  # there the actions' values hang together
    for flag in (False, True):
        batch = windows(
            2,
            action=jnp.array([[1, 1]]),
            truncated=jnp.full((1, 2), flag),
            final_action_mask=mask[None],
            action_mask=jnp.array([[[False, True, True], [False, True, False]]]),
        )
        plain = target_of(agent, parts, state, batch)
        for action, same in ((0, [False, True]), (1, [True, False]), (2, [False, True])):
            networks = [raised(params, action) for params in (state.params, state.target_params)]
            other = dataclasses.replace(state, params=networks[0], target_params=networks[1])
            moved = np.abs(target_of(agent, parts, other, batch).value - plain.value) > 1e-5
            assert not moved[np.array(same)].any(), (flag, action)


@pytest.mark.thorough
def test_noise_differs_by_seed_step_and_environment() -> None:
    agent, _, _ = make(noisy=True, distribution="implicit", stream_sizes=(4,), dueling=True)
    keys = jax.random.split(jax.random.key(0), (2, 3))  # seeds and steps
    drawn = jax.jit(jax.vmap(jax.vmap(lambda key: agent.noise(key, 4))))(keys)
    for leaf in jax.tree.leaves(drawn):
        assert leaf.shape[:3] == (2, 3, 4)
        assert np.unique(np.asarray(leaf)).size == leaf.size
    states = jax.jit(jax.vmap(agent.init))(keys[:, 0])
    updated, _ = jax.jit(jax.vmap(agent.update, in_axes=(0, None, 0)))(states, windows(4), keys[:, 1])
    for before, after in zip(jax.tree.leaves(states.params), jax.tree.leaves(updated.params), strict=True):
        if np.unique(np.asarray(before)).size > 2:
            assert not np.array_equal(after[0], after[1])
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), states)
    apart, _ = jax.jit(jax.vmap(agent.update, in_axes=(0, None, 0)))(same, windows(4), keys[:, 1])
    assert not np.array_equal(*apart.params.head["streams"]["advantage"][0]["kernel_scale"])


def test_learnt_noise_changes_with_the_key_of_the_update_alone() -> None:
    agent, _, _ = make(noisy=True)
    state, batch = jax.jit(agent.init)(jax.random.key(0)), windows(4)
    update = jax.jit(agent.update)
    after = [update(state, batch, jax.random.key(seed))[0] for seed in (0, 0, 1)]
    assert tree_equal(after[0], after[1])
    assert not tree_equal(after[0].params, after[2].params)
    plain, _, _ = make()
    state = jax.jit(plain.init)(jax.random.key(0))
    after = [jax.jit(plain.update)(state, batch, jax.random.key(seed))[0] for seed in (0, 1)]
    assert tree_equal(after[0], after[1])


# Normalisation.


def test_observations_are_normalised_by_what_was_observed_before() -> None:
    plain, _, _ = make()
    agent, _, _ = make(normalise_observation=True)
    batch, key = windows(8, n=2), jax.random.key(0)
    seen = dataclasses.replace(batch.experience, observation=3.0 + 2.0 * batch.experience.observation)
    start = with_two_networks(agent)
    state = agent.observe(start, seen)
    mean, deviation = (np.asarray(f(np.asarray(seen.observation), axis=(0, 1))) for f in (np.mean, np.std))
    rows = dataclasses.replace(
        batch.experience,
        observation=jnp.asarray((batch.experience.observation - mean) / deviation),
        final_observation=jnp.asarray((batch.experience.final_observation - mean) / deviation),
    )
    without = dataclasses.replace(state, observation_statistics=None)
    expected, _ = jax.jit(plain.update)(without, dataclasses.replace(batch, experience=rows), key)
    after, _ = jax.jit(agent.update)(state, batch, key)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), after.params, expected.params)
    assert tree_equal(after.observation_statistics, state.observation_statistics)
    # Nothing has been observed yet: they stay as they are.
    fresh, _ = jax.jit(agent.update)(start, batch, key)
    same, _ = jax.jit(plain.update)(dataclasses.replace(start, observation_statistics=None), batch, key)
    assert tree_equal(fresh.params, same.params)
    observation = jax.random.normal(jax.random.key(1), (50, F))
    acted = agent.act(state, (), timestep_of(observation), key, explore=False)[1].action
    scaled = jnp.asarray((observation - mean) / deviation)
    np.testing.assert_array_equal(acted, plain.act(without, (), timestep_of(scaled), key, explore=False)[1].action)


# Seeds, keys, numbers, storages.


@pytest.mark.thorough
def test_seeds_start_apart_and_stay_apart() -> None:
    agent, _, _ = make(hidden_sizes=(4,), dueling=True)
    keys = jax.random.split(jax.random.key(0), 4)
    states = jax.jit(jax.vmap(agent.init))(keys)
    kernels = [leaf for leaf in jax.tree.leaves(states.params) if leaf.ndim == 3]
    assert len({one.tobytes() for kernel in kernels for one in np.asarray(kernel)}) == 4 * 3
    assert tree_equal(states.params, states.target_params)
    alone = jax.jit(agent.init)(keys[2])
    for together, single in zip(jax.tree.leaves(states), jax.tree.leaves(alone), strict=True):
        assert not single.weak_type
        np.testing.assert_allclose(together[2], single, atol=1e-6)


def test_the_numbers_are_read_from_the_state_only() -> None:
    # Three agents, as no single one reads every number.
    batch = windows(8, reward=jnp.linspace(-3, 3, 8)[None])
    read = set()
    for changes in (
        {"learning_rate_schedule": "linear", "horizon": 20.0, "learning_rate": 0.05, "max_grad_norm": 0.5},
        {"munchausen": True, "learning_rate": 0.05, "munchausen_temperature": 1.0, "munchausen_floor": -0.1},
        {"distribution": "categorical", "value_min": -1.0, "learning_rate": 0.05},
    ):
        agent, _, config = make(adam_epsilon=1e-3, **changes)
        state = dataclasses.replace(with_two_networks(agent), updates=jnp.int32(5))
        hyper = state.hyperparameters
        assert hyper == {name: jnp.float32(getattr(config, name)) for name in FLOATS}
        variants = [hyper] + [{**hyper, name: hyper[name] / 2} for name in FLOATS]

        def run(hyper: Any, agent: Agent = agent, state: dqn.State = state) -> Any:
            state, update = agent.update(dataclasses.replace(state, hyperparameters=hyper), batch, jax.random.key(0))
            return state.params, state.target_params, update.metrics["epsilon"]

        results = jax.jit(jax.vmap(run))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *variants))
        for index, name in enumerate(FLOATS, start=1):
            same = jax.tree.map(lambda leaf, index=index: bool(jnp.all(leaf[index] == leaf[0])), results)
            read |= set() if jax.tree.all(same) else {name}
        halved = {name: getattr(config, name) / 2 for name in FLOATS}
        others, _, _ = make(**{**dataclasses.asdict(config), **halved})
        assert tree_equal(jax.jit(functools.partial(run, agent=others))(hyper), jax.jit(run)(hyper))
    # `init` reads one, the loop two, and these schedules are over or have not begun.
    assert set(FLOATS) - read == {
        "noisy_scale",
        "priority_exponent",
        "importance_exponent",
        "epsilon_end",
        "epsilon_steps",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": True, "dueling": True, "noisy": True, "distribution": "categorical", "stream_sizes": (4,)},
        {"distribution": "implicit", "munchausen": True, "noisy": True},
    ],
    ids=["dqn", "rainbow", "implicit"],
)
def test_no_key_is_used_twice(changes: dict[str, Any]) -> None:
    agent, _, _ = make(**changes)
    with jax.debug_key_reuse(True):
        key_init, key_act, key_update = jax.random.split(jax.random.key(0), 3)
        state = jax.jit(agent.init)(key_init)
        jax.jit(lambda state, key: agent.act(state, (), timestep_of(jnp.ones((4, F))), key))(state, key_act)
        jax.jit(agent.update)(state, windows(4, n=3), key_update)


def test_training_is_bit_equal_in_both_storages() -> None:
    def train(storage: Any) -> Any:
        config = experiments.ExperimentConfig(
            env=experiments.EnvConfig("CartPole-v1", {"max_steps_in_episode": 12}),
            train=experiments.TrainConfig(
                "dqn", total_env_steps=256, num_envs=4, num_steps=2, updates_per_iteration=2, unroll=1
            ),
            agent=dqn.Config(hidden_sizes=(8,), distribution="categorical", noisy=True, double=True, dueling=True),
            replay=experiments.ReplayConfig(capacity=64, batch_size=8, kind="prioritised", n_step=3, storage=storage),
        )
        state, metrics = jax.jit(experiments.make_train(config))(jax.random.key(0))
        return state.agent, state.replay, {name: metrics[name][2:] for name in ("loss", "q_value", "epsilon")}

    in_arrays, in_place = train("array"), train("ref")
    assert jax.tree.structure(in_arrays) == jax.tree.structure(in_place)
    assert tree_equal(in_arrays, in_place)
    assert in_arrays[0].updates == 2 * 31  # the first iteration has no window of three steps yet
    assert in_arrays[0].env_steps == 256
    assert np.isfinite(in_arrays[2]["loss"]).all()
    leaves = in_arrays[1].priorities.leaves
    assert np.unique(np.asarray(leaves)).size > 16  # priorities have been set
