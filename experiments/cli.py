"""The `rollax` command line: its arguments, its exit status, and errors as sentences. Imports no JAX."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import rollax
from rollax.errors import InputError
from rollax.experiments import commands


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
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    train = subparsers.add_parser("train", help="train an agent and write a run folder", allow_abbrev=False)
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
    train.add_argument("--profile", type=Path, metavar="DIR", help="write a trace of a few chunks by JAX's profiler")
    train.add_argument(
        "--distributed",
        nargs="?",
        const="",
        metavar="HOST:PORT,N,K",
        help="as process K of N; the first listens there (alone: found out, under SLURM, Kubernetes, on TPUs)",
    )
    train.add_argument("--quiet", action="store_true", help="show no progress bar")
    train.set_defaults(command=commands.train)

    sweep = subparsers.add_parser("sweep", help="train the members of a [sweep] and test the best", allow_abbrev=False)
    sweep.add_argument("config", nargs="?", metavar="CONFIG", help="a config with a [sweep] table, by name or file")
    sweep.add_argument("--seeds", type=int, metavar="N", help="tuning seeds of each member, sweep.seeds of the config")
    sweep.add_argument("--out", type=Path, metavar="DIR", help="the folder (default runs/CONFIG-sweep-DATE-TIME)")
    sweep.add_argument("--overwrite", action="store_true", help="replace a run or sweep in the folder")
    sweep.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as of train")
    sweep.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted sweep; alone, or --quiet")
    sweep.add_argument("--quiet", action="store_true", help="show no progress bars")
    sweep.set_defaults(command=commands.sweep)

    evaluate = subparsers.add_parser("eval", help="evaluate the policies of a run", allow_abbrev=False)
    evaluate.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    evaluate.add_argument(
        "--best", action="store_true", help="the best of each seed, not the final ones; noted in summary.json"
    )
    evaluate.add_argument(
        "--episodes", type=int, metavar="N", help="per seed (default: the config's; with --best ten times as many)"
    )
    evaluate.add_argument("--seed", type=int, default=0, metavar="K", help="chooses the episodes (default 0)")
    evaluate.set_defaults(command=commands.evaluate)

    plot = subparsers.add_parser("plot", help="draw curves.png of a run again", allow_abbrev=False)
    plot.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    plot.set_defaults(command=commands.plot)

    compare = subparsers.add_parser("compare", help="compare the algorithms of finished runs", allow_abbrev=False)
    compare.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, or NAME=RUN to name its algorithm")
    compare.add_argument("--out", type=Path, metavar="DIR", help="the report's folder (default runs/compare-DATE-TIME)")
    compare.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file as well")
    compare.add_argument("--normalise", type=Path, metavar="FILE", help='TOML lines "TASK" = [random, solved]')
    compare.add_argument("--threshold", type=float, metavar="X", help="of the optimality gap (default 1, normalised)")
    compare.add_argument("--resamples", type=int, default=2000, metavar="N", help="of each interval (default 2000)")
    compare.set_defaults(command=commands.compare)

    table = subparsers.add_parser("table", help="train configs and write the page of scores", allow_abbrev=False)
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
    table.set_defaults(command=commands.table)

    render = subparsers.add_parser("render", help="draw an episode of a run's final agent", allow_abbrev=False)
    render.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    render.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .gif, or a .png: a sheet of frames, evenly spaced"
    )
    render.add_argument("--seed", default="0", metavar="I", help="the run's seed that plays, or best (default 0)")
    render.add_argument("--episode-seed", type=int, default=0, metavar="K", help="chooses the episode (default 0)")
    render.add_argument("--max-frames", type=int, metavar="N", help="frames at most (default 500; in a sheet 12)")
    render.add_argument("--fps", type=int, default=25, metavar="F", help="frames per second (default 25)")
    render.set_defaults(command=commands.render)

    listing = subparsers.add_parser("list", help="list agents, environments and configs", allow_abbrev=False)
    listing.add_argument("kind", nargs="?", choices=tuple(commands.LISTINGS), help="list only these, one a line")
    listing.set_defaults(command=commands.listing)

    config = subparsers.add_parser("config", help="tell what the keys of a config mean", allow_abbrev=False)
    config.add_argument("key", nargs="?", metavar="KEY", help="a table, a field, an agent, or transforms")
    config.add_argument("--agent", metavar="FILE:make", help="the agent whose fields the table `agent` has")
    config.set_defaults(command=commands.config)

    bench = subparsers.add_parser("bench", help="measure speed on this machine", allow_abbrev=False)
    benchmarks = ("ppo", "dqn", "sac", "td3", "env", "replay", "compile", "logging")
    bench.add_argument("benchmark", choices=benchmarks, help="what")
    bench.add_argument("--seeds", type=int, metavar="N", help="seeds in one job (default: 1, and then 8)")
    bench.add_argument("--memory", nargs="+", metavar="KIND", default=["none"], help="ppo: memories of the network")
    bench.add_argument(
        "--against",
        metavar="COMMAND",
        help="ppo, dqn, sac, td3: time a command in turns; {seeds} in it is their number, what it prints last the rate",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to a file as well")
    bench.set_defaults(command=commands.bench)

    check = subparsers.add_parser("check-env", help="look for faults of an environment", allow_abbrev=False)
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
    check.set_defaults(command=commands.check_env)
    return parser
