"""Data sets as buffers, alone and mixed with what a run collects: what they draw, what they hold, what they refuse."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax import lax
from tests.contract.jobs import BEACON, KEY_IMPLEMENTATION, TOYS, differences, make_config

from rollax import InputError, experiments, replay
from rollax.agents import Rollout
from rollax.experiments import checkpoint
from rollax.experiments.sharding import over_seeds, seed_mesh
from rollax.replay import Buffer, ReplayState, Sample

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
STORAGES = pytest.mark.parametrize("storage", ["array", "ref"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
AXES = ReplayState(rows=0, positions=None)
T, N = 7, 3  # of the data set
ENVS = 2  # of what is added


def numbered(time: Any, num_envs: int, sign: int = 1) -> dict[str, Any]:
    """Rows whose id is 10 times the time plus 1 plus the stream; negative in the data set."""
    ids = sign * (10 * time[:, None] + 1 + jnp.arange(num_envs, dtype=jnp.int32))
    return {"id": ids, "pair": jnp.stack([ids, -ids], axis=-1).astype(jnp.float32)}


def online_rows(first: Any, count: int) -> dict[str, Any]:
    return numbered(first + jnp.arange(count, dtype=jnp.int32), ENVS)


def data_rows(size: int = T, num_streams: int = N) -> dict[str, np.ndarray]:
    return jax.tree.map(np.asarray, numbered(jnp.arange(size, dtype=jnp.int32), num_streams, sign=-1))


def example() -> dict[str, Any]:
    return jax.tree.map(lambda leaf: leaf[0], online_rows(0, 1))


def equal(first: Any, second: Any) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)


# A data set.


@pytest.mark.parametrize("n_step", [1, 3, T])
def test_a_sample_of_a_data_set(n_step: int) -> None:
    data = replay.from_arrays(data_rows(), batch_size=64, n_step=n_step)
    state = data.init(example())
    sample = jax.jit(data.sample)(state, jax.random.key(0))
    ids = -np.asarray(sample.experience["id"])
    assert ids.shape == (n_step, 64)
    np.testing.assert_array_equal(sample.experience["pair"][..., 0], -ids)
    np.testing.assert_array_equal(sample.experience["pair"][..., 1], ids)
    np.testing.assert_array_equal(np.diff(ids, axis=0), 10)  # consecutive, of one stream
    np.testing.assert_array_equal(data_rows()["id"].reshape(-1)[sample.indices], -ids[0])
    assert (sample.weights.dtype, sample.mask.dtype) == (jnp.float32, jnp.bool_)
    np.testing.assert_array_equal(sample.weights, np.ones(64))
    np.testing.assert_array_equal(sample.mask, np.ones((n_step, 64)))
    equal(data.sample(state, jax.random.key(0)), sample)


@pytest.mark.parametrize("n_step", [1, 3, T])
def test_each_window_that_fits_its_stream_is_drawn_equally_often(n_step: int) -> None:
    data = replay.from_arrays(data_rows(), batch_size=5000, n_step=n_step)
    starts = -np.asarray(jax.jit(data.sample)(data.init(example()), jax.random.key(1)).experience["id"])[0]
    values, counts = np.unique(starts, return_counts=True)
    legal = [10 * time + 1 + stream for time in range(T - n_step + 1) for stream in range(N)]
    np.testing.assert_array_equal(values, legal)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_a_data_set_draws_as_a_full_ring_of_its_rows() -> None:
    data = replay.from_arrays(data_rows(), batch_size=32, n_step=2)
    ring = replay.uniform(capacity=T * N, batch_size=32, n_step=2)
    state = ring.init(jax.tree.map(lambda leaf: leaf[0], data_rows()))
    full = ring.add(state, data_rows())
    key = jax.random.key(3)
    equal(data.sample(data.init(example()), key, importance_exponent=0.4), ring.sample(full, key))


@MAYBE_JIT
def test_a_data_set_is_always_ready_and_stays_as_it_is(transform: Transform) -> None:
    data = replay.from_arrays(data_rows(), batch_size=4)
    state = transform(data.init)(example())
    assert state.rows == ()
    equal(state.positions.rows, jax.tree.map(jnp.asarray, data_rows()))
    ready = transform(data.can_sample)(state)
    assert (ready.shape, ready.dtype, bool(ready)) == ((), jnp.bool_, True)
    equal(data.freeze(data.thaw(data.set_priorities(state, jnp.arange(4), jnp.ones(4), 0.5))), state)
    with pytest.raises(InputError, match=r"a data set can't be added to: .*replay\.mix\(online, data\)"):
        transform(data.add)(state, online_rows(0, 1))
    with pytest.raises(InputError, match=r"state of another kind"):
        data.sample(ReplayState((), ()), jax.random.key(0))


def test_rows_of_any_source_become_those_of_jax() -> None:
    rows = {
        "wide": np.zeros((2, 1), np.float64),
        "count": np.ones((2, 1), np.int64),
        "pixel": jnp.ones((2, 1), "uint8"),
    }
    data = replay.from_arrays(rows, batch_size=1)
    state = data.init({"wide": jnp.zeros(4), "count": jnp.zeros(4, jnp.int32), "pixel": jnp.zeros(4, jnp.uint8)})
    assert jax.tree.map(lambda leaf: str(leaf.dtype), state.positions.rows) == {
        "wide": "float32",
        "count": "int32",
        "pixel": "uint8",
    }


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ((), {}, r"rows without arrays"),
        ({"id": np.zeros(5)}, {}, r"rows\['id'\] of shape \[5\]: give leaves \[T, N, \.\.\.\].*array\[:, None\]"),
        ({"id": np.zeros((0, 2))}, {}, r"rows\['id'\] of shape \[0, 2\]"),
        ({"id": np.full((5, 2), None)}, {}, r"rows\['id'\] of dtype object: give numbers or bools"),
        (
            {"a": np.zeros((5, 2)), "b": np.zeros((5, 3, 4))},
            {},
            r"rows\['a'\] of shape \[5, 2\] and rows\['b'\] of shape \[5, 3, 4\]: .* the same T and N",
        ),
        ({"id": np.zeros((5, 2))}, {"batch_size": 0}, r"replay\.batch_size = 0 must be at least 1"),
        ({"id": np.zeros((5, 2))}, {"n_step": 2.0}, r"replay\.n_step = 2\.0 must be a whole number"),
        ({"id": np.zeros((5, 2))}, {"n_step": 6}, r"replay\.n_step = 6 must not be above the 5 time rows"),
    ],
)
def test_rows_that_are_no_data_set(rows: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replay.from_arrays(rows, **{"batch_size": 4, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": jnp.zeros(2, jnp.float32)}, r"rows\['id'\] is int32\[\] in the data set and float32\[\] in the buffer"),
        ({"pair": jnp.zeros((2, 3))}, r"rows\['pair'\] is float32\[2\] in the data set and float32\[3\]"),
        ({"more": jnp.zeros(2)}, r"the example has rows\['more'\] and the data set has not: give"),
        ({"pair": None}, r"the data set has rows\['pair'\] and the example has not: give"),
        ({"empty": ()}, r"rows of the data set are PyTreeDef.*the buffer's example is PyTreeDef"),
    ],
)
def test_an_example_that_is_not_like_the_rows(changes: dict[str, Any], message: str) -> None:
    data = replay.from_arrays(data_rows(), batch_size=4)
    with pytest.raises(InputError, match=message):
        data.init({**example(), **changes})


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_seeds_share_one_copy(transform: Transform) -> None:
    data = replay.from_arrays(data_rows(), batch_size=6, n_step=2)
    init = transform(jax.vmap(lambda seed: data.init(example()), out_axes=AXES))
    state = init(jnp.arange(4))
    equal(state.positions.rows, jax.tree.map(jnp.asarray, data_rows()))
    keys = jax.random.split(jax.random.key(0), 4)
    samples = transform(jax.vmap(data.sample, in_axes=(AXES, 0)))(state, keys)
    for seed in range(4):
        alone = data.sample(data.init(example()), keys[seed])
        equal(jax.tree.map(lambda leaf, seed=seed: leaf[seed], samples), alone)


def test_the_rows_are_no_constant_of_a_program() -> None:
    data = replay.from_arrays(data_rows(10_000), batch_size=4)
    assert len(jax.jit(data.init).lower(example()).as_text()) < 10_000  # characters, for 360,000 bytes of rows


def test_states_alias_neither_the_rows_nor_each_other() -> None:
    rows = data_rows()
    data = replay.from_arrays(rows, batch_size=4)
    spoil = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 0, state), donate_argnums=0)
    first, second = data.init(example()), data.init(example())
    assert not np.any(spoil(first).positions.rows["id"])
    equal(second.positions.rows, jax.tree.map(jnp.asarray, data_rows()))
    equal(rows, data_rows())


# A mix.


ONLINE, OFFLINE = 6, 10


@functools.cache
def mixed(kind: str = "uniform", storage: str = "array", n_step: int = 2) -> tuple[Buffer, Buffer, Buffer]:
    """The mix and its parts."""
    online = getattr(replay, kind)(capacity=8 * ENVS, batch_size=ONLINE, n_step=n_step, storage=storage)
    offline = replay.from_arrays(data_rows(), batch_size=OFFLINE, n_step=n_step)
    return replay.mix(online, offline), online, offline


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
@STORAGES
def test_a_mixed_sample_is_one_of_each_part(kind: str, storage: str) -> None:
    buffer, online, offline = mixed(kind, storage)
    add, sample = replay.jit(buffer.add), replay.jit(buffer.sample)
    state, alone = buffer.thaw(buffer.init(example())), online.thaw(online.init(example()))
    state, alone = add(state, online_rows(0, 5)), replay.jit(online.add)(alone, online_rows(0, 5))
    for key in jax.random.split(jax.random.key(0), 3):
        drawn = sample(state, key, importance_exponent=0.5)
        ids = np.asarray(drawn.experience["id"])
        assert ids.shape == drawn.mask.shape == (2, ONLINE + OFFLINE)
        assert np.all(ids[:, :ONLINE] > 0)
        assert np.all(ids[:, ONLINE:] < 0)
        keys = jax.random.split(key)
        first = replay.jit(online.sample)(alone, keys[0], importance_exponent=0.5)
        second = offline.sample(offline.init(example()), keys[1])
        equal(jax.tree.map(lambda leaf: leaf[:, :ONLINE], drawn.experience), first.experience)
        equal(jax.tree.map(lambda leaf: leaf[:, ONLINE:], drawn.experience), second.experience)
        for name in ("indices", "weights", "mask"):
            parts = [getattr(first, name), getattr(second, name)]
            equal(getattr(drawn, name), jnp.concatenate(parts, axis=-1))


def test_a_mix_is_ready_when_its_online_part_is() -> None:
    buffer, _, _ = mixed(n_step=3)
    state = buffer.init(example())
    for written in range(5):
        assert bool(buffer.can_sample(state)) == (written >= 3)
        state = buffer.add(state, online_rows(written, 1))
    equal(state.positions.offline.rows, jax.tree.map(jnp.asarray, data_rows()))


@STORAGES
def test_priorities_of_a_mix_are_those_of_its_online_part(storage: str) -> None:
    buffer, online, _ = mixed("prioritised", storage)
    state = jax.jit(buffer.add)(buffer.init(example()), online_rows(0, 6))
    sample, set_priorities = jax.jit(buffer.sample), jax.jit(buffer.set_priorities)
    samples = jax.jit(jax.vmap(buffer.sample, in_axes=(None, 0)))(state, jax.random.split(jax.random.key(0), 4))
    priorities = jnp.arange(1.0, 4 * (ONLINE + OFFLINE) + 1).reshape(4, -1)  # [U, B]
    after = set_priorities(state, samples.indices, priorities, 0.7)
    alone = ReplayState(state.rows.online, state.positions.online)
    expected = jax.jit(online.set_priorities)(alone, samples.indices[:, :ONLINE], priorities[:, :ONLINE], 0.7)
    equal(after.rows.online, expected.rows)
    assert np.any(np.asarray(after.rows.online.priorities.leaves) != state.rows.online.priorities.leaves)
    equal(after.positions, state.positions)
    one = set_priorities(state, samples.indices[0], priorities[0], 1.0)  # [B]
    weights = sample(one, jax.random.key(1), 1.0).weights
    assert np.max(weights[:ONLINE]) == 1
    assert np.min(weights[:ONLINE]) < 1
    np.testing.assert_array_equal(weights[ONLINE:], 1)


@pytest.mark.parametrize(
    ("indices", "priorities"),
    [((4, ONLINE), (4, ONLINE)), ((16,), (4, 16)), ((64,), (64,)), ((), ())],
)
def test_priorities_that_are_not_of_whole_samples(indices: tuple[int, ...], priorities: tuple[int, ...]) -> None:
    buffer, _, _ = mixed("prioritised")
    with pytest.raises(InputError, match=r"of a mix of 6 \+ 10 windows: give both for whole samples, \[\.\.\., 16\]"):
        buffer.set_priorities(buffer.init(example()), jnp.zeros(indices, jnp.int32), jnp.ones(priorities))


STEPS = 7


def step(buffer: Buffer, jit: Callable[..., Any], state: ReplayState, inputs: Any) -> tuple[ReplayState, Sample]:
    index, key = inputs
    state = jit(buffer.add)(state, online_rows(2 * index, 2))
    sample = jit(buffer.sample)(state, key)
    priorities = 1.0 + sample.indices.astype(jnp.float32)
    return jit(buffer.set_priorities)(state, sample.indices, priorities), sample


def inputs_of(seed: int) -> tuple[jax.Array, jax.Array]:
    return jnp.arange(STEPS), jax.random.split(jax.random.key(seed), STEPS)


def scanned(buffer: Buffer, state: ReplayState, inputs: Any) -> tuple[ReplayState, Sample]:
    """A chunk as of the loop: it thaws, scans and freezes."""
    state, samples = replay.scan(functools.partial(step, buffer, lambda f: f), buffer.thaw(state), inputs)
    return buffer.freeze(state), samples


@functools.cache
def reference(kind: str, seed: int = 0) -> tuple[ReplayState, Sample]:
    buffer, _, _ = mixed(kind)
    return jax.jit(functools.partial(scanned, buffer))(buffer.init(example()), inputs_of(seed))


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
@STORAGES
def test_every_way_to_loop_gives_the_same(kind: str, storage: str) -> None:
    buffer, _, _ = mixed(kind, storage)
    donated = jax.jit(functools.partial(scanned, buffer), donate_argnums=0)
    equal(donated(buffer.init(example()), inputs_of(0)), reference(kind))
    jit = functools.cache(replay.jit)
    state, samples = buffer.thaw(buffer.init(example())), []
    for inputs in zip(*inputs_of(0), strict=True):
        state, sample = step(buffer, jit, state, inputs)
        samples.append(sample)
    equal((buffer.freeze(state), jax.tree.map(lambda *leaves: jnp.stack(leaves), *samples)), reference(kind))


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
@STORAGES
def test_each_seed_of_a_vmap_is_a_single_run(kind: str, storage: str) -> None:
    buffer, _, _ = mixed(kind, storage)
    inputs = jnp.arange(STEPS), jnp.stack([inputs_of(seed)[1] for seed in range(3)])
    state = buffer.init(example())
    state = dataclasses.replace(state, rows=jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state.rows))
    chunk = jax.vmap(functools.partial(scanned, buffer), in_axes=(AXES, (None, 0)), out_axes=(AXES, 0))
    after, samples = jax.jit(chunk, donate_argnums=0)(state, inputs)
    for seed in range(3):
        one, drawn = reference(kind, seed)
        equal(jax.tree.map(lambda leaf, seed=seed: leaf[seed], (after.rows, samples)), (one.rows, drawn))
        equal(after.positions, one.positions)


@STORAGES
def test_a_donated_loop_copies_neither_part(storage: str) -> None:
    rows = data_rows(50_000)
    online = replay.prioritised(capacity=50_000 * ENVS, batch_size=8, storage=storage)
    buffer = replay.mix(online, replay.from_arrays(rows, batch_size=8))
    state = jax.eval_shape(buffer.init, example())
    chunk = jax.jit(functools.partial(scanned, buffer), donate_argnums=0)
    memory = chunk.lower(state, inputs_of(0)).compile().memory_analysis()
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert held > 3e6
    assert memory.alias_size_in_bytes == held
    assert memory.temp_size_in_bytes < 0.02 * held


def test_no_key_is_used_twice() -> None:
    buffer, _, _ = mixed("prioritised")
    state = buffer.add(buffer.init(example()), online_rows(0, 5))
    with jax.debug_key_reuse(True):
        sample = jax.jit(buffer.sample)(state, jax.random.key(0))
    assert sample.indices.shape == (ONLINE + OFFLINE,)


def test_buffers_that_do_not_mix() -> None:
    online = replay.uniform(capacity=8 * ENVS, batch_size=2, n_step=3)
    data = replay.from_arrays(data_rows(), batch_size=2)
    with pytest.raises(InputError, match=r"windows of 3 rows online and of 1 offline.*the same n_step or length"):
        replay.mix(online, data).init(example())
    twice = replay.mix(data, data)
    with pytest.raises(InputError, match=r"a data set can't be added to"):
        twice.add(twice.init(example()), online_rows(0, 1))
    other = dataclasses.replace(online, init=lambda example: online.init({"id": example["id"]}))
    with pytest.raises(InputError, match=r"rows of \{'id': 'int32\[\]'\} online and of \{'id'.*'pair'.*offline"):
        replay.mix(other, replay.from_arrays(data_rows(), batch_size=2, n_step=3)).init(example())
    buffer = replay.mix(online, replay.from_arrays(data_rows(), batch_size=2, n_step=3))
    with pytest.raises(InputError, match=r"state of another kind"):
        buffer.sample(online.init(example()), jax.random.key(0))


def test_two_rings_mix_too() -> None:
    parts = [replay.uniform(capacity=8 * ENVS, batch_size=size, min_size=size) for size in (1, 3)]
    buffer = replay.mix(*parts)
    state = buffer.add(buffer.init(example()), online_rows(0, 4))
    assert not buffer.can_sample(state)  # the other ring is empty
    own = parts[1].add(parts[1].init(example()), numbered(jnp.arange(4), ENVS, sign=-1))
    rows = dataclasses.replace(state.rows, offline=own.rows)
    state = ReplayState(rows, dataclasses.replace(state.positions, offline=own.positions))
    assert buffer.can_sample(state)
    ids = np.asarray(buffer.sample(state, jax.random.key(0)).experience["id"])
    np.testing.assert_array_equal(np.sign(ids), [[1, -1, -1, -1]])


# In the loop.


SEEDS = 3


def recorded() -> Rollout:
    """Rows of the toy environment, as a file would hold them."""
    shape, random = (9, 2), np.random.default_rng(0)
    observation, successor = (
        {"clock": random.random(shape), "position": random.normal(size=(*shape, 2))} for _ in range(2)
    )
    terminated = random.random(shape) < 0.3
    is_first = np.concatenate([np.ones((1, 2), bool), terminated[:-1]])
    legal = np.ones((*shape, 3), bool)
    action, rewards = random.integers(0, 3, shape), np.ones(shape)
    return Rollout(observation, action, rewards, terminated, np.zeros(shape, bool), is_first, successor, legal, legal)


@functools.cache
def trainer_of(agent: str, **settings: Any) -> experiments.Trainer:
    config = make_config(
        agent,
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 2},
        settings=settings,
        replay=experiments.ReplayConfig(capacity=64, batch_size=6, kind="prioritised", n_step=2, storage="ref"),
        iterations_per_chunk=2,
    )
    trainer = experiments.make_trainer(config)
    data = replay.from_arrays(recorded(), batch_size=10, n_step=2)
    return dataclasses.replace(trainer, buffer=replay.mix(trainer.buffer, data))


def dqn() -> experiments.Trainer:
    return trainer_of("dqn", hidden_sizes=(4,))


def seed_keys() -> jax.Array:
    return jax.random.split(jax.random.key(0, impl=KEY_IMPLEMENTATION), SEEDS)


@functools.cache
def chunk_seeds() -> Callable[..., Any]:
    axes = experiments.axes()
    return jax.jit(jax.vmap(dqn().chunk, in_axes=(axes,), out_axes=(axes, 0)), donate_argnums=0)


@functools.cache
def at_start() -> experiments.TrainState:
    state = jax.jit(jax.vmap(dqn().init, out_axes=experiments.axes()))(seed_keys())
    return jax.device_put(state, jax.devices()[0])  # committed, as what is restored: both run in one program


def start(more_reward: float = 0.0) -> experiments.TrainState:
    """A fresh state, to be donated, with more reward in the data set."""
    state = jax.tree.map(jnp.copy, at_start())
    positions = state.clock.positions
    rows = dataclasses.replace(positions.offline.rows, reward=positions.offline.rows.reward + more_reward)
    positions = dataclasses.replace(positions, offline=dataclasses.replace(positions.offline, rows=rows))
    return dataclasses.replace(state, clock=dataclasses.replace(state.clock, positions=positions))


@pytest.mark.thorough
def test_an_agent_trains_on_a_mix() -> None:
    (state, metrics), (other, _) = chunk_seeds()(start()), chunk_seeds()(start(more_reward=1.0))
    assert np.all(np.isfinite([metrics["loss"], metrics["td_error"]]))
    assert not np.any(state.failed.flag)
    # One copy for all seeds, untouched; and of each seed its own rows, with priorities that the learner set.
    data = state.clock.positions.offline.rows
    assert not differences(data, at_start().clock.positions.offline.rows)
    assert jax.tree.map(jnp.shape, data) == jax.tree.map(np.shape, recorded())
    np.testing.assert_allclose(data.observation["position"], recorded().observation["position"], rtol=1e-6)
    assert state.replay.offline == ()
    priorities = np.asarray(state.replay.online.priorities.leaves).reshape(SEEDS, -1)
    assert all(len(np.unique(row)) > 3 for row in priorities)
    agents = [jax.tree.map(lambda leaf, seed=seed: leaf[seed], state.agent) for seed in range(2)]
    assert differences(agents[0].params, agents[1].params)
    assert differences(state.agent.params, other.agent.params)  # what is learnt depends on the data
    # A single seed is one of many.
    one = jax.tree.map(lambda leaf: leaf[1], dataclasses.replace(at_start(), clock=()))
    one, _ = jax.jit(dqn().chunk)(dataclasses.replace(one, clock=at_start().clock))
    assert not differences(one.clock, state.clock)
    assert not differences(one.agent.params, agents[1].params, tolerance=1e-4)


def test_training_on_a_mix_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    state, _ = chunk_seeds()(start())
    checkpoint.save(tmp_path / "saved", state)
    restored = checkpoint.restore(tmp_path / "saved", jax.eval_shape(lambda state: state, state))
    assert not differences(restored, state)
    assert not differences(chunk_seeds()(restored)[0], chunk_seeds()(state)[0])


def test_seeds_on_several_devices_each_hold_the_data_once() -> None:
    trainer = trainer_of(f"{TOYS}/transition_agent.py:make")
    mesh, axes = seed_mesh(4), experiments.axes()
    state = over_seeds(trainer.init, mesh, (0,), axes)(jax.random.split(jax.random.key(0), 4))
    state, _ = over_seeds(trainer.chunk, mesh, (axes,), (axes, 0), donate_argnums=(0,))(state)
    data = state.clock.positions.offline.rows.reward
    np.testing.assert_array_equal(data, recorded().reward)
    assert len(data.sharding.device_set) == 2
    assert data.sharding.is_fully_replicated
    assert np.all(np.isfinite(jax.tree.leaves(state.agent.params)[0]))
    np.testing.assert_array_equal(state.agent.updates, np.full(4, 2 * trainer.chunk_iterations))


def test_a_data_set_alone_is_no_buffer_of_the_loop() -> None:
    trainer = dqn()
    alone = dataclasses.replace(trainer, buffer=replay.from_arrays(recorded(), batch_size=4, n_step=2))
    state = alone.init(seed_keys()[0])
    with pytest.raises(InputError, match=r"a data set can't be added to"):
        alone.chunk(state)


def test_an_agent_learns_from_a_data_set_in_a_loop_of_ones_own() -> None:
    trainer = dqn()
    data = replay.from_arrays(recorded(), batch_size=10, n_step=2)
    start = trainer.agent.init(jax.random.key(0))
    stored = data.init(
        jax.tree.map(lambda leaf: jnp.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))[0], recorded())
    )

    def learn(agent_state: Any, key: jax.Array) -> Any:
        key_sample, key_update = jax.random.split(key)
        agent_state, update = trainer.agent.update(agent_state, data.sample(stored, key_sample), key_update)
        return agent_state, update.metrics["td_error"]

    agent_state, errors = jax.jit(lambda keys: lax.scan(learn, start, keys))(jax.random.split(jax.random.key(1), 50))
    assert np.all(np.isfinite(errors))
    assert differences(agent_state.params, start.params)
