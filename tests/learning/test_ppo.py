"""PPO learns. The thresholds are well under what the configs reach, so that another processor does not break them."""

import pytest
from tests.marks import thorough

from rollax import experiments

pytestmark = pytest.mark.learning


def test_cartpole() -> None:
    result = experiments.run("ppo_cartpole", seeds=4)
    assert result.summary["iqm"] >= 450.0
    assert result.summary["unfinished"] == 0
    assert result.summary["failed_seeds"] == []


@pytest.mark.parametrize("memory", ["gru", *thorough("transformer")])
def test_memory_chain(memory: str) -> None:
    short = ["env.memory_length=5", "train.total_env_steps=100_000", "evaluation.every=100_000", "agent.memory_size=16"]
    result = experiments.run(experiments.load("ppo_memorychain", [*short, f"agent.memory={memory}"]), seeds=2)
    assert result.summary["iqm"] >= 0.9
