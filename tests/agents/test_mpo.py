"""MPO: both steps by hand and against rlax, the dual variables, targets at every kind of end, masks and bounds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from tests.marks import thorough

from rollax import InputError, envs, replay
from rollax.agents import Agent, Rollout, heads, hyperparameters_of, mpo, transitions, trust_region
from rollax.agents.action_values import Returns
from rollax.envs.spaces import Box, Discrete, MultiDiscrete, Space

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
F, A = 2, 3
BOX = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
SPACES = pytest.mark.parametrize("space", [BOX, Discrete(A)], ids=["box", "discrete"])


def make(space: Space = BOX, **changes: Any) -> tuple[Agent, mpo.Parts, mpo.State]:
    """A small agent and its state, whose target networks are others than the learnt ones."""
    agent = mpo.make(Box(-9, 9, (F,)), space, mpo.Config(**{"hidden_sizes": (4,), "num_samples": 5, **changes}))
    assert isinstance(agent.update, functools.partial)
    state, other = (jax.jit(agent.init)(jax.random.key(seed)) for seed in (0, 1))
    shift = jax.jit(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(2), leaf.shape))
    target_params, of_critics = jax.tree.map(shift, (other.params, other.critics.params))
    learner = dataclasses.replace(state.critics, target_params=of_critics)
    return agent, agent.update.args[0], dataclasses.replace(state, target_params=target_params, critics=learner)


def windows(space: Space = BOX, batch: int = 6, n: int = 1, **changes: Any) -> replay.Sample:
    """Random windows that go on, with fields replaced."""
    random = np.random.default_rng(0)
    if isinstance(space, Box):
        action = heads.from_unit(space, jnp.asarray(random.uniform(-1, 1, (n, batch, 2)), jnp.float32))
    else:
        action = jnp.asarray(random.integers(0, A, (n, batch)), jnp.int32)
    observation, final_observation = jnp.asarray(random.normal(size=(2, n, batch, F)), jnp.float32)
    reward, never = jnp.asarray(random.normal(size=(n, batch)), jnp.float32), jnp.zeros((n, batch), jnp.bool_)
    rows = Rollout(observation, action, reward, never, never, never, final_observation, None, None, {})
    names = {field.name for field in dataclasses.fields(Rollout)}
    rows = dataclasses.replace(rows, **{name: value for name, value in changes.items() if name in names})
    mask = changes.get("mask", jnp.ones((n, batch), jnp.bool_))
    return replay.Sample(rows, jnp.arange(batch, dtype=jnp.int32), changes.get("weights", jnp.ones(batch)), mask)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance), a, b)


def equal(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b))


# The E-step.


@MAYBE_JIT
def test_the_improved_policy_by_hand(transform: Transform) -> None:
    # Two actions as likely as each other, one better by eta log 3: three times the weight. Then a prior of 1/4 and 3/4
    # that the same advantage of the first evens out.
    values = jnp.array([[2.0 * np.log(3.0), 0.0], [2.0 * np.log(3.0) + 7.0, 7.0]])
    log_weight = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]]))
    weights, divergence = transform(trust_region.improve)(values, log_weight, 2.0)
    np.testing.assert_allclose(weights, [[0.75, 0.25], [0.5, 0.5]], rtol=1e-6)
    by_hand = [
        0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5),
        0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75),
    ]
    np.testing.assert_allclose(divergence, by_hand, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_the_improved_policy_and_the_slope_of_the_dual_against_rlax(temperature: float) -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7)), jnp.float32)

    def dual(temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
        penalty = rlax.LagrangePenalty(temperature, jnp.float32(0.3))
        loss, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(values, penalty, lambda x: x, 1)
        return jnp.mean(loss), weights

    slope, theirs = jax.grad(dual, has_aux=True)(jnp.float32(temperature))
    ours, divergence = trust_region.improve(values, jnp.full((4, 7), -np.log(7.0)), temperature)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(0.3 - jnp.mean(divergence), slope, atol=1e-5)


def test_values_of_any_size_give_finite_weights() -> None:
    values = jnp.array([[-1e6, 1e6, 0.0], [-1e6, -1e6, -1e6]])
    weights, divergence = trust_region.improve(values, jnp.full((2, 3), -np.log(3.0)), 1e-6)
    np.testing.assert_allclose(weights, [[0, 1, 0], [1 / 3] * 3], atol=1e-6)
    np.testing.assert_allclose(divergence, [np.log(3.0), 0.0], atol=1e-5)


# The M-step.


@MAYBE_JIT
def test_fitting_a_normal_by_hand(transform: Transform) -> None:
    normal = mpo.Normal(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 2.0]]))
    target = mpo.Normal(jnp.array([[0.0, 0.0]]), jnp.array([[2.0, 2.0]]))
    sample, weights = jnp.array([[[1.0, 0.0], [3.0, 2.0]]]), jnp.array([[0.25, 0.75]])
    losses, divergences = transform(mpo.fit_normal)(normal, target, sample, weights)
    # (1 - 0)^2 / (2 * 4), and log(1/2) + 4 / 2 - 1/2; the second entries agree.
    np.testing.assert_allclose(divergences["mean"], [0.125], rtol=1e-6)
    np.testing.assert_allclose(divergences["scale"], [-np.log(2.0) + 1.5], rtol=1e-6)

    def log_prob(x: float, loc: float, scale: float) -> float:
        return -0.5 * ((x - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)

    expected = 0.0
    for weight, (x, y) in zip((0.25, 0.75), ((1.0, 0.0), (3.0, 2.0)), strict=True):
        of_mean = log_prob(x, 1.0, 2.0) + log_prob(y, 0.0, 2.0)
        of_scale = log_prob(x, 0.0, 1.0) + log_prob(y, 0.0, 2.0)
        expected -= weight * (of_mean + of_scale)
    np.testing.assert_allclose(losses, [expected], rtol=1e-6)


def test_fitting_a_normal_moves_mean_and_scale_apart() -> None:
    target = mpo.Normal(jnp.zeros((1, 1)), jnp.ones((1, 1)))
    sample = jnp.array([[[-3.0], [3.0]]])

    def loss(normal: mpo.Normal, weights: jax.Array) -> jax.Array:
        return mpo.fit_normal(normal, target, sample, weights)[0][0]

    widened = jax.grad(loss)(target, jnp.array([[0.5, 0.5]]))
    np.testing.assert_allclose(widened.loc, 0.0, atol=1e-6)
    np.testing.assert_allclose(widened.scale, 1.0 - 9.0, rtol=1e-6)
    # The other's new value takes no part: with the scale at 2 the mean is pulled as hard as at 1.
    moved = jax.grad(loss)(mpo.Normal(target.loc, 2.0 * target.scale), jnp.array([[0.0, 1.0]]))
    np.testing.assert_allclose(moved.loc, -3.0, rtol=1e-6)


def test_divergences_against_distrax() -> None:
    random = np.random.default_rng(0)
    loc, target_loc = jnp.asarray(random.normal(size=(2, 4, 3)), jnp.float32)
    scale, target_scale = jnp.asarray(random.uniform(0.5, 2.0, (2, 4, 3)), jnp.float32)
    normal, target = mpo.Normal(loc, scale), mpo.Normal(target_loc, target_scale)
    sample, weights = jnp.zeros((4, 2, 3)), jnp.full((4, 2), 0.5)
    _, ours = mpo.fit_normal(normal, target, sample, weights)
    before, at_mean, at_scale = (
        distrax.MultivariateNormalDiag(*moments)
        for moments in ((target_loc, target_scale), (loc, target_scale), (target_loc, scale))
    )
    np.testing.assert_allclose(ours["mean"], before.kl_divergence(at_mean), rtol=1e-5)
    np.testing.assert_allclose(ours["scale"], before.kl_divergence(at_scale), rtol=1e-5)
    logits, target_logits = jnp.asarray(random.normal(size=(2, 4, A)), jnp.float32)
    log_policy, log_target = jax.nn.log_softmax(logits), jax.nn.log_softmax(target_logits)
    _, ours = mpo.fit_categorical(log_policy, log_target, jnp.full((4, A), 1 / A))
    theirs = distrax.Categorical(target_logits).kl_divergence(distrax.Categorical(logits))
    np.testing.assert_allclose(ours["policy"], theirs, rtol=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 20.0])
def test_the_whole_loss_of_the_policy_against_rlax(penalty: float) -> None:
    random = np.random.default_rng(1)
    values, sample = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((4, 6), (4, 6, 2)))
    target = mpo.Normal(jnp.zeros((4, 2)), jnp.ones((4, 2)))
    prior = jnp.full((4, 6), -np.log(6.0))

    def ours(normal: mpo.Normal) -> jax.Array:
        losses, divergences = mpo.fit_normal(normal, target, sample, trust_region.improve(values, prior, 0.7)[0])
        return jnp.mean(losses + penalty * (divergences["mean"] + divergences["scale"]))

    def theirs(normal: mpo.Normal) -> jax.Array:
        at_mean, at_scale = mpo.Normal(normal.loc, target.scale), mpo.Normal(target.loc, normal.scale)
        temperature = rlax.LagrangePenalty(jnp.float32(0.7), jnp.float32(0.1))
        before = distrax.MultivariateNormalDiag(target.loc, target.scale)
        bound = rlax.LagrangePenalty(jnp.float32(penalty), jnp.float32(0.0))
        constraints = [
            (before.kl_divergence(distrax.MultivariateNormalDiag(each.loc, each.scale)), bound)
            for each in (at_mean, at_scale)
        ]
        log_prob = at_mean.log_prob(sample) + at_scale.log_prob(sample)
        return jnp.mean(rlax.mpo_loss(log_prob, values, temperature, constraints, sample_axis=1)[0])

    normal = mpo.Normal(*jnp.asarray(random.uniform(0.5, 1.5, (2, 4, 2)), jnp.float32))
    gradient = jax.grad(ours)(normal)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0.05
    close(gradient, jax.grad(theirs)(normal))


# Updates.


@SPACES
def test_dual_variables_rise_above_their_bounds_and_fall_below(space: Space) -> None:
    agent, _, state = make(space, dual_learning_rate=0.1)
    assert state.duals.log.keys() == {"improvement", *(("mean", "scale") if space is BOX else ("policy",))}
    update, limit = jax.jit(agent.update), trust_region.LIMIT
    for start, bound, expected in ((1.0, 1e-6, 1.1), (1.0, 1e3, 0.9), (limit, -1.0, limit), (-limit, 1e3, -limit)):
        bounds = {name: jnp.float32(bound) for name in state.hyperparameters if name.startswith("epsilon")}
        before = dataclasses.replace(
            state,
            hyperparameters={**state.hyperparameters, **bounds},
            duals=dataclasses.replace(state.duals, log=dict.fromkeys(state.duals.log, jnp.float32(start))),
        )
        after, report = update(before, windows(space), jax.random.key(0))
        for name, dual in after.duals.log.items():
            # Adam's first step is the learning rate, whatever the size of the slope.
            np.testing.assert_allclose(dual, expected, rtol=1e-3)
            assert report.metrics[f"kl_{name}"] > 1e-5 or start == limit, name


def test_the_temperature_comes_to_where_the_improvement_is_epsilon() -> None:
    agent, _, state = make(Discrete(A), epsilon=0.05, dual_learning_rate=0.05, initial_temperature=5.0)
    hyper = {**state.hyperparameters, **dict.fromkeys(("learning_rate", "critic_learning_rate", "target_rate"), 0.0)}
    state = dataclasses.replace(state, hyperparameters=jax.tree.map(jnp.float32, hyper))
    batch = windows(Discrete(A), batch=32)

    def step(state: mpo.State, key: jax.Array) -> tuple[mpo.State, jax.Array]:
        state, update = agent.update(state, batch, key)
        return state, update.metrics["kl_improvement"]

    _, divergences = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 1000)))(state)
    assert abs(divergences[0] - 0.05) > 0.02
    np.testing.assert_allclose(divergences[-10:], 0.05, atol=2e-3)


@pytest.mark.parametrize("distribution", ["none", *thorough("categorical", "quantile")])
@SPACES
def test_targets_of_the_critics_by_hand(space: Space, distribution: str) -> None:
    _, parts, state = make(space, distribution=distribution, discount=0.5, num_atoms=5, num_quantiles=3)
    # A window of two steps goes on, ends after the second or after the first one, by either flag.
    ends = jnp.array([[0, 0, 1, 0, 1], [0, 1, 0, 1, 0]], bool)
    by_rules = jnp.array([False, True, True, False, False])
    reward = jnp.tile(jnp.array([[1.0], [2.0]]), (1, 5))
    batch = windows(space, 5, n=2, reward=reward, terminated=ends & by_rules, truncated=ends & ~by_rules)
    rows = transitions.read(batch, state.hyperparameters["discount"])
    choices = mpo.choose(parts, state.target_params, rows.successor, None, jax.random.key(0))
    observation, action = mpo.spread(parts, rows.successor, choices)
    expected = parts.critics.returns(state.critics.target_params, {}, observation, action, state.hyperparameters)
    target = mpo.expected_target(rows.folded, mpo.lowest(expected, choices), choices)
    values = np.asarray(expected.values, np.float64).min(axis=0).reshape(5, -1)
    np.testing.assert_allclose(np.exp(choices.log_weight).sum(axis=-1), 1.0, rtol=1e-5)
    ahead = np.sum(np.exp(choices.log_weight) * values, axis=-1)
    by_hand = [2 + 0.25 * ahead[0], 2, 1, 2 + 0.25 * ahead[3], 1 + 0.5 * ahead[4]]
    assert np.abs(ahead).min() > 1e-4
    np.testing.assert_allclose(target.value, by_hand, rtol=1e-4)
    np.testing.assert_allclose(target.weights.sum(axis=-1), 1.0, rtol=1e-5)
    last = np.asarray(batch.experience.final_observation)[[1, 1, 0, 1, 0], np.arange(5)]
    np.testing.assert_array_equal(rows.successor, last)


def test_what_critics_are_shown() -> None:
    _, parts, _ = make()
    sample = jnp.array([[[0.5, -0.5], [2.0, 0.0]], [[-3.0, 1.0], [0.0, 9.0]], [[0.1, 0.2], [0.3, 0.4]]])
    observation, action = mpo.spread(parts, jnp.array([[1.0], [2.0], [3.0]]), mpo.Choices(sample, jnp.zeros((3, 2))))
    assert action is not None
    np.testing.assert_array_equal(observation[:, 0], [1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(action, np.clip(sample, -1, 1).reshape(6, 2), atol=1e-6)
    atoms = jnp.arange(2.0 * 6 * 4).reshape(2, 6, 1, 4)  # the second critic is higher everywhere
    taken = mpo.lowest(Returns(atoms, jnp.zeros_like(atoms)), mpo.Choices(sample, jnp.zeros((3, 2))))
    np.testing.assert_array_equal(taken.atoms, np.arange(24.0).reshape(3, 2, 4))


@SPACES
def test_one_update_moves_all_that_learns_and_targets_follow(space: Space) -> None:
    agent, _, state = make(space, target_period=2, target_rate=0.25, num_critics=3)
    after, update = jax.jit(agent.update)(state, windows(space), jax.random.key(0))
    assert equal(after.target_params, state.target_params)
    assert equal(after.critics.target_params, state.critics.target_params)
    for before, now in ((state.params, after.params), (state.critics.params, after.critics.params)):
        assert not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(now), strict=True))
    again, _ = jax.jit(agent.update)(after, windows(space), jax.random.key(1))
    for target, params, followed in (
        (after.target_params, again.params, again.target_params),
        (after.critics.target_params, again.critics.params, again.critics.target_params),
    ):
        close(followed, jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, target, params), 1e-6)
    assert after.updates == 1
    assert after.env_steps == 0
    assert update.priorities is not None
    np.testing.assert_allclose(update.priorities.mean(), update.metrics["td_error"] + 1e-6, rtol=1e-5)
    assert all(np.isfinite(value) for value in update.metrics.values())


@SPACES
def test_masked_windows_count_for_nothing(space: Space) -> None:
    agent, _, state = make(space)
    mask = jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    batch = windows(space, 3, n=2, mask=mask)
    update = jax.jit(agent.update)
    after, reported = update(state, batch, jax.random.key(0))
    assert np.isfinite(reported.priorities).tolist() == [True, True, False]
    spoilt = dataclasses.replace(batch.experience, reward=jnp.where(mask, batch.experience.reward, 9.0))
    spoilt = dataclasses.replace(spoilt, observation=spoilt.observation.at[:, 2].set(9.0))
    assert equal(after, update(state, dataclasses.replace(batch, experience=spoilt), jax.random.key(0))[0])
    nothing, _ = update(state, dataclasses.replace(batch, mask=jnp.zeros_like(mask)), jax.random.key(0))
    assert equal((nothing.params, nothing.duals.log), (state.params, state.duals.log))
    assert not equal((after.params, after.duals.log), (state.params, state.duals.log))


def test_illegal_actions_get_no_mass_and_no_say() -> None:
    space = Discrete(A)
    agent, parts, state = make(space)
    mask = jnp.array([[True, False, True], [False, True, False]])
    batch = windows(space, 2, action=jnp.array([[0, 1]]), action_mask=mask[None], final_action_mask=mask[None])
    rows = transitions.read(batch, jnp.float32(0.9))
    choices = mpo.choose(parts, state.target_params, rows.observation, rows.action_mask, jax.random.key(0))
    values = jnp.array([[0.0, 1e6, 1.0], [-1.0, 0.0, 1e6]])
    weights, divergence = trust_region.improve(values, choices.log_weight, 0.5)
    assert (np.asarray(weights)[~np.asarray(mask)] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(divergence[1], 0.0, atol=1e-6)
    after, update = jax.jit(agent.update)(state, batch, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after.params, after.critics, update.metrics)))
    # What critics think of an illegal action changes nothing.
    bias = state.critics.target_params["head"]["advantage"][0]["bias"].at[:, 1].add(5.0)
    head = {"advantage": ({**state.critics.target_params["head"]["advantage"][0], "bias": bias},)}
    learner = dataclasses.replace(state.critics, target_params={**state.critics.target_params, "head": head})
    first = windows(space, 1, action=jnp.array([[0]]), action_mask=mask[None, :1], final_action_mask=mask[None, :1])
    plain, _ = jax.jit(agent.update)(state, first, jax.random.key(0))
    raised, _ = jax.jit(agent.update)(dataclasses.replace(state, critics=learner), first, jax.random.key(0))
    close((plain.params, plain.critics.params), (raised.params, raised.critics.params), 1e-6)
    timestep = timestep_of(rows.observation, mask)
    for env_steps in (0, 10**6):
        acting = dataclasses.replace(state, env_steps=jnp.int32(env_steps))
        act = jax.jit(jax.vmap(lambda key, acting=acting: agent.act(acting, (), timestep, key)[1].action))
        taken = np.asarray(act(jax.random.split(jax.random.key(1), 100)))
        assert [set(column) for column in taken.T] == [{0, 2}, {1}]


# Acting.


def timestep_of(observation: Any, mask: Any = None) -> envs.TimeStep:
    never = jnp.zeros(observation.shape[0], jnp.bool_)
    timestep = envs.timestep(observation, jnp.zeros(never.shape), never, action_mask=mask)
    return dataclasses.replace(timestep, is_first=never)


def test_actions_stay_inside_asymmetric_bounds_and_reach_them() -> None:
    agent, parts, state = make(initial_log_scale=1.0)
    timestep = timestep_of(jax.random.normal(jax.random.key(0), (2_000, F)))
    for env_steps in (0, 10**6):
        acting = dataclasses.replace(state, env_steps=jnp.int32(env_steps))
        action = np.asarray(agent.act(acting, (), timestep, jax.random.key(1))[1].action)
        assert (action >= BOX.low).all()
        assert (action <= BOX.high).all()
        at_bounds = np.mean((action == BOX.low) | (action == BOX.high))
        assert at_bounds > 0.5 if env_steps else at_bounds < 1e-3
    greedy = agent.act(state, (), timestep, jax.random.key(1), explore=False)[1].action
    loc = np.asarray(parts.normal(state.params, timestep.observation).loc)
    np.testing.assert_allclose(greedy, [1.0, 0.25] + np.clip(loc, -1, 1) * [2.0, 0.25], atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("space", [BOX, pytest.param(Discrete(A), marks=pytest.mark.suite)], ids=["box", "discrete"])
def test_seeds_together_are_as_seeds_alone(space: Space) -> None:
    agent, _, _ = make(space)
    keys, batch = jax.random.split(jax.random.key(0), 3), windows(space)

    def learn(key: jax.Array) -> tuple[mpo.State, Any]:
        key_init, key_update = jax.random.split(key)
        return agent.update(agent.init(key_init), batch, key_update)

    together, alone = jax.jit(jax.vmap(learn))(keys), jax.jit(learn)(keys[1])
    close(jax.tree.map(lambda leaf: leaf[1], together), alone)
    assert not equal(*(jax.tree.map(lambda leaf, i=i: leaf[i], together[0].params) for i in (0, 1)))


@SPACES
def test_no_key_is_used_twice(space: Space) -> None:
    agent, _, _ = make(space)
    with jax.debug_key_reuse(True):
        key_init, key_act, key_update = jax.random.split(jax.random.key(0), 3)
        state = jax.jit(agent.init)(key_init)
        _, decision = jax.jit(lambda state, key: agent.act(state, (), timestep_of(jnp.ones((4, F))), key))(
            state, key_act
        )
        state, _ = jax.jit(agent.update)(state, windows(space, n=3), key_update)
    assert decision.action.shape[0] == 4
    assert state.updates == 1


def test_the_numbers_are_read_from_the_state_only() -> None:
    floats = [field.name for field in dataclasses.fields(mpo.Config) if field.type == "float"]
    read = set()
    for space, changes in (
        (BOX, {"dropout": 0.5, "epsilon_mean": 5.0, "epsilon_scale": 5.0}),
        (Discrete(A), {"distribution": "categorical", "value_min": -1.0}),
    ):
        agent, _, state = make(space, random_steps=0.0, **changes)
        state = dataclasses.replace(state, hyperparameters=hyperparameters_of(mpo.Config(**changes)))

        def learn(hyper: Any, agent: Agent = agent, state: mpo.State = state, space: Space = space) -> Any:
            state = dataclasses.replace(state, hyperparameters=hyper)
            for seed in range(2):
                state, _ = agent.update(state, windows(space), jax.random.key(seed))
            return state.params, state.target_params, state.duals.log, state.critics.params

        hyper = {**state.hyperparameters, "adam_epsilon": jnp.float32(1e-3)}
        variants = [hyper, *({**hyper, name: hyper[name] / 2} for name in floats)]
        results = jax.jit(jax.vmap(learn))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *variants))
        for index, name in enumerate(floats, start=1):
            # Lanes of a vmap may round differently.
            changed = [np.abs(leaf[index] - leaf[0]).max() > 1e-7 for leaf in jax.tree.leaves(results)]
            read |= {name} if any(changed) else set()
    # `init` reads the initial values, acting one, and the loop the exponents; nothing here has quantiles.
    initial = {"initial_temperature", "initial_penalty", "initial_scale_penalty", "initial_log_scale"}
    others = {"random_steps", "priority_exponent", "importance_exponent", "huber_threshold"}
    assert set(floats) - read == initial | others


def test_observations_are_normalised_by_what_was_observed_before() -> None:
    agent, _, plain = make()
    normalised, _, state = make(normalise_observation=True)
    batch, key = windows(batch=8, n=2), jax.random.key(0)
    seen = np.asarray(3.0 + 2.0 * batch.experience.observation)
    state = normalised.observe(state, dataclasses.replace(batch.experience, observation=jnp.asarray(seen)))
    assert state.env_steps == 16
    mean, deviation = seen.mean(axis=(0, 1)), seen.std(axis=(0, 1))
    both = {name: (getattr(batch.experience, name) - mean) / deviation for name in ("observation", "final_observation")}
    scaled = dataclasses.replace(batch, experience=dataclasses.replace(batch.experience, **both))
    after, _ = jax.jit(normalised.update)(state, batch, key)
    close(after.params, jax.jit(agent.update)(plain, scaled, key)[0].params, 1e-4)


@pytest.mark.parametrize("changes", [{"layer_norm": True}, *thorough({"batch_norm": True}, {"dropout": 0.2})], ids=str)
@SPACES
def test_regularised_critics_learn(space: Space, changes: dict[str, Any]) -> None:
    agent = mpo.make(Box(-9, 9, (F,)), space, mpo.Config(hidden_sizes=(8,), critic_learning_rate=1e-2, **changes))
    state, batch = jax.jit(agent.init)(jax.random.key(0)), windows(space, terminated=jnp.ones((1, 6), jnp.bool_))
    step = jax.jit(lambda state, key: agent.update(state, batch, key))
    errors = []
    for seed in range(150):
        state, update = step(state, jax.random.key(seed))
        errors.append(float(update.metrics["td_error"]))
    assert np.mean(errors[-20:]) < 0.5 * np.mean(errors[:5])


# What bad input gets.


@pytest.mark.parametrize("space", [Box(-np.inf, np.inf, (2,)), Box(0.0, np.inf, (1,)), MultiDiscrete((2, 3))])
def test_spaces_that_mpo_cannot_act_in(space: Space) -> None:
    with pytest.raises(InputError, match=r"action space .* does not fit train\.agent = 'mpo', which acts in Discrete"):
        mpo.make(Box(-1, 1, (2,)), space)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dual_learning_rate": 0.0}, r"agent\.dual_learning_rate = 0\.0 must be above 0"),
        ({"epsilon": 0.0}, r"agent\.epsilon = 0\.0 must be above 0"),
        ({"epsilon_scale": -1.0}, r"agent\.epsilon_scale = -1\.0 must be above 0"),
        ({"initial_temperature": 0.0}, r"agent\.initial_temperature = 0\.0 must be between 8e-07 and 1e\+06"),
        ({"num_samples": 1}, r"agent\.num_samples = 1 must be at least 2"),
        ({"discount": 1.5}, r"agent\.discount = 1\.5 must be between 0 and 1"),
        ({"adam_momentum": 1.0}, r"agent\.adam_momentum = 1\.0 must be at least 0 and below 1"),
        ({"target_rate": 0.0}, r"agent\.target_rate = 0\.0 must be above 0 and at most 1"),
        ({"distribution": "quantil"}, r"agent\.distribution = 'quantil' .*did you mean 'quantile'"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    mpo.check(mpo.Config(), num_steps=1, num_envs=1)
    with pytest.raises(InputError, match=message):
        mpo.check(mpo.Config(**changes), num_steps=1, num_envs=1)


def check_and_make(config: mpo.Config) -> None:
    mpo.check(config, 1, 1)
    mpo.make(Box(-1, 1, (2,)), BOX, config)  # knows the activations, torsos and dtypes


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(mpo.Config):
        kind = type(getattr(mpo.Config(), field.name))
        named = "value_min" if field.name == "value_max" else field.name  # a range is wrong as a whole
        if kind is not bool:
            config = dataclasses.replace(mpo.Config(), **{field.name: bad[kind]})
            with pytest.raises(InputError, match=rf"agent\.{named} = "):
                check_and_make(config)
