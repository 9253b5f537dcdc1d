"""IMPALA: V-trace corrects for an actor that lags behind (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

Here the lag is part of the state: `actor_params` act, and are brought up to date every `actor_period` updates. Actors
elsewhere may lag as they like, since rows keep the log-probs that they were acted with.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents import actor_critic, optimisers, returns
from rollax.agents.actor_critic import Memory, Params, Parts
from rollax.agents.base import Agent, Decision, Rollout, Update, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What IMPALA can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 6e-4
    """Step size of Adam at the start."""
    actor_period: int = 4
    """Updates from one copy of the learnt policy to the actor to the next; 1: it does not lag."""
    trace_decay: float = 1.0
    """lambda of V-trace."""
    clip_rho: float = 1.0
    """rho_bar, the largest weight of a temporal-difference error."""
    clip_policy_rho: float = 1.0
    """The largest weight of a step in the policy's gradient."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    actor_critic.check(config)
    require_each(config, ("trace_decay",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("clip_rho", "clip_policy_rho"), lambda value: value > 0, "must be above 0")
    require_each(config, ("entropy_coefficient",), lambda value: value >= 0, "must not be negative")
    require_each(config, ("actor_period",), lambda value: value >= 1, "must be at least 1")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(actor_critic.State):
    """The whole state of an IMPALA agent."""

    actor_params: Params  # what acts


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an IMPALA agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What IMPALA can be told.

    Raises:
        InputError: IMPALA cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update, init, act_with)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "impala", keeps=["log_prob"])


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    state = actor_critic.init(parts, key, hyperparameters)
    return State(**vars(state), actor_params=jax.tree.map(jnp.copy, state.params))


def act_with(
    parts: Parts, state: State, memory: Memory, timestep: TimeStep, noise: Any, explore: bool = True
) -> tuple[Memory, Decision]:
    """Samples actions of the lagging policy, or takes the most likely ones of the newest where `explore` is False."""
    if explore:
        state = dataclasses.replace(state, params=state.actor_params)
    return actor_critic.act_with(parts, state, memory, timestep, noise, explore)


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on a rollout `[T, N]`, and brings the actor up to date where it is time."""
    state, update = actor_critic.learn_once(parts, state, rollout, functools.partial(loss, parts))
    actor_params = optimisers.follow(
        state.actor_params, state.params, state.updates, period=parts.config.actor_period, rate=1.0
    )
    return dataclasses.replace(state, actor_params=actor_params), update


def loss(
    parts: Parts, params: Params, state: State, rollout: Rollout, reward: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy, value and entropy losses of a rollout.

        L = -mean(A log pi(a|s)) + c_v mean((V - v)^2) / 2 - c_e mean(entropy)

    with the advantages A and the targets v of `returns.vtrace`, through neither of which gradients pass.
    """
    hyper = state.hyperparameters
    seen = actor_critic.evaluate(parts, params, state, rollout)
    log_prob = seen.policy.log_prob(rollout.extras["sample"])
    log_ratio = log_prob - rollout.extras["log_prob"]
    corrections = {name: hyper[name] for name in ("trace_decay", "clip_rho", "clip_policy_rho")}
    estimate = functools.partial(returns.vtrace, log_ratio=log_ratio, **corrections)
    advantage, target = lax.stop_gradient(actor_critic.advantages(estimate, hyper, reward, seen, rollout))
    policy_loss = -jnp.mean(advantage * log_prob)
    value_loss, entropy = jnp.mean(actor_critic.value_loss(seen.value, target)), jnp.mean(seen.policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "rho": jnp.mean(jnp.exp(log_ratio)),
        "clipped_share": jnp.mean(log_ratio > jnp.log(hyper["clip_rho"])),
    }
