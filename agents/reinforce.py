"""REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696), with a baseline or without."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents import actor_critic, returns
from rollax.agents.actor_critic import Params, Parts, State
from rollax.agents.base import Agent, Rollout, Update, require, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What REINFORCE can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 1e-3
    """Step size of Adam at the start."""
    baseline: bool = True
    """Whether V(s) is learnt and taken off the returns; it also completes returns that are cut off."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    normalise_advantage: bool = True
    """Whether what log-probs are weighted with is shifted and scaled to mean 0 and standard deviation 1."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    actor_critic.check(config)
    require_each(config, ("entropy_coefficient",), lambda value: value >= 0, "must not be negative")
    needs_values = "needs agent.baseline = true, as returns of bonuses never end: set it, or no bonus"
    require(config.baseline or config.bonus == "none", "agent.bonus", config.bonus, needs_values)


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a REINFORCE agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What REINFORCE can be told.

    Raises:
        InputError: REINFORCE cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update)


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "reinforce")


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on a rollout `[T, N]`."""
    return actor_critic.learn_once(parts, state, rollout, functools.partial(loss, parts))


def loss(
    parts: Parts, params: Params, state: State, rollout: Rollout, reward: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy, value and entropy losses of a rollout, means over the K steps that count.

        L = -mean((G - b) log pi(a|s)) + c_v mean((V - G)^2) / 2 - c_e mean(entropy)

    With a baseline b = V(s), and where a time limit or the end of the rollout cuts the rewards off, the discounted
    value of the state reached completes the return G: all steps count. Without one b = 0, V is not learnt, and G is the
    sum of the rewards up to the end of the episode: steps count whose episode ends within the rollout, so rollouts
    should be longer than episodes.
    """
    hyper = state.hyperparameters
    seen = actor_critic.evaluate(parts, params, state, rollout)
    if parts.config.baseline:
        counts = jnp.ones(rollout.ended.shape, jnp.bool_)
        estimate = actor_critic.generalised_advantage(1.0)
        weight, target = actor_critic.advantages(estimate, hyper, reward, seen, rollout)
    else:
        counts = lax.cummax(rollout.ended.astype(jnp.int32), reverse=True) > 0
        nothing = jnp.zeros(rollout.ended.shape)
        weight = returns.lambda_return(reward[..., 0], nothing, rollout.ended, rollout.ended, hyper["discount"], 1.0)
        target = seen.value
    weight, target = lax.stop_gradient((weight, target))
    if parts.config.normalise_advantage:
        weight = actor_critic.standardised(weight, counts)
    mean = functools.partial(actor_critic.masked_mean, mask=counts)
    policy_loss = -mean(weight * seen.policy.log_prob(rollout.extras["sample"]))
    value_loss, entropy = mean(actor_critic.value_loss(seen.value, target)), mean(seen.policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
