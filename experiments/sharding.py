"""Seeds over devices: each device runs its share of the seeds as one vmapped program, and nothing crosses devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rollax.errors import InputError
from rollax.experiments.trainer import axes

AXIS = "seeds"


def seed_mesh(seeds: int) -> Mesh:
    """Returns a mesh of this process's devices, no more of them than there are seeds.

    Raises:
        InputError: `seeds` is below 1.
    """
    if seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1.")
    return Mesh(np.array(jax.local_devices()[:seeds]), (AXIS,))


def padded(seeds: int, mesh: Mesh) -> int:
    """Returns the smallest multiple of the mesh's devices that is not below `seeds`."""
    return -(-seeds // mesh.size) * mesh.size


def over_seeds(
    function: Callable[..., Any], mesh: Mesh, in_axes: Any, out_axes: Any, donate_argnums: tuple[int, ...] = ()
) -> Any:
    """Returns the jitted function that maps `function`, of one seed, over the seeds of a mesh.

    Args:
        function: A pure function of one seed.
        mesh: From `seed_mesh`.
        in_axes: As in `jax.vmap`, with 0 and None only; a tuple with one entry for each argument.
        out_axes: As in `jax.vmap`, with 0 and None only.
        donate_argnums: As in `jax.jit`.
    """
    mapped = jax.vmap(function, in_axes=in_axes, out_axes=out_axes)
    if mesh.size > 1:
        specs = [
            jax.tree.map(
                lambda axis: PartitionSpec() if axis is None else PartitionSpec(AXIS), tree, is_leaf=lambda x: x is None
            )
            for tree in (in_axes, out_axes)
        ]
        mapped = jax.shard_map(mapped, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


def shard(train: Callable[[jax.Array], Any], seeds: int) -> Callable[[jax.Array], Any]:
    """Spreads the seeds of a train function over all devices of this process.

    Args:
        train: From `make_train`: `key -> (TrainState, metrics)`.
        seeds: S; it need not be a multiple of the number of devices.

    Returns:
        `keys [S] -> (TrainState, metrics)` with the seed axis of `axes()`.

    Raises:
        InputError: `seeds` is below 1.
    """
    mesh = seed_mesh(seeds)
    mapped = over_seeds(train, mesh, (0,), (axes(), 0))
    total = padded(seeds, mesh)

    def train_all(keys: jax.Array) -> Any:
        if keys.shape != (seeds,):
            raise InputError(
                f"keys have shape {keys.shape}: pass {seeds} keys, as jax.random.split(key, {seeds}) makes."
            )
        if total == seeds:
            return mapped(keys)
        outputs = mapped(keys[jnp.arange(total) % seeds])
        return take_seeds(outputs, (axes(), 0), slice(seeds))

    return train_all


def take_seeds(tree: Any, seed_axes: Any, index: int | slice | np.ndarray | None) -> Any:
    """Returns one seed, or some, of a tree whose seed axes are the prefix tree `seed_axes`; None adds such an axis."""

    def take(axis: int | None, branch: Any) -> Any:
        return branch if axis is None else jax.tree.map(lambda leaf: leaf[index], branch)

    return jax.tree.map(take, seed_axes, tree, is_leaf=lambda x: x is None)
