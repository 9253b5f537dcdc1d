"""What matrix products alone allow: the environment steps per second of a learner of which nothing else took time."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from rollax.experiments.sharding import over_seeds, padded, seed_mesh

PAIRS = 32
"""Pairs of products in one compiled call."""
REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Products:
    """Products `[rows, fan_in] @ [fan_in, fan_out]` and as many of their size that a learner computes."""

    rows: int
    fan_in: int
    fan_out: int
    count: float  # for each environment step of one seed


def of_network(rows: int, sizes: Sequence[int], forwards: float, backwards: float) -> list[Products]:
    """Returns the products of a multilayer perceptron.

    Args:
        rows: Those of a batch.
        sizes: Inputs, units of each hidden layer, outputs.
        forwards: Passes forwards for each environment step.
        backwards: Passes backwards. Each takes two products a layer, for its weights and for its inputs, but one for
            the first layer, as nothing needs the gradient of observations.
    """
    layers = enumerate(itertools.pairwise(sizes))
    return [Products(rows, *layer, forwards + backwards * (2 if index else 1)) for index, layer in layers]


def roofline(products: Sequence[Products], seeds: int, seconds: float) -> float:
    """Returns the environment steps per second of all seeds that there could be if only products took time.

    Args:
        products: Those of a learner.
        seeds: S, over all devices of this process, as training spreads them.
        seconds: About how long each of five measurements of each product lasts.
    """
    return seeds / sum(each.count * _time(each, seeds, seconds) for each in products)


def _time(products: Products, seeds: int, seconds: float) -> float:
    """Returns the time of one product of each seed in seconds, in a scan there and back: the median of some."""
    mesh = seed_mesh(seeds)

    def multiply(rows: jax.Array) -> tuple[jax.Array, None]:
        weights = jnp.eye(products.fan_in, products.fan_out)  # so that no number grows
        return lax.scan(lambda rows, _: ((rows @ weights) @ weights.T, None), rows, length=PAIRS)[0], None

    rows = jnp.ones((padded(seeds, mesh), products.rows, products.fan_in))
    compiled = over_seeds(multiply, mesh, (0,), (0, None)).lower(rows).compile()

    def call(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            compiled(rows)[0].block_until_ready()
        return (time.perf_counter() - started) / times

    call(1)
    times = max(1, round(seconds / call(1)))
    return statistics.median(call(times) for _ in range(REPEATS)) / (2 * PAIRS)
