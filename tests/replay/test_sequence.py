"""Windows of rows: which there are, what their mask says, and, against a plain-Python model, what any buffer holds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from tests.replay.episodes import expected_mask, is_cut_off, terminates

from rollax import InputError, replay
from rollax.agents import Rollout
from rollax.replay import Buffer, Positions, ReplayState, Sample

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
BOTH = pytest.mark.parametrize("storage", ["array", "ref"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Row:
    """The least that `replay.sequence` needs."""

    id: jax.Array  # int32 [T, N], 10 times the time row plus the environment
    terminated: jax.Array
    truncated: jax.Array


def rows(first: int, count: int, num_envs: int = 1) -> Row:
    time, env = np.arange(first, first + count)[:, None], np.arange(num_envs)
    ids = jnp.asarray(10 * time + env, jnp.int32)
    return Row(ids, jnp.asarray(terminates(time, env)), jnp.asarray(is_cut_off(time, env)))


def example(num_envs: int = 1) -> Row:
    return jax.tree.map(lambda leaf: leaf[0], rows(0, 1, num_envs))


def filled(buffer: Buffer, batches: list[int], num_envs: int = 1) -> ReplayState:
    add, state, written = jax.jit(buffer.add), buffer.init(example(num_envs)), 0
    for count in batches:
        state = add(state, rows(written, count, num_envs))
        written += count
    return state


def held(state: ReplayState) -> list[int]:
    """The time rows that a state holds, oldest first."""
    size = state.rows.id.shape[0]
    cursor, count = int(state.positions.cursor), int(state.positions.filled)
    content = np.asarray(state.rows.id[...])
    return [int(content[(cursor - count + index) % size, 0]) // 10 for index in range(count)]


def draws(buffer: Buffer, state: ReplayState) -> tuple[np.ndarray, np.ndarray]:
    """The ids and the mask of one large sample, both `[L, B]`."""
    sample = jax.jit(buffer.sample)(state, jax.random.key(0))
    return np.asarray(sample.experience.id), np.asarray(sample.mask)


# The ring.


def test_the_newest_rows_start_no_window() -> None:
    buffer = replay.sequence(capacity=8, batch_size=512, length=4)
    state = filled(buffer, [1] * 17)
    assert held(state) == list(range(9, 17))
    ids, _ = draws(buffer, state)
    assert ids.shape == (4, 512)
    assert set(ids[0] // 10) == {9, 10, 11, 12, 13}
    np.testing.assert_array_equal(np.diff(ids, axis=0), 10)


def test_batches_that_wrap_inside_a_write() -> None:
    buffer = replay.sequence(capacity=8, batch_size=512, length=4)
    state = filled(buffer, [5, 5, 5, 5])
    assert held(state) == list(range(12, 20))
    assert set(draws(buffer, state)[0][0] // 10) == set(range(12, 17))


@MAYBE_JIT
def test_a_write_may_have_exactly_the_capacity(transform: Transform) -> None:
    buffer = replay.sequence(capacity=8 * 2, batch_size=4, length=4)
    add, state = transform(buffer.add), buffer.init(example(2))
    state = add(add(state, rows(0, 3, 2)), rows(3, 8, 2))
    assert held(state) == list(range(3, 11))
    with pytest.raises(InputError, match=r"a write of 9 steps does not fit a buffer of 8; raise replay\.capacity"):
        add(state, rows(11, 9, 2))


def test_counters_come_round_again_however_long_a_run_lasts() -> None:
    size, count = 11, 7
    buffer = replay.sequence(capacity=size, batch_size=256, length=4)

    def step(state: ReplayState, first: jax.Array) -> tuple[ReplayState, Positions]:
        ids = 10 * (first + jnp.arange(count, dtype=jnp.int32))[:, None]
        state = buffer.add(state, Row(ids, jnp.zeros_like(ids, bool), jnp.zeros_like(ids, bool)))
        return state, state.positions

    firsts = count * jnp.arange(3000, dtype=jnp.int32)
    state, positions = jax.jit(lambda state: lax.scan(step, state, firsts))(buffer.init(example()))
    np.testing.assert_array_equal(positions.cursor, count * np.arange(1, 3001) % size)
    np.testing.assert_array_equal(positions.filled[1:], size)
    # The counters after 11 more writes are those before: so they are after 2**31 of them.
    np.testing.assert_array_equal(positions.cursor[2:-size], positions.cursor[2 + size :])
    assert state.positions.cursor.dtype == state.positions.filled.dtype == jnp.int32
    ids, _ = draws(buffer, state)
    np.testing.assert_array_equal(np.diff(ids, axis=0), 10)
    assert set(ids[0] // 10) == set(range(21_000 - size, 21_000 - 3))


@BOTH
def test_windows_are_consecutive_at_every_place_of_the_write_head(storage: str) -> None:
    buffer = replay.sequence(capacity=6 * 2, batch_size=512, length=3, storage=storage)
    add, sample, state = replay.jit(buffer.add), replay.jit(buffer.sample), buffer.thaw(buffer.init(example(2)))
    for written in range(1, 15):
        state = add(state, rows(written - 1, 1, 2))
        if written < 3:
            continue
        drawn = sample(state, jax.random.key(written))
        ids = np.asarray(drawn.experience.id)
        np.testing.assert_array_equal(np.diff(ids, axis=0), 10)  # so of one environment
        legal = {10 * time + env for time in range(max(0, written - 6), written - 2) for env in range(2)}
        assert set(ids[0].tolist()) == legal
        content = np.asarray(state.rows.id[...]).reshape(-1)
        np.testing.assert_array_equal(content[np.asarray(drawn.indices)], ids[0])


@MAYBE_JIT
@pytest.mark.parametrize(("length", "first"), [(1, 1), (4, 4), (8, 8)])
def test_can_sample_holds_exactly_when_a_window_fits(length: int, first: int, transform: Transform) -> None:
    buffer = replay.sequence(capacity=8 * 2, batch_size=4, length=length)
    can_sample, add, state = transform(buffer.can_sample), jax.jit(buffer.add), buffer.init(example(2))
    assert not can_sample(state)
    for written in range(1, 11):
        state = add(state, rows(written - 1, 1, 2))
        assert can_sample(state).shape == ()
        assert bool(can_sample(state)) == (written >= first), written


# Masks.


@MAYBE_JIT
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ("0000", "0000", "1111"),
        ("0100", "0000", "1100"),
        ("0000", "0010", "1110"),
        ("1000", "0000", "1000"),
        ("0001", "0000", "1111"),
        ("0100", "0001", "1100"),  # only the first end counts
        ("0001", "0100", "1100"),
        ("0100", "0100", "1100"),
        ("1111", "1111", "1000"),
    ],
)
def test_a_mask_by_hand(terminated: str, truncated: str, expected: str, transform: Transform) -> None:
    def bits(text: str) -> jax.Array:
        return jnp.asarray([[bit == "1"] for bit in text])

    buffer = replay.sequence(capacity=4, batch_size=3, length=4)
    content = Row(jnp.arange(4, dtype=jnp.int32)[:, None], bits(terminated), bits(truncated))
    state = buffer.add(buffer.init(example()), content)
    mask = transform(buffer.sample)(state, jax.random.key(0)).mask
    assert mask.dtype == jnp.bool_
    np.testing.assert_array_equal(mask, np.broadcast_to(bits(expected), (4, 3)))


def test_masks_end_with_the_episode_of_the_first_row() -> None:
    buffer = replay.sequence(capacity=16 * 2, batch_size=512, length=4)
    ids, mask = draws(buffer, filled(buffer, [11, 12], 2))
    np.testing.assert_array_equal(mask, expected_mask(ids))
    assert set(mask.sum(axis=0)) == {1, 2, 3, 4}


def test_with_windows_across_episodes_every_row_counts() -> None:
    within = replay.sequence(capacity=16 * 2, batch_size=64, length=4)
    across = replay.sequence(capacity=16 * 2, batch_size=64, length=4, cross_episodes=True)
    state = filled(within, [11, 12], 2)
    (ids, mask), (same_ids, all_rows) = draws(within, state), draws(across, state)
    np.testing.assert_array_equal(ids, same_ids)
    assert not mask.all()
    assert all_rows.dtype == bool
    np.testing.assert_array_equal(all_rows, np.ones((4, 64), bool))


# Memory.


def remembering_rollout(steps: int, num_envs: int) -> Rollout:
    """Rows of an agent whose memory is the sum of what it saw in the episode before, and 0 at its start."""
    time, env = np.arange(steps)[:, None], np.arange(num_envs)
    observation = (100.0 * env + time).astype(np.float32)
    terminated, truncated = terminates(time, env), is_cut_off(time, env)
    is_first = np.concatenate([np.ones((1, num_envs), bool), (terminated | truncated)[:-1]])
    memory = np.zeros((steps, num_envs), np.float32)
    for step in range(1, steps):
        memory[step] = np.where(is_first[step], 0.0, memory[step - 1] + observation[step - 1])
    arrays = {
        "observation": observation[..., None],
        "action": np.zeros((steps, num_envs), np.int32),
        "reward": np.ones((steps, num_envs), np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "is_first": is_first,
        "final_observation": observation[..., None] + 1,
        "extras": {"memory": memory},
    }
    return Rollout(**jax.tree.map(jnp.asarray, arrays), action_mask=None, final_action_mask=None)


@BOTH
def test_a_window_brings_the_memory_that_its_first_row_was_acted_from(storage: str) -> None:
    rollout = remembering_rollout(23, 2)
    buffer = replay.sequence(capacity=16 * 2, batch_size=256, length=4, storage=storage)

    @jax.jit
    def run(key: jax.Array) -> Sample:
        state = buffer.thaw(buffer.init(jax.tree.map(lambda leaf: leaf[0], rollout.rows())))
        for part in (slice(0, 11), slice(11, 23)):
            state = buffer.add(state, jax.tree.map(lambda leaf, part=part: leaf[part], rollout.rows()))
        return buffer.sample(state, key)

    sample = run(jax.random.key(0))
    experience = sample.experience
    assert isinstance(experience, Rollout)
    assert (experience.first_memory, experience.last) == ((), None)
    seen = np.asarray(experience.observation[..., 0])
    time, env = (seen % 100).astype(int), (seen // 100).astype(int)
    np.testing.assert_array_equal(experience.extras["memory"], np.asarray(rollout.extras["memory"])[time, env])
    assert set(time[0]) == set(range(7, 20))
    # A learner that starts from the memory of the first row comes by what the agent had, as far as the mask goes.
    memory = np.asarray(experience.extras["memory"][0])
    for step in range(4):
        counts = np.asarray(sample.mask[step])
        np.testing.assert_allclose(memory[counts], np.asarray(experience.extras["memory"][step])[counts])
        memory = memory + seen[step]
    assert not np.asarray(experience.is_first)[1:][np.asarray(sample.mask)[1:]].any()
    assert np.asarray(experience.extras["memory"][0]).any()


# Both storages.


@pytest.mark.parametrize("cross_episodes", [False, True])
def test_both_storages_give_the_same(cross_episodes: bool) -> None:
    def run(storage: str, key: jax.Array) -> tuple[ReplayState, Sample]:
        buffer = replay.sequence(
            capacity=8 * 2, batch_size=16, length=3, cross_episodes=cross_episodes, storage=storage
        )

        def step(state: ReplayState, inputs: tuple[Row, jax.Array]) -> tuple[ReplayState, Sample]:
            state = buffer.add(state, inputs[0])
            return state, buffer.sample(state, inputs[1])

        batches = jax.tree.map(lambda leaf: leaf.reshape(4, 5, 2), rows(0, 20, 2))
        state = buffer.thaw(buffer.init(example(2)))
        state, samples = replay.scan(step, state, (batches, jax.random.split(key, 4)))
        return buffer.freeze(state), samples

    array, ref = (jax.jit(functools.partial(run, storage))(jax.random.key(0)) for storage in ("array", "ref"))
    jax.tree.map(np.testing.assert_array_equal, array, ref)
    assert held(array[0]) == list(range(12, 20))


# What cannot work.


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, r"replay\.length = 0 must be at least 1"),
        (-3, r"replay\.length = -3 must be at least 1"),
        (17, r"replay\.length = 17 must not be above replay\.capacity = 16"),
    ],
)
def test_lengths_that_cannot_work(length: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replay.sequence(capacity=16, batch_size=4, length=length)


def test_a_window_that_does_not_fit_beside_those_of_other_environments() -> None:
    buffer = replay.sequence(capacity=16, batch_size=4, length=5)
    buffer.init(example(2))
    with pytest.raises(
        InputError, match=r"replay\.length = 5 must not be above replay\.capacity / num_envs = 4; raise"
    ):
        buffer.init(example(4))


@pytest.mark.parametrize("missing", ["terminated", "truncated"])
def test_rows_without_the_flags_that_a_mask_needs(missing: str) -> None:
    fields = [field for field in ("id", "terminated", "truncated") if field != missing]
    part = dataclasses.make_dataclass("Part", fields)
    jax.tree_util.register_dataclass(part, data_fields=fields, meta_fields=[])
    row = part(*(jnp.zeros(2, jnp.bool_) for _ in fields))
    message = r"replay\.length needs rows with `terminated` and `truncated`, .* or set replay\.cross_episodes = true"
    for rows_without in (row, {"terminated": jnp.zeros(2, jnp.bool_)}):
        with pytest.raises(InputError, match=message):
            replay.sequence(capacity=8, batch_size=4, length=2).init(rows_without)
        across = replay.sequence(capacity=8, batch_size=4, length=2, cross_episodes=True)
        assert jax.tree.leaves(across.init(rows_without).rows)[0].shape == (4, 2)


# Any adds and samples, against a model.

SIZE = 5
BATCH_SIZE = 512  # so large that no legal start is missed: the likelihood is below 1e-20


@dataclasses.dataclass(frozen=True)
class Case:
    """One buffer, by what it was made with."""

    kind: str
    window: int
    num_envs: int
    storage: str
    min_size: int = 0


@functools.cache
def compiled(case: Case) -> tuple[Buffer, Callable[..., Any], Callable[..., Any]]:
    capacity, options = SIZE * case.num_envs, {"storage": case.storage, "min_size": case.min_size}
    if case.kind == "uniform":
        buffer = replay.uniform(capacity, BATCH_SIZE, n_step=case.window, **options)
    else:
        buffer = replay.sequence(capacity, BATCH_SIZE, length=case.window, **options)
    jit = replay.jit if case.storage == "ref" else jax.jit
    return buffer, jit(buffer.add), jit(buffer.sample)


@dataclasses.dataclass
class Model:
    """A list of the time rows that are held."""

    case: Case
    times: list[int] = dataclasses.field(default_factory=list)
    written: int = 0

    def add(self, count: int) -> None:
        self.times = [*self.times, *range(self.written, self.written + count)][-SIZE:]
        self.written += count

    def starts(self) -> set[int]:
        times = self.times[: max(0, len(self.times) - self.case.window + 1)]
        return {10 * time + env for time in times for env in range(self.case.num_envs)}

    def ready(self) -> bool:
        return bool(self.starts()) and len(self.times) * self.case.num_envs >= self.case.min_size

    def mask(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(ids.shape, bool) if self.case.kind == "uniform" else expected_mask(ids)


def check_sample(model: Model, sample: Sample) -> None:
    ids = np.asarray(sample.experience.id)
    assert ids.shape == (model.case.window, BATCH_SIZE)
    assert set(ids[0].tolist()) == model.starts()
    np.testing.assert_array_equal(ids, ids[0] + 10 * np.arange(model.case.window)[:, None])
    np.testing.assert_array_equal(sample.mask, model.mask(ids))
    np.testing.assert_array_equal(sample.experience.terminated, terminates(ids // 10, ids % 10))
    np.testing.assert_array_equal(sample.experience.truncated, is_cut_off(ids // 10, ids % 10))


BUFFERS = [("uniform", n_step) for n_step in (1, 2, 3)] + [("sequence", length) for length in (1, 2, 3, 4)]
ADD = st.integers(min_value=1, max_value=9)
SAMPLE = st.integers(min_value=0, max_value=1000).map(lambda seed: ("sample", seed))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    buffer=st.sampled_from(BUFFERS),
    num_envs=st.sampled_from([1, 2]),
    min_size=st.sampled_from([0, 3, 5]),
    operations=st.lists(st.one_of(ADD, SAMPLE), min_size=4, max_size=12),
)
def test_any_adds_and_samples_are_those_of_a_list(
    buffer: tuple[str, int], num_envs: int, min_size: int, operations: list[int | tuple[str, int]]
) -> None:
    cases = [Case(*buffer, num_envs, storage, min_size) for storage in ("array", "ref")]
    model = Model(cases[0])
    states = [compiled(case)[0].thaw(compiled(case)[0].init(example(num_envs))) for case in cases]
    for operation in operations:
        if isinstance(operation, tuple):
            key = jax.random.key(operation[1])
            samples = [compiled(case)[2](state, key) for case, state in zip(cases, states, strict=True)]
            jax.tree.map(np.testing.assert_array_equal, *samples)
            if model.starts():
                check_sample(model, samples[0])
        elif operation > SIZE:
            for case, state in zip(cases, states, strict=True):
                with pytest.raises(InputError, match=f"a write of {operation} steps does not fit a buffer of {SIZE}"):
                    compiled(case)[1](state, rows(model.written, operation, num_envs))
        else:
            new = rows(model.written, operation, num_envs)
            states = [compiled(case)[1](state, new) for case, state in zip(cases, states, strict=True)]
            model.add(operation)
        for case, state in zip(cases, states, strict=True):
            assert held(state) == model.times
            assert bool(compiled(case)[0].can_sample(state)) == model.ready()
    frozen = [compiled(case)[0].freeze(state) for case, state in zip(cases, states, strict=True)]
    jax.tree.map(np.testing.assert_array_equal, *frozen)
