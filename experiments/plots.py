"""Learning curves of a run: the interquartile mean over seeds, its bootstrap band, and every seed.

Figures are made through matplotlib's object interface and drawn by Agg: no window system is needed, and neither
pyplot's state nor the caller's backend is touched. The colours are those of Okabe and Ito, which colour-blind readers
can tell apart (https://jfly.uni-koeln.de/color/).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from PIL import Image

from rollax.errors import InputError
from rollax.experiments import files, logs, run_folder, statistics

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK = "#222222"
_FAINT = "#666666"


def plot_run(folder: str | Path) -> Path:
    """Draws `curves.png` of a run: greedy evaluation return against environment steps.

    Where no evaluation finished an episode the image is empty and says so.

    Args:
        folder: The folder that the run wrote.

    Returns:
        The path of the image.

    Raises:
        InputError: If it isn't the folder of a run, or the run has evaluated nothing yet.
        OSError: If the image can't be written; it names the file.
    """
    run = run_folder.open(folder)
    run.require_seeds()
    env_steps, returns = logs.by_seed(run.read_evaluations(), "return_mean")
    num_seeds = len(returns)
    figure, axes = new_figure(
        f"{_name(run)}, {num_seeds} {'seeds' if num_seeds > 1 else 'seed'}", "greedy evaluation return per episode"
    )
    curves(env_steps, returns, axes)
    caption = _caption(env_steps, returns)
    axes.text(0, -0.18, caption, transform=axes.transAxes, va="top", linespacing=1.5, fontsize=8, color=_FAINT)
    save(figure, run.curves_path)
    return run.curves_path


def new_figure(title: str, score: str) -> tuple[Figure, Axes]:
    """Returns an empty figure for learning curves.

    Args:
        title: What the curves are of.
        score: The label of the vertical axis; the horizontal one is environment steps.
    """
    figure = panels(7, 4.4)
    axes = figure.add_subplot()
    style(axes, title, "environment steps per seed", score)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def panels(width: float, height: float) -> Figure:
    """Returns a figure without axes, of a size in inches."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def style(axes: Axes, title: str, x: str, y: str) -> None:
    """Gives axes their title and labels, and the look that all figures share."""
    axes.set_facecolor("white")
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10, parse_math=False)
    axes.set_xlabel(x, fontsize=10, color=_INK)
    axes.set_ylabel(y, fontsize=10, color=_INK)
    axes.tick_params(labelsize=9, colors=_FAINT, length=3)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#BBBBBB")


def curves(
    env_steps: NDArray[np.integer],
    scores: NDArray[np.floating],
    axes: Axes,
    label: str = "",
    colour: str = COLOURS[0],
) -> None:
    """Draws the curves of one run: the IQM over seeds, its 95 % bootstrap band and a thin line per seed.

    Scores that are not finite are skipped. One seed gets no band, and a line with a single point gets a marker.

    Args:
        env_steps: `[P]`, environment steps of one seed.
        scores: `[S, P]`, one row per seed.
        axes: Where to draw; several runs can share it.
        label: The name of the run in a legend; none where empty.
        colour: Of all that is drawn.
    """
    scores = np.where(np.isfinite(scores), scores, np.nan)
    if len(scores) > 1:
        thin = {
            "color": _tint(colour),
            "alpha": min(0.9, max(0.25, 8 / len(scores))),
            "linewidth": 0.7,
            "markersize": 5,
        }
        for values in scores:
            _line(axes, env_steps, values, **thin)
        low, high = statistics.bootstrap_interval(scores)
        known = ~np.isnan(low)
        if known.sum() > 1:
            axes.fill_between(
                env_steps[known], low[known], high[known], facecolor=colour, alpha=0.35, linewidth=0, zorder=3
            )
        else:
            axes.vlines(env_steps[known], low[known], high[known], color=colour, alpha=0.5, linewidth=2.5, zorder=1)
    _line(axes, env_steps, statistics.iqm(scores), color=colour, linewidth=2, markersize=7, zorder=4, label=label)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, whole or not at all. Raises OSError, which names the file, if that fails."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    # The thin lines of many seeds make a full-colour image some 300 kB large; with a palette it is less than half.
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(256)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, dpi=(figure.dpi, figure.dpi))
    files.replace_file(path, buffer.getvalue())


def _line(axes: Axes, env_steps: NDArray[np.integer], values: NDArray[np.floating], **style: Any) -> None:
    """Draws a line through the points that have a value, or a marker where that is one point."""
    known = ~np.isnan(values)
    axes.plot(env_steps[known], values[known], marker="o" if known.sum() == 1 else "", **style)


def _tint(colour: str) -> NDArray[np.floating]:
    """Returns a colour mixed with white: however many lines of it lie on each other, they never hide the IQM."""
    return 0.45 * np.array(to_rgb(colour)) + 0.55


def _name(run: run_folder.RunFolder) -> str:
    """Returns the name of a run's config, or of its folder where the config has none."""
    try:
        name = run.read_config().get("name")
    except InputError:  # a title is not worth the curves
        name = None
    return str(name or run.path.name)


def _caption(env_steps: NDArray[np.integer], scores: NDArray[np.floating]) -> str:
    """Returns what the curves show, and the number that they end with."""
    scored_points = np.flatnonzero(np.isfinite(scores).any(axis=0))
    if not scored_points.size:
        return "no evaluation finished an episode; a larger evaluation.step_cap gives them more time"
    last = scored_points[-1]
    final = np.where(np.isfinite(scores[:, last]), scores[:, last], np.nan)
    at = f"after {env_steps[last]:,} steps"
    if len(scores) == 1:
        return f"{_number(final[0])} {at}; one seed, so no interval"
    low, high = statistics.bootstrap_interval(final)
    scored = np.sum(~np.isnan(final))
    missing = f"; {len(final) - scored} of {len(final)} seeds finished no episode there" if scored < len(final) else ""
    return (
        f"IQM {_number(statistics.iqm(final))} [{_number(low)}, {_number(high)}] {at}{missing}\n"
        "thick: interquartile mean over seeds; shaded: its 95 % bootstrap interval; thin: the seeds"
    )


def _number(value: SupportsFloat) -> str:
    """Returns a return as text: one decimal, or three digits where it is small."""
    number = float(value)
    return f"{number:,.1f}" if abs(number) >= 10 else f"{number:.3g}"
