"""The tree of priorities: what it finds, and that its sums and maxima are those of its leaves after any write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import replay
from rollax.replay import sum_tree
from rollax.replay.storage import freeze, thaw
from rollax.replay.sum_tree import SumTree

CAPACITIES = [*range(1, 18), 65, 300, 5000]
TOTAL, MAXIMUM = jax.jit(sum_tree.total), jax.jit(sum_tree.maximum)


@functools.cache
def put_range_of(capacity: int) -> Callable[..., SumTree]:
    return jax.jit(functools.partial(sum_tree.put_range, capacity=capacity))


def tree_of(leaves: np.ndarray) -> SumTree:
    """A tree of these leaves."""
    return put_range_of(len(leaves))(sum_tree.init(len(leaves)), jnp.int32(0), jnp.asarray(leaves, jnp.float32))


def leaves_of(tree: SumTree, capacity: int) -> np.ndarray:
    return np.asarray(tree.leaves[...]).reshape(-1)[:capacity]


def integers(rng: np.random.Generator, capacity: int) -> np.ndarray:
    """Priorities from 0 to 5, a third of them 0, whose sums float32 holds without rounding; one is not 0."""
    leaves = rng.integers(0, 6, capacity) * (rng.random(capacity) < 0.8)
    leaves[rng.integers(capacity)] = 3
    return leaves.astype(np.float32)


def check_all_nodes(tree: SumTree, leaves: np.ndarray) -> None:
    """Every leaf, sum and maximum, where the sums can't be rounded."""
    padded = np.zeros(tree.leaves.size, np.float32)
    padded[: len(leaves)] = leaves
    sums, maxima = padded, padded
    np.testing.assert_array_equal(np.asarray(tree.leaves[...]).reshape(-1), padded)
    for level in tree.levels:
        level = np.asarray(level[...])
        sums, maxima = (np.pad(part, (0, -len(part) % 4)).reshape(-1, 4) for part in (sums, maxima))
        sums, maxima = (np.pad(part, (0, level.size // 2 - len(part))) for part in (sums.sum(1), maxima.max(1)))
        np.testing.assert_array_equal(level[:, :4].reshape(-1), sums)
        np.testing.assert_array_equal(level[:, 4:].reshape(-1), maxima)
    assert float(TOTAL(tree)) == leaves.sum()
    assert float(MAXIMUM(tree)) == leaves.max()


# What it finds.


@pytest.mark.parametrize("mode", ["plain", "jit"])
def test_of_three_equal_leaves_each_third_of_the_mass_finds_its_own(mode: str) -> None:
    find = jax.jit(sum_tree.find) if mode == "jit" else sum_tree.find
    index, value = find(tree_of(np.ones(3)), jnp.array([0.5, 1.5, 2.5]))
    np.testing.assert_array_equal(index, [0, 1, 2])
    np.testing.assert_array_equal(value, [1, 1, 1])
    assert (index.dtype, value.dtype) == (jnp.int32, jnp.float32)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_mass_finds_the_leaf_in_which_the_cumulative_sum_passes_it(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    leaves = integers(rng, capacity)
    tree = tree_of(leaves)
    check_all_nodes(tree, leaves)
    # A mass that equals a cumulative sum belongs to the next leaf that is not 0; masses at or beyond the total, which
    # come of rounding, to the last leaf that is not 0.
    total = leaves.sum()
    masses = np.concatenate([np.arange(0, total, 0.5), [total, np.nextafter(total, np.inf), total + 1, 3 * total]])
    expected = np.searchsorted(np.cumsum(leaves, dtype=np.float64), masses, side="right")
    expected[-4:] = np.flatnonzero(leaves)[-1]
    masses, expected = (np.resize(part, -(-len(masses) // 256) * 256) for part in (masses, expected))  # fewer programs
    index, value = jax.jit(sum_tree.find)(tree, jnp.asarray(masses, jnp.float32))
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(value, leaves[expected])
    np.testing.assert_array_equal(leaves_of(tree, len(leaves))[index], leaves[expected])


@pytest.mark.parametrize("capacity", [7, 65, 300, 5000])
def test_a_mass_in_the_middle_of_a_leaf_finds_it_in_spite_of_rounding(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    leaves = np.where(rng.random(capacity) < 0.3, 0, rng.uniform(0.5, 5, capacity)).astype(np.float32)
    leaves[0] = 1
    exact = leaves.astype(np.float64)
    index, value = jax.jit(sum_tree.find)(tree_of(leaves), jnp.asarray(np.cumsum(exact) - exact / 2, jnp.float32))
    positive = leaves > 0
    np.testing.assert_array_equal(np.asarray(index)[positive], np.flatnonzero(positive))
    np.testing.assert_array_equal(np.asarray(value)[positive], leaves[positive])


@pytest.mark.parametrize("capacity", [6, 300, 5000])
def test_no_leaf_of_zero_is_found_whatever_is_lost_to_rounding(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    for _ in range(5):  # leaves of very different size, few of them, so that zeros are everywhere and at the end
        leaves = np.where(rng.random(capacity) < 0.1, 10.0 ** rng.uniform(-6, 6, capacity), 0).astype(np.float32)
        leaves[rng.integers(capacity)] = 1
        tree = tree_of(leaves)
        total = np.asarray(sum_tree.total(tree))
        borders = np.cumsum(leaves, dtype=np.float64).astype(np.float32)
        masses = np.concatenate([borders, np.nextafter(borders, np.float32(0)), total * np.float32([1, 1.001, 2, 1e6])])
        index, value = jax.jit(sum_tree.find)(tree, jnp.asarray(masses))
        assert np.all(np.asarray(value) > 0)
        np.testing.assert_array_equal(value, leaves[index])


@pytest.mark.parametrize("capacity", [1, 5, 300])
def test_where_all_leaves_are_zero_the_first_is_found(capacity: int) -> None:
    tree = sum_tree.init(capacity)
    index, value = jax.jit(sum_tree.find)(tree, jnp.array([0.0, 1.0]))
    np.testing.assert_array_equal(index, [0, 0])
    np.testing.assert_array_equal(value, [0, 0])
    assert float(sum_tree.total(tree)) == float(sum_tree.maximum(tree)) == 0


# Single leaves.


def last_counts(leaves: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What `put` does, one value after the other."""
    after = leaves.copy()
    for index, value in zip(indices, values, strict=True):
        after[index] = value
    return after


def repeated(rng: np.random.Generator, capacity: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices, most of them among a few and often several times, and different values."""
    few = rng.integers(0, capacity, 7)
    indices = np.where(rng.random(count) < 0.7, rng.choice(few, count), rng.integers(0, capacity, count))
    if count <= 3:
        indices[-1] = indices[0]
    return indices.astype(np.int32), rng.permutation(count).astype(np.float32) % 900


def put_in(mode: str, tree: SumTree, indices: np.ndarray, values: np.ndarray) -> SumTree:
    """One of two seeds of a vmap, or the one tree."""
    indices, values = jnp.asarray(indices), jnp.asarray(values)
    # Functions of their own, so that nothing is reused that was traced for another platform.
    if mode == "plain":
        return sum_tree.put(tree, indices, values)
    if mode == "jit":
        return jax.jit(lambda *args: sum_tree.put(*args))(tree, indices, values)
    if mode == "vmap":
        two = jax.tree.map(lambda leaf: jnp.stack([jnp.zeros_like(leaf), leaf]), tree)
        inputs = jnp.stack([indices[::-1], indices]), jnp.stack([values[::-1], values])
        return jax.tree.map(lambda leaf: leaf[1], jax.jit(jax.vmap(lambda *args: sum_tree.put(*args)))(two, *inputs))
    put = replay.jit(lambda *args: sum_tree.put(*args)) if mode == "ref" else sum_tree.put
    thawed = thaw(tree)
    written = put(thawed, indices, values)
    assert all(a is b for a, b in zip(jax.tree.leaves(written), jax.tree.leaves(thawed), strict=True))
    return freeze(written)


@pytest.mark.parametrize(
    ("mode", "platform"),
    [*((mode, "cpu") for mode in ("plain", "jit", "vmap", "ref", "ref, plain")), ("jit", "other"), ("ref", "other")],
)
def test_of_equal_indices_the_last_value_counts(mode: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform == "other":
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    for capacity, count in ((1, 2), (17, 3), (5000, 5000)):
        rng = np.random.default_rng(count)
        leaves = integers(rng, capacity)
        indices, values = repeated(rng, capacity, count)
        expected = last_counts(leaves, indices, values)
        assert len(set(indices)) < count
        check_all_nodes(put_in(mode, tree_of(leaves), indices, values), expected)


@pytest.mark.parametrize("mapped", [False, True], ids=["one", "vmap"])
@pytest.mark.parametrize("count", [2, 5000])
def test_on_other_platforms_equal_indices_all_bring_the_last_value(
    count: int, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    indices, values = repeated(np.random.default_rng(count), 40, count)
    last = dict(zip(indices.tolist(), values.tolist(), strict=True))
    inputs, function = (jnp.asarray(indices), jnp.asarray(values)), lambda *args: sum_tree._last_of_equals(*args)
    if mapped:
        both = jax.vmap(function)(*(jnp.stack([part, part[::-1]]) for part in inputs))
        first = dict(zip(indices[::-1].tolist(), values[::-1].tolist(), strict=True))
        np.testing.assert_array_equal(both[1], [first[index] for index in indices[::-1].tolist()])
        result = both[0]
    else:
        result = jax.jit(function)(*inputs)
    np.testing.assert_array_equal(result, [last[index] for index in indices.tolist()])


@pytest.mark.parametrize("capacity", [3, 17, 65, 300])
def test_single_leaves_can_be_set_one_after_the_other_in_any_order(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, leaves, put = sum_tree.init(capacity), np.zeros(capacity, np.float32), jax.jit(sum_tree.put)
    for index in rng.permutation(capacity)[:20]:
        leaves[index] = rng.integers(1, 100)
        tree = put(tree, jnp.array([index], jnp.int32), jnp.asarray(leaves[index])[None])
    check_all_nodes(tree, leaves)


# Ranges.


@pytest.mark.parametrize(
    ("capacity", "dense_rows"),
    [*((capacity, sum_tree.DENSE_ROWS) for capacity in CAPACITIES), (5, 0), (13, 0), (17, 0), (70, 0)],
)
def test_a_range_may_start_anywhere_and_go_on_at_the_front(
    capacity: int, dense_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With no level dense, small capacities too try what finds the changed nodes of each level.
    monkeypatch.setattr(sum_tree, "DENSE_ROWS", dense_rows)
    rng = np.random.default_rng(capacity)
    counts = {capacity, int(rng.integers(1, capacity + 1)), *([] if dense_rows and capacity < 18 else [1, 3])}
    for count in sorted(counts):
        starts = [*range(-6, 1), capacity // 2, capacity - 2, capacity, *rng.integers(-capacity, capacity, 4)]
        values = rng.integers(0, 6, (len(starts), count)).astype(np.float32)
        leaves = integers(rng, capacity)
        put_range = jax.jit(functools.partial(sum_tree.put_range, capacity=capacity))
        tree = tree_of(leaves)
        for start, new in zip(starts, values, strict=True):
            leaves[(start + np.arange(count)) % capacity] = new
            tree = put_range(tree, jnp.int32(start), jnp.asarray(new))
            check_all_nodes(tree, leaves)


# Many rounds.


@functools.cache
def rounds(storage: str) -> Any:
    """600 rounds on 512 leaves, every second 0: what was found, and the tree after each round."""
    leaves = np.random.default_rng(0).uniform(1e-3, 5, 512).astype(np.float32)
    leaves[::2] = 0

    def step(tree: SumTree, key: jax.Array) -> tuple[SumTree, Any]:
        key_mass, key_value = jax.random.split(key)
        mass = jax.random.uniform(key_mass, (16,)) * sum_tree.total(tree)
        found, value = sum_tree.find(tree, mass)
        tree = sum_tree.put(tree, found, jax.random.uniform(key_value, (16,), minval=1e-3, maxval=5.0))
        return tree, (found, value, sum_tree.total(tree), sum_tree.maximum(tree), tree.leaves[...].reshape(-1))

    @jax.jit
    def run(tree: SumTree, keys: jax.Array) -> Any:
        tree, ys = replay.scan(step, thaw(tree) if storage == "ref" else tree, keys)
        return freeze(tree) if storage == "ref" else tree, ys

    return leaves, *run(tree_of(leaves), jax.random.split(jax.random.key(0), 600))


@pytest.mark.parametrize("storage", ["array", "ref"])
def test_no_error_accumulates_over_many_rounds(storage: str) -> None:
    start, _, (found, value, total, maximum, leaves) = jax.tree.map(np.asarray, rounds(storage))
    exact = leaves.astype(np.float64).sum(axis=1)
    assert np.all(np.abs(total - exact) <= 1e-5 * total)
    np.testing.assert_array_equal(maximum, leaves.max(axis=1))
    before = np.concatenate([start[None], leaves[:-1]])
    np.testing.assert_array_equal(value, np.take_along_axis(before, found, axis=1))
    assert np.all(value > 0)
    assert np.all(leaves[:, ::2] == 0)
    assert len(np.unique(found)) > 250  # of the 256 others


def test_a_tree_of_refs_is_bit_equal_to_one_of_arrays_in_a_scan() -> None:
    jax.tree.map(np.testing.assert_array_equal, rounds("ref"), rounds("array"))


@pytest.mark.parametrize("capacity", [3, 300, 5000])
def test_a_tree_of_refs_is_bit_equal_to_one_of_arrays_in_a_loop(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    arrays = tree_of(rng.uniform(0, 5, capacity))
    refs, count = thaw(arrays), min(capacity, 70)
    find, put = jax.jit(sum_tree.find), jax.jit(sum_tree.put)
    find_ref, put_ref = replay.jit(sum_tree.find), replay.jit(sum_tree.put)
    put_range_ref = replay.jit(functools.partial(sum_tree.put_range, capacity=capacity))
    for _ in range(8):
        start, values = jnp.int32(rng.integers(capacity)), jnp.asarray(rng.uniform(0, 5, count), jnp.float32)
        arrays, refs = put_range_of(capacity)(arrays, start, values), put_range_ref(refs, start, values)
        mass = jnp.asarray(rng.uniform(0, sum_tree.total(arrays), 16), jnp.float32)
        found, other = find(arrays, mass), find_ref(refs, mass)
        jax.tree.map(np.testing.assert_array_equal, found, other)
        values = jnp.asarray(rng.uniform(0, 5, 16), jnp.float32)
        arrays, refs = put(arrays, found[0], values), put_ref(refs, found[0], values)
    assert float(sum_tree.maximum(refs)) == leaves_of(arrays, capacity).max()
    jax.tree.map(np.testing.assert_array_equal, freeze(refs), arrays)
