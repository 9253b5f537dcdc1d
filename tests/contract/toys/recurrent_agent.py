"""A policy gradient through a leaky memory of past observations: an agent with a memory of each environment."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of
from rollax.envs import TimeStep, spaces

Memory = dict[str, jax.Array]
"""`trace`: float32 [N, 2], a leaky sum of observed positions. `age`: int32 [N], observations since the reset."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What the agent can be told."""

    learning_rate: float = 0.5
    discount: float = 0.5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """The learnt numbers."""

    leak: jax.Array  # float32 [], the logit of what is left of the trace after a step
    weights: jax.Array  # float32 [2, A], from the trace to logits


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of the agent."""

    params: Params
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 []
    env_steps: jax.Array  # int32 []


def make(observation_space: dict[str, spaces.Box], action_space: spaces.Discrete, config: Config) -> Agent:
    """Returns the agent; it looks at `observation["position"]` alone."""
    num_actions = action_space.n

    def init(key: jax.Array, hyperparameters: Any = None) -> State:
        return State(
            params=Params(leak=jnp.zeros(()), weights=0.01 * jax.random.normal(key, (2, num_actions))),
            hyperparameters=hyperparameters_of(config, hyperparameters),
            updates=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
        )

    return Agent(
        init=init,
        init_memory=lambda num_envs: {"trace": jnp.zeros((num_envs, 2)), "age": jnp.zeros((num_envs,), jnp.int32)},
        noise=lambda key, num_envs: jax.random.gumbel(key, (num_envs, num_actions)),
        act_with=act_with,
        observe=lambda state, rollout: dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size),
        update=update,
        consumes="rollout",
    )


def remember(params: Params, memory: Memory, position: jax.Array, is_first: jax.Array) -> Memory:
    """Returns the memory after one more observation, which is alone in it where it starts an episode."""
    kept = jax.nn.sigmoid(params.leak) * jnp.where(is_first[:, None], 0.0, memory["trace"])
    return {"trace": kept + position, "age": jnp.where(is_first, 0, memory["age"]) + 1}


def log_policy(params: Params, memory: Memory, mask: jax.Array | None) -> jax.Array:
    """Returns log pi(.|memory), float32 `[..., A]`."""
    logits = memory["trace"] @ params.weights
    return jax.nn.log_softmax(logits if mask is None else jnp.where(mask, logits, -1e9))


def act_with(
    state: State, memory: Memory, timestep: TimeStep, noise: jax.Array | None, explore: bool = True
) -> tuple[Memory, Decision]:
    """Remembers what it sees, then samples actions or takes the most likely ones."""
    memory = remember(state.params, memory, timestep.observation["position"], timestep.is_first)
    log_probs = log_policy(state.params, memory, timestep.action_mask)
    action = jnp.argmax(log_probs + noise if explore else log_probs, axis=-1)
    return memory, Decision(action, {"age": memory["age"], "log_probs": log_probs})


def update(state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Takes one step along mean(A grad log pi(a|s)), with the rollout's memories worked out again from the first one.

    A is the discounted return within the rollout, less its mean. The metrics `age_error` and `log_prob_error` are the
    largest differences between what is worked out here and what acted: the rollout is told truly where both are zero.
    """
    hyper = state.hyperparameters

    def unrolled(params: Params) -> tuple[jax.Array, jax.Array]:
        def step(memory: Memory, row: tuple[jax.Array, jax.Array]) -> tuple[Memory, Memory]:
            memory = remember(params, memory, *row)
            return memory, memory

        _, memories = lax.scan(step, rollout.first_memory, (rollout.observation["position"], rollout.is_first))
        return log_policy(params, memories, rollout.action_mask), memories["age"]

    def accumulate(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, continues = row
        total = reward + hyper["discount"] * continues * later
        return total, total

    rows = (rollout.reward, 1.0 - rollout.ended)
    _, returns = lax.scan(accumulate, jnp.zeros_like(rollout.reward[0]), rows, reverse=True)

    def objective(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        log_probs, age = unrolled(params)
        log_prob = jnp.take_along_axis(log_probs, rollout.action[..., None], axis=-1)[..., 0]
        return jnp.mean(log_prob * (returns - jnp.mean(returns))), (log_probs, age)

    gradient, (log_probs, age) = jax.grad(objective, has_aux=True)(state.params)
    params = jax.tree.map(lambda p, g: p + hyper["learning_rate"] * g, state.params, gradient)
    metrics = {
        "age_error": jnp.max(jnp.abs(age - rollout.extras["age"])).astype(jnp.float32),
        "log_prob_error": jnp.max(jnp.abs(log_probs - rollout.extras["log_probs"])),
    }
    return dataclasses.replace(state, params=params, updates=state.updates + 1), Update(metrics)
