"""The replay contract: what the training loop and a user's own loop know of any buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from rollax.replay.positions import Positions

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayState:
    """The state of a buffer for one seed."""

    rows: PyTree  # leaves [capacity / N, N, ...], time rows of N environments
    positions: Positions  # where to write, what may be read


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """B windows of n consecutive rows of one environment each."""

    experience: PyTree  # leaves [n, B, ...]
    indices: jax.Array  # int32 [B], the first row of each window, for `set_priorities`
    weights: jax.Array  # float32 [B], importance weights, 1 where sampling is uniform
    mask: jax.Array  # bool [n, B], rows that belong to the window


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A bundle of pure functions.

    Attributes:
        init: `(example) -> state`; the example is one row of N environments, leaves `[N, ...]`.
        add: `(state, rows) -> state`; rows have leaves `[T, N, ...]` and at most `capacity / N` steps.
        sample: `(state, key, importance_exponent=None) -> Sample`; it is not data before `can_sample` holds.
        set_priorities: `(state, indices, priorities, priority_exponent=1.0) -> state`.
        can_sample: `(state) -> bool []`.
        thaw: `(state) -> state` whose rows may be written in place; the identity for the array storage.
        freeze: `(state) -> state`, the reverse of `thaw`.
    """

    init: Callable[[PyTree], ReplayState]
    add: Callable[[ReplayState, PyTree], ReplayState]
    sample: Callable[..., Sample]
    set_priorities: Callable[..., ReplayState]
    can_sample: Callable[[ReplayState], jax.Array]
    thaw: Callable[[ReplayState], ReplayState]
    freeze: Callable[[ReplayState], ReplayState]
