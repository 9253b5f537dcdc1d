"""Folders of finished runs with made-up scores, and an interrupt at a given chunk."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from rollax.experiments import run_folder


def make_run(
    path: Path,
    returns: ArrayLike,
    env: str = "CartPole-v1",
    name: str = "",
    config: str = "",
    root: int = 0,
    every: int = 1000,
    **summary: Any,
) -> Path:
    """Writes the folder of a finished run with these returns `[S, P]`."""
    values = np.asarray(returns, np.float64)
    run = run_folder.create(path)
    run.write_config(f'name = "{name or path.name}"\n[env]\nid = "{env}"\n[train]\nseed = {root}\n{config}')
    run.append_evaluations(
        {
            "seed": np.arange(len(values))[:, None],
            "env_steps": every * np.arange(1, values.shape[1] + 1),
            "return_mean": values,
            "unfinished": np.where(np.isnan(values), 4, 0),
        }
    )
    run.write_summary({"seeds": len(values), "failed_seeds": [], **summary})
    return path


def interrupt_at(after: int, patch: pytest.MonkeyPatch) -> None:
    """Makes this process get a Ctrl-C while chunk number `after` of all its runs is logged."""
    append, count = run_folder.RunFolder.append_metrics, 0

    def append_and_interrupt(self: run_folder.RunFolder, rows: Any) -> None:
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGINT)
        append(self, rows)

    patch.setattr(run_folder.RunFolder, "append_metrics", append_and_interrupt)
