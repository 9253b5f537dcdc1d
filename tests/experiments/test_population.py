"""Population-based training: who copies whom, by hand, and what is left as it was."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.experiments import population
from rollax.experiments.learning import Failure
from rollax.experiments.population import Exchange, Population
from rollax.experiments.trainer import TrainState

SETTINGS = Population(
    seeds=2, period=2, quantile=0.25, factors=(0.5, 2.0), bounds={"rate": [0.01, 0.3], "discount": [0.5, 1.0]}, seed=3
)
SCORES = np.array([5.0, 7, 1, 3, 9, 9, np.nan, np.nan])  # of members: 6, 2, 9, none


def numbers() -> dict[str, np.ndarray]:
    return {
        "rate": np.repeat(np.array([0.1, 0.2, 0.2, 0.02], np.float32), 2),
        "discount": np.repeat(np.array([0.9, 0.8, 0.7, 0.6], np.float32), 2),
    }


@pytest.mark.parametrize("chunk", range(1, 9))
def test_the_worst_member_becomes_a_changed_copy_of_the_best(chunk: int) -> None:
    done = population.exchange(SETTINGS, SCORES, numbers(), chunk)
    np.testing.assert_array_equal(done.source, [0, 1, 2, 3, 4, 5, 4, 5])  # the last one is the best one, seed by seed
    for name, allowed in (("rate", [0.1, 0.3]), ("discount", [0.5, 1.0])):  # 0.4 and 0.35 leave the range, and 1.4
        before, after = numbers()[name], done.numbers[name]
        np.testing.assert_array_equal(after[:6], before[:6])
        assert after[6] == after[7]
        assert any(np.isclose(after[6], value) for value in allowed)
    again = population.exchange(SETTINGS, SCORES, numbers(), chunk)
    assert all(np.array_equal(again.numbers[name], values) for name, values in done.numbers.items())


def test_both_factors_are_drawn() -> None:
    rates = {float(population.exchange(SETTINGS, SCORES, numbers(), chunk).numbers["rate"][6]) for chunk in range(20)}
    assert len(rates) == 2


def test_half_of_the_members_copy_the_other_half() -> None:
    half = dataclasses.replace(SETTINGS, quantile=0.5)
    sources = [population.exchange(half, SCORES, numbers(), chunk).source.reshape(-1, 2) for chunk in range(20)]
    for source in sources:
        np.testing.assert_array_equal(source[[0, 2]], [[0, 1], [4, 5]])
        assert all(tuple(row) in {(0, 1), (4, 5)} for row in source[[1, 3]])
    assert len({int(source[1, 0]) for source in sources}) == 2


def test_exchanges_are_due_every_so_many_evaluations() -> None:
    assert [number for number in range(1, 7) if population.is_due(SETTINGS, number)] == [2, 4, 6]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
    params: jax.Array
    hyperparameters: dict[str, jax.Array]


def test_agents_are_copied_and_all_else_goes_on() -> None:
    lanes = jnp.arange(4.0)
    agent = AgentState(10 * lanes[:, None], {"rate": lanes, "horizon": 100 + lanes})
    failed = Failure(jnp.array([False, False, True, False]), jnp.array([-1, -1, 7, -1]))
    parts = dict.fromkeys(("env_params", "timestep", "replay", "key", "clock"), None)
    state = TrainState(agent=agent, memory=lanes, env=lanes, failed=failed, **parts)
    exchanged = Exchange(np.array([0, 1, 0]), {"rate": np.array([5.0, 6.0, 7.0], np.float32)})
    after = population.apply(state, exchanged)  # the fourth lane is for padding
    np.testing.assert_array_equal(after.agent.params[:, 0], [0, 10, 0, 30])
    np.testing.assert_array_equal(after.agent.hyperparameters["rate"], [5, 6, 7, 3])
    np.testing.assert_array_equal(after.agent.hyperparameters["horizon"], [100, 101, 100, 103])
    np.testing.assert_array_equal(after.failed.flag, [False] * 4)  # a learner that is held goes on as the copy
    assert after.env is state.env
    assert after.memory is state.memory
    assert [row["source"] for row in population.log_rows(exchanged, 64)] == [0, 1, 0]
