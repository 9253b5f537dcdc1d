"""Replayed windows as agents that learn from single transitions read them, n-step returns folded."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.agents import normalisation, returns
from rollax.agents.base import Agent, Replayed
from rollax.agents.returns import NStep
from rollax.envs.base import PyTree

PRIORITY_FLOOR = 1e-6
"""Added to every priority, so that no row is lost for good."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Transitions:
    """B transitions over n steps, or fewer where the episode ended before."""

    observation: PyTree  # leaves [B, ...], normalised
    action: jax.Array  # [B, *action_shape], as the environment took it
    action_mask: PyTree | None  # bool [B, num_actions], legal at `observation`; None: all are
    folded: NStep  # the return up to the successor
    successor: PyTree  # leaves [B, ...], normalised: what truly followed, before any reset
    successor_mask: PyTree | None  # bool [B, num_actions], legal there
    weights: jax.Array  # float32 [B], importance weights, 0 where there is nothing to learn
    valid: jax.Array  # bool [B], where there is


def read(sample: Replayed, discount: jax.Array, statistics: normalisation.Statistics | None = None) -> Transitions:
    """Returns the transitions that start windows `[n, B]`.

    Args:
        sample: From a buffer.
        discount: gamma, a scalar.
        statistics: What observations are normalised by; None: they are not.
    """
    rows = sample.experience
    folded = returns.n_step(rows.reward, rows.terminated, rows.truncated, discount, sample.mask)
    successor, successor_mask = returns.at_last((rows.final_observation, rows.final_action_mask), folded.last)
    observation, action, mask, valid = jax.tree.map(
        lambda leaf: leaf[0], (rows.observation, rows.action, rows.action_mask, sample.mask)
    )
    return Transitions(
        observation=normalisation.normalise(statistics, observation),
        action=action,
        action_mask=mask,
        folded=folded,
        successor=normalisation.normalise(statistics, successor),
        successor_mask=successor_mask,
        weights=sample.weights * valid,
        valid=valid,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learnt:
    """What an update of action values was made of, means over the ensemble where there is one."""

    losses: jax.Array  # float32 [B], of each transition, unweighted
    td_error: jax.Array  # float32 [B], mean of the target minus that of the prediction
    values: jax.Array  # float32 [B], Q(s, a) of the actions taken


def priorities(learnt: Learnt, valid: jax.Array, distribution: str) -> jax.Array:
    """Returns new priorities of transitions, float32 `[B]`.

    Args:
        learnt: What was made of them.
        valid: Which there were, bool `[B]`; the others get NaN, which leaves a priority as it is.
        distribution: What is learnt of returns; "none" takes the sizes of errors, any other the losses.
    """
    error = jnp.abs(learnt.td_error) if distribution == "none" else learnt.losses
    return jnp.where(valid, error + PRIORITY_FLOOR, jnp.nan)


def make_agent(
    parts: Any,
    init: Callable[..., Any],
    noise: Callable[..., Any],
    act_with: Callable[..., Any],
    update: Callable[..., Any],
) -> Agent:
    """Returns an agent without a memory that learns from transitions.

    Args:
        parts: The agent's static pieces.
        init: As `Agent.init`, with the parts before its other arguments, as the next three.
        noise: As `Agent.noise`.
        act_with: As `Agent.act_with`.
        update: As `Agent.update`.
    """
    return Agent(
        init=functools.partial(init, parts),
        init_memory=lambda num_envs: (),
        noise=functools.partial(noise, parts),
        act_with=functools.partial(act_with, parts),
        observe=normalisation.observe,
        update=functools.partial(update, parts),
        consumes="transitions",
    )
