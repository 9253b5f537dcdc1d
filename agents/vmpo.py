"""V-MPO, on-policy maximum a posteriori policy optimisation (Song et al. 2020, https://arxiv.org/abs/1909.12238)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.agents import actor_critic, distributions, heads, minibatches, optimisers, trust_region
from rollax.agents.actor_critic import Params, Parts
from rollax.agents.base import Agent, Hyperparameters, Rollout, Update, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What V-MPO can be told. The floats are hyperparameters: they live in the state and may be traced."""

    gae_lambda: float = 0.95
    """lambda of the generalised advantage estimates."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches per pass; must divide num_envs * num_steps, and num_envs where the torso has a memory."""
    epsilon: float = 0.1
    """KL divergence of the weights from equal ones, in nats, that the temperature is learnt for."""
    epsilon_mean: float = 1e-2
    """Bound of the KL divergence that the mean of a Box's actions makes, in nats."""
    epsilon_scale: float = 1e-4
    """Bound of the KL divergence that the scale of a Box's actions makes, in nats."""
    epsilon_policy: float = 1e-2
    """Bound of the KL divergence of the policy of a Discrete or MultiDiscrete space, in nats."""
    dual_learning_rate: float = 1e-2
    """Step size of Adam for the logarithms of the dual variables: the temperature and the penalties."""
    initial_temperature: float = 1.0
    """eta at the start, in units of value."""
    initial_penalty: float = 5.0
    """Weight, at the start, of the KL divergence of the mean, or of the policy of a Discrete space."""
    initial_scale_penalty: float = 5.0
    """Weight, at the start, of the KL divergence of the scale."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train on rollouts of `num_steps` x `num_envs`."""
    actor_critic.check(config)
    trust_region.check(config)
    require_each(config, ("gae_lambda",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    minibatches.check(config.num_epochs, config.num_minibatches, num_steps, num_envs, config.memory)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(actor_critic.State):
    """The whole state of a V-MPO agent."""

    duals: trust_region.Duals


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One rollout with its targets, as M sequences of L steps (`minibatches.sequences`)."""

    observation: PyTree  # [L, M, *observation_shape], normalised
    is_first: jax.Array  # bool [L, M]
    action_mask: PyTree | None  # bool [L, M, num_actions]
    sample: jax.Array  # [L, M, ...], what the policy head sampled
    policy: Any  # the distribution [L, M] of the policy that acted
    advantage: jax.Array  # float32 [L, M]
    target: jax.Array  # float32 [L, M, R], lambda-returns


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a V-MPO agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What V-MPO can be told.

    Raises:
        InputError: V-MPO cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update, init)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "vmpo")


def dual_optimiser() -> optax.GradientTransformation:
    """Adam, without its learning rate, of the dual variables."""
    return optimisers.adam(epsilon=1e-8)


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    state = actor_critic.init(parts, key, hyperparameters)
    of_box = isinstance(parts.head, heads.GaussianHead)
    return State(**vars(state), duals=trust_region.init(of_box, dual_optimiser(), state.hyperparameters))


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Learns from one rollout `[T, N]`: `num_epochs` passes over it in `num_minibatches` random minibatches each.

    The policy that acted is the one that the trust region is around, so it moves once for each rollout. Minibatches are
    of single steps, or where the torso has a memory of whole environments.
    """
    config, hyper = parts.config, state.hyperparameters
    bonus, reward = actor_critic.rewards(parts, state, rollout)
    memory, batch = prepare(parts, state, rollout, reward)
    rate = optimisers.learning_rate(config.learning_rate_schedule, hyper, state.updates)

    def learn(carry: Any, memory: Any, minibatch: Batch) -> tuple[Any, Any]:
        learnt, duals = carry
        learnt, metrics = optimisers.step(
            parts.optimiser(hyper), functools.partial(loss, parts), *learnt, rate, hyper, duals, memory, minibatch
        )
        divergences = {name: metrics[f"kl_{name}"] for name in duals.log}
        return (learnt, trust_region.tighten(dual_optimiser(), duals, divergences, hyper)), metrics

    carry = ((state.params, state.opt_state), state.duals)
    ((params, opt_state), duals), metrics = minibatches.passes(
        learn, carry, memory, batch, key, config.num_epochs, config.num_minibatches
    )
    state = dataclasses.replace(
        state, params=params, opt_state=opt_state, bonus=bonus, updates=state.updates + 1, duals=duals
    )
    return state, Update({**actor_critic.metrics(metrics, reward), "learning_rate": rate})


def prepare(parts: Parts, state: State, rollout: Rollout, reward: jax.Array) -> tuple[Any, Batch]:
    """Returns `Memory.torsos` before each sequence, and the rollout with advantages and targets, from one forward pass.

    Args:
        parts: The static pieces.
        state: Of the agent that acted.
        rollout: Leaves `[T, N, ...]`.
        reward: float32 `[T, N, R]`, of `actor_critic.rewards`.
    """
    hyper = state.hyperparameters
    acted = actor_critic.evaluate(parts, state.params, state, rollout)
    estimate = actor_critic.generalised_advantage(hyper["gae_lambda"])
    advantage, target = actor_critic.advantages(estimate, hyper, reward, acted, rollout)
    sample, mask = rollout.extras["sample"], rollout.action_mask
    batch = Batch(acted.observation, rollout.is_first, mask, sample, acted.policy, advantage, target)
    return acted.memory, minibatches.sequences(parts.torso, batch)


def loss(
    parts: Parts, params: Params, hyper: Hyperparameters, duals: trust_region.Duals, memory: Any, batch: Batch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy and value losses of one minibatch, whose sequences start from `memory`.

        L = -sum(psi log pi(a|s)) + sum_i alpha_i mean(KL_i) + c_v mean((V - G)^2) / 2

    with the weights psi of `weigh`, and the divergences KL_i of pi from the policy that acted and their dual variables
    alpha_i, through which no gradients pass.
    """
    features, value, _ = parts.forward(params, memory, batch.observation, batch.is_first)
    policy = parts.policy(params, features, batch.action_mask)
    weights, improvement = weigh(batch.advantage, duals.values["improvement"])
    policy_loss = -jnp.sum(weights * policy.log_prob(batch.sample))
    divergences = distributions.divergences(batch.policy, policy)
    penalty = jnp.mean(trust_region.penalty(duals.values, divergences))
    value_loss = jnp.mean(actor_critic.value_loss(value, batch.target))
    total = policy_loss + penalty + hyper["value_coefficient"] * value_loss
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": jnp.mean(policy.entropy()),
        **trust_region.metrics(duals.values, {"improvement": improvement, **divergences}),
    }


def weigh(advantage: jax.Array, temperature: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """Weights of the better half of all steps (Song et al. 2020, section 4.1).

        psi = exp(A / eta) / sum(exp(A / eta))   where A is at least the median, and 0 elsewhere

    Args:
        advantage: A, float `[L, M]`.
        temperature: eta, above 0.

    Returns:
        psi, float `[L, M]`, and its KL divergence from equal weights of that half, in nats, float `[]`: the temperature
        that keeps it at epsilon minimises eta epsilon + eta log(mean(exp(A / eta))) over that half.
    """
    flat = advantage.reshape(1, -1)
    better = flat >= jnp.median(flat)
    log_weight = jnp.where(better, -jnp.log(jnp.sum(better)), -jnp.inf)
    weights, divergence = trust_region.improve(flat, log_weight, temperature)
    return weights.reshape(advantage.shape), divergence[0]
