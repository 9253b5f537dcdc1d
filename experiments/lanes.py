"""Lanes: what one job trains in one program, a seed with hyperparameters in each lane."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.experiments.population import Population
from rollax.experiments.tables import build, to_table

TUNING_STREAM = 0x74756E65
"""Folded into the root key for the tuning seeds of a sweep, which so are never those of a plain run."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a lane goes on from: a lane at the end of another job, whose folder is beside this one's."""

    job: str
    lane: int


@dataclasses.dataclass(frozen=True)
class Lanes:
    """What the L lanes of a job train. A plain run has a lane for each seed; a sweep one for each member and seed."""

    seeds: tuple[int, ...]  # [L], the number that is folded into the root key
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # name to L numbers
    tuning: bool = False  # whether the seeds are a sweep's tuning seeds
    end: int = 0  # chunks after which the job ends; 0: all of the run
    begin: int = 0  # chunks that its sources have done
    sources: tuple[Source, ...] = ()  # [L]; empty: every lane starts from its key
    population: Population | None = None

    @property
    def count(self) -> int:
        """L."""
        return len(self.seeds)

    def keys(self, seed: int, total: int) -> jax.Array:
        """Returns the key of each lane, `[total]`; those beyond the last lane are for padding.

        Args:
            seed: The root seed.
            total: L, rounded up to what the devices need.
        """
        root = jax.random.key(seed)
        if self.tuning:
            root = jax.random.fold_in(root, TUNING_STREAM)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.asarray(self._padded(self.seeds, total)))

    def numbers(self, total: int) -> dict[str, jax.Array]:
        """Returns the hyperparameters of each lane, float32 `[total]`; arguments are those of `keys`."""
        padded = {name: self._padded(values, total) for name, values in self.hyperparameters.items()}
        return {name: jnp.asarray(values, jnp.float32) for name, values in padded.items()}

    def _padded(self, values: Any, total: int) -> np.ndarray:
        return np.asarray(values)[np.arange(total) % self.count]


def from_manifest(manifest: Mapping[str, Any]) -> Lanes:
    """Returns the lanes of a job from its manifest: those of a sweep are named there, a plain run's are its seeds."""
    if "lanes" in manifest:
        return build(Lanes, manifest["lanes"], "manifest.lanes")
    return Lanes(tuple(range(manifest["seeds"])))


def to_manifest(lanes: Lanes) -> dict[str, Any]:
    """Returns what a sweep's job writes into its manifest for `from_manifest`."""
    table = to_table(lanes)
    return {**table, "sources": [to_table(source) for source in lanes.sources]}
