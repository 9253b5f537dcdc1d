"""docs/host-environments.md: its code runs and prints what the page says."""

import re
from pathlib import Path

import gymnasium

from rollax.envs import HostVector
from tests.pages import ROOT, blocks, run

PAGE = "docs/host-environments.md"


def test_the_code_of_the_page(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "python")
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    assert run(tmp_path, "page.py").splitlines() == re.findall(r"print\(.*\)  # (\(.*\))", block)


def test_the_same_step_vector_of_the_page() -> None:
    (line,) = re.findall(r"```\n(gymnasium\.make_vec.*?)\n```", (ROOT / PAGE).read_text(encoding="utf-8"))
    vector = eval(line, {"gymnasium": gymnasium})
    timestep = HostVector(vector).reset()
    assert timestep.observation.shape == (8, 4)
    assert vector.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
