"""Goes on with saved states in a process of its own: `python -m tests.contract.resume_child FOLDER ITERATIONS`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.contract.jobs import get_job

from rollax import experiments


def main(folder: Path, iterations: int, names: list[str]) -> None:
    """Restores the `half` of each named job, runs it on and saves it as `whole`."""
    for name in names:
        job = get_job(name)
        state = experiments.restore(folder / name / "half", job.start())
        state, _ = job.run(state, iterations)
        experiments.save(folder / name / "whole", state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
