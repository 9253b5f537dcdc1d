"""`run` and `resume`: a whole job from a config, host side. Chunks, progress, logs, evaluation, checkpoints, plot."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from rollax.errors import InputError
from rollax.experiments import checkpoint, debugging, loggers, memory, provenance, reporting, run_folder, saving
from rollax.experiments import config as configs
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.evaluation import Evaluation, make_evaluate
from rollax.experiments.hooks import Hooks, hook_point
from rollax.experiments.sharding import over_seeds, padded, seed_mesh, take_seeds
from rollax.experiments.trainer import Trainer, TrainState, axes, make_trainer

EVALUATION_STREAM = 0x6576616C
"""Folded into a seed's key for its evaluations, which never advance the training's own key."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gives back."""

    state: TrainState  # leaves [S, ...] but for the clock
    best: saving.Best
    summary: dict[str, Any]  # as in summary.json
    evaluations: list[dict[str, Any]]  # as in evaluations.csv
    folder: Path | None  # where the files are; None if none were asked for


@dataclasses.dataclass(frozen=True)
class _Programs:
    """The compiled programs of one run, each compiled once, and what they start from."""

    chunk: Any
    greedy: Any
    sampled: Any
    keep_best: Any
    start: saving.Saved
    seed_keys: jax.Array  # key [S padded]
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class _Job:
    """One run: what it trains, and where it writes."""

    trainer: Trainer
    seeds: int
    stop: threading.Event  # set to end it after the chunk
    progress: bool
    debug: bool = False
    init_from: Path | None = None
    folder: run_folder.RunFolder | None = None
    hooks: Hooks | None = None

    @property
    def env_steps(self) -> int:
        """Environment steps of one seed in the whole run."""
        return self.trainer.num_chunks * self.trainer.env_steps_per_chunk


@dataclasses.dataclass(frozen=True)
class _Position:
    """Where a run is."""

    saved: saving.Saved
    chunks: int = 0  # done
    seconds: float = 0.0  # spent in them, compilation apart
    evaluations: list[dict[str, Any]] = dataclasses.field(default_factory=list)


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
) -> Result:
    """Trains `seeds` seeds in one job on all devices of this process.

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

    Raises:
        InputError: The config cannot work or the folder cannot be written; nothing has been compiled yet. With
            `debug`, a NaN; it says where.
        KeyboardInterrupt: It was interrupted; it says how to go on.
        OSError: A file cannot be written; older checkpoints are as they were.
    """
    if isinstance(config, str | Path):
        config = configs.load(config)
    if not 1 <= seeds <= run_folder.MAX_SEEDS:
        raise InputError(f"seeds = {seeds} must be between 1 and {run_folder.MAX_SEEDS}.")
    if debug and seeds != 1:
        raise InputError(f"seeds = {seeds} cannot be debugged at once: give 1.")
    loggers.check(config.log)
    trainer = make_trainer(config)
    evaluate = make_evaluate(config)
    other = None if init_from is None else Path(init_from).absolute()
    agent = None if other is None else saving.agents_of(other, trainer, seeds)
    if out is not None:
        if other is not None and other.resolve() == Path(out).resolve():
            raise InputError(f"--out {str(out)!r} is the run that --init-from starts from: choose another folder.")
        run_folder.check(out, overwrite)
    with _stop_requested(out is not None) as stop:
        job = _Job(trainer, seeds, stop, progress, debug, other, hooks=hooks)
        programs = _compile(job, evaluate)
        saved = programs.start if agent is None else saving.initialised(programs.start, agent)
        if out is None:
            return _finish(job, programs, _train(job, programs, _Position(saved)))
        folder = run_folder.create(out, overwrite)  # once nothing can fail that has to do with the config
        job = dataclasses.replace(job, folder=folder)
        start = {"seeds": seeds, "init_from": None if other is None else str(other)}
        folder.write_manifest({"format": checkpoint.FORMAT, "versions": checkpoint.versions(), **start})
        folder.write_config(configs.to_toml(config))
        with folder.locked():
            return _finish(job, programs, _train(job, programs, _Position(saved)))


def resume(folder: str | Path, *, progress: bool = False, hooks: Hooks | None = None) -> Result:
    """Goes on with an interrupted run from its last checkpoint, to the bits that it would have come to.

    Equal bits need the same packages, number of devices and kind of processor; other packages or devices give a
    warning. Rows that were logged after the checkpoint are dropped, and come again.

    Args:
        folder: The folder of the run.
        progress: As of `run`.
        hooks: As of `run`; those that the run was begun with, to come to the same bits.

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
    loggers.check(config.log)
    trainer = make_trainer(config)
    start = opened.read_manifest()
    other = Path(start["init_from"]) if start.get("init_from") else None
    numbers = checkpoint.numbers(opened.checkpoints_path)
    path = opened.checkpoints_path / str(numbers[-1]) if numbers else None
    with opened.locked(), _stop_requested() as stop:
        job = _Job(trainer, start["seeds"], stop, progress, init_from=other, folder=opened, hooks=hooks)
        manifest = None if path is None else checkpoint.read_manifest(path)
        if manifest is not None and (manifest.get("seeds") != job.seeds or numbers[-1] > trainer.num_chunks):
            raise InputError(
                f"checkpoint {str(path)!r} is not one of this run (chunk {numbers[-1]} of {trainer.num_chunks}, "
                f"{manifest.get('seeds')} seeds of {job.seeds}): restore config.toml and manifest.json, or delete it."
            )
        programs = _compile(job, make_evaluate(trainer.config))
        position = _Position(programs.start)
        if path is None and other is not None:
            agent = saving.agents_of(other, trainer, job.seeds)
            position = _Position(saving.initialised(programs.start, agent))
        if path is not None and manifest is not None:
            checkpoint.warn_of_other_versions(path, manifest)
            saved = saving.restored(path, manifest, job.seeds, programs.start)
            position = _Position(saved, numbers[-1], manifest["seconds"])
        opened.drop_after(position.chunks * trainer.env_steps_per_chunk)
        position = dataclasses.replace(position, evaluations=opened.evaluation_records())
        return _finish(job, programs, _train(job, programs, position))


def _compile(job: _Job, evaluate: Any) -> _Programs:
    started = time.perf_counter()
    trainer = debugging.checked(job.trainer) if job.debug else job.trainer
    mesh = seed_mesh(job.seeds)
    root = jax.random.key(trainer.config.train.seed)
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(padded(job.seeds, mesh)))
    if job.debug:
        evaluate = debugging.watched(evaluate)
        state = debugging.of_one_seed(debugging.watched(trainer.init), (0,), axes())(seed_keys)
    else:
        init = over_seeds(trainer.init, mesh, (0,), axes())
        memory.require_room(trainer.config, jax.eval_shape(init, seed_keys))
        state = init(seed_keys)

    def compiled(function: Any, in_axes: Any, out_axes: Any, *arguments: Any, donate: tuple[int, ...] = ()) -> Any:
        if job.debug:
            return debugging.of_one_seed(function, in_axes, out_axes)
        return over_seeds(function, mesh, in_axes, out_axes, donate).lower(*arguments).compile()

    def evaluate_seed(agent_state: Any, seed_key: jax.Array, index: jax.Array, explore: bool) -> Evaluation:
        key = jax.random.fold_in(jax.random.fold_in(seed_key, EVALUATION_STREAM), index)
        return evaluate(agent_state, key, explore=explore)

    chunk = compiled(trainer.chunk, (axes(),), (axes(), 0), state, donate=(0,))
    index = jnp.zeros((), jnp.int32)
    greedy, sampled = (
        compiled(functools.partial(evaluate_seed, explore=explore), (0, 0, None), 0, state.agent, seed_keys, index)
        for explore in (False, True)
    )
    best = over_seeds(saving.no_best, mesh, (0,), 0)(state.agent)
    evaluation = jax.eval_shape(greedy, state.agent, seed_keys, index) if job.debug else greedy.out_info
    keep_best = compiled(saving.keep_best, (0, 0, 0, None), 0, best, state.agent, evaluation, index, donate=(0,))
    jax.block_until_ready(state)
    if job.debug:
        debugging.print_shapes(take_seeds(state, axes(), 0))
    return _Programs(
        chunk, greedy, sampled, keep_best, saving.Saved(state, best), seed_keys, time.perf_counter() - started
    )


def _train(job: _Job, programs: _Programs, start: _Position) -> _Position:
    """Runs every chunk that is left; the host logs one chunk while the devices work on the next."""
    trainer, folder, seeds = job.trainer, job.folder, job.seeds
    evaluation = trainer.config.evaluation
    every = evaluation.every or -(-trainer.config.train.total_env_steps // 20)
    chunks_per_evaluation = max(1, -(-every // trainer.env_steps_per_chunk))
    state, best, evaluations = start.saved.state, start.saved.best, start.evaluations
    started = time.perf_counter()
    pending: list[tuple[int, Any, Evaluation | None]] = []
    done = start.chunks
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(
            tqdm(total=job.env_steps * seeds, unit=" env steps", unit_scale=True, disable=not job.progress)
        )
        bar.update(start.chunks * trainer.env_steps_per_chunk * seeds)
        outputs = [] if folder is None else loggers.open_all(folder, trainer.config.log, trainer.config.name)
        for output in outputs:
            stack.callback(output.close)
        keeper = stack.enter_context(saving.Keeper(trainer, seeds, folder))

        def log() -> bool:
            """Logs the last chunk, and returns whether a hook ends the run."""
            index, metrics, evaluated = pending.pop()
            env_steps = index * trainer.env_steps_per_chunk
            metrics_rows = reporting.metrics_rows(metrics, env_steps, seeds)
            ends = False
            for output in outputs:
                output.metrics(metrics_rows)
            if evaluated is not None:
                rows = reporting.evaluation_rows(evaluated, env_steps, seeds)
                if job.hooks is not None:
                    shown = hook_point(state.agent, programs.seed_keys, rows, evaluations, index)
                    ends = job.hooks.call(shown)
                evaluations.extend(rows)
                for output in outputs:
                    output.evaluations(rows)
                bar.set_postfix_str(reporting.progress(rows), refresh=False)
            bar.update(trainer.env_steps_per_chunk * seeds)
            return ends

        for index in range(start.chunks + 1, trainer.num_chunks + 1):
            state, metrics = programs.chunk(state)
            evaluated = None
            if index % chunks_per_evaluation == 0 or index == trainer.num_chunks:
                number = jnp.asarray(index, jnp.int32)
                evaluated = programs.greedy(state.agent, programs.seed_keys, number)
                best = programs.keep_best(best, state.agent, evaluated, number)
            if pending:
                log()
            pending.append((index, metrics, evaluated))
            done = index
            if evaluated is not None and job.hooks is not None and log():
                break
            stopping = job.stop.is_set() and index < trainer.num_chunks
            if stopping or keeper.is_due(index):
                if pending:
                    log()  # rows first: what a checkpoint is resumed from must have been logged up to it
                keeper.save(index, saving.Saved(state, best), start.seconds + time.perf_counter() - started)
            if stopping:
                assert folder is not None
                raise KeyboardInterrupt(  # once the checkpoint is complete, on the way out
                    f"stopped after {index * trainer.env_steps_per_chunk:,} steps of each seed; go on with: "
                    f"rollax train --resume {folder.path}"
                )
        if pending:
            log()
        jax.block_until_ready(state)
    seconds = start.seconds + time.perf_counter() - started
    return _Position(saving.Saved(state, best), done, seconds, evaluations)


@contextlib.contextmanager
def _stop_requested(enabled: bool = True) -> Iterator[threading.Event]:
    """Yields an event that the first interrupt sets; the second one is as usual. In the main thread alone."""
    event = threading.Event()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)
        print("\nrollax: ending after this chunk and a checkpoint; again to end at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(job: _Job, programs: _Programs, position: _Position) -> Result:
    """Evaluates with exploration too, and writes what a finished run leaves."""
    seeds, folder = job.seeds, job.folder
    index = jnp.asarray(position.chunks, jnp.int32)
    sampled = programs.sampled(position.saved.state.agent, programs.seed_keys, index)
    saved = take_seeds(position.saved, saving.SAVED_AXES, slice(seeds))
    saved = jax.device_put(saved, jax.local_devices()[0])
    summary = _summary(job, programs, position, saved, reporting.evaluation_rows(sampled, 0, seeds))
    if folder is not None:
        for name, agent in (("final", saved.state.agent), ("best", saved.best.agent)):
            folder.remove_checkpoint(name)  # of a finish that was cut short
            checkpoint.save(folder.checkpoints_path / name, agent)
        folder.write_summary(summary)
        from rollax.experiments import plots  # matplotlib takes a second to import

        plots.plot_run(folder.path)
    return Result(saved.state, saved.best, summary, position.evaluations, None if folder is None else folder.path)


def _summary(
    job: _Job, programs: _Programs, position: _Position, saved: saving.Saved, sampled: list[dict[str, Any]]
) -> dict[str, Any]:
    trainer, seeds = job.trainer, job.seeds
    sampled_scores = reporting.scores(sampled)
    failed = saved.state.failed
    env_steps = position.chunks * trainer.env_steps_per_chunk
    return {
        "config": trainer.config.name,
        "seeds": seeds,
        "env_steps": env_steps,
        "stopped_early": position.chunks < trainer.num_chunks,
        **reporting.scores(position.evaluations[-seeds:]),
        "iqm_sampled": sampled_scores["iqm"],
        "interval_sampled": sampled_scores["interval"],
        "episodes": trainer.config.evaluation.episodes,
        "best": [
            {"seed": seed, "env_steps": int(chunk) * trainer.env_steps_per_chunk, "return_mean": float(score)}
            for seed, (chunk, score) in enumerate(zip(saved.best.chunk, saved.best.score, strict=True))
        ],
        "failed_seeds": [int(seed) for seed in np.flatnonzero(np.asarray(failed.flag))],
        "failed_at": [
            int(iteration + 1) * trainer.env_steps_per_iteration
            for iteration in np.asarray(failed.iteration)[np.asarray(failed.flag)]
        ],
        "init_from": None if job.init_from is None else str(job.init_from),
        "compile_seconds": programs.compile_seconds,
        "run_seconds": position.seconds,
        "steps_per_second": env_steps * seeds / position.seconds,
        "device": jax.local_devices()[0].device_kind,
        "devices": seed_mesh(seeds).size,
        "machine": provenance.machine(),
        "commit": provenance.commit(),
        "versions": checkpoint.versions(),
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
