"""Pages of the documentation whose blocks are run: what their tests share."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of code in one language of a page, named by its path from the root."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(folder: Path, *words: str) -> str:
    """Runs Python with arguments in a folder, and returns what it prints."""
    ran = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
