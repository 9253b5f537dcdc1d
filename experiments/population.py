"""Population-based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846), between the chunks of a job.

At an exchange the worst members take over the agents of the best (exploit) and multiply each of the swept numbers by a
random factor (explore). A member moves as a whole: each of its seeds takes over the agent of that seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rollax.experiments import statistics
from rollax.experiments.trainer import TrainState


@dataclasses.dataclass(frozen=True)
class Population:
    """How the members of one job are exchanged; lane m * S + s is seed s of member m."""

    seeds: int  # S, of each member
    period: int  # evaluations from one exchange to the next
    quantile: float  # share of the members that is replaced, and that is copied
    factors: tuple[float, float]
    bounds: Mapping[str, Any]  # of each swept number, (low, high)
    seed: int  # of the draws


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What an exchange does to the L lanes of a job."""

    source: NDArray[np.int64]  # [L], the lane whose agent each lane takes over; its own where it keeps it
    numbers: dict[str, NDArray[np.float32]]  # name to [L], the hyperparameters after it


def exchange(
    population: Population, scores: NDArray[np.float64], numbers: Mapping[str, NDArray[np.float32]], chunk: int
) -> Exchange:
    """Returns who copies whom after a chunk, as a function of its arguments alone, so that a resumed run does the same.

    Args:
        population: The settings.
        scores: `[L]`, the last evaluation's mean return of each lane; NaN is worse than any number.
        numbers: The swept hyperparameters now, `[L]` each.
        chunk: The number of the chunk.
    """
    by_member = statistics.iqm(scores.reshape(-1, population.seeds), axis=1)
    members = len(by_member)
    order = np.argsort(np.where(np.isnan(by_member), -np.inf, by_member), kind="stable")
    count = max(1, int(population.quantile * members))
    generator = np.random.default_rng([population.seed, chunk])
    parent = np.arange(members)
    worst = order[:count]
    parent[worst] = generator.choice(order[-count:], count)
    after = {}
    for name, values in numbers.items():
        of_member = values.reshape(-1, population.seeds)[:, 0].astype(np.float64)
        changed = of_member[parent]
        changed[worst] *= generator.choice(population.factors, count)
        low, high = population.bounds[name]
        changed[worst] = np.clip(changed[worst], low, high)
        after[name] = np.repeat(changed, population.seeds).astype(np.float32)
    source = (parent[:, None] * population.seeds + np.arange(population.seeds)).ravel()
    return Exchange(source, after)


def apply(state: TrainState, exchanged: Exchange) -> TrainState:
    """Returns the state of all lanes after an exchange: agents are copied and changed, all else goes on as it was.

    Args:
        state: Leaves `[total, ...]`, on any devices; lanes beyond L are for padding and stay.
        exchanged: From `exchange`.
    """
    total = state.failed.flag.shape[0]
    source = np.arange(total)
    source[: len(exchanged.source)] = exchanged.source

    def copy(agent: Any, failed: Any, source: jax.Array, numbers: dict[str, jax.Array]) -> Any:
        agent, failed = jax.tree.map(lambda leaf: leaf[source], (agent, failed))
        hyperparameters = dict(agent.hyperparameters)
        for name, values in numbers.items():
            hyperparameters[name] = hyperparameters[name].at[: len(values)].set(values)
        return dataclasses.replace(agent, hyperparameters=hyperparameters), failed

    places = jax.tree.map(lambda leaf: leaf.sharding, (state.agent, state.failed))
    numbers = {name: jnp.asarray(values) for name, values in exchanged.numbers.items()}
    agent, failed = jax.jit(copy, out_shardings=places)(state.agent, state.failed, jnp.asarray(source), numbers)
    return dataclasses.replace(state, agent=agent, failed=failed)


def log_rows(exchanged: Exchange, env_steps: int) -> list[dict[str, Any]]:
    """Returns one row of population.csv for each lane: whose agent it goes on with, and its numbers from then on."""
    return [
        {
            "seed": lane,
            "env_steps": env_steps,
            "source": int(source),
            **{name: float(values[lane]) for name, values in exchanged.numbers.items()},
        }
        for lane, source in enumerate(exchanged.source)
    ]


def is_due(population: Population, evaluations: int) -> bool:
    """Returns whether an exchange follows the evaluation with this number, from 1."""
    return evaluations % population.period == 0
