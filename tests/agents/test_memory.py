"""Memory: resets, one step against a whole sequence, successors, and PPO that learns from what it acted with."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import thorough

from rollax import InputError, envs, experiments
from rollax.agents import Decision, Rollout, actor_critic, memory, ppo, torsos
from rollax.agents.linear_recurrence import SHARPNESS, GatedLinearRecurrence
from rollax.agents.memory import Torso
from rollax.agents.transformer import GatedTransformerLayer, Memory
from rollax.envs.spaces import Box, Discrete
from rollax.experiments import collection

KINDS = [kind for kind in torsos.MEMORIES if kind != "none"]
SPACE = Box(-9, 9, (3,))
T, N = 12, 3


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A torso in the middle of an episode of each of N environments, and what they see next."""

    torso: Torso
    params: Any
    memory: Any
    observation: jax.Array  # float32 [T, N, 3]
    successor: jax.Array  # float32 [T, N, 3]
    is_first: jax.Array  # bool [T, N]


@functools.cache
def sequence(kind: str) -> Sequence:
    layers = 2 if kind in ("gru", "linear") else 1
    config = ppo.Config(
        memory=kind, memory_size=8, memory_layers=layers, memory_window=4, memory_heads=2, hidden_sizes=(8,)
    )
    torso = torsos.make(config, SPACE)
    key_params, key_noise, *keys = jax.random.split(jax.random.key(0), 5)
    before, observation, successor = (jax.random.normal(key, (T, N, 3)) for key in keys)
    params = jax.jit(torso.init)(key_params, observation[0])
    noise = iter(jax.random.split(key_noise, 100))  # biases and gates far from their start
    params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(next(noise), leaf.shape), params)
    going_on, _, _ = jax.jit(torso.unroll)(params, torso.init_memory(N), before, jnp.zeros((T, N), jnp.bool_))
    # Episodes end at other times in each environment; one starts with the first step, one goes on to the end.
    is_first = jnp.zeros((T, N), jnp.bool_).at[0, 1].set(True).at[5, 0].set(True).at[jnp.array([2, 3, 9]), 1].set(True)
    return Sequence(torso, params, going_on, observation, successor, is_first)


# One step after another against the whole sequence.


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_step_by_step_equals_one_pass(kind: str) -> None:
    s = sequence(kind)
    step = jax.jit(s.torso.step)
    carried, features, ahead = s.memory, [], []
    for t in range(T):
        carried, feature = step(s.params, carried, s.observation[t], s.is_first[t])
        features.append(feature)
        ahead.append(step(s.params, carried, s.successor[t], jnp.zeros((N,), jnp.bool_))[1])
    # In two halves: what the memory hands on from one to the other counts too.
    unroll, half, halves = jax.jit(s.torso.unroll), s.memory, []
    for part in (slice(0, T // 2), slice(T // 2, T)):
        half, *of_half = unroll(s.params, half, s.observation[part], s.is_first[part], s.successor[part])
        halves.append(of_half)
    together, next_together = (np.concatenate(parts) for parts in zip(*halves, strict=True))
    assert together.shape == (T, N, 8)
    assert np.std(together) > 0.1
    np.testing.assert_allclose(together, np.stack(features), atol=1e-5)
    np.testing.assert_allclose(next_together, np.stack(ahead), atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), half, carried)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_pass_are_those_of_the_steps(kind: str) -> None:
    s = sequence(kind)
    weights = jax.random.normal(jax.random.key(1), (T, N, 8))

    def together(params: Any) -> jax.Array:
        return jnp.sum(weights * s.torso.unroll(params, s.memory, s.observation, s.is_first)[1])

    def apart(params: Any) -> jax.Array:
        def step(carried: Any, row: Any) -> Any:
            return s.torso.step(params, carried, *row)

        return jnp.sum(weights * jax.lax.scan(step, s.memory, (s.observation, s.is_first))[1])

    ours, theirs = jax.jit(jax.grad(together))(s.params), jax.jit(jax.grad(apart))(s.params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=2e-4), ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_passes_an_episode_s_start_and_something_passes_each_step(kind: str) -> None:
    s = sequence(kind)
    unroll = jax.jit(s.torso.unroll)
    _, features, ahead = unroll(s.params, s.memory, s.observation, s.is_first, s.successor)
    other_memory = jax.tree.map(
        lambda leaf: leaf if leaf.dtype == jnp.bool_ else jnp.flip(leaf, axis=0) + 1.0, s.memory
    )
    _, changed, _ = unroll(s.params, other_memory, s.observation, s.is_first)
    moved = np.abs(changed - features).max(axis=-1) > 1e-6
    assert not moved[5:, 0].any()  # its episode started at 5
    assert not moved[:, 1].any()  # and this one with the first step
    assert moved[:4, 0].all()
    assert moved[:4, 2].all()
    # A change at step 1 of environment 1 reaches to the end of its episode at step 2, and no other environment.
    _, changed, changed_ahead = unroll(s.params, s.memory, s.observation.at[1, 1].add(1.0), s.is_first, s.successor)
    assert (np.argwhere(np.abs(changed - features).max(axis=-1) > 1e-6) == [[1, 1]]).all()
    assert (np.argwhere(np.abs(changed_ahead - ahead).max(axis=-1) > 1e-6) == [[1, 1]]).all()
    # What truly followed a step is seen by its own value alone.
    _, changed, changed_ahead = unroll(s.params, s.memory, s.observation, s.is_first, s.successor.at[6, 2].add(1.0))
    np.testing.assert_allclose(changed, features, atol=1e-6)
    assert (np.argwhere(np.abs(changed_ahead - ahead).max(axis=-1) > 1e-6) == [[6, 2]]).all()


def test_both_parts_of_an_lstm_reset_row_by_row() -> None:
    torso = memory.lstm(5)
    x = jax.random.normal(jax.random.key(0), (3, 2))
    params = torso.init(jax.random.key(1), x)
    old = jax.tree.map(lambda leaf: leaf + jnp.arange(1.0, 4.0)[:, None], torso.init_memory(3))
    assert len(jax.tree.leaves(old)) == 2
    after, _ = torso.step(params, old, x, jnp.array([True, False, True]))
    fresh, _ = torso.step(params, torso.init_memory(3), x, jnp.zeros((3,), jnp.bool_))
    kept, _ = torso.step(params, old, x, jnp.zeros((3,), jnp.bool_))
    for part, fresh_part, kept_part in zip(after, fresh, kept, strict=True):
        assert np.abs(fresh_part - kept_part).min() > 1e-4
        np.testing.assert_array_equal(part, np.stack([fresh_part[0], kept_part[1], fresh_part[2]]))


def test_a_transformer_forgets_what_is_behind_its_window() -> None:
    s = sequence("transformer")
    never, unroll = jnp.zeros((T, N), jnp.bool_), jax.jit(s.torso.unroll)
    _, features, _ = unroll(s.params, s.memory, s.observation, never)
    _, changed, _ = unroll(s.params, s.memory, s.observation.at[3].add(1.0), never)
    moved = (np.abs(changed - features).max(axis=-1) > 1e-6).all(axis=-1)
    np.testing.assert_array_equal(np.flatnonzero(moved), [3, 4, 5, 6, 7])  # the step itself and a window of 4


# The layers by their formulas.


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def layer_norm(x: np.ndarray, params: Any) -> np.ndarray:
    normed = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return normed * params["scale"] + params["bias"]


def dense(x: np.ndarray, params: Any) -> np.ndarray:
    return x @ params["kernel"] + params.get("bias", 0.0)


def shaken(params: Any) -> Any:
    """Parameters far from their start, in double precision."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) + 0.3 * random.normal(size=leaf.shape), params)


def test_the_linear_recurrence_against_its_formula() -> None:
    x = np.random.default_rng(1).normal(size=(6, 4))
    first = np.array([False, False, False, True, False, False])
    module = GatedLinearRecurrence(4)
    hidden = np.array([0.5, -1.0, 2.0, 0.0])
    params = module.init(jax.random.key(0), jnp.zeros((1, 4)), jnp.zeros((1, 1, 4)), jnp.ones((1, 1), jnp.bool_))
    p = shaken(params)["params"]
    _, features, _ = jax.jit(module.apply)(
        jax.tree.map(jnp.float32, {"params": p}), jnp.float32(hidden)[None], jnp.float32(x)[:, None], first[:, None]
    )
    for t in range(6):
        normed = layer_norm(x[t], p["norm"])
        u = dense(normed, p["inputs"])
        decay = np.exp(-SHARPNESS * np.log1p(np.exp(p["decay"])) * sigmoid(dense(u, p["decay_gate"])))
        drive = sigmoid(dense(u, p["input_gate"])) * u
        hidden = drive if first[t] else decay * hidden + np.sqrt(1 - decay**2) * drive
        gate = np.asarray(jax.nn.gelu(jnp.float32(dense(normed, p["output_gate"]))))
        np.testing.assert_allclose(features[t, 0], x[t] + dense(hidden * gate, p["outputs"]), atol=1e-4)


def test_decays_start_between_nine_tenths_and_one() -> None:
    params = memory.from_flax(GatedLinearRecurrence(500), lambda n: jnp.zeros((n, 500))).init(
        jax.random.key(0), jnp.zeros((1, 500))
    )
    decay = np.exp(-SHARPNESS * np.log1p(np.exp(np.asarray(params["params"]["decay"], np.float64))))
    assert 0.9 <= decay.min() < 0.905
    assert 0.99 < decay.max() <= 0.9991


def test_the_transformer_against_its_formula() -> None:
    size, window, heads = 4, 2, 2
    random = np.random.default_rng(1)
    x, old = random.normal(size=(4, size)), random.normal(size=(window, size))
    first = np.array([False, False, True, False])
    module = GatedTransformerLayer(size, window, heads)
    empty = Memory(*[jnp.zeros((1, window, heads, size // heads))] * 2, jnp.zeros((1, window), jnp.bool_))
    params = module.init(jax.random.key(0), empty, jnp.zeros((1, 1, size)), jnp.zeros((1, 1), jnp.bool_))
    p = shaken(params)["params"]
    single = jax.tree.map(jnp.float32, {"params": p})
    start, _, _ = jax.jit(module.apply)(single, empty, jnp.float32(old)[:, None], jnp.zeros((window, 1), jnp.bool_))
    start = dataclasses.replace(start, valid=jnp.array([[False, True]]))  # of the memory only the newest counts
    _, features, _ = jax.jit(module.apply)(single, start, jnp.float32(x)[:, None], first[:, None])

    def gate(old: np.ndarray, new: np.ndarray, p: Any) -> np.ndarray:
        r = sigmoid(dense(new, p["from_r"]) + dense(old, p["to_r"]))
        z = sigmoid(dense(new, p["from_z"]) + dense(old, p["to_z"]) - 2.0)
        return (1 - z) * old + z * np.tanh(dense(new, p["from_h"]) + dense(r * old, p["to_h"]))

    def project(x: np.ndarray, p: Any) -> np.ndarray:
        return np.einsum("d,dhe->he", x, p["kernel"]) + p["bias"]

    for t, seen in enumerate([[old[1], x[0]], [old[1], x[0], x[1]], [x[2]], [x[2], x[3]]]):
        normed = [layer_norm(token, p["norm_attention"]) for token in seen]
        query = project(normed[-1], p["query"])
        attended = np.zeros((heads, size // heads))
        for head in range(heads):
            scores = [
                query[head] @ project(token, p["key"])[head] / np.sqrt(size // heads)
                + p["distance_bias"][head, len(seen) - 1 - index]
                for index, token in enumerate(normed)
            ]
            weights = np.exp(scores) / np.exp(scores).sum()
            attended[head] = sum(w * project(token, p["value"])[head] for w, token in zip(weights, normed, strict=True))
        attended = np.einsum("he,hed->d", attended, p["outputs"]["kernel"]) + p["outputs"]["bias"]
        middle = gate(x[t], np.maximum(attended, 0), p["gate_attention"])
        widened = np.maximum(dense(layer_norm(middle, p["norm_mlp"]), p["widen"]), 0)
        expected = gate(middle, np.maximum(dense(widened, p["narrow"]), 0), p["gate_mlp"])
        np.testing.assert_allclose(features[t, 0], expected, atol=1e-4)


# A GRU that counts, in PPO.


def counting_gru() -> tuple[actor_critic.Parts, Any]:
    """PPO with a GRU of one unit that halves its distance to 1 in each step: h = 1 - 2^-n after n steps."""
    config = ppo.Config(memory="gru", memory_size=1, hidden_sizes=(), num_minibatches=1, num_epochs=1)
    agent = ppo.make(Box(-9, 9, (4,)), Discrete(2), config)
    assert isinstance(agent.update, functools.partial)
    parts = agent.update.args[0]
    state = agent.init(jax.random.key(0))
    cell = jax.tree.map(jnp.zeros_like, state.params.torso)
    cell[1]["params"]["in"]["bias"] = jnp.full((1,), 20.0)  # the candidate is tanh(20) = 1, the gate sigmoid(0) = 1/2
    params = dataclasses.replace(state.params, torso=cell, value_torso=cell)
    return parts, dataclasses.replace(state, params=params)


def test_a_gru_that_counts_steps_since_the_reset_counts_alike_in_rollout_and_loss() -> None:
    parts, state = counting_gru()
    raw = envs.make("CartPole-v1", max_steps_in_episode=3)  # episodes of three steps: one ends with t = 2
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(raw)), 2)
    agent = ppo.make(raw.observation_space(), raw.action_space(), parts.config)

    def act_with(*arguments: Any, **options: Any) -> Any:
        carried, decision = agent.act_with(*arguments, **options)
        return carried, Decision(decision.action, {**decision.extras, "hidden": carried.torsos})

    recording = dataclasses.replace(agent, act_with=act_with)
    env_state, timestep = env.reset(jax.random.key(1), env.default_params)
    carried = agent.init_memory(2)

    def count(hidden: jax.Array) -> np.ndarray:
        return -np.log2(1 - np.asarray(hidden)[..., 0])

    for expected in ([1, 2, 3, 1, 2], [3, 1, 2, 3, 1]):  # the second rollout goes on where the first one stopped
        (carried, env_state, timestep), rollout, _ = jax.jit(
            functools.partial(collection.collect, recording, env, num_steps=5)
        )(state, carried, env_state, env.default_params, timestep, jax.random.key(2))
        columns = np.broadcast_to(np.array(expected)[:, None], (5, 2))
        for hidden in rollout.extras["hidden"]:  # the policy's and the value's
            np.testing.assert_allclose(count(hidden[1]), columns, atol=1e-4)
        first_memory, batch = ppo.prepare(parts, state, rollout, rollout.reward[..., None])
        for torso_params, torso_memory in zip(
            (state.params.torso, state.params.value_torso), first_memory, strict=True
        ):
            _, features, ahead = parts.torso.unroll(
                torso_params, torso_memory, batch.observation, batch.is_first, rollout.final_observation
            )
            np.testing.assert_allclose(count(features), columns, atol=1e-4)
            # What followed a step is the next of its episode, behind the last step too, where time ran out.
            np.testing.assert_allclose(count(ahead), columns + 1, atol=1e-4)


# PPO learns from what it acted with.


@pytest.mark.parametrize(
    ("kind", "shared"), [("gru", False), ("transformer", True), *thorough(("lstm", True), ("linear", True))]
)
def test_recomputed_log_probs_and_values_are_those_that_acted(kind: str, shared: bool) -> None:
    raw = envs.make("CartPole-v1", max_steps_in_episode=5)
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(raw)), 2)
    config = ppo.Config(
        memory=kind, memory_size=8, memory_window=3, memory_heads=2, hidden_sizes=(8,), shared_torso=shared
    )
    agent = ppo.make(raw.observation_space(), raw.action_space(), config)
    assert isinstance(agent.update, functools.partial)
    parts = agent.update.args[0]
    state = agent.init(jax.random.key(0))
    noise = iter(jax.random.split(jax.random.key(1), 200))
    state = dataclasses.replace(
        state, params=jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(noise), x.shape), state.params)
    )

    def act_with(state: ppo.State, carried: Any, timestep: Any, noise: Any, explore: bool) -> Any:
        after, decision = agent.act_with(state, carried, timestep, noise, explore=explore)
        row = jax.tree.map(lambda leaf: leaf[None], (timestep.observation, timestep.is_first))
        features, value, _ = parts.forward(state.params, carried.torsos, *row)
        log_prob = parts.policy(state.params, features, None).log_prob(decision.extras["sample"][None])
        return after, Decision(decision.action, {**decision.extras, "log_prob": log_prob[0], "value": value[0]})

    recording = dataclasses.replace(agent, act_with=act_with)
    env_state, timestep = env.reset(jax.random.key(2), env.default_params)
    collect = jax.jit(functools.partial(collection.collect, recording, env, num_steps=8))
    carried = agent.init_memory(2)
    for key in jax.random.split(jax.random.key(3)):
        (carried, env_state, timestep), rollout, _ = collect(
            state, carried, env_state, env.default_params, timestep, key
        )
    assert not rollout.is_first[0].any()  # in the middle of an episode
    assert rollout.is_first.any()
    _, batch = jax.jit(functools.partial(ppo.prepare, parts))(state, rollout, rollout.reward[..., None])
    assert np.std(rollout.extras["log_prob"]) > 0.01
    np.testing.assert_allclose(batch.log_prob, rollout.extras["log_prob"], atol=1e-5)
    np.testing.assert_allclose(batch.value, rollout.extras["value"], atol=1e-5)


@pytest.mark.thorough
def test_minibatches_are_whole_environments() -> None:
    seen: list[list[np.ndarray]] = []

    def loss(parts: Any, params: Any, hyper: Any, carried: Any, batch: ppo.Batch) -> tuple[jax.Array, dict[str, Any]]:
        jax.debug.callback(
            lambda *rows: seen.append([np.asarray(row) for row in rows]),
            batch.target[..., 0],
            carried[0][1][:, 0],
            ordered=True,
        )
        return jnp.sum(params.value["params"]["bias"]), {"nothing": jnp.zeros(())}

    config = ppo.Config(memory="gru", memory_size=2, hidden_sizes=(), num_epochs=2, num_minibatches=2)
    agent = ppo.make(Box(-9, 9, (1,)), Discrete(2), config)
    state = agent.init(jax.random.key(0))
    flags = jnp.zeros((3, 4), jnp.bool_)
    reward = jnp.broadcast_to(jnp.arange(4.0), (3, 4))  # an environment's number is its reward and its memory
    first = agent.init_memory(4)
    numbered = dataclasses.replace(
        first, torsos=jax.tree.map(lambda leaf: leaf + jnp.arange(4.0)[:, None], first.torsos)
    )
    rows = jnp.zeros((3, 4, 1))
    rollout = Rollout(
        rows, flags, reward, ~flags, flags, flags, rows, None, None, {"sample": flags.astype(jnp.int32)}, numbered
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "loss", loss)
        jax.block_until_ready(jax.jit(agent.update)(state, rollout, jax.random.key(1)))
        jax.effects_barrier()
    assert len(seen) == 4
    for target, carried in seen:
        assert target.shape == (3, 2)
        np.testing.assert_allclose(target, np.broadcast_to(carried, (3, 2)), rtol=1e-5)
    for epoch in (seen[:2], seen[2:]):
        assert sorted(np.concatenate([carried for _, carried in epoch])) == [0, 1, 2, 3]


def test_a_rollout_without_its_first_memory_is_a_sentence() -> None:
    agent = ppo.make(Box(-9, 9, (1,)), Discrete(2), ppo.Config(memory="gru", hidden_sizes=(), num_minibatches=1))
    flags, rows = jnp.zeros((3, 4), jnp.bool_), jnp.zeros((3, 4, 1))
    rollout = Rollout(
        rows, flags, jnp.zeros((3, 4)), flags, flags, flags, rows, None, None, {"sample": flags.astype(jnp.int32)}
    )
    with pytest.raises(InputError, match=r"the rollout has no first_memory.*give Rollout\.stack the memory"):
        agent.update(agent.init(jax.random.key(0)), rollout, jax.random.key(1))


# Networks of one's own.


OWN = """
import types

import jax.numpy as jnp

def counter(observation_space):
    return types.SimpleNamespace(
        init=lambda key, observation: {"one": jnp.ones(())},
        init_memory=lambda num_envs: {"count": jnp.zeros((num_envs,), jnp.int32)},
        step=lambda params, memory, observation: (
            {"count": memory["count"] + 1}, params["one"] * (memory["count"] + 1.0)[:, None]
        ),
    )

def grows(observation_space):
    own = counter(observation_space)
    own.step = lambda params, memory, observation: ({"count": memory["count"] + 0.5}, observation)
    return own

def renames(observation_space):
    own = counter(observation_space)
    own.step = lambda params, memory, observation: ({"number": memory["count"]}, observation)
    return own

def flat(observation_space):
    own = counter(observation_space)
    own.step = lambda params, memory, observation: (memory, memory["count"])
    return own

def alone(observation_space):
    own = counter(observation_space)
    own.step = lambda params, memory, observation: memory
    return own

def whole(observation_space):
    own = counter(observation_space)
    own.step = lambda params, memory, observation: (memory, memory["count"][:, None])
    return own

def lonely(observation_space):
    own = counter(observation_space)
    own.init_memory = lambda num_envs: {"count": jnp.zeros((), jnp.int32)}
    return own

def forgetful(observation_space):
    own = counter(observation_space)
    own.step = lambda params, observation: observation
    return own

def unasked():
    return counter(None)

def half(observation_space):
    own = counter(observation_space)
    del own.step
    return own
"""


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    path = tmp_path / "own_memory.py"
    path.write_text(OWN)
    return str(path)


def test_a_memory_of_ones_own_is_reset_for_it(own_file: str) -> None:
    torso = torsos.make(ppo.Config(torso=f"{own_file}:counter"), SPACE)
    assert torso.has_memory
    assert torsos.num_features(torso, SPACE) == 1
    is_first = jnp.array([[False, True], [False, False], [True, False]])
    start = {"count": jnp.array([4, 7], jnp.int32)}
    params = torso.init(jax.random.key(0), jnp.zeros((2, 3)))
    zeros = jnp.zeros((3, 2, 3))
    last, features, ahead = torso.unroll(params, start, zeros, is_first, zeros)
    np.testing.assert_array_equal(features[..., 0], [[5, 1], [6, 2], [1, 3]])
    np.testing.assert_array_equal(ahead[..., 0], [[6, 2], [7, 3], [2, 4]])
    np.testing.assert_array_equal(last["count"], [1, 3])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grows", r"agent\.torso: step returns a memory of another structure, shape or dtype"),
        ("renames", r"agent\.torso: step returns a memory of another structure, shape or dtype"),
        ("flat", r"agent\.torso gives features of shape \(1,\) for 1 observations: return \[batch, F\]"),
        ("alone", r"agent\.torso: step returns a dict: return \(memory, features\)"),
        ("whole", r"agent\.torso gives features of int32, which have no gradient: return floats"),
        ("lonely", r"init_memory\(1\) makes leaves of shapes \{'count': 'int32\[\]'\}; give each a first axis of"),
        ("forgetful", r"own_memory\.py:forgetful': step must take \(params, memory, observation\)"),
        ("unasked", r"own_memory\.py:unasked': it must take \(observation_space\)"),
        ("half", r"must return an object with init and apply, or with init, init_memory and step"),
    ],
)
def test_memories_of_ones_own_that_do_not_fit(own_file: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ppo.make(SPACE, Discrete(2), ppo.Config(torso=f"{own_file}:{name}"))


def test_a_memory_of_other_environments_is_a_sentence() -> None:
    torso = memory.gru(5)
    params = torso.init(jax.random.key(0), jnp.zeros((4, 2)))
    with pytest.raises(InputError, match=r"a memory of shapes float32\[3, 5\] was given to 4 environments"):
        torso.step(params, torso.init_memory(3), jnp.zeros((4, 2)), jnp.zeros((4,), jnp.bool_))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "gruu"}, r"agent\.memory = 'gruu' is no known memory: did you mean 'gru'"),
        ({"memory_size": 0}, r"agent\.memory_size = 0 must be at least 1"),
        ({"memory_layers": 0}, r"agent\.memory_layers = 0 must be at least 1"),
        ({"memory": "transformer", "memory_window": 0}, r"agent\.memory_window = 0 must be at least 1"),
        ({"memory": "transformer", "memory_heads": 3}, r"agent\.memory_heads = 3 must divide agent\.memory_size = 64"),
        (
            {"memory": "gru", "num_minibatches": 3},
            r"num_minibatches = 3 must divide train\.num_envs = 4: with a memory",
        ),
    ],
)
def test_settings_that_make_no_memory(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ppo.check(ppo.Config(**settings), num_steps=3, num_envs=4)


# Whole runs: evaluation and a loaded policy carry memory.


def test_a_loaded_policy_and_evaluation_carry_memory(tmp_path: Path) -> None:
    # The reward asks for what was seen at the start: nothing but memory can tell.
    config = experiments.load(
        "ppo_memorychain",
        [
            "env.memory_length=2",
            "train.total_env_steps=16384",
            "train.num_envs=8",
            "train.num_steps=16",
            "agent.learning_rate=1e-2",
            "agent.memory_size=8",
            "agent.hidden_sizes=[]",
            "evaluation.episodes=16",
            "evaluation.every=16384",
        ],
    )
    result = experiments.run(config, seeds=1, out=tmp_path / "run")
    assert result.summary["iqm"] == 1.0  # evaluation carries it
    policy = experiments.load_policy(tmp_path / "run")
    env = envs.Vectorise(envs.make("MemoryChain-bsuite", memory_length=2), 16)

    def played(forgetful: bool) -> np.ndarray:
        act, step = jax.jit(policy), jax.jit(env.step)
        env_state, timestep = env.reset(jax.random.key(5), env.default_params)
        carried, total = policy.init_memory(16), np.zeros(16)
        for t in range(3):
            before = policy.init_memory(16) if forgetful else carried
            carried, action = act(timestep.observation, before, is_first=t == 0)
            keys = jax.random.split(jax.random.key(t), 16)
            env_state, timestep = step(keys, env_state, action, env.default_params)
            total += np.asarray(timestep.reward)
        assert timestep.terminated.all()
        return total

    np.testing.assert_array_equal(played(forgetful=False), np.ones(16))
    assert set(played(forgetful=True).tolist()) == {-1.0, 1.0}
