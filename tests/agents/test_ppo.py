"""PPO: its loss and first update by hand, the ratio of a real rollout, and where its numbers come from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from tests.agents import flat

from rollax import InputError, envs
from rollax.agents import Agent, Rollout, actor_critic, hyperparameters_of, normalisation, ppo
from rollax.envs.spaces import Box, Discrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
FLOATS = [field.name for field in dataclasses.fields(ppo.Config) if field.type == "float"]
T, N = 16, 4


def parts_of(agent: Agent) -> actor_critic.Parts:
    assert isinstance(agent.update, functools.partial)
    return agent.update.args[0]


def policy_of(parts: actor_critic.Parts, state: ppo.State, observation: Any, mask: Any = None) -> Any:
    """The policy at observations as the environment shows them."""
    features = flat.features(
        parts.torso, state.params.torso, normalisation.normalise(state.observation_statistics, observation)
    )
    return parts.policy(state.params, features, mask)


def tree_equal(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b))


@dataclasses.dataclass(frozen=True)
class Case:
    """An agent with a policy far from its start, and what it did in an environment."""

    agent: Agent
    state: ppo.State
    rollout: Rollout
    log_prob: np.ndarray  # float32 [T, N], computed step by step while acting


@functools.cache
def case(env_id: str) -> Case:
    raw = envs.make(env_id, max_steps_in_episode=12)
    env = envs.Vectorise(envs.AutoReset(raw), N)
    config = ppo.Config(hidden_sizes=(8,), num_epochs=2, num_minibatches=2)
    agent = ppo.make(env.observation_space(), env.action_space(), config)
    parts = parts_of(agent)

    def run(key: jax.Array) -> tuple[ppo.State, Rollout, jax.Array]:
        key_params, key_reset, key_steps = jax.random.split(key, 3)
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(agent.init, key))
        noise = jax.random.normal(key_params, (500,))
        params = jax.tree.map(lambda leaf: 0.5 * noise[: leaf.size].reshape(leaf.shape), state.params)
        state = dataclasses.replace(state, params=params, hyperparameters=hyperparameters_of(config))

        def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
            memory, env_state, before = carry
            key_act, key_step = jax.random.split(key)
            memory, decision = agent.act(state, memory, before, key_act)
            env_state, after = env.step(key_step, env_state, decision.action, env.default_params)
            row = Rollout.row(before, decision, after)
            log_prob = policy_of(parts, state, before.observation).log_prob(decision.extras["sample"])
            return (memory, env_state, after), (row, log_prob)

        carry = (agent.init_memory(N), *env.reset(key_reset, env.default_params))
        (_, _, last), (rollout, log_prob) = jax.lax.scan(step, carry, jax.random.split(key_steps, T))
        return state, dataclasses.replace(rollout, last=last), log_prob

    state, rollout, log_prob = jax.jit(run)(jax.random.key(2))
    return Case(agent, state, rollout, np.asarray(log_prob))


# The rollout as the update sees it.


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_first_ratio_is_one(env_id: str) -> None:
    parts, state, rollout = parts_of(case(env_id).agent), case(env_id).state, case(env_id).rollout
    acted = case(env_id).log_prob.reshape(-1)
    assert acted.std() > 0.1
    indices = np.random.default_rng(0).permutation(T * N)[: T * N // 4]

    def log_probs(state: ppo.State, rollout: Rollout) -> tuple[jax.Array, jax.Array, jax.Array]:
        batch = flat.prepare(parts, state, rollout)
        minibatch = jax.tree.map(lambda leaf: leaf[indices], batch)
        features = flat.features(parts.torso, state.params.torso, minibatch.observation)
        policy = parts.policy(state.params, features, minibatch.action_mask)
        return batch.log_prob, minibatch.log_prob, policy.log_prob(minibatch.sample)

    for transform in (jax.jit, lambda f: f) if env_id == "CartPole-v1" else (jax.jit,):
        prepared, old, new = transform(log_probs)(state, rollout)
        assert np.abs(np.exp(acted - prepared) - 1).max() <= 1e-5
        assert np.abs(np.exp(new - old) - 1).max() <= 1e-5


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_first_minibatch_does_not_clip(env_id: str) -> None:
    agent, state, rollout = case(env_id).agent, case(env_id).state, case(env_id).rollout
    once = dataclasses.replace(parts_of(agent).config, num_epochs=1, num_minibatches=1)
    parts = dataclasses.replace(parts_of(agent), config=once)
    _, update = jax.jit(functools.partial(ppo.update, parts))(state, rollout, jax.random.key(1))
    assert update.metrics["clip_fraction"] == 0
    assert abs(update.metrics["approximate_kl"]) < 1e-6
    np.testing.assert_allclose(update.metrics["policy_loss"], 0, atol=1e-6)  # minus the mean of normalised advantages
    assert all(value.shape == () and np.isfinite(value) for value in update.metrics.values())
    assert update.priorities is None


def params_of(kernel: Any, bias: Any, head: Any = ()) -> actor_critic.Params:
    """The params of linear networks: a policy of one's own, and the value 2 x."""

    def linear(kernel: Any, bias: Any) -> Any:
        return {"params": {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}}

    return actor_critic.Params(
        torso={}, value_torso={}, policy=linear(kernel, bias), head=head, value=linear([[2]], [0])
    )


def test_advantages_and_targets_of_a_real_rollout() -> None:
    agent, state, rollout = case("CartPole-v1").agent, case("CartPole-v1").state, case("CartPole-v1").rollout
    parts = parts_of(agent)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.params)
    hidden_layer, last_layer = params.value_torso["params"]["Dense_0"], params.value["params"]

    def value(observation: jax.Array) -> np.ndarray:
        hidden = np.tanh(np.asarray(observation, np.float64) @ hidden_layer["kernel"] + hidden_layer["bias"])
        return (hidden @ last_layer["kernel"] + last_layer["bias"])[..., 0]

    values = value(rollout.observation)
    advantages = np.zeros((T + 1, N))
    terminated, ended = np.asarray(rollout.terminated), np.asarray(rollout.ended)
    for t in reversed(range(T)):
        delta = rollout.reward[t] + 0.99 * ~terminated[t] * value(rollout.final_observation[t]) - values[t]
        advantages[t] = delta + 0.99 * 0.95 * ~ended[t] * advantages[t + 1]
    batch = jax.jit(functools.partial(flat.prepare, parts))(state, rollout)
    np.testing.assert_allclose(batch.advantage, advantages[:T].reshape(-1), atol=1e-4)
    np.testing.assert_allclose(batch.target[..., 0], (advantages[:T] + values).reshape(-1), atol=1e-4)
    np.testing.assert_allclose(batch.value[..., 0], values.reshape(-1), atol=1e-4)
    np.testing.assert_array_equal(batch.observation, rollout.observation.reshape(T * N, 4))
    np.testing.assert_array_equal(batch.sample, rollout.action.reshape(-1))


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_nothing_is_learnt_from_an_observation_after_a_reset(flag: str) -> None:
    agent, state, rollout = case("CartPole-v1").agent, case("CartPole-v1").state, case("CartPole-v1").rollout
    prepare = jax.jit(functools.partial(flat.prepare, parts_of(agent)))
    never = jnp.zeros((T, N), jnp.bool_)
    flags = {"terminated": never, "truncated": never, flag: never.at[5].set(True)}
    rollout = dataclasses.replace(rollout, **flags)

    def advantage_before_the_end(rollout: Rollout) -> jax.Array:
        return prepare(state, rollout).advantage.reshape(T, N)[:6]

    expected = advantage_before_the_end(rollout)
    after_reset = dataclasses.replace(rollout, observation=rollout.observation.at[6:].add(1.0))
    np.testing.assert_array_equal(advantage_before_the_end(after_reset), expected)
    true_end = dataclasses.replace(rollout, final_observation=rollout.final_observation.at[5].add(1.0))
    changed = advantage_before_the_end(true_end) != expected
    assert changed.all() if flag == "truncated" else not changed.any()


# The loss.


def loss_of(action_space: Any, **changes: Any) -> tuple[Callable[..., Any], dict[str, jax.Array]]:
    """PPO's loss with linear networks of one input, and the numbers of its config."""
    config = ppo.Config(hidden_sizes=(), **changes)
    parts = parts_of(ppo.make(Box(-9, 9, (1,)), action_space, config))
    return functools.partial(flat.loss, parts), hyperparameters_of(config)


def four_samples(ratio: np.ndarray, log_prob: np.ndarray, sample: Any) -> ppo.Batch:
    """Advantages 2, -1, 0.5, -3; with a critic of 2 x, values 0, 2, 4, 6 for targets 1, 2, 2, 7."""
    return ppo.Batch(
        observation=jnp.array([[0.0], [1.0], [2.0], [3.0]]),
        is_first=jnp.zeros(4, jnp.bool_),
        action_mask=None,
        sample=jnp.asarray(sample),
        log_prob=jnp.asarray(log_prob - np.log(ratio), jnp.float32),
        policy=None,
        value=jnp.array([[0.0], [2.0], [4.0], [6.0]]),
        advantage=jnp.array([2.0, -1.0, 0.5, -3.0]),
        target=jnp.array([[1.0], [2.0], [2.0], [7.0]]),
    )


RATIO = np.array([1.5, 0.5, 1.0, 0.9])


@MAYBE_JIT
def test_the_loss_of_four_samples_by_hand(transform: Transform) -> None:
    # A policy that is uniform over two actions, so log-probs and the entropy are -log 2 and log 2.
    params = params_of([[0, 0]], [0, 0])
    batch = four_samples(RATIO, np.full(4, -np.log(2)), np.array([0, 1, 1, 0]))
    loss, hyper = loss_of(Discrete(2), normalise_advantage="none")
    total, metrics = transform(loss)(params, hyper, batch)
    # min(ratio A, clipped ratio A) is 1.2 * 2, 0.8 * -1, 0.5 and 0.9 * -3, so the mean is -0.15; squared errors of the
    # values are 1, 0, 4 and 1.
    np.testing.assert_allclose(metrics["policy_loss"], 0.15, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], 0.75, rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], 0.6931472, rtol=1e-5)
    np.testing.assert_allclose(total, 0.15 + 0.5 * 0.75 - 0.01 * 0.6931472, rtol=1e-5)
    np.testing.assert_allclose(metrics["clip_fraction"], 0.5)
    np.testing.assert_allclose(
        metrics["approximate_kl"], (0.5 - np.log(1.5) - 0.5 - np.log(0.5) - 0.1 - np.log(0.9)) / 4, rtol=1e-4
    )


@MAYBE_JIT
@pytest.mark.parametrize("normalise", ["none", "minibatch"])
def test_the_loss_of_a_gaussian_against_scipy(normalise: Any, transform: Transform) -> None:
    params = params_of([[0.5, -0.2]], [0.1, 0.3], jnp.array([0.2, -0.5]))
    sample = np.array([[0.3, 0.1], [-1.2, 0.4], [2.0, -1.0], [0.0, 0.5]], np.float32)
    normal = scipy.stats.norm(np.arange(4)[:, None] * [0.5, -0.2] + [0.1, 0.3], np.exp([0.2, -0.5]))
    batch = four_samples(RATIO, normal.logpdf(sample).sum(-1), sample)
    loss, hyper = loss_of(Box(-1, 1, (2,)), normalise_advantage=normalise)
    hyper = {**hyper, "clip_epsilon": jnp.float32(0.3), "value_coefficient": jnp.float32(2.0)}
    total, metrics = transform(loss)(params, hyper, batch)

    advantage = np.array([2.0, -1.0, 0.5, -3.0])
    if normalise == "minibatch":
        advantage = (advantage - advantage.mean()) / advantage.std()
    policy_loss = -np.minimum(RATIO * advantage, np.clip(RATIO, 0.7, 1.3) * advantage).mean()
    entropy = normal.entropy().sum(-1).mean()
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(total, policy_loss + 2.0 * 0.75 - 0.01 * entropy, rtol=1e-4)


def test_the_loss_normalises_the_advantages_of_its_minibatch() -> None:
    params = params_of([[0.3, -0.3]], [0, 0.1])
    batch = four_samples(RATIO, np.full(4, -0.7), np.array([0, 1, 1, 0]))
    loss, hyper = loss_of(Discrete(2))
    moved = dataclasses.replace(batch, advantage=10 * batch.advantage + 3)
    np.testing.assert_allclose(loss(params, hyper, moved)[0], loss(params, hyper, batch)[0], rtol=1e-5)
    same = dataclasses.replace(batch, advantage=jnp.ones(4))
    assert np.isfinite(loss(params, hyper, same)[0])


def test_only_a_ratio_that_went_too_far_has_no_gradient() -> None:
    params = params_of([[0, 0]], [0, 0])
    loss, hyper = loss_of(Discrete(2), normalise_advantage="none")
    hyper = {**hyper, "entropy_coefficient": jnp.float32(0)}
    gradients = jax.jit(jax.grad(loss, has_aux=True))
    for ratio, advantage, has_gradient in (
        (1.5, 1.0, False),
        (1.5, -1.0, True),
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (1.1, 1.0, True),
        (0.9, -1.0, True),
    ):
        batch = four_samples(np.full(4, ratio), np.full(4, -np.log(2)), np.zeros(4, np.int32))
        gradient, _ = gradients(params, hyper, dataclasses.replace(batch, advantage=jnp.full(4, advantage)))
        # d ratio / d bias of the action taken = ratio (1 - 1/2)
        expected = -ratio * advantage * 0.5 if has_gradient else 0.0
        np.testing.assert_allclose(gradient.policy["params"]["bias"], [expected, -expected], rtol=1e-5)


# Updates.


def test_one_update_by_hand() -> None:
    agent, state, rollout = case("CartPole-v1").agent, case("CartPole-v1").state, case("CartPole-v1").rollout
    parts = parts_of(agent)
    once = dataclasses.replace(parts.config, num_epochs=1, num_minibatches=1, learning_rate_schedule="linear")
    parts = dataclasses.replace(parts, config=once)
    hyper = {**state.hyperparameters, "horizon": jnp.float32(8), "adam_epsilon": jnp.float32(0.01)}
    hyper["max_grad_norm"] = jnp.float32(0.05)
    state = dataclasses.replace(state, hyperparameters=hyper, updates=jnp.int32(2))
    after, update = jax.jit(functools.partial(ppo.update, parts))(state, rollout, jax.random.key(1))

    def gradients(state: ppo.State, rollout: Rollout) -> actor_critic.Params:
        batch = flat.prepare(parts, state, rollout)
        return jax.grad(functools.partial(flat.loss, parts), has_aux=True)(state.params, hyper, batch)[0]

    gradient = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.jit(gradients)(state, rollout))
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    assert norm > 0.05
    learning_rate = 2.5e-4 * 0.75
    np.testing.assert_allclose(update.metrics["gradient_norm"], norm, rtol=1e-4)
    np.testing.assert_allclose(update.metrics["learning_rate"], learning_rate, rtol=1e-6)
    for before, now, raw in zip(*map(jax.tree.leaves, (state.params, after.params, gradient)), strict=True):
        clipped = raw * 0.05 / norm
        np.testing.assert_allclose(now - before, -learning_rate * clipped / (np.abs(clipped) + 0.01), atol=1e-7)
    assert after.updates == 3
    assert after.env_steps == state.env_steps
    np.testing.assert_array_equal(agent.observe(after, rollout).env_steps, T * N)


def test_every_epoch_sees_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def loss(
        parts: actor_critic.Parts, params: actor_critic.Params, hyper: Any, memory: Any, batch: ppo.Batch
    ) -> tuple[jax.Array, dict[str, Any]]:
        jax.debug.callback(lambda rows: seen.append(np.asarray(rows)), batch.observation[0, :, 0], ordered=True)
        return jnp.sum(params.head), {"nothing": jnp.zeros(())}

    monkeypatch.setattr(ppo, "loss", loss)
    config = ppo.Config(hidden_sizes=(), num_epochs=3, num_minibatches=4)
    agent = ppo.make(Box(0, 99, (1,)), Box(-1, 1, (1,)), config)
    rows = jnp.arange(12.0).reshape(6, 2, 1)
    flags = jnp.zeros((6, 2), jnp.bool_)
    rollout = Rollout(rows, rows, rows[..., 0], flags, flags, flags, rows, None, None, {"sample": rows})
    jax.block_until_ready(jax.jit(agent.update)(agent.init(jax.random.key(0)), rollout, jax.random.key(1)))
    jax.effects_barrier()
    assert [len(minibatch) for minibatch in seen] == [3] * 12
    epochs = np.array(seen).reshape(3, 12)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(12), (3, 12)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


# Acting.


@MAYBE_JIT
@pytest.mark.parametrize("action_space", [Discrete(3), Box(-2, 2, (2,))], ids=["Discrete", "Box"])
def test_acting(action_space: Any, transform: Transform) -> None:
    agent = ppo.make({"a": Box(-1, 1, (2,)), "b": Discrete(4)}, action_space, ppo.Config(hidden_sizes=(8,)))
    state = jax.jit(agent.init)(jax.random.key(0))
    observation = {"a": jnp.array([[0.5, -1.0], [0.0, 1.0], [0.5, -1.0]]), "b": jnp.array([3, 0, 3])}
    timestep = envs.timestep(observation, jnp.zeros(3), jnp.zeros(3, jnp.bool_))
    memory = agent.init_memory(3)
    assert jax.tree.leaves(memory) == []
    key = jax.random.key(1)

    act = functools.partial(agent.act, state, memory, timestep)
    explored = transform(lambda key: act(key)[1])(key)
    assert explored.action.shape == (3, *action_space.shape)
    assert explored.action.dtype == action_space.dtype
    assert jax.vmap(action_space.contains)(explored.action).all()
    _, same = agent.act_with(state, memory, timestep, agent.noise(key, 3))
    np.testing.assert_allclose(explored.action, same.action, atol=1e-6)

    greedy = transform(lambda key: act(key, explore=False)[1])(key)
    _, again = agent.act_with(state, memory, timestep, None, explore=False)
    np.testing.assert_allclose(greedy.action, again.action, atol=1e-6)
    np.testing.assert_array_equal(greedy.action[0], greedy.action[2])
    assert not np.array_equal(agent.noise(key, 3), agent.noise(jax.random.key(2), 3))


def test_illegal_actions_are_never_taken_and_never_learnt() -> None:
    agent = ppo.make(Box(-1, 1, (2,)), Discrete(3), ppo.Config(hidden_sizes=(), num_minibatches=1))
    state = agent.init(jax.random.key(0))
    mask = jnp.array([[True, False, True], [False, True, False]])
    observation = jax.random.normal(jax.random.key(1), (2, 2))
    timestep = envs.timestep(observation, jnp.zeros(2), jnp.zeros(2, jnp.bool_), action_mask=mask)

    @jax.jit
    def run(keys: jax.Array) -> Any:
        actions = jax.vmap(lambda key: agent.act(state, agent.init_memory(2), timestep, key)[1].action)(keys)
        tile = functools.partial(jax.tree.map, lambda leaf: jnp.broadcast_to(leaf, (len(keys), *leaf.shape)))
        flags = jnp.zeros(actions.shape, jnp.bool_)
        rewards = actions.astype(jnp.float32)
        rollout = Rollout(
            tile(observation),
            actions,
            rewards,
            flags,
            flags,
            flags,
            tile(observation),
            tile(mask),
            tile(mask),
            {"sample": actions},
        )
        return actions, agent.update(state, rollout, keys[0])

    actions, (after, update) = run(jax.random.split(jax.random.key(2), 100))
    assert [set(np.unique(column)) for column in np.asarray(actions).T] == [{0, 2}, {1}]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, update)))
    assert not tree_equal(after.params, state.params)


# Initialisation and hyperparameters.


def test_init_under_vmap_gives_each_seed_its_own_parameters() -> None:
    agent = ppo.make(Box(-1, 1, (3,)), Discrete(2), ppo.Config(hidden_sizes=(4,)))
    keys = jax.random.split(jax.random.key(0), 4)
    states = jax.jit(jax.vmap(agent.init))(keys)
    params, seen = states.params, set()
    for layer in (
        params.torso["params"]["Dense_0"],
        params.value_torso["params"]["Dense_0"],
        params.policy["params"],
        params.value["params"],
    ):
        assert not np.asarray(layer["bias"]).any()
        seen |= {kernel.tobytes() for kernel in np.asarray(layer["kernel"])}
    assert len(seen) == 4 * 4
    alone = jax.jit(agent.init)(keys[2])
    for together, single in zip(jax.tree.leaves(states), jax.tree.leaves(alone), strict=True):
        assert not single.weak_type
        np.testing.assert_allclose(together[2], single, atol=1e-6)
    np.testing.assert_array_equal(states.hyperparameters["discount"], np.full(4, 0.99, np.float32))


def test_init_copies_the_numbers_and_takes_others() -> None:
    config = ppo.Config(hidden_sizes=(), learning_rate=3e-3)
    agent = ppo.make(Box(-1, 1, (1,)), Discrete(2), config)
    hyper = agent.init(jax.random.key(0), {"discount": 0.5, "horizon": 7}).hyperparameters
    assert set(hyper) == set(FLOATS)
    assert all(value.dtype == jnp.float32 and value.shape == () for value in hyper.values())
    expected = {**{name: getattr(config, name) for name in FLOATS}, "discount": 0.5, "horizon": 7.0}
    assert hyper == {name: jnp.float32(value) for name, value in expected.items()}
    grid = jax.vmap(lambda rate: agent.init(jax.random.key(0), {"learning_rate": rate}))(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(grid.hyperparameters["learning_rate"], [0.1, 0.2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learning_rat", r"hyperparameter 'learning_rat' does not exist: did you mean 'learning_rate'"),
        ("num_epochs", r"hyperparameter 'num_epochs' does not exist"),
        ("normalise_advantage", r"hyperparameter 'normalise_advantage' does not exist"),
    ],
)
def test_unknown_hyperparameters(name: str, message: str) -> None:
    agent = ppo.make(Box(-1, 1, (1,)), Discrete(2), ppo.Config(hidden_sizes=()))
    with pytest.raises(InputError, match=message):
        agent.init(jax.random.key(0), {name: 1.0})


def test_the_numbers_are_read_from_the_state_only() -> None:
    agent, state, rollout = case("CartPole-v1").agent, case("CartPole-v1").state, case("CartPole-v1").rollout
    config = dataclasses.replace(
        parts_of(agent).config, num_epochs=2, num_minibatches=4, stop_at_target_kl=True, entropy_schedule="linear"
    )
    elsewhere = ("initial_", "drift_", "bonus_")  # what `init` alone, another objective or a bonus reads
    names = [name for name in FLOATS if not name.startswith(elsewhere)]
    hyper = {**state.hyperparameters, "learning_rate": jnp.float32(0.05), "horizon": jnp.float32(20)}
    state = dataclasses.replace(state, hyperparameters=hyper, updates=jnp.int32(5))
    key, space = jax.random.key(3), envs.make("CartPole-v1").observation_space()

    def update(config: ppo.Config) -> Callable[[Any], actor_critic.Params]:
        agent = ppo.make(space, Discrete(2), config)
        return lambda hyper: agent.update(dataclasses.replace(state, hyperparameters=hyper), rollout, key)[0].params

    # One variant for each number, halved, in one vmap: each changes the result.
    variants = [hyper] + [{**hyper, name: hyper[name] / 2} for name in names]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *variants)
    results = jax.jit(jax.vmap(update(config)))(stacked)
    for index, name in enumerate(names, start=1):
        same = jax.tree.map(lambda leaf, index=index: bool(jnp.all(leaf[index] == leaf[0])), results)
        assert not jax.tree.all(same), name

    # Another config's numbers change nothing.
    others = dataclasses.replace(config, **{name: getattr(config, name) / 2 for name in names})
    assert tree_equal(jax.jit(jax.vmap(update(others)))(stacked), results)


def test_no_key_is_used_twice() -> None:
    agent, rollout = case("CartPole-v1").agent, case("CartPole-v1").rollout
    with jax.debug_key_reuse(True):
        key_init, key_act, key_update = jax.random.split(jax.random.key(0), 3)
        state = jax.jit(agent.init)(key_init)
        jax.jit(agent.act)(state, agent.init_memory(N), rollout.last, key_act)
        state, _ = jax.jit(agent.update)(state, rollout, key_update)
    assert state.updates == 1


# A loop of one's own.


def own_loop(agent: Agent, state: ppo.State, transform: Transform, iterations: int) -> list[tuple[ppo.State, float]]:
    """Trains in two Gymnasium environments, with numpy on one side and the agent's functions on the other."""
    act, update, observe = (transform(function) for function in (agent.act, agent.update, agent.observe))
    members = [gymnasium.make("CartPole-v1", max_episode_steps=5, disable_env_checker=True) for _ in range(2)]
    memory = agent.init_memory(2)
    observation = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(members)])
    is_first, history = np.ones(2, bool), []
    never = np.zeros(2, bool)
    for iteration in range(iterations):
        rows = []
        for step in range(8):
            before = dataclasses.replace(envs.timestep(observation, np.zeros(2), never, never), is_first=is_first)
            key = jax.random.fold_in(jax.random.key(1), 8 * iteration + step)
            memory, decision = act(state, memory, before, key)
            results = [env.step(int(action)) for env, action in zip(members, decision.action, strict=True)]
            final, reward, terminated, truncated = (np.stack(part) for part in list(zip(*results, strict=True))[:4])
            is_first = terminated | truncated
            observation = np.stack(
                [env.reset()[0] if end else row for env, end, row in zip(members, is_first, final, strict=True)]
            )
            after = dataclasses.replace(
                envs.timestep(observation, reward, terminated, truncated), is_first=is_first, final_observation=final
            )
            rows.append(Rollout.row(before, decision, after))
        rollout = Rollout.stack(rows)
        assert rollout.truncated.any()
        state, report = update(state, rollout, jax.random.fold_in(jax.random.key(2), iteration))
        state = observe(state, rollout)
        history.append((state, float(report.metrics["value_loss"])))
    return history


def test_a_loop_of_ones_own_with_and_without_jit() -> None:
    config = ppo.Config(hidden_sizes=(4,), num_epochs=2, num_minibatches=2, learning_rate=1e-3)
    agent = ppo.make(Box(-np.inf, np.inf, (4,)), Discrete(2), config)
    start = jax.jit(agent.init)(jax.random.key(0))
    ((plain, plain_loss),) = own_loop(agent, start, lambda f: f, iterations=1)
    (jitted, loss), *_, (last, last_loss) = own_loop(agent, start, jax.jit, iterations=3)
    assert (int(jitted.env_steps), int(last.env_steps)) == (2 * 8, 2 * 8 * 3)
    assert (int(jitted.updates), int(last.updates)) == (1, 3)
    assert np.isfinite(last_loss)
    np.testing.assert_allclose(plain_loss, loss, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_rollout_of_numpy_arrays_without_jit() -> None:
    agent, state, rollout = case("CartPole-v1").agent, case("CartPole-v1").state, case("CartPole-v1").rollout
    expected, _ = jax.jit(agent.update)(state, rollout, jax.random.key(0))
    got, _ = agent.update(state, jax.tree.map(np.asarray, rollout), jax.random.key(0))
    for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
