"""Advantage actor-critic (A2C), the synchronous form of A3C (Mnih et al. 2016, https://arxiv.org/abs/1602.01783)."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents import actor_critic
from rollax.agents.actor_critic import Params, Parts, State
from rollax.agents.base import Agent, Rollout, Update, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What A2C can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 7e-4
    """Step size of Adam at the start."""
    gae_lambda: float = 1.0
    """lambda of the generalised advantage estimates; 1 makes them n-step returns up to the end of the rollout."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    normalise_advantage: bool = False
    """Whether a rollout's advantages are shifted and scaled to mean 0 and standard deviation 1."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    actor_critic.check(config)
    require_each(config, ("gae_lambda",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("entropy_coefficient",), lambda value: value >= 0, "must not be negative")


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an A2C agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What A2C can be told.

    Raises:
        InputError: A2C cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "a2c")


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on a rollout `[T, N]`."""
    return actor_critic.learn_once(parts, state, rollout, functools.partial(loss, parts))


def loss(
    parts: Parts, params: Params, state: State, rollout: Rollout, reward: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy, value and entropy losses of a rollout.

        L = -mean(A log pi(a|s)) + c_v mean((V - G)^2) / 2 - c_e mean(entropy)

    with generalised advantage estimates A and lambda-returns G, through neither of which gradients pass.
    """
    hyper = state.hyperparameters
    seen = actor_critic.evaluate(parts, params, state, rollout)
    estimate = actor_critic.generalised_advantage(hyper["gae_lambda"])
    advantage, target = lax.stop_gradient(actor_critic.advantages(estimate, hyper, reward, seen, rollout))
    if parts.config.normalise_advantage:
        advantage = actor_critic.standardised(advantage)
    policy_loss = -jnp.mean(advantage * seen.policy.log_prob(rollout.extras["sample"]))
    value_loss, entropy = jnp.mean(actor_critic.value_loss(seen.value, target)), jnp.mean(seen.policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
