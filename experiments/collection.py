"""Collection: T steps of N environments in one scan, for every agent."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents.base import Agent, Rollout
from rollax.envs import Vectorise
from rollax.envs.base import PyTree, TimeStep

RESET_AHEAD_BYTES = 512
"""Size of one environment's state and time step up to which the resets of a rollout are made before its loop.

Small ones are cheaper in one batch (CartPole: rollouts 1.3 times as fast); large ones would be written to memory once
for every step and read again (MinAtar's Breakout: half as fast). Measured by `rollax bench env`.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Episodes:
    """The episodes that ended within a rollout, summed over it."""

    count: jax.Array  # int32 []
    episode_return: jax.Array  # float32 [], sum over episodes
    episode_length: jax.Array  # int32 [], sum over episodes, environment steps


def collect(
    agent: Agent,
    env: Vectorise,
    agent_state: Any,
    memory: PyTree,
    env_state: PyTree,
    env_params: PyTree,
    timestep: TimeStep,
    key: jax.Array,
    num_steps: int,
    unroll: int = 1,
) -> tuple[tuple[PyTree, PyTree, TimeStep], Rollout, Episodes]:
    """Acts for `num_steps` steps.

    All randomness is drawn before the loop in batched calls, with one key per step (for steps and resets, also per
    environment): the same draws inside the loop cost about half of a rollout and most of its compilation. Resets are
    made before the loop too where they are small.

    Args:
        agent: The agent.
        env: N environments that reset themselves: `Vectorise` around `AutoReset`.
        agent_state: The agent's state; it does not change within a rollout.
        memory: The agent's memory, leaves `[N, ...]`.
        env_state: The environments' state, leaves `[N, ...]`.
        env_params: The environments' params.
        timestep: What the environments showed last, leaves `[N, ...]`.
        key: The randomness of the whole rollout.
        num_steps: T.
        unroll: Steps per iteration of the compiled loop; changes speed only.

    Returns:
        The memory, environment state and time step after the last step; the rollout; and its finished episodes.
    """
    key_act, key_step, key_reset = jax.random.split(key, 3)
    num_envs = env.num_envs
    noise = jax.vmap(lambda key: agent.noise(key, num_envs))(jax.random.split(key_act, num_steps))
    keys_step = jax.random.split(key_step, (num_steps, num_envs))
    resets = None
    if _bytes_per_env((env_state, timestep), num_envs) <= RESET_AHEAD_BYTES:
        keys_reset = jax.random.split(key_reset, (num_steps, num_envs))
        resets = jax.vmap(env.reset, in_axes=(0, None))(keys_reset, env_params)

    def step(carry: Any, inputs: Any) -> Any:
        memory, env_state, before, episodes = carry
        noise, keys, reset = inputs
        memory, decision = agent.act_with(agent_state, memory, before, noise, explore=True)
        ready_made = () if reset is None else (reset,)
        env_state, after = env.step(keys, env_state, decision.action, env_params, *ready_made)
        row = Rollout.row(before, decision, after)
        finished = Episodes(after.metrics.valid, after.metrics.episode_return, after.metrics.episode_length)
        episodes = jax.tree.map(jnp.add, episodes, finished)
        return (memory, env_state, after, episodes), row

    none = Episodes(
        jnp.zeros((num_envs,), jnp.int32), jnp.zeros((num_envs,), jnp.float32), jnp.zeros((num_envs,), jnp.int32)
    )
    carry = (memory, env_state, timestep, none)
    (after_memory, env_state, last, episodes), rows = lax.scan(step, carry, (noise, keys_step, resets), unroll=unroll)
    rollout = dataclasses.replace(rows, first_memory=memory, last=last)
    return (after_memory, env_state, last), rollout, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), episodes)


def _bytes_per_env(tree: PyTree, num_envs: int) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) // num_envs
