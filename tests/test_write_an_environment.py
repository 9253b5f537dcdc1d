"""docs/write-an-environment.md: its environment is right, an agent learns it, and its curriculum goes on."""

import json
import shlex
from pathlib import Path

import pytest

from tests.pages import blocks, run

PAGE = "docs/write-an-environment.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    (path / "docking.py").write_text(blocks(PAGE, "python")[0], encoding="utf-8")
    (path / "docking.toml").write_text(blocks(PAGE, "toml")[0], encoding="utf-8")
    return path


@pytest.mark.thorough
def test_the_commands_of_the_page_run_and_the_agent_learns(folder: Path) -> None:
    commands = [shlex.split(line) for block in blocks(PAGE, "bash") for line in block.splitlines()]
    assert len(commands) >= 2
    for words in commands:
        assert words[0] == "rollax"
        run(folder, "-m", "rollax", *words[1:])
    summary = json.loads((folder / "runs" / "docking" / "summary.json").read_text())
    assert summary["iqm"] > 0.5  # 1 for docking, minus a hundredth for each step; drifting for ever is -2


def test_the_curriculum(folder: Path) -> None:
    (folder / "curriculum.py").write_text(blocks(PAGE, "python")[1], encoding="utf-8")
    assert run(folder, "curriculum.py") == "3\n"
