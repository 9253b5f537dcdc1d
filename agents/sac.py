"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), continuous and discrete.

Truncated quantile critics (TQC), batch-normalised critics without target networks (CrossQ), and large ensembles or
dropout with many updates for each step (REDQ, DroQ) are fields of `[agent]`, the latter with
`train.updates_per_iteration`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.agents import (
    action_values,
    critics,
    exploration,
    normalisation,
    optimisers,
    stochastic_policy,
    transitions,
    value_learning,
)
from rollax.agents.action_values import Returns, Target
from rollax.agents.base import Agent, Hyperparameters, Replayed, Update, hyperparameters_of, require_each
from rollax.agents.returns import NStep
from rollax.agents.stochastic_policy import Params
from rollax.agents.transitions import Learnt, Transitions
from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError, nearest

TARGET_ENTROPIES = ("auto", "dimensions", "log_actions")


@dataclasses.dataclass(frozen=True)
class Config:
    """What SAC can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 3e-4
    """Step size of Adam for the policy."""
    critic_learning_rate: float = 1e-3
    """Step size of Adam for the critics."""
    temperature_learning_rate: float = 3e-4
    """Step size of Adam for the logarithm of the temperature."""
    discount: float = 0.99
    """gamma, per environment step."""
    learn_temperature: bool = True
    """Whether the temperature is learnt, so that the policy's entropy comes to the target; if not, it stays."""
    initial_temperature: float = 1.0
    """alpha at the start, weight of the entropy in units of value."""
    target_entropy: str = "auto"
    """What the target entropy, in nats, is a multiple of: dimensions (minus the number of the Box's, actions being in
    units of half its range), log_actions (that of random actions, of a Discrete space), or auto, which takes the one
    that fits."""
    target_entropy_scale: float = 1.0
    """The target entropy in units of what `target_entropy` names; -D/2, as some code bases have it, is 0.5."""
    actor_period: int = 1
    """Updates of the critics from one of the policy and the temperature to the next."""
    num_critics: int = 2
    """Critics, of which the lowest counts."""
    target_critics: int = 0
    """How many critics, drawn anew in each update, make a target, of which the lowest counts; 0: all (REDQ: 2)."""
    mean_critics: bool = False
    """Whether the policy climbs the mean of all critics rather than the lowest; that of quantiles always does."""
    distribution: str = "none"
    """What critics learn of returns: none (the mean alone), categorical, or quantile (TQC)."""
    num_atoms: int = 51
    """Atoms of a categorical distribution."""
    value_min: float = -100.0
    """Return of the lowest atom of a categorical distribution."""
    value_max: float = 100.0
    """Return of the highest atom of a categorical distribution."""
    num_quantiles: int = 25
    """Quantiles of each critic."""
    dropped_quantiles: int = 2
    """How many of the largest quantiles, for each critic, are left out of the target."""
    huber_threshold: float = 1.0
    """kappa of the quantiles' Huber loss, in units of value."""
    batch_norm: bool = False
    """Whether critics are normalised over batches of transitions with their successors, without target networks
    (CrossQ)."""
    dropout: float = 0.0
    """Share of the critics' hidden units left out at random while learning; 0: none, whatever a grid says."""
    target_period: int = 1
    """Updates from one step of the target networks to the next."""
    target_rate: float = 0.005
    """Share of the way to the critics that each step of their targets goes; 1 copies them."""
    adam_epsilon: float = 1e-8
    """Epsilon of Adam."""
    adam_momentum: float = 0.9
    """beta_1 of Adam (CrossQ: 0.5)."""
    random_steps: float = 1000.0
    """Environment steps at the start in which actions are uniformly random."""
    random_period: int = 1
    """Mean steps for which a random action of the start is repeated, which explores where single ones cancel out."""
    initial_log_scale: float = -1.0
    """Logarithm of the scale of a Box's actions at the start, in units of half the Box."""
    priority_exponent: float = 0.6
    """Power of the error that a row is drawn with, of prioritised replay."""
    importance_exponent: float = 0.4
    """beta, how far the loss is corrected for the draws of prioritised replay: 0 not at all, 1 fully."""
    normalise_observation: bool = False
    """Whether observations are shifted and scaled by their running mean and standard deviation."""
    torso: str = "mlp"
    """Networks below policy and critics: mlp, cnn, or package.module:NAME or file.py:NAME of one's own, which for the
    critics of a Box gets a dict of the observation and the action."""
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
    above_zero = ("temperature_learning_rate", "initial_temperature")
    require_each(config, above_zero, lambda value: value > 0, "must be above 0")
    require_each(config, ("actor_period", "random_period"), lambda value: value >= 1, "must be at least 1")
    require_each(config, ("initial_log_scale", "target_entropy_scale"), math.isfinite, "must be finite")
    most = config.num_critics
    remedy = f"must be between 0 and agent.num_critics = {most}"
    require_each(config, ("target_critics",), lambda value: 0 <= value <= most, remedy)
    quantiles = config.num_quantiles
    remedy = f"must be below agent.num_quantiles = {quantiles}"
    require_each(config, ("dropped_quantiles",), lambda value: 0 <= value < quantiles, remedy)
    if config.target_entropy not in TARGET_ENTROPIES:
        remedy = nearest(config.target_entropy, TARGET_ENTROPIES)
        raise InputError(f"agent.target_entropy = {config.target_entropy!r} is no known convention: {remedy}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of an SAC agent."""

    params: Params
    opt_state: optax.OptState
    critics: critics.State
    log_temperature: jax.Array  # float32 []
    temperature_opt_state: optax.OptState
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], batches learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    action_space: spaces.Box | spaces.Discrete
    policy: stochastic_policy.Policy
    critics: critics.Critics

    def target_entropy(self, hyper: Hyperparameters) -> jax.Array:
        """In nats, a scalar."""
        if isinstance(self.action_space, spaces.Box):
            return -hyper["target_entropy_scale"] * spaces.size(self.action_space)
        return hyper["target_entropy_scale"] * math.log(self.action_space.n)

    def optimiser(self, hyper: Hyperparameters) -> optax.GradientTransformation:
        """Adam, without its learning rate: of the policy, and of the temperature."""
        return optimisers.adam(hyper["adam_epsilon"], hyper["adam_momentum"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an SAC agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, or a `Box` with finite bounds, which actions are squashed into by tanh.
        config: What SAC can be told.

    Raises:
        InputError: The action space is another, `target_entropy` does not fit it, or the torso has a memory or does not
            fit the observations.
    """
    parts = make_parts(observation_space, action_space, config)
    return stochastic_policy.agent(parts.policy, functools.partial(init, parts), functools.partial(update, parts))


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    space = exploration.box_or_discrete(action_space, "sac")
    fitting = "dimensions" if isinstance(space, spaces.Box) else "log_actions"
    if config.target_entropy not in ("auto", fitting):
        raise InputError(
            f"agent.target_entropy = {config.target_entropy!r} does not fit the action space {space!r}: set it to "
            f"{fitting!r}."
        )
    return Parts(
        config=config,
        action_space=space,
        policy=stochastic_policy.make(
            config, observation_space, space, "sac", squash=True, random_period=config.random_period
        ),
        critics=critics.make(config, observation_space, space),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_policy, key_critics = jax.random.split(key, 3)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    params = parts.policy.init(key_torso, key_policy, hyper["initial_log_scale"])
    log_temperature = jnp.log(hyper["initial_temperature"])
    return State(
        params=params,
        opt_state=parts.optimiser(hyper).init(params),
        critics=parts.critics.init(key_critics, hyper),
        log_temperature=log_temperature,
        temperature_opt_state=parts.optimiser(hyper).init(log_temperature),
        observation_statistics=parts.policy.init_statistics(parts.config.normalise_observation),
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choices:
    """What a policy may do in B states, each with its weight: one sampled action of a Box, all of a Discrete space."""

    action: jax.Array | None  # float32 [B, D] in units of the Box; None: all
    log_weight: jax.Array  # float32 [B, A], of each: 0 of the sample, log pi(a|s) of all
    log_prob: jax.Array  # float32 [B, A], of a Box the log-density in its units, before any clipping


def choose(parts: Parts, params: Params, observation: PyTree, mask: PyTree | None, key: jax.Array) -> Choices:
    """Returns what the policy may do at normalised observations, leaves `[B, ...]`, differentiable in `params`."""
    policy = parts.policy(params, observation, mask)
    if isinstance(parts.action_space, spaces.Discrete):
        log_prob = jax.nn.log_softmax(policy.logits, axis=-1)
        return Choices(None, log_prob, log_prob)
    drawn = parts.policy.head.noise(key, policy.loc.shape[0])
    _, sample = parts.policy.head.sample(policy, jnp.zeros(()), params.head, drawn, (), jnp.zeros((), jnp.bool_))
    log_prob = policy.log_prob(sample)[:, None]
    return Choices(jnp.tanh(sample), jnp.zeros_like(log_prob), log_prob)


def soft_target(folded: NStep, expected: Returns, choices: Choices, temperature: jax.Array | float) -> Target:
    """Targets of soft Q-learning (Haarnoja et al. 2018), a mixture over what the policy may do at the successor.

        G = R + gamma^m (Q(s', a') - alpha log pi(a'|s')),   a' ~ pi(.|s')

    Args:
        folded: R and gamma^m of B windows; gamma^m is 0 after a termination, for the entropy too.
        expected: Of the choices at the successors, leaves `[B, A, K]`.
        choices: Those of the policy there.
        temperature: alpha.

    Returns:
        A * K atoms.
    """
    atoms = value_learning.bootstrapped(folded, expected.atoms - temperature * choices.log_prob[..., None])
    return action_values.mixture(atoms, choices.log_weight[..., None] + expected.log_weights)


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Learns from one sample of windows `[n, B]`: critics, then the policy, then the temperature."""
    key_critics, key_actor = jax.random.split(key)
    rows = transitions.read(batch, state.hyperparameters["discount"], state.observation_statistics)
    state = dataclasses.replace(state, updates=state.updates + 1)
    state, learnt = update_critics(parts, state, rows, key_critics)
    state, metrics = critics.every(
        parts.config.actor_period, state.updates, functools.partial(update_actor, parts), state, rows, key_actor
    )
    metrics = {**critics.metrics(learnt), **metrics, "temperature": jnp.exp(state.log_temperature)}
    return state, Update(metrics, transitions.priorities(learnt, rows.valid, parts.config.distribution))


def update_critics(parts: Parts, state: State, rows: Transitions, key: jax.Array) -> tuple[State, Learnt]:
    """Takes one step on the loss of the critics."""
    config, hyper = parts.config, state.hyperparameters
    key_choices, key_subset, key_update = jax.random.split(key, 3)
    choices = choose(parts, state.params, rows.successor, rows.successor_mask, key_choices)
    temperature = jnp.exp(state.log_temperature)

    def make_target(expected: Returns) -> Target:
        if config.target_critics:
            members = jax.random.permutation(key_subset, config.num_critics)[: config.target_critics]
            expected = jax.tree.map(lambda leaf: leaf[members], expected)
        if config.distribution == "quantile":
            expected = critics.truncated(expected, config.dropped_quantiles)
        else:
            expected = critics.lowest(expected)
        return soft_target(rows.folded, expected, choices, temperature)

    learner, learnt = parts.critics.update(
        state.critics,
        (rows.observation, rows.action),
        (rows.successor, choices.action),
        make_target,
        rows.weights,
        hyper,
        state.updates,
        key_update,
    )
    return dataclasses.replace(state, critics=learner), learnt


def update_actor(parts: Parts, state: State, rows: Transitions, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """Takes one step on the loss of the policy, and one on that of the temperature.

    L(pi) = E[alpha log pi(a|s) - Q(s, a)],   L(alpha) = log(alpha) (H(pi) - H_target)
    """
    config, hyper = parts.config, state.hyperparameters
    key_choices, key_critics = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)

    def loss(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        choices = choose(parts, params, rows.observation, rows.action_mask, key_choices)
        expected = parts.critics.returns(
            state.critics.params, state.critics.statistics, rows.observation, choices.action, hyper, key_critics
        )
        mean = config.mean_critics or config.distribution == "quantile"
        values = jnp.mean(expected.values, axis=0) if mean else jnp.min(expected.values, axis=0)
        probability = jnp.exp(choices.log_weight)
        losses = jnp.sum(probability * (temperature * choices.log_prob - values), axis=-1)
        entropy = -jnp.sum(probability * choices.log_prob, axis=-1)
        return jnp.mean(rows.weights * losses), (jnp.mean(losses), jnp.mean(entropy))

    gradients, (policy_loss, entropy) = jax.grad(loss, has_aux=True)(state.params)
    params, opt_state = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, hyper["learning_rate"]
    )
    state = dataclasses.replace(state, params=params, opt_state=opt_state)
    if config.learn_temperature:
        log_temperature, opt_state = optimisers.descend(
            parts.optimiser(hyper),
            entropy - parts.target_entropy(hyper),
            state.temperature_opt_state,
            state.log_temperature,
            hyper["temperature_learning_rate"],
        )
        state = dataclasses.replace(state, log_temperature=log_temperature, temperature_opt_state=opt_state)
    return state, {"policy_loss": policy_loss, "entropy": entropy}
