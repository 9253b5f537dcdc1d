"""Devices: each runs its share of the seeds, and nothing crosses them; or of the environments of one big run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollax.agents.devices import ENVIRONMENTS
from rollax.errors import InputError
from rollax.experiments import processes
from rollax.experiments.trainer import Trainer, TrainState, axes

AXIS = "seeds"


def seed_mesh(seeds: int) -> Mesh:
    """Returns a mesh of the devices of all processes of the job, no more of them than there are seeds.

    Raises:
        InputError: `seeds` is below 1, or some process would have nothing to do.
    """
    if seeds < 1:
        raise InputError(f"seeds = {seeds} must be at least 1.")
    if processes.count() > 1 and seeds < jax.device_count():
        raise InputError(
            f"seeds = {seeds} are fewer than the {jax.device_count()} devices of {processes.count()} processes: give "
            f"{jax.device_count()} or more."
        )
    return Mesh(np.array(jax.devices()[:seeds]), (AXIS,))


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


def environment_mesh(num_envs: int) -> Mesh:
    """Returns a mesh of the devices of all processes of the job, for `over_environments`.

    Raises:
        InputError: `num_envs` is not a multiple of their number.
    """
    devices = jax.devices()
    if num_envs % len(devices):
        raise InputError(
            f"train.num_envs = {num_envs} is not a multiple of the {len(devices)} devices that share the environments: "
            f"give {-(-num_envs // len(devices)) * len(devices)}, say."
        )
    return Mesh(np.array(devices), (ENVIRONMENTS,))


def over_environments(trainer: Trainer) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState], Any]]:
    """Spreads the environments of one big run over all devices of all processes.

    Each device steps its share of the environments and computes the gradient of its share of each batch; gradients are
    averaged over devices, and the agent is the same on all. The compiler puts in what has to cross the devices, so that
    an update is that of one device but for rounding. (On CPU it can't do so with `philox4x32` keys: use the default.)

    Args:
        trainer: From `make_trainer`.

    Returns:
        `init(key)` and `chunk(state)`, as the trainer's, jitted; `chunk` is given its state's memory.

    Raises:
        InputError: `train.num_envs` is not a multiple of the number of devices.
    """
    num_envs = trainer.config.train.num_envs
    mesh = environment_mesh(num_envs)

    def here(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def traced(argument: Any) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(argument)

        return traced

    def place(axis: int, tree: Any) -> Any:
        spec = PartitionSpec(*[None] * axis, ENVIRONMENTS)
        shared = [leaf.ndim > axis and leaf.shape[axis] == num_envs for leaf in jax.tree.leaves(tree)]
        shardings = [NamedSharding(mesh, spec if is_shared else PartitionSpec()) for is_shared in shared]
        return jax.tree.unflatten(jax.tree.structure(tree), shardings)

    state = jax.eval_shape(trainer.init, jax.eval_shape(jax.random.key, 0))
    whole: Any = jax.tree.map(lambda leaf: NamedSharding(mesh, PartitionSpec()), state)
    spread = {name: place(0, getattr(state, name)) for name in ("memory", "env", "timestep")}
    places = dataclasses.replace(whole, **spread, replay=place(1, state.replay))
    init = jax.jit(here(trainer.init), out_shardings=places)
    return init, jax.jit(here(trainer.chunk), out_shardings=(places, None), donate_argnums=0)


def placed(function: Callable[[], Any], mesh: Mesh) -> Any:
    """Returns what a function of nothing makes, arrays `[padded seeds, ...]`, with each device's share of it there."""
    if mesh.size == 1:
        return function()
    return jax.jit(function, out_shardings=NamedSharding(mesh, PartitionSpec(AXIS)))()


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
