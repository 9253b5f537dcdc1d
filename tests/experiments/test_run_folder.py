"""The folder of a run: nothing of the user's is deleted, and it can be read after a killed process or a full disk."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollax import InputError
from rollax.experiments import logs, run_folder
from rollax.experiments.run_folder import RunFolder

NAN = float("nan")
RUN_FILES = ("config.toml", "metrics.csv", "evaluations.csv", "summary.json", "curves.png", "checkpoints/3/state")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return run_folder.create(tmp_path / "run")


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old\n")


def held(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file can grow beyond `room` bytes; what fits is written, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# create and open


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(parents=True)])
def test_create_makes_a_new_folder_and_takes_an_empty_one(
    tmp_path: Path, make: Callable[[Path], None], overwrite: bool
) -> None:
    path = tmp_path / "some" / "where"
    make(path)
    assert run_folder.create(str(path), overwrite) == RunFolder(path)
    assert path.is_dir()
    assert not list(path.iterdir())


def test_folder_is_absolute_and_names_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_folder.create("run")
    run.write_config("")
    assert run.path == run_folder.open("run").path == tmp_path / "run"
    paths = (run.config_path, run.metrics_path, run.evaluations_path, run.summary_path, run.curves_path)
    assert [str(path.relative_to(run.path)) for path in (*paths, run.checkpoints_path / "3" / "state")] == [*RUN_FILES]


@pytest.mark.parametrize("names", [RUN_FILES, ("notes.txt",)])
def test_create_refuses_a_folder_that_holds_something(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path, names)
    with pytest.raises(InputError, match=r"--out '.*' is not empty .*--out.*--overwrite\.$"):
        run_folder.create(tmp_path)
    assert held(tmp_path) == set(names)


@pytest.mark.parametrize(
    "run_files",
    [RUN_FILES, ("config.toml",), ("config.toml", "checkpoints/3/state"), (".config.toml.partial", *RUN_FILES)],
)
def test_overwrite_removes_a_run(tmp_path: Path, run_files: tuple[str, ...]) -> None:
    fill(tmp_path, run_files)
    assert run_folder.create(tmp_path, overwrite=True).path == tmp_path
    assert not list(tmp_path.iterdir())


def test_overwrite_removes_only_what_a_run_writes(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    fill(elsewhere, ("state",))
    path = tmp_path / "run"
    others = ("notes.txt", "videos/1.mp4", "old/config.toml", "old/metrics.csv")
    fill(path, ("config.toml", "metrics.csv", *others))
    (path / "checkpoints").symlink_to(elsewhere)
    run_folder.create(path, overwrite=True)
    assert held(path) == set(others)
    assert held(elsewhere) == {"state"}


@pytest.mark.parametrize(
    "names",
    [
        ("thesis.tex",),
        ("summary.json", "metrics.csv"),
        ("checkpoints/other-project",),
        ("config.toml", "index.md", "checkpoints/other-project"),  # a site's config, not a run's
    ],
)
def test_overwrite_leaves_a_folder_that_is_no_run(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path, names)
    with pytest.raises(InputError, match=r"--out '.*' is not the folder of a run .*--out\.$"):
        run_folder.create(tmp_path, overwrite=True)
    assert held(tmp_path) == set(names)


@pytest.mark.parametrize("overwrite", [False, True])
def test_create_refuses_a_file(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"--out '.*file' is a file"):
        run_folder.create(path, overwrite)
    with pytest.raises(InputError, match=r"--out '.*file/run' cannot be written \(Not a directory\).*--out\.$"):
        run_folder.create(path / "run", overwrite)
    assert path.read_text() == "mine"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system that nobody can write to")
def test_create_refuses_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(InputError, match=r"--out '/proc/rollax' cannot be written \(.+\): choose another folder"):
        run_folder.create("/proc/rollax")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("name", [".", "below"])
def test_create_refuses_a_folder_without_permission(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"):
        run_folder.create(tmp_path / name)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("names", [(), RUN_FILES])
def test_create_notices_a_full_disk_before_it_removes_anything(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path, names)
    with full_disk(room=0), pytest.raises(InputError, match=r"cannot be written \(.+\): choose another folder"):
        run_folder.create(tmp_path, overwrite=True)
    assert held(tmp_path) == set(names)


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    fill(tmp_path, ("run/metrics.csv",))
    for name, words in [
        ("nowhere", "'.*nowhere' does not exist"),
        ("run/metrics.csv", "is a file"),
        ("run", r"holds no config\.toml"),
    ]:
        with pytest.raises(InputError, match=rf"run {words}.*`rollax train --out`" if name == "nowhere" else words):
            run_folder.open(tmp_path / name)


# config and summary


def test_config_is_written_as_it_is(run: RunFolder) -> None:
    text = 'name = "überfahrt"\n[env]\nid = "CartPole-v1"\n'
    run.write_config(text)
    assert run.config_path.read_text(encoding="utf-8") == text
    assert run_folder.open(run.path) == run


def test_summary_is_strict_json(run: RunFolder) -> None:
    run.write_summary(
        {
            "iqm": np.float32(0.5),
            "interval": (np.float64(NAN), np.array(-math.inf)),
            "per_seed": np.array([[1.0, NAN]]),
            "unfinished": np.int64(3),
            "versions": {"jax": "0.10.2", "cuda": None},
            "finished": np.bool_(True),
        }
    )
    expected = {
        "iqm": 0.5,
        "interval": [None, None],
        "per_seed": [[1.0, None]],
        "unfinished": 3,
        "versions": {"jax": "0.10.2", "cuda": None},
        "finished": True,
    }

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    assert json.loads(run.summary_path.read_text(), parse_constant=refuse) == expected
    assert run.read_summary() == expected


def test_summary_replaces_the_one_before_or_leaves_it(run: RunFolder) -> None:
    run.write_summary({"iqm": 1.0})
    with run.summary_path.open() as reader:
        run.write_summary({"iqm": 2.0})
        assert json.load(reader) == {"iqm": 1.0}  # who was reading goes on reading the same file
    assert held(run.path) == {"summary.json"}
    with full_disk(room=100), pytest.raises(OSError, match=r"summary\.json") as failure:
        run.write_summary({"iqm": 3.0, "text": "x" * 100_000})
    assert failure.value.filename == str(run.summary_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        run.write_summary({"iqm": object()})
    assert run.read_summary() == {"iqm": 2.0}
    assert held(run.path) == {"summary.json"}


def test_summary_missing_or_damaged(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"holds no summary\.json: its run has not finished"):
        run.read_summary()
    run.summary_path.write_text('{"iqm": ')
    with pytest.raises(InputError, match=r"summary\.json' is not a summary"):
        run.read_summary()


# logs


@pytest.mark.parametrize(
    ("append", "read", "name"),
    [
        (RunFolder.append_metrics, RunFolder.read_metrics, "metrics.csv"),
        (RunFolder.append_evaluations, RunFolder.read_evaluations, "evaluations.csv"),
    ],
)
def test_rows_read_back(
    run: RunFolder,
    append: Callable[[RunFolder, Any], None],
    read: Callable[[RunFolder], logs.Columns],
    name: str,
) -> None:
    append(run, [])
    assert not held(run.path)
    append(run, [{"loss": 0.5, "env_steps": 512, "seed": 0}, {"seed": np.int32(1), "env_steps": 512, "loss": NAN}])
    append(run, [{"env_steps": np.int64(1024), "loss": -math.inf, "seed": 0}])
    assert (run.path / name).read_bytes() == b"seed,env_steps,loss\n0,512,0.5\n1,512,nan\n0,1024,-inf\n"
    columns = read(run)
    assert list(columns) == ["seed", "env_steps", "loss"]
    assert [column.dtype for column in columns.values()] == [np.int64, np.int64, np.float64]
    np.testing.assert_array_equal(columns["seed"], [0, 1, 0])
    np.testing.assert_array_equal(columns["env_steps"], [512, 512, 1024])
    np.testing.assert_array_equal(columns["loss"], [0.5, NAN, -math.inf])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_floats_read_back_with_the_same_bits(run: RunFolder, dtype: type[np.floating[Any]]) -> None:
    words = np.random.default_rng(0).integers(0, 256, 4000 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    values = np.append(words[~np.isnan(words)], np.array([0.1, -0.0, np.inf, NAN], dtype))
    run.append_metrics({"seed": np.arange(len(values)), "env_steps": 2**53 + 1, "value": values})
    columns = run.read_metrics()
    assert columns["value"].astype(dtype).tobytes() == values.tobytes()
    assert set(columns["env_steps"]) == {2**53 + 1}


def test_columns_broadcast(run: RunFolder) -> None:
    run.append_metrics({"seed": [[0], [1]], "env_steps": [[10, 20]], "loss": [[1.0, 2.0], [3.0, 4.0]], "epochs": 4})
    assert run.metrics_path.read_text().splitlines() == [
        "seed,env_steps,loss,epochs",
        "0,10,1.0,4.0",
        "0,20,2.0,4.0",
        "1,10,3.0,4.0",
        "1,20,4.0,4.0",
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"seed": 1, "env_steps": 2}, r"lacks the columns \['loss'\]"),
        ({"seed": 1, "env_steps": 2, "loss": 0.0, "extra": 1.0}, r"has the columns \['extra'\]"),
        ({"seed": 1, "env_steps": 2, "Loss": 0.0}, r"lacks the columns \['loss'\]"),
    ],
)
def test_rows_with_other_columns_are_refused_whole(run: RunFolder, row: dict[str, float], words: str) -> None:
    good = {"seed": 0, "env_steps": 1, "loss": 0.5}
    run.append_metrics([good])
    before = run.metrics_path.read_bytes()
    with pytest.raises(InputError, match=rf"metrics\.csv' {words}.*another --out\.$"):
        run.append_metrics([good, row])
    assert run.metrics_path.read_bytes() == before


def test_first_row_needs_its_place(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"metrics\.csv has no 'env_steps'"):
        run.append_metrics([{"seed": 1, "loss": 0.5}])
    with pytest.raises(TypeError):
        run.append_metrics([{"seed": 1, "env_steps": 10.5, "loss": 0.5}])
    assert not held(run.path)


def test_column_names_are_quoted(run: RunFolder) -> None:
    for step in (1, 2):
        run.append_metrics([{"seed": 0, "env_steps": step, 'loss, "clipped"': 1.0}])
    assert list(run.read_metrics()) == ["seed", "env_steps", 'loss, "clipped"']


def test_a_torn_line_is_not_read_and_is_cut_off_by_the_next_row(run: RunFolder) -> None:
    first, second, third = ([{"seed": 0, "env_steps": step, "loss": step / 3}] for step in (1, 2, 3))
    for rows in (first, second, third):
        run.append_metrics(rows)
    whole = run.metrics_path.read_bytes()
    for size in range(whole.index(b"\n0,3") + 1, len(whole)):  # killed anywhere in the third row
        run.metrics_path.write_bytes(whole[:size])
        np.testing.assert_array_equal(run.read_metrics()["env_steps"], [1, 2])
        run.append_metrics(third)
        assert run.metrics_path.read_bytes() == whole
    for size in range(whole.index(b"\n") + 1):  # or in the header
        run.metrics_path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"holds no metrics\.csv with rows"):
            run.read_metrics()
        run.append_metrics([*first, *second, *third])
        assert run.metrics_path.read_bytes() == whole


def test_a_full_disk_names_the_file_and_takes_no_row(run: RunFolder) -> None:
    rows = {"seed": np.arange(64), "env_steps": 1, "loss": np.linspace(0, 1, 64)}
    run.append_evaluations(rows)
    before = run.evaluations_path.read_bytes()
    with full_disk(room=len(before) + 100), pytest.raises(OSError, match=r"evaluations\.csv") as failure:
        run.append_evaluations(rows)
    assert failure.value.filename == str(run.evaluations_path)
    assert run.evaluations_path.read_bytes() == before
    run.append_evaluations(rows)
    assert len(run.read_evaluations()["seed"]) == 128


def test_a_run_that_was_killed_before_it_had_a_config_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "run", ("manifest.json", ".rollax-x1"))
    run_folder.create(tmp_path / "run", overwrite=True)
    assert held(tmp_path / "run") == set()


def test_a_killed_process_leaves_whole_rows(run: RunFolder) -> None:
    program = f"""
import itertools, numpy as np
from rollax.experiments import run_folder
run = run_folder.RunFolder(run_folder.Path({str(run.path)!r}))
for step in itertools.count(1):
    run.append_metrics({{"seed": np.arange(64), "env_steps": step, "loss": np.full(64, step / 3)}})
    run.write_summary({{"steps": [step] * 1000}})
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not run.summary_path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert run.metrics_path.read_bytes().endswith(b"\n")
    columns = run.read_metrics()
    np.testing.assert_array_equal(columns["loss"], columns["env_steps"] / 3)
    assert len(columns["seed"]) % 64 == 0
    assert len(set(run.read_summary()["steps"])) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed,env_steps,loss\n0,1,0.5\n0,2\n", "line 3"),
        ("seed,env_steps,loss\n0,1,high\n", "'high'"),
        ("seed,env_steps,loss\n0,1.5,1.0\n", r"'1\.5'"),
        ("step,loss\n1,0.5\n", r"lacks the columns \['seed', 'env_steps'\]"),
        ("seed,env_steps,loss\n", "has not logged any yet"),
        ("", "has not logged any yet"),
    ],
)
def test_a_log_that_no_run_wrote(run: RunFolder, text: str, words: str) -> None:
    run.evaluations_path.write_text(text)
    with pytest.raises(InputError, match=rf"evaluations\.csv.*{words}"):
        run.read_evaluations()


def test_a_missing_log(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"holds no metrics\.csv with rows"):
        run.read_metrics()


def test_rows_after_a_checkpoint_are_dropped(run: RunFolder) -> None:
    run.drop_after(5)  # nothing logged yet
    rows = {"seed": [[0], [1]], "env_steps": [[5, 10, 15]], "loss": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]}
    run.append_metrics(rows)
    run.append_evaluations(rows)
    before = run.metrics_path.read_bytes()
    run.drop_after(15)
    assert run.metrics_path.read_bytes() == before
    with run.metrics_path.open("ab") as file:
        file.write(b"0,20,0.")
    run.drop_after(10)
    for columns in (run.read_metrics(), run.read_evaluations()):
        np.testing.assert_array_equal(columns["env_steps"], [5, 10, 5, 10])
        np.testing.assert_array_equal(columns["loss"], [0.1, 0.2, 0.4, 0.5])
    run.drop_after(0)
    run.drop_after(0)  # a header alone
    assert run.metrics_path.read_text() == "seed,env_steps,loss\n"
    run.append_metrics(rows)
    assert run.metrics_path.read_bytes() == before


# by_seed


def test_by_seed_pivots_rows_in_any_order(run: RunFolder) -> None:
    run.append_metrics(
        [
            {"seed": seed, "env_steps": step, "loss": 100 * seed + step}
            for seed, step in [(7, 20), (3, 10), (7, 10), (3, 20), (5, 30), (3, 30)]
        ]
    )
    run.append_metrics([{"seed": 3, "env_steps": 10, "loss": -1.0}])  # the last of equal rows counts
    env_steps, values = logs.by_seed(run.read_metrics(), "loss")
    np.testing.assert_array_equal(env_steps, [10, 20, 30])
    np.testing.assert_array_equal(values, [[-1, 320, 330], [NAN, NAN, 530], [710, 720, NAN]])


def test_by_seed_names_the_nearest_column() -> None:
    columns = {"seed": np.array([0]), "env_steps": np.array([1]), "return_mean": np.array([2.0])}
    with pytest.raises(InputError, match="no column 'return_maen': did you mean 'return_mean'"):
        logs.by_seed(columns, "return_maen")
