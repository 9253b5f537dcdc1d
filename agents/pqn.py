"""Parallelised Q-network: Q(lambda) on rollouts, without replay (Gallici et al. 2025, https://arxiv.org/abs/2407.04811)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.agents import exploration, minibatches, networks, optimisers, returns, torsos
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of, require_each
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config:
    """What PQN can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 5e-4
    """Step size of RAdam at the start."""
    learning_rate_schedule: str = "linear"
    """How the learning rate falls over `horizon`: constant, linear or cosine."""
    horizon: float = 0.0
    """Updates until the schedule has ended; 0: the whole run, and no end in a loop of one's own."""
    discount: float = 0.99
    """gamma, per environment step."""
    trace_decay: float = 0.65
    """lambda of the returns."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions after `epsilon_steps`."""
    epsilon_steps: float = 100_000.0
    """Environment steps over which the share of random actions falls."""
    max_grad_norm: float = 10.0
    """Global norm at which gradients are clipped."""
    num_epochs: int = 2
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches per pass; must divide num_envs * num_steps, and num_envs where the torso has a memory."""
    torso: str = "mlp"
    """Network below the action values: mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""
    memory: str = "none"
    """What stands on top of the torso: none, gru, lstm, linear or transformer."""
    memory_size: int = 64
    """Width of the memory."""
    memory_layers: int = 1
    """Layers of memory."""
    memory_window: int = 32
    """Steps that each layer of a transformer looks back."""
    memory_heads: int = 4
    """Attention heads of a transformer."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the torso's hidden layers."""
    activation: str = "relu"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = True
    """Whether each layer's outputs are normalised before the activation, which stands in for a target network."""
    compute_dtype: str = "float32"
    """What the torso computes in: float32 or bfloat16."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train on rollouts of `num_steps` x `num_envs`."""
    require_each(config, ("learning_rate", "max_grad_norm"), lambda value: value > 0, "must be above 0")
    shares = ("discount", "trace_decay", "epsilon_start", "epsilon_end")
    require_each(config, shares, lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("epsilon_steps", "horizon"), lambda value: value >= 0, "must not be negative")
    torsos.check(config)
    optimisers.schedule(config.learning_rate_schedule, "agent.learning_rate_schedule")
    minibatches.check(config.num_epochs, config.num_minibatches, num_steps, num_envs, config.memory)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients change."""

    torso: PyTree
    value: PyTree  # of the linear layer to the action values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of a PQN agent."""

    params: Params
    opt_state: optax.OptState
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], rollouts learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One rollout with its targets, as M sequences of L steps (`minibatches.sequences`)."""

    observation: PyTree  # [L, M, *observation_shape]
    is_first: jax.Array  # bool [L, M]
    action: jax.Array  # int32 [L, M]
    target: jax.Array  # float32 [L, M], Q(lambda) returns


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    num_actions: int
    torso: Torso
    value_layer: networks.Network


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a PQN agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`.
        config: What PQN can be told.

    Raises:
        InputError: PQN cannot act in the action space, or the torso does not fit the observations.
    """
    parts = make_parts(observation_space, action_space, config)
    return Agent(
        init=functools.partial(init, parts),
        init_memory=parts.torso.init_memory,
        noise=lambda key, num_envs: exploration.noise(key, num_envs, parts.num_actions),
        act_with=functools.partial(act_with, parts),
        observe=lambda state, rollout: dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size),
        update=functools.partial(update, parts),
        consumes="rollout",
    )


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    num_actions = exploration.num_actions(action_space, "pqn")
    torso = torsos.make(config, observation_space)
    return Parts(config, observation_space, num_actions, torso, networks.make_linear(num_actions, scale=1.0))


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_value = jax.random.split(key)
    example = jax.tree.map(lambda leaf: leaf[None], spaces.zeros(parts.observation_space))
    features = jnp.zeros((1, torsos.num_features(parts.torso, parts.observation_space)))
    hyper = hyperparameters_of(parts.config, hyperparameters)
    params = Params(parts.torso.init(key_torso, example), parts.value_layer.init(key_value, features))
    return State(
        params=params,
        opt_state=optimisers.clipped_radam(hyper["max_grad_norm"]).init(params),
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def act_with(
    parts: Parts, state: State, memory: PyTree, timestep: TimeStep, noise: Any, explore: bool = True
) -> tuple[PyTree, Decision]:
    """Takes the best legal actions, but a share epsilon of them at random where `explore` is True."""
    memory, features = parts.torso.step(state.params.torso, memory, timestep.observation, timestep.is_first)
    values = parts.value_layer.apply(state.params.value, features)
    epsilon = exploration.epsilon(state.hyperparameters, state.env_steps)
    action = exploration.epsilon_greedy(values, timestep.action_mask, epsilon, noise if explore else None)
    return memory, Decision(action, {})


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Learns from one rollout `[T, N]`: `num_epochs` passes over it, towards targets that were taken before the first.

    Minibatches are of single steps, or where the torso has a memory of whole environments.
    """
    config, hyper = parts.config, state.hyperparameters
    memory, batch = prepare(parts, state, rollout)
    rate = optimisers.learning_rate(config.learning_rate_schedule, hyper, state.updates)
    optimiser = optimisers.clipped_radam(hyper["max_grad_norm"])

    def learn(carry: Any, memory: PyTree, minibatch: Batch) -> tuple[Any, Any]:
        return optimisers.step(optimiser, functools.partial(loss, parts), *carry, rate, memory, minibatch)

    (params, opt_state), metrics = minibatches.passes(
        learn, (state.params, state.opt_state), memory, batch, key, config.num_epochs, config.num_minibatches
    )
    metrics = {
        **jax.tree.map(jnp.mean, metrics),
        "learning_rate": rate,
        "epsilon": exploration.epsilon(hyper, state.env_steps),
    }
    return dataclasses.replace(state, params=params, opt_state=opt_state, updates=state.updates + 1), Update(metrics)


def prepare(parts: Parts, state: State, rollout: Rollout) -> tuple[PyTree, Batch]:
    """Returns the memory before each sequence, and the rollout with its targets, from one forward pass."""
    params, hyper = state.params, state.hyperparameters
    memory = minibatches.first_memory(parts.torso, rollout, parts.torso.init_memory)
    _, _, features = parts.torso.unroll(
        params.torso, memory, rollout.observation, rollout.is_first, rollout.final_observation
    )
    next_values = exploration.legal(parts.value_layer.apply(params.value, features), rollout.final_action_mask)
    target = returns.lambda_return(
        rollout.reward,
        jnp.max(next_values, axis=-1),
        rollout.terminated,
        rollout.truncated,
        hyper["discount"],
        hyper["trace_decay"],
    )
    batch = Batch(rollout.observation, rollout.is_first, rollout.action, target)
    return memory, minibatches.sequences(parts.torso, batch)


def loss(parts: Parts, params: Params, memory: PyTree, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The squared error of one minibatch, L = mean((Q(s, a) - G)^2) / 2, whose sequences start from `memory`."""
    _, features, _ = parts.torso.unroll(params.torso, memory, batch.observation, batch.is_first)
    values = parts.value_layer.apply(params.value, features)
    chosen = jnp.take_along_axis(values, batch.action[..., None], axis=-1)[..., 0]
    error = batch.target - chosen
    total = 0.5 * jnp.mean(jnp.square(error))
    return total, {"loss": total, "td_error": jnp.mean(jnp.abs(error)), "action_value": jnp.mean(chosen)}
