"""R2D2: its update by hand, what burn-in, ends of episodes and masks do, and that stored memory tells what acted."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import Probe
from tests.marks import thorough

from rollax import InputError, envs, experiments, replay
from rollax.agents import Rollout, optimisers, r2d2
from rollax.envs import spaces
from rollax.experiments import collection
from rollax.replay import Sample

# Compiled once for each config.
UPDATE = jax.jit(r2d2.update, static_argnums=0)
PREPARE = jax.jit(r2d2.prepare, static_argnums=0)
UNROLL = jax.jit(r2d2.Parts.unroll, static_argnums=0)
GRADIENT = jax.jit(jax.grad(r2d2.loss, argnums=1, has_aux=True), static_argnums=0)
STEP = jax.jit(lambda parts, *arguments: parts.torso.step(*arguments), static_argnums=0)
OBSERVATION_SPACE = spaces.Box(-9.0, 9.0, (2,))
LENGTH, BATCH, ACTIONS = 6, 3, 3
with_each_memory = pytest.mark.parametrize("memory", ["gru", *thorough("lstm", "linear", "transformer")])


# By hand: a linear network of one number, in one window of three rows.


def hand_parts(**changes: Any) -> r2d2.Parts:
    config = r2d2.Config(
        learning_rate=0.25,
        discount=0.5,
        n_step=2,
        rescale_values=False,
        burn_in=0,
        target_rate=0.5,
        max_grad_norm=1e6,
        adam_epsilon=1.0,
        memory="none",
        hidden_sizes=(),
        dueling=False,
    )
    return r2d2.make_parts(spaces.Box(-9.0, 9.0, (1,)), spaces.Discrete(2), dataclasses.replace(config, **changes))


def linear(kernel: list[float], bias: list[float]) -> Any:
    return {"params": {"kernel": jnp.array([kernel], jnp.float32), "bias": jnp.array(bias, jnp.float32)}}


def hand_state(parts: r2d2.Parts) -> r2d2.State:
    """Q(s) = [s, 2 s + 0.5] and Q_target(s) = [0.5 s + 1, -s]."""
    state = r2d2.init(parts, jax.random.key(0))
    online = dataclasses.replace(state.params, values=linear([1, 2], [0, 0.5]))
    target = dataclasses.replace(state.params, values=linear([0.5, -1], [1, 0]))
    return dataclasses.replace(state, params=online, target_params=target)


def column(*values: Any) -> jax.Array:
    return jnp.asarray(values)[:, None]


def hand_batch(**changes: Any) -> Sample:
    """Sees 1, 2 and 3, does 0, 1 and 0 for rewards 1, 2 and 3; weight 0.5."""
    rows = Rollout(
        observation=column([1.0], [2.0], [3.0]),
        action=column(0, 1, 0),
        reward=column(1.0, 2.0, 3.0),
        terminated=column(False, False, False),
        truncated=column(False, False, False),
        is_first=column(False, False, False),
        final_observation=column([2.0], [3.0], [4.0]),
        action_mask=None,
        final_action_mask=None,
        extras={"memory": ()},
    )
    mask = changes.pop("mask", column(True, True, True))
    return Sample(dataclasses.replace(rows, **changes), jnp.zeros(1, jnp.int32), jnp.array([0.5]), mask)


def td_errors(parts: r2d2.Parts, batch: Sample) -> np.ndarray:
    state = hand_state(parts)
    windows = PREPARE(parts, state, batch)
    _, following = UNROLL(parts, state.target_params, windows.target_memory, windows.rows)
    _, (td_error, _) = r2d2.loss(parts, state.params, state.hyperparameters, windows, following)
    return np.asarray(td_error)[:, 0]


ENDS = column(False, True, False)


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        # Q chooses action 1 everywhere: -2, -3 and -4 follow. G = 1 + 1 - 3/4, 2 + 3/2 - 4/4, 3 - 4/2.
        ({}, {}, [1.25 - 1, 2.5 - 4.5, 1.0 - 3]),
        # Q_target chooses action 0: 2, 2.5 and 3 follow.
        ({"double": False}, {}, [2.625 - 1, 4.25 - 4.5, 4.5 - 3]),
        ({"n_step": 1}, {}, [1 - 1 - 1, 2 - 1.5 - 4.5, 3 - 2 - 3]),
        # Nothing follows a termination; the third row is another episode's.
        ({}, {"terminated": ENDS}, [2.0 - 1, 2.0 - 4.5, 1.0 - 3]),
        ({}, {"terminated": ENDS, "truncated": ENDS}, [2.0 - 1, 2.0 - 4.5, 1.0 - 3]),
        # A truncation is followed by what would have come, 10 with -10, and not by 3.
        (
            {},
            {"truncated": ENDS, "final_observation": column([2.0], [10.0], [4.0])},
            [2 - 2.5 - 1, 2 - 5 - 4.5, 1.0 - 3],
        ),
        # Where action 1 is illegal, as after the second row, 0 is the best: 2.5 follows.
        ({}, {"final_action_mask": column([True, True], [True, False], [True, True])}, [2.625 - 1, 2.5 - 4.5, -2.0]),
        ({"n_step": 1}, {"final_action_mask": column(*[[True, False]] * 3)}, [2 - 1, 3.25 - 4.5, 4.5 - 3]),
        (
            {"double": False, "n_step": 1},
            {"final_action_mask": column(*[[False, True]] * 3)},
            [-1.0, 0.5 - 4.5, 1.0 - 3],
        ),
        # Rows that do not count have no error, and no return goes through them.
        ({}, {"mask": column(True, True, False)}, [1.25 - 1, 0.5 - 4.5, 0]),
    ],
)
def test_temporal_difference_errors_by_hand(config: Any, changes: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(td_errors(hand_parts(**config), hand_batch(**changes)), expected, rtol=1e-6)


def test_rescaled_values_by_hand() -> None:
    def h(x: float) -> float:
        return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x

    # h(3) = 1.003, h(8) = 2.008 and h(15) = 3.015: of action 1, -8, -3 and -15 follow.
    changes = {"final_observation": column([2.008], [1.003], [3.015])}
    expected = np.array([h(1 + 0.5 * 2 - 0.25 * 3), h(2 + 0.5 * 3 - 0.25 * 15), h(3 - 0.5 * 15)])
    errors = td_errors(hand_parts(rescale_values=True), hand_batch(**changes))
    np.testing.assert_allclose(errors, expected - np.array([1, 4.5, 3]), rtol=1e-4)


def test_an_update_by_hand() -> None:
    parts, batch = hand_parts(), hand_batch()
    state, update = UPDATE(parts, hand_state(parts), batch, jax.random.key(0))
    # dL/dQ = -w delta / 3 with delta = 1/4, -2 and -2; the first step of Adam is g / (|g| + epsilon).
    kernel = np.array([-(0.25 * 1 - 2 * 3) / 6, 2 * 2 / 6])
    bias = np.array([-(0.25 - 2) / 6, 2 / 6])
    online = {
        "kernel": np.array([1, 2]) - 0.25 * kernel / (kernel + 1),
        "bias": np.array([0, 0.5]) - 0.25 * bias / (bias + 1),
    }
    new = state.params.values["params"]
    np.testing.assert_allclose(new["kernel"][0], online["kernel"], rtol=1e-5)
    np.testing.assert_allclose(new["bias"], online["bias"], rtol=1e-5)
    target = state.target_params.values["params"]
    np.testing.assert_allclose(target["kernel"][0], (online["kernel"] + np.array([0.5, -1])) / 2, rtol=1e-5)
    np.testing.assert_allclose(target["bias"], (online["bias"] + np.array([1, 0])) / 2, rtol=1e-5)
    np.testing.assert_allclose(update.priorities, [0.9 * 2 + 0.1 * 4.25 / 3], rtol=1e-6)
    np.testing.assert_allclose(update.metrics["td_error"], 4.25 / 3, rtol=1e-6)
    np.testing.assert_allclose(update.metrics["q_value"], 8.5 / 3, rtol=1e-6)
    np.testing.assert_allclose(update.metrics["loss"], 0.5 * (0.25**2 + 4 + 4) / 6, rtol=1e-6)
    np.testing.assert_allclose(update.metrics["gradient_norm"], np.sqrt((kernel**2).sum() + (bias**2).sum()), rtol=1e-5)
    assert (int(state.updates), int(state.env_steps)) == (1, 0)


def test_the_target_network_moves_every_target_period_updates() -> None:
    parts, batch = hand_parts(target_period=3, target_rate=1.0), hand_batch()
    state = start = hand_state(parts)
    for count in range(1, 7):
        before = state
        state, _ = UPDATE(parts, state, batch, jax.random.key(0))
        jax.tree.map(
            np.testing.assert_array_equal,
            state.target_params,
            state.params if count % 3 == 0 else before.target_params,
        )
    assert not np.array_equal(
        state.target_params.values["params"]["bias"], start.target_params.values["params"]["bias"]
    )


def test_priorities_by_hand() -> None:
    td_error = jnp.array([[1.0, 0.0, -4.0], [-3.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    mask = jnp.array([[True, False, True], [True, False, False], [True, False, False]])
    np.testing.assert_allclose(r2d2.priorities(td_error, mask, 0.9), [0.9 * 3 + 0.1 * 2, 0.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(r2d2.priorities(td_error, mask, 0.0), [2.0, 0.0, 4.0], rtol=1e-6)


def test_windows_without_a_row_that_counts_leave_the_network_as_it_is() -> None:
    parts = hand_parts(target_rate=1.0)
    start = hand_state(parts)
    state, update = UPDATE(parts, start, hand_batch(mask=column(False, False, False)), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.params, start.params)
    np.testing.assert_array_equal(update.priorities, [0.0])
    assert all(np.isfinite(value) for value in update.metrics.values())


def test_the_learning_rate_falls_over_the_horizon() -> None:
    parts, batch = hand_parts(learning_rate_schedule="linear", horizon=4.0), hand_batch()
    state, rates = hand_state(parts), []
    for _ in range(5):
        state, update = UPDATE(parts, state, batch, jax.random.key(0))
        rates.append(float(update.metrics["learning_rate"]))
    np.testing.assert_allclose(rates, [0.25, 0.1875, 0.125, 0.0625, 0.0])


# With memory: random windows.


@functools.cache
def case(memory: str, **changes: Any) -> tuple[r2d2.Parts, r2d2.State]:
    """An agent whose target network is another than its own."""
    config = r2d2.Config(
        learning_rate=0.01,
        burn_in=2,
        memory=memory,
        memory_size=4,
        memory_window=3,
        memory_heads=2,
        hidden_sizes=(4,),
        target_rate=0.5,
        activation="tanh",
    )
    config = dataclasses.replace(config, **changes)
    parts = r2d2.make_parts(OBSERVATION_SPACE, spaces.Discrete(ACTIONS), config)
    state = jax.jit(functools.partial(r2d2.init, parts))(jax.random.key(0))
    other = jax.jit(functools.partial(r2d2.init, parts))(jax.random.key(1))
    return parts, dataclasses.replace(state, target_params=other.params)


def random_batch(parts: r2d2.Parts, seed: int = 0) -> Sample:
    """Windows of random rows, with an end in the middle of each but the first."""
    random = np.random.default_rng(seed)
    shape = (LENGTH, BATCH)
    observation, final = random.normal(size=(2, *shape, 2)).astype(np.float32)
    terminated, truncated, is_first = np.zeros((3, *shape), bool)
    terminated[3, 1], truncated[2, 2], is_first[4, 1], is_first[3, 2] = True, True, True, True
    memory = jax.tree.map(
        lambda leaf: (
            random.random((LENGTH, *leaf.shape)) < 0.5
            if leaf.dtype == bool
            else random.normal(size=(LENGTH, *leaf.shape)).astype(np.float32)
        ),
        parts.torso.init_memory(BATCH),
    )
    rows = Rollout(
        observation=observation,
        action=random.integers(0, ACTIONS, shape).astype(np.int32),
        reward=random.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        is_first=is_first,
        final_observation=final,
        action_mask=None,
        final_action_mask=random.random((*shape, ACTIONS)) < 0.7,
        extras={"memory": memory},
    )
    ended = terminated | truncated
    mask = np.cumsum(ended, axis=0) - ended == 0
    weights = random.random(BATCH).astype(np.float32)
    return jax.tree.map(jnp.asarray, Sample(rows, np.arange(BATCH, dtype=np.int32), weights, mask))


def with_rows(batch: Sample, index: Any, **changes: Any) -> Sample:
    """The batch with fields of some rows changed to values, or by functions of them."""
    rows = batch.experience
    for name, change in changes.items():
        old = getattr(rows, name)
        new = change(old[index]) if callable(change) else jnp.full_like(old[index], change)
        rows = dataclasses.replace(rows, **{name: old.at[index].set(new)})
    return dataclasses.replace(batch, experience=rows)


def differ(a: Any, b: Any) -> bool:
    return any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@with_each_memory
def test_burn_in_brings_memory_up_to_date_and_learns_nothing(memory: str) -> None:
    parts, state = case(memory)
    batch = random_batch(parts)
    after, update = UPDATE(parts, state, batch, jax.random.key(0))
    # No loss: rewards, actions and ends of burn-in rows say nothing.
    other = with_rows(batch, slice(0, 2), reward=9.0, action=lambda action: (action + 1) % ACTIONS, terminated=True)
    jax.tree.map(np.testing.assert_array_equal, UPDATE(parts, state, other, jax.random.key(0)), (after, update))
    # Their observations count, and so does the memory before the first of them.
    seen = with_rows(batch, 0, observation=lambda observation: observation + 1.0)
    assert differ(UPDATE(parts, state, seen, jax.random.key(0))[0].params, after.params)
    stored = batch.experience.extras["memory"]
    flipped = jax.tree.map(lambda leaf: leaf.at[0].set(~leaf[0] if leaf.dtype == bool else leaf[0] + 1.0), stored)
    rows = dataclasses.replace(batch.experience, extras={"memory": flipped})
    assert differ(UPDATE(parts, state, dataclasses.replace(batch, experience=rows), jax.random.key(0))[0], after)
    # No gradient: it is that of the rest of the windows with the memory before it held fixed.
    windows = PREPARE(parts, state, batch)
    _, following = UNROLL(parts, state.target_params, windows.target_memory, windows.rows)
    hyper = state.hyperparameters
    gradients, _ = GRADIENT(parts, state.params, hyper, windows, following)
    params, _ = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, hyper["learning_rate"]
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), params, after.params)


@with_each_memory
def test_burn_in_of_both_networks_is_their_own(memory: str) -> None:
    parts, state = case(memory)
    batch = random_batch(parts)
    windows, rows = PREPARE(parts, state, batch), batch.experience
    for params, memories in ((state.params, windows.memory), (state.target_params, windows.target_memory)):
        expected = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
        for row in range(2):
            expected, _ = STEP(parts, params.torso, expected, rows.observation[row], rows.is_first[row])
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), memories, expected)
    assert windows.mask.shape == (LENGTH - 2, BATCH)


@with_each_memory
def test_values_of_a_window_are_those_of_single_steps_and_of_true_successors(memory: str) -> None:
    parts, state = case(memory)
    rows = random_batch(parts).experience
    stored = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
    values, ahead = UNROLL(parts, state.params, stored, rows)
    running = stored
    for row in range(LENGTH):
        running, features = STEP(parts, state.params.torso, running, rows.observation[row], rows.is_first[row])
        np.testing.assert_allclose(values[row], parts.values(state.params, features), atol=1e-5)
        # The successor is taken in after the row and in its episode, whether or not another starts then.
        _, features = STEP(parts, state.params.torso, running, rows.final_observation[row], jnp.zeros(BATCH, jnp.bool_))
        np.testing.assert_allclose(ahead[row], parts.values(state.params, features), atol=1e-5)


@with_each_memory
def test_memory_is_reset_where_an_episode_starts_within_a_window(memory: str) -> None:
    parts, state = case(memory)
    rows = random_batch(parts).experience
    stored = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
    values, _ = UNROLL(parts, state.params, stored, rows)
    fresh = parts.torso.init_memory(BATCH)
    for window, first in ((1, 4), (2, 3)):
        tail = jax.tree.map(lambda leaf, first=first: leaf[first:], dataclasses.replace(rows, extras={}))
        alone, _ = UNROLL(parts, state.params, fresh, tail)
        np.testing.assert_allclose(values[first:, window], alone[:, window], atol=1e-5)
        assert not np.allclose(values[first:, 0], alone[:, 0], atol=1e-3)


def test_rows_that_do_not_count_change_nothing() -> None:
    parts, state = case("gru")
    batch = random_batch(parts)
    result = UPDATE(parts, state, batch, jax.random.key(0))
    assert np.asarray(batch.mask).sum() == 6 + 4 + 3
    changed = with_rows(batch, ~np.asarray(batch.mask), reward=99.0, observation=3.0, final_observation=-3.0, action=0)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-6),
        UPDATE(parts, state, changed, jax.random.key(0)),
        result,
    )
    counted = dataclasses.replace(batch, mask=jnp.ones_like(batch.mask))
    assert differ(UPDATE(parts, state, counted, jax.random.key(0))[0].params, result[0].params)


def test_weights_scale_the_loss_of_their_windows() -> None:
    parts, state = case("gru", adam_epsilon=1e3)  # so that steps are in proportion to gradients
    batch = random_batch(parts)

    def step(weights: list[float]) -> Any:
        after, _ = UPDATE(parts, state, dataclasses.replace(batch, weights=jnp.array(weights)), jax.random.key(0))
        return jax.tree.map(lambda new, old: np.asarray(new - old, np.float64), after.params, state.params)

    parts_of = [step([1, 0, 0]), step([0, 1, 0]), step([0, 0, 1])]
    expected = jax.tree.map(lambda a, b, c: a + 0.5 * b + 0.25 * c, *parts_of)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-7), step([1, 0.5, 0.25]), expected)


def test_a_burn_in_that_leaves_no_row_is_refused() -> None:
    parts, state = case("gru", burn_in=LENGTH)
    message = (
        r"agent\.burn_in = 6 leaves no row to learn from in windows of 6: make it smaller or replay\.length larger"
    )
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(InputError, match=message):
            transform(functools.partial(r2d2.update, parts))(state, random_batch(parts), jax.random.key(0))


@pytest.mark.parametrize("dueling", [False, True])
def test_a_dueling_layer_is_a_value_and_centred_advantages(dueling: bool) -> None:
    parts, state = case("gru", dueling=dueling)
    features = jax.random.normal(jax.random.key(0), (5, 4))
    layer = state.params.values["params"]
    outputs = np.asarray(features @ layer["kernel"] + layer["bias"])
    expected = outputs
    if dueling:
        advantage = outputs[:, 1:]
        expected = outputs[:, :1] + advantage - advantage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(parts.values(state.params, features), expected, atol=1e-6)
    assert expected.shape == (5, ACTIONS)


# Acting, and what replay tells of it.


@dataclasses.dataclass(frozen=True)
class Walk(Probe):
    """Random numbers are seen; episodes last 5 steps, and end in either way."""

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        time = state.time + 1
        seen = jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
        next_state = dataclasses.replace(state, time=time, seen=seen)
        terminated, truncated = (time == 5) & (seen > 0), (time == 5) & (seen <= 0)
        return next_state, envs.timestep(seen[None], seen, terminated, truncated)


@with_each_memory
def test_values_worked_out_from_stored_memory_are_those_that_acted(memory: str) -> None:
    num_envs, length = 3, 7
    walk = Walk("value")
    config = r2d2.Config(memory=memory, memory_size=8, memory_layers=2, memory_window=4, hidden_sizes=(8,), burn_in=0)
    parts = r2d2.make_parts(walk.observation_space(), walk.action_space(), config)
    agent = r2d2.make(walk.observation_space(), walk.action_space(), config)
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(walk)), num_envs)
    buffer = replay.prioritised(64 * num_envs, 256, length=length, cross_episodes=True)

    def act_with(state: r2d2.State, memory: Any, timestep: envs.TimeStep, noise: Any, explore: bool = True) -> Any:
        after, decision = agent.act_with(state, memory, timestep, noise, explore)
        _, features = parts.torso.step(state.params.torso, memory, timestep.observation, timestep.is_first)
        values = parts.values(state.params, features)
        return after, dataclasses.replace(decision, extras={**decision.extras, "values": values})

    @jax.jit
    def run(key: jax.Array) -> tuple[r2d2.State, Sample]:
        key_agent, key_env, key_rollout, key_sample = jax.random.split(key, 4)
        state = agent.init(key_agent)
        env_state, timestep = env.reset(key_env, ())
        _, rollout, _ = collection.collect(
            dataclasses.replace(agent, act_with=act_with),
            env,
            state,
            agent.init_memory(num_envs),
            env_state,
            (),
            timestep,
            key_rollout,
            40,
        )
        stored = buffer.init(jax.tree.map(lambda leaf: leaf[0], rollout.rows()))
        return state, buffer.sample(buffer.add(stored, rollout.rows()), key_sample)

    state, sample = run(jax.random.key(0))
    rows = sample.experience
    assert len(set(np.asarray(sample.indices))) > 90  # nearly all starts, so at every place of an episode
    windows = PREPARE(parts, state, sample)
    values, _ = UNROLL(parts, state.params, windows.memory, windows.rows)
    np.testing.assert_allclose(values, rows.extras["values"], atol=1e-5)
    assert np.ptp(np.asarray(values)) > 0.1


def acting(mask: Any = None, **numbers: float) -> np.ndarray:
    """The actions of 2000 environments that see the same."""
    parts, state = case("gru")
    count = 2000
    new = {name: jnp.float32(number) for name, number in numbers.items()}
    state = dataclasses.replace(
        state, hyperparameters={**state.hyperparameters, **new}, env_steps=jnp.int32(numbers.pop("env_steps", 0))
    )
    agent = r2d2.make(OBSERVATION_SPACE, spaces.Discrete(ACTIONS), parts.config)
    timestep = envs.timestep(jnp.ones((count, 2)), jnp.zeros(count))
    timestep = dataclasses.replace(timestep, terminated=jnp.zeros(count, bool), is_first=jnp.ones(count, bool))
    timestep = dataclasses.replace(
        timestep, action_mask=None if mask is None else jnp.tile(jnp.array(mask), (count, 1))
    )
    _, decision = agent.act(state, agent.init_memory(count), timestep, jax.random.key(5))
    _, greedy = agent.act_with(state, agent.init_memory(count), timestep, None, explore=False)
    assert len(set(np.asarray(greedy.action))) == 1
    assert decision.action.dtype == jnp.int32
    return np.asarray(decision.action) != np.asarray(greedy.action)


def test_epsilon_falls_over_epsilon_steps() -> None:
    numbers = {"epsilon_start": 0.9, "epsilon_end": 0.3, "epsilon_steps": 100.0}
    for env_steps, epsilon in ((0, 0.9), (50, 0.6), (100, 0.3), (1000, 0.3)):
        explored = acting(**numbers, env_steps=env_steps)
        assert np.mean(explored) == pytest.approx(epsilon * 2 / 3, abs=0.04)
    assert np.mean(acting([True, False, False], **numbers)) == 0.0


def test_decisions_keep_the_memory_before_them() -> None:
    parts, state = case("lstm")
    memory = jax.tree.map(lambda leaf: leaf + 1.0, parts.torso.init_memory(2))
    timestep = envs.timestep(jnp.ones((2, 2)), jnp.zeros(2))
    timestep = dataclasses.replace(timestep, is_first=jnp.array([False, True]))
    after, decision = r2d2.act_with(parts, state, memory, timestep, None, explore=False)
    jax.tree.map(np.testing.assert_array_equal, decision.extras["memory"], memory)
    assert differ(after, memory)


# What cannot work, and what is read where.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0"),
        ({"discount": 1.5}, r"agent\.discount = 1\.5 must be between 0 and 1"),
        ({"n_step": 0}, r"agent\.n_step = 0 must be at least 1"),
        ({"burn_in": -1}, r"agent\.burn_in = -1 must not be negative"),
        ({"epsilon_start": -0.1}, r"agent\.epsilon_start = -0\.1 must be between 0 and 1"),
        ({"epsilon_steps": -1.0}, r"agent\.epsilon_steps = -1\.0 must not be negative"),
        ({"target_period": 0}, r"agent\.target_period = 0 must be at least 1"),
        ({"target_rate": 0.0}, r"agent\.target_rate = 0\.0 must be above 0"),
        ({"target_rate": 1.1}, r"agent\.target_rate = 1\.1 must be between 0 and 1"),
        ({"priority_mix": 2.0}, r"agent\.priority_mix = 2\.0 must be between 0 and 1"),
        ({"priority_exponent": -1.0}, r"agent\.priority_exponent = -1\.0 must not be negative"),
        ({"importance_exponent": 2.0}, r"agent\.importance_exponent = 2\.0 must be between 0 and 1"),
        ({"memory": "gro"}, r"agent\.memory = 'gro' is no known memory.*'gru'"),
        ({"learning_rate_schedule": "lin"}, r"agent\.learning_rate_schedule = 'lin' is no known schedule"),
    ],
)
def test_configs_that_cannot_work(changes: Any, message: str) -> None:
    r2d2.check(r2d2.Config(), 8, 4)
    with pytest.raises(InputError, match=message):
        r2d2.check(dataclasses.replace(r2d2.Config(), **changes), 8, 4)


def test_action_spaces_that_are_not_discrete() -> None:
    with pytest.raises(InputError, match=r"does not fit train\.agent = 'r2d2', which acts in Discrete spaces"):
        r2d2.make(OBSERVATION_SPACE, spaces.Box(-1.0, 1.0, (1,)))


def test_every_number_is_read_from_the_state() -> None:
    parts, state = case("gru", learning_rate_schedule="linear", horizon=100.0)
    batch = random_batch(parts)
    acting_only = {"epsilon_start", "epsilon_end", "epsilon_steps"}
    for_the_loop = {"priority_exponent", "importance_exponent"}
    state, _ = UPDATE(parts, state, batch, jax.random.key(0))  # after which the schedule has begun
    result = UPDATE(parts, state, batch, jax.random.key(0))
    for name in set(state.hyperparameters) - acting_only - for_the_loop:
        small = {"max_grad_norm": 1e-6}.get(name, 0.37)
        changed = dataclasses.replace(state, hyperparameters={**state.hyperparameters, name: jnp.float32(small)})
        after = UPDATE(parts, changed, batch, jax.random.key(0))
        learnt = [(state.params, state.target_params, update.priorities) for state, update in (after, result)]
        assert differ(*learnt), name


# In the loop.


def loop_config(storage: Any) -> experiments.ExperimentConfig:
    return experiments.ExperimentConfig(
        env=experiments.EnvConfig("MemoryChain-bsuite", {"memory_length": 3}),
        train=experiments.TrainConfig("r2d2", total_env_steps=256, num_envs=4, num_steps=4, updates_per_iteration=2),
        agent=r2d2.Config(memory_size=8, hidden_sizes=(8,), burn_in=2),
        replay=experiments.ReplayConfig(
            capacity=128, batch_size=8, kind="prioritised", length=6, storage=storage, min_size=32
        ),
    )


@pytest.mark.thorough
def test_both_storages_train_bit_for_bit_alike() -> None:
    array, ref = (
        jax.jit(experiments.make_train(loop_config(storage)))(jax.random.key(0)) for storage in ("array", "ref")
    )
    (state, metrics), (twin, twin_metrics) = array, ref
    jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(state, key=()), dataclasses.replace(twin, key=()))
    jax.tree.map(np.testing.assert_array_equal, metrics, twin_metrics)
    priorities = np.asarray(state.replay.priorities.leaves)
    assert len(np.unique(priorities)) > 10
    assert np.isnan(metrics["td_error"]).sum() == 1  # of 16 iterations, the first stores fewer rows than min_size
    assert np.all(np.isfinite(np.asarray(metrics["td_error"])[1:]))
