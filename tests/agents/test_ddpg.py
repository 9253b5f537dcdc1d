"""DDPG, TD3, D4PG: targets and updates by hand, twin critics apart, delays, exploration, distributions by rlax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from tests.marks import thorough

from rollax import InputError, envs, experiments, replay
from rollax.agents import Agent, Rollout, critics, ddpg, heads, transitions
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
FLOATS = [field.name for field in dataclasses.fields(ddpg.Config) if field.type == "float"]
F, D = 3, 2
LOW, HIGH = np.array([-0.3, 0.1], np.float32), np.array([0.1, 7.7], np.float32)  # asymmetric, and no round numbers
SPACE = Box(LOW, HIGH, (D,))
TD3 = {"num_critics": 2, "actor_period": 2, "target_noise": 0.2, "target_period": 2}


def make(**changes: Any) -> tuple[Agent, ddpg.Parts, ddpg.Config]:
    """An agent whose networks are linear unless `changes` says otherwise."""
    settings = {"hidden_sizes": (), "num_atoms": 5, "num_quantiles": 5, "value_min": -3.0, "value_max": 3.0, **changes}
    config = ddpg.Config(**settings)
    agent = ddpg.make(Box(-9, 9, (F,)), SPACE, config)
    assert isinstance(agent.update, functools.partial)
    return agent, agent.update.args[0], config


def windows(batch: int = 6, n: int = 1, seed: int = 0, **changes: Any) -> replay.Sample:
    """Random windows that go on, with fields replaced."""
    random = np.random.default_rng(seed)
    never = jnp.zeros((n, batch), jnp.bool_)
    rows = Rollout(
        observation=jnp.asarray(random.normal(size=(n, batch, F)), jnp.float32),
        action=jnp.asarray(random.uniform(LOW, HIGH, (n, batch, D)), jnp.float32),
        reward=jnp.asarray(random.normal(size=(n, batch)), jnp.float32),
        terminated=never,
        truncated=never,
        is_first=never,
        final_observation=jnp.asarray(random.normal(size=(n, batch, F)), jnp.float32),
        action_mask=None,
        final_action_mask=None,
        extras={},
    )
    whole = {name: changes.pop(name) for name in ("weights", "mask") if name in changes}
    everywhere = {"weights": jnp.ones(batch), "mask": jnp.ones((n, batch), jnp.bool_), **whole}
    indices = jnp.arange(batch, dtype=jnp.int32)
    return replay.Sample(experience=dataclasses.replace(rows, **changes), indices=indices, **everywhere)


def policy(kernel: Any, bias: Any) -> ddpg.Params:
    layer = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    return ddpg.Params(torso={}, output={"params": layer})


def critic_params(state: ddpg.State, kernel: Any, bias: Any) -> Any:
    """Linear critics: kernel `[E, D + F]`, of the action and then of the observation, and bias `[E]`."""
    kernel, bias = np.asarray(kernel)[..., None], np.asarray(bias)[..., None]
    layer = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    return {**state.critics.params, "head": {"advantage": (layer,)}}


def with_critics(state: ddpg.State, **changes: Any) -> ddpg.State:
    return dataclasses.replace(state, critics=dataclasses.replace(state.critics, **changes))


def with_targets_apart(agent: Agent, seed: int = 0) -> ddpg.State:
    """A state whose networks and target networks differ."""
    state, other = (jax.jit(agent.init)(jax.random.key(seed + i)) for i in range(2))
    state = dataclasses.replace(state, target_params=jax.tree.map(lambda leaf: 50.0 * leaf, other.params))
    return with_critics(state, target_params=other.critics.params)


def tree_equal(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b))


def assert_close(a: Any, b: Any, atol: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def timestep_of(observation: Any) -> envs.TimeStep:
    count = observation.shape[0]
    return envs.timestep(observation, jnp.zeros(count), jnp.zeros(count, jnp.bool_))


# Targets.


def targets(agent: Agent, state: ddpg.State, batch: replay.Sample, key: int = 0) -> np.ndarray:
    """What critics that say 0 everywhere are fitted to, targets above 0 that is: the sizes of their errors."""
    shape = jax.tree.leaves(state.critics.params)[0].shape[0]
    zero = critic_params(state, np.zeros((shape, D + F)), np.zeros(shape))
    _, update = jax.jit(agent.update)(with_critics(state, params=zero), batch, jax.random.key(key))
    return np.asarray(update.priorities) - transitions.PRIORITY_FLOOR


@pytest.mark.parametrize("num_critics", [1, 2])
def test_targets_by_hand_where_episodes_go_on_and_at_both_kinds_of_end(num_critics: int) -> None:
    agent, _, _ = make(num_critics=num_critics, discount=0.9)
    random = np.random.default_rng(3)
    kernel, bias = random.normal(size=(F, D)), random.normal(size=D)
    critic, constant = random.normal(size=(num_critics, D + F)), random.normal(size=num_critics)
    state = dataclasses.replace(jax.jit(agent.init)(jax.random.key(0)), target_params=policy(kernel, bias))
    state = with_critics(state, target_params=critic_params(state, critic, constant))
    # Of windows of two steps, in turn: go on, terminated at their end, truncated there, and both at their first step.
    terminated = jnp.array([[0, 0, 0, 1, 0], [0, 1, 0, 0, 0]], bool)
    truncated = jnp.array([[0, 0, 0, 0, 1], [0, 0, 1, 0, 0]], bool)
    batch = windows(5, n=2, reward=jnp.full((2, 5), 30.0), terminated=terminated, truncated=truncated)
    successor = np.asarray(batch.experience.final_observation, np.float64)
    inputs = np.concatenate([np.tanh(successor @ kernel + bias), successor], axis=-1)
    each = inputs @ critic.T + constant
    values = each.min(axis=-1)
    lowest = np.argmin(each, axis=-1)[[1, 1, 0], [0, 2, 4]]
    assert np.unique(lowest).size == num_critics  # neither is the lowest everywhere
    expected = [
        30 + 0.9 * 30 + 0.81 * values[1, 0],
        30 + 0.9 * 30,
        30 + 0.9 * 30 + 0.81 * values[1, 2],
        30,
        30 + 0.9 * values[0, 4],
    ]
    np.testing.assert_allclose(targets(agent, state, batch), expected, rtol=1e-5)


def test_smoothing_noise_by_hand() -> None:
    unit = jnp.array([[0.0, 0.9, -0.95], [0.0, 0.5, 0.0]])
    normal = jnp.array([[1.0, 1.0, -3.0], [-10.0, 10.0, 0.5]])
    expected = [[0.2, 1.0, -1.0], [-0.5, 1.0, 0.1]]
    np.testing.assert_allclose(ddpg.smoothed(unit, normal, 0.2, 0.5), expected, atol=1e-7)
    np.testing.assert_array_equal(ddpg.smoothed(unit, normal, 0.0, 0.5), unit)


def test_smoothed_actions_are_clipped_and_stay_in_the_bounds() -> None:
    batch = windows(20_000, reward=jnp.full((1, 20_000), 2.0))
    for centre, limit, low, high in ((0.0, 0.3, -0.3, 0.3), (0.9, 0.5, 0.4, 1.0), (-0.9, 0.5, -1.0, -0.4)):
        agent, _, _ = make(target_noise=0.2, target_noise_clip=limit, discount=1.0)
        state = jax.jit(agent.init)(jax.random.key(0))
        state = dataclasses.replace(state, target_params=policy(np.zeros((F, D)), [np.arctanh(centre), 0]))
        state = with_critics(state, target_params=critic_params(state, [[1.0] + [0.0] * (D + F - 1)], [0.0]))
        actions = targets(agent, state, batch) - 2.0  # the target critic says the first entry of the action
        assert actions.min() == pytest.approx(low, abs=1e-5)
        assert actions.max() == pytest.approx(high, abs=1e-5)
        unclipped = np.random.default_rng(0).normal(size=10**6) * 0.2
        expected = np.clip(centre + np.clip(unclipped, -limit, limit), -1, 1)
        assert actions.mean() == pytest.approx(expected.mean(), abs=0.006)
        assert actions.std() == pytest.approx(expected.std(), abs=0.006)
        assert not np.array_equal(targets(agent, state, batch, key=1), targets(agent, state, batch))


@pytest.mark.parametrize("kind", ["categorical", "quantile"])
@pytest.mark.parametrize("num_critics", [1, 2])
def test_losses_of_distributions_against_rlax(kind: str, num_critics: int) -> None:
    agent, parts, _ = make(
        distribution=kind, num_critics=num_critics, discount=0.8, huber_threshold=0.4, target_noise=0.0
    )
    state, batch = with_targets_apart(agent), windows(32, terminated=jnp.arange(32)[None] % 4 == 0)
    rows = jax.tree.map(lambda leaf: leaf[0], batch.experience)
    unit = parts.policy(state.target_params, rows.final_observation)
    hyper = state.hyperparameters
    following = parts.critics.returns(state.critics.target_params, {}, rows.final_observation, unit, hyper)
    predicted = parts.critics.returns(
        state.critics.params, {}, rows.observation, heads.to_unit(SPACE, rows.action), hyper
    )
    lowest = np.argmin(following.values[..., 0], axis=0)
    assert np.unique(lowest).size == num_critics
    atoms, log_weights = (
        leaf[lowest, np.arange(32), 0] for leaf in (np.asarray(following.atoms), np.asarray(following.log_weights))
    )
    discount = 0.8 * (1.0 - rows.terminated)
    losses = []
    for member in range(num_critics):
        ours = jax.tree.map(lambda leaf, member=member: leaf[member], predicted)
        if kind == "categorical":
            rule = jax.vmap(rlax.categorical_td_learning)
            loss = rule(ours.atoms[:, 0], ours.log_weights[:, 0], rows.reward, discount, atoms, log_weights)
            goal = jax.vmap(rlax.categorical_l2_project)(
                rows.reward[:, None] + discount[:, None] * atoms, jnp.exp(log_weights), ours.atoms[:, 0]
            )
            loss = loss + jnp.sum(jax.scipy.special.xlogy(goal, goal), axis=-1)  # ours is a divergence
        else:
            rule = jax.vmap(rlax.quantile_q_learning, in_axes=(0, 0, 0, 0, 0, 0, 0, None))
            there, zero = atoms[:, :, None], jnp.zeros(32, jnp.int32)
            loss = rule(ours.atoms.swapaxes(1, 2), ours.taus, zero, rows.reward, discount, there, there, 0.4)
        losses.append(loss)
    _, update = jax.jit(agent.update)(state, batch, jax.random.key(0))
    np.testing.assert_allclose(update.priorities, np.mean(losses, axis=0) + 1e-6, rtol=1e-3, atol=1e-5)
    assert update.metrics["critic_loss"] == pytest.approx(float(np.mean(losses)), rel=1e-4)


# Updates.


@pytest.mark.parametrize(
    ("num_critics", "transform"), [(1, jax.jit), (2, jax.jit), (2, lambda f: f)], ids=["one", "two", "two-plain"]
)
def test_one_update_by_hand(num_critics: int, transform: Transform) -> None:
    agent, _, _ = make(
        num_critics=num_critics,
        learning_rate=0.1,
        critic_learning_rate=0.05,
        adam_epsilon=0.01,
        target_rate=0.25,
        discount=0.9,
    )
    random = np.random.default_rng(2)
    kernel, bias = random.normal(size=(F, D)), random.normal(size=D)
    critic, constant = random.normal(size=(num_critics, D + F)), random.normal(size=num_critics)
    state = dataclasses.replace(with_targets_apart(agent), params=policy(kernel, bias))
    state = with_critics(state, params=critic_params(state, critic, constant))
    weights = random.uniform(0.5, 1.5, 6)
    # Every window terminates: targets are rewards.
    ended = jnp.ones((1, 6), jnp.bool_)
    batch = windows(6, terminated=ended, weights=jnp.asarray(weights, jnp.float32))
    after, update = transform(agent.update)(state, batch, jax.random.key(0))
    rows = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), batch.experience)

    def stepped(before: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        return before - rate * gradient / (np.abs(gradient) + 0.01)

    taken = (rows.action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    inputs = np.concatenate([taken, rows.observation], axis=-1)
    error = rows.reward - (inputs @ critic.T + constant).T  # [E, B]
    slope = -error * weights / 6
    new_critic, new_constant = stepped(critic, slope @ inputs, 0.05), stepped(constant, slope.sum(axis=1), 0.05)
    layer = after.critics.params["head"]["advantage"][0]
    np.testing.assert_allclose(layer["kernel"][..., 0], new_critic, atol=1e-5)
    np.testing.assert_allclose(layer["bias"][..., 0], new_constant, atol=1e-5)
    # The policy climbs the first critic, the new one.
    unit = np.tanh(rows.observation @ kernel + bias)
    slope = -weights[:, None] / 6 * new_critic[0, :D] * (1 - unit**2)
    new_kernel, new_bias = stepped(kernel, rows.observation.T @ slope, 0.1), stepped(bias, slope.sum(axis=0), 0.1)
    assert_close(after.params, policy(new_kernel, new_bias))
    assert_close(after.target_params, jax.tree.map(lambda t, p: t + 0.25 * (p - t), state.target_params, after.params))
    of_critics = (state.critics.target_params, after.critics.params)
    assert_close(after.critics.target_params, jax.tree.map(lambda t, p: t + 0.25 * (p - t), *of_critics))
    values = np.concatenate([unit, rows.observation], axis=-1) @ new_critic[0] + new_constant[0]
    metrics = {
        "critic_loss": 0.5 * (error**2).mean(),
        "td_error": np.abs(error.mean(axis=0)).mean(),
        "q_value": (inputs @ critic.T + constant).mean(),
        "policy_loss": -values.mean(),
    }
    assert update.metrics.keys() == metrics.keys()
    for name, value in metrics.items():
        assert float(update.metrics[name]) == pytest.approx(value, rel=1e-4), name
    np.testing.assert_allclose(update.priorities, np.abs(error.mean(axis=0)) + 1e-6, rtol=1e-4)
    assert after.updates == 1
    assert after.env_steps == 0


@pytest.mark.parametrize("kind", ["none", *thorough("categorical", "quantile")])
def test_each_of_twin_critics_learns_as_it_would_alone(kind: str) -> None:
    settings = {"distribution": kind, "hidden_sizes": (8,), "target_noise": 0.2}
    (twins, _, _), (alone, _, _) = make(num_critics=2, **settings), make(num_critics=1, **settings)
    state = with_targets_apart(twins)
    # Both targets are the same network, so that the lowest is what either alone would be fitted to.
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), state.critics.target_params)
    state, batch, key = with_critics(state, target_params=same), windows(8), jax.random.key(4)
    together, _ = jax.jit(twins.update)(state, batch, key)
    assert not tree_equal(*(jax.tree.map(lambda leaf, i=i: leaf[i], state.critics.params) for i in range(2)))
    for member in range(2):

        def of(tree: Any, member: int = member) -> Any:
            return jax.tree.map(lambda leaf: leaf[member : member + 1], tree)

        single = jax.jit(alone.init)(jax.random.key(9))
        single = dataclasses.replace(single, params=state.params, target_params=state.target_params)
        single = with_critics(single, params=of(state.critics.params), target_params=of(same))
        after, _ = jax.jit(alone.update)(single, batch, key)
        assert_close(of(together.critics.params), after.critics.params, atol=1e-6)
        moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), after.critics.params, single.critics.params)
        assert max(jax.tree.leaves(moved)) > 5e-4
        if member == 0:
            assert_close(together.params, after.params, atol=1e-6)  # the policy's critic


def test_a_critic_without_a_loss_stays_while_its_twin_learns() -> None:
    agent, _, _ = make(num_critics=2)
    state = jax.jit(agent.init)(jax.random.key(0))
    kernel = np.stack([np.zeros(D + F), np.ones(D + F)])
    state = with_critics(state, params=critic_params(state, kernel, np.zeros(2)))
    batch = windows(8, reward=jnp.zeros((1, 8)), terminated=jnp.ones((1, 8), jnp.bool_))  # all returns are 0
    after, _ = jax.jit(agent.update)(state, batch, jax.random.key(0))
    new = np.asarray(after.critics.params["head"]["advantage"][0]["kernel"])[..., 0]
    np.testing.assert_array_equal(new[0], kernel[0])
    assert (np.abs(new[1] - kernel[1]) > 5e-4).all()


def test_a_step_now_and_then_is_left_out_of_all_lanes_but_taken_by_those_whose_turn_it_is() -> None:
    def after(updates: jax.Array, value: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return critics.every(2, updates, lambda value: (value**2, {"loss": value}), value)

    lanes = (jnp.array([[1, 2], [3, 5]]), jnp.array([[3.0, 4.0], [5.0, 6.0]]))
    over_lanes = jax.vmap(jax.vmap(after))
    values, metrics = jax.jit(over_lanes)(*lanes)
    np.testing.assert_array_equal(values, [[3.0, 16.0], [5.0, 6.0]])
    np.testing.assert_array_equal(metrics["loss"], [[np.nan, 4.0], [np.nan, np.nan]])
    assert " cond[" in str(jax.make_jaxpr(over_lanes)(*lanes))  # a select would compute the step every time
    slopes = jax.grad(lambda value: jnp.sum(over_lanes(lanes[0], value)[0]))(lanes[1])
    np.testing.assert_array_equal(slopes, [[1.0, 8.0], [1.0, 1.0]])


def test_the_policy_learns_on_multiples_of_its_period_and_targets_on_those_of_theirs() -> None:
    agent, _, _ = make(num_critics=2, actor_period=3, target_period=2, target_rate=0.5, target_noise=0.2)
    state, batch, update = with_targets_apart(agent), windows(8), jax.jit(agent.update)
    for count in range(1, 8):
        before = state
        state, reported = update(state, batch, jax.random.key(count))
        assert tree_equal(state.params, before.params) == (count % 3 != 0)
        assert tree_equal(state.opt_state, before.opt_state) == (count % 3 != 0)
        assert bool(jnp.isnan(reported.metrics["policy_loss"])) == (count % 3 != 0)
        assert not tree_equal(state.critics.params, before.critics.params)
        assert tree_equal(state.target_params, before.target_params) == (count % 2 != 0)
        assert tree_equal(state.critics.target_params, before.critics.target_params) == (count % 2 != 0)
        assert state.updates == count


@pytest.mark.parametrize("changes", [{}, TD3, {"distribution": "categorical"}], ids=["ddpg", "td3", "d4pg"])
def test_masked_windows_count_for_nothing(changes: dict[str, Any]) -> None:
    agent, _, _ = make(**{**changes, "actor_period": 1})
    state, mask = with_targets_apart(agent), jnp.array([[1, 1, 0], [1, 0, 0]], bool)
    batch = windows(3, n=2, mask=mask)
    after, reported = jax.jit(agent.update)(state, batch, jax.random.key(0))
    assert np.isfinite(reported.priorities).tolist() == [True, True, False]
    rows = batch.experience

    def spoilt(leaf: jax.Array) -> jax.Array:
        return leaf.at[1, 1].set(9.0).at[:, 2].set(9.0)

    successor = spoilt(rows.final_observation)
    observation = rows.observation.at[:, 2].set(9.0)
    rubbish = dataclasses.replace(
        rows, observation=observation, reward=spoilt(rows.reward), final_observation=successor
    )
    again, _ = jax.jit(agent.update)(state, dataclasses.replace(batch, experience=rubbish), jax.random.key(0))
    assert tree_equal(after, again)
    assert not tree_equal(after.params, state.params)
    none, _ = jax.jit(agent.update)(state, dataclasses.replace(batch, mask=jnp.zeros_like(mask)), jax.random.key(0))
    assert tree_equal((none.params, none.critics.params), (state.params, state.critics.params))


@pytest.mark.parametrize("changes", [{"batch_norm": True}, {"dropout": 0.3}], ids=str)
def test_regularised_critics(changes: dict[str, Any]) -> None:
    agent, _, _ = make(**{**TD3, **changes, "actor_period": 1, "hidden_sizes": (8,)})
    state, batch, update = jax.jit(agent.init)(jax.random.key(0)), windows(16), jax.jit(agent.update)
    assert (state.critics.target_params == ()) == ("batch_norm" in changes)
    assert not tree_equal(state.critics.params, update(state, batch, jax.random.key(1))[0].critics.params)
    by_key = [update(state, batch, jax.random.key(seed))[0].params for seed in (1, 1, 2)]
    assert tree_equal(by_key[0], by_key[1])
    assert not tree_equal(by_key[0], by_key[2])
    losses = []
    for count in range(300):
        state, reported = update(state, batch, jax.random.key(count))
        losses.append(float(reported.metrics["critic_loss"]))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:5])


# Acting.


def test_explored_actions_are_inside_the_space_exactly() -> None:
    agent, _, _ = make(exploration_noise=1.0, random_steps=10.0)
    state = jax.jit(agent.init)(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (100_000, F))
    act = jax.jit(lambda state, key: agent.act(state, (), timestep_of(observation), key)[1].action)
    for env_steps in (0, 10):
        actions = np.asarray(act(dataclasses.replace(state, env_steps=jnp.int32(env_steps)), jax.random.key(2)))
        assert actions.shape == (100_000, D)
        assert actions.dtype == SPACE.dtype
        assert ((actions >= LOW) & (actions <= HIGH)).all()
        on_bounds = ((actions == LOW) | (actions == HIGH)).mean()
        assert on_bounds > 0.2 if env_steps else on_bounds < 1e-3
    # So are those of a policy that has gone as far as it can.
    for sign, bound in ((1.0, HIGH), (-1.0, LOW)):
        far = dataclasses.replace(state, params=policy(np.zeros((F, D)), np.full(D, 40 * sign)))
        greedy = agent.act(far, (), timestep_of(observation[:2]), jax.random.key(0), explore=False)[1].action
        np.testing.assert_allclose(greedy, [bound, bound], rtol=1e-6)
        assert ((greedy >= LOW) & (greedy <= HIGH)).all()


def test_exploration_noise_is_in_units_of_half_the_box() -> None:
    agent, _, _ = make(exploration_noise=0.1, random_steps=0.0)
    bias = np.array([0.2, -0.3])
    state = dataclasses.replace(jax.jit(agent.init)(jax.random.key(0)), params=policy(np.zeros((F, D)), bias))
    observation = jnp.zeros((50_000, F))
    actions = np.asarray(agent.act(state, (), timestep_of(observation), jax.random.key(1))[1].action, np.float64)
    centre, half = (HIGH + LOW) / 2, (HIGH - LOW) / 2
    np.testing.assert_allclose((actions.mean(axis=0) - centre) / half, np.tanh(bias), atol=0.003)
    np.testing.assert_allclose(actions.std(axis=0) / half, 0.1, rtol=0.02)
    assert abs(np.corrcoef(np.asarray(actions).T)[0, 1]) < 0.02
    greedy = agent.act(state, (), timestep_of(observation[:1]), jax.random.key(1), explore=False)[1].action
    np.testing.assert_allclose(greedy[0], centre + half * np.tanh(bias), rtol=1e-5)


def test_the_warm_up_is_uniform_and_stops() -> None:
    agent, _, _ = make(random_steps=100.0, exploration_noise=0.0)
    state = jax.jit(agent.init)(jax.random.key(0))
    timestep = timestep_of(jax.random.normal(jax.random.key(1), (40_000, F)))

    @functools.partial(jax.jit, static_argnums=1)
    def act(state: ddpg.State, explore: bool) -> jax.Array:
        return agent.act(state, (), timestep, jax.random.key(3), explore)[1].action

    greedy = act(state, False)
    for env_steps in (0, 99, 100, 10**6):
        later = dataclasses.replace(state, env_steps=jnp.int32(env_steps))
        np.testing.assert_array_equal(act(later, False), greedy)
        actions = np.asarray(act(later, True))
        if env_steps < 100:
            for entry in range(D):
                counts, _ = np.histogram(actions[:, entry], 10, (LOW[entry], HIGH[entry]))
                np.testing.assert_allclose(counts / 40_000, 0.1, atol=0.01)
        else:
            np.testing.assert_array_equal(actions, greedy)


def test_actions_have_the_shape_of_their_space() -> None:
    space = Box(np.array([[-1.0], [0.0]]), np.array([[3.0], [0.5]]), (2, 1))
    agent = ddpg.make({"a": Box(-1, 1, (2,)), "b": Discrete(3)}, space, ddpg.Config(hidden_sizes=(4,)))
    state = jax.jit(agent.init)(jax.random.key(0))
    observation = {"a": jnp.ones((5, 2)), "b": jnp.zeros(5, jnp.int32)}
    timestep = envs.timestep(observation, jnp.zeros(5), jnp.zeros(5, jnp.bool_))
    action = agent.act(state, (), timestep, jax.random.key(0))[1].action
    assert action.shape == (5, 2, 1)
    batch = windows(5)
    rows = jax.tree.map(lambda leaf: leaf[None], {"observation": observation, "action": action})
    rows = dataclasses.replace(batch.experience, **rows, final_observation=rows["observation"])
    after, _ = jax.jit(agent.update)(state, dataclasses.replace(batch, experience=rows), jax.random.key(0))
    assert not tree_equal(after.critics.params, state.critics.params)


# Normalisation, seeds, keys, numbers, storages.


def test_observations_are_normalised_by_what_was_observed_before() -> None:
    (plain, _, _), (agent, _, _) = make(), make(normalise_observation=True)
    batch, key = windows(8, n=2), jax.random.key(0)
    seen = dataclasses.replace(batch.experience, observation=3.0 + 2.0 * batch.experience.observation)
    state = agent.observe(with_targets_apart(agent), seen)
    assert state.env_steps == 16
    observed = np.asarray(seen.observation)
    mean, deviation = observed.mean(axis=(0, 1)), observed.std(axis=(0, 1))

    def scale(leaf: jax.Array) -> jax.Array:
        return (leaf - mean) / deviation

    rows = batch.experience
    successor = scale(rows.final_observation)
    rows = dataclasses.replace(rows, observation=scale(rows.observation), final_observation=successor)
    without = dataclasses.replace(state, observation_statistics=None)
    expected, _ = jax.jit(plain.update)(without, dataclasses.replace(batch, experience=rows), key)
    after, _ = jax.jit(agent.update)(state, batch, key)
    assert_close((after.params, after.critics.params), (expected.params, expected.critics.params), atol=1e-4)
    observation = jax.random.normal(jax.random.key(1), (50, F))
    acted = agent.act(state, (), timestep_of(observation), key, explore=False)[1].action
    same = plain.act(without, (), timestep_of(scale(observation)), key, explore=False)[1].action
    np.testing.assert_allclose(acted, same, atol=1e-5)


@pytest.mark.parametrize("changes", [TD3, *thorough({})], ids=["td3", "ddpg"])
def test_seeds_together_are_seeds_alone(changes: dict[str, Any]) -> None:
    agent, _, _ = make(hidden_sizes=(8,), **changes)
    keys = jax.random.split(jax.random.key(0), 3)

    def run(key: jax.Array) -> Any:
        key_init, key_act, *key_updates = jax.random.split(key, 4)
        state = jax.jit(agent.init)(key_init)
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
        for key_update in key_updates:
            state, update = agent.update(state, windows(8), key_update)
        return state, update, agent.act(state, (), timestep_of(jnp.ones((2, F))), key_act)[1].action

    together = jax.jit(jax.vmap(run))(keys)
    for seed in range(3):
        assert_close(jax.tree.map(lambda leaf, seed=seed: leaf[seed], together), jax.jit(run)(keys[seed]))
    kernels = np.asarray(together[0].params.output["params"]["kernel"])
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3


@pytest.mark.parametrize("changes", [{}, {**TD3, "dropout": 0.1}, {"batch_norm": True}], ids=str)
def test_no_key_is_used_twice(changes: dict[str, Any]) -> None:
    agent, _, _ = make(hidden_sizes=(4,), **changes)
    with jax.debug_key_reuse(True):
        key_init, key_act, key_update = jax.random.split(jax.random.key(0), 3)
        state = jax.jit(agent.init)(key_init)
        jax.jit(lambda state, key: agent.act(state, (), timestep_of(jnp.ones((4, F))), key))(state, key_act)
        after, _ = jax.jit(agent.update)(state, windows(4, n=3), key_update)
    assert after.updates == 1


def test_the_numbers_are_read_from_the_state_only() -> None:
    batch, read = windows(8, n=2), set()
    for changes in (
        {"distribution": "categorical", "dropout": 0.2, "target_noise": 1.0, "hidden_sizes": (4,)},
        {"distribution": "quantile", "huber_threshold": 0.1},
    ):
        agent, _, config = make(**{"adam_epsilon": 1e-3, "exploration_noise": 0.3, "random_steps": 8.0, **changes})
        update, start = jax.jit(agent.update), with_targets_apart(agent)
        # After an update, as momentum has no say in the first, and within the warm-up, but not within half of it.
        state, _ = update(start, batch, jax.random.key(7))
        state = dataclasses.replace(state, env_steps=jnp.int32(5))
        hyper = state.hyperparameters
        assert hyper == {name: jnp.float32(getattr(config, name)) for name in FLOATS}

        @jax.jit
        def run(hyper: Any, agent: Agent = agent, state: ddpg.State = state) -> Any:
            state = dataclasses.replace(state, hyperparameters=hyper)
            acted = agent.act(state, (), timestep_of(jnp.ones((2, F))), jax.random.key(1))[1].action
            state, _ = agent.update(state, batch, jax.random.key(0))
            learner = state.critics
            return state.params, state.target_params, learner.params, learner.target_params, acted

        late = {**hyper, "random_steps": jnp.float32(0.0)}
        for name in FLOATS:
            for numbers in (hyper, late):
                if not tree_equal(run({**numbers, name: numbers[name] / 2}), run(numbers)):
                    read.add(name)
    assert set(FLOATS) - read == {"priority_exponent", "importance_exponent"}  # the loop's


@pytest.mark.thorough
def test_training_is_bit_equal_in_both_storages() -> None:
    def train(storage: Any) -> Any:
        config = experiments.ExperimentConfig(
            env=experiments.EnvConfig("Pendulum-v1"),
            train=experiments.TrainConfig(
                "ddpg", total_env_steps=128, num_envs=2, num_steps=4, updates_per_iteration=2, unroll=1
            ),
            agent=ddpg.Config(hidden_sizes=(8,), distribution="categorical", random_steps=16.0, actor_period=2),
            replay=experiments.ReplayConfig(capacity=64, batch_size=8, kind="prioritised", n_step=3, storage=storage),
        )
        state, metrics = jax.jit(experiments.make_train(config))(jax.random.key(0))
        return state.agent, state.replay, metrics["critic_loss"][-4:]

    in_arrays, in_place = train("array"), train("ref")
    assert tree_equal(in_arrays, in_place)
    assert in_arrays[0].env_steps == 128
    assert in_arrays[0].updates == 2 * 16
    assert np.isfinite(in_arrays[2]).all()
    assert np.unique(np.asarray(in_arrays[1].priorities.leaves)).size > 16  # priorities have been set


# Configs and spaces that cannot work.


@pytest.mark.parametrize(
    "space", [Discrete(3), MultiDiscrete((2, 3)), Box(-np.inf, np.inf, (2,)), Box(np.array([0.0, -np.inf]), 1.0, (2,))]
)
def test_spaces_that_ddpg_cannot_act_in(space: Any) -> None:
    message = r"action space .* does not fit train\.agent = 'ddpg', which acts in Boxes with finite bounds; choose"
    with pytest.raises(InputError, match=message):
        ddpg.make(Box(-1, 1, (2,)), space)


def test_configs_that_work() -> None:
    ddpg.check(ddpg.Config(), num_steps=1, num_envs=1)
    ddpg.check(ddpg.Config(**TD3, random_steps=0.0, exploration_noise=0.0, discount=1.0, target_rate=1.0), 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0\."),
        ({"critic_learning_rate": -1.0}, r"agent\.critic_learning_rate = -1\.0 must be above 0\."),
        ({"discount": 1.01}, r"agent\.discount = 1\.01 must be between 0 and 1\."),
        ({"exploration_noise": -0.1}, r"agent\.exploration_noise = -0\.1 must not be negative\."),
        ({"random_steps": -1.0}, r"agent\.random_steps = -1\.0 must not be negative\."),
        ({"actor_period": 0}, r"agent\.actor_period = 0 must be at least 1\."),
        ({"target_noise": -0.2}, r"agent\.target_noise = -0\.2 must not be negative\."),
        ({"target_noise_clip": -0.2}, r"agent\.target_noise_clip = -0\.2 must not be negative\."),
        ({"num_critics": 0}, r"agent\.num_critics = 0 must be at least 1\."),
        ({"distribution": "quantiles"}, r"agent\.distribution = 'quantiles' .*did you mean 'quantile'"),
        ({"num_atoms": 1}, r"agent\.num_atoms = 1 must be at least 2\."),
        ({"value_min": 100.0}, r"agent\.value_min = 100\.0 must be below agent\.value_max = 100\.0\."),
        ({"num_quantiles": 0}, r"agent\.num_quantiles = 0 must be at least 1\."),
        ({"huber_threshold": 0.0}, r"agent\.huber_threshold = 0\.0 must be above 0\."),
        ({"dropout": 1.0}, r"agent\.dropout = 1\.0 must be at least 0 and below 1\."),
        ({"batch_norm": True, "torso": "cnn"}, r"agent\.batch_norm = True needs agent\.torso = 'mlp', not 'cnn'"),
        ({"target_period": 0}, r"agent\.target_period = 0 must be at least 1\."),
        ({"target_rate": 0.0}, r"agent\.target_rate = 0\.0 must be above 0 and at most 1\."),
        ({"adam_epsilon": 0.0}, r"agent\.adam_epsilon = 0\.0 must be above 0\."),
        ({"adam_momentum": 1.0}, r"agent\.adam_momentum = 1\.0 must be at least 0 and below 1\."),
        ({"priority_exponent": -0.5}, r"agent\.priority_exponent = -0\.5 must not be negative\."),
        ({"importance_exponent": 1.5}, r"agent\.importance_exponent = 1\.5 must be between 0 and 1\."),
        ({"hidden_sizes": (8, 0)}, r"agent\.hidden_sizes = \(8, 0\) must be at least 1\."),
    ],
    ids=str,
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ddpg.check(dataclasses.replace(ddpg.Config(), **changes), num_steps=1, num_envs=8)


def check_and_make(config: ddpg.Config) -> None:
    ddpg.check(config, 1, 8)
    ddpg.make(Box(-1, 1, (2,)), SPACE, config)  # knows the activations, torsos and dtypes


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(ddpg.Config):
        kind = type(getattr(ddpg.Config(), field.name))
        named = "value_min" if field.name == "value_max" else field.name  # a range is wrong as a whole
        if kind is not bool:
            with pytest.raises(InputError, match=rf"agent\.{named} = "):
                check_and_make(dataclasses.replace(ddpg.Config(), **{field.name: bad[kind]}))
