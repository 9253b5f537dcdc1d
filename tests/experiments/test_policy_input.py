"""What a policy says of observations, seeds and files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from tests.contract.jobs import COUNTER, ROLLOUT_AGENT, make_config

from rollax import InputError, experiments
from rollax.experiments.config import from_dict


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {
        "env": {"id": "CartPole-v1"},
        "train": {"total_env_steps": 16, "num_envs": 2, "num_steps": 8},
        "agent": {"hidden_sizes": [2], "num_minibatches": 1, "num_epochs": 1},
        "evaluation": {"episodes": 1, "step_cap": 2},
    }
    result = experiments.run(from_dict(tables), out=tmp_path_factory.mktemp("runs") / "run")
    assert result.folder is not None
    return result.folder


@pytest.mark.parametrize("observation", [jnp.zeros(4), jnp.zeros((2, 3)), jnp.zeros(()), {"x": jnp.zeros((2, 4))}, []])
def test_observations_of_another_shape(observation: Any, run: Path) -> None:
    policy = experiments.load_policy(run)
    with pytest.raises(InputError, match=r"pass those of N environments, \[N, \.\.\.\] of \[\(4,\)\]"):
        policy(observation, policy.init_memory(2))


@pytest.mark.parametrize("seed", ["worst", None, 1.0, True, -1, 1])
def test_a_seed_that_the_run_has_not(seed: Any, run: Path) -> None:
    with pytest.raises(InputError, match=r"is not in run .*: it has the seeds 0 to 0, and 'best'"):
        experiments.load_policy(run, seed=seed)


def test_exports_that_cannot_be(run: Path, tmp_path: Path) -> None:
    policy = experiments.load_policy(run)
    with pytest.raises(InputError, match="num_envs = 0 must be at least 1"):
        experiments.export_policy(policy, tmp_path / "a", num_envs=0)
    with pytest.raises(
        InputError, match=r"platforms = \['gpu'\] are not what JAX exports to: choose of cpu, cuda, tpu"
    ):
        experiments.export_policy(policy, tmp_path / "a", platforms=["gpu"])
    assert not (tmp_path / "a").exists()


def test_an_agent_whose_state_has_nothing_to_start_from(tmp_path: Path) -> None:
    config = make_config(ROLLOUT_AGENT, COUNTER, 2, 3, iterations=1)
    experiments.run(config, out=tmp_path / "a")
    with pytest.raises(InputError, match=r"--init-from finds nothing to take over: the agent's state has weights"):
        experiments.run(config, out=tmp_path / "b", init_from=tmp_path / "a")
    assert not (tmp_path / "b").exists()
