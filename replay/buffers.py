"""Ring buffers of rows: `uniform`, `sequence` and `prioritised`, which draws the windows of either."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import InputError
from rollax.replay import positions, sum_tree
from rollax.replay.base import Buffer, PyTree, ReplayState, Sample, importance_weights
from rollax.replay.storage import STORAGES, freeze, read, thaw, write
from rollax.replay.sum_tree import SumTree

Mask = Callable[[PyTree], jax.Array]
"""From windows with leaves `[n, B, ...]` to which of their rows count, bool `[n, B]`."""


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a buffer was built with."""

    capacity: int  # rows, over all environments
    batch_size: int  # windows per sample
    window: int  # rows per window
    window_name: str  # what the user calls it
    min_size: int  # rows, over all environments, before anything may be drawn


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrioritisedRows:
    """The rows of a prioritised buffer and the priorities of the windows that start at them."""

    rows: PyTree  # leaves [capacity / N, N, ...], time rows of N environments
    # In the rows' order, 0 where no window may start; then one leaf that stays 0, where what is not valid is written.
    priorities: SumTree


def uniform(capacity: int, batch_size: int, n_step: int = 1, storage: str = "array", min_size: int = 0) -> Buffer:
    """Returns a ring buffer that samples windows of `n_step` consecutive rows uniformly, with replacement.

    A window never starts in an environment's newest `n_step - 1` rows. Windows may cross the end of an episode: a row
    carries its flags and its true successor, and the agent stops its fold there (`rollax.agents.returns.n_step`).

    Args:
        capacity: Rows over all N environments; a multiple of N.
        batch_size: Windows per sample.
        n_step: Rows per window.
        storage: "array", immutable arrays, to be donated to the jitted function that writes; or "ref", which `thaw`
            makes writable in place. Both give bit-equal samples.
        min_size: Rows over all N environments that must be held before `can_sample` holds; in any case a window must.

    Raises:
        InputError: A size is below 1, a window or `min_size` does not fit, or the storage is unknown.
    """
    return _ring(_Settings(capacity, batch_size, n_step, "n_step", min_size), storage, _all_rows)


def sequence(
    capacity: int,
    batch_size: int,
    length: int,
    cross_episodes: bool = False,
    storage: str = "array",
    min_size: int = 0,
) -> Buffer:
    """Returns a ring buffer that samples windows of `length` consecutive rows uniformly, with replacement.

    Any row may start a window but an environment's newest `length - 1`. An agent with memory puts the memory it acted
    from into `Decision.extras`; `experience.extras` at index 0 then holds the memory at the start of each window.

    Args:
        capacity: Rows over all N environments; a multiple of N.
        batch_size: Windows per sample.
        length: Rows per window, L.
        cross_episodes: Whether a window goes on behind the end of an episode. If not, `mask` is False from the first
            row of the next episode on. If so, `mask` is True everywhere and the learner resets memory at `is_first`.
        storage: As of `uniform`.
        min_size: As of `uniform`.

    Raises:
        InputError: A size is below 1, a window or `min_size` does not fit, or the storage is unknown; from `init`, rows
            have no `terminated` and `truncated`.
    """
    return _ring(_Settings(capacity, batch_size, length, "length", min_size), storage, _mask_of(cross_episodes))


def prioritised(
    capacity: int,
    batch_size: int,
    n_step: int = 1,
    storage: str = "array",
    length: int | None = None,
    cross_episodes: bool = False,
    min_size: int = 0,
) -> Buffer:
    """Returns a ring buffer that samples windows in proportion to their priority, with replacement.

    Proportional prioritisation (Schaul et al. 2016, https://arxiv.org/abs/1511.05952), for windows as of `uniform`, or
    with a `length` for windows as of `sequence` (Kapturowski et al. 2019):

        P(i) = p_i / sum_k p_k,     w_i = (M P(i))^-beta / max_j w_j

    with p_i the priority that was set, raised to `priority_exponent`, M the number of windows that may be drawn, and
    the maximum over the batch. The b-th of B samples is drawn from the b-th of B equal parts of the total mass. A new
    row gets the largest priority that is in the buffer as it is added, or 1 where there is none above 0.
    `set_priorities` takes indices and priorities of any equal shape, such as `[U, B]`; of equal indices the last valid
    one counts. Not valid, and without effect, is a priority that is negative or not finite, or of a row that may not
    start a window. A row of priority 0 is not drawn again; where every row's is 0, the sample's mask is False and its
    weights are 0.

    `sample` takes beta as `importance_exponent`; None is 1, the full correction. As weights are relative, those for any
    other beta are these to the power of beta.

    Args:
        capacity: Rows over all N environments; a multiple of N.
        batch_size: Windows per sample.
        n_step: Rows per window.
        storage: As of `uniform`; priorities are stored the same way as rows.
        length: Rows per window, L, in place of `n_step`; None: windows of `n_step` rows.
        cross_episodes: As of `sequence`, whose mask windows of `length` rows have.
        min_size: As of `uniform`.

    Raises:
        InputError: A size is below 1, a window or `min_size` does not fit, the storage is unknown, both `n_step` and
            `length` are set, or `cross_episodes` without `length`; from `init`, rows have no `terminated` and
            `truncated`.
    """
    mask: Mask = _all_rows
    if length is None:
        settings = _Settings(capacity, batch_size, n_step, "n_step", min_size)
        if cross_episodes is not False:
            raise InputError(
                f"replay.cross_episodes = {cross_episodes!r} has no use without replay.length: set length too."
            )
    else:
        settings, mask = _Settings(capacity, batch_size, length, "length", min_size), _mask_of(cross_episodes)
        if n_step != 1:
            raise InputError(f"replay.n_step = {n_step!r} has no use with replay.length = {length!r}: set one of them.")
    return dataclasses.replace(
        _ring(settings, storage, mask),
        init=functools.partial(_init_prioritised, settings, mask),
        add=functools.partial(_add_prioritised, settings),
        sample=functools.partial(_sample_prioritised, settings, mask),
        set_priorities=functools.partial(_set_priorities, settings),
    )


def _mask_of(cross_episodes: bool) -> Mask:
    if not isinstance(cross_episodes, bool):
        raise InputError(f"replay.cross_episodes = {cross_episodes!r} must be True or False.")
    return _all_rows if cross_episodes else _first_episode


def _ring(settings: _Settings, kind: str, mask: Mask) -> Buffer:
    sizes = (
        ("capacity", settings.capacity, 1),
        ("batch_size", settings.batch_size, 1),
        (settings.window_name, settings.window, 1),
        ("min_size", settings.min_size, 0),
    )
    for name, value, least in sizes:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"replay.{name} = {value!r} must be a whole number.")
        if value < least:
            raise InputError(f"replay.{name} = {value} must be at least {least}.")
    for name, value in ((settings.window_name, settings.window), ("min_size", settings.min_size)):
        if value > settings.capacity:
            raise InputError(f"replay.{name} = {value} must not be above replay.capacity = {settings.capacity}.")
    if settings.capacity > np.iinfo(np.int32).max:
        raise InputError(f"replay.capacity = {settings.capacity} must be below 2**31: indices are 32 bits wide.")
    if kind not in STORAGES:
        raise InputError(f"replay.storage = {kind!r} is unknown: choose one of {', '.join(STORAGES)}.")
    in_place = kind == "ref"
    return Buffer(
        init=functools.partial(_init, settings, mask),
        add=functools.partial(_add, settings),
        sample=functools.partial(_sample, settings, mask),
        set_priorities=_keep_priorities,
        can_sample=functools.partial(_can_sample, settings),
        thaw=_thaw if in_place else _identity,
        freeze=_freeze if in_place else _identity,
    )


def _init(settings: _Settings, mask: Mask, example: PyTree) -> ReplayState:
    leaves = [jnp.shape(leaf) for leaf in jax.tree.leaves(example)]
    if not leaves or not all(leaves) or len({shape[0] for shape in leaves}) != 1 or not leaves[0][0]:
        raise InputError(
            f"a buffer's example must be one row of N environments, leaves [N, ...], not arrays of shapes {leaves}."
        )
    num_envs = leaves[0][0]
    if settings.capacity % num_envs:
        raise InputError(f"replay.capacity = {settings.capacity} must be a multiple of num_envs = {num_envs}.")
    size = settings.capacity // num_envs
    if settings.window > size:
        raise InputError(
            f"replay.{settings.window_name} = {settings.window} must not be above replay.capacity / num_envs = {size}; "
            "raise capacity."
        )
    jax.eval_shape(mask, jax.tree.map(lambda leaf: leaf[None], example))
    rows = jax.tree.map(lambda leaf: jnp.zeros((size, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), example)
    return ReplayState(rows, positions.start(num_envs))


def _add(settings: _Settings, state: ReplayState, rows: PyTree) -> ReplayState:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (state.rows, rows)]
    if structures[0] != structures[1]:
        raise InputError(
            f"rows of structure {structures[1]} were added to a buffer of {structures[0]}: give rows like the example "
            "that the buffer was made with, and the state of this very kind of buffer."
        )
    rows = jax.tree.map(jnp.asarray, rows)
    (size, _), (count, _) = _shape(settings, state.rows), jax.tree.leaves(rows)[0].shape[:2]
    jax.tree.map(functools.partial(_check_row, count), state.rows, rows)
    if count > size:
        raise InputError(f"a write of {count} steps does not fit a buffer of {size}; raise replay.capacity.")
    where = positions.written(state.positions, count, size)
    if count == 1:  # one slice, not a scatter
        written = jax.tree.map(lambda ring, new: write(ring, where[0], values=new[0]), state.rows, rows)
    else:
        written = jax.tree.map(lambda ring, new: write(ring, where, values=new), state.rows, rows)
    return ReplayState(written, positions.advance(state.positions, count, size))


def _check_row(count: int, ring: jax.Array, new: jax.Array) -> None:
    if new.shape[:1] != (count,):
        raise InputError(
            f"rows of {count} and of {new.shape[0]} steps were added at once: give all leaves [T, N, ...]."
        )
    if ring.shape[1:] != new.shape[1:] or ring.dtype != new.dtype:
        raise InputError(
            f"rows of {new.dtype}{list(new.shape[1:])} were added to a buffer of {ring.dtype}{list(ring.shape[1:])}: "
            "give rows like the example that the buffer was made with."
        )


def _sample(
    settings: _Settings,
    mask: Mask,
    state: ReplayState,
    key: jax.Array,
    importance_exponent: jax.Array | float | None = None,
) -> Sample:
    size, num_envs = _shape(settings, state.rows)
    indices = positions.sampled(state.positions, key, settings.batch_size, settings.window, size, num_envs)
    experience = _windows(settings, state.rows, indices)
    return Sample(
        experience=experience,
        indices=indices,
        weights=jnp.ones((settings.batch_size,), jnp.float32),
        mask=mask(experience),
    )


def _windows(settings: _Settings, rows: PyTree, indices: jax.Array) -> PyTree:
    """Returns the windows that start at rows `indices`, leaves `[window, B, ...]`."""
    times, envs = positions.windows(indices, settings.window, *_shape(settings, rows))
    return jax.tree.map(lambda ring: read(ring, times, envs), rows)


def _keep_priorities(
    state: ReplayState, indices: jax.Array, priorities: jax.Array, priority_exponent: jax.Array | float = 1.0
) -> ReplayState:
    return state


def _can_sample(settings: _Settings, state: ReplayState) -> jax.Array:
    return positions.ready(state.positions, settings.window, settings.min_size)


def _thaw(state: ReplayState) -> ReplayState:
    return dataclasses.replace(state, rows=thaw(state.rows))


def _freeze(state: ReplayState) -> ReplayState:
    return dataclasses.replace(state, rows=freeze(state.rows))


def _identity(state: ReplayState) -> ReplayState:
    return state


def _all_rows(windows: PyTree) -> jax.Array:
    return jnp.ones(jax.tree.leaves(windows)[0].shape[:2], jnp.bool_)


def _first_episode(windows: PyTree) -> jax.Array:
    """Returns which rows belong to the episode that the first row is in."""
    flags = [_field(windows, name) for name in ("terminated", "truncated")]
    if any(flag is None for flag in flags):
        raise InputError(
            "replay.length needs rows with `terminated` and `truncated`, such as those of agents.Rollout; or set "
            "replay.cross_episodes = true."
        )
    ended = flags[0] | flags[1]
    before = jnp.cumsum(ended, axis=0) - ended
    return before == 0


def _field(rows: PyTree, name: str) -> Any:
    """Returns a field of rows that are a dataclass or a dict; None if they have none of that name."""
    return rows.get(name) if isinstance(rows, dict) else getattr(rows, name, None)


def _init_prioritised(settings: _Settings, mask: Mask, example: PyTree) -> ReplayState:
    state = _init(settings, mask, example)
    return dataclasses.replace(state, rows=PrioritisedRows(state.rows, sum_tree.init(settings.capacity + 1)))


def _add_prioritised(settings: _Settings, state: ReplayState, rows: PyTree) -> ReplayState:
    stored_rows, tree = _parts(state)
    stored = _add(settings, ReplayState(stored_rows, state.positions), rows)
    size, num_envs = jax.tree.leaves(rows)[0].shape[:2]
    # The new time rows and the ones before them that could not start a window yet, oldest first.
    touched = min(size + settings.window - 1, settings.capacity // num_envs)
    age = jnp.arange(touched, 0, -1) - 1  # how many time rows are newer
    legal = (age >= settings.window - 1) & (age < stored.positions.filled)
    largest = sum_tree.maximum(tree)
    priorities = jnp.where(legal, jnp.where(largest > 0, largest, 1.0), 0.0)
    start = (stored.positions.cursor - touched) * num_envs
    tree = sum_tree.put_range(tree, start, jnp.repeat(priorities, num_envs), settings.capacity)
    return ReplayState(PrioritisedRows(stored.rows, tree), stored.positions)


def _sample_prioritised(
    settings: _Settings,
    mask: Mask,
    state: ReplayState,
    key: jax.Array,
    importance_exponent: jax.Array | float | None = None,
) -> Sample:
    (rows, tree), batch_size = _parts(state), settings.batch_size
    total = sum_tree.total(tree)
    parts = jnp.arange(batch_size) + jax.random.uniform(key, (batch_size,))
    indices, priorities = sum_tree.find(tree, parts * (total / batch_size))
    experience = _windows(settings, rows, indices)
    return Sample(
        experience=experience,
        indices=indices,
        weights=importance_weights(priorities, importance_exponent),
        mask=mask(experience) & (priorities > 0)[None],
    )


def _set_priorities(
    settings: _Settings,
    state: ReplayState,
    indices: jax.Array,
    priorities: jax.Array,
    priority_exponent: jax.Array | float = 1.0,
) -> ReplayState:
    if indices.shape != priorities.shape:
        raise InputError(
            f"priorities {list(priorities.shape)} were set for indices {list(indices.shape)}: give one for each."
        )
    (rows, tree), indices = _parts(state), indices.reshape(-1)
    size, num_envs = _shape(settings, rows)
    priorities = jnp.asarray(priorities, jnp.float32).reshape(-1)
    valid = jnp.isfinite(priorities) & (priorities >= 0)
    powers = jnp.where(valid, priorities, 1.0) ** priority_exponent
    valid &= jnp.isfinite(powers)
    # So small that no sum of all of them overflows.
    powers = jnp.minimum(powers, jnp.finfo(jnp.float32).max / (2 * settings.capacity))
    valid &= (indices >= 0) & (indices < settings.capacity)
    valid &= positions.is_start(state.positions, indices // num_envs, settings.window, size)
    spare = settings.capacity
    tree = sum_tree.put(tree, jnp.where(valid, indices, spare), jnp.where(valid, powers, 0.0))
    return dataclasses.replace(state, rows=PrioritisedRows(rows, tree))


def _parts(state: ReplayState) -> tuple[PyTree, SumTree]:
    """Returns rows and priorities; raises InputError if it is the state of another kind of buffer."""
    if not isinstance(state.rows, PrioritisedRows):
        raise InputError("a prioritised buffer was given the state of another kind: give the one that its init made.")
    return state.rows.rows, state.rows.priorities


def _shape(settings: _Settings, rows: PyTree) -> tuple[int, int]:
    """Returns how many time rows, and of how many environments; raises InputError if they are another buffer's."""
    size, num_envs = jax.tree.leaves(rows)[0].shape[:2]
    if size * num_envs != settings.capacity:
        raise InputError(
            f"a state of {size} x {num_envs} rows was given to a buffer with replay.capacity = {settings.capacity}: "
            "give the state that this buffer's init made."
        )
    return size, num_envs
