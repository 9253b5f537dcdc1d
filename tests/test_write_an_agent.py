"""docs/write-an-agent.md: its agent trains, resumes, is checked and explained as the page says, in an empty folder."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pages import blocks, run

PAGE = "docs/write-an-agent.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    (path / "sarsa.py").write_text(blocks(PAGE, "python")[0], encoding="utf-8")
    (path / "sarsa_cartpole.toml").write_text(blocks(PAGE, "toml")[0], encoding="utf-8")
    return path


def rollax(folder: Path, *words: str) -> str:
    return run(folder, "-m", "rollax", *words)


def test_the_page_has_what_these_tests_run() -> None:
    assert [len(blocks(PAGE, language)) for language in ("python", "toml", "bash")] == [2, 1, 1]
    code = [line for line in blocks(PAGE, "python")[0].splitlines() if line.strip()]
    assert 90 <= len(code) <= 120  # "about a hundred lines"


@pytest.mark.thorough
def test_the_commands_of_the_page_run_and_the_agent_learns(folder: Path) -> None:
    for line in blocks(PAGE, "bash")[0].splitlines():
        words = shlex.split(line)
        assert words[0] == "rollax"
        assert rollax(folder, *words[1:]).strip()
    summary = json.loads((folder / "runs" / "sarsa" / "summary.json").read_text())
    assert summary["iqm"] > 300  # the target is 500


def test_the_target_by_hand(folder: Path) -> None:
    (folder / "by_hand.py").write_text(blocks(PAGE, "python")[1], encoding="utf-8")
    assert run(folder, "by_hand.py").split() == ["2.667"]


def test_a_wrong_number_is_a_sentence_and_a_wrong_space_too(folder: Path) -> None:
    for setting, sentence in (
        ("agent.trace_decay=2", "agent.trace_decay = 2.0 must be between 0 and 1."),
        ("env.id=Pendulum-v1", "does not fit train.agent = 'sarsa', which acts in Discrete spaces"),
    ):
        words = [sys.executable, "-m", "rollax", "train", "sarsa_cartpole.toml", "--set", setting]
        ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert ran.returncode != 0
        assert sentence in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.thorough
def test_a_killed_run_goes_on_to_the_bit(folder: Path) -> None:
    settings = ["--quiet", "--set", "train.total_env_steps=20480", "log.every=2048", "checkpoint.every=2048"]
    whole = ["train", "sarsa_cartpole.toml", *settings, "--out"]
    rollax(folder, *whole, "whole")
    process = subprocess.Popen([sys.executable, "-m", "rollax", *whole, "broken"], cwd=folder)
    while process.poll() is None and not list((folder / "broken" / "checkpoints").glob("[0-9]*")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    if not (folder / "broken" / "summary.json").exists():
        rollax(folder, "train", "--resume", "broken", "--quiet")
    for name in ("metrics.csv", "evaluations.csv"):
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    play = "from rollax import experiments; print(experiments.load_policy('broken').init_memory(1))"
    assert run(folder, "-c", play) == "()\n"
