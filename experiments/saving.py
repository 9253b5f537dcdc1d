"""What is saved of a run and how it comes back: checkpoints to resume from, the best agents, agents of other runs."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs.base import select
from rollax.errors import InputError
from rollax.experiments import checkpoint, processes, run_folder
from rollax.experiments.evaluation import Evaluation
from rollax.experiments.lanes import Source
from rollax.experiments.sharding import take_seeds
from rollax.experiments.trainer import Trainer, TrainState, axes

CHECKPOINT_SECONDS = 60.0
"""Time from one checkpoint to the next where the config sets no steps."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """For each seed, the agent of its best greedy evaluation so far; the earliest of equals."""

    agent: Any  # leaves [S, ...]
    score: jax.Array  # float32 [S], mean return; minus infinity before an evaluation in which an episode ended
    chunk: jax.Array  # int32 [S], the number of the chunk after which it was evaluated


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Saved:
    """What a checkpoint of a run holds, of all seeds."""

    state: TrainState
    best: Best


SAVED_AXES = Saved(axes(), 0)  # type: ignore[arg-type]
"""The seed axes of `Saved`."""


def no_best(agent: Any) -> Best:
    """Returns what is the best of one seed before any evaluation: nothing, and the first agent in its place."""
    return Best(jax.tree.map(jnp.copy, agent), jnp.asarray(-jnp.inf, jnp.float32), jnp.zeros((), jnp.int32))


def keep_best(best: Best, agent: Any, evaluation: Evaluation, chunk: jax.Array) -> Best:
    """Returns the better of one seed's best and the agent that was just evaluated."""
    finished = jnp.sum(evaluation.finished)
    total = jnp.sum(jnp.where(evaluation.finished, evaluation.episode_return, 0.0))
    score = jnp.where(finished > 0, total / jnp.maximum(finished, 1), -jnp.inf)
    return select(score > best.score, Best(agent, score, chunk), best)


class Keeper:
    """Writes the checkpoints of a run when they are due; none without a folder. A context manager, as `Checkpoints`."""

    def __init__(self, trainer: Trainer, seeds: int, folder: run_folder.RunFolder | None, last_chunk: int):
        settings = trainer.config.checkpoint
        self._seeds = seeds
        self._last_chunk = last_chunk
        self._every = -(-settings.every // trainer.env_steps_per_chunk)  # chunks; 0: by time
        self._replay = settings.replay
        self._last = time.monotonic()
        self._checkpoints = None if folder is None else checkpoint.Checkpoints(folder.checkpoints_path, settings.keep)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()

    def is_due(self, chunk: int) -> bool:
        """Returns whether a checkpoint is due after a chunk; after the last one results are written instead."""
        if self._checkpoints is None or chunk == self._last_chunk:
            return False
        if self._every:
            return chunk % self._every == 0
        return processes.agreed(time.monotonic() - self._last >= CHECKPOINT_SECONDS)

    def save(self, chunk: int, saved: Saved, seconds: float) -> None:
        """Begins to write the checkpoint after a chunk, `seconds` of run time from the start.

        Raises:
            OSError: It, or the one before, cannot be written.
        """
        assert self._checkpoints is not None
        total = saved.best.score.shape[0]
        notes = {"seconds": seconds, "seeds": self._seeds, "padded": total, "replay": self._replay}
        self._checkpoints.save(chunk, saved if self._replay else _without_replay(saved), notes)
        self._last = time.monotonic()


def _without_replay(saved: Saved) -> Saved:
    clock = dataclasses.replace(saved.state.clock, positions=None)
    return dataclasses.replace(saved, state=dataclasses.replace(saved.state, replay=(), clock=clock))


def restored(path: Path, manifest: dict[str, Any], seeds: int, start: Saved) -> Saved:
    """Reads a checkpoint to where the start of the run is, with an empty replay buffer if it holds none."""
    total = start.best.score.shape[0]
    like = _places(start if manifest["replay"] else _without_replay(start))
    if manifest["replay"]:
        jax.tree.map(lambda leaf: leaf.delete(), start)  # so that buffers are not held twice
    if manifest["padded"] == total:
        saved = checkpoint.restore(path, like)
    elif processes.count() > 1:
        raise InputError(
            f"checkpoint {str(path)!r} is of {manifest['padded']} seeds over its devices, and here they are {total}: "
            "go on with as many devices as before, or in one process."
        )
    else:
        warnings.warn(
            f"the run goes on with another number of devices than it had at checkpoint {str(path)!r}: it may differ in "
            "the last bits from an uninterrupted one.",
            stacklevel=2,
        )
        old = _resized(like, manifest["padded"])
        saved = take_seeds(checkpoint.restore(path, old), SAVED_AXES, np.arange(total) % seeds)
        saved = jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), saved, like)
    if not manifest["replay"]:
        clock = dataclasses.replace(saved.state.clock, positions=start.state.clock.positions)
        state = dataclasses.replace(saved.state, replay=start.state.replay, clock=clock)
        saved = dataclasses.replace(saved, state=state)
    return saved


def gathered(sources: Sequence[Source], folder: Path, start: Saved) -> Saved:
    """Reads the states at the end of other jobs, each lane from its source, to where the start of the run is.

    Args:
        sources: One for each lane.
        folder: Where the jobs' folders are.
        start: Of this job; its buffers are given up.
    """
    total = start.best.score.shape[0]
    like = _places(start)
    jax.tree.map(lambda leaf: leaf.delete(), start)  # so that buffers are not held twice
    parts: list[Saved] = []
    taken = np.zeros(len(sources), int)  # where each lane is among those that were read
    for name in dict.fromkeys(source.job for source in sources):
        opened = run_folder.open(folder / name)
        saved = checkpoint.restore(opened.checkpoints_path / "state", _resized(like, opened.finished_seeds()))
        mine = [index for index, source in enumerate(sources) if source.job == name]
        taken[mine] = sum(part.best.score.shape[0] for part in parts) + np.arange(len(mine))
        parts.append(take_seeds(saved, SAVED_AXES, np.array([sources[index].lane for index in mine])))
    order = taken[np.arange(total) % len(sources)]

    def join(axis: int | None, first: Any, *others: Any) -> Any:
        if axis is None:
            return first
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], first, *others)

    joined = jax.tree.map(join, SAVED_AXES, *parts, is_leaf=lambda leaf: leaf is None)
    return jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), joined, like)


def _places(saved: Saved) -> Saved:
    """Returns shape, dtype and place of each array."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), saved)


def _resized(like: Saved, total: int) -> Saved:
    """Returns the shapes with another number of seeds, and no place."""

    def resized(axis: int | None, branch: Any) -> Any:
        lead = () if axis is None else (total,)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[len(lead) :]), leaf.dtype), branch)

    return jax.tree.map(resized, SAVED_AXES, like, is_leaf=lambda leaf: leaf is None)


def agents_like(trainer: Trainer, seeds: int) -> Any:
    """Returns the shapes of the agents of all seeds, leaves `[S, ...]`."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))
    return jax.eval_shape(jax.vmap(trainer.init, out_axes=axes()), keys).agent


def agents_of(run: Path, trainer: Trainer, seeds: int) -> Any:
    """Returns the final agents of another run, one for each seed of this one, leaves `[S, ...]`."""
    opened = run_folder.open(run)
    others = opened.finished_seeds()
    agent = checkpoint.restore(opened.checkpoints_path / "final", agents_like(trainer, others))
    return jax.tree.map(lambda leaf: leaf[np.arange(seeds) % others], agent)


def initialised(saved: Saved, agent: Any) -> Saved:
    """Returns a start with the params, target params and statistics of other agents, those of parts of them too."""
    total = saved.best.score.shape[0]

    def placed(new: jax.Array, old: jax.Array) -> jax.Array:
        return jax.device_put(new[np.arange(total) % new.shape[0]], old.sharding)

    def take(new: Any, old: Any) -> Any:
        changes = {}
        for field in dataclasses.fields(old):
            pair = getattr(new, field.name), getattr(old, field.name)
            if field.name in ("params", "statistics") or field.name.endswith(("_params", "_statistics")):
                changes[field.name] = jax.tree.map(placed, *pair)
            elif dataclasses.is_dataclass(pair[1]) and (part := take(*pair)) is not pair[1]:
                changes[field.name] = part
        return dataclasses.replace(old, **changes) if changes else old

    fresh = saved.state.agent
    learnt = take(agent, fresh)
    if learnt is fresh:
        names = ", ".join(field.name for field in dataclasses.fields(fresh))
        raise InputError(
            f"--init-from finds nothing to take over: the agent's state has {names}, and no params, *_params or "
            "*_statistics."
        )
    return dataclasses.replace(saved, state=dataclasses.replace(saved.state, agent=learnt))
