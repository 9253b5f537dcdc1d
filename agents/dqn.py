"""Deep Q-learning (Mnih et al. 2015) and what followed up to Rainbow (Hessel et al. 2018), each part a config field.

Double, dueling, noisy, distributional (C51, QR-DQN, IQN) and Munchausen Q-learning are fields of `[agent]`; prioritised
replay and n-step returns are those of `[replay]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.agents import (
    action_values,
    exploration,
    networks,
    normalisation,
    optimisers,
    torsos,
    transitions,
    value_learning,
)
from rollax.agents.action_values import Returns, Target
from rollax.agents.base import Agent, Decision, Hyperparameters, Replayed, Update, hyperparameters_of, require_each
from rollax.agents.memory import Torso
from rollax.agents.transitions import Learnt, Transitions
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config:
    """What DQN can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 5e-4
    """Step size of Adam at the start."""
    learning_rate_schedule: str = "constant"
    """How the learning rate falls over `horizon`: constant, linear or cosine."""
    horizon: float = 0.0
    """Updates until the schedule has ended; 0: the whole run, and no end in a loop of one's own."""
    discount: float = 0.99
    """gamma, per environment step."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions from `epsilon_steps` on."""
    epsilon_steps: float = 20_000.0
    """Environment steps over which the share of random actions falls linearly."""
    double: bool = False
    """Whether the online network chooses the action that the target network values (Double DQN)."""
    dueling: bool = False
    """Whether the head has a stream for the state's value beside that of the advantages."""
    noisy: bool = False
    """Whether the head's layers are noisy, which explores by itself: `epsilon_start` and `epsilon_end` may be 0."""
    noisy_scale: float = 0.5
    """Scale of the noise of noisy layers at the start, over the square root of a layer's inputs."""
    munchausen: bool = False
    """Whether the target is soft and the policy's log-probability is added to the reward (Munchausen DQN)."""
    munchausen_scale: float = 0.9
    """alpha, weight of the added log-probability."""
    munchausen_temperature: float = 0.03
    """tau, temperature of the policy, in units of value."""
    munchausen_floor: float = -1.0
    """l_0, where the added log-probability, times tau, is cut off."""
    distribution: str = "none"
    """What is learnt of returns: none (the mean alone), categorical (C51), quantile (QR-DQN) or implicit (IQN)."""
    num_atoms: int = 51
    """Atoms of a categorical distribution."""
    value_min: float = 0.0
    """Return of the lowest atom of a categorical distribution."""
    value_max: float = 100.0
    """Return of the highest atom of a categorical distribution."""
    num_quantiles: int = 32
    """Quantiles of a quantile distribution."""
    num_taus: int = 32
    """Random quantiles drawn of an implicit distribution at a time."""
    huber: bool = True
    """Whether errors beyond `huber_threshold` count linearly; if not, all count by their square, or those of quantiles
    linearly. A categorical distribution has another loss."""
    huber_threshold: float = 1.0
    """kappa, the error from which the loss is linear, in units of value."""
    target_period: int = 1
    """Updates from one step of the target network to the next."""
    target_rate: float = 0.005
    """Share of the way to the online network that each step of the target network goes; 1 copies it."""
    max_grad_norm: float = 10.0
    """Global norm at which gradients are clipped."""
    adam_epsilon: float = 1e-5
    """Epsilon of Adam."""
    priority_exponent: float = 0.6
    """Power of the error that a row is drawn with, of prioritised replay."""
    importance_exponent: float = 0.4
    """beta, how far the loss is corrected for the draws of prioritised replay: 0 not at all, 1 fully."""
    normalise_observation: bool = False
    """Whether observations are shifted and scaled by their running mean and standard deviation."""
    torso: str = "mlp"
    """Network below the head: mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the torso's hidden layers."""
    stream_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers of the head, in each of its streams where it is dueling; noisy where it is noisy."""
    activation: str = "relu"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Whether each layer of the torso is normalised before its activation."""
    compute_dtype: str = "float32"
    """What the torso computes in: float32 or bfloat16."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    above_zero = ("learning_rate", "max_grad_norm", "adam_epsilon", "huber_threshold", "munchausen_temperature")
    require_each(config, above_zero, lambda value: value > 0, "must be above 0")
    shares = ("discount", "epsilon_start", "epsilon_end", "importance_exponent")
    require_each(config, shares, lambda value: 0 <= value <= 1, "must be between 0 and 1")
    not_negative = ("horizon", "epsilon_steps", "noisy_scale", "munchausen_scale", "priority_exponent")
    require_each(config, not_negative, lambda value: value >= 0, "must not be negative")
    require_each(config, ("munchausen_floor",), lambda value: value <= 0, "must not be above 0")
    require_each(config, ("target_rate",), lambda value: 0 < value <= 1, "must be above 0 and at most 1")
    require_each(config, ("target_period",), lambda value: value >= 1, "must be at least 1")
    most = config.value_max
    require_each(config, ("value_min",), lambda value: value < most, f"must be below agent.value_max = {most}")
    optimisers.schedule(config.learning_rate_schedule, "agent.learning_rate_schedule")
    torsos.check_network(config)
    action_values.check(config)
    if config.munchausen:
        remedy = "has no use with agent.munchausen, whose target chooses no action: remove one of the two"
        require_each(config, ("double",), lambda value: not value, remedy)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients change."""

    torso: PyTree
    head: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of a DQN agent."""

    params: Params
    target_params: Params
    opt_state: optax.OptState
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], batches learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """What acting once in N environments draws."""

    exploration: exploration.Noise  # leaves [N, ...]
    head: action_values.Noise  # leaves [N, ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    num_actions: int
    torso: Torso
    head: action_values.Head

    def returns(
        self, params: Params, observation: PyTree, noise: action_values.Noise | None, hyper: Hyperparameters
    ) -> Returns:
        """The distributions of returns of all actions at normalised observations, leaves `[B, ...]`."""
        batch = jax.tree.leaves(observation)[0].shape[0]
        _, features = self.torso.step(params.torso, (), observation, jnp.zeros((batch,), jnp.bool_))
        return self.head.returns(params.head, features, noise, hyper)

    def optimiser(self, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
        """Adam with clipping, without its learning rate."""
        return optimisers.clipped_adam(hyperparameters["max_grad_norm"], hyperparameters["adam_epsilon"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a DQN agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`.
        config: What DQN can be told.

    Raises:
        InputError: The action space is another, or the torso has a memory or does not fit the observations.
    """
    return transitions.make_agent(make_parts(observation_space, action_space, config), init, noise, act_with, update)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    num_actions = exploration.num_actions(action_space, "dqn")
    networks.get_activation(config.activation)
    torso = torsos.without_memory(config, observation_space, "dqn")
    num_features = torsos.num_features(torso, observation_space)
    return Parts(
        config=config,
        observation_space=observation_space,
        num_actions=num_actions,
        torso=torso,
        head=action_values.make(config, num_features, num_actions),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_head = jax.random.split(key)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    example = spaces.zeros(parts.observation_space)
    batch = jax.tree.map(lambda leaf: leaf[None], example)
    params = Params(parts.torso.init(key_torso, batch), parts.head.init(key_head, hyper))
    return State(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),  # a loop of one's own may donate the state
        opt_state=parts.optimiser(hyper).init(params),
        observation_statistics=normalisation.init(example) if parts.config.normalise_observation else None,
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def noise(parts: Parts, key: jax.Array, num_envs: int) -> Noise:
    """Draws what acting once in `num_envs` environments needs."""
    key_exploration, key_head = jax.random.split(key)
    return Noise(exploration.noise(key_exploration, num_envs, parts.num_actions), parts.head.noise(key_head, num_envs))


def act_with(
    parts: Parts, state: State, memory: tuple[()], timestep: TimeStep, noise: Noise | None, explore: bool = True
) -> tuple[tuple[()], Decision]:
    """Takes the best legal actions, but for a share epsilon of random ones where `explore` is True."""
    hyper = state.hyperparameters
    of_actions, of_head = (noise.exploration, noise.head) if explore and noise is not None else (None, None)
    observation = normalisation.normalise(state.observation_statistics, timestep.observation)
    values = parts.returns(state.params, observation, of_head, hyper).values
    epsilon = exploration.epsilon(hyper, state.env_steps)
    action = exploration.epsilon_greedy(values, timestep.action_mask, epsilon, of_actions)
    return memory, Decision(action, {})


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Learns from one sample of windows `[n, B]`: one step on the loss, then one of the target network's."""
    config, hyper = parts.config, state.hyperparameters
    key_target, key_online = jax.random.split(key)
    rows = transitions.read(batch, hyper["discount"], state.observation_statistics)
    target = make_target(parts, state, rows, key_target)
    gradients, learnt = jax.grad(functools.partial(loss, parts), has_aux=True)(
        state.params, hyper, rows, target, key_online
    )
    learning_rate = optimisers.learning_rate(config.learning_rate_schedule, hyper, state.updates)
    params, opt_state = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, learning_rate
    )
    updates = state.updates + 1
    target_params = optimisers.follow(state.target_params, params, updates, config.target_period, hyper["target_rate"])
    metrics = {
        "loss": jnp.mean(learnt.losses),
        "td_error": jnp.mean(jnp.abs(learnt.td_error)),
        "q_value": jnp.mean(learnt.values),
        "epsilon": exploration.epsilon(hyper, state.env_steps),
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": learning_rate,
    }
    state = dataclasses.replace(state, params=params, target_params=target_params, opt_state=opt_state, updates=updates)
    return state, Update(metrics, transitions.priorities(learnt, rows.valid, config.distribution))


def make_target(parts: Parts, state: State, rows: Transitions, key: jax.Array) -> Target:
    """Returns what the returns of the actions taken in B transitions are fitted to.

    Each bootstraps from its true successor, unless the last step terminated; illegal actions there count for nothing.
    """
    config, hyper = parts.config, state.hyperparameters
    key_successor, key_other = jax.random.split(key)

    def of(params: Params, observation: PyTree, key: jax.Array) -> Returns:
        return parts.returns(params, observation, parts.head.noise(key, rows.valid.shape[0], shared=True), hyper)

    following = of(state.target_params, rows.successor, key_successor)
    if config.munchausen:
        before = of(state.target_params, rows.observation, key_other)
        numbers = (hyper[f"munchausen_{name}"] for name in ("scale", "temperature", "floor"))
        masks = (rows.action_mask, rows.successor_mask)
        return action_values.soft_target(rows.folded, before.values, rows.action, following, masks, *numbers)
    values = of(state.params, rows.successor, key_other).values if config.double else following.values
    selector = exploration.legal(values, rows.successor_mask)
    weights = value_learning.chosen(following.log_weights, jnp.argmax(selector, axis=-1))
    return Target(value_learning.q_target(rows.folded, following.atoms, selector), jnp.exp(weights))


def loss(
    parts: Parts, params: Params, hyper: Hyperparameters, rows: Transitions, target: Target, key: jax.Array
) -> tuple[jax.Array, Learnt]:
    """The mean over B transitions of the loss of each, times its weight."""
    noise = parts.head.noise(key, rows.valid.shape[0], shared=True)
    predicted = parts.returns(params, rows.observation, noise, hyper)
    losses = parts.head.loss(predicted, rows.action, target, hyper)
    values = value_learning.chosen(predicted.values, rows.action)
    return jnp.mean(rows.weights * losses), Learnt(losses, target.value - values, values)
