"""Running statistics that scale observations and rewards, exact in their counts and merged in parallel."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rollax.agents.base import Rollout
from rollax.envs.base import PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """Count, mean and sum of squared deviations of all samples seen so far, for each number of a PyTree."""

    count: jax.Array  # float32 [], samples
    mean: PyTree  # float32 leaves [*shape]
    squared_deviation: PyTree  # float32 leaves [*shape], sum of (x - mean)^2


def init(example: PyTree) -> Statistics:
    """Returns the statistics of no samples, of the shapes of `example`; they normalise to the sample itself."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32), example)
    return Statistics(jnp.zeros((), jnp.float32), zeros, zeros)


def merge(statistics: Statistics, samples: PyTree) -> Statistics:
    """Returns the statistics with a batch of samples added (Chan, Golub and LeVeque 1983).

    Args:
        statistics: So far.
        samples: Leaves `[T, N, *shape]`: T * N samples.
    """
    first = jax.tree.leaves(samples)[0]
    added = float(first.shape[0] * first.shape[1])
    count = statistics.count + added

    def merge_mean(mean: jax.Array, leaf: jax.Array) -> jax.Array:
        return mean + (jnp.mean(leaf.astype(jnp.float32), axis=(0, 1)) - mean) * (added / count)

    def merge_deviation(squared_deviation: jax.Array, mean: jax.Array, leaf: jax.Array) -> jax.Array:
        leaf = leaf.astype(jnp.float32)
        batch_mean = jnp.mean(leaf, axis=(0, 1))
        within = jnp.sum(jnp.square(leaf - batch_mean), axis=(0, 1))
        between = jnp.square(batch_mean - mean) * (statistics.count * added / count)
        return squared_deviation + within + between

    return Statistics(
        count=count,
        mean=jax.tree.map(merge_mean, statistics.mean, samples),
        squared_deviation=jax.tree.map(merge_deviation, statistics.squared_deviation, statistics.mean, samples),
    )


def standard_deviation(statistics: Statistics) -> PyTree:
    """Returns the standard deviation of the samples, 1 before the first."""

    def deviation(squared_deviation: jax.Array) -> jax.Array:
        variance = squared_deviation / jnp.maximum(statistics.count, 1.0)
        return jnp.where(statistics.count > 0, jnp.sqrt(variance + 1e-8), 1.0)

    return jax.tree.map(deviation, statistics.squared_deviation)


def normalise(statistics: Statistics | None, samples: PyTree, limit: float = 10.0) -> PyTree:
    """Returns `(x - mean) / std`, clipped to `limit` standard deviations, for leaves `[..., *shape]`.

    Without statistics it returns the samples as they are.
    """
    if statistics is None:
        return samples

    def scale(leaf: jax.Array, mean: jax.Array, deviation: jax.Array) -> jax.Array:
        return jnp.clip((leaf.astype(jnp.float32) - mean) / deviation, -limit, limit)

    return jax.tree.map(scale, samples, statistics.mean, standard_deviation(statistics))


def observe(state: Any, rollout: Rollout) -> Any:
    """Returns an agent's state after a rollout: it counts the environment steps and takes in their observations.

    Args:
        state: A dataclass with `env_steps`, and `observation_statistics`, which are None where nothing is normalised.
        rollout: Leaves `[T, N, ...]`.
    """
    statistics = state.observation_statistics
    if statistics is not None:
        statistics = merge(statistics, rollout.observation)
    return dataclasses.replace(
        state, observation_statistics=statistics, env_steps=state.env_steps + rollout.reward.size
    )
