"""Sweeps: lanes are the runs that they stand for, the right members go on, and an interrupted sweep ends the same."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest
from tests.contract.jobs import BEACON, ROLLOUT_AGENT
from tests.marks import thorough
from tests.runs import interrupt_at

from rollax import InputError, experiments
from rollax.experiments import cli, run_folder, saving, sweeps
from rollax.experiments import config as configs
from rollax.experiments.lanes import Lanes

RATES = [0.03, 0.3, 0.1, 1.0]
TABLES: dict[str, Any] = {
    "name": "small",
    "env": {"id": BEACON},
    "train": {"agent": ROLLOUT_AGENT, "total_env_steps": 256, "num_envs": 4, "num_steps": 4, "unroll": 1},
    "evaluation": {"every": 32, "episodes": 8, "step_cap": 8},
    "log": {"every": 32},
    "checkpoint": {"every": 64},
    "sweep": {
        "parameters": {"agent.learning_rate": RATES},
        "seeds": 2,
        "test_seeds": 3,
        "halving": {"rungs": 2, "keep": 0.5},
        "max_lanes": 4,
    },
}
RESULTS = ("sweep.csv", "best.toml", "config.toml")


def config(**settings: Any) -> experiments.ExperimentConfig:
    return configs.from_dict({**TABLES, "sweep": {**TABLES["sweep"], **settings}})


@pytest.fixture(scope="module")
def programs() -> dict[int, Any]:
    """The programs of `TABLES`, which only have to be compiled once for all sweeps over numbers of its agent."""
    return {}


def share(programs: dict[int, Any], patch: pytest.MonkeyPatch) -> None:
    make = sweeps._groups
    patch.setattr(sweeps, "_groups", lambda config: [dataclasses.replace(g, compiled=programs) for g in make(config)])


@pytest.fixture
def compiled(programs: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has sweeps take their programs from `programs`."""
    share(programs, monkeypatch)


@pytest.fixture(scope="module")
def whole(programs: dict[int, Any], tmp_path_factory: pytest.TempPathFactory) -> experiments.SweepResult:
    """Four members on two seeds: four lanes at once, two jobs in the first rung and one in the second."""
    with pytest.MonkeyPatch.context() as patch:
        share(programs, patch)
        return experiments.sweep(config(), out=tmp_path_factory.mktemp("sweeps") / "whole")


def final_agent(folder: Path, lanes: int) -> Any:
    trainer = experiments.make_trainer(configs.load(folder / "config.toml"))
    return experiments.restore(folder / "checkpoints" / "final", saving.agents_like(trainer, lanes))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def interrupt(made: experiments.ExperimentConfig, folder: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins a sweep and interrupts it while chunk number `after` of all its jobs is logged."""
    with monkeypatch.context() as patch:
        interrupt_at(after, patch)
        with pytest.raises(KeyboardInterrupt, match=r"stopped; go on with: rollax sweep --resume "):
            experiments.sweep(made, out=folder)


def test_a_sweep_leaves_its_files(whole: experiments.SweepResult) -> None:
    assert {path.name for path in whole.folder.iterdir()} == {
        *RESULTS,
        "manifest.json",
        "summary.json",
        "sweep.png",
        "parts",
    }
    assert {path.name for path in (whole.folder / "parts").iterdir()} == {"0-0-0", "0-0-1", "1-0-0", "test-0"}
    rows = read_csv(whole.folder / "sweep.csv")
    assert [{name: json.loads(text) for name, text in row.items()} for row in rows] == whole.rows
    summary = json.loads((whole.folder / "summary.json").read_text())
    assert (summary["members"], summary["programs"], summary["tuning_seeds"], summary["jobs"]) == (4, 1, 2, 4)
    assert summary["best"]["member"] == whole.rows[0]["member"]
    assert summary["test"]["seeds"] == 3


def test_the_better_half_goes_on(whole: experiments.SweepResult) -> None:
    rungs: list[dict[int, float]] = []
    for parts in (("0-0-0", "0-0-1"), ("1-0-0",)):
        means: dict[int, list[float]] = {}
        for part in parts:
            folder = run_folder.open(whole.folder / "parts" / part)
            manifest = folder.read_manifest()
            rows = folder.evaluation_records()[-4:]
            for rate, row in zip(manifest["lanes"]["hyperparameters"]["learning_rate"], rows, strict=True):
                means.setdefault(RATES.index(rate), []).append(row["return_mean"])
        rungs.append({member: float(np.mean(values)) for member, values in means.items()})
    assert set(rungs[0]) == {0, 1, 2, 3}
    ranked = sorted(rungs[0], key=lambda member: -rungs[0][member])
    assert len({*rungs[0].values()}) == 4
    assert set(rungs[1]) == set(ranked[:2])
    expected = sorted(rungs[1], key=lambda member: -rungs[1][member]) + ranked[2:]
    assert [row["member"] for row in whole.rows] == expected
    assert [row["rung"] for row in whole.rows] == [1, 1, 0, 0]
    assert [row["env_steps"] for row in whole.rows] == [256, 256, 128, 128]
    scores = [rungs[row["rung"]][row["member"]] for row in whole.rows]
    np.testing.assert_allclose([row["iqm"] for row in whole.rows], scores)


def test_a_lane_is_the_run_with_its_hyperparameters_through_all_rungs(whole: experiments.SweepResult) -> None:
    manifest = run_folder.open(whole.folder / "parts" / "1-0-0").read_manifest()
    jobs = {source["job"] for source in manifest["lanes"]["sources"]}
    assert jobs == {"0-0-0", "0-0-1"}  # so lanes of two jobs were gathered
    rates = manifest["lanes"]["hyperparameters"]["learning_rate"]
    plain = experiments.make_trainer(configs.from_dict({**TABLES, "sweep": "none"}))
    keys = Lanes((0, 1), tuning=True).keys(0, 2)
    agent = final_agent(whole.folder / "parts" / "1-0-0", 4)
    train = jax.jit(plain.train)
    for lane in range(4):
        state, _ = train(keys[lane % 2], {"learning_rate": np.float32(rates[lane])})
        np.testing.assert_allclose(agent.weights[lane], state.agent.weights, atol=1e-5)
        assert agent.env_steps[lane] == state.agent.env_steps == 256


def test_the_best_config_trains_to_its_test(whole: experiments.SweepResult, tmp_path: Path) -> None:
    best = configs.load(whole.folder / "best.toml")
    assert best == whole.best
    assert best.sweep is None
    assert best.agent.learning_rate == RATES[whole.rows[0]["member"]]
    # A plain run leaves [sweep] out.
    result = experiments.run(dataclasses.replace(best, sweep=config().sweep), seeds=3, out=tmp_path / "run")
    assert configs.load(tmp_path / "run" / "config.toml") == best
    test = run_folder.open(whole.folder / "parts" / "test-0")
    assert result.evaluations == test.evaluation_records()
    assert whole.summary["test"]["iqm"] == result.summary["iqm"]


def test_numbers_are_one_program_and_structure_is_another(tmp_path: Path) -> None:
    compiled: Counter[str] = Counter()

    def listen(event: str, duration: float, **metadata: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled[str(metadata["fun_name"])] += 1

    made = config(
        parameters={"agent.learning_rate": [0.1, 0.3], "agent.discount": [0.5, 0.9], "env.hidden": [False, True]},
        halving="none",
        test_seeds=0,
    )
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        result = experiments.sweep(made, seeds=1, out=tmp_path / "sweep")
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sum(count for name, count in compiled.items() if "chunk" in name) == 2, compiled
    assert len(result.rows) == 8
    assert {path.name for path in (tmp_path / "sweep" / "parts").iterdir()} == {"0-0-0", "0-1-0"}
    hidden = {row["member"]: row["env.hidden"] for row in result.rows}
    assert [hidden[member] for member in range(8)] == [False, True] * 4


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("after", [8, *thorough(1, 10)])
def test_an_interrupted_sweep_goes_on_to_the_bits_of_an_uninterrupted_one(
    after: int, whole: experiments.SweepResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(config(), tmp_path / "sweep", after, monkeypatch)
    result = experiments.resume_sweep(tmp_path / "sweep")
    assert result.rows == whole.rows
    for name in RESULTS:
        assert (tmp_path / "sweep" / name).read_bytes() == (whole.folder / name).read_bytes()
    for part, lanes in (("1-0-0", 4), ("test-0", 3)):
        mine, other = (final_agent(folder / "parts" / part, lanes) for folder in (tmp_path / "sweep", whole.folder))
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.all(a == b)), mine, other)))
    with pytest.raises(InputError, match=r"is finished: there is nothing to resume"):
        experiments.resume_sweep(tmp_path / "sweep")


@pytest.mark.usefixtures("compiled")
def test_a_population_moves_to_its_better_numbers_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(
        parameters={"agent.learning_rate": [0.001, 0.5]},
        population={"period": 2, "factors": [0.9, 1.1]},
        halving="none",
        test_seeds=0,
    )
    whole = experiments.sweep(made, out=tmp_path / "whole")
    part = run_folder.open(tmp_path / "whole" / "parts" / "0-0-0")
    log = read_csv(part.population_path)
    assert [int(row["env_steps"]) for row in log] == [64] * 4 + [128] * 4 + [192] * 4
    assert {row["source"] for row in log} != {"0", "1", "2", "3"}
    final = final_agent(part.path, 4)
    np.testing.assert_array_equal(
        final.hyperparameters["learning_rate"], [np.float32(row["learning_rate"]) for row in log[-4:]]
    )
    for row in whole.rows:
        rate = final.hyperparameters["learning_rate"][2 * row["member"]]
        assert np.float32(row["agent.learning_rate"]) == rate
        assert 0.001 <= row["agent.learning_rate"] <= 0.5
    assert whole.best is not None
    assert whole.best.agent.learning_rate == whole.rows[0]["agent.learning_rate"]

    interrupt(made, tmp_path / "sweep", 5, monkeypatch)
    experiments.resume_sweep(tmp_path / "sweep")
    for name in ("sweep.csv", "best.toml", "parts/0-0-0/population.csv", "parts/0-0-0/evaluations.csv"):
        assert (tmp_path / "sweep" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_that_is_no_sweep_and_a_sweep_that_is_no_run(
    whole: experiments.SweepResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"test-0' is no sweep: go on with a run by rollax train --resume"):
        experiments.resume_sweep(whole.folder / "parts" / "test-0")
    copy = tmp_path / "copy"
    shutil.copytree(whole.folder, copy)
    (copy / "summary.json").unlink()
    with pytest.raises(InputError, match=r"copy' is a sweep: go on with rollax sweep --resume"):
        experiments.resume(copy)
    (copy / "manifest.json").write_text('{"seeds": 2}')
    assert cli.main(["sweep", "--resume", str(copy), "--quiet"]) == 2
    assert "is not the manifest of this sweep: restore it" in capsys.readouterr().err


def test_the_command_line(
    whole: experiments.SweepResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    calls: list[Any] = []

    def stand_in(made: experiments.ExperimentConfig, seeds: int | None, **keywords: Any) -> experiments.SweepResult:
        calls.append((made.sweep.parameters if made.sweep else None, seeds, keywords))
        return whole

    monkeypatch.setattr(sweeps, "sweep", stand_in)
    path = tmp_path / "small.toml"
    path.write_text(configs.to_toml(config()))
    words = ["sweep", str(path), "--seeds", "5", "--out", "here", "--overwrite", "--quiet"]
    assert cli.main([*words, "--set", "sweep.parameters.agent.discount=[0.5, 0.9]"]) == 0
    parameters = {"agent.learning_rate": RATES, "agent.discount": [0.5, 0.9]}
    assert calls == [(parameters, 5, {"out": Path("here"), "overwrite": True, "progress": False})]
    out = capsys.readouterr().out
    assert "the best on fresh seeds: greedy return IQM" in out
    assert "sweep.csv" in out
    assert "best.toml" in out
    assert cli.main(["sweep"]) == 2
    assert cli.main(["sweep", str(path), "--resume", "here"]) == 2
    error = capsys.readouterr().err
    assert "rollax sweep needs a CONFIG" in error
    assert "so CONFIG can't be given with it" in error


@pytest.mark.usefixtures("compiled")
def test_the_memory_decides_how_many_lanes_there_are_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = experiments.Memory(shared=0, state=8000, best=8000, temporary=0)  # 4000 bytes for each of 8 lanes
    monkeypatch.setattr("rollax.experiments.memory.estimate_memory", lambda config, seeds: memory)
    made = config(max_lanes=0, memory_gb=2e-5, halving="none", test_seeds=0)
    trained: list[Any] = []

    def train(config: Any, lanes: Lanes, path: Path, **_: Any) -> None:
        trained.append((path.name, lanes.seeds, lanes.hyperparameters["learning_rate"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps.runner, "run_lanes", train)
    with pytest.raises(KeyboardInterrupt):
        experiments.sweep(made, out=tmp_path / "sweep", progress=True)
    assert trained == [("0-0-0", (0, 1, 0, 1), [0.03, 0.03, 0.3, 0.3])]
    line = capsys.readouterr().err
    assert "program 1 of 1: 4 members x 2 seeds need 0.000 GB of 0.000; 4 lanes at once" in line
