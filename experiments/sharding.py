"""Devices: each runs its share of the seeds, and nothing crosses them; or of the environments of one big run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollax.agents.devices import ENVIRONMENTS
from rollax.errors import InputError
from rollax.experiments import processes
from rollax.experiments.config import TrainConfig
from rollax.experiments.trainer import Trainer, TrainState, axes

AXIS = "seeds"


def job_mesh(train: TrainConfig, seeds: int) -> Mesh:
    """Returns the mesh of a job: `environment_mesh` or `seed_mesh`, as `train.spread` says, with their errors."""
    return environment_mesh(train.num_envs) if train.spread == "environments" else seed_mesh(seeds)


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
    """Returns the smallest multiple of the mesh's devices along its seeds that is not below `seeds`."""
    return -(-seeds // mesh.shape[AXIS]) * mesh.shape[AXIS]


def over_seeds(
    function: Callable[..., Any],
    mesh: Mesh,
    in_axes: Any,
    out_axes: Any,
    donate_argnums: tuple[int, ...] = (),
    at_once: int = 0,
) -> Any:
    """Returns the jitted function that maps `function`, of one seed, over the seeds of a mesh.

    Args:
        function: A pure function of one seed.
        mesh: From `job_mesh`.
        in_axes: As in `jax.vmap`, with 0 and None only; a tuple with one entry for each argument.
        out_axes: As in `jax.vmap`, with 0 and None only.
        donate_argnums: As in `jax.jit`.
        at_once: As `train.seeds_at_once`, where the function is `Trainer.chunk`.
    """
    mapped = jax.vmap(function, in_axes=in_axes, out_axes=out_axes)
    if at_once:
        mapped = _in_groups(mapped, at_once)
    if ENVIRONMENTS in mesh.shape:
        return _over_environments(mapped, mesh, 1, donate_argnums)
    if mesh.size > 1:
        specs = [
            jax.tree.map(
                lambda axis: PartitionSpec() if axis is None else PartitionSpec(AXIS), tree, is_leaf=lambda x: x is None
            )
            for tree in (in_axes, out_axes)
        ]
        mapped = jax.shard_map(mapped, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return jax.jit(mapped, donate_argnums=donate_argnums)


def _in_groups(chunk: Callable[[TrainState], Any], at_once: int) -> Callable[[TrainState], Any]:
    """Returns a mapped `Trainer.chunk` that trains equal groups of no more than `at_once` seeds in turn.

    Each group is written back to where it was: `lax.map` would hold the states of all seeds twice.
    """

    def call(state: TrainState) -> Any:
        seeds = state.key.shape[0]
        size = max(size for size in range(1, min(at_once, seeds) + 1) if seeds % size == 0)
        if size == seeds:
            return chunk(state)
        nowhere: Any = None

        def train(index: jax.Array, carry: Any) -> Any:
            done, start = carry[:2], index * size
            group = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), done[0])
            group, metrics = chunk(dataclasses.replace(group, clock=state.clock))
            seeded = dataclasses.replace(group, clock=nowhere), metrics
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
            return *jax.tree.map(write, done, seeded), group.clock

        metrics = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(chunk, state)[1])
        carry = dataclasses.replace(state, clock=nowhere), metrics, state.clock
        done, metrics, clock = jax.lax.fori_loop(0, seeds // size, train, carry)
        return dataclasses.replace(done, clock=clock), metrics

    return call


def environment_mesh(num_envs: int) -> Mesh:
    """Returns a mesh of the devices of all processes of the job, each of which has its share of the environments.

    In one process there are no more devices in it than environments. Its axis of seeds has length 1.

    Raises:
        InputError: `num_envs` is not a multiple of the number of devices.
    """
    devices = jax.devices() if processes.count() > 1 else jax.devices()[:num_envs]
    if num_envs % len(devices):
        raise InputError(
            f"train.num_envs = {num_envs} is not a multiple of the {len(devices)} devices that share the environments: "
            f"give {-(-num_envs // len(devices)) * len(devices)}, say."
        )
    return Mesh(np.array(devices)[None], (AXIS, ENVIRONMENTS))


def over_environments(trainer: Trainer) -> tuple[Callable[[jax.Array], TrainState], Callable[[TrainState], Any]]:
    """Spreads the environments of one seed over all devices of all processes, for a loop of one's own.

    It is what `train.spread = "environments"` does in `run`. Each device steps its share of the environments and
    computes the gradient of its share of each batch; gradients are averaged over devices, and the agent is the same on
    all. The compiler puts in what has to cross the devices, so that an update is that of one device but for rounding.

    Args:
        trainer: From `make_trainer`.

    Returns:
        `init(key)` and `chunk(state)`, as the trainer's, jitted; `chunk` is given its state's memory.

    Raises:
        InputError: `train.num_envs` is not a multiple of the number of devices; from `init`, the key is of a kind that
            the compiler cannot spread.
    """
    mesh = environment_mesh(trainer.config.train.num_envs)
    return _over_environments(trainer.init, mesh, 0), _over_environments(trainer.chunk, mesh, 0, (0,))


def _over_environments(
    function: Callable[..., Any], mesh: Mesh, axis: int, donate_argnums: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Returns a jitted function whose batches are spread over a mesh, and whose results are at their `places`."""

    def traced(*arguments: Any) -> Any:
        _check_keys(arguments, mesh)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            results = function(*arguments)
        return jax.lax.with_sharding_constraint(results, places(results, mesh, axis))

    return jax.jit(traced, donate_argnums=donate_argnums)


def places(tree: Any, mesh: Mesh, axis: int) -> Any:
    """Returns the sharding of each array on an `environment_mesh`.

    Args:
        tree: Arrays or their shapes. What a `TrainState` in it has for each environment is spread; all else is whole on
            each device.
        mesh: From `environment_mesh`.
        axis: That of the environments in the state of the environments: 1 behind seeds, 0 without.
    """
    whole = NamedSharding(mesh, PartitionSpec())

    def of_part(part: Any) -> Any:
        if not isinstance(part, TrainState):
            return whole
        num_envs = part.timestep.reward.shape[axis]

        def spread(branch: Any, axis: int) -> Any:
            share = NamedSharding(mesh, PartitionSpec(*[None] * axis, ENVIRONMENTS))
            return jax.tree.map(
                lambda leaf: share if leaf.ndim > axis and leaf.shape[axis] == num_envs else whole, branch
            )

        spreads = {name: spread(getattr(part, name), axis) for name in ("memory", "env", "timestep")}
        everywhere: TrainState = jax.tree.map(lambda _: whole, part)
        return dataclasses.replace(everywhere, **spreads, replay=spread(part.replay, axis + 1))

    return jax.tree.map(of_part, tree, is_leaf=lambda part: isinstance(part, TrainState))


def placed(function: Callable[[], Any], mesh: Mesh) -> Any:
    """Returns what a function of nothing makes, arrays `[padded seeds, ...]`, with each device's share of it there.

    Raises:
        InputError: There are keys among them of a kind that the compiler cannot spread.
    """
    if mesh.size == 1:
        return function()
    _check_keys(jax.eval_shape(function), mesh)
    return jax.jit(function, out_shardings=NamedSharding(mesh, PartitionSpec(AXIS)))()


def shard(train: Callable[[jax.Array], Any], seeds: int) -> Callable[[jax.Array], Any]:
    """Spreads the seeds of a train function over all devices of this process.

    Args:
        train: From `make_train`: `key -> (TrainState, metrics)`.
        seeds: S; it need not be a multiple of the number of devices.

    Returns:
        `keys [S] -> (TrainState, metrics)` with the seed axis of `axes()`.

    Raises:
        InputError: `seeds` is below 1; when called, the keys are others than S, or of a kind that the compiler cannot
            spread.
    """
    mesh = seed_mesh(seeds)
    mapped = over_seeds(train, mesh, (0,), (axes(), 0))
    total = padded(seeds, mesh)

    def train_all(keys: jax.Array) -> Any:
        if keys.shape != (seeds,):
            raise InputError(
                f"keys have shape {keys.shape}: pass {seeds} keys, as jax.random.split(key, {seeds}) makes."
            )
        _check_keys(keys, mesh)
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


def _check_keys(tree: Any, mesh: Mesh) -> None:
    """Raises an InputError if there are philox keys in a tree, and a mesh of several CPU devices."""
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu":
        return
    if any("key<phx" in str(leaf.dtype) for leaf in jax.tree.leaves(tree)):
        raise InputError(
            "random keys are of a philox kind, whose draws XLA cannot compile for several CPU devices: leave "
            "jax_default_prng_impl as it is, or set JAX_NUM_CPU_DEVICES=1."
        )
