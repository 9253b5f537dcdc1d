"""PQN: lambda-returns by hand and against rlax, its targets at both kinds of end, and whole updates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

from rollax import InputError, envs
from rollax.agents import Rollout, exploration, hyperparameters_of, pqn
from rollax.agents.returns import lambda_return
from rollax.envs.spaces import Box, Discrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


# Returns.


@MAYBE_JIT
@pytest.mark.parametrize(
    ("end", "expected"),
    # From the back: 4 + .9 * 2.5 = 6.25; 3 + .9 (.2 * 2 + .8 * 6.25) = 7.86; then the end: 2, or 2 + .9 * .7 = 2.63;
    # 1 + .9 (.2 * 1 + .8 * 2) = 2.62, or 1 + .9 (.2 * 1 + .8 * 2.63) = 3.0736.
    [
        ("terminated", [2.62, 2.0, 7.86, 6.25]),
        ("truncated", [3.0736, 2.63, 7.86, 6.25]),
        ("both", [2.62, 2, 7.86, 6.25]),
    ],
)
def test_lambda_returns_where_an_episode_ends(end: str, expected: list[float], transform: Transform) -> None:
    after_step_1, never = np.array([[False], [True], [False], [False]]), np.zeros((4, 1), bool)
    total = transform(lambda_return)(
        jnp.array([[1.0], [2], [3], [4]]),
        jnp.array([[1.0], [0.7], [2], [2.5]]),
        jnp.asarray(after_step_1 if end != "truncated" else never),
        jnp.asarray(after_step_1 if end != "terminated" else never),
        0.9,
        0.8,
    )
    np.testing.assert_allclose(total[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("trace_decay", [0.0, 0.65, 1.0])
def test_lambda_returns_against_rlax(trace_decay: float) -> None:
    random = np.random.default_rng(0)
    reward, next_value = random.normal(size=(2, 9, 3)).astype(np.float32)
    terminated = random.random((9, 3)) < 0.3
    ours = lambda_return(reward, next_value, terminated, np.zeros_like(terminated), 0.9, trace_decay)
    theirs = jax.vmap(functools.partial(rlax.lambda_returns, lambda_=trace_decay), in_axes=1, out_axes=1)(
        jnp.asarray(reward), jnp.asarray(0.9 * (1 - terminated), jnp.float32), jnp.asarray(next_value)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# Exploration.


def test_epsilon_is_the_share_of_random_actions_and_they_are_legal_and_uniform() -> None:
    count, epsilon = 20_000, 0.3
    noise = exploration.noise(jax.random.key(0), count, 4)
    values = jnp.broadcast_to(jnp.array([0.0, 9.0, 1.0, 2.0]), (count, 4))
    mask = jnp.broadcast_to(jnp.array([True, False, True, True]), (count, 4))
    free = np.bincount(exploration.epsilon_greedy(values, None, epsilon, noise), minlength=4) / count
    np.testing.assert_allclose(free, [0.075, 0.775, 0.075, 0.075], atol=0.01)
    masked = np.bincount(exploration.epsilon_greedy(values, mask, epsilon, noise), minlength=4) / count
    np.testing.assert_allclose(masked, [0.1, 0.0, 0.1, 0.8], atol=0.01)
    assert (exploration.epsilon_greedy(values, mask, 1.0, None) == 3).all()  # no noise, no exploration


def test_epsilon_falls_over_its_steps() -> None:
    numbers = hyperparameters_of(pqn.Config(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=200))
    for env_steps, expected in ((0, 0.9), (50, 0.7), (200, 0.1), (900, 0.1)):
        np.testing.assert_allclose(exploration.epsilon(numbers, jnp.asarray(env_steps)), expected, rtol=1e-6)
    at_once = {**numbers, "epsilon_steps": jnp.float32(0)}
    np.testing.assert_allclose(exploration.epsilon(at_once, jnp.asarray([0, 1])), [0.9, 0.1], rtol=1e-6)


# Targets and updates, with Q(s, .) = [2 s, 1 - s].


def linear(**changes: Any) -> tuple[pqn.Parts, pqn.State]:
    config = pqn.Config(
        **{"hidden_sizes": (), "discount": 0.5, "trace_decay": 0.0, "num_epochs": 1, "num_minibatches": 1, **changes}
    )
    agent = pqn.make(Box(-9, 9, (1,)), Discrete(2), config)
    assert isinstance(agent.update, functools.partial)
    state = agent.init(jax.random.key(0))
    value = {"params": {"kernel": jnp.array([[2.0, -1.0]]), "bias": jnp.array([0.0, 1.0])}}
    return agent.update.args[0], dataclasses.replace(state, params=dataclasses.replace(state.params, value=value))


def three_steps(final_mask: Any = None) -> Rollout:
    """One environment: a step within the episode, one that terminates, one that is cut off."""

    def column(rows: jax.Array) -> jax.Array:
        return rows[:, None]

    seen, after = jnp.array([1.0, 2.0, -1.0]), jnp.array([2.0, 3.0, 4.0])
    return Rollout(
        observation=column(seen)[..., None],
        action=column(jnp.array([0, 1, 1], jnp.int32)),
        reward=column(jnp.array([1.0, 2.0, 3.0])),
        terminated=column(jnp.array([False, True, False])),
        truncated=column(jnp.array([False, False, True])),
        is_first=column(jnp.array([True, False, True])),
        final_observation=column(after)[..., None],
        action_mask=None,
        final_action_mask=final_mask,
        extras={},
    )


@MAYBE_JIT
def test_targets_stop_at_terminations_and_not_at_truncations(transform: Transform) -> None:
    parts, state = linear()
    _, batch = transform(functools.partial(pqn.prepare, parts))(state, three_steps())
    # max Q after: 4 at 2, 6 at 3 (not used), 8 at 4.
    np.testing.assert_allclose(batch.target[0], [1 + 0.5 * 4, 2, 3 + 0.5 * 8], rtol=1e-6)
    # Where the first action is illegal afterwards: 1 - 2 = -1 and 1 - 4 = -3.
    mask = jnp.broadcast_to(jnp.array([False, True]), (3, 1, 2))
    _, batch = transform(functools.partial(pqn.prepare, parts))(state, three_steps(mask))
    np.testing.assert_allclose(batch.target[0], [1 - 0.5, 2, 3 - 1.5], rtol=1e-6)


@MAYBE_JIT
def test_an_update_by_hand(transform: Transform) -> None:
    parts, state = linear(learning_rate=0.1, learning_rate_schedule="constant")
    after, update = transform(functools.partial(pqn.update, parts))(state, three_steps(), jax.random.key(1))
    # Q(s, a) = 2, -1, 2 for targets 3, 2, 7: errors 1, 3, 5.
    np.testing.assert_allclose(update.metrics["loss"], (1 + 9 + 25) / 6, rtol=1e-6)
    np.testing.assert_allclose(update.metrics["td_error"], 3, rtol=1e-6)
    gradient = {
        "params": {
            "kernel": jnp.array([[-1.0 * 1, -(3.0 * 2 + 5.0 * -1)]]) / 3,
            "bias": jnp.array([-1.0, -8.0]) / 3,
        }
    }
    np.testing.assert_allclose(update.metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-6)
    assert int(after.updates) == 1
    direction, _ = optax.scale_by_radam().update(gradient, optax.scale_by_radam().init(gradient))
    expected = jax.tree.map(lambda old, step: old - 0.1 * step, state.params.value, direction)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), after.params.value, expected)


def test_numbers_are_read_from_the_state() -> None:
    parts, state = linear()
    update = jax.jit(functools.partial(pqn.update, parts))
    for name in ("learning_rate", "discount", "trace_decay", "max_grad_norm", "epsilon_start", "horizon"):
        hyper = {**state.hyperparameters, name: jnp.float32(0.3)}
        first = update(dataclasses.replace(state, updates=jnp.asarray(1)), three_steps(), jax.random.key(1))
        second = update(
            dataclasses.replace(state, updates=jnp.asarray(1), hyperparameters=hyper), three_steps(), jax.random.key(1)
        )
        changed = [
            bool(np.any(a != b))
            for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
            if not np.array_equal(a, hyper[name])
        ]
        assert any(changed), name


@pytest.mark.parametrize("memory", ["gru", "transformer"])
def test_with_a_memory_targets_come_from_the_memory_that_led_there(memory: str) -> None:
    config = pqn.Config(memory=memory, memory_size=8, memory_window=3, memory_heads=2, hidden_sizes=(8,))
    agent = pqn.make(Box(-9, 9, (3,)), Discrete(2), config)
    assert isinstance(agent.update, functools.partial)
    parts, state = agent.update.args[0], agent.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 3)
    observation, final = (jax.random.normal(key, (6, 2, 3)) for key in keys[:2])
    first = jnp.zeros((6, 2), jnp.bool_).at[3, 0].set(True)
    cut = jnp.zeros((6, 2), jnp.bool_).at[2, 0].set(True)
    final = final.at[:-1].set(jnp.where(cut[:-1, :, None], final[:-1], observation[1:]))
    step = jax.jit(parts.torso.step)
    before, _ = step(state.params.torso, agent.init_memory(2), observation[0], first[0])
    flags = jnp.zeros((6, 2), jnp.bool_)
    rollout = Rollout(
        observation, flags.astype(jnp.int32), jnp.ones((6, 2)), flags, cut, first, final, None, None, {}, before
    )
    _, batch = jax.jit(functools.partial(pqn.prepare, parts))(state, rollout)
    carried, best = before, []
    for t in range(6):
        carried, _ = step(state.params.torso, carried, observation[t], first[t])
        _, ahead = step(state.params.torso, carried, final[t], flags[t])
        best.append(parts.value_layer.apply(state.params.value, ahead).max(axis=-1))
    expected = lambda_return(rollout.reward, jnp.stack(best), flags, cut, config.discount, config.trace_decay)
    assert batch.target.shape == (6, 2)
    np.testing.assert_allclose(batch.target, expected, atol=1e-5)


# Acting.


def test_acting_takes_legal_actions_and_the_best_ones_when_greedy() -> None:
    parts, state = linear(epsilon_start=1.0)
    agent = pqn.make(Box(-9, 9, (1,)), Discrete(2), parts.config)
    seen = jnp.array([[1.0], [-1.0], [0.0]])
    timestep = jax.vmap(envs.timestep)(seen)
    _, decision = agent.act(state, agent.init_memory(3), timestep, jax.random.key(0), explore=False)
    np.testing.assert_array_equal(decision.action, [0, 1, 1])
    assert decision.action.dtype == jnp.int32
    masked = dataclasses.replace(timestep, action_mask=jnp.array([[False, True], [True, False], [True, True]]))
    for key in jax.random.split(jax.random.key(1), 20):
        _, decision = agent.act(state, agent.init_memory(3), masked, key)
        np.testing.assert_array_equal(decision.action[:2], [1, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0"),
        ({"max_grad_norm": float("nan")}, r"agent\.max_grad_norm = nan must be above 0"),
        ({"trace_decay": 1.5}, r"agent\.trace_decay = 1\.5 must be between 0 and 1"),
        ({"epsilon_end": -0.1}, r"agent\.epsilon_end = -0\.1 must be between 0 and 1"),
        ({"epsilon_steps": -1.0}, r"agent\.epsilon_steps = -1\.0 must not be negative"),
        (
            {"num_minibatches": 5},
            r"agent\.num_minibatches = 5 must divide train\.num_envs \* train\.num_steps = 4 \* 8",
        ),
        ({"memory": "gru", "num_minibatches": 8}, r"agent\.num_minibatches = 8 must divide train\.num_envs = 4"),
        ({"memory": "lsmt"}, r"agent\.memory = 'lsmt' is no known memory: did you mean 'lstm'"),
        ({"learning_rate_schedule": "liner"}, r"did you mean 'linear'"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pqn.check(pqn.Config(**changes), num_steps=8, num_envs=4)


def test_spaces_that_it_cannot_act_in() -> None:
    with pytest.raises(InputError, match=r"does not fit train\.agent = 'pqn', which acts in Discrete spaces"):
        pqn.make(Box(-1, 1, (2,)), Box(-1, 1, (2,)), pqn.Config())
