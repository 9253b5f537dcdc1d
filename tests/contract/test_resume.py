"""A saved state is the whole state: another process goes on from it bit for bit, and so does a killed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from tests import kills
from tests.contract.jobs import RESUMED, differences, get_job
from tests.marks import thorough

from rollax import experiments

ROOT = Path(__file__).parents[2]
HALF = 5
QUICK = ("transition", "prioritised", "sequence", "recurrent", "ppo")
OTHERS = tuple(name for name in RESUMED if name not in QUICK)


@pytest.mark.parametrize("names", [QUICK, *thorough((OTHERS,))], ids=["quick", "others"])
def test_ten_iterations_are_five_and_five_in_a_new_process(names: tuple[str, ...], tmp_path: Path) -> None:
    # Every kind of agent, replay in both storages, priorities, memories, typed keys and optimisers' states.
    expected = {}
    for name in names:
        job = get_job(name)
        half, _ = job.run(job.start(), HALF)
        experiments.save(tmp_path / name / "half", half)
        expected[name], _ = job.run(half, HALF)
    cache = jax.config.jax_compilation_cache_dir  # the child's programs are those of this process
    subprocess.run(
        [sys.executable, "-m", "tests.contract.resume_child", str(tmp_path), str(HALF), *names],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_COMPILATION_CACHE_DIR": str(cache)},
        check=True,
    )
    for name, state in expected.items():
        resumed = experiments.restore(tmp_path / name / "whole", state)
        assert jax.tree.structure(resumed) == jax.tree.structure(state)
        assert not differences(resumed, state), name


@pytest.mark.parametrize("times", [2, *thorough(5)])
def test_a_run_that_is_killed_is_the_same_run(times: int, tmp_path: Path) -> None:
    assert kills.run(tmp_path, kills=times, total_env_steps=20_480) == []
