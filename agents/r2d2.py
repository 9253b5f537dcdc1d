"""Recurrent replay distributed DQN (R2D2; Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rollax.agents import exploration, networks, optimisers, returns, torsos, value_learning
from rollax.agents.base import (
    Agent,
    Decision,
    Hyperparameters,
    Replayed,
    Rollout,
    Update,
    hyperparameters_of,
    require,
    require_each,
)
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config:
    """What R2D2 can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 5e-4
    """Step size of Adam at the start."""
    learning_rate_schedule: str = "constant"
    """How the learning rate falls over `horizon`: constant, linear or cosine."""
    horizon: float = 0.0
    """Updates until the schedule has ended; 0: the whole run, and no end in a loop of one's own."""
    discount: float = 0.99
    """gamma, per environment step."""
    n_step: int = 3
    """Rewards in a target; fewer where the episode or the replayed window ends."""
    double: bool = True
    """Whether the online network chooses the action that the target network values (double Q-learning)."""
    rescale_values: bool = True
    """Whether networks predict h(Q) for the squashing h of `value_learning.signed_hyperbolic`."""
    burn_in: int = 8
    """First rows of each replayed window that only bring the memory up to date; nothing is learnt from them."""
    epsilon_start: float = 1.0
    """Share of random actions at first."""
    epsilon_end: float = 0.05
    """Share of random actions from `epsilon_steps` on."""
    epsilon_steps: float = 50_000.0
    """Environment steps over which the share of random actions falls linearly."""
    target_period: int = 1
    """Updates from one step of the target network to the next."""
    target_rate: float = 0.01
    """Share of the way to the online network that each step of the target network goes; 1 copies it."""
    priority_mix: float = 0.9
    """Weight of a window's largest temporal-difference error in its priority; the rest is that of the mean."""
    priority_exponent: float = 0.9
    """Power of a priority that a window is drawn in proportion to."""
    importance_exponent: float = 0.6
    """How much of the bias of prioritised draws the weights of the loss take back, from 0 to 1."""
    max_grad_norm: float = 40.0
    """Global norm at which gradients are clipped."""
    adam_epsilon: float = 1e-3
    """Epsilon of Adam."""
    torso: str = "mlp"
    """Network below the memory: mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""
    memory: str = "gru"
    """What stands on top of the torso: none, gru, lstm, linear or transformer. Replay stores it with each row."""
    memory_size: int = 64
    """Width of the memory."""
    memory_layers: int = 1
    """Layers of memory."""
    memory_window: int = 32
    """Steps that each layer of a transformer looks back; each row then stores `memory_window * memory_size` floats."""
    memory_heads: int = 4
    """Attention heads of a transformer."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Widths of the torso's hidden layers."""
    activation: str = "relu"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Whether each layer's outputs are normalised before the activation."""
    compute_dtype: str = "float32"
    """What the torso computes in: float32 or bfloat16."""
    dueling: bool = True
    """Whether the last layer has a stream for the state's value beside that of the advantages."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    above_zero = ("learning_rate", "max_grad_norm", "adam_epsilon", "target_rate")
    require_each(config, above_zero, lambda value: value > 0, "must be above 0")
    shares = ("discount", "epsilon_start", "epsilon_end", "priority_mix", "importance_exponent", "target_rate")
    require_each(config, shares, lambda value: 0 <= value <= 1, "must be between 0 and 1")
    not_negative = ("horizon", "epsilon_steps", "priority_exponent", "burn_in")
    require_each(config, not_negative, lambda value: value >= 0, "must not be negative")
    require_each(config, ("n_step", "target_period"), lambda value: value >= 1, "must be at least 1")
    torsos.check(config)
    optimisers.schedule(config.learning_rate_schedule, "agent.learning_rate_schedule")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients change."""

    torso: PyTree
    values: PyTree  # of the linear layer to action values, A numbers, and first V(s) where it is dueling


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of an R2D2 agent."""

    params: Params
    target_params: Params  # what targets are computed with
    opt_state: optax.OptState
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], batches learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Windows:
    """The rows of B replayed windows that are learnt from, K = L - burn_in of each."""

    rows: Rollout  # leaves [K, B, ...]
    mask: jax.Array  # bool [K, B], rows that count
    weights: jax.Array  # float32 [B], importance weights
    memory: PyTree  # leaves [B, ...], of the online network before the first row
    target_memory: PyTree  # leaves [B, ...], of the target network


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    num_actions: int
    torso: Torso
    values_layer: networks.Network

    def values(self, params: Params, features: jax.Array) -> jax.Array:
        """Q(s, .), or h of it, float32 `[..., A]`, at features `[..., F]`."""
        outputs = self.values_layer.apply(params.values, features)
        if not self.config.dueling:
            return outputs
        return value_learning.dueling(outputs[..., :1, None], outputs[..., 1:, None])[..., 0]

    def unroll(self, params: Params, memory: PyTree, rows: Rollout) -> tuple[jax.Array, jax.Array]:
        """Action values at the observations of rows `[K, B]` and at their true successors, float32 `[K, B, A]` both."""
        _, features, ahead = self.torso.unroll(
            params.torso, memory, rows.observation, rows.is_first, rows.final_observation
        )
        return self.values(params, features), self.values(params, ahead)

    def optimiser(self, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
        """Adam with clipping, without its learning rate."""
        return optimisers.clipped_adam(hyperparameters["max_grad_norm"], hyperparameters["adam_epsilon"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an R2D2 agent.

    It learns from replayed windows: `replay.prioritised(length=...)`, or `replay.sequence`. It acts with a memory,
    which it puts into the extras of each row as it was before the row, so that a window may start at any of them. That
    is the cost of a row beside its observations: `memory_size` floats for each layer of `memory="gru"` or `"linear"`,
    twice as many for `"lstm"`, and `memory_window` times as many for `"transformer"`.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`.
        config: What R2D2 can be told.

    Raises:
        InputError: The action space is no `Discrete`, or the torso does not fit the observations.
    """
    parts = make_parts(observation_space, action_space, config)
    return Agent(
        init=functools.partial(init, parts),
        init_memory=parts.torso.init_memory,
        noise=lambda key, num_envs: exploration.noise(key, num_envs, parts.num_actions),
        act_with=functools.partial(act_with, parts),
        observe=observe,
        update=functools.partial(update, parts),
        consumes="sequences",
    )


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    num_actions = exploration.num_actions(action_space, "r2d2")
    return Parts(
        config=config,
        observation_space=observation_space,
        num_actions=num_actions,
        torso=torsos.make(config, observation_space),
        values_layer=networks.make_linear(num_actions + config.dueling, scale=1.0),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_values = jax.random.split(key)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    example = jax.tree.map(lambda leaf: leaf[None], spaces.zeros(parts.observation_space))
    features = jnp.zeros((1, torsos.num_features(parts.torso, parts.observation_space)))
    params = Params(parts.torso.init(key_torso, example), parts.values_layer.init(key_values, features))
    return State(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),
        opt_state=parts.optimiser(hyper).init(params),
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def act_with(
    parts: Parts,
    state: State,
    memory: PyTree,
    timestep: TimeStep,
    noise: exploration.Noise | None,
    explore: bool = True,
) -> tuple[PyTree, Decision]:
    """Takes the best legal actions, but where it explores random ones with probability epsilon."""
    before = memory
    memory, features = parts.torso.step(state.params.torso, memory, timestep.observation, timestep.is_first)
    values, epsilon = parts.values(state.params, features), exploration.epsilon(state.hyperparameters, state.env_steps)
    action = exploration.epsilon_greedy(values, timestep.action_mask, epsilon, noise if explore else None)
    return memory, Decision(action, {"memory": before})


def observe(state: State, rollout: Rollout) -> State:
    """Counts the environment steps."""
    return dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size)


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on a sample of windows `[L, B]` and returns their new priorities.

    Raises:
        InputError: `burn_in` leaves no row to learn from.
    """
    hyper, config = state.hyperparameters, parts.config
    windows = prepare(parts, state, batch)
    _, following = parts.unroll(state.target_params, windows.target_memory, windows.rows)
    (total, (td_error, values)), gradients = jax.value_and_grad(functools.partial(loss, parts), has_aux=True)(
        state.params, hyper, windows, following
    )
    learning_rate = optimisers.learning_rate(config.learning_rate_schedule, hyper, state.updates)
    params, opt_state = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, learning_rate
    )
    updates = state.updates + 1
    state = dataclasses.replace(
        state,
        params=params,
        target_params=optimisers.follow(
            state.target_params, params, updates, config.target_period, hyper["target_rate"]
        ),
        opt_state=opt_state,
        updates=updates,
    )
    count = jnp.maximum(jnp.sum(windows.mask), 1)
    metrics = {
        "loss": total,
        "td_error": jnp.sum(jnp.abs(td_error)) / count,
        "q_value": jnp.sum(jnp.where(windows.mask, values, 0.0)) / count,
        "epsilon": exploration.epsilon(hyper, state.env_steps),
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": learning_rate,
    }
    return state, Update(metrics, priorities(td_error, windows.mask, hyper["priority_mix"]))


def prepare(parts: Parts, state: State, batch: Replayed) -> Windows:
    """Returns the rows to learn from, and the memories that `burn_in` rows lead to from the one that is stored."""
    burn_in, length = parts.config.burn_in, batch.mask.shape[0]
    require(
        burn_in < length,
        "agent.burn_in",
        burn_in,
        f"leaves no row to learn from in windows of {length}: make it smaller or replay.length larger",
    )
    batch = jax.tree.map(jnp.asarray, batch)  # a loop of one's own may pass NumPy arrays
    rows = batch.experience
    stored = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
    memories = [stored, stored]
    if burn_in:
        seen, is_first = jax.tree.map(lambda leaf: leaf[:burn_in], (rows.observation, rows.is_first))
        memories = [
            parts.torso.unroll(params.torso, stored, seen, is_first)[0]
            for params in (state.params, state.target_params)
        ]
    learnt: Rollout = jax.tree.map(lambda leaf: leaf[burn_in:], dataclasses.replace(rows, extras={}))
    return Windows(learnt, batch.mask[burn_in:], batch.weights, *memories)


def loss(
    parts: Parts, params: Params, hyper: Hyperparameters, windows: Windows, following: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The weighted squared temporal-difference errors of the rows that count, M of them.

        L       = sum_{t,b} w_b delta_{t,b}^2 / (2 M),   delta_t = h(G_t) - Q(s_t, a_t)
        G_t     = sum_{k<m} gamma^k r_{t+k} + gamma^m (1 - terminated) h^-1(Q_target(s'_{t+m-1}, a*))

    with m as of `returns.n_step_returns`, a* the best legal action at s' by Q (or by Q_target, without `double`), and h
    the identity without `rescale_values`.

    Args:
        parts: The static pieces.
        params: The online network's.
        hyper: The numbers of the agent.
        windows: The rows and the memories before them.
        following: Q_target(s', .) at the rows' true successors, float32 `[K, B, A]`.

    Returns:
        L, and delta (0 where a row does not count) and Q(s_t, a_t), float32 `[K, B]` both.
    """
    config, rows, mask = parts.config, windows.rows, windows.mask
    chosen = jax.vmap(value_learning.chosen)
    values, ahead = parts.unroll(params, windows.memory, rows)
    selector = exploration.legal(ahead if config.double else following, rows.final_action_mask)
    next_value = chosen(following, jnp.argmax(selector, axis=-1))
    if config.rescale_values:
        next_value = value_learning.signed_parabolic(next_value)
    target = returns.n_step_returns(
        rows.reward, next_value, rows.terminated, rows.truncated, hyper["discount"], config.n_step, mask
    )
    if config.rescale_values:
        target = value_learning.signed_hyperbolic(target)
    value = chosen(values, rows.action)
    td_error = jnp.where(mask, lax.stop_gradient(target) - value, 0.0)
    total = 0.5 * jnp.sum(windows.weights[None] * jnp.square(td_error)) / jnp.maximum(jnp.sum(mask), 1)
    return total, (td_error, value)


def priorities(td_error: jax.Array, mask: jax.Array, mix: jax.Array | float) -> jax.Array:
    """Priorities of windows from the errors of their rows that count.

        p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|

    Args:
        td_error: delta, float `[K, B]`, 0 where the mask is False.
        mask: bool `[K, B]`.
        mix: eta, a scalar.

    Returns:
        float32 `[B]`; 0 where no row of a window counts, so that it is not drawn again.
    """
    size = jnp.abs(td_error)
    mean = jnp.sum(size, axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1)
    return mix * jnp.max(size, axis=0) + (1.0 - mix) * mean
