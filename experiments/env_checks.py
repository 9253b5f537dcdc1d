"""Every environment id through the environment checker, each in a process of its own with a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class EnvCheck:
    """What the checker said of one id: a line of the results file."""

    env: str
    findings: dict[str, str]  # sentences by name
    error: str | None  # why there are no findings to be had, such as a missing file; None if it was checked


def check_all(env_ids: Iterable[str], out: Path, seconds: float = 120.0) -> Iterator[EnvCheck]:
    """Checks ids one after another, without jit for one step only, and yields each result, earlier ones first.

    Args:
        env_ids: Ids of `rollax list envs`. Those in `out` already are not checked again.
        out: A file of JSON lines, to which each result is appended as soon as it is there.
        seconds: How long the check of one id may take.

    Raises:
        OSError: `out` cannot be read or written.
    """
    checked = _read(out)
    yield from checked
    names = {result.env for result in checked}
    # An interrupt can have cut the last line.
    with out.open("a", encoding="utf-8") as file:
        if file.tell() and not out.read_bytes().endswith(b"\n"):
            file.write("\n")
        for env_id in env_ids:
            if env_id not in names:
                result = _check(env_id, seconds)
                print(json.dumps(dataclasses.asdict(result)), file=file, flush=True)
                yield result


def _read(out: Path) -> list[EnvCheck]:
    results: list[EnvCheck] = []
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        with contextlib.suppress(ValueError, TypeError):  # a line that was cut
            results.append(EnvCheck(**json.loads(line)))
    return results


def _check(env_id: str, seconds: float) -> EnvCheck:
    command = [sys.executable, "-m", "rollax", "check-env", env_id, "--eager-steps", "1"]
    try:
        finished: Any = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return EnvCheck(env_id, {}, f"the check took longer than {seconds:g} seconds")
    if finished.returncode == 0:
        return EnvCheck(env_id, {}, None)
    findings = dict(line.split(": ", maxsplit=1) for line in finished.stdout.splitlines() if ": " in line)
    if finished.returncode == 1 and findings:
        return EnvCheck(env_id, findings, None)
    last = (finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"])[-1]
    return EnvCheck(env_id, {}, last.removeprefix("rollax: error: "))
