"""Where a result comes from: the commit of the code and the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path


def commit() -> str | None:
    """Returns the commit that this package is at, with `-dirty` after local changes; None outside its repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # The folder may lie, ignored, within another repository: an environment in a user's project.
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], check=True, capture_output=True)
        described = [*git, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> str:
    """Returns the processor and how many cores of it this process may use."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model = found.group(1) if found else platform.processor() or platform.machine()
    return f"{model}, {cores} {'cores' if cores > 1 else 'core'}"
