"""Passes over one rollout in random minibatches, for the agents that learn from rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents import devices
from rollax.agents.base import Rollout, require
from rollax.agents.memory import Torso
from rollax.envs.base import PyTree
from rollax.errors import InputError


def check(num_epochs: int, num_minibatches: int, num_steps: int, num_envs: int, memory: str) -> None:
    """Raises InputError unless rollouts of `num_steps` x `num_envs` split into the minibatches of an agent's config."""
    for name, value in (("num_epochs", num_epochs), ("num_minibatches", num_minibatches)):
        require(value >= 1, f"agent.{name}", value, "must be at least 1")
    require(
        num_steps * num_envs % num_minibatches == 0,
        "agent.num_minibatches",
        num_minibatches,
        f"must divide train.num_envs * train.num_steps = {num_envs} * {num_steps} = {num_envs * num_steps}",
    )
    require(
        memory == "none" or num_envs % num_minibatches == 0,
        "agent.num_minibatches",
        num_minibatches,
        f"must divide train.num_envs = {num_envs}: with a memory, minibatches split environments, not time",
    )


def first_memory(torso: Torso, rollout: Rollout, init_memory: Callable[[int], PyTree]) -> PyTree:
    """Returns the agent's memory before a rollout; where the torso has none, a fresh one, of which nothing is read.

    Raises:
        InputError: The torso has a memory and the rollout does not tell it.
    """
    if not torso.has_memory:
        return init_memory(1)
    if not jax.tree.leaves(rollout.first_memory):
        raise InputError(
            "the rollout has no first_memory, which an agent with a memory learns from: give Rollout.stack the memory "
            "that the agent had before the first row."
        )
    return rollout.first_memory


def sequences(torso: Torso, batch: PyTree) -> PyTree:
    """Returns a rollout's leaves `[T, N, ...]` as M sequences of L steps, leaves `[L, M, ...]`.

    Where the torso has a memory, they are the environments: L = T, M = N. Where it has none, they are single steps:
    L = 1, M = T * N.
    """
    batch = jax.tree.map(jnp.asarray, batch)  # a loop of one's own may pass NumPy arrays
    return batch if torso.has_memory else jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), batch)


def passes(
    learn: Callable[[Any, PyTree, PyTree], tuple[Any, Any]],
    carry: Any,
    memory: PyTree,
    batch: PyTree,
    key: jax.Array,
    num_epochs: int,
    num_minibatches: int,
) -> tuple[Any, Any]:
    """Scans `learn(carry, memory, batch) -> (carry, output)` over minibatches, each sequence once in each epoch.

    Args:
        learn: What to do with one minibatch.
        carry: Its first carry.
        memory: Before each sequence, leaves `[M, ...]`.
        batch: From `sequences`, leaves `[L, M, ...]`.
        key: The randomness of the order.
        num_epochs: Passes over the batch.
        num_minibatches: Minibatches per pass; divides M.

    Returns:
        The last carry, and the outputs with a leading axis `[num_epochs * num_minibatches]`.

    Raises:
        InputError: `num_minibatches` does not divide M.
    """
    count = jax.tree.leaves(batch)[0].shape[1]
    require(  # a torso of one's own may have a memory that no config tells of
        count % num_minibatches == 0,
        "agent.num_minibatches",
        num_minibatches,
        f"must divide {count}, the environments of a rollout, which a torso with a memory learns from whole",
    )
    indices = jax.vmap(jax.random.permutation, in_axes=(0, None))(jax.random.split(key, num_epochs), count)

    def step(carry: Any, indices: jax.Array) -> tuple[Any, Any]:
        first_memory = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], memory)
        rows = jax.tree.map(lambda leaf: leaf[:, indices], batch)
        return learn(carry, devices.spread(first_memory, axis=0), devices.spread(rows, axis=1))

    return lax.scan(step, carry, indices.reshape(num_epochs * num_minibatches, -1))
