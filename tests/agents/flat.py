"""PPO without memory as a function of flat batches [B], which its sequences of one step are."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax.agents import actor_critic, ppo
from rollax.agents.base import Rollout
from rollax.agents.memory import Torso


def features(torso: Torso, params: Any, observation: Any) -> jax.Array:
    """Features [B, F] of observations [B, ...]."""
    batch = jax.tree.leaves(observation)[0].shape[0]
    return torso.step(params, (), observation, jnp.zeros((batch,), jnp.bool_))[1]


def prepare(parts: actor_critic.Parts, state: ppo.State, rollout: Rollout) -> ppo.Batch:
    """The rollout with its targets, [T * N]."""
    _, reward = actor_critic.rewards(parts, state, rollout)
    _, batch = ppo.prepare(parts, state, rollout, reward)
    return jax.tree.map(lambda leaf: leaf[0], batch)


def loss(
    parts: actor_critic.Parts, params: actor_critic.Params, hyper: Any, batch: ppo.Batch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of samples [B]."""
    return ppo.loss(parts, params, hyper, ((), ()), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], batch))
