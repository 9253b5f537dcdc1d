"""Ring buffers of rows: `uniform`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import InputError
from rollax.replay import positions
from rollax.replay.base import Buffer, PyTree, ReplayState, Sample

STORAGES = ("array",)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a buffer was built with."""

    capacity: int  # rows, over all environments
    batch_size: int  # windows per sample
    n_step: int  # rows per window


def uniform(capacity: int, batch_size: int, n_step: int = 1, storage: str = "array") -> Buffer:
    """Returns a ring buffer that samples windows of `n_step` consecutive rows uniformly, with replacement.

    A window never starts in an environment's newest `n_step - 1` rows. Windows may cross the end of an episode: a row
    carries its flags and its true successor, and the agent stops its fold there.

    Args:
        capacity: Rows over all N environments; a multiple of N.
        batch_size: Windows per sample.
        n_step: Rows per window.
        storage: "array", immutable arrays; donate them to the jitted function that writes.

    Raises:
        InputError: A size is below 1, a window does not fit, or the storage is unknown.
    """
    for name, value in (("capacity", capacity), ("batch_size", batch_size), ("n_step", n_step)):
        if value < 1:
            raise InputError(f"replay.{name} = {value} must be at least 1.")
    if n_step > capacity:
        raise InputError(f"replay.n_step = {n_step} must not be above replay.capacity = {capacity}.")
    if capacity > np.iinfo(np.int32).max:
        raise InputError(f"replay.capacity = {capacity} must be below 2**31: indices are 32 bits wide.")
    if storage not in STORAGES:
        raise InputError(f"replay.storage = {storage!r} is unknown: choose one of {', '.join(STORAGES)}.")
    settings = _Settings(capacity, batch_size, n_step)
    return Buffer(
        init=functools.partial(_init, settings),
        add=_add,
        sample=functools.partial(_sample, settings),
        set_priorities=_keep_priorities,
        can_sample=functools.partial(_can_sample, settings),
        thaw=_identity,
        freeze=_identity,
    )


def _init(settings: _Settings, example: PyTree) -> ReplayState:
    num_envs = jax.tree.leaves(example)[0].shape[0]
    if settings.capacity % num_envs:
        raise InputError(f"replay.capacity = {settings.capacity} must be a multiple of num_envs = {num_envs}.")
    size = settings.capacity // num_envs
    if settings.n_step > size:
        raise InputError(
            f"replay.n_step = {settings.n_step} must not be above replay.capacity / num_envs = {size}; raise capacity."
        )
    rows = jax.tree.map(lambda leaf: jnp.zeros((size, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), example)
    return ReplayState(rows, positions.start())


def _add(state: ReplayState, rows: PyTree) -> ReplayState:
    size, count = (jax.tree.leaves(tree)[0].shape[0] for tree in (state.rows, rows))
    jax.tree.map(_check_row, state.rows, rows)
    if count > size:
        raise InputError(f"a write of {count} steps does not fit a buffer of {size}; raise replay.capacity.")
    where = positions.written(state.positions, count, size)
    written = jax.tree.map(lambda ring, new: ring.at[where].set(new, unique_indices=True), state.rows, rows)
    return ReplayState(written, positions.advance(state.positions, count, size))


def _check_row(ring: jax.Array, new: jax.Array) -> None:
    if ring.shape[1:] != new.shape[1:] or ring.dtype != new.dtype:
        raise InputError(
            f"rows of {new.dtype}{list(new.shape[1:])} were added to a buffer of {ring.dtype}{list(ring.shape[1:])}: "
            "give rows like the example that the buffer was made with."
        )


def _sample(
    settings: _Settings, state: ReplayState, key: jax.Array, importance_exponent: jax.Array | float | None = None
) -> Sample:
    size, num_envs = jax.tree.leaves(state.rows)[0].shape[:2]
    times, envs = positions.sampled(state.positions, key, settings.batch_size, settings.n_step, size, num_envs)
    return Sample(
        experience=jax.tree.map(lambda ring: ring[times, envs], state.rows),
        indices=times[0] * num_envs + envs,
        weights=jnp.ones((settings.batch_size,), jnp.float32),
        mask=jnp.ones((settings.n_step, settings.batch_size), jnp.bool_),
    )


def _keep_priorities(
    state: ReplayState, indices: jax.Array, priorities: jax.Array, priority_exponent: jax.Array | float = 1.0
) -> ReplayState:
    return state


def _can_sample(settings: _Settings, state: ReplayState) -> jax.Array:
    return positions.starts(state.positions, settings.n_step) > 0


def _identity(state: Any) -> Any:
    return state
