"""The report of a comparison: images, and one page of HTML that holds them all and opens offline."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rollax.experiments import files, plots
from rollax.experiments.comparison import Comparison, Curve, Estimate
from rollax.experiments.results import number

AGGREGATES = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap"}
"""The aggregates by their names in a `Comparison`, as they are headed."""

_LINES = ("-", "--", ":", "-.")
_MEANINGS = """The score of a seed is its mean greedy return at the last evaluation. <b>IQM</b>: the mean of the middle
half of all seeds of all tasks. <b>Median</b> and <b>mean</b>: over tasks, of the mean over seeds. <b>Optimality
gap</b>: by how much scores fall short of the threshold on average, where a score above it makes up for nothing; lower
is better. <b>Probability of improvement</b>: that a run of the first algorithm beats one of the second on a task drawn
at random, ties counting half. <b>Absolute metric</b>: the IQM of each seed's best agent, evaluated anew. Intervals are
95 % percentile bootstrap intervals, stratified: the seeds of each task are resampled among themselves (Agarwal et al.,
NeurIPS 2021)."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60em; margin: 2em auto; padding: 0 1em }
h1, h2 { font-weight: 500 } table { border-collapse: collapse; margin: 1em 0 } img { max-width: 100% }
th, td { padding: .25em .8em; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child { text-align: left } li, small { color: #555 }"""


def write(comparison: Comparison, folder: Path) -> Path:
    """Writes `report.html` and its images into a folder, which is made if it isn't there.

    Returns:
        The path of the page.

    Raises:
        OSError: If a file can't be written; it names the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, tuple[str, Callable[[Comparison], Figure]]] = {
        "aggregates": ("Aggregate scores", _draw_aggregates),
        "profiles": ("Performance profiles", _draw_profiles),
    }
    if comparison.improvements:
        figures["improvement"] = ("Probability of improvement", _draw_improvements)
    if comparison.efficiency:
        figures["efficiency"] = ("Sample efficiency", _draw_efficiency)
    figures["tasks"] = ("Each task", _draw_tasks)
    sections = [_head(comparison)]
    for name, (title, draw) in figures.items():
        path = folder / f"{name}.png"
        plots.save(draw(comparison), path)
        image = base64.b64encode(path.read_bytes()).decode()
        sections.append(f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{image}">')
        if name in _TABLES:
            sections.append(_table(_TABLES[name](comparison)))
    page = folder / "report.html"
    files.replace_file(page, "\n".join([*sections, f"<p><small>{_MEANINGS}</small></p>\n</html>\n"]).encode())
    return page


def aggregate_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Returns the aggregates with their intervals as text, a row for each algorithm."""
    return [
        {"algorithm": name, **{AGGREGATES[shown]: interval(estimates[shown]) for shown in _shown(comparison)}}
        for name, estimates in comparison.aggregates.items()
    ]


def improvement_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Returns the probabilities of improvement with their intervals as text, a row for each pair of algorithms."""
    return [
        {"pair": f"{pair.first} > {pair.second}", "probability": interval(pair.probability)}
        for pair in comparison.improvements
    ]


def interval(estimate: Estimate) -> str:
    """Returns an estimate as text: its value and its interval."""
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


# The page


def _head(comparison: Comparison) -> str:
    names = html.escape(", ".join(comparison.algorithms))
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in comparison.notes)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{names}</title>\n<style>{_STYLE}</style>\n'
        f"<h1>{names}</h1>\n<p>{html.escape('; '.join(comparison.tasks))}</p>\n<ul>\n{notes}</ul>"
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    return "\n".join(["<table>", line(rows[0], "th"), *(line(row.values(), "td") for row in rows), "</table>"])


def _task_rows(comparison: Comparison) -> list[dict[str, str]]:
    return [
        {
            "task": task,
            "algorithm": name,
            "IQM of returns": interval(score.iqm),
            "absolute metric": "–" if score.absolute is None else interval(score.absolute),
            "seeds": str(score.seeds),
            "steps per seed": f"{score.env_steps:,}",
        }
        for task, by_name in comparison.by_task.items()
        for name, score in by_name.items()
    ]


_TABLES: dict[str, Callable[[Comparison], list[dict[str, str]]]] = {
    "aggregates": aggregate_rows,
    "improvement": improvement_rows,
    "tasks": _task_rows,
}


# The images


def _draw_aggregates(comparison: Comparison) -> Figure:
    shown = _shown(comparison)
    figure = plots.panels(1.5 + 2.6 * len(shown), 1.4 + 0.35 * len(comparison.algorithms))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, aggregate in zip(panels, shown, strict=True):
        plots.style(axes, AGGREGATES[aggregate], _scale(comparison), "")
        estimates = [comparison.aggregates[name][aggregate] for name in comparison.algorithms]
        _bars(axes, comparison.algorithms, estimates, plots.COLOURS)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    return figure


def _draw_improvements(comparison: Comparison) -> Figure:
    pairs = comparison.improvements
    figure = plots.panels(7, 1.4 + 0.35 * len(pairs))
    axes = figure.add_subplot()
    plots.style(axes, "Probability of improvement", "P(a run of the first beats one of the second)", "")
    names = [f"{pair.first} > {pair.second}" for pair in pairs]
    _bars(axes, names, [pair.probability for pair in pairs], ["#999999"])
    axes.axvline(0.5, color="#222222", linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1)
    return figure


def _draw_profiles(comparison: Comparison) -> Figure:
    figure = plots.panels(7, 4.4)
    axes = figure.add_subplot()
    plots.style(axes, "Performance profiles", f"{_scale(comparison)} τ", "share of runs that score more than τ")
    _curves(axes, comparison.algorithms, comparison.profiles)
    axes.set_ylim(-0.02, 1.02)
    return figure


def _draw_efficiency(comparison: Comparison) -> Figure:
    figure, axes = plots.new_figure("Sample efficiency", f"IQM of {_scale(comparison)}")
    _curves(axes, comparison.algorithms, comparison.efficiency)
    return figure


def _draw_tasks(comparison: Comparison) -> Figure:
    columns = min(3, len(comparison.by_task))
    rows = -(-len(comparison.by_task) // columns)
    figure = plots.panels(2 + 3.6 * columns, 3.2 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (task, by_name) in zip(panels, comparison.by_task.items(), strict=False):
        plots.style(axes, task, "environment steps per seed", "IQM of greedy returns")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        _curves(axes, comparison.algorithms, {name: score.curve for name, score in by_name.items()})
    for axes in panels[len(comparison.by_task) :]:
        axes.set_axis_off()
    return figure


def _shown(comparison: Comparison) -> list[str]:
    return [name for name in AGGREGATES if name != "optimality_gap" or comparison.threshold is not None]


def _scale(comparison: Comparison) -> str:
    return "normalised score" if comparison.normalised else "return"


def _bars(axes: Axes, names: Sequence[str], estimates: Sequence[Estimate], colours: Sequence[str]) -> None:
    """Draws intervals under each other, the first on top, each with a mark at its value."""
    axes.use_sticky_edges = False
    for row, estimate in enumerate(estimates):
        colour = colours[row % len(colours)]
        axes.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.6, color=colour, alpha=0.6)
        axes.vlines(estimate.value, row - 0.3, row + 0.3, color="black", linewidth=1.5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)


def _curves(axes: Axes, algorithms: Sequence[str], curves: Mapping[str, Curve]) -> None:
    """Draws a line and its band for each algorithm, in the same colour in every figure."""
    for index, name in enumerate(algorithms):
        if name in curves:
            curve, colour = curves[name], plots.COLOURS[index % len(plots.COLOURS)]
            known = ~np.isnan(curve.value)
            line = _LINES[index // len(plots.COLOURS) % len(_LINES)]
            axes.plot(
                curve.x[known],
                curve.value[known],
                color=colour,
                linestyle=line,
                linewidth=2,
                marker="o" if known.sum() == 1 else "",
                label=name,
            )
            axes.fill_between(curve.x, curve.low, curve.high, facecolor=colour, alpha=0.25, linewidth=0)
    axes.legend(frameon=False, fontsize=9, labelcolor="#222222")
