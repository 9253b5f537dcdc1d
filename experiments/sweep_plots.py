"""The picture of a sweep: a heat map of a grid of two parameters, points of one, parallel axes of anything else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rollax.experiments import plots
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.tables import show

_COLOUR_MAP = "viridis"
_INK = "#222222"


def plot_sweep(config: ExperimentConfig, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws the scores of a sweep over its parameters.

    Args:
        config: The config of the sweep.
        rows: The rows of sweep.csv.
        path: The image to write.

    Raises:
        OSError: If the image can't be written; it names the file.
    """
    assert config.sweep is not None
    names = list(config.sweep.parameters)
    figure = Figure(figsize=(max(6.0, 1.8 * len(names)), 4.6), dpi=150, layout="constrained", facecolor="white")
    axes = figure.add_subplot(facecolor="white")
    title = f"{config.name or 'sweep'}: IQM over {rows[0]['seeds']} tuning seeds, {len(rows)} members"
    axes.set_title(title, loc="left", fontsize=11, color=_INK, pad=10, parse_math=False)
    moved = config.sweep.population is not None
    if len(names) == 1:
        points(axes, rows, names[0])
    elif len(names) == 2 and config.sweep.method == "grid" and not moved:
        heat_map(axes, rows, names[0], names[1])
    else:
        parallel_axes(axes, rows, names)
    plots.save(figure, path)


def heat_map(axes: Axes, rows: Sequence[Mapping[str, Any]], first: str, second: str) -> None:
    """Draws the score of each combination of two parameters as a cell with its number."""
    columns, rows_of = _levels(rows, first), _levels(rows, second)
    scores = np.full((len(rows_of), len(columns)), np.nan)
    for row in rows:
        scores[rows_of.index(_key(row[second])), columns.index(_key(row[first]))] = row["iqm"]
    norm = _norm(scores)
    axes.imshow(scores, cmap=_COLOUR_MAP, norm=norm, origin="lower", aspect="auto")
    for (y, x), score in np.ndenumerate(scores):
        dark = not math.isfinite(score) or norm(score) < 0.6
        axes.text(x, y, f"{score:.4g}", ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axes.set_facecolor("#999999")  # shows where there is no score
    axes.set_xticks(range(len(columns)), [label for _, label in columns], fontsize=8)
    axes.set_yticks(range(len(rows_of)), [label for _, label in rows_of], fontsize=8)
    axes.set_xlabel(first, parse_math=False)
    axes.set_ylabel(second, parse_math=False)
    _colour_bar(axes, norm)


def points(axes: Axes, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """Draws score and interval over the values of one parameter."""
    levels = _levels(rows, name)
    places, log = _positions([row[name] for row in rows], levels)
    scores, low, high = (np.array([row[key] for row in rows], float) for key in ("iqm", "low", "high"))
    axes.vlines(places, low, high, color=plots.COLOURS[0], alpha=0.5, linewidth=2)
    axes.plot(places, scores, "o", color=plots.COLOURS[0], markersize=6)
    if log:
        axes.set_xscale("log")
    elif not _numeric(row[name] for row in rows):
        axes.set_xticks(range(len(levels)), [label for _, label in levels], fontsize=8)
    axes.set_xlabel(name, parse_math=False)
    axes.set_ylabel("greedy evaluation return")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)


def parallel_axes(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Draws each member as a line through its values on one axis for each parameter, coloured by its score."""
    scores = np.array([row["iqm"] for row in rows], float)
    norm = _norm(scores)
    heights = []
    for place, name in enumerate(names):
        levels = _levels(rows, name)
        values, log = _positions([row[name] for row in rows], levels)
        values = np.log(values) if log else values
        low, high = np.min(values), np.max(values)
        heights.append((values - low) / (high - low) if high > low else np.full(len(values), 0.5))
        axes.axvline(place, color="#BBBBBB", linewidth=1)
        shown = [levels[0], levels[-1]] if _numeric(row[name] for row in rows) else levels
        for index, (_, label) in enumerate(shown):
            height = index / (len(shown) - 1) if high > low else 0.5
            axes.text(place, height, f" {label}", fontsize=7, color=_INK, va="center", zorder=3, parse_math=False)
    colours = ScalarMappable(norm, _COLOUR_MAP)
    for row in np.argsort(np.where(np.isnan(scores), -np.inf, scores)):  # the best on top
        known = math.isfinite(scores[row])
        colour = colours.to_rgba(scores[row]) if known else "#CCCCCC"
        axes.plot(range(len(names)), [height[row] for height in heights], color=colour, linewidth=1.4, alpha=0.85)
    axes.set_xticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(names) - 1 + 0.45)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    _colour_bar(axes, norm)


def _colour_bar(axes: Axes, norm: Normalize) -> None:
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.colorbar(ScalarMappable(norm, _COLOUR_MAP), ax=axes, label="greedy evaluation return")


def _norm(scores: NDArray[np.floating]) -> Normalize:
    known = scores[np.isfinite(scores)]
    low, high = (float(np.min(known)), float(np.max(known))) if known.size else (0.0, 1.0)
    return Normalize(low, high if high > low else low + 1.0)


def _numeric(values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _key(value: Any) -> tuple[Any, str]:
    return (value if _numeric([value]) else repr(value)), (f"{value:.4g}" if _numeric([value]) else show(value))


def _levels(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Any, str]]:
    """Returns the different values of a parameter with their labels: numbers in order, others as they came."""
    ordered = sorted(rows, key=lambda row: row["member"])
    levels = list(dict.fromkeys(_key(row[name]) for row in ordered))
    return sorted(levels) if _numeric(row[name] for row in rows) else levels


def _positions(values: Sequence[Any], levels: Sequence[tuple[Any, str]]) -> tuple[NDArray[np.float64], bool]:
    """Returns where values are on their axis, and whether it is logarithmic: positive ones over a decade or more."""
    if not _numeric(values):
        return np.array([levels.index(_key(value)) for value in values], float), False
    numbers = np.array(values, float)
    return numbers, bool(numbers.min() > 0 and numbers.max() >= 10 * numbers.min())
