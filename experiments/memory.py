"""How much memory a job needs, before anything of it is allocated, and how much there is."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.errors import InputError
from rollax.experiments import processes
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.sharding import AXIS, job_mesh, over_seeds, padded, places, seed_mesh
from rollax.experiments.trainer import Trainer, axes, make_trainer

_SAMPLE = 4
"""Lanes of the program that is compiled to measure what a lane needs beside its state. Single lanes are compiled to
something else; from four on, temporary memory grew in proportion within 2 % for PPO and DQN on a CPU."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a job on all of its devices together.

    Attributes:
        shared: What seeds share: the clock, with the rows of a data set; once on each device.
        state: Of the states of all seeds, with their replay buffers.
        best: Of the best agents so far.
        temporary: What a chunk needs beside its argument, its metrics included.
    """

    shared: int
    state: int
    best: int
    temporary: int

    @property
    def program(self) -> int:
        """Of the compiled chunk: its argument, in whose place its result is written, and what it needs beside."""
        return self.shared + self.state + self.temporary

    @property
    def total(self) -> int:
        """Of a run at its peak: beside the program the best agents, and the copy of all that a checkpoint takes."""
        return self.program + self.best + self.shared + self.state + self.best


def estimate_memory(config: ExperimentConfig, seeds: int = 1) -> Memory:
    """Returns the memory that `run(config, seeds)` needs on the devices of this process.

    Shapes give the state to the byte. What a chunk needs beside it is taken from the compiler, for a program with a few
    seeds, and grows in proportion to their number. Nothing is allocated.

    Raises:
        InputError: As `make_trainer`, or `seeds` is below 1.
    """
    trainer = make_trainer(config)
    mesh = job_mesh(config.train, seeds)
    per_device = padded(seeds, mesh) // mesh.shape[AXIS]
    sample = min(per_device, _SAMPLE)
    state = share = _state(trainer, sample)  # of one device
    one = seed_mesh(1)
    if config.train.spread == "environments":
        one = mesh
        state = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            state,
            places(state, mesh, 1),
        )
        share = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype), state
        )
    compiled = over_seeds(trainer.chunk, one, (axes(),), (axes(), 0), (0,)).lower(state).compile()
    analysis = compiled.memory_analysis()
    if isinstance(analysis, list):
        (analysis,) = analysis
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    temporary = (analysis.temp_size_in_bytes + results) / sample
    lanes = per_device * mesh.size
    shared = tree_bytes(share.clock)
    agents = tree_bytes(share.agent) // sample
    each = (tree_bytes(share) - shared) // sample
    group = config.train.seeds_at_once
    if 0 < group < per_device:  # a group's states are held twice
        temporary = (temporary + each) * group / per_device
    return Memory(
        shared=shared * mesh.size,
        state=each * lanes,
        best=agents * lanes,
        temporary=round(temporary * lanes),
    )


def largest_number_of_seeds(config: ExperimentConfig, seeds: int, available: int) -> tuple[int, Memory]:
    """Returns how many of the seeds fit into so many bytes at once, and the memory that all of them need.

    Args:
        config: As of `estimate_memory`.
        seeds: How many there are to train.
        available: Bytes of all devices together.

    Raises:
        InputError: Not even one fits.
    """
    memory = estimate_memory(config, seeds)
    if memory.total <= available:
        return seeds, memory
    mesh = job_mesh(config.train, seeds)
    devices = mesh.shape[AXIS]
    each = (memory.total - 2 * memory.shared) / padded(seeds, mesh)
    fitting = int((available - 2 * memory.shared) / each)
    fitting = fitting // devices * devices if fitting >= devices else fitting
    if fitting < 1:
        raise InputError(
            f"one seed needs {each / 1e9:.3g} GB of memory and may have {available / 1e9:.3g}: make replay.capacity, "
            "train.num_envs or the networks smaller, or sweep.memory_gb larger."
        )
    return fitting, memory


def available_memory() -> int:
    """Returns the bytes that are free on the devices of this process together; on CPU those of the machine."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return sum(stat["bytes_limit"] - stat["bytes_in_use"] for stat in stats)
    return min(_free_memory(), _group_limit())


def require_room(config: ExperimentConfig, state: Any) -> None:
    """Checks that the largest parts of a run are not larger than the memory of its devices.

    It is a lower bound: activations, gradients and copies are not counted, so what passes may still not fit.

    Args:
        config: The run's config.
        state: The shapes of its `TrainState`, leaves `[S, ...]` but for the clock.

    Raises:
        InputError: They are larger; the sentence names the largest part and what makes it smaller.
    """
    train, replay = config.train, config.replay
    of_envs = tree_bytes((state.env, state.timestep)) / train.num_envs
    parts = {
        "train.num_envs": tree_bytes((state.env, state.timestep, state.memory)),
        "train.num_steps or train.num_envs": tree_bytes(state.timestep) * train.num_steps,
        "the agent's network": tree_bytes(state.agent),
        "evaluation.episodes": of_envs * config.evaluation.episodes,
    }
    if replay is not None:
        parts["replay.capacity"] = tree_bytes(state.replay)
        drawn = replay.batch_size * train.updates_per_iteration * max(replay.n_step, replay.length)
        parts["replay.batch_size or train.updates_per_iteration"] = tree_bytes(state.replay) * drawn / replay.capacity
    needed, room = sum(parts.values()), processes.count() * room_of(jax.local_devices())
    if needed > room:
        largest = max(parts, key=lambda name: parts[name])
        seeds = state.key.shape[0]
        remedy = "" if seeds == 1 else ", or train fewer seeds in one job"
        raise InputError(
            f"the run needs at least {needed / 1e9:,.1f} GB of memory, {parts[largest] / 1e9:,.1f} for {largest}, "
            f"and there are {room / 1e9:,.1f}: make it smaller{remedy}."
        )


def room_of(devices: list[jax.Device]) -> int:
    """Returns the bytes of memory that devices have together; those of a CPU share the machine's."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    if all(limit is not None for limit in limits):
        return sum(int(limit) for limit in limits if limit is not None)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**63


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a tree, or of what has their shapes; of a key those of its data."""

    def count(leaf: Any) -> int:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize

    return sum(count(leaf) for leaf in jax.tree.leaves(tree))


def _state(trainer: Trainer, seeds: int) -> Any:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))
    return jax.eval_shape(jax.vmap(trainer.init, out_axes=axes()), keys)


def _free_memory() -> int:
    """Returns the machine's memory that can be had without swapping."""
    info = Path("/proc/meminfo")
    if info.exists():  # Linux also says what caches would give back
        fields = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _group_limit() -> int:
    """Returns what a container leaves of the machine's memory."""
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        return int(limit.read_text(encoding="ascii")) - int(used.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such container, or "max"
        return 2**63
