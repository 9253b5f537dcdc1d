"""Logs beside the CSV files, hooks, and what the host does while the devices train."""

from __future__ import annotations

import dataclasses
import importlib.util
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from tests.contract.jobs import COUNTER, ROLLOUT_AGENT, make_config

from rollax import experiments
from rollax.errors import InputError
from rollax.experiments import bench_logging, journal, loggers, reporting, run_folder, runner
from rollax.experiments.config import LogConfig
from rollax.experiments.evaluation import Evaluation
from rollax.experiments.trainer import TrainState

STEPS = 4  # environment steps of a chunk


def config(**log: Any) -> experiments.ExperimentConfig:
    """Four chunks, an evaluation after the second and the fourth, and a checkpoint after the second."""
    made = make_config(
        ROLLOUT_AGENT,
        COUNTER,
        2,
        2,
        env_kwargs={"lengths": (2, 6)},
        evaluation=experiments.EvaluationConfig(every=2 * STEPS, episodes=6, step_cap=4),
    )
    return dataclasses.replace(
        made,
        log=dataclasses.replace(made.log, **log),
        checkpoint=experiments.CheckpointConfig(every=2 * STEPS),
    )


def events(folder: Path) -> list[tuple[str, int, float]]:
    """Returns the scalars of the event files of a run, as `(tag, step, value)`, read record by record."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            content = content[16 + length :]
    return found


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run that nothing interrupted."""

    folder: run_folder.RunFolder
    order: list[str]  # what the host did: started a chunk, or fetched one's metrics


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    pytest.importorskip("tensorboardX")
    order: list[str] = []
    call, rows = jax.stages.Compiled.__call__, reporting.metrics_rows

    def recorded(program: Any, *arguments: Any) -> Any:
        if isinstance(arguments[0], TrainState):
            order.append("start")
        return call(program, *arguments)

    def fetched(metrics: Any, env_steps: int, seeds: int) -> Any:
        order.append("fetch")
        return rows(metrics, env_steps, seeds)

    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Compiled, "__call__", recorded)
        patch.setattr(reporting, "metrics_rows", fetched)
        experiments.run(config(tensorboard=True), seeds=3, out=out)
    return Whole(run_folder.open(out), order)


def test_metrics_of_a_chunk_are_fetched_once_the_next_one_runs(whole: Whole) -> None:
    # But before the checkpoint after the second chunk: what it is resumed from has to be logged.
    assert whole.order == ["start", "start", "fetch", "fetch", "start", "start", "fetch", "fetch"]


def test_tensorboard_has_the_rows_of_the_csv_files_for_each_seed_and_their_iqm(whole: Whole) -> None:
    logged = {(tag, step): value for tag, step, value in events(whole.folder.path)}
    rows = [("train", row) for row in whole.folder.metrics_records()]
    rows += [("evaluation", row) for row in whole.folder.evaluation_records()]
    expected = {
        (f"seed_{row['seed']}/{table}/{name}", row["env_steps"]): value
        for table, row in rows
        for name, value in row.items()
        if name not in ("seed", "env_steps") and not np.isnan(value)
    }
    assert len(expected) > 40
    of_seeds = {key: value for key, value in logged.items() if key[0].startswith("seed_")}
    assert of_seeds.keys() == expected.keys()
    np.testing.assert_allclose(list(of_seeds.values()), [expected[key] for key in of_seeds], rtol=1e-6)
    finished = [row["finished"] for row in whole.folder.evaluation_records()[-3:]]
    assert logged["iqm/evaluation/finished", 16] == np.float32(np.mean(finished))


def test_a_resumed_run_logs_no_point_twice(whole: Whole, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:

        def killed(*_: Any) -> None:
            raise RuntimeError("killed")

        patch.setattr(runner, "_finish", killed)
        with pytest.raises(RuntimeError, match="killed"):
            experiments.run(config(tensorboard=True), seeds=3, out=out)
    assert {step for _, step, _ in events(out)} == {4, 8, 12, 16}
    experiments.resume(out)  # from the checkpoint at 8
    assert Counter(events(out)) == Counter(events(whole.folder.path))
    for name in ("metrics.csv", "evaluations.csv"):
        assert (out / name).read_bytes() == (whole.folder.path / name).read_bytes()


def test_series_by_hand() -> None:
    rows = [
        {"seed": seed, "env_steps": 8, "loss": loss, "episode_return": episode_return}
        for seed, loss, episode_return in ((0, 1.0, np.nan), (1, 2.0, 5.0), (2, 3.0, np.nan), (3, 100.0, 7.0))
    ]
    assert loggers.series("train", rows) == {
        "seed_0/train/loss": 1.0,
        "seed_1/train/loss": 2.0,
        "seed_1/train/episode_return": 5.0,
        "seed_2/train/loss": 3.0,
        "seed_3/train/loss": 100.0,
        "seed_3/train/episode_return": 7.0,
        "iqm/train/loss": 2.5,  # the lowest and the highest are cut
        "iqm/train/episode_return": 6.0,
    }


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (
            {"tensorboard": True},
            r"log\.tensorboard = true needs .* tensorboardX.*'rollax\[tensorboard\]'\.",
        ),
        ({"wandb": "offline"}, r"log\.wandb = 'offline' needs the package wandb.*: pip install 'rollax\[wandb\]'\."),
    ],
)
def test_a_missing_package_is_a_sentence_before_anything_is_built(
    log: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(runner, "make_trainer", lambda config: pytest.fail("built"))
    with pytest.raises(InputError, match=sentence):
        experiments.run(config(**log), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class FakeWandb:
    """What `WandbLogger` uses of the package."""

    errors = SimpleNamespace(Error=RuntimeError)

    def __init__(self) -> None:
        self.starts: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def Settings(self, **_: Any) -> None:  # noqa: N802
        """Makes settings, which say how much it prints."""

    def init(self, **arguments: Any) -> Any:
        self.starts.append(arguments)
        return SimpleNamespace(log=lambda values, step: self.logged.append((step, values)), finish=lambda: None)


def test_wandb_gets_each_point_once_and_goes_on_in_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    folder = run_folder.create(tmp_path / "run")
    folder.write_config("[env]\nid = 'x'\n")
    settings = LogConfig(wandb="offline", wandb_project="mine")

    def point(env_steps: int, loss: float) -> list[dict[str, Any]]:
        return [{"seed": 0, "env_steps": env_steps, "loss": loss}]

    log = loggers.WandbLogger(folder, settings, "name")
    log.metrics(point(4, 1.0))
    log.evaluations(point(4, 2.0))
    log.metrics(point(8, 3.0))
    assert [step for step, _ in wandb.logged] == [4]  # a step can be logged once, so that of 8 waits
    for env_steps, loss in ((4, 1.0), (8, 3.0)):
        folder.append_metrics(point(env_steps, loss))
    folder.append_evaluations(point(4, 2.0))
    resumed = loggers.WandbLogger(folder, settings, "name")  # the one before was killed
    resumed.metrics(point(12, 4.0))
    resumed.close()
    assert [(step, values["seed_0/train/loss"]) for step, values in wandb.logged] == [(4, 1.0), (8, 3.0), (12, 4.0)]
    assert wandb.logged[0][1]["seed_0/evaluation/loss"] == 2.0
    first, second = wandb.starts
    assert first["id"] == second["id"]
    assert (first["project"], first["mode"], first["config"]) == ("mine", "offline", {"env": {"id": "x"}})


def leveldb_log(content: bytes) -> Iterator[bytes]:
    """Yields the records of a log in LevelDB's format, of blocks of 32 KiB, behind a header of 7 bytes."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


@pytest.mark.suite
def test_wandb_offline_writes_the_points(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    out = tmp_path / "run"
    experiments.run(config(wandb="offline"), seeds=3, out=out)
    (path,) = out.glob("wandb/offline-run-*/*.wandb")
    steps = []
    for record in map(Record.FromString, leveldb_log(path.read_bytes())):
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
            keys = {item.key or "/".join(item.nested_key) for item in record.history.item}
            assert "seed_1/train/episodes" in keys
    assert steps == [4, 8, 12, 16]


def test_hooks_add_columns_and_stop_the_run_with_all_that_a_finished_one_has(tmp_path: Path) -> None:
    points: list[experiments.Point] = []

    def on_evaluation(point: experiments.Point) -> dict[str, Any]:
        points.append(point)
        weights = np.asarray(point.agent.weights)
        assert weights.shape[0] == 3  # a seed each, and still there
        assert len({key.tobytes() for key in np.asarray(jax.random.key_data(point.keys))}) == 3
        return {"largest": np.abs(weights).reshape(3, -1).max(axis=1), "doubled": 2 * point.env_steps}

    hooks = experiments.Hooks(on_evaluation, stop=lambda point: point.rows[0]["doubled"] >= 16)
    result = experiments.run(config(), seeds=3, out=tmp_path / "run", hooks=hooks)
    assert [point.env_steps for point in points] == [8]
    assert len(points[0].history) == 3
    assert [(row["env_steps"], row["doubled"]) for row in result.evaluations] == [(8, 16.0)] * 3
    folder = run_folder.open(tmp_path / "run")
    assert folder.evaluation_records() == result.evaluations
    summary = folder.read_summary()
    assert (summary["env_steps"], summary["stopped_early"]) == (8, True)
    assert folder.curves_path.exists()
    assert result.state.clock.env_steps == 8
    with pytest.raises(InputError, match="is finished"):
        experiments.resume(tmp_path / "run")
    assert experiments.evaluate_run(tmp_path / "run")["unfinished"] >= 0


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"return_mean": 1.0}, "'return_mean', a column that evaluations have already"),
        ({"mine": [1.0, 2.0, 3.0]}, r"'mine' with values that are no numbers of shape \[2\], one for each seed"),
        ({"mine": "much"}, r"'mine' with values that are no numbers of shape \[2\]"),
        ([1.0], r"returns \[1\.0\], no mapping of names to numbers"),
        ({3: 1.0}, r"the column 3: name it by a string"),
        ({"": 1.0}, r"the column '': name it by a string"),
        ({"a,b\n": 1.0}, r"the column 'a,b\\n': name it by a string"),
    ],
)
def test_a_column_that_does_not_fit_is_a_sentence(columns: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        experiments.Hooks(lambda _: columns).call(make_point())


def make_point(*before: dict[str, Any]) -> experiments.Point:
    rows: list[dict[str, Any]] = [{"seed": seed, "env_steps": 4, "return_mean": 0.0} for seed in range(2)]
    return experiments.Point(4, None, jax.random.split(jax.random.key(0), 2), rows, [*before, *rows])


def test_columns_are_the_same_at_each_evaluation() -> None:
    before = {"seed": 0, "env_steps": 2, "return_mean": 0.0, "mine": 1.0}
    assert not experiments.Hooks(lambda _: {"mine": 2.0}).call(make_point(before))
    for columns in ({"other": 2.0}, None):
        with pytest.raises(InputError, match=r"adds \[.*'mine'.*\] at some evaluations and not at others"):
            experiments.Hooks(lambda _, columns=columns: columns).call(make_point(before))


@pytest.mark.parametrize(("stops", "ends"), [(True, True), (np.bool_(False), False), (jax.numpy.array(True), True)])
def test_a_rule_to_stop_by(stops: Any, ends: bool) -> None:
    assert experiments.Hooks(stop=lambda _: stops).call(make_point()) is ends


@pytest.mark.parametrize("stops", [None, 1, np.array([True, False]), "yes"])
def test_a_rule_that_says_neither_is_a_sentence(stops: Any) -> None:
    with pytest.raises(InputError, match="return True to end the run, or False"):
        experiments.Hooks(stop=lambda _: stops).call(make_point())


def test_a_hook_has_to_be_a_function() -> None:
    with pytest.raises(InputError, match=r"Hooks\.stop = 3 cannot be called"):
        experiments.Hooks(stop=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("means", "text"),
    [
        ([480.0], "greedy return IQM 480.00"),
        ([100.0, 480.0, 490.0, 500.0], "greedy return IQM 485.00, seeds 100.00 to 500.00"),
        ([np.nan, 480.0], "greedy return IQM 480.00, seeds 480.00 to 480.00"),
        ([np.nan], "no episode ended"),
    ],
)
def test_progress_shows_the_iqm_and_the_spread_over_seeds(means: list[float], text: str) -> None:
    assert reporting.progress([{"return_mean": mean} for mean in means]) == text


def test_time_spent_on_logs_is_counted_and_neither_waits_nor_hooks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def takes(seconds: float, result: Any) -> Any:
        now[0] += seconds
        return result

    monkeypatch.setattr(journal.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(journal.processes, "fetch", lambda tree: takes(100.0, tree))
    slow = SimpleNamespace(metrics=lambda _: takes(1.0, None), evaluations=lambda _: takes(2.0, None))
    monkeypatch.setattr(journal.loggers, "open_all", lambda *_: [SimpleNamespace(close=lambda: None, **vars(slow))])
    trainer = experiments.make_trainer(experiments.load("ppo_cartpole"))
    metrics = {"episodes": np.ones((1, 1)), "loss": np.ones((1, 1))}
    evaluated = Evaluation(np.ones((1, 2)), np.ones((1, 2), np.int32), np.ones((1, 2), bool))
    with journal.Journal(trainer, 1, run_folder.RunFolder(tmp_path), [], 0, 2, False) as written:
        assert not written.write()
        written.add(1, metrics, None)
        assert not written.write()
        assert written.seconds == 1.0
        written.add(2, metrics, evaluated)
        assert written.write(lambda rows: takes(50.0, rows[0]["return_mean"] == 1.0))
    assert written.seconds == 4.0
    assert len(written.evaluations) == 1


def test_the_benchmark_gives_the_share_that_logs_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"None": [100.0, 90.0, 200.0], "csv": [98.0, 99.0, 97.0], "csv, tensorboard": [50.0, 49.0, 51.0]}
    log_seconds = {"None": 0.0, "csv": 0.1, "csv, tensorboard": 2.5}

    def run(config: experiments.ExperimentConfig, seeds: int, out: Path | None) -> Any:
        kind = "None" if out is None else out.name.rpartition(" ")[0]
        assert config.log.tensorboard == (kind == "csv, tensorboard")
        summary = {"steps_per_second": rates[kind].pop(0), "run_seconds": 5.0}
        return SimpleNamespace(summary=summary, log_seconds=log_seconds[kind])

    pytest.importorskip("tensorboardX")
    monkeypatch.setattr(runner, "run", run)
    rows = bench_logging.run_logging(seeds=(2,), repeats=3)
    assert [(row["logs"], row["steps_per_second"]) for row in rows] == [
        ("none", 100.0),
        ("csv", 98.0),
        ("csv, tensorboard", 50.0),
    ]
    np.testing.assert_allclose([row["cost"] for row in rows], [0.0, 0.02, 0.5])
