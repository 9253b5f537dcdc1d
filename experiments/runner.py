"""`run` and `resume`: a whole job from a config, host side. Chunks, progress, logs, evaluation, checkpoints, plot."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.errors import InputError
from rollax.experiments import (
    checkpoint,
    files,
    loggers,
    population,
    processes,
    profiling,
    provenance,
    reporting,
    run_folder,
    saving,
)
from rollax.experiments import config as configs
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.evaluation import Evaluation, make_evaluate
from rollax.experiments.hooks import Hooks, hook_point
from rollax.experiments.interrupts import stop_requested
from rollax.experiments.journal import Journal
from rollax.experiments.lanes import Lanes, from_manifest, to_manifest
from rollax.experiments.learning import Failure
from rollax.experiments.programs import Prepared, Programs, prepare
from rollax.experiments.sharding import job_mesh, take_seeds
from rollax.experiments.trainer import Trainer, TrainState, make_trainer


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gives back."""

    state: TrainState  # leaves [S, ...] but for the clock
    best: saving.Best
    summary: dict[str, Any]  # as in summary.json
    evaluations: list[dict[str, Any]]  # as in evaluations.csv
    folder: Path | None  # where the files are; None if none were asked for
    log_seconds: float  # that this process spent on logs and progress, while the devices were at work


@dataclasses.dataclass(frozen=True)
class _Job:
    """One run: what it trains, and where it writes."""

    trainer: Trainer
    lanes: Lanes
    stop: threading.Event  # set to end it after the chunk
    progress: bool
    debug: bool = False
    init_from: Path | None = None
    folder: run_folder.RunFolder | None = None
    hooks: Hooks | None = None
    profile: Path | None = None

    @property
    def seeds(self) -> int:
        """The number of lanes: a plain run has one for each seed."""
        return self.lanes.count

    @property
    def written(self) -> run_folder.RunFolder | None:
        """The folder, in the process that writes to it."""
        return self.folder if processes.is_first() else None

    @property
    def last_chunk(self) -> int:
        """The number of the chunk that it ends with."""
        return self.lanes.end or self.trainer.num_chunks


@dataclasses.dataclass(frozen=True)
class _Position:
    """Where a run is."""

    saved: saving.Saved
    chunks: int = 0  # done
    seconds: float = 0.0  # spent in them, compilation apart
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    log_seconds: float = 0.0  # that this process spent on logs


def run(
    config: ExperimentConfig | str | Path,
    seeds: int = 1,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
    init_from: str | Path | None = None,
    debug: bool = False,
    hooks: Hooks | None = None,
    profile: str | Path | None = None,
) -> Result:
    """Trains `seeds` seeds in one job on all devices of this process, over which `train.spread` spreads it.

    Seed i starts from `fold_in(key(train.seed), i)`, whatever the number of seeds. After each chunk the metrics are
    logged; at every evaluation point and at the end each seed plays `evaluation.episodes` greedy episodes. With a
    folder, the whole state is saved as `[checkpoint]` says, and an interrupt (Ctrl-C) ends the run after its chunk and
    a checkpoint; a second one ends it at once.

    Args:
        config: A config, the name of a shipped one, or the path of a TOML file.
        seeds: S.
        out: The folder to write; None writes nothing.
        overwrite: Whether a run that is already in `out` may be replaced.
        progress: Whether to show a progress bar on standard error.
        init_from: The folder of a run whose final parameters seed i starts from (those of its seed i modulo its number
            of seeds): params, target params and statistics, but no optimiser state.
        debug: Whether to run one seed without compiling anything, print the shapes of its state, and stop where the
            first NaN arises in the agent or the environment. Slow.
        hooks: What to call at each evaluation.
        profile: A folder for a trace of a few chunks by JAX's profiler.

    Raises:
        InputError: The config cannot work or the folder cannot be written; nothing has been compiled yet. With
            `debug`, a NaN; it says where.
        KeyboardInterrupt: It was interrupted; it says how to go on.
        OSError: A file cannot be written; older checkpoints are as they were.
    """
    if isinstance(config, str | Path):
        config = configs.load(config)
    config = dataclasses.replace(config, sweep=None)
    if not 1 <= seeds <= run_folder.MAX_SEEDS:
        raise InputError(f"seeds = {seeds} must be between 1 and {run_folder.MAX_SEEDS}.")
    if debug and seeds != 1:
        raise InputError(f"seeds = {seeds} cannot be debugged at once: give 1.")
    if debug and config.train.spread == "environments":
        raise InputError("train.spread = 'environments' cannot be debugged, which is done on one device: give 'seeds'.")
    if hooks is not None and processes.count() > 1:
        raise InputError("hooks cannot be called by a job of several processes: give none.")
    loggers.check(config.log)
    trainer = make_trainer(config)
    evaluate = make_evaluate(config)
    other = None if init_from is None else Path(init_from).absolute()
    agent = None if other is None else saving.agents_of(other, trainer, seeds)
    if out is not None:
        if other is not None and other.resolve() == Path(out).resolve():
            raise InputError(f"--out {str(out)!r} is the run that --init-from starts from: choose another folder.")
        processes.on_first(lambda: run_folder.check(out, overwrite))
    traced = None if profile is None else Path(profile).absolute()
    if traced is not None:
        files.require_folder(traced, "--profile")
    lanes = Lanes(tuple(range(seeds)))
    with stop_requested(out is not None) as stop:
        job = _Job(trainer, lanes, stop, progress, debug, other, hooks=hooks, profile=traced)
        ready = prepare(trainer, lanes, evaluate, debug)
        position = _Position(ready.start if agent is None else saving.initialised(ready.start, agent))
        if out is None:
            return _finish(job, ready, _train(job, ready, position))
        start = {"seeds": seeds, "init_from": None if other is None else str(other)}
        return _train_into(job, ready, position, out, start, overwrite)


def run_lanes(
    config: ExperimentConfig,
    lanes: Lanes,
    out: str | Path,
    *,
    progress: bool = False,
    compiled: dict[int, Programs] | None = None,
) -> Result:
    """Trains the lanes of a part of a sweep in one job, as `run` trains seeds; `resume` goes on with it too.

    What lanes go on from must be beside `out`; where the job does not train to the end of the run, others can go on
    from it in turn.

    Args:
        config: The config of all lanes, but for their hyperparameters.
        lanes: What each lane trains.
        out: As of `run`.
        progress: As of `run`.
        compiled: Programs of other jobs of the same structure, by their number of lanes; those of this one are added.

    Raises:
        InputError: As of `run`.
        KeyboardInterrupt: As of `run`.
        OSError: As of `run`.
    """
    loggers.check(config.log)
    trainer = make_trainer(config)
    evaluate = make_evaluate(config)
    run_folder.check(out)
    with stop_requested() as stop:
        job = _Job(trainer, lanes, stop, progress)
        ready = prepare(trainer, lanes, evaluate, compiled=compiled)
        position = _begin(job, ready.start, Path(out).absolute())
        start = {"seeds": lanes.count, "init_from": None, "lanes": to_manifest(lanes)}
        return _train_into(job, ready, position, out, start)


def _train_into(
    job: _Job, ready: Prepared, position: _Position, out: str | Path, start: dict[str, Any], overwrite: bool = False
) -> Result:
    def begin() -> None:
        folder = run_folder.create(out, overwrite)  # once nothing can fail that has to do with the config
        folder.write_manifest({"format": checkpoint.FORMAT, "versions": checkpoint.versions(), **start})
        folder.write_config(configs.to_toml(job.trainer.config))

    processes.on_first(begin)
    folder = run_folder.open(out)
    job = dataclasses.replace(job, folder=folder)
    with _locked(folder):
        return _finish(job, ready, _train(job, ready, position))


def _locked(folder: run_folder.RunFolder) -> contextlib.AbstractContextManager[None]:
    return folder.locked() if processes.is_first() else contextlib.nullcontext()


def _begin(job: _Job, saved: saving.Saved, path: Path) -> _Position:
    """Returns where a job in a folder begins: its lanes from their keys, from other jobs or from another run."""
    if job.lanes.sources:
        saved = saving.gathered(job.lanes.sources, path.parent, saved)
    elif job.init_from is not None:
        saved = saving.initialised(saved, saving.agents_of(job.init_from, job.trainer, job.seeds))
    return _Position(saved, job.lanes.begin)


def resume(
    folder: str | Path,
    *,
    progress: bool = False,
    hooks: Hooks | None = None,
    compiled: dict[int, Programs] | None = None,
) -> Result:
    """Goes on with an interrupted run from its last checkpoint, to the bits that it would have come to.

    Equal bits need the same packages, number of devices and kind of processor; other packages or devices give a
    warning. Rows that were logged after the checkpoint are dropped, and come again.

    Args:
        folder: The folder of the run.
        progress: As of `run`.
        hooks: As of `run`; those that the run was begun with, to come to the same bits.
        compiled: As of `run_lanes`.

    Raises:
        InputError: The folder holds no run or a finished one, or its checkpoint cannot be read or does not fit its
            config.
        KeyboardInterrupt: As of `run`.
        OSError: As of `run`.
    """
    opened = run_folder.open(folder)
    if opened.summary_path.exists():
        raise InputError(f"run {str(opened.path)!r} is finished: there is nothing to resume.")
    config = configs.load(opened.config_path)
    if config.sweep is not None:
        raise InputError(f"{str(opened.path)!r} is a sweep: go on with rollax sweep --resume {opened.path}.")
    loggers.check(config.log)
    trainer = make_trainer(config)
    start = opened.read_manifest()
    lanes = from_manifest(start)
    other = Path(start["init_from"]) if start.get("init_from") else None
    numbers = checkpoint.numbers(opened.checkpoints_path)
    path = opened.checkpoints_path / str(numbers[-1]) if numbers else None
    with _locked(opened), stop_requested() as stop:
        job = _Job(trainer, lanes, stop, progress, init_from=other, folder=opened, hooks=hooks)
        manifest = None if path is None else checkpoint.read_manifest(path)
        if manifest is not None and (manifest.get("seeds") != job.seeds or numbers[-1] > job.last_chunk):
            raise InputError(
                f"checkpoint {str(path)!r} is not one of this run (chunk {numbers[-1]} of {job.last_chunk}, "
                f"{manifest.get('seeds')} seeds of {job.seeds}): restore config.toml and manifest.json, or delete it."
            )
        ready = prepare(trainer, lanes, make_evaluate(config), compiled=compiled)
        position = _Position(ready.start) if path is not None else _begin(job, ready.start, opened.path)
        if path is not None and manifest is not None:
            checkpoint.warn_of_other_versions(path, manifest)
            saved = saving.restored(path, manifest, job.seeds, ready.start)
            position = _Position(saved, numbers[-1], manifest["seconds"])
        processes.on_first(lambda: opened.drop_after(position.chunks * trainer.env_steps_per_chunk))
        position = dataclasses.replace(position, evaluations=opened.evaluation_records())
        return _finish(job, ready, _train(job, ready, position))


def _train(job: _Job, ready: Prepared, start: _Position) -> _Position:
    """Runs every chunk that is left; the host logs one chunk while the devices work on the next."""
    trainer, seeds, programs = job.trainer, job.seeds, ready.programs
    per_evaluation = chunks_per_evaluation(trainer)
    state, best = start.saved.state, start.saved.best
    started = time.perf_counter()
    done = start.chunks
    with contextlib.ExitStack() as stack:
        show = job.progress and processes.is_first()
        journal = stack.enter_context(
            Journal(trainer, seeds, job.written, start.evaluations, start.chunks, job.last_chunk, show)
        )
        profile = stack.enter_context(profiling.Profile(job.profile, start.chunks + 1, job.last_chunk))
        keeper = stack.enter_context(saving.Keeper(trainer, seeds, job.folder, job.last_chunk))

        def call_hooks(rows: list[dict[str, Any]]) -> bool:
            assert job.hooks is not None
            return job.hooks.call(hook_point(state.agent, ready.keys, rows, journal.evaluations, done))

        for index in range(start.chunks + 1, job.last_chunk + 1):
            profile.before(index)
            state, metrics = programs.chunk(state)
            profile.after(index, state)
            evaluated = None
            if index % per_evaluation == 0 or index == job.last_chunk:
                number = np.int32(index)
                evaluated = programs.greedy(state.agent, ready.keys, number)
                best = programs.keep_best(best, state.agent, evaluated, number)
                if job.lanes.population is not None and index < job.last_chunk:
                    state = _exchanged(job, job.lanes.population, state, evaluated, index)
            journal.write()
            journal.add(index, metrics, evaluated)
            done = index
            if evaluated is not None and job.hooks is not None and journal.write(call_hooks):
                break
            stopping = index < job.last_chunk and processes.agreed(job.stop.is_set())
            if stopping or keeper.is_due(index):
                journal.write()  # rows first: what a checkpoint is resumed from must have been logged up to it
                keeper.save(index, saving.Saved(state, best), start.seconds + time.perf_counter() - started)
            if stopping:
                assert job.folder is not None
                raise KeyboardInterrupt(  # once the checkpoint is complete, on the way out
                    f"stopped after {index * trainer.env_steps_per_chunk:,} steps of each seed; go on with: "
                    f"rollax train --resume {job.folder.path}"
                )
        journal.write()
        jax.block_until_ready(state)
    seconds = start.seconds + time.perf_counter() - started
    return _Position(saving.Saved(state, best), done, seconds, journal.evaluations, journal.seconds)


def _exchanged(
    job: _Job, settings: population.Population, state: TrainState, evaluated: Evaluation, chunk: int
) -> TrainState:
    """Returns the state after an exchange between the members of a population, if one is due, and logs it."""
    per_evaluation = chunks_per_evaluation(job.trainer)
    if chunk % per_evaluation or not population.is_due(settings, chunk // per_evaluation):
        return state
    env_steps = chunk * job.trainer.env_steps_per_chunk
    rows = reporting.evaluation_rows(evaluated, env_steps, job.seeds)
    numbers = {name: np.asarray(state.agent.hyperparameters[name])[: job.seeds] for name in job.lanes.hyperparameters}
    done = population.exchange(settings, np.array([row["return_mean"] for row in rows]), numbers, chunk)
    if job.folder is not None:
        job.folder.append_population(population.log_rows(done, env_steps))
    return population.apply(state, done)


def chunks_per_evaluation(trainer: Trainer) -> int:
    """Returns how many chunks of a run lie between two of its evaluations."""
    every = trainer.config.evaluation.every or -(-trainer.config.train.total_env_steps // 20)
    return max(1, -(-every // trainer.env_steps_per_chunk))


def _finish(job: _Job, ready: Prepared, position: _Position) -> Result:
    """Evaluates with exploration too, and writes what a finished run leaves."""
    seeds, folder, saved = job.seeds, job.folder, position.saved
    sampled = processes.fetch(ready.programs.sampled(saved.state.agent, ready.keys, np.int32(position.chunks)))
    if processes.count() == 1:
        saved = take_seeds(saved, saving.SAVED_AXES, slice(seeds))
        saved = jax.device_put(saved, jax.local_devices()[0])
    agent, best, failed = processes.fetch((saved.state.agent, saved.best, saved.state.failed))
    agent, best, failed = take_seeds((agent, best, failed), 0, slice(seeds))
    summary = _summary(job, ready, position, agent, best, failed, reporting.evaluation_rows(sampled, 0, seeds))
    if folder is not None:
        results = {"final": agent, "best": best.agent}
        if job.last_chunk < job.trainer.num_chunks:
            results["state"] = saved  # other jobs go on from it
        for name, tree in results.items():
            processes.on_first(functools.partial(folder.remove_checkpoint, name))  # of a finish that was cut short
            checkpoint.save(folder.checkpoints_path / name, tree)
        processes.on_first(functools.partial(_write_results, job, folder, summary))
    path = None if folder is None else folder.path
    return Result(saved.state, saved.best, summary, position.evaluations, path, position.log_seconds)


def _write_results(job: _Job, folder: run_folder.RunFolder, summary: dict[str, Any]) -> None:
    folder.write_summary(summary)
    if not job.lanes.tuning:  # whose lanes are no seeds of one thing
        from rollax.experiments import plots  # matplotlib takes a second to import

        plots.plot_run(folder.path)


def _summary(
    job: _Job,
    ready: Prepared,
    position: _Position,
    agent: Any,
    best: saving.Best,
    failed: Failure,
    sampled: list[dict[str, Any]],
) -> dict[str, Any]:
    trainer, seeds = job.trainer, job.seeds
    sampled_scores = reporting.scores(sampled)
    changed = job.lanes.hyperparameters if job.lanes.population is not None else ()
    numbers = {name: np.asarray(agent.hyperparameters[name]) for name in changed}
    chunks = position.chunks - job.lanes.begin
    return {
        "config": trainer.config.name,
        "seeds": seeds,
        "env_steps": position.chunks * trainer.env_steps_per_chunk,
        "stopped_early": position.chunks < job.last_chunk,
        **reporting.scores(position.evaluations[-seeds:]),
        "iqm_sampled": sampled_scores["iqm"],
        "interval_sampled": sampled_scores["interval"],
        "episodes": trainer.config.evaluation.episodes,
        "best": [
            {"seed": seed, "env_steps": int(chunk) * trainer.env_steps_per_chunk, "return_mean": float(score)}
            for seed, (chunk, score) in enumerate(zip(best.chunk, best.score, strict=True))
        ],
        "failed_seeds": [int(seed) for seed in np.flatnonzero(np.asarray(failed.flag))],
        "failed_at": [
            int(iteration + 1) * trainer.env_steps_per_iteration
            for iteration in np.asarray(failed.iteration)[np.asarray(failed.flag)]
        ],
        **({"hyperparameters": numbers} if numbers else {}),
        "init_from": None if job.init_from is None else str(job.init_from),
        "compile_seconds": ready.compile_seconds,
        "run_seconds": position.seconds,
        "steps_per_second": chunks * trainer.env_steps_per_chunk * seeds / position.seconds,
        "device": jax.local_devices()[0].device_kind,
        "devices": job_mesh(trainer.config.train, seeds).size,
        "machine": provenance.machine(),
        "commit": provenance.commit(),
        "versions": checkpoint.versions(),
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
