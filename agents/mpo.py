"""Maximum a posteriori policy optimisation (MPO), continuous and discrete.

Abdolmaleki et al. 2018, https://arxiv.org/abs/1806.06920, with the mean and the scale of normals held back apart as in
https://arxiv.org/abs/1812.02256. Each update improves the target policy at the states of a batch without parameters
(the E-step) and fits the policy to that, no further from the target policy than a trust region (the M-step).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from rollax.agents import (
    action_values,
    critics,
    distributions,
    exploration,
    heads,
    normalisation,
    optimisers,
    stochastic_policy,
    trust_region,
    value_learning,
)
from rollax.agents import transitions as replayed
from rollax.agents.action_values import Returns, Target
from rollax.agents.base import Agent, Hyperparameters, Replayed, Update, hyperparameters_of, require_each
from rollax.agents.returns import NStep
from rollax.agents.stochastic_policy import Params
from rollax.envs import spaces
from rollax.envs.base import PyTree


@dataclasses.dataclass(frozen=True)
class Config:
    """What MPO can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 3e-4
    """Step size of Adam for the policy."""
    critic_learning_rate: float = 3e-4
    """Step size of Adam for the critics."""
    dual_learning_rate: float = 1e-2
    """Step size of Adam for the logarithms of the dual variables: the temperature and the penalties."""
    discount: float = 0.99
    """gamma, per environment step."""
    num_samples: int = 20
    """Actions of a Box drawn at each state; of a Discrete space all actions are looked at."""
    epsilon: float = 0.1
    """KL divergence of the improved policy from the target policy, in nats, that the temperature is learnt for."""
    epsilon_mean: float = 1e-2
    """Bound of the KL divergence that the mean of a Box's actions makes, in nats."""
    epsilon_scale: float = 1e-4
    """Bound of the KL divergence that the scale of a Box's actions makes, in nats."""
    epsilon_policy: float = 1e-2
    """Bound of the KL divergence of the policy of a Discrete space, in nats."""
    initial_temperature: float = 1.0
    """eta at the start, in units of value."""
    initial_penalty: float = 10.0
    """Weight, at the start, of the KL divergence of the mean, or of a Discrete space's policy."""
    initial_scale_penalty: float = 100.0
    """Weight, at the start, of the KL divergence of the scale."""
    num_critics: int = 2
    """Critics, of which the lowest counts."""
    distribution: str = "none"
    """What critics learn of returns: none (the mean alone), categorical (as in DMPO), or quantile."""
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
    """Whether critics are normalised over batches of transitions with their successors, without target networks."""
    dropout: float = 0.0
    """Share of the critics' hidden units left out at random while learning; 0: none, whatever a grid says."""
    target_period: int = 1
    """Updates from one step of the target networks, policy and critics, to the next."""
    target_rate: float = 0.005
    """Share of the way to the learnt networks that each step of the target networks goes; 1 copies them."""
    adam_epsilon: float = 1e-8
    """Epsilon of Adam."""
    adam_momentum: float = 0.9
    """beta_1 of Adam."""
    random_steps: float = 1000.0
    """Environment steps at the start in which actions are uniformly random."""
    initial_log_scale: float = -0.5
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
    activation: str = "elu"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Whether each layer's outputs are normalised before the activation."""
    compute_dtype: str = "float32"
    """What policy and critics compute in: float32 or bfloat16."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    critics.check(config)
    trust_region.check(config)
    enough = "must be at least 2: weights of one action say nothing"
    require_each(config, ("num_samples",), lambda value: value >= 2, enough)
    require_each(config, ("initial_log_scale",), math.isfinite, "must be finite")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of an MPO agent."""

    params: Params
    target_params: Params
    opt_state: optax.OptState
    critics: critics.State
    duals: trust_region.Duals
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], batches learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Normal:
    """Independent normals in B states."""

    loc: jax.Array  # float32 [B, D], in units of the Box
    scale: jax.Array  # float32 [B, D], above 0

    def log_prob(self, sample: jax.Array) -> jax.Array:
        """The log-density, float `[B, A]`, of samples `[B, A, D]`."""
        standard = (sample - self.loc[:, None]) / self.scale[:, None]
        return -jnp.sum(0.5 * jnp.square(standard) + jnp.log(self.scale[:, None]) + 0.5 * math.log(2 * math.pi), -1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choices:
    """What the target policy may do in B states: some drawn actions of a Box, all A of a Discrete space."""

    sample: jax.Array | None  # float32 [B, A, D] in units of the Box, before any clipping; None: all
    log_weight: jax.Array  # float32 [B, A], of each: -log A of those drawn, log pi(a|s) of all


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    action_space: spaces.Box | spaces.Discrete
    policy: stochastic_policy.Policy
    critics: critics.Critics

    def optimiser(self, hyper: Hyperparameters) -> optax.GradientTransformation:
        """Adam, without its learning rate: of the policy, and of the dual variables."""
        return optimisers.adam(hyper["adam_epsilon"], hyper["adam_momentum"])

    def normal(self, params: Params, observation: PyTree) -> Normal:
        """The policy in a Box at normalised observations, leaves `[B, ...]`."""
        independent = self.policy(params, observation, None)
        return Normal(independent.distribution.loc, independent.distribution.scale)

    def log_policy(self, params: Params, observation: PyTree, mask: PyTree | None) -> jax.Array:
        """The logarithms of pi(.|s) in a Discrete space at normalised observations, float32 `[B, A]`."""
        return jax.nn.log_softmax(self.policy(params, observation, mask).logits, axis=-1)


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an MPO agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, or a `Box` with finite bounds, which actions are clipped into.
        config: What MPO can be told.

    Raises:
        InputError: The action space is another, or the torso has a memory or does not fit the observations.
    """
    parts = make_parts(observation_space, action_space, config)
    return stochastic_policy.agent(parts.policy, functools.partial(init, parts), functools.partial(update, parts))


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    space = exploration.box_or_discrete(action_space, "mpo")
    return Parts(
        config=config,
        action_space=space,
        policy=stochastic_policy.make(config, observation_space, space, "mpo", squash=False),
        critics=critics.make(config, observation_space, space),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_torso, key_policy, key_critics = jax.random.split(key, 3)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    params = parts.policy.init(key_torso, key_policy, hyper["initial_log_scale"])
    return State(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),
        opt_state=parts.optimiser(hyper).init(params),
        critics=parts.critics.init(key_critics, hyper),
        duals=trust_region.init(isinstance(parts.action_space, spaces.Box), parts.optimiser(hyper), hyper),
        observation_statistics=parts.policy.init_statistics(parts.config.normalise_observation),
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def choose(parts: Parts, params: Params, observation: PyTree, mask: PyTree | None, key: jax.Array) -> Choices:
    """Returns what the policy may do at normalised observations, leaves `[B, ...]`."""
    if isinstance(parts.action_space, spaces.Discrete):
        return Choices(None, parts.log_policy(params, observation, mask))
    normal, count = parts.normal(params, observation), parts.config.num_samples
    noise = jax.random.normal(key, (normal.loc.shape[0], count, normal.loc.shape[1]))
    sample = normal.loc[:, None] + normal.scale[:, None] * noise
    return Choices(sample, jnp.full(sample.shape[:2], -math.log(count), jnp.float32))


def spread(parts: Parts, observation: PyTree, choices: Choices) -> tuple[PyTree, jax.Array | None]:
    """Returns what critics are shown of choices in B states: each action, as it is taken, beside its observation.

    Leaves `[B * A, ...]`; of a Discrete space, all of whose actions critics look at, the observations as they are.
    """
    if choices.sample is None:
        return observation, None
    assert isinstance(parts.action_space, spaces.Box)
    count = choices.sample.shape[1]
    action = parts.policy.head.to_action(choices.sample.reshape(-1, choices.sample.shape[-1]))
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), observation)
    return repeated, heads.to_unit(parts.action_space, action)


def lowest(expected: Returns, choices: Choices) -> Returns:
    """Of each choice, `[B, A]`, the lowest of what E critics expect of it; leaves `[E, B * A, 1, K]`, `[E, B, A, K]`.

    Returns:
        Leaves `[B, A, K]`.
    """
    return jax.tree.map(lambda leaf: leaf.reshape(*choices.log_weight.shape, -1), critics.lowest(expected))


def expected_target(folded: NStep, expected: Returns, choices: Choices) -> Target:
    """Targets of policy evaluation, a mixture over what the target policy may do at the successor.

        G = R + gamma^m Q'(s', a'),   a' ~ pi'(.|s')

    Args:
        folded: R and gamma^m of B windows; gamma^m is 0 after a termination.
        expected: Of the choices at the successors, leaves `[B, A, K]`.
        choices: Those of the target policy there.

    Returns:
        A * K atoms, whose mean has the mean of Q'(s', .).
    """
    atoms = value_learning.bootstrapped(folded, expected.atoms)
    return action_values.mixture(atoms, choices.log_weight[..., None] + expected.log_weights)


def fit_normal(
    normal: Normal, target: Normal, sample: jax.Array, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The M-step in a Box, mean and scale apart (Abdolmaleki et al. 2018b, section 4.2, equations 4 and 5).

        L = -sum_a q(a|s) (log N(a; mu, sigma') + log N(a; mu', sigma))

    Args:
        normal: mu and sigma, of the policy.
        target: mu' and sigma', of the target policy.
        sample: a, float `[B, A, D]`.
        weights: q, float `[B, A]`.

    Returns:
        L, float `[B]`, and the divergences of `distributions.normal_divergences`, float `[B]`.
    """
    chex.assert_rank([sample, weights, normal.loc, target.loc], [3, 2, 2, 2])
    log_prob = Normal(normal.loc, target.scale).log_prob(sample) + Normal(target.loc, normal.scale).log_prob(sample)
    return -jnp.sum(weights * log_prob, axis=-1), distributions.normal_divergences(target, normal)


def fit_categorical(
    log_policy: jax.Array, log_target: jax.Array, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The M-step in a Discrete space (Abdolmaleki et al. 2018, section 4.2).

        L = -sum_a q(a|s) log pi(a|s),   KL(pi' || pi) = sum_a pi'(a|s) (log pi'(a|s) - log pi(a|s))

    Args:
        log_policy: log pi(.|s), float `[B, A]`.
        log_target: log pi'(.|s), float `[B, A]`.
        weights: q, float `[B, A]`.

    Returns:
        L, float `[B]`, and the divergence in nats, of `policy`, float `[B]`.
    """
    chex.assert_rank(weights, 2)
    chex.assert_equal_shape([log_policy, log_target, weights])
    divergence = jnp.sum(jnp.exp(log_target) * (log_target - log_policy), axis=-1)
    return -jnp.sum(weights * log_policy, axis=-1), {"policy": divergence}


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Learns from one sample of windows `[n, B]`: the policy and its dual variables, then critics, then the targets."""
    config, hyper = parts.config, state.hyperparameters
    key_policy, key_critics = jax.random.split(key)
    rows = replayed.read(batch, hyper["discount"], state.observation_statistics)
    state = dataclasses.replace(state, updates=state.updates + 1)
    learnt_policy, metrics = update_policy(parts, state, rows, key_policy)
    learner, learnt = update_critics(parts, state, rows, key_critics)
    target_params = optimisers.follow(
        state.target_params, learnt_policy.params, state.updates, config.target_period, hyper["target_rate"]
    )
    state = dataclasses.replace(learnt_policy, critics=learner, target_params=target_params)
    priorities = replayed.priorities(learnt, rows.valid, config.distribution)
    return state, Update({**critics.metrics(learnt), **metrics}, priorities)


def update_critics(
    parts: Parts, state: State, rows: replayed.Transitions, key: jax.Array
) -> tuple[critics.State, replayed.Learnt]:
    """Takes one step on the loss of the critics, and one of their targets."""
    key_choices, key_update = jax.random.split(key)
    choices = choose(parts, state.target_params, rows.successor, rows.successor_mask, key_choices)
    return parts.critics.update(
        state.critics,
        (rows.observation, rows.action),
        spread(parts, rows.successor, choices),
        lambda expected: expected_target(rows.folded, lowest(expected, choices), choices),
        rows.weights,
        state.hyperparameters,
        state.updates,
        key_update,
    )


def update_policy(
    parts: Parts, state: State, rows: replayed.Transitions, key: jax.Array
) -> tuple[State, dict[str, jax.Array]]:
    """Takes the E-step, one step of Adam in the M-step, and one on the dual variables (`trust_region`).

    L(pi) = E_s[L + sum_i alpha_i KL_i]
    """
    hyper, duals = state.hyperparameters, state.duals.values
    choices = choose(parts, state.target_params, rows.observation, rows.action_mask, key)
    no_targets = parts.config.batch_norm
    expected = parts.critics.returns(
        state.critics.params if no_targets else state.critics.target_params,
        state.critics.statistics,
        *spread(parts, rows.observation, choices),
        hyper,
    )
    values = lowest(expected, choices).values
    weights, improvement = trust_region.improve(values, choices.log_weight, duals["improvement"])

    def loss(params: Params) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
        if choices.sample is None:
            log_policy = parts.log_policy(params, rows.observation, rows.action_mask)
            losses, divergences = fit_categorical(log_policy, choices.log_weight, weights)
        else:
            normal, target = (parts.normal(each, rows.observation) for each in (params, state.target_params))
            losses, divergences = fit_normal(normal, target, choices.sample, weights)
        penalties = trust_region.penalty(duals, divergences)
        return jnp.mean(rows.weights * (losses + penalties)), (jnp.mean(losses), divergences)

    gradients, (policy_loss, divergences) = jax.grad(loss, has_aux=True)(state.params)
    params, opt_state = optimisers.descend(
        parts.optimiser(hyper), gradients, state.opt_state, state.params, hyper["learning_rate"]
    )
    divergences = {"improvement": improvement, **divergences}
    tightened = trust_region.tighten(parts.optimiser(hyper), state.duals, divergences, hyper, rows.weights)
    metrics = {"policy_loss": policy_loss, **trust_region.metrics(duals, divergences)}
    return dataclasses.replace(state, params=params, opt_state=opt_state, duals=tightened), metrics
