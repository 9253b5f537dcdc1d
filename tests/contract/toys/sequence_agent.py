"""Q-learning from a leaky memory of past observations: an agent that learns from replayed sequences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax import replay
from rollax.agents.base import Agent, Decision, Hyperparameters, Update, hyperparameters_of
from rollax.envs import TimeStep, spaces

Memory = dict[str, jax.Array]
"""`trace`: float32 [N, 2], a leaky sum of observed positions."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What the agent can be told."""

    learning_rate: float = 0.1
    discount: float = 0.7
    leak: float = 0.5
    """What is left of the trace after a step."""
    epsilon: float = 0.3
    """Share of steps that act at random."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of the agent."""

    params: jax.Array  # float32 [3, A], from the trace and a constant to action values
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 []
    env_steps: jax.Array  # int32 []


def make(observation_space: dict[str, spaces.Box], action_space: spaces.Discrete, config: Config) -> Agent:
    """Returns the agent; it looks at `observation["position"]` alone."""
    num_actions = action_space.n

    def init(key: jax.Array, hyperparameters: Any = None) -> State:
        return State(
            params=0.01 * jax.random.normal(key, (3, num_actions)),
            hyperparameters=hyperparameters_of(config, hyperparameters),
            updates=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
        )

    def noise(key: jax.Array, num_envs: int) -> dict[str, jax.Array]:
        drawn = jax.random.uniform(key, (num_envs, 1 + num_actions))
        return {"coin": drawn[:, 0], "action": drawn[:, 1:]}

    return Agent(
        init=init,
        init_memory=lambda num_envs: {"trace": jnp.zeros((num_envs, 2))},
        noise=noise,
        act_with=act_with,
        observe=lambda state, rollout: dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size),
        update=update,
        consumes="sequences",
    )


def remember(state: State, memory: Memory, position: jax.Array, is_first: jax.Array) -> Memory:
    """Returns the memory after one more observation, which is alone in it where it starts an episode."""
    kept = state.hyperparameters["leak"] * jnp.where(is_first[:, None], 0.0, memory["trace"])
    return {"trace": kept + position}


def action_values(params: jax.Array, trace: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns Q(memory, .), float32 `[..., A]`, minus infinity where an action is illegal."""
    return jnp.where(mask, trace @ params[:2] + params[2].reshape((1,) * (trace.ndim - 1) + (-1,)), -jnp.inf)


def act_with(
    state: State, memory: Memory, timestep: TimeStep, noise: dict[str, jax.Array] | None, explore: bool = True
) -> tuple[Memory, Decision]:
    """Remembers what it sees, then takes the best legal actions, but for a share `epsilon` at random."""
    before = memory
    memory = remember(state, memory, timestep.observation["position"], timestep.is_first)
    scores = action_values(state.params, memory["trace"], timestep.action_mask)
    if explore:
        assert noise is not None
        at_random = jnp.where(timestep.action_mask, noise["action"], -jnp.inf)
        scores = jnp.where((noise["coin"] < state.hyperparameters["epsilon"])[:, None], at_random, scores)
    return memory, Decision(jnp.argmax(scores, axis=-1), {"memory": before, "trace": memory["trace"]})


def update(state: State, batch: replay.Sample, key: jax.Array) -> tuple[State, Update]:
    """Takes one step of one-step Q-learning on the rows of windows `[L, B]` that count.

    Traces are worked out again from the memory at the start of each window; the metric `trace_error` is the largest
    difference to what acted: a window is told truly where it is zero.
    """
    rows, hyper = batch.experience, state.hyperparameters

    def step(memory: Memory, row: tuple[jax.Array, jax.Array]) -> tuple[Memory, jax.Array]:
        memory = remember(state, memory, *row)
        return memory, memory["trace"]

    first = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
    _, trace = lax.scan(step, first, (rows.observation["position"], rows.is_first))
    after = hyper["leak"] * trace + rows.final_observation["position"]
    best = jnp.max(action_values(state.params, after, rows.final_action_mask), axis=-1)
    target = rows.reward + hyper["discount"] * jnp.where(rows.terminated, 0.0, best)

    def loss(params: jax.Array) -> jax.Array:
        values = action_values(params, trace, rows.action_mask)
        chosen = jnp.take_along_axis(values, rows.action[..., None], axis=-1)[..., 0]
        return 0.5 * jnp.sum(batch.mask * jnp.square(target - chosen)) / jnp.sum(batch.mask)

    params = state.params - hyper["learning_rate"] * jax.grad(loss)(state.params)
    error = jnp.where(batch.mask[..., None], jnp.abs(trace - rows.extras["trace"]), 0.0)
    state = dataclasses.replace(state, params=params, updates=state.updates + 1)
    return state, Update({"trace_error": jnp.max(error)})
