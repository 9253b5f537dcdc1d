"""How many lines of the agents stand in another agent's file too: one place for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

AGENTS = Path(__file__).parents[1] / "agents"
RUN = 8  # identical lines of code that make a repetition


def code(source: str) -> list[str]:
    """Returns the lines of a file without imports, docstrings, comments, blanks and the fields of its Config."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        is_config = isinstance(node, ast.ClassDef) and node.name == "Config"
        if is_text or is_config or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in left_out]
    return [line for line in lines if line and not line.startswith("#")]


def repeated_share(files: dict[str, list[str]]) -> float:
    """Returns the share of lines in runs of `RUN` or more that another file has too."""
    owners: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name, lines in files.items():
        for start in range(len(lines) - RUN + 1):
            owners[tuple(lines[start : start + RUN])].add(name)
    repeated = 0
    for lines in files.values():
        starts = [at for at in range(len(lines) - RUN + 1) if len(owners[tuple(lines[at : at + RUN])]) > 1]
        repeated += len({line for start in starts for line in range(start, start + RUN)})
    return repeated / sum(len(lines) for lines in files.values())


def test_at_most_three_per_cent_of_the_agents_lines_are_repeated() -> None:
    files = {path.name: code(path.read_text(encoding="utf-8")) for path in AGENTS.glob("*.py")}
    assert len(files) > 20
    assert repeated_share(files) <= 0.03


@pytest.mark.parametrize(("common", "share"), [(RUN, 2 * RUN / (2 * RUN + 4)), (RUN - 1, 0.0)])
def test_a_repetition_is_found(common: int, share: float) -> None:
    same = "".join(f"x{index} = {index}\n" for index in range(common))
    files = {name: code(f'"""Text."""\nimport os\n{name} = 1\n{same}{name} = 2\n') for name in ("a", "b")}
    assert repeated_share(files) == pytest.approx(share)
