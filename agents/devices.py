"""One run over several devices: which axis of its arrays is spread over them."""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import PartitionSpec

from rollax.envs.base import PyTree

ENVIRONMENTS = "environments"
"""The axis of a mesh over which the environments of one run, and the batches it learns from, are spread."""


def spread(batch: PyTree, axis: int) -> PyTree:
    """Spreads the rows of a batch over the devices that share one run; where none do, it is the identity.

    Each device then computes the gradient of its rows, and the mean over rows becomes a sum over devices. The values
    are those without; arrays whose rows do not divide among the devices stay whole on each.

    Args:
        batch: Arrays.
        axis: That of the rows, in every array.
    """
    devices = jax.sharding.get_abstract_mesh().shape.get(ENVIRONMENTS, 1)
    if devices == 1:
        return batch
    spec = PartitionSpec(*[None] * axis, ENVIRONMENTS)

    def spread_leaf(leaf: jax.Array) -> jax.Array:
        return leaf if leaf.shape[axis] % devices else lax.with_sharding_constraint(leaf, spec)

    return jax.tree.map(spread_leaf, batch)
