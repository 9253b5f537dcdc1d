"""docs/statistics.md: its commands work, with runs that are not trained but made up, and so does its code."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rollax.experiments import cli, commands, references
from rollax.experiments import config as configs
from tests.pages import blocks, run
from tests.runs import make_run

PAGE = "docs/statistics.md"


def test_the_page_from_runs_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line)[1:] for line in blocks(PAGE, "bash")[0].splitlines()]
    *trained, compare = [cli._parser().parse_args(command) for command in lines]
    for arguments in trained:
        env = configs.load(arguments.config, arguments.set).env.id
        make_run(arguments.out, [[0.0, 1.0], [0.0, 2.0]], env)
    assert compare.runs == ["runs/*"]
    words = [word for word in lines[-1] if word != "runs/*"]
    assert cli.main([*words, *map(str, Path("runs").iterdir())]) == 0
    assert {path.name for path in Path("report").iterdir()} >= {"report.html", "numbers.json", "profiles.png"}
    capsys.readouterr()
    (code,) = blocks(PAGE, "python")
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    assert run(tmp_path, "page.py").splitlines() == re.findall(r"print\(.*\)  # (\(.*\))", code)


def test_the_other_commands_of_the_page_can_be_read() -> None:
    for block in blocks(PAGE, "bash")[1:]:
        arguments = cli._parser().parse_args(shlex.split(block)[1:])
        assert arguments.command in (commands.evaluate, commands.table)
        for source in getattr(arguments, "configs", ()):
            assert source in configs.shipped()


def test_the_reference_scores_of_the_page_can_be_read(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "toml")
    (tmp_path / "scale.toml").write_text(block)
    read = references.read_references(tmp_path / "scale.toml")
    assert {task: [read[task].low, read[task].high] for task in tomllib.loads(block)} == tomllib.loads(block)
