"""Where a ring buffer writes next and which of its rows may be sampled: counters and keys in, indices out.

Time rows hold one step of all N environments. Both counters stay below the ring's size plus one, however long a run
lasts, so they never overflow.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Positions:
    """The counters of one ring of time rows."""

    cursor: jax.Array  # int32 [], the time row that the next write starts at
    filled: jax.Array  # int32 [], time rows that hold data
    num_envs: int = dataclasses.field(default=1, metadata={"static": True})  # N, rows of one time row


def start(num_envs: int) -> Positions:
    """Returns the counters of an empty ring whose time rows are of `num_envs` environments."""
    return Positions(cursor=jnp.zeros((), jnp.int32), filled=jnp.zeros((), jnp.int32), num_envs=num_envs)


def advance(positions: Positions, count: int, size: int) -> Positions:
    """Returns the counters after `count` time rows were written to a ring of `size` of them."""
    return dataclasses.replace(
        positions,
        cursor=(positions.cursor + count) % size,
        filled=jnp.minimum(positions.filled, size - count) + count,
    )


def written(positions: Positions, count: int, size: int) -> jax.Array:
    """Returns the time rows that a write of `count` of them goes to, int32 `[count]`."""
    return (positions.cursor + jnp.arange(count, dtype=jnp.int32)) % size


def starts(positions: Positions, window: int) -> jax.Array:
    """Returns how many time rows have at least `window - 1` newer ones, int32 `[]`."""
    return jnp.maximum(positions.filled - (window - 1), 0)


def ready(positions: Positions, window: int, min_size: int) -> jax.Array:
    """Returns whether `min_size` rows are held, over all environments, and a window may be drawn, bool `[]`."""
    return (starts(positions, window) > 0) & (positions.filled >= -(-min_size // positions.num_envs))


def sampled(positions: Positions, key: jax.Array, count: int, window: int, size: int, num_envs: int) -> jax.Array:
    """Draws rows uniformly, with replacement, among those of time rows that have at least `window - 1` newer ones.

    Returns:
        Their indices, int32 `[count]`: the time row times `num_envs` plus the environment.
    """
    legal = jnp.maximum(starts(positions, window), 1) * num_envs
    drawn = jax.random.randint(key, (count,), 0, legal, jnp.int32)
    oldest = positions.cursor - positions.filled
    return (oldest + drawn // num_envs) % size * num_envs + drawn % num_envs


def windows(indices: jax.Array, window: int, size: int, num_envs: int) -> tuple[jax.Array, jax.Array]:
    """Returns the time rows and the environments, int32 `[window, B]` both, of windows from rows `indices` on."""
    steps = jnp.arange(window, dtype=jnp.int32)[:, None]
    times, envs = indices[None] // num_envs, indices[None] % num_envs
    return (times + steps) % size, jnp.broadcast_to(envs, (window, envs.shape[1]))


def is_start(positions: Positions, times: jax.Array, window: int, size: int) -> jax.Array:
    """Returns whether time rows have at least `window - 1` newer ones, bool of the shape of `times`, int32."""
    age = (times - (positions.cursor - positions.filled)) % size
    return age < starts(positions, window)
