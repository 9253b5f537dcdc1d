"""Where a result comes from: the commit of the code and the machine."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

from rollax.experiments.startup import cores


def commit() -> str | None:
    """Returns the commit that this package is at, with `-dirty` where code or configs differ from it.

    None outside the package's repository: an installed one may lie, ignored, within the repository of its user.
    """
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], check=True, capture_output=True)
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/*.py", ":/*.toml"], check=False).returncode
        return head.stdout.strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> str:
    """Returns the processor and how many cores of it this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    count = cores()
    model = found.group(1) if found else platform.processor() or platform.machine()
    return f"{model}, {count} {'cores' if count > 1 else 'core'}"
