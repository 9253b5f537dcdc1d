"""Flashbax's buffers behind the interface of Rollax's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, replay
from rollax.replay import Buffer, ReplayState, Sample

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
AXES = ReplayState(rows=0, positions=None)
BATCH_SIZE = 64


def rows(first: int, count: int, num_envs: int) -> dict[str, jax.Array]:
    """Time rows `first, first + 1, ...` from 1 on, so that no id is that of an empty place."""
    ids = 10 * np.arange(first + 1, first + count + 1)[:, None] + np.arange(num_envs)
    ids = jnp.asarray(ids, jnp.int32)
    return {"id": ids, "pair": jnp.stack([ids, -ids], axis=-1).astype(jnp.float32)}


def started(buffer: Buffer, num_envs: int) -> ReplayState:
    return buffer.init(jax.tree.map(lambda leaf: leaf[0], rows(0, 1, num_envs)))


def filled(buffer: Buffer, batches: list[int], num_envs: int) -> ReplayState:
    add, state, written = jax.jit(buffer.add), started(buffer, num_envs), 0
    for count in batches:
        state = add(state, rows(written, count, num_envs))
        written += count
    return state


def content(state: ReplayState) -> np.ndarray:
    """The ids that are stored, `[environments, time]` of flashbax, 0 where there is none yet."""
    pair = np.asarray(state.rows.experience["pair"])
    np.testing.assert_array_equal(pair[..., 0], state.rows.experience["id"])
    return np.asarray(state.rows.experience["id"])


def item(prioritised: bool = False, size: int = 7, **options: Any) -> Buffer:
    make = flashbax.make_prioritised_item_buffer if prioritised else flashbax.make_item_buffer
    return replay.from_flashbax(make(max_length=size, min_length=2, sample_batch_size=min(size, BATCH_SIZE), **options))


def flat(prioritised: bool = False, **options: Any) -> Buffer:
    make = flashbax.make_prioritised_flat_buffer if prioritised else flashbax.make_flat_buffer
    return replay.from_flashbax(
        make(**{"max_length": 128, "min_length": 4, "sample_batch_size": BATCH_SIZE, **options})
    )


def trajectory(prioritised: bool = False, **options: Any) -> Buffer:
    make = flashbax.make_prioritised_trajectory_buffer if prioritised else flashbax.make_trajectory_buffer
    sizes = {"sample_batch_size": BATCH_SIZE, "sample_sequence_length": 3, "period": 1}
    times = {"min_length_time_axis": 4, "max_length_time_axis": 9}
    return replay.from_flashbax(make(**{**sizes, **times, **options}))


ADDING = pytest.mark.parametrize(
    "options",
    [{}, {"add_sequences": True}, {"add_batches": True}, {"add_sequences": True, "add_batches": True}],
    ids=["items", "sequences", "batches", "sequences and batches"],
)
PLAIN_OR_PRIORITISED = pytest.mark.parametrize("prioritised", [False, True], ids=["plain", "prioritised"])
ENVIRONMENTS = pytest.mark.parametrize("num_envs", [1, 2])


def check_sample(sample: Sample, length: int, batch_size: int, prioritised: bool) -> np.ndarray:
    """Asserts all but which rows were drawn, and returns their ids."""
    ids = np.asarray(sample.experience["id"])
    assert ids.shape == (length, batch_size)
    assert sample.experience["pair"].shape == (length, batch_size, 2)
    np.testing.assert_array_equal(sample.experience["pair"][..., 1], -ids)
    np.testing.assert_array_equal(np.diff(ids, axis=0), 10)
    np.testing.assert_array_equal(sample.mask, np.ones((length, batch_size), bool))
    assert sample.indices.shape == (batch_size,)
    assert sample.indices.dtype == jnp.int32
    assert sample.weights.dtype == jnp.float32
    np.testing.assert_array_equal(sample.weights, np.ones(batch_size))  # all priorities are new
    assert np.all(np.asarray(sample.indices) >= 0) if prioritised else np.all(np.asarray(sample.indices) == -1)
    return ids


# Each of its buffers.


@PLAIN_OR_PRIORITISED
@ENVIRONMENTS
@ADDING
def test_an_item_buffer_takes_rows_however_it_was_made(
    options: dict[str, bool], num_envs: int, prioritised: bool
) -> None:
    buffer = item(prioritised, size=64, **options)
    state = filled(buffer, [3, 1], num_envs)
    added = np.concatenate([np.ravel(rows(0, 4, num_envs)["id"]), np.zeros(64 - 4 * num_envs)])
    np.testing.assert_array_equal(np.sort(content(state).ravel()), np.sort(added))
    ids = check_sample(jax.jit(buffer.sample)(state, jax.random.key(0)), 1, 64, prioritised)
    assert set(ids.ravel().tolist()) == set(added[added > 0])


@PLAIN_OR_PRIORITISED
@pytest.mark.parametrize(
    ("options", "num_envs"),
    [
        ({}, 1),
        ({"add_sequences": True}, 1),
        ({"add_batch_size": 2}, 2),
        ({"add_batch_size": 2, "add_sequences": True}, 2),
    ],
)
def test_a_flat_buffer_gives_first_rows(options: dict[str, Any], num_envs: int, prioritised: bool) -> None:
    buffer = flat(prioritised, **options)
    state = filled(buffer, [3, 4], num_envs)
    np.testing.assert_array_equal(content(state)[:, :7], np.asarray(rows(0, 7, num_envs)["id"]).T)
    ids = check_sample(jax.jit(buffer.sample)(state, jax.random.key(0)), 1, BATCH_SIZE, prioritised)
    # Of 7 rows the newest has no successor, so that flashbax does not draw it.
    assert set(ids.ravel().tolist()) == set(np.ravel(rows(0, 6, num_envs)["id"]).tolist())


@PLAIN_OR_PRIORITISED
@ENVIRONMENTS
def test_a_trajectory_buffer_gives_windows_of_one_environment(num_envs: int, prioritised: bool) -> None:
    buffer = trajectory(prioritised, add_batch_size=num_envs)
    state = filled(buffer, [5, 2, 6], num_envs)
    ids = check_sample(jax.jit(buffer.sample)(state, jax.random.key(0)), 3, BATCH_SIZE, prioritised)
    assert set(ids[0].tolist()) == set(np.ravel(rows(4, 7, num_envs)["id"]).tolist())  # of the newest 9


@PLAIN_OR_PRIORITISED
def test_it_works_outside_of_jit(prioritised: bool) -> None:
    buffer = trajectory(prioritised, add_batch_size=2)
    compiled, plain = filled(buffer, [5], 2), buffer.add(started(buffer, 2), rows(0, 5, 2))
    jax.tree.map(np.testing.assert_array_equal, plain, compiled)
    sample = buffer.sample(plain, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, sample, jax.jit(buffer.sample)(compiled, jax.random.key(0)))


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda: item(size=16, add_batches=True), 1),  # min_length rows
        (lambda: item(True, size=16, add_batches=True), 1),
        (lambda: flat(add_batch_size=2), 3),  # min_length // 2 + 1 steps
        (lambda: flat(True, add_batch_size=2), 3),
        (lambda: trajectory(add_batch_size=2), 4),
        (lambda: trajectory(True, add_batch_size=2), 4),
    ],
    ids=["item", "prioritised item", "flat", "prioritised flat", "trajectory", "prioritised trajectory"],
)
def test_can_sample_as_flashbax_says(make: Callable[[], Buffer], first: int) -> None:
    buffer = make()
    add, state, can_sample = jax.jit(buffer.add), started(buffer, 2), jax.jit(buffer.can_sample)
    assert not can_sample(state)
    for written in range(1, 6):
        state = add(state, rows(written - 1, 1, 2))
        assert bool(can_sample(state)) == (written >= first), written


def test_it_draws_as_the_wrapped_buffer_does() -> None:
    wrapped = flashbax.make_trajectory_buffer(
        add_batch_size=2,
        sample_batch_size=8,
        sample_sequence_length=3,
        period=1,
        min_length_time_axis=3,
        max_length_time_axis=9,
    )
    buffer, new, key = replay.from_flashbax(wrapped), rows(0, 7, 2), jax.random.key(3)
    own = wrapped.init(jax.tree.map(lambda leaf: leaf[0, 0], new))
    own = wrapped.add(own, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), new))
    expected = wrapped.sample(own, key).experience
    experience = buffer.sample(buffer.add(started(buffer, 2), new), key).experience
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, jnp.swapaxes(b, 0, 1)), experience, expected)


def test_there_is_nothing_to_thaw_or_freeze() -> None:
    buffer = item()
    state = started(buffer, 1)
    assert buffer.thaw(state) is state
    assert buffer.freeze(state) is state


# Rollax's own ring as an oracle, and it as one of Rollax's.


BOTH_AT_ONCE = {"add_sequences": True, "add_batches": True}


@ENVIRONMENTS
@ADDING
def test_the_item_buffer_holds_the_rows_of_our_ring(options: dict[str, bool], num_envs: int) -> None:
    size = 7 * num_envs
    # A write of several steps of several environments goes environment by environment where flashbax takes it whole.
    batches = [1] * 9 if (options, num_envs) == (BOTH_AT_ONCE, 2) else [2, 3, 3, 1, 3]
    ours = filled(replay.uniform(capacity=size, batch_size=1), batches, num_envs)
    theirs = filled(item(size=size, **options), batches, num_envs)
    np.testing.assert_array_equal(content(theirs)[0], np.ravel(ours.rows["id"]))  # place by place
    assert int(theirs.positions["current_index"]) == num_envs * int(ours.positions.cursor)
    assert theirs.positions["is_full"]


# Priorities.


def prioritised_of(kind: str, exponent: float) -> Buffer:
    """A buffer of one environment with places for 4 windows of 1 (item), 2 (flat) or 3 rows (trajectory)."""
    if kind == "item":
        make = functools.partial(flashbax.make_prioritised_item_buffer, max_length=4, min_length=1)
    elif kind == "flat":
        make = functools.partial(flashbax.make_prioritised_flat_buffer, max_length=5, min_length=2)
    else:
        make = functools.partial(
            flashbax.make_prioritised_trajectory_buffer,
            add_batch_size=1,
            sample_sequence_length=3,
            period=1,
            min_length_time_axis=3,
            max_length_time_axis=6,
        )
    return replay.from_flashbax(make(sample_batch_size=4, priority_exponent=exponent))


WINDOWS = {"item": 1, "flat": 2, "trajectory": 3}
KINDS = pytest.mark.parametrize("kind", WINDOWS)
PRIORITIES = np.array([1.0, 2.0, 4.0, 9.0])


def with_priorities(kind: str, exponent: float, **options: float) -> tuple[Buffer, ReplayState]:
    buffer = prioritised_of(kind, exponent)
    state = filled(buffer, [3 + WINDOWS[kind]], 1)
    indices, priorities = jnp.arange(4).reshape(2, 2), jnp.asarray(PRIORITIES, jnp.float32).reshape(2, 2)
    return buffer, jax.jit(buffer.set_priorities)(state, indices, priorities, **options)


@KINDS
def test_importance_weights_by_hand(kind: str) -> None:
    buffer, state = with_priorities(kind, 1.0)
    full = jax.jit(buffer.sample)
    partial = jax.jit(lambda state, key, beta: buffer.sample(state, key, importance_exponent=beta))
    sampled: set[float] = set()
    for seed in range(4):
        key = jax.random.key(seed)
        for beta, sample in [(1.0, full(state, key)), *[(beta, partial(state, key, beta)) for beta in (0.5, 0.0)]]:
            drawn = PRIORITIES[np.asarray(sample.indices)]
            sampled |= set(drawn.tolist())
            weights = (4 * drawn / 16.0) ** -beta  # (M P(i))^-beta, over the largest of the batch
            np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-5)
            np.testing.assert_array_equal(sample.experience["id"][0], 10 * (np.asarray(sample.indices) + 1))
    assert len(sampled) > 2


@KINDS
def test_priorities_change_what_is_drawn(kind: str) -> None:
    buffer = prioritised_of(kind, 1.0)
    state = filled(buffer, [3 + WINDOWS[kind]], 1)
    keys = jax.random.split(jax.random.key(0), 100)
    many = jax.jit(jax.vmap(buffer.sample, in_axes=(None, 0)))
    assert set(np.ravel(many(state, keys).indices)) == {0, 1, 2, 3}
    state = buffer.set_priorities(state, jnp.arange(4), jnp.array([0.0, 3.0, 1.0, 0.0]))
    counts = np.bincount(np.ravel(many(state, keys).indices), minlength=4)
    np.testing.assert_array_equal(counts, [0, 300, 100, 0])  # one of four equal parts of the mass is the third's


@pytest.mark.parametrize(("own", "given"), [(1.0, 0.5), (0.5, 1.0), (0.5, 0.5)])
def test_exponents_of_both_are_applied(own: float, given: float) -> None:
    _, state = with_priorities("item", own, priority_exponent=given)
    np.testing.assert_allclose(state.rows.sum_tree_state.nodes[-4:], PRIORITIES ** (own * given), rtol=1e-6)


@KINDS
def test_a_priority_that_is_none_changes_nothing(kind: str) -> None:
    buffer, state = with_priorities(kind, 0.6)
    put = jax.jit(buffer.set_priorities)
    for wrong in (np.nan, np.inf, -1.0):
        after = put(state, jnp.array([0, 2]), jnp.array([5.0, wrong]))
        jax.tree.map(np.testing.assert_array_equal, after, state)
    changed = put(state, jnp.array([0, 2]), jnp.array([5.0, 1.0]))
    assert not np.array_equal(changed.rows.sum_tree_state.nodes, state.rows.sum_tree_state.nodes)


def test_a_buffer_without_priorities_keeps_its_state() -> None:
    buffer = item()
    state = filled(buffer, [3], 1)
    assert buffer.set_priorities(state, jnp.arange(2), jnp.ones(2)) is state


# Seeds.


@pytest.mark.parametrize(
    "make",
    [
        lambda: item(size=16),
        lambda: item(True, size=16, add_batches=True),
        lambda: trajectory(True, add_batch_size=2),
    ],
    ids=["item", "prioritised item", "prioritised trajectory"],
)
def test_seeds_share_their_counters(make: Callable[[], Buffer]) -> None:
    buffer, keys = make(), jax.random.split(jax.random.key(0), 3)

    def new(seed: int, first: int) -> dict[str, jax.Array]:
        return jax.tree.map(lambda leaf: leaf + 1000 * seed, rows(first, 4, 2))

    add, sample, put = jax.jit(buffer.add), jax.jit(buffer.sample), jax.jit(buffer.set_priorities)
    many_add = jax.jit(jax.vmap(buffer.add, in_axes=(AXES, 0), out_axes=AXES))
    many_set = jax.jit(jax.vmap(buffer.set_priorities, in_axes=(AXES, 0, 0), out_axes=AXES))
    many = jax.vmap(lambda _: started(buffer, 2), out_axes=AXES)(jnp.zeros(3))
    for first in (0, 4):
        many = many_add(many, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[new(s, first) for s in range(3)]))
    indices, priorities = jnp.arange(6).reshape(3, 2), jnp.arange(1.0, 7.0).reshape(3, 2)
    many = many_set(many, indices, priorities)
    assert {leaf.shape for leaf in jax.tree.leaves(many.positions)} == {()}
    assert jax.vmap(buffer.can_sample, in_axes=(AXES,), out_axes=None, axis_size=3)(many).shape == ()
    samples = jax.jit(jax.vmap(buffer.sample, in_axes=(AXES, 0)))(many, keys)
    for seed in range(3):
        one = add(add(started(buffer, 2), new(seed, 0)), new(seed, 4))
        one = put(one, indices[seed], priorities[seed])
        jax.tree.map(np.testing.assert_array_equal, many.positions, one.positions)
        jax.tree.map(lambda a, b, i=seed: np.testing.assert_array_equal(a[i], b), many.rows, one.rows)
        jax.tree.map(
            lambda a, b, i=seed: np.testing.assert_allclose(a[i], b, rtol=1e-6), samples, sample(one, keys[seed])
        )


# What cannot work.


@MAYBE_JIT
@pytest.mark.parametrize(
    ("make", "num_envs"),
    [
        (lambda: flat(), 2),
        (lambda: flat(add_batch_size=2), 1),
        (lambda: flat(add_batch_size=3, add_sequences=True), 2),
        (lambda: flat(True), 2),
        (lambda: trajectory(add_batch_size=1), 2),
        (lambda: trajectory(add_batch_size=2), 1),
        (lambda: trajectory(True, add_batch_size=2), 3),
    ],
)
def test_a_buffer_that_was_made_for_other_environments(
    make: Callable[[], Buffer], num_envs: int, transform: Transform
) -> None:
    buffer = make()
    with pytest.raises(
        InputError, match=rf"got rows of num_envs = {num_envs}: make it with add_batch_size={num_envs}\."
    ):
        transform(buffer.add)(started(buffer, num_envs), rows(0, 3, num_envs))


@pytest.mark.parametrize("thing", [object(), flashbax, None, {"init": 1}])
def test_what_is_no_flashbax_buffer(thing: Any) -> None:
    with pytest.raises(InputError, match=r"from_flashbax was given .*: give it an item, flat or trajectory buffer"):
        replay.from_flashbax(thing)


# Faults that there once were.


@PLAIN_OR_PRIORITISED
def test_a_buffer_of_single_sequences_refuses_two_environments(prioritised: bool) -> None:
    buffer = flat(prioritised, add_sequences=True)
    with pytest.raises(InputError, match=r"got rows of num_envs = 2"):
        buffer.add(started(buffer, 2), rows(0, 3, 2))


def test_an_observation_whose_first_axis_is_the_buffers_environments() -> None:
    buffer, row = trajectory(add_batch_size=2), jnp.ones((3, 1, 2, 2))
    with pytest.raises(InputError, match=r"got rows of num_envs = 1"):
        buffer.add(buffer.init(row[0]), row)


@pytest.mark.parametrize(("prioritised", "shape"), [(False, (2,)), (True, (2,)), (True, ())])
def test_more_steps_than_a_trajectory_buffer_has(prioritised: bool, shape: tuple[int, ...]) -> None:
    buffer, row = trajectory(prioritised, add_batch_size=2), jnp.ones((10, 2, *shape))
    with pytest.raises(InputError):
        buffer.add(buffer.init(row[0]), row)


def test_a_buffer_of_rollax_is_none_of_flashbax() -> None:
    with pytest.raises(InputError, match="from_flashbax was given"):
        replay.from_flashbax(replay.uniform(8, 2))
