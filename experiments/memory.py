"""Whether a run can fit the memory at all, from shapes alone: what cannot is answered before anything is compiled."""

from __future__ import annotations

import math
import os
from typing import Any

import jax

from rollax.envs.base import PyTree
from rollax.errors import InputError
from rollax.experiments.config import ExperimentConfig


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
    of_envs = size_of((state.env, state.timestep)) / train.num_envs
    parts = {
        "train.num_envs": size_of((state.env, state.timestep, state.memory)),
        "train.num_steps or train.num_envs": size_of(state.timestep) * train.num_steps,
        "the agent's network": size_of(state.agent),
        "evaluation.episodes": of_envs * config.evaluation.episodes,
    }
    if replay is not None:
        parts["replay.capacity"] = size_of(state.replay)
        drawn = replay.batch_size * train.updates_per_iteration * max(replay.n_step, replay.length)
        parts["replay.batch_size or train.updates_per_iteration"] = size_of(state.replay) * drawn / replay.capacity
    needed, room = sum(parts.values()), room_of(jax.local_devices())
    if needed > room:
        largest = max(parts, key=lambda name: parts[name])
        seeds = state.key.shape[0]
        remedy = "" if seeds == 1 else ", or train fewer seeds in one job"
        raise InputError(
            f"the run needs at least {needed / 1e9:,.1f} GB of memory, {parts[largest] / 1e9:,.1f} for {largest}, "
            f"and there are {room / 1e9:,.1f}: make it smaller{remedy}."
        )


def size_of(tree: PyTree) -> int:
    """Returns the bytes of the arrays in a PyTree, or of what has their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def room_of(devices: list[jax.Device]) -> int:
    """Returns the bytes of memory that devices have together; those of a CPU share the machine's."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    if all(limit is not None for limit in limits):
        return sum(int(limit) for limit in limits if limit is not None)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**63
