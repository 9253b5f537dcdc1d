"""Advantage-weighted regression from replayed windows (Peng et al. 2019, https://arxiv.org/abs/1910.00177)."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from rollax.agents import actor_critic
from rollax.agents.actor_critic import Memory, Params, Parts, State
from rollax.agents.base import Agent, Replayed, Rollout, Update, require_each
from rollax.envs import spaces
from rollax.envs.base import PyTree


@dataclasses.dataclass(frozen=True)
class Config(actor_critic.Config):
    """What AWR can be told. The floats are hyperparameters: they live in the state and may be traced."""

    gae_lambda: float = 0.95
    """lambda of the returns."""
    temperature: float = 1.0
    """beta, in units of advantage: the smaller, the fewer actions are imitated."""
    weight_limit: float = 20.0
    """Largest weight of a step."""
    normalise_advantage: bool = True
    """Whether a batch's advantages are shifted and scaled to mean 0 and standard deviation 1."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train."""
    actor_critic.check(config)
    require_each(config, ("gae_lambda",), lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("temperature", "weight_limit"), lambda value: value > 0, "must be above 0")


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns an AWR agent.

    It learns from replayed windows: `replay.sequence`, or `replay.prioritised(length=...)`. Rows keep the sample that
    the action stands for, and where the torso has a memory that memory as it was before the row.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What AWR can be told.

    Raises:
        InputError: AWR cannot act in the action space, or the torso does not fit the observations.
    """
    return actor_critic.make_agent(make_parts(observation_space, action_space, config), update, consumes="sequences")


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    return actor_critic.make_parts(observation_space, action_space, config, "awr", keeps=["memory"])


def update(parts: Parts, state: State, batch: Replayed, key: jax.Array) -> tuple[State, Update]:
    """Takes one step on a sample of windows `[L, B]`."""
    batch = jax.tree.map(jnp.asarray, batch)  # a loop of one's own may pass NumPy arrays
    rows = batch.experience
    stored = jax.tree.map(lambda leaf: leaf[0], rows.extras["memory"])
    windows = dataclasses.replace(rows, first_memory=Memory(stored, exploration=(), discounted_sum=None))
    return actor_critic.learn_once(parts, state, windows, functools.partial(loss, parts, batch.mask, batch.weights))


def loss(
    parts: Parts,
    mask: jax.Array,
    weights: jax.Array,
    params: Params,
    state: State,
    windows: Rollout,
    reward: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy and value losses of windows, weighted means over the rows that count.

        L = -mean(min(exp(A / beta), limit) log pi(a|s)) + c_v mean((V - G)^2) / 2

    with lambda-returns G up to the end of the episode or of the window, and A = G - V(s), through neither of which
    gradients pass.

    Args:
        parts: The static pieces.
        mask: Rows that count, bool `[L, B]`.
        weights: Importance weights, float32 `[B]`.
        params: Of the agent.
        state: Of the agent.
        windows: Leaves `[L, B, ...]`.
        reward: float32 `[L, B, R]`, of `actor_critic.rewards`.
    """
    hyper = state.hyperparameters
    seen = actor_critic.evaluate(parts, params, state, windows)
    estimate = actor_critic.generalised_advantage(hyper["gae_lambda"])
    advantage, target = lax.stop_gradient(actor_critic.advantages(estimate, hyper, reward, seen, windows))
    mean = functools.partial(actor_critic.masked_mean, mask=mask)
    if parts.config.normalise_advantage:
        advantage = actor_critic.standardised(advantage, mask)
    weight = jnp.minimum(jnp.exp(advantage / hyper["temperature"]), hyper["weight_limit"])
    policy_loss = -mean(weights * weight * seen.policy.log_prob(windows.extras["sample"]))
    value_loss = mean(weights * actor_critic.value_loss(seen.value, target))
    total = policy_loss + hyper["value_coefficient"] * value_loss
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": mean(seen.policy.entropy()),
        "weight": mean(weight),
    }
