"""docs/host-environments.md: its code runs and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import gymnasium

from rollax.envs import HostVector

PAGE = (Path(__file__).parents[1] / "docs" / "host-environments.md").read_text(encoding="utf-8")


def test_the_code_of_the_page(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    ran = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == re.findall(r"print\(.*\)  # (\(.*\))", block)


def test_the_same_step_vector_of_the_page() -> None:
    (line,) = re.findall(r"```\n(gymnasium\.make_vec.*?)\n```", PAGE)
    vector = eval(line, {"gymnasium": gymnasium})
    timestep = HostVector(vector).reset()
    assert timestep.observation.shape == (8, 4)
    assert vector.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
