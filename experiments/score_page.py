"""The page of scores that `rollax table` writes: Markdown, from finished run folders. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.errors import InputError
from rollax.experiments import run_folder
from rollax.experiments.references import best_public
from rollax.experiments.results import number, task_of

_HEAD = """# Scores

`rollax table` wrote this page from the folders of its runs. A score is the inter-quartile mean (IQM) over seeds of each
seed's mean return in greedy episodes after training, with its 95 % bootstrap interval. The wall time is that of all
seeds together with their evaluations, compilation apart, and the steps per second are those of all seeds.
The public figure is the best known of a run with at most this budget, of whichever algorithm.
"""
_COLUMNS = (
    "environment",
    "config",
    "agent",
    "IQM",
    "95 % interval",
    "seeds",
    "steps per seed",
    "wall time",
    "steps per second",
    "best public figure",
    "run",
)


def page(folder: Path, reasons: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
        folder: Every folder in it that holds a finished run becomes a row.
        reasons: Why configs have no score, by their names.

    Raises:
        InputError: A file in a run's folder isn't one that a run wrote.
    """
    runs = [run_folder.RunFolder(path.parent) for path in folder.glob("*/summary.json")]
    circumstances, sources = _Notes(_letter), _Notes(str)
    rows = []
    for run in sorted(runs, key=lambda run: (task_of(run.read_config()), run.path.name)):
        try:
            rows.append(_row(run.read_config(), run.read_summary(), circumstances, sources))
        except KeyError as error:
            raise InputError(
                f"{str(run.summary_path)!r} lacks {error}: another version wrote it, so move its run out of the table."
            ) from error
    parts = [_HEAD, _table(rows)]
    for title, lines in (
        ("Runs", circumstances.lines()),
        ("Public figures", sources.lines()),
        ("Without a score", [f"- `{name}`: {reason}" for name, reason in sorted(reasons.items())]),
    ):
        if lines:
            parts.append("\n".join([f"## {title}", "", *lines, ""]))
    return "\n".join(parts)


class _Notes:
    """Sentences that rows refer to, each kept once."""

    def __init__(self, mark: Callable[[int], str]):
        self._mark = mark
        self._sentences: list[str] = []

    def refer(self, sentence: str) -> str:
        """Returns the mark of a sentence, which is added if it is new."""
        if sentence not in self._sentences:
            self._sentences.append(sentence)
        return self._mark(self._sentences.index(sentence) + 1)

    def lines(self) -> list[str]:
        """Returns the lines of a list of all sentences."""
        return [f"- {self._mark(number)}: {sentence}" for number, sentence in enumerate(self._sentences, start=1)]


def _letter(number: int) -> str:
    """Returns a, b, ..., z, aa, ab, ..."""
    rest, place = divmod(number - 1, 26)
    return (_letter(rest) if rest else "") + chr(ord("a") + place)


def _row(config: Mapping[str, Any], summary: Mapping[str, Any], circumstances: _Notes, sources: _Notes) -> list[str]:
    task = task_of(config)
    failed = len(summary["failed_seeds"])
    public = best_public(task, summary["env_steps"])
    versions = ", ".join(f"{package} {version}" for package, version in summary["versions"].items())
    where = f"{summary['machine']}, {summary['devices']} devices ({summary['device']})"
    circumstance = f"{summary['finished_at'][:10]}, commit {summary['commit'] or 'unknown'}, {versions}; {where}"
    low, high = summary["interval"]
    return [
        task,
        f"`{config['name']}`",
        str(config["train"]["agent"]),
        number(summary["iqm"]),
        f"[{number(low)}, {number(high)}]",
        f"{summary['seeds']}" + (f" ({failed} failed)" if failed else ""),
        f"{summary['env_steps']:,}",
        _duration(summary["run_seconds"]),
        f"{float(format(summary['steps_per_second'], '.3g')):,.0f}",
        ""
        if public is None
        else f"{number(public.score)} ({public.agent}, {public.env_steps:,} steps; {sources.refer(public.source)})",
        circumstances.refer(circumstance),
    ]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [_COLUMNS, ["---"] * len(_COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
