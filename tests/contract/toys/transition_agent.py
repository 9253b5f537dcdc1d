"""Double Q-learning with a linear action value and target weights: an agent that learns from replayed transitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax import replay
from rollax.agents.base import Agent, Decision, Hyperparameters, Update, hyperparameters_of
from rollax.envs import TimeStep, spaces


@dataclasses.dataclass(frozen=True)
class Config:
    """What the agent can be told."""

    learning_rate: float = 0.1
    discount: float = 0.7
    epsilon: float = 0.3
    """Share of steps that act at random."""
    target_rate: float = 0.1
    """How far the target weights go towards the weights in an update."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """An action value that is linear in each leaf of the observation."""

    weights: Any  # leaves [*observation_shape, A]
    bias: jax.Array  # float32 [A]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of the agent."""

    params: Params
    target_params: Params
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 []
    env_steps: jax.Array  # int32 []


def make(observation_space: Any, action_space: spaces.Discrete, config: Config) -> Agent:
    """Returns the agent."""
    spaces.leaves(observation_space)
    num_actions = action_space.n

    def init(key: jax.Array, hyperparameters: Any = None) -> State:
        keys = iter(jax.random.split(key, len(jax.tree.leaves(observation_space))))
        weights = jax.tree.map(
            lambda space: 0.01 * jax.random.normal(next(keys), (*space.shape, num_actions)), observation_space
        )
        params = Params(weights, jnp.zeros((num_actions,)))
        # The same arrays twice: to hand out copies is the training loop's part.
        return State(
            params=params,
            target_params=params,
            hyperparameters=hyperparameters_of(config, hyperparameters),
            updates=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
        )

    def noise(key: jax.Array, num_envs: int) -> dict[str, jax.Array]:
        drawn = jax.random.uniform(key, (num_envs, 1 + num_actions))
        return {"coin": drawn[:, 0], "action": drawn[:, 1:]}

    return Agent(
        init=init,
        init_memory=lambda num_envs: (),
        noise=noise,
        act_with=act_with,
        observe=lambda state, rollout: dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size),
        update=update,
        consumes="transitions",
    )


def action_values(params: Params, observation: Any) -> jax.Array:
    """Returns Q(s, .), float32 `[..., A]`, at observations `[..., *observation_shape]`."""
    terms = jax.tree.map(lambda x, w: jnp.tensordot(x, w, axes=w.ndim - 1), observation, params.weights)
    total = jax.tree.reduce(jnp.add, terms)
    return total + params.bias.reshape((1,) * (total.ndim - 1) + (-1,))


def masked(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns `values` with those of illegal actions below all others."""
    return values if mask is None else jnp.where(mask, values, -jnp.inf)


def act_with(
    state: State, memory: tuple[()], timestep: TimeStep, noise: dict[str, jax.Array] | None, explore: bool = True
) -> tuple[tuple[()], Decision]:
    """Takes the best legal actions, but for a share `epsilon` that are legal ones at random."""
    scores = action_values(state.params, timestep.observation)
    if explore:
        assert noise is not None
        at_random = noise["coin"] < state.hyperparameters["epsilon"]
        scores = jnp.where(at_random[:, None], noise["action"], scores)
    return memory, Decision(jnp.argmax(masked(scores, timestep.action_mask), axis=-1), {})


def update(state: State, batch: replay.Sample, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on mean((G - Q(s, a))^2) / 2, where G is the n-step return of windows `[n, B]`."""
    rows, hyper = batch.experience, state.hyperparameters
    best = jnp.max(masked(action_values(state.target_params, rows.final_observation), rows.final_action_mask), axis=-1)

    def fold(later: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        reward, terminated, ended, best = row
        following = jnp.where(ended, best, later)  # a window goes no further than its episode
        return reward + hyper["discount"] * jnp.where(terminated, 0.0, following), None

    target, _ = lax.scan(fold, best[-1], (rows.reward, rows.terminated, rows.ended, best), reverse=True)

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        values = action_values(params, jax.tree.map(lambda leaf: leaf[0], rows.observation))
        td_error = target - jnp.take_along_axis(values, rows.action[0][:, None], axis=-1)[:, 0]
        return 0.5 * jnp.mean(batch.weights * jnp.square(td_error)), td_error

    gradient, td_error = jax.grad(loss, has_aux=True)(state.params)
    params = jax.tree.map(lambda p, g: p - hyper["learning_rate"] * g, state.params, gradient)
    target_params = jax.tree.map(lambda t, p: t + hyper["target_rate"] * (p - t), state.target_params, params)
    state = dataclasses.replace(state, params=params, target_params=target_params, updates=state.updates + 1)
    return state, Update({"td_error": jnp.mean(jnp.abs(td_error))}, priorities=jnp.abs(td_error))
