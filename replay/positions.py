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


def start() -> Positions:
    """Returns the counters of an empty ring."""
    return Positions(cursor=jnp.zeros((), jnp.int32), filled=jnp.zeros((), jnp.int32))


def advance(positions: Positions, count: int, size: int) -> Positions:
    """Returns the counters after `count` time rows were written to a ring of `size` of them."""
    return Positions(
        cursor=(positions.cursor + count) % size,
        filled=jnp.minimum(positions.filled, size - count) + count,
    )


def written(positions: Positions, count: int, size: int) -> jax.Array:
    """Returns the time rows that a write of `count` of them goes to, int32 `[count]`."""
    return (positions.cursor + jnp.arange(count, dtype=jnp.int32)) % size


def starts(positions: Positions, window: int) -> jax.Array:
    """Returns how many time rows have at least `window - 1` newer ones, int32 `[]`."""
    return jnp.maximum(positions.filled - (window - 1), 0)


def sampled(
    positions: Positions, key: jax.Array, count: int, window: int, size: int, num_envs: int
) -> tuple[jax.Array, jax.Array]:
    """Draws starts uniformly, with replacement, among the rows that have at least `window - 1` newer ones.

    Returns:
        The time rows of each window, int32 `[window, count]`, and the environment of each, int32 `[count]`.
    """
    legal = jnp.maximum(starts(positions, window), 1) * num_envs
    drawn = jax.random.randint(key, (count,), 0, legal, jnp.int32)
    age, env = drawn // num_envs, drawn % num_envs
    oldest = positions.cursor - positions.filled
    steps = jnp.arange(window, dtype=jnp.int32)[:, None]
    return (oldest + age[None] + steps) % size, env
