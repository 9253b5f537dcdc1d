"""Deep deterministic policy gradient (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971).

TD3 (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477) is two critics, a policy that learns later than they do and
noise in the target; D4PG (Barth-Maron et al. 2018, https://arxiv.org/abs/1804.08617) is a critic of distributions with
`replay.n_step` and prioritised replay. All are fields of `[agent]`.
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
    critics,
    exploration,
    heads,
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
from rollax.agents.returns import NStep
from rollax.agents.transitions import Learnt, Transitions
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config:
    """What DDPG can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 1e-3
    """Step size of Adam for the policy."""
    critic_learning_rate: float = 1e-3
    """Step size of Adam for the critics."""
    discount: float = 0.99
    """gamma, per environment step."""
    exploration_noise: float = 0.1
    """Standard deviation of the normal noise on actions while training, in units of half the Box."""
    random_steps: float = 1000.0
    """Environment steps at the start in which actions are uniformly random."""
    actor_period: int = 1
    """Updates of the critics from one of the policy to the next (TD3: 2)."""
    target_noise: float = 0.0
    """Standard deviation of the normal noise on the actions of targets, in units of half the Box (TD3: 0.2)."""
    target_noise_clip: float = 0.5
    """How large the noise of `target_noise` gets at most, in units of half the Box."""
    num_critics: int = 1
    """Critics, of which the lowest makes the target and the first teaches the policy (TD3: 2)."""
    distribution: str = "none"
    """What critics learn of returns: none (the mean alone), categorical (D4PG), or quantile."""
    num_atoms: int = 51
    """Atoms of a categorical distribution."""
    value_min: float = -100.0
    """Return of the lowest atom of a categorical distribution."""
    value_max: float = 100.0
    """Return of the highest atom of a categorical distribution."""
    num_quantiles: int = 25
    """Quantiles of each critic."""
    huber_threshold: float = 1.0
    """kappa of the quantiles' Huber loss, in units of value."""
    batch_norm: bool = False
    """Whether critics are normalised over batches of transitions with their successors, without target networks of
    their own (CrossQ); the policy keeps its one."""
    dropout: float = 0.0
    """Share of the critics' hidden units left out at random while learning; 0: none, whatever a grid says."""
    target_period: int = 1
    """Updates from one step of the target networks, the policy's too, to the next (TD3: 2)."""
    target_rate: float = 0.005
    """Share of the way to the networks that each step of the target networks goes; 1 copies them."""
    adam_epsilon: float = 1e-8
    """Epsilon of Adam."""
    adam_momentum: float = 0.9
    """beta_1 of Adam."""
    priority_exponent: float = 0.6
    """Power of the error that a row is drawn with, of prioritised replay."""
    importance_exponent: float = 0.4
    """beta, how far the losses are corrected for the draws of prioritised replay: 0 not at all, 1 fully."""
    normalise_observation: bool = False
    """Whether observations are shifted and scaled by their running mean and standard deviation."""
    torso: str = "mlp"
    """Networks below policy and critics: mlp, cnn, or package.module:NAME or file.py:NAME of one's own, which for the
    critics gets a dict of the observation and the action."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of policy and critics."""
    activation: str = "relu"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Whether each layer's outputs are normalised before the activation."""
    compute_dtype: str = "float32"
    """What policy and critics compute in: float32 or bfloat16."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    critics.check(config)
    noise = ("exploration_noise", "target_noise", "target_noise_clip")
    require_each(config, noise, lambda value: value >= 0, "must not be negative")
    require_each(config, ("actor_period",), lambda value: value >= 1, "must be at least 1")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """The policy's parameters."""

    torso: PyTree
    output: PyTree  # of the linear layer to what tanh makes actions of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of a DDPG agent."""

    env_steps: jax.Array  # int32 [], environment steps observed
    updates: jax.Array  # int32 [], batches learnt from
    params: Params
    target_params: Params
    opt_state: optax.OptState
    critics: critics.State
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    hyperparameters: Hyperparameters  # float32 scalars


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """What acting once in N environments draws."""

    normal: jax.Array  # float32 [N, D], of the noise on the policy's actions
    random: jax.Array  # float32 [N, D], of random actions


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    action_space: spaces.Box
    torso: Torso
    output: networks.Network
    critics: critics.Critics

    def policy(self, params: Params, observation: PyTree) -> jax.Array:
        """mu(s), the actions in units of the Box, float32 `[B, D]`, at normalised observations `[B, ...]`."""
        batch = jax.tree.leaves(observation)[0].shape[0]
        _, features = self.torso.step(params.torso, (), observation, jnp.zeros((batch,), jnp.bool_))
        return jnp.tanh(self.output.apply(params.output, features))

    def optimiser(self, hyper: Hyperparameters) -> optax.GradientTransformation:
        """The policy's Adam, without its learning rate."""
        return optimisers.adam(hyper["adam_epsilon"], hyper["adam_momentum"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a DDPG agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: A `Box` with finite bounds.
        config: What DDPG can be told.

    Raises:
        InputError: The action space is another, or the torso has a memory or does not fit the observations.
    """
    return transitions.make_agent(make_parts(observation_space, action_space, config), init, noise, act_with, update)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    space = exploration.bounded_box(action_space, "ddpg")
    spaces.leaves(observation_space)
    networks.get_activation(config.activation)
    return Parts(
        config=config,
        observation_space=observation_space,
        action_space=space,
        torso=torsos.without_memory(config, observation_space, "ddpg"),
        output=networks.make_linear(spaces.size(space), scale=0.01),
        critics=critics.make(config, observation_space, space),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_output, key_critics = jax.random.split(key, 3)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    example = spaces.zeros(parts.observation_space)
    features = jnp.zeros((1, torsos.num_features(parts.torso, parts.observation_space)))
    params = Params(
        torso=parts.torso.init(key_torso, jax.tree.map(lambda leaf: leaf[None], example)),
        output=parts.output.init(key_output, features),
    )
    return State(
        env_steps=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
        params=params,
        target_params=jax.tree.map(jnp.copy, params),  # a loop of one's own may donate the state
        opt_state=parts.optimiser(hyper).init(params),
        critics=parts.critics.init(key_critics, hyper),
        observation_statistics=normalisation.init(example) if parts.config.normalise_observation else None,
        hyperparameters=hyper,
    )


def noise(parts: Parts, key: jax.Array, num_envs: int) -> Noise:
    """Draws what acting once in `num_envs` environments needs."""
    key_normal, key_random = jax.random.split(key)
    return Noise(
        normal=jax.random.normal(key_normal, (num_envs, spaces.size(parts.action_space))),
        random=exploration.random_noise(key_random, num_envs, parts.action_space),
    )


def act_with(
    parts: Parts, state: State, memory: tuple[()], timestep: TimeStep, noise: Noise | None, explore: bool = True
) -> tuple[tuple[()], Decision]:
    """Takes the policy's actions, where `explore` is True with noise, after `random_steps` of random ones."""
    hyper = state.hyperparameters
    observation = normalisation.normalise(state.observation_statistics, timestep.observation)
    unit = parts.policy(state.params, observation)
    if not explore or noise is None:
        return memory, Decision(heads.from_unit(parts.action_space, unit), {})
    noisy = heads.from_unit(parts.action_space, unit + hyper["exploration_noise"] * noise.normal)
    random = exploration.random_action(noise.random, parts.action_space, None)
    return memory, Decision(jnp.where(state.env_steps < hyper["random_steps"], random, noisy), {})


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Learns from one sample of windows `[n, B]`: critics, then the policy, then its target network."""
    config, hyper = parts.config, state.hyperparameters
    key_critics, key_actor = jax.random.split(key)
    rows = transitions.read(batch, hyper["discount"], state.observation_statistics)
    updates = state.updates + 1
    state, learnt = update_critics(parts, dataclasses.replace(state, updates=updates), rows, key_critics)
    step = functools.partial(update_actor, parts)
    state, of_actor = critics.every(config.actor_period, updates, step, state, rows, key_actor)
    target_params = optimisers.follow(
        state.target_params, state.params, updates, config.target_period, hyper["target_rate"]
    )
    metrics = {**critics.metrics(learnt), **of_actor}
    priorities = transitions.priorities(learnt, rows.valid, config.distribution)
    return dataclasses.replace(state, target_params=target_params), Update(metrics, priorities)


def smoothed(unit: jax.Array, normal: jax.Array, scale: jax.Array | float, limit: jax.Array | float) -> jax.Array:
    """Actions with the noise that smooths TD3's targets (Fujimoto et al. 2018, section 5.3).

        a' = clip(mu(s') + clip(scale * n, -limit, limit), -1, 1),   n normal

    Args:
        unit: mu(s') in units of the Box, float32 `[B, D]`.
        normal: n, float32 `[B, D]`.
        scale: Standard deviation of the noise, in the same units.
        limit: How large it gets at most.

    Returns:
        a', float32 `[B, D]`.
    """
    return jnp.clip(unit + jnp.clip(scale * normal, -limit, limit), -1.0, 1.0)


def bellman_target(folded: NStep, expected: Returns) -> Target:
    """Targets of the clipped double critic (Fujimoto et al. 2018), of each atom of the lowest one.

        G = R + gamma^m Z_i(s', a'),   i = argmin_i Q_i(s', a')

    Args:
        folded: R and gamma^m of B windows.
        expected: Z_1, ..., Z_E of the target networks, leaves `[E, B, 1, K]`.

    Returns:
        K atoms.
    """
    lowest = critics.lowest(expected)
    return Target(value_learning.bootstrapped(folded, lowest.atoms[:, 0]), jnp.exp(lowest.log_weights[:, 0]))


def update_critics(parts: Parts, state: State, rows: Transitions, key: jax.Array) -> tuple[State, Learnt]:
    """Takes one step on the loss of the critics."""
    hyper = state.hyperparameters
    key_noise, key_update = jax.random.split(key)
    unit = parts.policy(state.target_params, rows.successor)
    normal = jax.random.normal(key_noise, unit.shape)
    learner, learnt = parts.critics.update(
        state.critics,
        taken=(rows.observation, rows.action),
        following=(rows.successor, smoothed(unit, normal, hyper["target_noise"], hyper["target_noise_clip"])),
        make_target=functools.partial(bellman_target, rows.folded),
        weights=rows.weights,
        hyper=hyper,
        updates=state.updates,
        key=key_update,
    )
    return dataclasses.replace(state, critics=learner), learnt


def update_actor(parts: Parts, state: State, rows: Transitions, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """Takes one step on the loss of the policy, by the first critic alone (Silver et al. 2014).

    L(mu) = -E[Q_1(s, mu(s))]
    """
    hyper = state.hyperparameters
    first, statistics = jax.tree.map(lambda leaf: leaf[:1], (state.critics.params, state.critics.statistics))

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        unit = parts.policy(params, rows.observation)
        values = parts.critics.returns(first, statistics, rows.observation, unit, hyper, key).values[0, :, 0]
        return -jnp.mean(rows.weights * values), -jnp.mean(values)

    gradients, policy_loss = jax.grad(loss, has_aux=True)(state.params)
    params, opt_state = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, hyper["learning_rate"]
    )
    return dataclasses.replace(state, params=params, opt_state=opt_state), {"policy_loss": policy_loss}
