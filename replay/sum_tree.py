"""A tree of sums and maxima over the priorities of a buffer's rows: draws in proportion to them in logarithmic time.

A parent is always recomputed from its children, never changed by a difference, so no rounding error accumulates: after
any number of updates the root is the sum of the leaves to within the rounding of one sum. Nodes have four children: 8
and 16 were measured too, and were slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.replay.storage import overwrite, read, write

FAN_OUT = 4
DENSE_ROWS = 64
"""Levels of at most this many rows are summed up whole: cheaper than to gather and scatter what has changed."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SumTree:
    """The tree. A row of a level belongs to the children of one node; what is beyond the last leaf is 0."""

    leaves: jax.Array  # float32 [ceil(capacity / 4), 4], priorities; an array or a Ref, as all below
    # float32 [ceil(rows of the level below / 4), 8] each, up to one row: four sums, then four maxima. In one array, so
    # that the search reads all that an update writes; without that order XLA copies each level in a loop.
    levels: tuple[jax.Array, ...]


def init(capacity: int) -> SumTree:
    """Returns a tree of `capacity` zeros."""
    rows = -(-capacity // FAN_OUT)
    leaves, levels = jnp.zeros((rows, FAN_OUT)), []
    while rows > 1:
        rows = -(-rows // FAN_OUT)
        levels.append(jnp.zeros((rows, 2 * FAN_OUT)))
    return SumTree(leaves, tuple(levels))


def total(tree: SumTree) -> jax.Array:
    """Returns the sum of all leaves, float32 `[]`."""
    return _summary((tree.leaves, *tree.levels)[-1][...])[0][0]


def maximum(tree: SumTree) -> jax.Array:
    """Returns the largest leaf, float32 `[]`."""
    return _summary((tree.leaves, *tree.levels)[-1][...])[1][0]


def find(tree: SumTree, mass: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds the leaves within which cumulative sums of the leaves pass given masses.

    Args:
        tree: The tree.
        mass: float32 `[B]`, each at least 0 and below `total(tree)`.

    Returns:
        The index, int32 `[B]`, and the value, float32 `[B]`, of the first leaf up to which the leaves sum to more than
        the mass. It is never a leaf of 0, whatever is lost to rounding, unless all leaves are.
    """
    children = jnp.arange(FAN_OUT, dtype=jnp.int32)[None]
    up_to = np.triu(np.ones((FAN_OUT, FAN_OUT), np.float32))  # a product with it is the cumulative sum
    node, value = jnp.zeros(mass.shape, jnp.int32), jnp.zeros(mass.shape, jnp.float32)
    for level in (*reversed(tree.levels), tree.leaves):
        sums = read(level, node, width=FAN_OUT)
        cumulative = jnp.matmul(sums, up_to, precision=lax.Precision.HIGHEST)
        passed = jnp.min(jnp.where((sums > 0) & (cumulative > mass[:, None]), children, FAN_OUT), axis=1)
        last = jnp.max(jnp.where(sums > 0, children, 0), axis=1)
        child = jnp.minimum(passed, last)
        mass = mass - jnp.sum(jnp.where(children < child[:, None], sums, 0.0), axis=1)
        value = jnp.sum(jnp.where(children == child[:, None], sums, 0.0), axis=1)
        node = FAN_OUT * node + child
    return node, value


def put(tree: SumTree, indices: jax.Array, values: jax.Array) -> SumTree:
    """Sets leaves.

    Args:
        tree: The tree.
        indices: int32 `[M]`; where one appears twice, the last of its values counts.
        values: float32 `[M]`, 0 or above.
    """
    values = _last_of_equals(indices, values)
    leaves = write(tree.leaves, indices // FAN_OUT, indices % FAN_OUT, values=values)
    return _updated(tree, leaves, indices // FAN_OUT, lambda rows, _: rows // FAN_OUT)


def put_range(tree: SumTree, start: jax.Array, values: jax.Array, capacity: int) -> SumTree:
    """Sets the leaves `start, start + 1, ...`, counted modulo `capacity`, to `values`, float32 `[M]`, M <= capacity."""

    def cover(first: jax.Array, count: int, rows: int) -> jax.Array:
        # The rows of `count` successive nodes from `first` on, where the first node follows the last.
        count = min((count - 1) // FAN_OUT + 3, rows)
        return (first // FAN_OUT + jnp.arange(count, dtype=jnp.int32)) % rows

    indices = (start + jnp.arange(values.shape[0], dtype=jnp.int32)) % capacity
    leaves = write(tree.leaves, indices // FAN_OUT, indices % FAN_OUT, values=values)
    touched = cover(start % capacity, values.shape[0], tree.leaves.shape[0])
    return _updated(tree, leaves, touched, lambda rows, count: cover(rows[0], rows.shape[0], count))


def _updated(tree: SumTree, leaves: Any, rows: jax.Array, parents: Callable[[jax.Array, int], jax.Array]) -> SumTree:
    """Recomputes all that is above the given rows of leaves.

    Args:
        tree: The tree as it was.
        leaves: Its new leaves.
        rows: Which rows of leaves have changed, int32 `[M]`.
        parents: From rows of one level, and how many rows the next has, to the rows of that level that hold their
            sums.
    """
    levels = [leaves]
    for level in tree.levels:
        below, count = levels[-1], level.shape[0]
        if below.shape[0] <= DENSE_ROWS:
            missing = (0, count * FAN_OUT - below.shape[0])
            parts = [jnp.pad(part, missing).reshape(count, FAN_OUT) for part in _summary(below[...])]
            levels.append(overwrite(level, jnp.concatenate(parts, axis=1)))
        else:
            column = rows % FAN_OUT
            columns = jnp.stack([column, column + FAN_OUT], axis=1)
            values = jnp.stack(_summary(read(below, rows)), axis=1)
            levels.append(write(level, (rows // FAN_OUT)[:, None], columns, values=values))
            rows = parents(rows, count)
    return SumTree(leaves, tuple(levels[1:]))


def _summary(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sum and the maximum below each of some rows of leaves or of a level, float32 `[M]` both."""
    return jnp.sum(rows[:, :FAN_OUT], axis=1), jnp.max(rows[:, -FAN_OUT:], axis=1)


def _last_of_equals(indices: jax.Array, values: jax.Array) -> jax.Array:
    """Returns `values` `[M]` with that of the last of all equal indices in the place of each.

    Then it does not matter in which order a scatter writes them, which XLA leaves open. On CPU it writes them in their
    order (a test holds it to that), so that nothing needs to be done.
    """

    def by_sorting(indices: jax.Array, values: jax.Array) -> jax.Array:
        count = indices.shape[0]
        order = jnp.argsort(indices, stable=True)
        ordered = indices[order]
        ends = jnp.append(ordered[1:] != ordered[:-1], True)
        last = lax.cummin(jnp.where(ends, jnp.arange(count), count), reverse=True)
        return jnp.zeros_like(values).at[order].set(values[order[last]], unique_indices=True)

    return lax.platform_dependent(indices, values, cpu=lambda _, values: values, default=by_sorting)
