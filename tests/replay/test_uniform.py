"""The uniform ring buffer: what it holds, what it draws, and what it costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rollax import InputError, envs, replay
from rollax.agents import Decision, Rollout
from rollax.envs import TimeStep, spaces
from rollax.replay import Buffer, Positions, ReplayState

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
N = 2


def rows(first: int, count: int, num_envs: int = N) -> dict[str, jax.Array]:
    """Time rows `first, first + 1, ...`; an id is 10 times its row plus its environment."""
    time = np.arange(first, first + count)[:, None]
    ids = jnp.asarray(10 * time + np.arange(num_envs), jnp.int32)
    return {"id": ids, "pair": jnp.stack([ids, -ids], axis=-1).astype(jnp.float32)}


def example(num_envs: int = N) -> dict[str, jax.Array]:
    return jax.tree.map(lambda leaf: leaf[0], rows(0, 1, num_envs))


def filled(buffer: Buffer, batches: list[int], num_envs: int = N) -> ReplayState:
    """A buffer that was given consecutive rows in batches of these sizes."""
    state, written = buffer.init(example(num_envs)), 0
    for count in batches:
        state = jax.jit(buffer.add)(state, rows(written, count, num_envs))
        written += count
    return state


def held(state: ReplayState) -> list[int]:
    """The time rows that a state holds, oldest first."""
    size = state.rows["id"].shape[0]
    cursor, count = int(state.positions.cursor), int(state.positions.filled)
    order = [(cursor - count + index) % size for index in range(count)]
    return [int(row) // 10 for row in np.asarray(state.rows["id"])[order, 0]]


# The ring.


@pytest.mark.parametrize(
    ("transform", "batches", "expected"),
    [
        (jax.jit, [3], range(3)),
        (jax.jit, [8], range(8)),  # exactly full
        (jax.jit, [1] * 17, range(9, 17)),
        (jax.jit, [5, 5], range(2, 10)),  # batches that do not divide the size wrap inside a write
        (jax.jit, [5, 5, 5, 5], range(12, 20)),
        (jax.jit, [8, 1, 8], range(9, 17)),
        (jax.jit, [3, 8], range(3, 11)),
        (lambda f: f, [5, 5, 1], range(3, 11)),
        (lambda f: f, [8, 1, 8], range(9, 17)),
    ],
)
def test_a_ring_holds_the_newest_rows(transform: Transform, batches: list[int], expected: range) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=1)
    add, state, written = transform(buffer.add), buffer.init(example()), 0
    for count in batches:
        state = add(state, rows(written, count))
        written += count
    assert held(state) == list(expected)
    assert int(state.positions.filled) == len(expected)
    assert int(state.positions.cursor) == written % 8
    content = np.asarray(state.rows["id"])
    np.testing.assert_array_equal(np.sort(content[content[:, 1] > 0, 0]), 10 * np.array(expected))
    np.testing.assert_array_equal(content[content[:, 1] > 0, 1] % 10, 1)
    np.testing.assert_array_equal(state.rows["pair"][..., 0], content)
    np.testing.assert_array_equal(state.rows["pair"][..., 1], -content)


def test_one_write_is_many_writes() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=1)
    one, many = filled(buffer, [5, 6]), filled(buffer, [1] * 11)
    jax.tree.map(np.testing.assert_array_equal, one, many)


def test_an_empty_buffer_has_the_types_of_its_example() -> None:
    buffer = replay.uniform(capacity=6, batch_size=1)
    step = {"a": jnp.zeros((3, 2), jnp.uint8), "b": jnp.zeros(3, jnp.bool_), "c": np.zeros((3, 1), np.float32), "d": ()}
    state = buffer.init(step)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state.rows) == {
        "a": ((2, 3, 2), jnp.uint8),
        "b": ((2, 3), jnp.bool_),
        "c": ((2, 3, 1), jnp.float32),
        "d": (),
    }
    assert (int(state.positions.cursor), int(state.positions.filled)) == (0, 0)
    written = jax.eval_shape(buffer.add, state, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], step))
    assert jax.tree.structure(written) == jax.tree.structure(state)
    for after, before in zip(jax.tree.leaves(written), jax.tree.leaves(state), strict=True):
        assert (after.shape, after.dtype, after.weak_type) == (before.shape, before.dtype, before.weak_type)


def test_counters_stay_small_however_long_a_run_lasts() -> None:
    buffer = replay.uniform(capacity=7 * N, batch_size=1)

    def step(state: ReplayState, _: None) -> tuple[ReplayState, Positions]:
        state = buffer.add(state, rows(0, 5))
        return state, state.positions

    state, positions = jax.jit(lambda state: jax.lax.scan(step, state, length=5000))(buffer.init(example()))
    np.testing.assert_array_equal(positions.cursor, 5 * np.arange(1, 5001) % 7)
    np.testing.assert_array_equal(positions.filled[1:], 7)
    assert state.positions.cursor.dtype == state.positions.filled.dtype == jnp.int32


@MAYBE_JIT
def test_counters_do_not_overflow_at_the_largest_size(transform: Transform) -> None:
    size = 2**31 - 1
    full = Positions(cursor=jnp.int32(size - 2), filled=jnp.int32(size))
    after = transform(lambda positions: replay.positions.advance(positions, 1, size))(full)
    assert (int(after.cursor), int(after.filled)) == (size - 1, size)
    after = transform(lambda positions: replay.positions.advance(positions, 1, size))(after)
    assert (int(after.cursor), int(after.filled)) == (0, size)


# Sampling.


def draw(buffer: Buffer, state: ReplayState, count: int) -> replay.Sample:
    """`count` batches: leaves `[count, n, B, ...]`."""
    return jax.jit(jax.vmap(buffer.sample, in_axes=(None, 0)))(state, jax.random.split(jax.random.key(0), count))


@MAYBE_JIT
@pytest.mark.parametrize(("n_step", "first"), [(1, 1), (2, 2), (3, 3), (8, 8)])
def test_can_sample_is_exact(n_step: int, first: int, transform: Transform) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4, n_step=n_step)
    can_sample, state = transform(buffer.can_sample), buffer.init(example())
    assert not can_sample(state)
    assert can_sample(state).shape == ()
    for written in range(1, 12):
        state = filled(buffer, [1] * written) if written == 1 else jax.jit(buffer.add)(state, rows(written - 1, 1))
        assert bool(can_sample(state)) == (written >= first), written


@MAYBE_JIT
@pytest.mark.parametrize(
    ("min_size", "n_step", "first"),
    [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 2), (9, 1, 5), (10, 1, 5), (16, 1, 8), (6, 4, 4), (9, 4, 5)],
)
def test_can_sample_waits_for_min_size_rows_over_all_environments(
    min_size: int, n_step: int, first: int, transform: Transform
) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4, n_step=n_step, min_size=min_size)
    can_sample, add, state = transform(buffer.can_sample), jax.jit(buffer.add), buffer.init(example())
    for written in range(12):
        assert bool(can_sample(state)) == (written >= first), written
        state = add(state, rows(written, 1))
    # Also where rows have a seed axis: the positions alone say it.
    wide = dataclasses.replace(state, rows=jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), state.rows))
    assert can_sample(wide).shape == ()
    axes = ReplayState(rows=0, positions=None)
    assert jax.vmap(buffer.can_sample, in_axes=(axes,), out_axes=None)(wide)


@pytest.mark.parametrize("make", [replay.uniform, functools.partial(replay.sequence, length=2), replay.prioritised])
@pytest.mark.parametrize(
    ("min_size", "message"),
    [
        (17, r"replay\.min_size = 17 must not be above replay\.capacity = 16"),
        (-1, r"replay\.min_size = -1 must be at least 0"),
        (2.0, r"replay\.min_size = 2\.0 must be a whole number"),
    ],
)
def test_a_min_size_that_cannot_work(make: Callable[..., Buffer], min_size: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(16, 4, min_size=min_size)


@MAYBE_JIT
def test_a_sample(transform: Transform) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=64, n_step=3)
    state = filled(buffer, [5, 6])
    sample = transform(buffer.sample)(state, jax.random.key(0))
    ids = np.asarray(sample.experience["id"])
    assert ids.shape == (3, 64)
    assert sample.experience["pair"].shape == (3, 64, 2)
    np.testing.assert_array_equal(sample.experience["pair"][..., 1], -ids)
    np.testing.assert_array_equal(np.diff(ids, axis=0), 10)  # consecutive, of one environment
    assert set(ids[0] // 10) == set(range(3, 9))  # of rows 3 to 10, the newest 2 start no window
    assert set(ids[0] % 10) == {0, 1}
    assert sample.weights.dtype == jnp.float32
    np.testing.assert_array_equal(sample.weights, np.ones(64))
    np.testing.assert_array_equal(sample.mask, np.ones((3, 64), bool))
    # An index is that of the window's first row among all rows of the storage.
    assert sample.indices.dtype == jnp.int32
    np.testing.assert_array_equal(state.rows["id"].reshape(-1)[sample.indices], ids[0])


@pytest.mark.parametrize("n_step", [1, 3])
def test_windows_at_every_place_of_the_write_head(n_step: int) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=16, n_step=n_step)
    state, sample = buffer.init(example()), jax.jit(jax.vmap(buffer.sample, in_axes=(None, 0)))
    keys = jax.random.split(jax.random.key(0), 32)
    for written in range(1, 20):
        state = jax.jit(buffer.add)(state, rows(written - 1, 1))
        if written < n_step:
            continue
        ids = np.asarray(sample(state, keys).experience["id"])
        np.testing.assert_array_equal(np.diff(ids, axis=1), 10)
        starts = range(max(0, written - 8), written - n_step + 1)
        assert set((ids[:, 0] // 10).ravel()) == set(starts)
        assert set((ids[:, 0] % 10).ravel()) == {0, 1}


@pytest.mark.parametrize(("n_step", "batches"), [(1, [4]), (1, [8, 3]), (3, [5]), (3, [8, 3])])
def test_sampling_is_uniform_over_legal_rows(n_step: int, batches: list[int]) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=50, n_step=n_step)
    starts = np.asarray(draw(buffer, filled(buffer, batches), 240).experience["id"])[:, 0].ravel()
    oldest, written = max(0, sum(batches) - 8), sum(batches)
    legal = [10 * time + env for time in range(oldest, written - n_step + 1) for env in range(N)]
    values, counts = np.unique(starts, return_counts=True)
    np.testing.assert_array_equal(values, legal)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_draws_of_a_batch_are_independent_and_keys_matter() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=2)
    ids = np.asarray(draw(buffer, filled(buffer, [8]), 4096).experience["id"])[:, 0]
    assert (
        scipy.stats.chisquare(np.unique(16 * (ids[:, 0] // 10) + ids[:, 1] // 10, return_counts=True)[1]).pvalue > 1e-3
    )
    assert len(np.unique(ids, axis=0)) == 256


def test_an_example_of_one_environment() -> None:
    buffer = replay.uniform(capacity=3, batch_size=32, n_step=3)
    ids = np.asarray(jax.jit(buffer.sample)(filled(buffer, [2, 3], 1), jax.random.key(0)).experience["id"])
    np.testing.assert_array_equal(ids, np.broadcast_to([[20], [30], [40]], (3, 32)))


def test_priorities_and_storage_change_nothing() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    state = filled(buffer, [5])
    sample = jax.jit(buffer.sample)(state, jax.random.key(0), importance_exponent=0.4)
    np.testing.assert_array_equal(sample.weights, np.ones(4))
    after = buffer.freeze(buffer.thaw(buffer.set_priorities(state, sample.indices, jnp.ones(4), priority_exponent=0.6)))
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_no_key_is_used_twice() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    with jax.debug_key_reuse(True):
        sample = jax.jit(buffer.sample)(filled(buffer, [5]), jax.random.key(0))
    assert sample.indices.shape == (4,)


# Seeds.


@pytest.mark.parametrize("shared", [False, True], ids=["positions of each", "positions of all"])
def test_seeds_of_a_vmap_are_single_buffers(shared: bool) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=5, n_step=2)
    axes = ReplayState(rows=0, positions=None if shared else 0)
    keys = jax.random.split(jax.random.key(0), 3)

    def seed(index: int) -> list[dict[str, jax.Array]]:
        return [jax.tree.map(lambda leaf: leaf + 1000 * index, rows(first, 5)) for first in (0, 5)]

    state = buffer.init(example())
    many = ReplayState(
        rows=jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state.rows),
        positions=state.positions if shared else jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state.positions),
    )
    add = jax.jit(jax.vmap(buffer.add, in_axes=(axes, 0), out_axes=axes))
    for batch in range(2):
        many = add(many, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[seed(index)[batch] for index in range(3)]))
    assert many.positions.cursor.shape == (() if shared else (3,))
    samples = jax.jit(jax.vmap(buffer.sample, in_axes=(axes, 0)))(many, keys)
    add_one, sample_one = jax.jit(buffer.add), jax.jit(buffer.sample)
    for index in range(3):
        one = buffer.init(example())
        for batch in seed(index):
            one = add_one(one, batch)
        jax.tree.map(lambda a, b, i=index: np.testing.assert_array_equal(a[i], b), many.rows, one.rows)
        expected = sample_one(one, keys[index])
        jax.tree.map(lambda a, b, i=index: np.testing.assert_array_equal(a[i], b), samples, expected)


# Memory.


def nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("seeds", [None, 3], ids=["one", "vmap"])
@pytest.mark.parametrize("count", [1, 48])
def test_a_donated_write_is_in_place(count: int, seeds: int | None) -> None:
    buffer = replay.uniform(capacity=10_000 * 4, batch_size=1)
    step = {"observation": jnp.zeros((4, 64)), "action": jnp.zeros(4, jnp.int32)}
    state = jax.eval_shape(buffer.init, step)
    written = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), step)
    add, axes = buffer.add, ReplayState(rows=0, positions=None)
    if seeds is not None:
        add = jax.vmap(add, in_axes=(axes, 0), out_axes=axes)
        wide = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype))
        state, written = dataclasses.replace(state, rows=wide(state.rows)), wide(written)
    memory = jax.jit(add, donate_argnums=0).lower(state, written).compile().memory_analysis()
    assert nbytes(state.rows) == 10_000 * 4 * 65 * 4 * (seeds or 1)
    assert memory.alias_size_in_bytes == nbytes(state)
    assert (
        memory.temp_size_in_bytes < 1.1 * nbytes(written) + 10_000
    )  # of what is written at the most, not of the buffer
    assert memory.temp_size_in_bytes < 0.02 * nbytes(state)


def test_write_then_sample_in_a_scan_does_not_copy_the_buffer() -> None:
    buffer = replay.uniform(capacity=1000 * 4, batch_size=8)
    step = {"observation": jnp.zeros((4, 64))}

    def run(state: ReplayState, keys: jax.Array) -> tuple[ReplayState, jax.Array]:
        def body(state: ReplayState, key: jax.Array) -> tuple[ReplayState, jax.Array]:
            state = buffer.add(state, {"observation": jnp.full((2, 4, 64), state.positions.cursor, jnp.float32)})
            return state, jnp.sum(buffer.sample(state, key).experience["observation"])

        return jax.lax.scan(body, state, keys)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    state = jax.eval_shape(buffer.init, step)
    memory = jax.jit(run, donate_argnums=0).lower(state, keys).compile().memory_analysis()
    assert memory.alias_size_in_bytes == nbytes(state)
    assert memory.temp_size_in_bytes < 0.02 * nbytes(state)


# Rollouts.


class Counter:
    """Shows how many steps its episode has had, and is cut off at 4."""

    default_params = ()

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, TimeStep]:
        return jnp.zeros((), jnp.int32), envs.timestep(jnp.zeros(1))

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, TimeStep]:
        return state + 1, envs.timestep((state + 1.0)[None], 1.0, truncated=state + 1 >= 4)

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(0, 4, (1,))

    def action_space(self, params: Any = None) -> spaces.Discrete:
        return spaces.Discrete(2)


def test_the_true_successor_of_a_cut_off_step_is_kept() -> None:
    env = envs.Vectorise(envs.AutoReset(Counter()), N)
    buffer = replay.uniform(capacity=8 * N, batch_size=200, n_step=2)

    def step(carry: tuple[Any, TimeStep], key: jax.Array) -> tuple[tuple[Any, TimeStep], Rollout]:
        decision = Decision(jnp.zeros(N, jnp.int32), {})
        after = env.step(key, carry[0], decision.action, ())
        return after, Rollout.row(carry[1], decision, after[1])

    @jax.jit
    def run(key: jax.Array) -> replay.Sample:
        start = env.reset(key, ())
        (_, last), rollout = jax.lax.scan(step, start, jax.random.split(key, 13))
        rollout = dataclasses.replace(rollout, last=last, first_memory=jnp.zeros(N))
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0], rollout.rows()))
        for first in (0, 6):
            part = jax.tree.map(lambda leaf, first=first: leaf[first : first + 7], rollout.rows())
            state = buffer.add(state, part)
        return buffer.sample(state, key)

    experience = run(jax.random.key(0)).experience
    assert experience.first_memory == ()
    assert experience.last is None
    observation, successor = experience.observation[..., 0], experience.final_observation[..., 0]
    np.testing.assert_array_equal(successor, observation + 1)  # 4 after 3, where the policy saw 0 next
    np.testing.assert_array_equal(experience.truncated, successor == 4)
    np.testing.assert_array_equal(experience.is_first, observation == 0)
    cut = np.asarray(experience.truncated[0])
    assert cut.any()
    np.testing.assert_array_equal(observation[1][cut], 0)
    assert not experience.terminated.any()


# What cannot work.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, r"replay\.capacity = 0 must be at least 1"),
        ({"batch_size": 0}, r"replay\.batch_size = 0 must be at least 1"),
        ({"n_step": 0}, r"replay\.n_step = 0 must be at least 1"),
        ({"n_step": 17}, r"replay\.n_step = 17 must not be above replay\.capacity = 16"),
        ({"storage": "disk"}, r"replay\.storage = 'disk' is unknown: choose one of array"),
    ],
)
def test_sizes_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replay.uniform(**{"capacity": 16, "batch_size": 4, "n_step": 1, "storage": "array", **changes})


@pytest.mark.parametrize(
    ("num_envs", "n_step", "message"),
    [
        (3, 1, r"replay\.capacity = 16 must be a multiple of num_envs = 3"),
        (32, 1, r"replay\.capacity = 16 must be a multiple of num_envs = 32"),
        (4, 5, r"replay\.n_step = 5 must not be above replay\.capacity / num_envs = 4; raise capacity"),
    ],
)
def test_a_number_of_environments_that_does_not_fit(num_envs: int, n_step: int, message: str) -> None:
    buffer = replay.uniform(capacity=16, batch_size=4, n_step=n_step)
    with pytest.raises(InputError, match=message):
        buffer.init(example(num_envs))


@MAYBE_JIT
def test_a_write_that_is_too_large(transform: Transform) -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    state = buffer.init(example())
    with pytest.raises(InputError, match=r"a write of 9 steps does not fit a buffer of 8; raise replay\.capacity"):
        transform(buffer.add)(state, rows(0, 9))


# Faults that there once were.


def test_rows_of_another_number_of_environments() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    with pytest.raises(InputError, match=r"rows of int32\[1\] were added to a buffer of int32\[2\]"):
        buffer.add(buffer.init(example()), rows(0, 3, num_envs=1))


def test_rows_of_another_dtype() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    with pytest.raises(InputError, match=r"rows of float32\[2\] were added to a buffer of int32\[2\]"):
        buffer.add(buffer.init({"x": jnp.zeros(N, jnp.int32)}), {"x": jnp.full((1, N), 0.5)})


def test_a_capacity_above_the_largest_index() -> None:
    with pytest.raises(InputError, match=r"replay\.capacity = 2147483648 must be below 2\*\*31"):
        replay.uniform(capacity=2**31, batch_size=4)


@pytest.mark.parametrize("value", [None, 8.0, True, "8"])
@pytest.mark.parametrize("name", ["capacity", "batch_size", "n_step"])
def test_sizes_that_are_no_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"replay\.{name} = {value!r} must be a whole number"):
        replay.uniform(**{"capacity": 16, "batch_size": 4, "n_step": 1, name: value})


@pytest.mark.parametrize("step", [{}, jnp.zeros(()), {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}, jnp.zeros((0, 2))])
def test_examples_that_are_no_row_of_environments(step: Any) -> None:
    with pytest.raises(InputError, match=r"a buffer's example must be one row of N environments"):
        replay.uniform(capacity=16, batch_size=4).init(step)


def test_leaves_of_different_numbers_of_steps() -> None:
    buffer = replay.uniform(capacity=8 * N, batch_size=4)
    mixed = {"id": rows(0, 3)["id"], "pair": rows(0, 1)["pair"]}
    with pytest.raises(InputError, match=r"rows of 3 and of 1 steps were added at once"):
        buffer.add(buffer.init(example()), mixed)


def test_rows_and_states_of_another_kind() -> None:
    small, large = replay.uniform(capacity=8, batch_size=4), replay.prioritised(capacity=16, batch_size=4)
    with pytest.raises(InputError, match=r"rows of structure .* were added to a buffer of"):
        small.add(small.init(example()), {"other": jnp.zeros((1, N))})
    with pytest.raises(InputError, match=r"a state of 4 x 2 rows was given to a buffer with replay\.capacity = 16"):
        replay.uniform(capacity=16, batch_size=4).sample(small.init(example()), jax.random.key(0))
    with pytest.raises(InputError, match=r"a prioritised buffer was given the state of another kind"):
        large.sample(small.init(example()), jax.random.key(0))
