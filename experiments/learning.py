"""What an iteration does with its experience: update, through replay where there is some, and hold a bad learner."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax import replay
from rollax.agents import devices
from rollax.agents.base import Agent, Rollout, Update
from rollax.envs.base import PyTree, select

Metrics = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Failure:
    """Whether a number of a seed's learner stopped being finite, and when; it is held from then on, by value."""

    flag: jax.Array  # bool []
    iteration: jax.Array  # int32 [], the first bad iteration; -1 if there is none


def no_failure() -> Failure:
    """Returns what `Failure` is before the first iteration."""
    return Failure(jnp.zeros((), jnp.bool_), jnp.full((), -1, jnp.int32))


def learn(
    agent: Agent,
    buffer: replay.Buffer | None,
    num_updates: int,
    agent_state: PyTree,
    stored: replay.ReplayState,
    rollout: Rollout,
    key: jax.Array,
) -> tuple[PyTree, Metrics, replay.ReplayState]:
    """Updates from a rollout or, with a buffer, writes its rows and updates from samples.

    With a buffer it writes, then samples all batches at once, then updates, then sets all priorities at once, in this
    order because a read before a write in one loop body copies the whole buffer.

    Args:
        agent: The agent.
        buffer: The replay buffer; None for an agent that learns from rollouts.
        num_updates: Updates from as many samples; without a buffer there is one.
        agent_state: The agent's state.
        stored: The buffer's state, handed back as it is without a buffer.
        rollout: Leaves `[T, N, ...]`.
        key: The randomness of samples and updates.

    Returns:
        The agent's state, the mean metrics of its updates, and the buffer's state.
    """
    if buffer is None:
        agent_state, update = agent.update(agent_state, rollout, key)
        return agent_state, update.metrics, stored
    numbers = agent_state.hyperparameters
    importance_exponent = numbers.get("importance_exponent")
    priority_exponent = numbers.get("priority_exponent", 1.0)
    key_sample, key_update = jax.random.split(key)
    stored = buffer.add(stored, rollout.rows())
    samples = jax.vmap(lambda key: buffer.sample(stored, key, importance_exponent))(
        jax.random.split(key_sample, num_updates)
    )
    keys_update = jax.random.split(key_update, num_updates)

    def update_all(agent_state: PyTree) -> tuple[PyTree, Update]:
        def step(agent_state: PyTree, inputs: Any) -> tuple[PyTree, Update]:
            sample, key = inputs
            experience = devices.spread(sample.experience, axis=1)
            return agent.update(agent_state, dataclasses.replace(sample, experience=experience), key)

        agent_state, updates = lax.scan(step, agent_state, (samples, keys_update))
        # An update that leaves a part out, such as a delayed policy, reports NaN of it.
        metrics = jax.tree.map(lambda leaf: jnp.nanmean(leaf, axis=0), updates.metrics)
        return agent_state, dataclasses.replace(updates, metrics=metrics)

    def wait(agent_state: PyTree) -> tuple[PyTree, Update]:
        _, updates = jax.eval_shape(update_all, agent_state)
        return agent_state, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), updates)

    agent_state, updates = lax.cond(buffer.can_sample(stored), update_all, wait, agent_state)
    if updates.priorities is not None:  # [U, B]; NaN, as from `wait`, leaves a row's priority as it is
        stored = buffer.set_priorities(stored, samples.indices, updates.priorities, priority_exponent)
    return agent_state, updates.metrics, stored


def hold_if_bad(failed: Failure, iteration: jax.Array, before: PyTree, agent_state: PyTree) -> tuple[PyTree, Failure]:
    """Returns the updated agent, or the one before for a seed in which a finite number has become NaN or infinite.

    Args:
        failed: Whether that happened in an earlier iteration.
        iteration: The number of this one, int32 `[]`.
        before: The agent's state before its update.
        agent_state: The one after it.
    """

    def turned_bad(old: jax.Array, new: jax.Array) -> jax.Array:
        if not jnp.issubdtype(new.dtype, jnp.floating):
            return jnp.zeros((), jnp.bool_)
        return jnp.any(jnp.isfinite(old) & ~jnp.isfinite(new))

    bad = jnp.any(jnp.stack(jax.tree.leaves(jax.tree.map(turned_bad, before, agent_state))))
    failed = Failure(flag=failed.flag | bad, iteration=jnp.where(bad & ~failed.flag, iteration, failed.iteration))
    return select(failed.flag, before, agent_state), failed
