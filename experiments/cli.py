"""The `rollax` command line. Only the commands that compute import JAX."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rollax
from rollax.errors import InputError, nearest
from rollax.experiments import config as configs
from rollax.experiments.startup import start_jax
from rollax.importing import import_object, is_import_path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    The status is 0 on success, 2 for a value that cannot work, 1 where the operating system refuses (a full disk) or
    every seed failed, and 130 after an interrupt; each but 0 comes with a sentence on standard error.

    Args:
        argv: The arguments after the program's name; those of this process when `None`.

    Raises:
        SystemExit: As argparse does, after `--help` and `--version` (0) and for arguments that it cannot read (2).
    """
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int | None] = arguments.command
    try:
        with _warnings_as_sentences():
            return command(arguments) or 0
    except InputError as error:
        print(f"rollax: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"rollax: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"rollax: {interrupt}" if str(interrupt) else "rollax: interrupted", file=sys.stderr)
        return 130


@contextlib.contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Shows the warnings that are meant for users without the file and line that they come from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_sentence(message: Warning | str, category: type[Warning], *place: Any, **where: Any) -> None:
            if category is UserWarning:
                print(f"rollax: warning: {message}", file=sys.stderr)
            else:
                show(message, category, *place, **where)

        warnings.showwarning = show_sentence
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rollax", description="Reinforcement-learning agents in JAX.")
    parser.add_argument("--version", action="version", version=f"rollax {rollax.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train an agent and write a run folder", allow_abbrev=False)
    train.add_argument("config", nargs="?", metavar="CONFIG", help="a name of `rollax list configs`, or a TOML file")
    train.add_argument("--seeds", type=int, metavar="N", help="seeds trained in one job (default 1)")
    train.add_argument("--seed", type=int, metavar="K", help="the root seed, train.seed of the config")
    train.add_argument("--out", type=Path, metavar="DIR", help="the run folder (default runs/CONFIG-DATE-TIME)")
    train.add_argument("--overwrite", action="store_true", help="replace a run that is in the folder already")
    train.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="override values of the config, as in agent.learning_rate=1e-3",
    )
    train.add_argument(
        "--agent",
        metavar="FILE:make",
        help="train this agent, from the defaults of its Config and not the [agent] table of another one's config",
    )
    train.add_argument("--resume", type=Path, metavar="RUN", help="go on with an interrupted run; alone, or --quiet")
    train.add_argument("--init-from", type=Path, metavar="RUN", help="start from the final parameters of another run")
    train.add_argument(
        "--debug", action="store_true", help="one seed without compiling, shapes, and where the first NaN arises; slow"
    )
    train.add_argument(
        "--distributed",
        nargs="?",
        const="",
        metavar="HOST:PORT,N,K",
        help="as process K of N; the first listens there (alone: found out, under SLURM, Kubernetes, on TPUs)",
    )
    train.add_argument("--quiet", action="store_true", help="show no progress bar")
    train.set_defaults(command=_train)

    sweep = commands.add_parser("sweep", help="train the members of a [sweep] and test the best", allow_abbrev=False)
    sweep.add_argument("config", nargs="?", metavar="CONFIG", help="a config with a [sweep] table, by name or file")
    sweep.add_argument("--seeds", type=int, metavar="N", help="tuning seeds of each member, sweep.seeds of the config")
    sweep.add_argument("--out", type=Path, metavar="DIR", help="the folder (default runs/CONFIG-sweep-DATE-TIME)")
    sweep.add_argument("--overwrite", action="store_true", help="replace a run or sweep in the folder")
    sweep.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as of train")
    sweep.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted sweep; alone, or --quiet")
    sweep.add_argument("--quiet", action="store_true", help="show no progress bars")
    sweep.set_defaults(command=_sweep)

    evaluate = commands.add_parser("eval", help="evaluate the policies of a run", allow_abbrev=False)
    evaluate.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    evaluate.add_argument(
        "--best", action="store_true", help="the best of each seed, not the final ones; noted in summary.json"
    )
    evaluate.add_argument(
        "--episodes", type=int, metavar="N", help="per seed (default: the config's; with --best ten times as many)"
    )
    evaluate.add_argument("--seed", type=int, default=0, metavar="K", help="chooses the episodes (default 0)")
    evaluate.set_defaults(command=_eval)

    plot = commands.add_parser("plot", help="draw curves.png of a run again", allow_abbrev=False)
    plot.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    plot.set_defaults(command=_plot)

    compare = commands.add_parser("compare", help="compare the algorithms of finished runs", allow_abbrev=False)
    compare.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, or NAME=RUN to name its algorithm")
    compare.add_argument("--out", type=Path, metavar="DIR", help="the report's folder (default runs/compare-DATE-TIME)")
    compare.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file as well")
    compare.add_argument("--normalise", type=Path, metavar="FILE", help='TOML lines "TASK" = [random, solved]')
    compare.add_argument("--threshold", type=float, metavar="X", help="of the optimality gap (default 1, normalised)")
    compare.add_argument("--resamples", type=int, default=2000, metavar="N", help="of each interval (default 2000)")
    compare.set_defaults(command=_compare)

    table = commands.add_parser("table", help="train configs and write the page of scores", allow_abbrev=False)
    table.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="names or TOML files (default: all that come along)"
    )
    table.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds of each run (default 10)")
    table.add_argument("--out", type=Path, default=Path("runs/table"), metavar="DIR", help="default runs/table")
    table.add_argument(
        "--docs", type=Path, default=Path("docs/scores.md"), metavar="FILE", help="default docs/scores.md"
    )
    table.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="begin no run after this time")
    table.add_argument("--quiet", action="store_true", help="show no progress bars")
    table.set_defaults(command=_table)

    render = commands.add_parser("render", help="draw an episode of a run's final agent", allow_abbrev=False)
    render.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    render.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .gif, or a .png: a sheet of frames, evenly spaced"
    )
    render.add_argument("--seed", default="0", metavar="I", help="the run's seed that plays, or best (default 0)")
    render.add_argument("--episode-seed", type=int, default=0, metavar="K", help="chooses the episode (default 0)")
    render.add_argument("--max-frames", type=int, metavar="N", help="frames at most (default 500; in a sheet 12)")
    render.add_argument("--fps", type=int, default=25, metavar="F", help="frames per second (default 25)")
    render.set_defaults(command=_render)

    listing = commands.add_parser("list", help="list agents, environments and configs", allow_abbrev=False)
    listing.add_argument("kind", nargs="?", choices=tuple(_LISTINGS), help="list only these, one a line")
    listing.set_defaults(command=_list)

    config = commands.add_parser("config", help="tell what the keys of a config mean", allow_abbrev=False)
    config.add_argument("key", nargs="?", metavar="KEY", help="a table, a field, an agent, or transforms")
    config.add_argument("--agent", metavar="FILE:make", help="the agent whose fields the table `agent` has")
    config.set_defaults(command=_config)

    bench = commands.add_parser("bench", help="measure speed on this machine", allow_abbrev=False)
    bench.add_argument("benchmark", choices=("ppo", "dqn", "sac", "env", "replay", "compile", "logging"), help="what")
    bench.add_argument("--seeds", type=int, metavar="N", help="seeds in one job (default: 1, and then 8)")
    bench.add_argument("--memory", nargs="+", metavar="KIND", default=["none"], help="ppo: memories of the network")
    bench.add_argument(
        "--against",
        metavar="COMMAND",
        help="ppo, dqn, sac: time a command in turns; {seeds} in it is their number, what it prints last the rate",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to a file as well")
    bench.set_defaults(command=_bench)

    check = commands.add_parser("check-env", help="look for faults of an environment", allow_abbrev=False)
    check.add_argument(
        "env", nargs="?", metavar="MODULE:NAME", help="an environment, its class or a factory, FILE.py:NAME, or an id"
    )
    check.add_argument(
        "--allow", nargs="+", action="extend", default=[], metavar="NAME", help="findings that are no fault here"
    )
    check.add_argument("--time-limit", type=int, metavar="N", help="steps of an episode at most, if params don't tell")
    check.add_argument("--eager-steps", type=int, default=3, metavar="N", help="steps taken without jit (default 3)")
    check.add_argument("--all", action="store_true", help="check all ids of `rollax list envs`, 120 s each at most")
    check.add_argument("--out", type=Path, metavar="FILE", help="--all: JSON lines, resumed if there are some already")
    check.set_defaults(command=_check_env)
    return parser


def _train(arguments: argparse.Namespace) -> int:
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
    _start_processes(arguments, seeds)
    overrides = list(arguments.set)
    if arguments.seed is not None:
        overrides.append(f"train.seed={arguments.seed}")
    config = configs.load(arguments.config, overrides, arguments.agent)
    from rollax.experiments import runner

    return runner.run(
        config,
        seeds=seeds,
        out=arguments.out or _new_folder(config.name),
        overwrite=arguments.overwrite,
        progress=not arguments.quiet,
        init_from=arguments.init_from,
        debug=arguments.debug,
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
    }
    _only_resume(settings)
    from rollax.experiments import run_folder

    _start_processes(arguments, int(run_folder.open(arguments.resume).read_manifest()["seeds"]))
    from rollax.experiments import runner

    return runner.resume(arguments.resume, progress=not arguments.quiet)


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _start_processes(arguments: argparse.Namespace, seeds: int) -> None:
    """Starts JAX here and, if the job has several processes, joins them."""
    start_jax(seeds)
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


def _sweep(arguments: argparse.Namespace) -> int:
    progress = not arguments.quiet
    start_jax(os.cpu_count() or 1)
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


def _eval(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.seed < 2**31:
        raise InputError(f"--seed = {arguments.seed} is no seed: give a whole number from 0 to 2147483647.")
    start_jax(1)
    from rollax.experiments import run_evaluation

    scores = run_evaluation.evaluate_run(arguments.run, arguments.episodes, arguments.seed, best=arguments.best)
    _print_table(scores["seeds"], ("seed", "return_mean", "return_std", "length_mean", "finished", "unfinished"))
    print(_score(scores, len(scores["seeds"])))


def _plot(arguments: argparse.Namespace) -> None:
    from rollax.experiments import plots

    print(plots.plot_run(arguments.run))


def _compare(arguments: argparse.Namespace) -> None:
    from rollax.experiments import comparison, files, report

    out = arguments.out or _new_folder("compare")
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


def _table(arguments: argparse.Namespace) -> None:
    start_jax(arguments.seeds)
    from rollax.experiments import score_table

    options = {name: getattr(arguments, name) for name in ("seeds", "out", "docs", "minutes")}
    for outcome in score_table.run_table(arguments.configs, progress=not arguments.quiet, **options):
        print(outcome, flush=True)
    print(f"scores: {arguments.docs}")


def _render(arguments: argparse.Namespace) -> None:
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


def _list(arguments: argparse.Namespace) -> None:
    if arguments.kind is not None:
        print("\n".join(_LISTINGS[arguments.kind]()))
        return
    for heading, lines in _LISTINGS.items():
        print("\n  ".join([f"{heading}:", *lines()]))


def _config(arguments: argparse.Namespace) -> None:
    from rollax.experiments import config_help

    print(config_help.answer(arguments.key, arguments.agent))


def _bench(arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        _check_writable(arguments.json)
    seeds = (1, 8) if arguments.seeds is None else (arguments.seeds,)
    start_jax(max(seeds))
    from rollax.experiments import bench, bench_compile, bench_logging, bench_replay

    rival = None if arguments.against is None else bench.Rival(arguments.against)
    if rival is not None and arguments.benchmark not in ("ppo", "dqn", "sac"):
        raise InputError(f"--against has no use with bench {arguments.benchmark}: give it with ppo, dqn or sac.")
    benchmarks: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "ppo": lambda: bench.run_ppo(seeds, arguments.memory, rival=rival),
        "dqn": lambda: bench.run_dqn(seeds, rival=rival),
        "sac": lambda: bench.run_sac(seeds, rival=rival),
        "env": bench.run_env,
        "compile": lambda: bench_compile.run_compile(seeds),
        "logging": lambda: bench_logging.run_logging(seeds),
        "replay": lambda: bench_replay.run_replay(seeds),
    }
    rows = benchmarks[arguments.benchmark]()
    _print_table(rows, tuple(rows[0]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _check_env(arguments: argparse.Namespace) -> int:
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


def _check_writable(path: Path) -> None:
    """Opens a file for writing, so that it shows before minutes of measuring that it cannot be written."""
    try:
        with path.open("a"):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"--json = {str(path)!r} cannot be written ({error}): name another file.") from error


def _agents() -> list[str]:
    from rollax.agents.registry import AGENTS

    width = max(map(len, AGENTS))
    return [f"{name:{width}}  {description}" for name, description in AGENTS.items()]


def _environments() -> list[str]:
    from rollax.envs.catalogue import ENVIRONMENTS

    return list(ENVIRONMENTS)


_LISTINGS: Mapping[str, Callable[[], list[str]]] = {
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
