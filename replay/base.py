"""The replay contract: what the training loop and a user's own loop know of any buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayState:
    """The state of a buffer for one seed."""

    # Leaves [capacity / N, N, ...], time rows of N environments, with priorities where there are any.
    rows: PyTree
    # Where to write and what may be read, the same for all seeds of a job: `Positions`, what flashbax counts, or the
    # rows of a data set.
    positions: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """B windows of n consecutive rows of one environment each."""

    experience: PyTree  # leaves [n, B, ...]
    indices: jax.Array  # int32 [B], the first row of each window, for `set_priorities`
    weights: jax.Array  # float32 [B], importance weights, 1 where sampling is uniform
    mask: jax.Array  # bool [n, B], rows that may be learnt from


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A bundle of pure functions.

    Attributes:
        init: `(example) -> state`; the example is one row of N environments, leaves `[N, ...]`. Plain arrays.
        add: `(state, rows) -> state`; rows have leaves `[T, N, ...]` and at most `capacity / N` steps.
        sample: `(state, key, importance_exponent=None) -> Sample`; it is not data before `can_sample` holds.
        set_priorities: `(state, indices, priorities, priority_exponent=1.0) -> state`; the identity where there are
            none.
        can_sample: `(state) -> bool []`, of the positions alone, so without the seed axis that rows have under vmap.
        thaw: `(state) -> state` with a `jax.Ref` in place of each array of rows and priorities, for writes in place;
            the identity for the array storage. Such states pass through `replay.scan` and `replay.jit`.
        freeze: `(state) -> state`, the reverse of `thaw`, in the function that thawed or outside of any.
    """

    init: Callable[[PyTree], ReplayState]
    add: Callable[[ReplayState, PyTree], ReplayState]
    sample: Callable[..., Sample]
    set_priorities: Callable[..., ReplayState]
    can_sample: Callable[[ReplayState], jax.Array]
    thaw: Callable[[ReplayState], ReplayState]
    freeze: Callable[[ReplayState], ReplayState]


def importance_weights(priorities: jax.Array, exponent: jax.Array | float | None) -> jax.Array:
    """Importance weights of rows that were drawn in proportion to their priorities.

        w_i = (M P(i))^-beta / max_j (M P(j))^-beta = (min_j p_j / p_i)^beta

    Args:
        priorities: p_i of the batch, to any scale, float32 `[B]`; 0 where nothing could be drawn.
        exponent: beta; None is 1.

    Returns:
        float32 `[B]`, the largest of them 1; 0 where the priority is.
    """
    drawn = priorities > 0
    smallest = jnp.min(jnp.where(drawn, priorities, jnp.inf))
    ratios = jnp.where(drawn, smallest / jnp.where(drawn, priorities, 1.0), 0.0)
    return jnp.where(drawn, ratios ** (1.0 if exponent is None else exponent), 0.0)
