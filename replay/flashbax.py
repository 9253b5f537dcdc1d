"""Any flashbax buffer behind the interface of Rollax's own."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flashbax.buffers.trajectory_buffer import TrajectoryBuffer
from jax import lax

from rollax.errors import InputError
from rollax.replay.base import Buffer, PyTree, ReplayState, Sample, importance_weights

_COUNTERS = ("current_index", "is_full", "running_index")
"""The fields of flashbax's states that are the same for all seeds of a job."""


def from_flashbax(buffer: Any) -> Buffer:
    """Wraps a flashbax buffer: item, flat or trajectory, plain or prioritised.

    Its own counters become `state.positions` and the rest `state.rows`, so that seeds share them. It draws as flashbax
    does: not the samples that Rollax's buffers draw from the same key. An item buffer gives rows `[1, B]`, a flat one
    its first rows `[1, B]` (a row carries its own successor), a trajectory buffer windows `[L, B]`, which may cross the
    end of an episode; `mask` is True everywhere.

    Make it for the N environments whose rows it will get: a flat or trajectory buffer with `add_batch_size=N`. Its
    priorities are raised to its own exponent, on top of that of `set_priorities`, where a priority that is negative or
    not finite makes the whole call change nothing.

    Args:
        buffer: What one of the `flashbax.make_*` functions returned.

    Raises:
        InputError: It is no such buffer; from `add`, it was made for another number of environments.
    """
    if not isinstance(buffer, TrajectoryBuffer):  # which they all are
        raise InputError(
            f"from_flashbax was given {type(buffer).__name__}: give it an item, flat or trajectory buffer of flashbax."
        )
    return Buffer(
        init=functools.partial(_init, buffer),
        add=functools.partial(_add, buffer),
        sample=functools.partial(_sample, buffer),
        set_priorities=functools.partial(_set_priorities, buffer),
        can_sample=lambda state: buffer.can_sample(_join(state)),
        thaw=lambda state: state,
        freeze=lambda state: state,
    )


def _split(state: Any) -> ReplayState:
    counters = {name: getattr(state, name) for name in _COUNTERS if hasattr(state, name)}
    return ReplayState(dataclasses.replace(state, **dict.fromkeys(counters)), counters)


def _join(state: ReplayState) -> Any:
    return dataclasses.replace(state.rows, **state.positions)


def _init(buffer: Any, example: PyTree) -> ReplayState:
    return _split(buffer.init(jax.tree.map(lambda leaf: leaf[0], example)))


def _add(buffer: Any, state: ReplayState, rows: PyTree) -> ReplayState:
    stored = _join(state)
    steps, num_envs = jax.tree.leaves(rows)[0].shape[:2]
    made_for, size = jax.tree.leaves(stored.experience)[0].shape[:2]
    items = _holds_items(buffer)
    if not items and made_for != num_envs:
        raise InputError(
            f"the flashbax buffer was made for {made_for} environments and got rows of num_envs = {num_envs}: make it "
            f"with add_batch_size={num_envs}."
        )
    count = steps * num_envs if items else steps
    if count > size:
        raise InputError(f"a write of {count} steps does not fit a flashbax buffer of {size}; raise its max_length.")
    if items:  # in the order of time, as one environment's
        rows = jax.tree.map(lambda leaf: leaf.reshape(count, 1, *leaf.shape[2:]), rows)
    axes = _axes_of_add(buffer)
    if axes == 2:
        return _split(buffer.add(stored, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), rows)))
    if axes == 0:
        rows = jax.tree.map(lambda leaf: leaf[:, 0], rows)
    return _split(lax.scan(lambda stored, row: (buffer.add(stored, row), None), stored, rows)[0])


def _axes_of_add(buffer: Any) -> int:
    """Returns how many leading axes `add` takes: environments and time, one of them, or none.

    Found out with a row of a shape that nothing else has, as flashbax broadcasts what it does not check.
    """
    row = jnp.zeros((3, 5, 7))
    stored = jax.eval_shape(buffer.init, row)
    made_for = stored.experience.shape[0]
    for axes, lead in ((2, (made_for, 1)), (1, (made_for,)), (0, ())):
        try:
            jax.eval_shape(buffer.add, stored, jnp.zeros((*lead, *row.shape)))
        except (AssertionError, IndexError, TypeError, ValueError):
            continue
        return axes
    raise InputError("the flashbax buffer's add takes neither rows nor batches or sequences of them.")


def _holds_items(buffer: Any) -> bool:
    """Whether a sample has no time axis: a row `[3, 5, 7]` gives `[B, 3, 5, 7]`."""
    stored = jax.eval_shape(buffer.init, jnp.zeros((3, 5, 7)))
    sample = jax.eval_shape(buffer.sample, stored, jax.random.key(0)).experience
    return not hasattr(sample, "first") and sample.ndim == 4


def _sample(
    buffer: Any, state: ReplayState, key: jax.Array, importance_exponent: jax.Array | float | None = None
) -> Sample:
    stored = _join(state)
    sample = buffer.sample(stored, key)
    if hasattr(sample.experience, "first"):
        experience = jax.tree.map(lambda leaf: leaf[None], sample.experience.first)
    elif _holds_items(buffer):
        experience = jax.tree.map(lambda leaf: leaf[None], sample.experience)
    else:
        experience = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sample.experience)
    length, batch_size = jax.tree.leaves(experience)[0].shape[:2]
    if hasattr(sample, "probabilities"):
        indices, weights = sample.indices, importance_weights(sample.probabilities, importance_exponent)
    else:
        indices, weights = jnp.full((batch_size,), -1, jnp.int32), jnp.ones((batch_size,), jnp.float32)
    return Sample(experience, indices, weights, jnp.ones((length, batch_size), jnp.bool_))


def _set_priorities(
    buffer: Any,
    state: ReplayState,
    indices: jax.Array,
    priorities: jax.Array,
    priority_exponent: jax.Array | float = 1.0,
) -> ReplayState:
    if not hasattr(buffer, "set_priorities"):
        return state
    priorities = priorities.reshape(-1) ** priority_exponent
    valid = jnp.all(jnp.isfinite(priorities) & (priorities >= 0))
    stored = _join(state)
    after = buffer.set_priorities(stored, indices.reshape(-1), jnp.where(valid, priorities, 0.0))
    kept = jax.tree.map(lambda new, old: jnp.where(valid, new, old), after.sum_tree_state, stored.sum_tree_state)
    return _split(dataclasses.replace(after, sum_tree_state=kept))
