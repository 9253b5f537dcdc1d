"""The picture of a sweep: every member is in it, where its values and its score put it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rollax.experiments import config as configs
from rollax.experiments import plots, sweep_plots

NAN = float("nan")
RATE, DISCOUNT, MEMORY = "agent.learning_rate", "agent.discount", "agent.memory"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would have been saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: saved.append(figure))
    return saved


def draw(parameters: dict[str, Any], members: list[tuple[Any, ...]], path: Path, **sweep: Any) -> None:
    made = configs.from_dict(
        {"name": "a $b", "env": {"id": "CartPole-v1"}, "sweep": {"parameters": parameters, **sweep}}
    )
    rows = [
        {**dict(zip(parameters, values, strict=True)), "iqm": score, "low": score - 1, "high": score + 2}
        for *values, score in members
    ]
    ranked = sorted(enumerate(rows), key=lambda pair: -np.nan_to_num(pair[1]["iqm"]))
    sweep_plots.plot_sweep(made, [{"member": index, "seeds": 4, **row} for index, row in ranked], path)


def test_a_grid_of_two_parameters_is_a_heat_map(figures: list[Figure], tmp_path: Path) -> None:
    values = {RATE: [1e-2, 1e-3], MEMORY: ["none", "gru", "lstm"]}
    members = [
        (rate, name, 10.0 * i + j) for i, rate in enumerate(values[RATE]) for j, name in enumerate(values[MEMORY])
    ]
    members[4] = (1e-3, "gru", NAN)
    draw(values, members, tmp_path / "sweep.png")
    axes, bar = figures[0].axes
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array().filled(NAN), [[10, 0], [NAN, 1], [12, 2]])  # the rates are in order
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.01"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["'none'", "'gru'", "'lstm'"]
    assert sorted(text.get_text() for text in axes.texts) == ["0", "1", "10", "12", "2", "nan"]
    assert bar.get_ylabel() == "greedy evaluation return"
    assert axes.get_title(loc="left") == "a $b: IQM over 4 tuning seeds, 6 members"


def test_one_parameter_is_points_with_intervals(figures: list[Figure], tmp_path: Path) -> None:
    draw({RATE: [1e-3, 1e-1]}, [(1e-3, 5.0), (1e-1, 9.0)], tmp_path / "sweep.png")
    (axes,) = figures[0].axes
    assert axes.get_xscale() == "log"
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[1e-1, 9], [1e-3, 5]])
    np.testing.assert_array_equal(axes.collections[0].get_segments(), [[[0.1, 8], [0.1, 11]], [[1e-3, 4], [1e-3, 7]]])
    draw({MEMORY: ["none", "gru"]}, [("none", 5.0), ("gru", NAN)], tmp_path / "sweep.png")
    assert [text.get_text() for text in figures[1].axes[0].get_xticklabels()] == ["'none'", "'gru'"]


def test_anything_else_is_lines_over_parallel_axes(figures: list[Figure], tmp_path: Path) -> None:
    parameters = {
        RATE: {"low": 1e-4, "high": 1e-2, "log": True},
        DISCOUNT: {"low": 0.9, "high": 1.0},
        MEMORY: ["none", "gru"],
    }
    members = [(1e-4, 0.9, "none", 0.0), (1e-3, 0.95, "gru", 10.0), (1e-2, 1.0, "none", NAN)]
    draw(parameters, members, tmp_path / "sweep.png", method="random", samples=3)
    axes = figures[0].axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    heights = [np.asarray(line.get_ydata()) for line in lines]
    np.testing.assert_allclose(heights, [[1, 1, 0], [0, 0, 0], [0.5, 0.5, 1]])  # none, then worst, and the best on top
    assert [to_hex(line.get_color()) for line in lines] == ["#cccccc", "#440154", "#fde725"]
    assert [text.get_text() for text in axes.get_xticklabels()] == [RATE, DISCOUNT, MEMORY]


def test_no_score_at_all_is_a_picture_too(tmp_path: Path) -> None:
    draw({RATE: [1e-3, 1e-2], DISCOUNT: [0.9, 0.99]}, [(1e-3, 0.9, NAN)], tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 1000
