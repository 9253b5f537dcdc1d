"""`sweep` and `resume_sweep`: the members of a `[sweep]` table trained, compared, and the best one tested.

Members that differ in hyperparameters alone are lanes of one program, each with each tuning seed; others are trained in
turn. Every such job is a run of its own in the folder of the sweep, so a sweep that was interrupted goes on where its
last job has its last checkpoint; all else follows from the config and the results of jobs.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.errors import InputError
from rollax.experiments import (
    checkpoint,
    compiler,
    files,
    members,
    processes,
    reporting,
    run_folder,
    runner,
    sweep_results,
)
from rollax.experiments import config as configs
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.interrupts import stop_requested
from rollax.experiments.lanes import Lanes, Source
from rollax.experiments.members import Member
from rollax.experiments.memory import available_memory, largest_number_of_seeds
from rollax.experiments.population import Population
from rollax.experiments.programs import Programs
from rollax.experiments.sweep_config import SweepConfig
from rollax.experiments.sweep_results import LaneResult, Score
from rollax.experiments.trainer import Trainer, make_trainer, with_horizon

_MEMORY_SHARE = 0.9
"""Of the memory that is free, what a sweep may take where the config sets none."""

_Pair = tuple[int, int]
"""The number of a member, and of one of its tuning seeds."""


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """What a sweep gives back."""

    rows: list[dict[str, Any]]  # as in sweep.csv, the best member first
    best: ExperimentConfig | None  # as in best.toml; None where no member has a score
    summary: dict[str, Any]  # as in summary.json
    folder: Path


@dataclasses.dataclass(frozen=True)
class _Group:
    """Members that are one program."""

    members: list[Member]
    trainer: Trainer
    ends: list[int]  # the chunk after which each rung ends
    limit: int = 0  # lanes in one job at most
    compiled: dict[int, Programs] = dataclasses.field(default_factory=dict)  # by their number of lanes

    def numbers(self, member: Member) -> dict[str, float]:
        """Returns the swept hyperparameters of a member, where a horizon of 0 stands for the whole run."""
        given = {name: value for name, value in member.numbers.items() if name != "horizon" or value}
        full = with_horizon(member.config, self.trainer.num_iterations, given)
        return {name: full[name] for name in member.numbers}


@dataclasses.dataclass(frozen=True)
class _Sweep:
    """A sweep at work."""

    config: ExperimentConfig
    groups: list[_Group]
    folder: run_folder.RunFolder
    progress: bool
    stop: threading.Event  # set to end it after the chunk

    @property
    def settings(self) -> SweepConfig:
        """The `[sweep]` table."""
        return _settings(self.config)


def sweep(
    config: ExperimentConfig | str | Path,
    seeds: int | None = None,
    *,
    out: str | Path,
    overwrite: bool = False,
    progress: bool = False,
) -> SweepResult:
    """Trains every member of a config's `[sweep]` on its tuning seeds, and the best one on fresh test seeds.

    Members that differ in hyperparameters alone are trained as one vmapped program, as many lanes at once as fit into
    the memory; members of other structure follow in turn.

    Args:
        config: A config with a `[sweep]` table, the name of a shipped one, or the path of a TOML file.
        seeds: Tuning seeds of each member, in place of `sweep.seeds`.
        out: The folder to write.
        overwrite: Whether a run or sweep that is already in `out` may be replaced.
        progress: Whether to show progress bars, and the memory that the sweep needs, on standard error.

    Raises:
        InputError: The config cannot work or the folder cannot be written; nothing has been compiled yet.
        KeyboardInterrupt: It was interrupted; it says how to go on.
        OSError: A file cannot be written; finished work is as it was.
    """
    if isinstance(config, str | Path):
        config = configs.load(config)
    if processes.count() > 1:
        raise InputError("a sweep is one process: start it without --distributed.")
    if config.sweep is None:
        raise InputError("[sweep] is missing: name what to sweep under [sweep.parameters].")
    if seeds is not None:
        config = dataclasses.replace(config, sweep=dataclasses.replace(config.sweep, seeds=seeds))
    config = configs.check(config)
    groups = _groups(config)
    for group in groups:
        compiler.check(group.trainer.config.compiler)
    run_folder.check(out, overwrite)
    groups = _limited(config, groups, progress)
    folder = run_folder.create(out, overwrite)
    limits = [group.limit for group in groups]
    folder.write_manifest(
        {"format": checkpoint.FORMAT, "versions": checkpoint.versions(), "seeds": 1, "limits": limits}
    )
    folder.write_config(configs.to_toml(config))
    return _go_on(config, groups, folder, progress)


def resume_sweep(folder: str | Path, *, progress: bool = False) -> SweepResult:
    """Goes on with an interrupted sweep, to the bits that it would have come to; see `resume`.

    Args:
        folder: The folder of the sweep.
        progress: As of `sweep`.

    Raises:
        InputError: The folder holds no sweep or a finished one, or a checkpoint in it cannot be read.
        KeyboardInterrupt: As of `sweep`.
        OSError: As of `sweep`.
    """
    opened = run_folder.open(folder)
    config = configs.load(opened.config_path)
    if config.sweep is None:
        raise InputError(f"{str(opened.path)!r} is no sweep: go on with a run by rollax train --resume {opened.path}.")
    if opened.summary_path.exists():
        raise InputError(f"sweep {str(opened.path)!r} is finished: there is nothing to resume.")
    groups = _groups(config)
    limits = opened.read_manifest().get("limits")
    limits = limits if isinstance(limits, list) else []
    if len(limits) != len(groups) or not all(isinstance(limit, int) and limit > 0 for limit in limits):
        raise InputError(f"{str(opened.manifest_path)!r} is not the manifest of this sweep: restore it.")
    groups = [dataclasses.replace(group, limit=limit) for group, limit in zip(groups, limits, strict=True)]
    return _go_on(config, groups, opened, progress)


def _settings(config: ExperimentConfig) -> SweepConfig:
    assert config.sweep is not None
    return config.sweep


def _groups(config: ExperimentConfig) -> list[_Group]:
    """Returns the groups of a checked config, after building the trainer of each."""
    settings = _settings(config)
    found = []
    for group in members.groups(members.members(config)):
        trainer = make_trainer(group[0].config)
        found.append(_Group(group, trainer, _rung_ends(settings, trainer)))
    if settings.population is not None:
        if len(found) > 1:
            raise InputError(
                "sweep.population copies agents between members, and members of other structure cannot take them over: "
                "sweep numbers of the agent alone."
            )
        if not found[0].members[0].numbers:
            raise InputError("sweep.population changes numbers of the agent, and none is swept: add one.")
        exchanges = (found[0].trainer.num_chunks - 1) // runner.chunks_per_evaluation(found[0].trainer)
        if settings.population.period > exchanges:
            raise InputError(
                f"sweep.population.period = {settings.population.period} leaves no exchange, as a run has {exchanges} "
                "evaluations before its last: give a smaller one, or a smaller evaluation.every."
            )
    return found


def _rung_ends(settings: SweepConfig, trainer: Trainer) -> list[int]:
    """Returns the chunk after which each rung of a sweep ends; without halving there is one."""
    chunks, halving = trainer.num_chunks, settings.halving
    if halving is None:
        return [chunks]
    ends = [max(1, round(chunks * halving.keep ** (halving.rungs - 1 - rung))) for rung in range(halving.rungs)]
    if any(end >= later for end, later in itertools.pairwise(ends)):
        raise InputError(
            f"sweep.halving.rungs = {halving.rungs} with keep = {halving.keep} has rungs shorter than the {chunks} "
            "chunks of a run can tell apart: give fewer rungs, or a smaller log.every."
        )
    return ends


def _limited(config: ExperimentConfig, groups: list[_Group], progress: bool) -> list[_Group]:
    """Returns the groups with the number of lanes that one job of each may have, and says what memory they need."""
    settings = _settings(config)
    available = int(settings.memory_gb * 1e9) or int(_MEMORY_SHARE * available_memory())
    limited = []
    for number, group in enumerate(groups):
        lanes = len(group.members) * settings.seeds
        limit = min(settings.max_lanes or lanes, lanes)
        if not settings.max_lanes:
            limit, memory = largest_number_of_seeds(group.members[0].config, lanes, available)
            if progress:
                print(
                    f"program {number + 1} of {len(groups)}: {len(group.members)} members x {settings.seeds} seeds "
                    f"need {memory.total / 1e9:,.3f} GB of {available / 1e9:,.3f}; {limit} lanes at once",
                    file=sys.stderr,
                )
        if settings.population is not None and limit < lanes:
            raise InputError(
                f"sweep.population needs all its {lanes} lanes in one program, and {limit} are allowed: give fewer "
                "members or seeds, or raise sweep.max_lanes or sweep.memory_gb."
            )
        limited.append(dataclasses.replace(group, limit=limit))
    return limited


def _go_on(config: ExperimentConfig, groups: list[_Group], folder: run_folder.RunFolder, progress: bool) -> SweepResult:
    """Does all that is left of a sweep."""
    try:
        with folder.locked(), stop_requested() as stop:
            work = _Sweep(config, groups, folder, progress, stop)
            scores = _tune(work)
            rows = [sweep_results.row(rank, found) for rank, found in enumerate(scores, start=1)]
            files.replace_file(work.folder.sweep_path, sweep_results.table(rows))
            from rollax.experiments import sweep_plots  # matplotlib takes a second to import

            sweep_plots.plot_sweep(work.config, rows, work.folder.sweep_plot_path)
            best = None if math.isnan(scores[0].iqm) else sweep_results.best_config(scores[0])
            tested: list[LaneResult] = []
            if best is not None:
                files.replace_file(work.folder.best_config_path, configs.to_toml(best).encode())
                tested = _test(work, best, scores[0].member)
            summary = _summary(work, scores, tested)
            work.folder.write_summary(summary)
            return SweepResult(rows, best, summary, work.folder.path)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; go on with: rollax sweep --resume {work.folder.path}") from None


def _tune(work: _Sweep) -> list[Score]:
    """Trains all members, those that a rung leaves over in the next one, and returns their scores, best first."""
    everyone = sorted((member for group in work.groups for member in group.members), key=lambda member: member.index)
    alive = {member.index for member in everyone}
    places: dict[_Pair, Source] = {}  # where each member's seeds were trained last
    scores: dict[int, Score] = {}
    rungs = len(work.groups[0].ends)
    for rung in range(rungs):
        before = {place.job for place in places.values()}
        results, places = _train_rung(work, rung, alive, places)
        for name in before:
            run_folder.open(work.folder.parts_path / name).remove_checkpoint("state")
        for member in everyone:
            if member.index in alive:
                found = [results[member.index, seed] for seed in range(work.settings.seeds)]
                scores[member.index] = sweep_results.score(member, found, rung)
        if rung < rungs - 1 and work.settings.halving is not None:
            ranked = sorted((scores[index] for index in alive), key=lambda found: found.order)
            alive = {found.member.index for found in ranked[: math.ceil(len(ranked) * work.settings.halving.keep)]}
    return sorted(scores.values(), key=lambda found: found.order)


def _train_rung(
    work: _Sweep, rung: int, alive: set[int], places: dict[_Pair, Source]
) -> tuple[dict[_Pair, LaneResult], dict[_Pair, Source]]:
    """Trains the members that are left to the end of a rung; returns how and where each of their seeds ended."""
    results: dict[_Pair, LaneResult] = {}
    after: dict[_Pair, Source] = {}
    for number, group in enumerate(work.groups):
        left = [member.index for member in group.members if member.index in alive]
        pairs = [(index, seed) for index in left for seed in range(work.settings.seeds)]
        for part, chosen in enumerate(_split(pairs, group.limit)):
            name = f"{rung}-{number}-{part}"
            sources = tuple(places[pair] for pair in chosen) if rung else ()
            lanes = _lanes(work.settings, group, chosen, rung, sources)
            found = _train(work, group, name, group.members[0].config, lanes)
            results |= dict(zip(chosen, found, strict=True))
            after |= {pair: Source(name, lane) for lane, pair in enumerate(chosen)}
    return results, after


def _split(pairs: list[_Pair], limit: int) -> list[list[_Pair]]:
    """Returns members and seeds in jobs of nearly equal numbers of lanes, none above the limit."""
    jobs = -(-len(pairs) // limit)
    return [[pairs[index] for index in part] for part in np.array_split(np.arange(len(pairs)), jobs)] if pairs else []


def _lanes(
    settings: SweepConfig, group: _Group, pairs: Sequence[_Pair], rung: int, sources: tuple[Source, ...]
) -> Lanes:
    by_index = {member.index: member for member in group.members}
    numbers = [group.numbers(by_index[index]) for index, _ in pairs]
    population = None
    if settings.population is not None:
        population = Population(
            seeds=settings.seeds,
            bounds={name: members.bounds(settings, name) for name in numbers[0]},
            seed=settings.seed,
            **dataclasses.asdict(settings.population),
        )
    return Lanes(
        seeds=tuple(seed for _, seed in pairs),
        hyperparameters={name: [lane[name] for lane in numbers] for name in numbers[0]},
        tuning=True,
        end=group.ends[rung],
        begin=group.ends[rung - 1] if rung else 0,
        sources=sources,
        population=population,
    )


def _train(work: _Sweep, group: _Group, name: str, config: ExperimentConfig, lanes: Lanes) -> list[LaneResult]:
    """Returns how the lanes of a job ended, after training it, or what is left of it."""
    if work.stop.is_set():
        raise KeyboardInterrupt
    path = work.folder.parts_path / name
    if not (path / "config.toml").exists():  # not begun, or killed before anything was trained
        if path.exists():
            shutil.rmtree(path)
        runner.run_lanes(config, lanes, path, progress=work.progress, compiled=group.compiled)
    elif not (path / "summary.json").exists():
        runner.resume(path, progress=work.progress, compiled=group.compiled)
    return sweep_results.lane_results(run_folder.open(path))


def _test(work: _Sweep, best: ExperimentConfig, member: Member) -> list[LaneResult]:
    """Trains the best member on fresh seeds, those of a plain run of its config."""
    group = next(group for group in work.groups if member in group.members)
    numbers = group.numbers(dataclasses.replace(member, config=best))
    found: list[LaneResult] = []
    for part, chosen in enumerate(_split([(0, seed) for seed in range(work.settings.test_seeds)], group.limit)):
        hyperparameters = {name: [value] * len(chosen) for name, value in numbers.items()}
        lanes = Lanes(tuple(seed for _, seed in chosen), hyperparameters)
        found += _train(work, group, f"test-{part}", best, lanes)
    return found


def _summary(work: _Sweep, scores: list[Score], tested: list[LaneResult]) -> dict[str, Any]:
    best = scores[0]
    jobs = [run_folder.open(path).read_summary() for path in sorted(work.folder.parts_path.iterdir())]
    test = None
    if tested:
        found = reporting.scores([dict(lane.evaluation) for lane in tested])
        test = {"seeds": len(tested), **found, "failed": sum(lane.failed for lane in tested)}
    return {
        "config": work.config.name,
        "members": len(scores),
        "programs": len(work.groups),
        "tuning_seeds": work.settings.seeds,
        "best": {"member": best.member.index, "values": best.values, "iqm": best.iqm, "interval": best.interval},
        "test": test,
        "jobs": len(jobs),
        "compile_seconds": sum(job["compile_seconds"] for job in jobs),
        "run_seconds": sum(job["run_seconds"] for job in jobs),
        "device": jax.local_devices()[0].device_kind,
        "versions": checkpoint.versions(),
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
