"""Data sets as buffers: `from_arrays`, which only samples, and `mix`, which adds one to the buffer that a run fills."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import InputError
from rollax.replay import buffers, positions
from rollax.replay.base import Buffer, PyTree, ReplayState, Sample


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DataSet:
    """The rows of a data set. They are among the positions of a state, which all seeds of a job share."""

    rows: PyTree  # leaves [T, N, ...], T time rows of N streams


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixedRows:
    """The rows of the two buffers of a mix."""

    online: PyTree  # the rows of the buffer that is added to
    offline: PyTree  # the rows of the other


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixedPositions:
    """The positions of the two buffers of a mix."""

    online: Any  # the positions of the buffer that is added to
    offline: Any  # the positions of the other
    # Windows in a sample of each, as the parts of a mixed one.
    batch_sizes: tuple[int, int] = dataclasses.field(metadata={"static": True})


def from_arrays(rows: PyTree, batch_size: int, n_step: int = 1) -> Buffer:
    """Returns a buffer that holds a fixed data set and samples windows of its rows uniformly, with replacement.

    To train from the data alone, sample in a loop of one's own; to train in an environment and from the data,
    `mix(online, from_arrays(...))`. Rows are mostly those of `rollax.agents.Rollout`, of recorded arrays `[T, N, ...]`:

        is_first = np.concatenate([np.ones((1, N), bool), (terminated | truncated)[:-1]])
        rows = agents.Rollout(observation, action, reward, terminated, truncated, is_first, next_observation)
        data = replay.from_arrays(rows, batch_size=256, n_step=3)

    A window never starts in the last `n_step - 1` rows of a stream, and may cross the end of an episode, as of
    `uniform`. `next_observation` is the true successor, where an episode ends too. Transitions without an order are
    one stream with `n_step=1`.

    `init` puts the data into `state.positions` and leaves `state.rows` empty: seeds that share positions, as with
    `rollax.experiments.axes()`, share one copy on each device, and a checkpoint of the state holds the data once.
    Under jit the data goes there when the program runs and is no constant of it. The example may be of any number of
    environments. `can_sample` always holds, and `set_priorities` changes nothing.

    Args:
        rows: Leaves `[T, N, ...]`, T consecutive steps of each of N independent streams, NumPy or JAX arrays; 64-bit
            numbers become 32-bit ones, as in JAX. They stay on the host, and NumPy arrays must not be written to.
        batch_size: Windows per sample.
        n_step: Rows per window.

    Raises:
        InputError: A leaf is not `[T, N, ...]` or no array that JAX can hold, a size is below 1, or a window does not
            fit; from `init`, the example has other leaves, shapes or dtypes than the rows; from `add`, always.
    """
    rows = jax.tree_util.tree_map_with_path(_on_host, rows)
    leaves = jax.tree_util.tree_leaves_with_path(rows)
    if not leaves:
        raise InputError("replay.from_arrays was given rows without arrays: give leaves [T, N, ...].")
    size, num_streams = leaves[0][1].shape[:2]
    for path, leaf in leaves:
        if leaf.shape[:2] != (size, num_streams):
            raise InputError(
                f"replay.from_arrays was given {_name(leaves[0][0])} of shape {list(leaves[0][1].shape)} and "
                f"{_name(path)} of shape {list(leaf.shape)}: give all leaves [T, N, ...] with the same T and N."
            )
    ring = buffers.uniform(size * num_streams, batch_size, n_step)  # a full one, which nothing is written to
    if n_step > size:
        raise InputError(f"replay.n_step = {n_step} must not be above the {size} time rows of replay.from_arrays.")
    return dataclasses.replace(
        ring,
        init=functools.partial(_init, rows),
        add=_refuse_add,
        sample=functools.partial(_sample, ring),
        can_sample=lambda state: jnp.ones((), jnp.bool_),
    )


def mix(online: Buffer, offline: Buffer) -> Buffer:
    """Returns a buffer that draws a fixed part of each batch from each of two buffers.

    A sample is one of `online` followed by one of `offline`, along B: so the two batch sizes are the ratio. With 128
    and 128 this is symmetric sampling (Ball et al. 2023, https://arxiv.org/abs/2302.02948):

        online = replay.uniform(capacity=100_000, batch_size=128)
        buffer = replay.mix(online, replay.from_arrays(rows, batch_size=128))

    For the training loop, `dataclasses.replace(trainer, buffer=replay.mix(trainer.buffer, data))`. What is added goes
    to `online` alone, and `importance_exponent` too; importance weights are relative to the largest of each part.
    `set_priorities` takes indices and priorities of the shape of a sample's, `[B]` or `[U, B]`, and sets those of the
    first entries, which are of `online`; it ignores the others. `can_sample` holds where it holds for both, and `thaw`
    and `freeze` are those of both.

    Args:
        online: The buffer that is added to.
        offline: The other, mostly of `from_arrays`.

    Raises:
        InputError: From `init`, samples of the two have other leaves, window lengths, shapes or dtypes; from
            `set_priorities`, indices and priorities are not of a sample's shape.
    """
    return Buffer(
        init=functools.partial(_init_mixed, online, offline),
        add=functools.partial(_add_mixed, online),
        sample=functools.partial(_sample_mixed, online, offline),
        set_priorities=functools.partial(_set_priorities_mixed, online),
        can_sample=functools.partial(_can_sample_mixed, online, offline),
        thaw=functools.partial(_convert_mixed, online.thaw, offline.thaw),
        freeze=functools.partial(_convert_mixed, online.freeze, offline.freeze),
    )


def _on_host(path: Any, leaf: Any) -> np.ndarray:
    """Returns a leaf as NumPy's array of the dtype that JAX gives it."""
    leaf = np.asarray(leaf)
    if not (jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_):
        raise InputError(f"replay.from_arrays was given {_name(path)} of dtype {leaf.dtype}: give numbers or bools.")
    if leaf.ndim < 2 or not all(leaf.shape[:2]):
        raise InputError(
            f"replay.from_arrays was given {_name(path)} of shape {list(leaf.shape)}: give leaves [T, N, ...], T time "
            "rows of N streams; array[:, None] is one stream."
        )
    return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)


def _name(path: Any) -> str:
    return f"rows{jax.tree_util.keystr(path)}"


def _init(rows: PyTree, example: PyTree) -> ReplayState:
    held, given = ({_name(p): v for p, v in jax.tree_util.tree_leaves_with_path(tree)} for tree in (rows, example))
    for name in sorted(held.keys() ^ given.keys()):
        who, other = (
            ("the data set has", "the example has not") if name in held else ("the example has", "the data set has not")
        )
        raise InputError(f"{who} {name} and {other}: give replay.from_arrays the fields that the buffer's example has.")
    for name, leaf in held.items():
        shape, dtype = jnp.shape(given[name])[1:], jnp.asarray(given[name]).dtype
        if leaf.shape[2:] != shape or leaf.dtype != dtype:
            raise InputError(
                f"{name} is {leaf.dtype}{list(leaf.shape[2:])} in the data set and {dtype}{list(shape)} in the "
                "buffer's example: give replay.from_arrays rows like the example."
            )
    structures: list[Any] = [jax.tree.structure(tree) for tree in (rows, example)]
    if structures[0] != structures[1]:
        raise InputError(
            f"rows of the data set are {structures[0]} and the buffer's example is {structures[1]}: give "
            "replay.from_arrays rows like the example."
        )
    # Closed over, the arrays would be constants of the program that is being traced: text that is compiled and cached.
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), rows)
    return ReplayState((), DataSet(jax.pure_callback(lambda: rows, shapes)))


def _refuse_add(state: ReplayState, rows: PyTree) -> NoReturn:
    raise InputError(
        "a data set can't be added to: give the loop replay.mix(online, data), with a buffer for what it collects."
    )


def _sample(
    ring: Buffer, state: ReplayState, key: jax.Array, importance_exponent: jax.Array | float | None = None
) -> Sample:
    if not isinstance(state.positions, DataSet):
        raise InputError("a data set's buffer was given the state of another kind: give the one that its init made.")
    rows = state.positions.rows
    size, num_streams = jax.tree.leaves(rows)[0].shape[:2]
    full = positions.advance(positions.start(num_streams), size, size)
    return ring.sample(ReplayState(rows, full), key)


def _init_mixed(online: Buffer, offline: Buffer, example: PyTree) -> ReplayState:
    states = online.init(example), offline.init(example)
    key = jax.eval_shape(lambda: jax.random.key(0))
    samples = [jax.eval_shape(part.sample, state, key) for part, state in zip((online, offline), states, strict=True)]
    masks = [sample.mask.shape for sample in samples]
    if masks[0][0] != masks[1][0]:
        raise InputError(
            f"replay.mix was given windows of {masks[0][0]} rows online and of {masks[1][0]} offline: make both "
            "buffers with the same n_step or length."
        )
    kinds = [jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[2:])}", sample.experience) for sample in samples]
    if kinds[0] != kinds[1]:
        raise InputError(f"replay.mix was given rows of {kinds[0]} online and of {kinds[1]} offline: give equal ones.")
    batch_sizes = masks[0][1], masks[1][1]
    return ReplayState(
        MixedRows(states[0].rows, states[1].rows),
        MixedPositions(states[0].positions, states[1].positions, batch_sizes),
    )


def _split(state: ReplayState) -> tuple[ReplayState, ReplayState]:
    rows, places = state.rows, state.positions
    if not isinstance(rows, MixedRows):
        raise InputError("replay.mix was given the state of another kind of buffer: give the one that its init made.")
    return ReplayState(rows.online, places.online), ReplayState(rows.offline, places.offline)


def _join(online: ReplayState, offline: ReplayState, before: ReplayState) -> ReplayState:
    places = dataclasses.replace(before.positions, online=online.positions, offline=offline.positions)
    return ReplayState(MixedRows(online.rows, offline.rows), places)


def _add_mixed(online: Buffer, state: ReplayState, rows: PyTree) -> ReplayState:
    own, data = _split(state)
    return _join(online.add(own, rows), data, state)


def _sample_mixed(
    online: Buffer,
    offline: Buffer,
    state: ReplayState,
    key: jax.Array,
    importance_exponent: jax.Array | float | None = None,
) -> Sample:
    own, data = _split(state)
    key_online, key_offline = jax.random.split(key)
    first, second = online.sample(own, key_online, importance_exponent), offline.sample(data, key_offline)
    along_batch = functools.partial(jax.tree.map, lambda *parts: jnp.concatenate(parts, axis=1))
    return Sample(
        experience=along_batch(first.experience, second.experience),
        indices=jnp.concatenate([first.indices, second.indices]),
        weights=jnp.concatenate([first.weights, second.weights]),
        mask=along_batch(first.mask, second.mask),
    )


def _set_priorities_mixed(
    online: Buffer,
    state: ReplayState,
    indices: jax.Array,
    priorities: jax.Array,
    priority_exponent: jax.Array | float = 1.0,
) -> ReplayState:
    own, data = _split(state)
    batch_sizes = state.positions.batch_sizes
    if indices.shape != priorities.shape or indices.shape[-1:] != (sum(batch_sizes),):
        raise InputError(
            f"priorities {list(priorities.shape)} were set for indices {list(indices.shape)} of a mix of "
            f"{batch_sizes[0]} + {batch_sizes[1]} windows: give both for whole samples, [..., {sum(batch_sizes)}]."
        )
    indices, priorities = indices[..., : batch_sizes[0]], priorities[..., : batch_sizes[0]]
    return _join(online.set_priorities(own, indices, priorities, priority_exponent), data, state)


def _convert_mixed(
    online: Callable[[ReplayState], ReplayState], offline: Callable[[ReplayState], ReplayState], state: ReplayState
) -> ReplayState:
    own, data = _split(state)
    return _join(online(own), offline(data), state)


def _can_sample_mixed(online: Buffer, offline: Buffer, state: ReplayState) -> jax.Array:
    own, data = _split(state)
    return online.can_sample(own) & offline.can_sample(data)
