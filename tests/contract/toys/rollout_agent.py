"""A policy gradient (Williams 1992) on a linear softmax policy: an agent that learns from rollouts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents.base import (
    Agent,
    Decision,
    Hyperparameters,
    Rollout,
    Update,
    hyperparameters_of,
    require,
)
from rollax.envs import TimeStep, spaces


@dataclasses.dataclass(frozen=True)
class Config:
    """What the agent can be told."""

    learning_rate: float = 0.3
    discount: float = 0.5
    horizon: float = 0.0
    """Updates until the learning rate has fallen to half; 0: all those of the run."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where there is nothing to compare a return with."""
    require(num_steps * num_envs > 1, "train.num_steps", num_steps, "must be above 1 with one environment")
    require(config.learning_rate > 0, "agent.learning_rate", config.learning_rate, "must be above 0")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of the agent."""

    weights: jax.Array  # float32 [F + 1, A], of the features and a constant
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 []
    env_steps: jax.Array  # int32 []


def make(observation_space: Any, action_space: spaces.Discrete, config: Config = Config()) -> Agent:
    """Returns the agent."""
    num_features = sum(spaces.size(leaf) for leaf in spaces.leaves(observation_space))
    num_actions = action_space.n

    def init(key: jax.Array, hyperparameters: Any = None) -> State:
        return State(
            weights=0.01 * jax.random.normal(key, (num_features + 1, num_actions)),
            hyperparameters=hyperparameters_of(config, hyperparameters),
            updates=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
        )

    return Agent(
        init=init,
        init_memory=lambda num_envs: (),
        noise=lambda key, num_envs: jax.random.gumbel(key, (num_envs, num_actions)),
        act_with=act_with,
        observe=lambda state, rollout: dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size),
        update=update,
        consumes="rollout",
    )


def log_policy(weights: jax.Array, observation: Any, mask: jax.Array | None, num_axes: int) -> jax.Array:
    """Returns log pi(.|s), float32 `[..., A]`, at observations with `num_axes` leading axes."""
    flat = [leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in jax.tree.leaves(observation)]
    logits = jnp.concatenate(flat, axis=-1) @ weights[:-1] + jnp.expand_dims(weights[-1], tuple(range(num_axes)))
    return jax.nn.log_softmax(logits if mask is None else jnp.where(mask, logits, -1e9))


def act_with(
    state: State, memory: tuple[()], timestep: TimeStep, noise: jax.Array | None, explore: bool = True
) -> tuple[tuple[()], Decision]:
    """Samples actions, or takes the most likely ones."""
    scores = log_policy(state.weights, timestep.observation, timestep.action_mask, num_axes=1)
    return memory, Decision(jnp.argmax(scores + noise if explore else scores, axis=-1), {})


def update(state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Takes one step along mean((G - mean(G)) grad log pi(a|s)), G the discounted return within the rollout."""
    hyper = state.hyperparameters

    def accumulate(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, ended = row
        total = reward + hyper["discount"] * jnp.where(ended, 0.0, later)
        return total, total

    rows = (rollout.reward, rollout.ended)
    _, returns = lax.scan(accumulate, jnp.zeros_like(rollout.reward[0]), rows, reverse=True)
    advantage = returns - jnp.mean(returns)

    def objective(weights: jax.Array) -> jax.Array:
        log_probs = log_policy(weights, rollout.observation, rollout.action_mask, num_axes=2)
        log_prob = jnp.take_along_axis(log_probs, rollout.action[..., None], axis=-1)[..., 0]
        return jnp.mean(log_prob * advantage)

    gradient = jax.grad(objective)(state.weights)
    progress = jnp.clip(state.updates / jnp.maximum(hyper["horizon"], 1.0), 0.0, 1.0)
    weights = state.weights + hyper["learning_rate"] * (1.0 - 0.5 * progress) * gradient
    state = dataclasses.replace(state, weights=weights, updates=state.updates + 1)
    return state, Update({"reward": jnp.mean(rollout.reward)})
