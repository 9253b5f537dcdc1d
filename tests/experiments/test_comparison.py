"""`rollax compare`: its numbers against rliable's, its names, what it refuses, and the report."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runs import make_run

from rollax import InputError
from rollax.experiments import cli, run_folder, statistics
from rollax.experiments.comparison import Comparison, Curve, Estimate, compare

NAN = float("nan")
RLIABLE: dict[str, Any] = json.loads(Path(__file__).with_name("rliable_numbers.json").read_text(encoding="utf-8"))
TASKS = [f"Task-{index}" for index in range(5)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run for each task and algorithm of the scores that rliable was given."""
    root = tmp_path_factory.mktemp("runs")
    return [
        make_run(root / f"{name}_{task}", np.array(scores)[:, index], env=task)
        for name, scores in RLIABLE["scores"].items()
        for index, task in enumerate(TASKS)
    ]


@pytest.fixture(scope="module")
def compared(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    scale = tmp_path_factory.mktemp("scale") / "scale.toml"
    scale.write_text("".join(f'"{task}" = [0, 1]\n' for task in TASKS))  # the scores are normalised as they are
    return compare(folders, normalise=scale, resamples=20_000)


def assert_is_rliables(estimate: Estimate | Curve, expected: Mapping[str, list[float]], grain: float = 0.0) -> None:
    """The value is the same; the interval is, but for the noise of resampling.

    A bound of a 95 % interval from R resamples has a standard error of about 0.7 / sqrt(R) of its width: 0.006 for ours
    and those of rliable's 50,000 together, and 0.016 where it takes 2,000. Five of them are let through, and one step
    of a statistic that has only steps.
    """
    np.testing.assert_allclose(np.atleast_1d(estimate.value), expected["value"], atol=1e-9)
    width = np.array(expected["high"]) - np.array(expected["low"])
    tolerance = (0.08 if grain else 0.03) * width + grain
    for bound in ("low", "high"):
        difference = np.abs(np.atleast_1d(getattr(estimate, bound)) - np.array(expected[bound]))
        assert np.all(difference <= tolerance + 1e-9), (bound, difference, tolerance)


@pytest.mark.parametrize("algorithm", RLIABLE["scores"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [("iqm", "iqm"), ("mean", "mean"), ("median", "median"), ("optimality_gap", "gap")]
)
def test_aggregates_are_rliables(compared: Comparison, algorithm: str, ours: str, theirs: str) -> None:
    assert_is_rliables(compared.aggregates[algorithm][ours], RLIABLE[theirs][algorithm])


@pytest.mark.parametrize("algorithm", RLIABLE["scores"])
def test_sample_efficiency_is_rliables(compared: Comparison, algorithm: str) -> None:
    curve = compared.efficiency[algorithm]
    np.testing.assert_array_equal(curve.x, [1000, 2000, 3000])
    assert_is_rliables(curve, RLIABLE["iqm_curve"][algorithm])


@pytest.mark.parametrize("algorithm", RLIABLE["scores"])
def test_performance_profiles_are_rliables(algorithm: str) -> None:
    scores, taus = np.array(RLIABLE["scores"][algorithm])[..., -1], np.array(RLIABLE["taus"])
    above = statistics.above(scores, taus)
    value = statistics.mean_over_tasks(np.moveaxis(above, -1, 0))
    low, high = statistics.stratified_interval(above, statistics.mean_over_tasks)
    assert_is_rliables(Curve(taus, value, low, high), RLIABLE["profile"][algorithm], grain=1 / scores.size)


def test_probability_of_improvement_is_rliables(compared: Comparison) -> None:
    (pair,) = compared.improvements
    assert (pair.first, pair.second) == ("first", "second")
    assert_is_rliables(pair.probability, RLIABLE["improvement"]["first,second"], grain=1e-3)


def test_profiles_fall_from_all_to_none(compared: Comparison) -> None:
    scores = np.concatenate([np.array(values)[..., -1].ravel() for values in RLIABLE["scores"].values()])
    for curve in compared.profiles.values():
        assert (curve.x[0], curve.x[-1]) == (scores.min(), scores.max())
        assert curve.value[-1] == 0
        assert np.all(np.diff(curve.value) <= 1e-12)
        assert np.all((curve.low <= curve.value + 1e-9) & (curve.value <= curve.high + 1e-9))


def test_scores_are_normalised_by_reference_scores(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "ppo_cartpole", [[22.0], [475.0]]),  # 0 and 1
        make_run(tmp_path / "ppo_catch", [[-0.6], [1.0], [0.2]], env="Catch-bsuite"),  # 0, 1 and 1/2
    ]
    compared = compare(runs, resamples=10)
    assert (compared.algorithms, compared.normalised, compared.threshold) == (("ppo",), True, 1.0)
    values = {name: estimate.value for name, estimate in compared.aggregates["ppo"].items()}
    # Of 0, 0, 1/2, 1, 1 one goes at either end; the mean is that of 1/2 and 1/2.
    assert values == pytest.approx({"iqm": 0.5, "mean": 0.5, "median": 0.5, "optimality_gap": 0.5})
    assert compared.by_task["CartPole-v1"]["ppo"].iqm.value == pytest.approx(248.5)
    assert (compared.by_task["Catch-bsuite"]["ppo"].seeds, compared.improvements) == (3, ())
    gap = compare(runs, threshold=0.5, resamples=10).aggregates["ppo"]["optimality_gap"].value
    assert gap == pytest.approx(0.5 - (0.25 + 1 / 3) / 2)


def test_one_task_needs_no_reference_scores(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, [[1.0, score]], env="Own-v0") for name, score in {"ppo_x": 5.0, "dqn_x": 7.0}.items()
    ]
    compared = compare(runs, resamples=10)
    assert (compared.algorithms, compared.normalised) == (("ppo_x", "dqn_x"), False)
    assert set(compared.aggregates["ppo_x"]) == {"iqm", "mean", "median"}
    assert any("no optimality gap" in note for note in compared.notes)
    assert sum("the score of one seed" in note for note in compared.notes) == 2
    assert compared.aggregates["dqn_x"]["iqm"] == Estimate(7.0, 7.0, 7.0)
    assert compared.improvements[0].probability == Estimate(0.0, 0.0, 0.0)
    assert compare(runs, threshold=6.0, resamples=10).aggregates["ppo_x"]["optimality_gap"].value == 1.0


def test_runs_are_named_by_their_config_or_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a=b", [[100.0]], name="dqn_cartpole")
    make_run(tmp_path / "c", [[200.0]], name="dqn_cartpole", root=1)
    make_run(tmp_path / "d", [[300.0]], name="dqn_cartpole", config="[agent]\nlearning_rate = 0.1\n")
    monkeypatch.chdir(tmp_path)
    pooled = compare(["a=b", "c"], resamples=10)
    assert (pooled.algorithms, pooled.by_task["CartPole-v1"]["dqn_cartpole"].seeds) == (("dqn_cartpole",), 2)
    assert compare(["a=b", "fast=d", "c"], resamples=10).algorithms == ("dqn_cartpole", "fast")
    with pytest.raises(InputError, match=r"differ in agent: tell them apart with NAME=RUN"):
        compare(["a=b", "d"])
    with pytest.raises(InputError, match=r"the same train\.seed, so the same seeds would count twice"):
        compare(["a=b", "a=b"])


def test_tasks_that_cannot_be_pooled_are_left_out(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "ppo_cartpole", [[400.0]]),
        make_run(tmp_path / "dqn_cartpole", [[400.0, 450.0]]),
        make_run(tmp_path / "ppo_own", [[1.0]], env="Own-v0"),
        make_run(tmp_path / "dqn_own", [[1.0]], env="Own-v0"),
        make_run(tmp_path / "dqn_catch", [[1.0]], env="Catch-bsuite"),
    ]
    compared = compare(runs, resamples=10)
    assert compared.tasks == ("CartPole-v1",)
    assert set(compared.by_task) == {"CartPole-v1", "Own-v0", "Catch-bsuite"}
    notes = "\n".join(compared.notes)
    assert "Own-v0 is not pooled, as it has no reference scores" in notes
    assert "Catch-bsuite is not pooled, as not every algorithm has runs there" in notes
    assert "Budgets on CartPole-v1 differ, and scores are those of the end: ppo 1,000, dqn 2,000 steps." in notes
    assert "ppo has no pooled learning curve" in notes
    assert set(compared.efficiency) == {"dqn"}


def test_a_pooled_curve_is_interpolated_where_tasks_were_evaluated_at_other_steps(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "ppo_a", [[0.0, 0.4, 0.8, 1.2]], env="A", every=500),
        make_run(tmp_path / "ppo_b", [[0.0, 1.0]], env="B", every=800),
    ]
    scale = tmp_path / "scale.toml"
    scale.write_text("A = [0, 1]\nB = [0, 2]\nTypo = [0, 2]\n")
    compared = compare(runs, normalise=scale, resamples=10)
    assert "'Typo', whose reference scores were given, is no task of these runs: A, B." in compared.notes
    curve = compared.efficiency["ppo"]
    np.testing.assert_array_equal(curve.x, [800, 1600])
    np.testing.assert_allclose(curve.value, [(0.24 + 0.0) / 2, (0.88 + 0.5) / 2])


def test_seeds_without_a_score_are_left_out_and_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [[1.0, NAN], [2.0, 30.0], [NAN, 50.0]], failed_seeds=[2])
    compared = compare([run], resamples=50)
    assert compared.by_task["CartPole-v1"]["run"].iqm.value == 40.0
    np.testing.assert_array_equal(compared.by_task["CartPole-v1"]["run"].curve.value, [1.5, 40.0])
    assert compared.notes == (
        "1 of the 3 seeds of run on CartPole-v1 finished no episode at the end and are left out.",
        "4 episodes of the last evaluation of run on CartPole-v1 did not end and are in no return.",
        "1 of the 3 seeds of run on CartPole-v1 stopped being finite, and score as what they had learnt by then.",
    )


def unfinished(path: Path) -> Path:
    (make_run(path, [[1.0]]) / "summary.json").unlink()
    return path


def unevaluated(path: Path) -> Path:
    (make_run(path, [[1.0]]) / "evaluations.csv").unlink()
    return path


def broken(path: Path) -> Path:
    (make_run(path, [[1.0]]) / "config.toml").write_text("= 1")
    return path


def sweep(path: Path) -> Path:
    (make_run(path, [[1.0]]) / "parts").mkdir()
    return path


def job_of_a_sweep(path: Path) -> Path:
    run = run_folder.open(make_run(path, [[1.0]]))
    run.write_manifest({"seeds": 1, "lanes": {"tuning": True}})
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path, "does not exist"),
        (unfinished, "holds no summary.json: its run has not finished"),
        (unevaluated, "holds no evaluations.csv with rows"),
        (broken, "is not the config of a run"),
        (lambda path: make_run(path, [[1.0, NAN]]), "has no score: none of its last episodes ended"),
        (lambda path: make_run(path, [[1.0]], absolute={}), "has files that no run wrote"),
        (sweep, "is a sweep, whose results are in sweep.csv: name a run, such as one of its best member"),
        (job_of_a_sweep, "is a job of a sweep, whose lanes are members and no seeds of one algorithm"),
    ],
)
def test_a_run_that_cannot_be_compared(make: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        compare([make(tmp_path / "run")])


def test_other_bad_input(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", [[1.0]], env="A", name="x")
    other = make_run(tmp_path / "other", [[1.0]], env="B", name="y")
    more = make_run(tmp_path / "more", [[1.0, 2.0]], env="A", name="x", root=1)
    scale = tmp_path / "scale.toml"
    scale.write_text("A = [1, 1]")
    for arguments, words in (
        (([],), "there is no run to compare"),
        (([one, other],), "no task has runs of all of x, y"),
        (([f"z={one}", f"z={other}"],), "'A' has no reference scores"),
        (([one, more],), "were evaluated at other steps"),
        (([one], scale), r"'A' = \[1, 1\] are no reference scores"),
        (([one], tmp_path / "none"), "--normalise .* cannot be read"),
        ((["=x"],), "'=x' lacks a name: write NAME=FOLDER, or FOLDER"),
        ((["a="],), "'a=' lacks a folder"),
    ):
        with pytest.raises(InputError, match=words):
            compare(arguments[0], normalise=arguments[1] if len(arguments) > 1 else None)
    with pytest.raises(InputError, match=r"scale\.toml' is no folder \(File exists\): name another one"):
        compare([one], out=scale)
    with pytest.raises(InputError, match="resamples = 1000000000000 is out of range: choose 1 to 100000"):
        compare([one], resamples=10**12)


def test_report_opens_offline_and_holds_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absolute = {"seeds": [{"return_mean": 450.0}, {"return_mean": None}]}
    runs = [
        make_run(tmp_path / "ppo_cartpole", [[100.0, 300.0], [200.0, 400.0]], absolute=absolute),
        make_run(tmp_path / "<dqn>", [[100.0, 350.0], [200.0, 450.0]], name="<dqn>"),
    ]
    out, numbers = tmp_path / "report", tmp_path / "numbers.json"
    assert cli.main(["compare", *map(str, runs), "--out", str(out), "--json", str(numbers), "--resamples", "500"]) == 0
    printed = capsys.readouterr().out
    assert "ppo_cartpole > <dqn>  0.25 [0.00, 1.00]" in printed
    page = (out / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link|url\(|src=\"(?!data:image/png;base64,)", page)
    images = {path.stem: path.read_bytes() for path in out.glob("*.png")}
    assert set(images) == {"aggregates", "profiles", "improvement", "efficiency", "tasks"}
    shown = [base64.b64decode(image) for image in re.findall(r"base64,([^\"]+)\"", page)]
    assert sorted(shown) == sorted(images.values())
    assert all(image.startswith(b"\x89PNG") for image in shown)
    assert "<td>&lt;dqn&gt;</td>" in page
    assert "<td>450.0 [450.0, 450.0]</td>" in page
    written = json.loads(numbers.read_text())
    assert written["improvements"][0]["probability"] == {"value": 0.25, "low": 0.0, "high": 1.0}
    assert written["by_task"]["CartPole-v1"]["<dqn>"]["curve"]["x"] == [1000, 2000]
