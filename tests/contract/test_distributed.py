"""One job in two processes over loopback: it is the job of one process, and goes on after both have stopped."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.jobs import CONFIGS, differences

from rollax import InputError, experiments
from rollax.experiments import checkpoint, logs, processes, run_folder, saving

ROOT = Path(__file__).parents[2]


def in_two_processes(folder: Path, action: str) -> list[str]:
    """Runs both processes and returns what each printed."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = str(listening.getsockname()[1])
    words = [sys.executable, "-m", "tests.contract.distributed_child"]
    running = [
        subprocess.Popen([*words, number, port, str(folder), action], cwd=ROOT, stdout=-1, stderr=-2, text=True)
        for number in ("0", "1")
    ]
    printed = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(printed)
    return printed


def test_two_processes_train_stop_and_go_on_as_one_would(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    for text in in_two_processes(two, "stop"):
        assert f"rollax train --resume {two}" in text
    assert not (two / "summary.json").exists()
    assert checkpoint.numbers(two / "checkpoints")
    in_two_processes(two, "resume")

    config = CONFIGS["prioritised"]()
    experiments.run(config, seeds=3, out=one)
    like = saving.agents_like(experiments.make_trainer(config), 3)
    for name in ("final", "best"):
        alone, together = (checkpoint.restore(folder / "checkpoints" / name, like) for folder in (one, two))
        assert not differences(alone, together, 1e-5)
    for path in ("metrics.csv", "evaluations.csv"):  # each row once, though both processes train
        alone_rows, together_rows = (logs.read_columns(folder / path) for folder in (one, two))
        assert not differences(alone_rows, together_rows, 1e-5)
    assert run_folder.open(two).read_summary()["devices"] == 2


@pytest.mark.thorough
def test_two_processes_share_the_environments_of_one_seed(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    in_two_processes(two, "environments")
    config = CONFIGS["prioritised"]()
    experiments.run(config, out=one)
    like = saving.agents_like(experiments.make_trainer(config), 1)
    alone, together = (checkpoint.restore(folder / "checkpoints" / "final", like) for folder in (one, two))
    assert not differences(alone, together, 1e-5)
    assert not differences(*(logs.read_columns(folder / "metrics.csv") for folder in (one, two)), 1e-5)
    assert run_folder.open(two).read_summary()["devices"] == 2


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nonsense", "give HOST:PORT,N,K"),
        ("10.0.0.1:1234", "give HOST:PORT,N,K"),
        ("localhost,2,0", "give HOST:PORT,N,K"),
        (":1234,2,0", "give HOST:PORT,N,K"),
        ("localhost:99999,2,0", "give HOST:PORT,N,K"),
        ("localhost:1234,0,0", "there is no process 0 of 0"),
        ("10.0.0.1:1234,two,0", "give HOST:PORT,N,K"),
        ("10.0.0.1:1234,2,2", "there is no process 2 of 2"),
    ],
)
def test_a_wrong_place_is_one_sentence(place: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        processes.join(place)
