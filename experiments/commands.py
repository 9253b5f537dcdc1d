"""What the commands of `rollax` do and print, each a function of its arguments. Those that compute import JAX."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.errors import InputError, nearest
from rollax.experiments import config as configs
from rollax.experiments import files
from rollax.experiments.startup import cores, start_jax
from rollax.importing import import_object, is_import_path


def train(arguments: argparse.Namespace) -> int:
    """Trains, or goes on with a run; the status is 1 if every seed failed."""
    if arguments.resume is not None:
        result = _resume(arguments)
    elif arguments.config is None:
        raise InputError("rollax train needs a CONFIG, or --resume RUN: see rollax list configs.")
    else:
        result = _start(arguments)
    if arguments.distributed is not None and not _is_first_process():
        return 0
    summary = result.summary
    print(
        f"{summary['config']}: {_score(summary, summary['seeds'])} after {summary['env_steps']:,} steps of each seed, "
        f"{summary['steps_per_second']:,.0f} steps per second"
    )
    if math.isnan(summary["iqm"]):
        print("no episode ended: set or raise evaluation.step_cap, or add the time_limit transform", file=sys.stderr)
    failed = summary["failed_seeds"]
    if failed:
        print(f"failed, their learners stopped being finite: seeds {', '.join(map(str, failed))}", file=sys.stderr)
    print(f"curves: {_relative(result.folder / 'curves.png')}")
    return 1 if len(failed) == summary["seeds"] else 0


def _start(arguments: argparse.Namespace) -> Any:
    seeds = 1 if arguments.seeds is None else arguments.seeds
    if arguments.distributed is not None and arguments.out is None:
        raise InputError("--distributed needs --out DIR, the same folder for all processes.")
    overrides = list(arguments.set)
    if arguments.seed is not None:
        overrides.append(f"train.seed={arguments.seed}")
    tables = configs.read_tables(arguments.config, overrides, arguments.agent)
    _start_processes(arguments, tables, seeds)
    config = configs.from_dict(tables)
    from rollax.experiments import runner

    return runner.run(
        config,
        seeds=seeds,
        out=arguments.out or _new_folder(config.name),
        overwrite=arguments.overwrite,
        progress=not arguments.quiet,
        init_from=arguments.init_from,
        debug=arguments.debug,
        profile=arguments.profile,
    )


def _resume(arguments: argparse.Namespace) -> Any:
    settings = {
        "CONFIG": arguments.config,
        "--seeds": arguments.seeds,
        "--seed": arguments.seed,
        "--out": arguments.out,
        "--overwrite": arguments.overwrite,
        "--set": arguments.set,
        "--agent": arguments.agent,
        "--init-from": arguments.init_from,
        "--debug": arguments.debug,
        "--profile": arguments.profile,
    }
    _only_resume(settings)
    from rollax.experiments import run_folder

    folder = run_folder.open(arguments.resume)
    _start_processes(arguments, configs.read_tables(folder.config_path), int(folder.read_manifest()["seeds"]))
    from rollax.experiments import runner

    return runner.resume(arguments.resume, progress=not arguments.quiet)


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _start_processes(arguments: argparse.Namespace, tables: Mapping[str, Any], seeds: int) -> None:
    """Starts JAX here for a run of a config and, if the job has several processes, joins them."""
    start_jax(configs.spread_count(tables, seeds))
    if arguments.distributed is not None:
        from rollax.experiments import processes

        processes.join(arguments.distributed or None)


def _is_first_process() -> bool:
    from rollax.experiments import processes

    return processes.is_first()


def _only_resume(settings: Mapping[str, Any]) -> None:
    given = [name for name, value in settings.items() if value]
    if given:
        raise InputError(f"--resume goes on with a run as it was begun, so {', '.join(given)} can't be given with it.")


def sweep(arguments: argparse.Namespace) -> int:
    """Trains the members of a sweep and tests the best; the status is 1 if no member has a score."""
    progress = not arguments.quiet
    start_jax(cores())
    if arguments.resume is not None:
        settings = {"CONFIG": arguments.config, "--seeds": arguments.seeds, "--out": arguments.out}
        _only_resume({**settings, "--overwrite": arguments.overwrite, "--set": arguments.set})
        from rollax.experiments import sweeps

        result = sweeps.resume_sweep(arguments.resume, progress=progress)
    elif arguments.config is None:
        raise InputError("rollax sweep needs a CONFIG with a [sweep] table, or --resume DIR.")
    else:
        config = configs.load(arguments.config, arguments.set)
        out = arguments.out or _new_folder(f"{config.name}-sweep")
        from rollax.experiments import sweeps

        result = sweeps.sweep(config, arguments.seeds, out=out, overwrite=arguments.overwrite, progress=progress)
    _print_table(result.rows[:10], tuple(result.rows[0]))
    test = result.summary["test"]
    if test is not None:
        print(f"the best on fresh seeds: {_score(test, test['seeds'])}")
    names = ("sweep.csv", "sweep.png") + (("best.toml",) if result.best is not None else ())
    print(f"files: {', '.join(str(_relative(result.folder / name)) for name in names)}")
    if result.best is None:
        print("no member finished an episode: set or raise evaluation.step_cap", file=sys.stderr)
    return 0 if result.best is not None else 1


def _relative(path: Path) -> Path:
    """Returns a path as it is named from the current folder, where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def evaluate(arguments: argparse.Namespace) -> None:
    """Plays the final or the best policies of a run again."""
    if not 0 <= arguments.seed < 2**31:
        raise InputError(f"--seed = {arguments.seed} is no seed: give a whole number from 0 to 2147483647.")
    start_jax(1)
    from rollax.experiments import run_evaluation

    scores = run_evaluation.evaluate_run(arguments.run, arguments.episodes, arguments.seed, best=arguments.best)
    _print_table(scores["seeds"], ("seed", "return_mean", "return_std", "length_mean", "finished", "unfinished"))
    print(_score(scores, len(scores["seeds"])))


def plot(arguments: argparse.Namespace) -> None:
    """Draws the curves of a run again."""
    from rollax.experiments import plots

    print(plots.plot_run(arguments.run))


def compare(arguments: argparse.Namespace) -> None:
    """Compares the algorithms of finished runs, and writes a report."""
    from rollax.experiments import comparison, report

    out = arguments.out or _new_folder("compare")
    files.require_folder(out, "--out")
    if arguments.json is not None:
        files.require_file(arguments.json, "--json")
    options = {name: getattr(arguments, name) for name in ("normalise", "threshold", "resamples")}
    compared = comparison.compare(arguments.runs, out=out, **options)
    if arguments.json is not None:
        files.replace_file(arguments.json, files.json_text(dataclasses.asdict(compared)))
    for rows in (report.aggregate_rows(compared), report.improvement_rows(compared)):
        if rows:
            _print_table(rows, tuple(rows[0]))
    for note in compared.notes:
        print(note, file=sys.stderr)
    print(f"report: {_relative(out / 'report.html')}")


def table(arguments: argparse.Namespace) -> None:
    """Trains configs and writes the page of their scores."""
    start_jax(arguments.seeds)
    from rollax.experiments import score_table

    options = {name: getattr(arguments, name) for name in ("seeds", "out", "docs", "minutes")}
    for outcome in score_table.run_table(arguments.configs, progress=not arguments.quiet, **options):
        print(outcome, flush=True)
    print(f"scores: {arguments.docs}")


def render(arguments: argparse.Namespace) -> None:
    """Draws an episode of a run."""
    if not arguments.seed.isdecimal() and arguments.seed != "best":
        raise InputError(f"--seed = {arguments.seed!r} is no seed of a run: give its number, or best.")
    os.environ.setdefault("MPLBACKEND", "Agg")  # jumanji draws with pyplot, which would open windows
    start_jax(1)
    from rollax.experiments.render import render_run

    episode = render_run(
        arguments.run,
        arguments.out,
        seed="best" if arguments.seed == "best" else int(arguments.seed),
        episode_seed=arguments.episode_seed,
        max_frames=arguments.max_frames,
        fps=arguments.fps,
    )
    whole = "" if episode.ended else ", not the whole episode"
    print(
        f"{arguments.out}: {len(episode.frames)} frames of {episode.length:,} steps, "
        f"return {episode.episode_return:,.2f}{whole}"
    )


def listing(arguments: argparse.Namespace) -> None:
    """Lists agents, environments and configs."""
    if arguments.kind is not None:
        print("\n".join(LISTINGS[arguments.kind]()))
        return
    for heading, lines in LISTINGS.items():
        print("\n  ".join([f"{heading}:", *lines()]))


def config(arguments: argparse.Namespace) -> None:
    """Tells what the keys of a config mean."""
    from rollax.experiments import config_help

    print(config_help.answer(arguments.key, arguments.agent))


def bench(arguments: argparse.Namespace) -> None:
    """Measures speed on this machine."""
    if arguments.json is not None:
        files.require_file(arguments.json, "--json")
    seeds = (1, 8) if arguments.seeds is None else (arguments.seeds,)
    start_jax(max(seeds))
    from rollax.experiments import bench, bench_compile, bench_logging, bench_replay

    rival = None if arguments.against is None else bench.Rival(arguments.against)
    if rival is not None and arguments.benchmark not in ("ppo", "dqn", "sac", "td3"):
        raise InputError(f"--against has no use with bench {arguments.benchmark}: give it with ppo, dqn, sac or td3.")
    benchmarks: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ppo": lambda: bench.run_ppo(seeds, arguments.memory, rival=rival),
        "dqn": lambda: bench.run_dqn(seeds, rival=rival),
        "sac": lambda: bench.run_sac(seeds, rival=rival),
        "td3": lambda: bench.run_td3(seeds, rival=rival),
        "env": bench.run_env,
        "compile": lambda: bench_compile.run_compile(seeds),
        "logging": lambda: bench_logging.run_logging(seeds),
        "replay": lambda: bench_replay.run_replay(seeds),
    }
    rows = benchmarks[arguments.benchmark]()
    _print_table(rows, tuple(rows[0]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def check_env(arguments: argparse.Namespace) -> int:
    """Looks for faults of an environment, or of all; the status is 1 if any is left."""
    from rollax import envs

    for name in arguments.allow:
        if name not in envs.FINDINGS:
            raise InputError(f"--allow {name!r} is no finding: {nearest(name, envs.FINDINGS)}")
    if arguments.all != (arguments.env is None) or arguments.all != (arguments.out is not None):
        raise InputError("rollax check-env needs MODULE:NAME or an id, or --all and --out FILE for all ids.")
    if arguments.all:
        return _check_all_envs(arguments)
    start_jax(1)
    env = import_object(arguments.env, "env") if is_import_path(arguments.env) else arguments.env
    found = envs.check(env, eager_steps=arguments.eager_steps, time_limit=arguments.time_limit)
    left = [finding for finding in found if finding.name not in arguments.allow]
    for finding in left:
        print(f"{finding.name}: {finding.sentence}")
    if not left:
        print(f"{arguments.env}: no findings" + (f" but those allowed ({len(found)})" if found else ""))
    return 1 if left else 0


def _check_all_envs(arguments: argparse.Namespace) -> int:
    from rollax.experiments.env_checks import check_all

    status = 0
    for result in check_all(_environments(), arguments.out):
        left = [name for name in result.findings if name not in arguments.allow]
        print(f"{result.env}: {result.error or ', '.join(left) or 'no findings'}", flush=True)
        status = max(status, int(bool(left or result.error)))
    return status


def _agents() -> list[str]:
    from rollax.agents.registry import AGENTS

    width = max(map(len, AGENTS))
    return [f"{name:{width}}  {description}" for name, description in AGENTS.items()]


def _environments() -> list[str]:
    from rollax.envs.catalogue import ENVIRONMENTS

    return list(ENVIRONMENTS)


LISTINGS: Mapping[str, Callable[[], list[str]]] = {
    "agents": _agents,
    "envs": _environments,
    "configs": configs.shipped,
}


def _score(scores: Mapping[str, Any], seeds: int) -> str:
    """Returns what all seeds together scored, as one phrase."""
    text = f"greedy return {scores['iqm']:,.2f}"
    if seeds > 1:
        low, high = scores["interval"]
        text = f"greedy return IQM {scores['iqm']:,.2f} [{low:,.2f}, {high:,.2f}] over {seeds} seeds"
    return f"{text} ({scores['unfinished']} episodes unfinished)" if scores["unfinished"] else text


def _print_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if isinstance(value, float) and 0 < abs(value) < 0.1:
        return f"{value:.3g}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
