"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Its objective is the clipped one, the one with an adaptive KL penalty, or that of discovered policy optimisation (Lu et
al. 2022, https://arxiv.org/abs/2210.05639).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rollax.agents import actor_critic, distributions, minibatches, optimisers
from rollax.agents.actor_critic import Params, Parts
from rollax.agents.base import Agent, Hyperparameters, Rollout, Update, require, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree, select


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What PPO can be told. The floats are hyperparameters: they live in the state and may be traced."""

    objective: Literal["clip", "kl", "dpo"] = "clip"
    """What the policy maximises: the clipped objective, the one with a KL penalty, or the discovered one."""
    gae_lambda: float = 0.95
    """lambda of the generalised advantage estimates."""
    clip_epsilon: float = 0.2
    """How far the probability ratio may leave 1 before its gradient stops, of objective "clip"."""
    clip_schedule: str = "constant"
    """How `clip_epsilon` falls over `horizon`."""
    clip_value: bool = False
    """Whether the value loss is clipped too: values that moved more than `clip_epsilon` get no gradient."""
    initial_kl_coefficient: float = 1.0
    """Weight of the KL penalty at the start, of objective "kl"; it then follows `target_kl`."""
    drift_alpha: float = 2.0
    """alpha of objective "dpo", for advantages above 0."""
    drift_beta: float = 0.6
    """beta of objective "dpo", for advantages below 0."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    entropy_schedule: str = "constant"
    """How `entropy_coefficient` falls over `horizon`."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches per pass; must divide num_envs * num_steps, and num_envs where the torso has a memory."""
    stop_at_target_kl: bool = False
    """Whether a rollout's remaining minibatches are skipped once the policy has moved by `target_kl`."""
    target_kl: float = 0.02
    """KL divergence from the policy that acted, in nats, that `stop_at_target_kl` stops at and a penalty aims at."""
    normalise_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over which samples advantages are shifted and scaled to mean 0 and standard deviation 1."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train on rollouts of `num_steps` x `num_envs`."""
    actor_critic.check(config)
    require_each(
        config,
        ("target_kl", "initial_kl_coefficient", "drift_alpha", "drift_beta"),
        lambda value: value > 0,
        "must be above 0",
    )
    require_each(config, ("gae_lambda",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("clip_epsilon", "entropy_coefficient"), lambda value: value >= 0, "must not be negative")
    choices = {"normalise_advantage": ("minibatch", "batch", "none"), "objective": ("clip", "kl", "dpo")}
    for name, names in choices.items():
        value = getattr(config, name)
        require(value in names, f"agent.{name}", value, f"must be one of {', '.join(names)}")
    for name in ("clip_schedule", "entropy_schedule"):
        optimisers.schedule(getattr(config, name), f"agent.{name}")
    minibatches.check(config.num_epochs, config.num_minibatches, num_steps, num_envs, config.memory)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(actor_critic.State):
    """The whole state of a PPO agent."""

    kl_coefficient: jax.Array | None  # float32 [], weight of the KL penalty; None unless that is the objective


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One rollout with its targets, as M sequences of L steps (`minibatches.sequences`)."""

    observation: PyTree  # [L, M, *observation_shape], normalised
    is_first: jax.Array  # bool [L, M]
    action_mask: PyTree | None  # bool [L, M, num_actions]
    sample: jax.Array  # [L, M, ...], what the policy head sampled
    log_prob: jax.Array  # float32 [L, M], under the policy that acted
    policy: Any  # the distribution [L, M] of the policy that acted; None unless a KL penalty needs it
    value: jax.Array  # float32 [L, M, R], of the value function that acted
    advantage: jax.Array  # float32 [L, M]
    target: jax.Array  # float32 [L, M, R], lambda-returns


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a PPO agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What PPO can be told.

    Raises:
        InputError: PPO cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update, init)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "ppo")


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    state = actor_critic.init(parts, key, hyperparameters)
    coefficient = state.hyperparameters["initial_kl_coefficient"] if parts.config.objective == "kl" else None
    return State(**vars(state), kl_coefficient=coefficient)


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Learns from one rollout `[T, N]`: `num_epochs` passes over it in `num_minibatches` random minibatches each.

    Minibatches are of single steps, or where the torso has a memory of whole environments.
    """
    config = parts.config
    bonus, reward = actor_critic.rewards(parts, state, rollout)
    memory, batch = prepare(parts, state, rollout, reward)
    hyper = scheduled(config, state)
    optimiser = parts.optimiser(hyper)

    def learn(carry: Any, memory: Any, minibatch: Batch) -> tuple[Any, Any]:
        learnt, stopped = carry
        after, metrics = optimisers.step(
            optimiser, functools.partial(loss, parts), *learnt, hyper["learning_rate"], hyper, memory, minibatch
        )
        if config.stop_at_target_kl:
            stopped = stopped | (metrics["approximate_kl"] > hyper["target_kl"])
            after = select(stopped, learnt, after)
        return (after, stopped), metrics

    carry = ((state.params, state.opt_state), jnp.zeros((), jnp.bool_))
    ((params, opt_state), _), metrics = minibatches.passes(
        learn, carry, memory, batch, key, config.num_epochs, config.num_minibatches
    )
    metrics = {**actor_critic.metrics(metrics, reward), "learning_rate": hyper["learning_rate"]}
    coefficient = state.kl_coefficient
    if coefficient is not None:
        metrics |= {"kl": jnp.mean(divergence(parts, params, memory, batch)), "kl_coefficient": coefficient}
        coefficient = adapted(coefficient, metrics["kl"], hyper["target_kl"])
    state = dataclasses.replace(
        state,
        params=params,
        opt_state=opt_state,
        bonus=bonus,
        updates=state.updates + 1,
        kl_coefficient=coefficient,
    )
    return state, Update(metrics)


def scheduled(config: Config, state: State) -> Hyperparameters:
    """Returns the numbers of this update: those with a schedule are scaled by it, and `kl_coefficient` where it is."""
    progress = optimisers.progress(state.updates, state.hyperparameters["horizon"])
    schedules = {
        "learning_rate": config.learning_rate_schedule,
        "clip_epsilon": config.clip_schedule,
        "entropy_coefficient": config.entropy_schedule,
    }
    scaled = {
        name: state.hyperparameters[name] * optimisers.schedule(schedule, f"agent.{name}")(progress)
        for name, schedule in schedules.items()
    }
    penalty = {} if state.kl_coefficient is None else {"kl_coefficient": state.kl_coefficient}
    return {**state.hyperparameters, **scaled, **penalty}


def prepare(parts: Parts, state: State, rollout: Rollout, reward: jax.Array) -> tuple[Any, Batch]:
    """Returns `Memory.torsos` before each sequence, and log-probs, advantages and targets, from one forward pass.

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
    if parts.config.normalise_advantage == "batch":
        advantage = actor_critic.standardised(advantage)
    sample = rollout.extras["sample"]
    batch = Batch(
        acted.observation,
        rollout.is_first,
        rollout.action_mask,
        sample,
        acted.policy.log_prob(sample),
        acted.policy if parts.config.objective == "kl" else None,
        acted.value,
        advantage,
        target,
    )
    return acted.memory, minibatches.sequences(parts.torso, batch)


def loss(
    parts: Parts, params: Params, hyper: Hyperparameters, memory: Any, batch: Batch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy, value and entropy losses of one minibatch, whose sequences start from `memory`.

        L = -mean(J) + c_v mean((V - target)^2) / 2 - c_e mean(entropy)

    J is `clipped` or `discovered`, or with ratio = pi(a|s) / pi_old(a|s) and the coefficient beta of the penalty

        J = ratio A - beta KL(pi_old || pi)

    With `clip_value` the square is the larger one of V and of V_old + clip(V - V_old, -eps, eps).
    """
    config = parts.config
    features, value, _ = parts.forward(params, memory, batch.observation, batch.is_first)
    policy = parts.policy(params, features, batch.action_mask)
    log_ratio = policy.log_prob(batch.sample) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    epsilon, advantage = hyper["clip_epsilon"], batch.advantage
    if config.normalise_advantage == "minibatch":
        advantage = actor_critic.standardised(advantage)
    if config.objective == "clip":
        objective = clipped(ratio, advantage, epsilon)
    elif config.objective == "dpo":
        objective = discovered(log_ratio, advantage, hyper["drift_alpha"], hyper["drift_beta"])
    else:
        divergence = distributions.kl_divergence(batch.policy, policy)
        objective = ratio * advantage - hyper["kl_coefficient"] * divergence
    policy_loss = -jnp.mean(objective)
    value_loss = actor_critic.value_loss(value, batch.target)
    if config.clip_value:
        near = batch.value + jnp.clip(value - batch.value, -epsilon, epsilon)
        value_loss = jnp.maximum(value_loss, actor_critic.value_loss(near, batch.target))
    value_loss, entropy = jnp.mean(value_loss), jnp.mean(policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > epsilon),
    }


def clipped(ratio: jax.Array, advantage: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """The clipped objective (Schulman et al. 2017, equation 7), of arrays of one shape.

    J = min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)
    """
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon) * advantage)


def discovered(
    log_ratio: jax.Array, advantage: jax.Array, alpha: jax.Array | float, beta: jax.Array | float
) -> jax.Array:
    """The objective of discovered policy optimisation (Lu et al. 2022, section 5), of arrays of one shape.

    J = ratio A - drift
    drift = relu((ratio - 1) A - alpha tanh((ratio - 1) A / alpha))      where A >= 0
            relu(log(ratio) A - beta tanh(log(ratio) A / beta))          elsewhere
    """
    ratio = jnp.exp(log_ratio)

    def beyond(change: jax.Array, scale: jax.Array | float) -> jax.Array:
        return jax.nn.relu(change - scale * jnp.tanh(change / scale))

    upwards, downwards = beyond((ratio - 1.0) * advantage, alpha), beyond(log_ratio * advantage, beta)
    return ratio * advantage - jnp.where(advantage >= 0, upwards, downwards)


def divergence(parts: Parts, params: Params, memory: Any, batch: Batch) -> jax.Array:
    """Returns KL(pi_old || pi) of the policy that acted from that of `params`, in nats, float32 `[L, M]`."""
    features, _, _ = parts.forward(params, memory, batch.observation, batch.is_first)
    return distributions.kl_divergence(batch.policy, parts.policy(params, features, batch.action_mask))


def adapted(coefficient: jax.Array, divergence: jax.Array, target: jax.Array) -> jax.Array:
    """Returns the coefficient of the KL penalty after an update that moved the policy by `divergence`.

    Twice what it was beyond 1.5 times the target, half of it under the target / 1.5 (Schulman et al. 2017, section 4).
    """
    factor = jnp.where(divergence > 1.5 * target, 2.0, jnp.where(divergence < target / 1.5, 0.5, 1.0))
    return coefficient * factor
