"""PPO learns. The thresholds are well under what the configs reach, so that another processor does not break them."""

import pytest

from rollax import experiments

pytestmark = pytest.mark.learning


def test_cartpole() -> None:
    result = experiments.run("ppo_cartpole", seeds=4)
    assert result.summary["iqm"] >= 450.0
    assert result.summary["unfinished"] == 0
    assert result.summary["failed_seeds"] == []
