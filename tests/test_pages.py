"""The pages of docs/: their code runs and prints what they say, and the site has all pages and modules."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rollax.__main__ import main
from rollax.experiments import config as configs
from tests.marks import thorough
from tests.pages import ROOT, blocks

QUICK = ("custom-loop", "logs", "benchmarks")
LONG = ("own-network", "many-seeds", "scaling", "resume", "export")  # several programs each
PAGES = (*QUICK, *LONG)


def python_of(page: str, folder: Path) -> list[str]:
    """Returns the blocks to run, after saving the one that the page says to save."""
    found = blocks(f"docs/{page}.md", "python")
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    if (named := re.search(r"Save this as `(\w+\.py)`", text)) is not None:
        (folder / named.group(1)).write_text(found.pop(0), encoding="utf-8")
    return found


@pytest.mark.parametrize("page", [*QUICK, *thorough(*LONG)])
def test_code_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = python_of(page, tmp_path)
    for line in [line for block in blocks(f"docs/{page}.md", "bash") for line in block.splitlines()]:
        words = shlex.split(line, comments=True)
        assert words[0] == "rollax"
        assert main(words[1:]) == 0
    for program in programs:
        expected = re.findall(r"print\(.*\)  # (.*)", program)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, f"{page}.md", "exec"), {"__name__": "page"})
        assert printed.getvalue().splitlines() == expected


def test_tables_of_the_pages_are_configs() -> None:
    for page in PAGES:
        for block in blocks(f"docs/{page}.md", "toml"):
            configs.from_dict({"env": {"id": "CartPole-v1"}, **tomllib.loads(block)})


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("package", ["agents", "envs", "experiments", "replay"])
def test_the_reference_has_every_module_with_a_public_name(package: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{package}.md").read_text(encoding="utf-8")
    stub = (ROOT / package / "__init__.pyi").read_text(encoding="utf-8")
    modules = set(re.findall(r"^from \.([\w.]+) import", stub, re.MULTILINE))
    modules |= set(re.findall(r"^from \. import (\w+)", stub, re.MULTILINE))
    assert modules <= set(re.findall(rf"^::: rollax\.{package}\.([\w.]+)$", page, re.MULTILINE))
