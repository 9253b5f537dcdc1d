"""SAC: targets at every kind of end, temperature, critics on their own, exploration, and the family's switches."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from tests.marks import thorough

from rollax import InputError, envs, experiments, replay
from rollax.agents import Agent, Rollout, critics, heads, sac, transitions
from rollax.agents.action_values import Returns
from rollax.agents.distributions import TanhNormal
from rollax.envs.spaces import Box, Discrete, MultiDiscrete, Space

F = 2
BOX = Box([-1.0, 0.0], [3.0, 2.0])


def make(space: Space = BOX, **changes: Any) -> tuple[Agent, sac.Parts]:
    agent = sac.make(Box(-9, 9, (F,)), space, sac.Config(**{"hidden_sizes": (8,), "num_quantiles": 5, **changes}))
    assert isinstance(agent.update, functools.partial)
    return agent, agent.update.args[0]


def start(agent: Agent, seed: int = 0) -> sac.State:
    state: sac.State = jax.jit(agent.init)(jax.random.key(seed))
    return state


# Compiled once for each agent: un-jitted, an update is hundreds of small programs.
update_critics = jax.jit(sac.update_critics, static_argnums=0)
update_actor = jax.jit(sac.update_actor, static_argnums=0)
choose = jax.jit(sac.choose, static_argnums=0)


def expected_returns(parts: sac.Parts, params: Any, observation: Any, action: Any, hyper: Any, key: Any = None) -> Any:
    """What critics without batch norm expect."""
    return jax.jit(parts.critics.returns)(params, {}, observation, action, hyper, key)


def windows(batch: int = 6, space: Space = BOX, seed: int = 0, **changes: Any) -> replay.Sample:
    """Random windows of one row that go on, with fields replaced."""
    random = np.random.default_rng(seed)
    never = jnp.zeros((1, batch), jnp.bool_)
    action = jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(seed), batch))[None]
    fields = {
        "observation": jnp.asarray(random.normal(size=(1, batch, F)), jnp.float32),
        "action": action,
        "reward": jnp.asarray(random.normal(size=(1, batch)), jnp.float32),
        "terminated": never,
        "truncated": never,
        "is_first": never,
        "final_observation": jnp.asarray(random.normal(size=(1, batch, F)), jnp.float32),
    }
    rows = Rollout(**{**fields, **changes})
    ones = jnp.ones(batch)
    return replay.Sample(rows, jnp.arange(batch, dtype=jnp.int32), ones, jnp.ones((1, batch), jnp.bool_))


def timestep(num_envs: int, is_first: Any = None, **changes: Any) -> envs.TimeStep:
    seen = jax.jit(jax.vmap(lambda observation: envs.timestep(observation)))(jnp.zeros((num_envs, F)))
    seen = dataclasses.replace(seen, is_first=jnp.zeros(num_envs, bool) if is_first is None else is_first)
    return dataclasses.replace(seen, **changes)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def equal(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b))


# Targets and losses.


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_a_target_by_hand_alive_at_a_truncation_and_at_a_termination(transform: Any) -> None:
    batch = windows(
        3,
        reward=jnp.ones((1, 3)),
        terminated=jnp.array([[False, False, True]]),
        truncated=jnp.array([[False, True, False]]),
    )

    def target(batch: replay.Sample) -> jax.Array:
        rows = transitions.read(batch, jnp.float32(0.9))
        atoms = jnp.stack([jnp.full((3, 1, 1), 10.0), jnp.full((3, 1, 1), 12.0)])
        choices = sac.Choices(None, jnp.zeros((3, 1)), jnp.full((3, 1), -3.0))
        expected = critics.lowest(Returns(atoms, jnp.zeros_like(atoms)))
        return sac.soft_target(rows.folded, expected, choices, 0.2).value

    np.testing.assert_allclose(transform(target)(batch), [10.54, 10.54, 1.0], rtol=1e-6)


def test_a_discrete_target_is_the_mean_over_the_policy() -> None:
    rows = transitions.read(windows(1, Discrete(2), reward=jnp.ones((1, 1))), jnp.float32(0.5))
    probability = jnp.array([[0.25, 0.75]])
    atoms = jnp.array([[[4.0], [8.0]]])
    choices = sac.Choices(None, jnp.log(probability), jnp.log(probability))
    target = sac.soft_target(rows.folded, Returns(atoms, jnp.zeros_like(atoms)), choices, 2.0)
    expected = 1 + 0.5 * (0.25 * (4 - 2 * math.log(0.25)) + 0.75 * (8 - 2 * math.log(0.75)))
    assert float(target.value[0]) == pytest.approx(expected, rel=1e-6)


def test_the_true_successor_is_bootstrapped_from_and_its_mask_rules() -> None:
    agent, parts = make(Discrete(3), learning_rate=0.1)
    state = start(agent)
    mask = jnp.tile(jnp.array([False, True, False]), (1, 6, 1))
    ends = jnp.ones((1, 6), bool)
    batch = windows(6, Discrete(3), truncated=ends, action_mask=mask, final_action_mask=mask)
    rows = transitions.read(batch, jnp.float32(0.9))
    choices = choose(parts, state.params, rows.successor, rows.successor_mask, jax.random.key(0))
    np.testing.assert_allclose(np.exp(choices.log_weight), np.tile([0.0, 1.0, 0.0], (6, 1)), atol=1e-7)
    assert np.all(np.isfinite(choices.log_prob))
    np.testing.assert_array_equal(rows.successor, batch.experience.final_observation[0])
    _, learnt = update_critics(parts, state, rows, jax.random.key(1))
    ahead = expected_returns(
        parts, state.critics.target_params, rows.successor, None, state.hyperparameters
    ).values.min(axis=0)[:, 1]
    fitted = np.asarray(learnt.td_error + learnt.values)
    np.testing.assert_allclose(fitted, batch.experience.reward[0] + 0.9 * ahead, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distribution", ["quantile", *thorough("none", "categorical")])
def test_after_an_update_each_critic_equals_its_own_independent_update(distribution: str) -> None:
    # Without a future, targets are the rewards.
    settings = {"discount": 0.0, "distribution": distribution, "num_atoms": 5, "value_min": -3.0, "value_max": 3.0}
    both, parts = make(num_critics=2, **settings)
    alone, parts_alone = make(num_critics=1, **settings)
    batch = windows(8)
    state = start(both)
    rows = transitions.read(batch, state.hyperparameters["discount"])
    together, _ = update_critics(parts, state, rows, jax.random.key(1))
    for index in range(2):
        single = start(alone)
        own = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], state.critics.params)
        single = dataclasses.replace(single, critics=dataclasses.replace(single.critics, params=own))
        single, _ = update_critics(parts_alone, single, rows, jax.random.key(2))
        after = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], together.critics.params)
        close(after, single.critics.params)
        assert not equal(after, own)


def test_a_zero_loss_leaves_its_critic_unchanged_and_not_the_other() -> None:
    agent, parts = make(discount=0.0)
    state = start(agent)
    # The first critic says 0 everywhere, which is what there is to earn.
    zeroed = jax.tree.map(lambda leaf: leaf.at[0].set(0.0), state.critics.params)
    state = dataclasses.replace(state, critics=dataclasses.replace(state.critics, params=zeroed))
    rows = transitions.read(windows(8, reward=jnp.zeros((1, 8))), state.hyperparameters["discount"])
    after, _ = update_critics(parts, state, rows, jax.random.key(1))
    member = [jax.tree.map(lambda leaf, i=i: leaf[i], (zeroed, after.critics.params)) for i in range(2)]
    assert equal(*member[0])
    assert not equal(*member[1])


def test_twelve_rows_in_batches_of_four_are_each_read_once() -> None:
    agent, _ = make(num_critics=1, discount=0.0, learning_rate=1e-3)
    reward = 100.0 * jnp.arange(12.0)
    batch = windows(12, reward=reward[None])
    parts = [windows_slice(batch, start, start + 4) for start in (0, 4, 8)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    state = start(agent)

    def step(state: sac.State, sample: replay.Sample) -> tuple[sac.State, jax.Array]:
        state, update = agent.update(state, sample, jax.random.key(3))
        assert update.priorities is not None
        return state, update.priorities

    scanned, priorities = jax.jit(lambda state: jax.lax.scan(step, state, stacked))(state)
    # The critic starts near 0 and hardly moves, so a row's error tells which reward, 0 to 1,100, was read.
    np.testing.assert_allclose(priorities.reshape(-1), reward, atol=10.0)
    one_by_one = state
    for sample, seen in zip(parts, priorities, strict=True):
        one_by_one, read = jax.jit(step)(one_by_one, sample)
        np.testing.assert_allclose(read, seen, rtol=1e-4, atol=1e-4)
    close(scanned.params, one_by_one.params, 1e-4)


def windows_slice(batch: replay.Sample, start: int, end: int) -> replay.Sample:
    rows = jax.tree.map(lambda leaf: leaf[:, start:end], (batch.experience, batch.mask))
    return replay.Sample(rows[0], batch.indices[start:end], batch.weights[start:end], rows[1])


# Entropy and temperature.


@pytest.mark.parametrize(
    ("space", "changes", "expected"),
    [
        (Box(-1, 1, (6,)), {}, -6.0),
        (Box(-1, 1, (2, 3)), {"target_entropy": "dimensions", "target_entropy_scale": 0.5}, -3.0),
        (Discrete(4), {}, math.log(4)),
        (Discrete(4), {"target_entropy": "log_actions", "target_entropy_scale": 0.5}, math.log(2)),
    ],
)
def test_the_target_entropy(space: Space, changes: dict[str, Any], expected: float) -> None:
    agent, parts = make(space, **changes)
    hyper = start(agent).hyperparameters
    assert float(parts.target_entropy(hyper)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("space", [BOX, Discrete(3)], ids=["box", "discrete"])
@pytest.mark.parametrize("scale", [-50.0, 50.0])
def test_entropy_below_its_target_makes_the_temperature_rise(space: Space, scale: float) -> None:
    agent, parts = make(space, target_entropy_scale=scale, initial_temperature=0.5)
    state = start(agent)
    after, update = jax.jit(agent.update)(state, windows(6, space), jax.random.key(1))
    below = float(update.metrics["entropy"]) < float(parts.target_entropy(state.hyperparameters))
    assert below == (scale < 0 if isinstance(space, Box) else scale > 0)
    assert (float(after.log_temperature) > math.log(0.5)) == below
    fixed, _ = make(space, target_entropy_scale=scale, initial_temperature=0.5, learn_temperature=False)
    assert (
        float(jax.jit(fixed.update)(state, windows(6, space), jax.random.key(1))[0].log_temperature)
        == state.log_temperature
    )


def test_log_probs_are_of_the_action_in_units_of_the_box_and_finite_at_its_bounds() -> None:
    agent, parts = make()
    state = start(agent)
    observation = jnp.zeros((4, F))
    choices = choose(parts, state.params, observation, None, jax.random.key(1))
    policy = parts.policy(state.params, observation, None)
    assert isinstance(policy, TanhNormal)
    np.testing.assert_allclose(choices.log_prob[:, 0], policy.log_prob(jnp.arctanh(choices.action)), rtol=1e-3)
    far = dataclasses.replace(
        state.params, policy=jax.tree.map(lambda leaf: jnp.full_like(leaf, 40.0), state.params.policy)
    )
    saturated = choose(parts, far, jnp.ones((4, F)), None, jax.random.key(1))
    np.testing.assert_array_equal(saturated.action, np.ones((4, 2)))
    assert np.all(np.isfinite(saturated.log_prob))


# The family.


def test_truncated_atoms_by_hand() -> None:
    atoms = jnp.array([[[[1.0, 5.0, 9.0]]], [[[2.0, 3.0, 100.0]]]])  # [E, B, A, K]
    kept = critics.truncated(Returns(atoms, jnp.zeros_like(atoms)), dropped=1)
    np.testing.assert_array_equal(kept.atoms, [[[1.0, 2.0, 3.0, 5.0]]])
    np.testing.assert_allclose(np.exp(kept.log_weights).sum(axis=-1), 1.0, rtol=1e-6)


def test_the_loss_of_truncated_quantiles_against_rlax() -> None:
    agent, parts = make(distribution="quantile", discount=0.9, dropped_quantiles=2)
    state = start(agent)
    hyper = state.hyperparameters
    rows = transitions.read(windows(6), hyper["discount"])
    _, learnt = update_critics(parts, state, rows, jax.random.key(4))
    choices = choose(parts, state.params, rows.successor, None, jax.random.split(jax.random.key(4), 3)[0])
    ahead = expected_returns(parts, state.critics.target_params, rows.successor, choices.action, hyper)
    pooled = np.sort(np.asarray(ahead.atoms)[:, :, 0].transpose(1, 0, 2).reshape(6, -1), axis=-1)[:, :6]
    target = rows.folded.reward[:, None] + 0.9 * (pooled - choices.log_prob)
    action = heads.to_unit(BOX, rows.action)
    predicted = expected_returns(parts, state.critics.params, rows.observation, action, hyper).atoms[:, :, 0]
    taus = (np.arange(5) + 0.5) / 5
    expected = [
        [rlax.quantile_regression_loss(predicted[e, b], taus, target[b], huber_param=1.0) for b in range(6)]
        for e in range(2)
    ]
    np.testing.assert_allclose(learnt.losses, np.mean(expected, axis=0), rtol=1e-4)


def test_crossq_sees_transitions_and_successors_in_one_batch_and_has_no_targets() -> None:
    agent, parts = make(batch_norm=True)
    state = start(agent)
    assert state.critics.target_params == ()
    rows = transitions.read(windows(6), state.hyperparameters["discount"])
    after, _ = update_critics(parts, state, rows, jax.random.key(4))
    choices = choose(parts, state.params, rows.successor, None, jax.random.split(jax.random.key(4), 3)[0])
    taken = jnp.concatenate([heads.to_unit(BOX, rows.action), rows.observation], axis=-1)
    following = jnp.concatenate([choices.action, rows.successor], axis=-1)
    mean = np.concatenate([taken, following]).mean(axis=0)
    moved = after.critics.statistics["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(moved, np.tile(0.01 * mean, (2, 1)), rtol=1e-4, atol=1e-6)
    # Acting on the critics, as the policy's loss does, uses the statistics and leaves them.
    after, _ = update_actor(parts, after, rows, jax.random.key(5))
    np.testing.assert_array_equal(after.critics.statistics["batch_stats"]["BatchNorm_0"]["mean"], moved)


def test_dropout_needs_a_key_and_its_rate_is_a_number_of_the_state() -> None:
    agent, parts = make(dropout=0.5, layer_norm=True)
    state = start(agent)
    observation, action = jnp.ones((3, F)), jnp.ones((3, 2))

    def values(hyper: Any, key: Any) -> np.ndarray:
        return np.asarray(expected_returns(parts, state.critics.params, observation, action, hyper, key).values)

    still = values(state.hyperparameters, None)
    assert not np.allclose(values(state.hyperparameters, jax.random.key(1)), still)
    none = {**state.hyperparameters, "dropout": jnp.float32(0.0)}
    np.testing.assert_allclose(values(none, jax.random.key(1)), still, rtol=1e-6)


def test_a_target_of_a_random_subset_of_the_critics() -> None:
    agent, parts = make(num_critics=5, target_critics=2, discount=1.0, initial_temperature=1e-30)
    state = start(agent)
    rows = transitions.read(windows(1, reward=jnp.zeros((1, 1))), jnp.float32(1.0))
    choices = [jax.random.split(jax.random.key(i), 3)[0] for i in range(12)]
    lows = set()
    for i, key in enumerate(choices):
        _, learnt = update_critics(parts, state, rows, jax.random.key(i))
        action = choose(parts, state.params, rows.successor, None, key).action
        ahead = expected_returns(
            parts, state.critics.target_params, rows.successor, action, state.hyperparameters
        ).values.reshape(5)
        rank = np.argmin(np.abs(np.sort(ahead) - float(learnt.td_error[0] + learnt.values[0])))
        lows.add(int(rank))
    assert lows <= {0, 1, 2, 3}  # the lowest of two is never the highest of five
    assert len(lows) > 1


@pytest.mark.parametrize(("updates", "moves"), [(0, False), (1, True)])
def test_the_policy_moves_every_other_update(updates: int, moves: bool) -> None:
    agent, _ = make(actor_period=2, learning_rate=0.1)
    state = dataclasses.replace(start(agent), updates=jnp.int32(updates))
    after, update = jax.jit(agent.update)(state, windows(6), jax.random.key(1))
    assert equal(state.params, after.params) != moves
    assert (float(after.log_temperature) == float(state.log_temperature)) != moves
    assert bool(np.isnan(update.metrics["policy_loss"])) != moves
    assert not equal(state.critics.params, after.critics.params)


# Acting.


def test_actions_stay_inside_the_box() -> None:
    agent, _ = make(initial_log_scale=3.0, random_steps=0.0)
    state = start(agent)
    _, decision = jax.jit(agent.act)(state, agent.init_memory(100_000), timestep(100_000), jax.random.key(1))
    action = np.asarray(decision.action)
    assert np.all((action >= BOX.low) & (action <= BOX.high))
    assert np.mean(action == BOX.high) > 0.1  # saturated, so the bounds themselves are taken


@pytest.mark.parametrize("space", [BOX, Discrete(3)], ids=["box", "discrete"])
def test_random_actions_until_random_steps(space: Space) -> None:
    agent, _ = make(space, random_steps=100.0, initial_log_scale=-8.0)
    state = start(agent)
    _, decision = jax.jit(agent.act)(state, (), timestep(50_000), jax.random.key(1))
    action = np.asarray(decision.action)
    if isinstance(space, Box):
        np.testing.assert_allclose(action.mean(axis=0), [1.0, 1.0], atol=0.02)
        np.testing.assert_allclose(action.std(axis=0), np.array([4.0, 2.0]) / math.sqrt(12), rtol=0.02)
    else:
        np.testing.assert_allclose(np.bincount(action) / 50_000, np.ones(3) / 3, atol=0.01)
        mask = jnp.tile(jnp.array([True, False, True]), (50_000, 1))
        _, decision = jax.jit(agent.act)(state, (), timestep(50_000, action_mask=mask), jax.random.key(1))
        assert set(np.asarray(decision.action)) == {0, 2}
    later = dataclasses.replace(state, env_steps=jnp.int32(100))
    _, decision = jax.jit(agent.act)(later, (), timestep(1000), jax.random.key(1))
    if isinstance(space, Box):
        assert np.asarray(decision.action).std(axis=0).max() < 0.01
    _, greedy = agent.act(state, (), timestep(4), jax.random.key(1), explore=False)
    assert len(np.unique(np.asarray(greedy.action), axis=0)) == 1


def test_random_actions_are_repeated_within_an_episode() -> None:
    agent, _ = make(random_steps=1e6, random_period=4)
    state = start(agent)
    memory, before = jax.jit(agent.act)(
        state, agent.init_memory(4000), timestep(4000, jnp.ones(4000, bool)), jax.random.key(1)
    )
    memory, after = jax.jit(agent.act)(state, memory, timestep(4000), jax.random.key(2))
    kept = np.all(np.asarray(before.action) == np.asarray(after.action), axis=-1)
    assert kept.mean() == pytest.approx(0.75, abs=0.03)
    _, anew = jax.jit(agent.act)(state, memory, timestep(4000, jnp.ones(4000, bool)), jax.random.key(3))
    assert not np.any(np.asarray(after.action) == np.asarray(anew.action))


# Seeds and storages, configs and spaces.


@pytest.mark.parametrize("space", [BOX, pytest.param(Discrete(3), marks=pytest.mark.suite)], ids=["box", "discrete"])
def test_vmapped_seeds_equal_single_ones(space: Space) -> None:
    agent, _ = make(space)
    keys = jax.random.split(jax.random.key(0), 3)
    batch = windows(6, space)

    def run(key: jax.Array) -> sac.State:
        return agent.update(agent.init(key), batch, key)[0]

    together, alone = jax.jit(jax.vmap(run))(keys), jax.jit(run)(keys[1])
    close(jax.tree.map(lambda leaf: leaf[1], together), alone)
    kernels = [leaf for leaf in jax.tree.leaves(together.critics.params) if leaf.ndim == 4]
    assert len({member.tobytes() for kernel in kernels for seed in np.asarray(kernel) for member in seed}) == 2 * 2 * 3


def test_training_is_bit_equal_in_both_storages_and_reports_a_delayed_policy() -> None:
    def train(storage: str) -> Any:
        overrides = ["train.total_env_steps=64", "log.every=32", "agent.hidden_sizes=[8]", "replay.min_size=16"]
        overrides.append("agent.actor_period=3")
        config = experiments.load("sac_pendulum", [*overrides, f"replay.storage={storage}"])
        config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, kind="prioritised"))
        return jax.jit(experiments.make_train(config))(jax.random.key(0))

    (array, metrics), (ref, _) = train("array"), train("ref")
    assert equal(array.agent, ref.agent)
    assert int(array.agent.updates) > 0
    learnt = np.asarray(metrics["critic_loss"])
    assert np.isfinite(learnt).any()
    np.testing.assert_array_equal(np.isfinite(metrics["policy_loss"]), np.isfinite(learnt))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0"),
        ({"initial_temperature": 0.0}, r"agent\.initial_temperature = 0\.0 must be above 0"),
        ({"discount": 1.1}, r"agent\.discount = 1\.1 must be between 0 and 1"),
        ({"random_steps": -1.0}, r"agent\.random_steps = -1\.0 must not be negative"),
        ({"random_period": 0}, r"agent\.random_period = 0 must be at least 1"),
        ({"adam_momentum": 1.0}, r"agent\.adam_momentum = 1\.0 must be at least 0 and below 1"),
        ({"target_rate": 0.0}, r"agent\.target_rate = 0\.0 must be above 0"),
        ({"target_entropy_scale": math.inf}, r"agent\.target_entropy_scale = inf must be finite"),
        ({"num_critics": 0}, r"agent\.num_critics = 0 must be at least 1"),
        ({"target_critics": 3}, r"agent\.target_critics = 3 must be between 0 and agent\.num_critics = 2"),
        ({"dropped_quantiles": 25}, r"agent\.dropped_quantiles = 25 must be below agent\.num_quantiles = 25"),
        ({"dropout": 1.0}, r"agent\.dropout = 1\.0 must be at least 0 and below 1"),
        ({"batch_norm": True, "torso": "cnn"}, r"agent\.batch_norm = True needs agent\.torso = 'mlp'"),
        ({"distribution": "quantil"}, r"agent\.distribution = 'quantil' .*did you mean 'quantile'"),
        ({"target_entropy": "dimension"}, r"agent\.target_entropy = 'dimension' .*did you mean 'dimensions'"),
        ({"value_min": 100.0}, r"agent\.value_min = 100\.0 must be below agent\.value_max = 100\.0"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sac.check(dataclasses.replace(sac.Config(), **changes), 1, 1)


def check_and_make(config: sac.Config) -> None:
    sac.check(config, 1, 1)
    sac.make(Box(-1, 1, (2,)), Box(-1, 1, (2,)), config)  # knows the activations, torsos and dtypes


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(sac.Config):
        kind = type(getattr(sac.Config(), field.name))
        named = "value_min" if field.name == "value_max" else field.name
        if kind is not bool:
            config = dataclasses.replace(sac.Config(), **{field.name: bad[kind]})
            with pytest.raises(InputError, match=rf"agent\.{named} = "):
                check_and_make(config)


@pytest.mark.parametrize("space", [MultiDiscrete((2, 3)), Box(-np.inf, np.inf, (2,))])
def test_spaces_that_sac_cannot_act_in(space: Space) -> None:
    with pytest.raises(InputError, match=r"'sac', which acts in Discrete spaces and in Boxes with finite bounds"):
        sac.make(Box(-1, 1, (2,)), space)


def test_a_convention_of_the_other_kind_of_space() -> None:
    with pytest.raises(InputError, match=r"agent\.target_entropy = 'log_actions' does not fit .* 'dimensions'"):
        make(BOX, target_entropy="log_actions")
