"""Learning curves: what is drawn, in which form, and that nothing but the image changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image

from rollax import InputError
from rollax.experiments import plots, run_folder, statistics
from rollax.experiments.run_folder import RunFolder

NAN = float("nan")
CONFIG = 'name = "ppo_cartpole"\n[env]\nid = "CartPole-v1"\n[train]\nagent = "ppo"\n'


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would have been saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: saved.append(figure))
    return saved


def make_run(path: Path, returns: NDArray[np.floating], config: str = CONFIG) -> RunFolder:
    run = run_folder.create(path)
    run.write_config(config)
    seeds, points = returns.shape
    run.append_evaluations(
        {
            "seed": np.arange(seeds)[:, None],
            "env_steps": 10_000 * np.arange(1, points + 1),
            "return_mean": returns,
            "return_std": 1.0,
            "length_mean": 100.0,
            "finished": 128,
            "unfinished": 0,
        }
    )
    return run


def learning(seeds: int, points: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(0)
    rise = 500 * (1 - np.exp(-np.linspace(0, 5, points) / generator.lognormal(0, 0.4, (seeds, 1))))
    return np.clip(rise + generator.normal(0, 30, (seeds, points)), 9, 500)


def drawn(scores: NDArray[np.floating]) -> Axes:
    _, axes = plots.new_figure("title", "return")
    plots.curves(10 * np.arange(1, scores.shape[1] + 1), scores, axes)
    return axes


def points_of(line: Line2D) -> list[list[float]]:
    return np.asarray(line.get_xydata()).tolist()


@pytest.mark.parametrize(("seeds", "points"), [(1, 1), (1, 30), (2, 2), (8, 1), (5, 20), (64, 50), (256, 40)])
def test_image(tmp_path: Path, seeds: int, points: int) -> None:
    run = make_run(tmp_path / "run", learning(seeds, points))
    path = plots.plot_run(str(run.path))
    assert path == run.curves_path
    assert path.stat().st_size < 200_000
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (1050, 660)
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(256)}
    assert counts[255, 255, 255] > 0.5 * 1050 * 660
    assert counts[0x00, 0x72, 0xB2] > 30  # the line, or the marker, in exactly its colour
    before = path.read_bytes()
    plots.plot_run(run.path)
    assert path.read_bytes() == before
    assert {entry.name for entry in run.path.iterdir()} == {"config.toml", "evaluations.csv", "curves.png"}


def test_the_thick_line_is_the_iqm_and_the_band_its_interval() -> None:
    scores = learning(6, 4)
    axes = drawn(scores)
    *thin, thick = axes.lines
    np.testing.assert_array_equal([line.get_ydata() for line in thin], scores)
    np.testing.assert_array_equal(thick.get_ydata(), statistics.iqm(scores))
    np.testing.assert_array_equal(thick.get_xdata(), [10, 20, 30, 40])
    assert thick.get_linewidth() > 2 * thin[0].get_linewidth()
    (band,) = axes.collections
    assert isinstance(band, PolyCollection)
    low, high = statistics.bootstrap_interval(scores)
    vertices = band.get_paths()[0].vertices
    for step, bottom, top in zip([10, 20, 30, 40], low, high, strict=True):
        heights = vertices[vertices[:, 0] == step, 1]
        assert (heights.min(), heights.max()) == (bottom, top)


def test_one_seed_is_one_line() -> None:
    axes = drawn(learning(1, 5))
    (line,) = axes.lines
    assert line.get_marker() == ""
    assert not axes.collections


def test_one_point_is_a_marker_and_a_bar() -> None:
    scores = np.array([[1.0], [2.0], [3.0], [10.0]])
    axes = drawn(scores)
    assert {line.get_marker() for line in axes.lines} == {"o"}
    assert points_of(axes.lines[-1]) == [[10, 2.5]]
    (bar,) = axes.collections
    assert isinstance(bar, LineCollection)
    low, high = statistics.bootstrap_interval(scores)
    np.testing.assert_array_equal(bar.get_segments(), [[[10, low[0]], [10, high[0]]]])


def test_scores_that_are_not_finite_are_skipped() -> None:
    scores = np.array([[1, NAN, 3, NAN], [NAN, NAN, 5, np.inf], [NAN, NAN, NAN, NAN]])
    axes = drawn(scores)
    first, second, third, thick = axes.lines
    assert points_of(first) == [[10, 1], [30, 3]]
    assert (points_of(second), second.get_marker()) == ([[30, 5]], "o")
    assert points_of(third) == []
    assert points_of(thick) == [[10, 1], [30, 4]]


def test_runs_share_axes() -> None:
    _, axes = plots.new_figure("title", "return")
    for name, colour in zip("ab", plots.COLOURS, strict=False):
        plots.curves(np.array([1, 2]), learning(3, 2), axes, label=name, colour=colour)
    handles, labels = axes.get_legend_handles_labels()
    assert labels == ["a", "b"]
    assert [handle.get_color() for handle in handles if isinstance(handle, Line2D)] == [*plots.COLOURS[:2]]


@pytest.mark.parametrize(
    ("returns", "title", "caption"),
    [
        (
            np.full((64, 3), 500.0),
            "ppo_cartpole, 64 seeds",
            "IQM 500.0 [500.0, 500.0] after 30,000 steps\nthick: interquartile mean over seeds; shaded: its 95 % "
            "bootstrap interval; thin: the seeds",
        ),
        (
            np.array([[-1234.56, 0.12345]]),
            "ppo_cartpole, 1 seed",
            "0.123 after 20,000 steps; one seed, so no interval",
        ),
        (
            np.array([[-1234.56, NAN]]),
            "ppo_cartpole, 1 seed",
            "-1,234.6 after 10,000 steps; one seed, so no interval",
        ),
        (
            np.array([[1.0, NAN], [2.0, 40.0]]),
            "ppo_cartpole, 2 seeds",
            "IQM 40.0 [40.0, 40.0] after 20,000 steps; 1 of 2 seeds finished no episode there\nthick: ",
        ),
    ],
)
def test_words(tmp_path: Path, figures: list[Figure], returns: NDArray[np.floating], title: str, caption: str) -> None:
    plots.plot_run(make_run(tmp_path / "run", returns).path)
    (axes,) = figures[0].axes
    assert axes.get_title(loc="left") == title
    assert axes.texts[0].get_text().startswith(caption)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "environment steps per seed",
        "greedy evaluation return per episode",
    )
    assert axes.xaxis.get_major_formatter()(250_000) == "250k"


@pytest.mark.parametrize(
    ("config", "name"),
    [(r"name = '$\oops$'", r"$\oops$"), ('name = ""', "seven"), ("[env]", "seven"), ("no toml", "seven")],
)
def test_title_is_the_name_of_the_config_or_else_of_the_folder(
    tmp_path: Path, figures: list[Figure], config: str, name: str
) -> None:
    plots.plot_run(make_run(tmp_path / "seven", learning(1, 2), config).path)
    (axes,) = figures[0].axes
    assert axes.get_title(loc="left") == f"{name}, 1 seed"
    figures[0].draw_without_rendering()  # a dollar sign starts no formula


def test_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.toml"):
        plots.plot_run(tmp_path)
    run = make_run(tmp_path / "run", learning(2, 3))
    run.evaluations_path.unlink()
    with pytest.raises(InputError, match=r"holds no evaluations\.csv"):
        plots.plot_run(run.path)
    assert not run.curves_path.exists()


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("points", [1, 4])
def test_a_run_without_a_finished_episode_gets_an_empty_image(
    tmp_path: Path, figures: list[Figure], seeds: int, points: int
) -> None:
    plots.plot_run(make_run(tmp_path / "run", np.full((seeds, points), NAN)).path)
    (axes,) = figures[0].axes
    assert axes.texts[0].get_text().startswith("no evaluation finished an episode")
    figures[0].draw_without_rendering()


def test_plotting_needs_neither_jax_nor_pyplot_nor_a_screen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", learning(3, 4))
    program = f"""
import sys, matplotlib
matplotlib.use("svg")
from rollax.experiments import plots
before = dict(matplotlib.rcParams)
plots.plot_run({str(run.path)!r})
assert dict(matplotlib.rcParams) == before and matplotlib.get_backend() == "svg"
print(sorted({{"jax", "matplotlib.pyplot", "tkinter"}} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert output.stdout.strip() == "[]"
    assert run.curves_path.exists()
