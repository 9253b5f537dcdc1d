"""Replay in the loop: storages that train alike, priorities that the learner sets, and tables that do not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import SEEDS, Job, differences, get_job, only
from tests.marks import thorough

from rollax import InputError, experiments, replay


@pytest.mark.parametrize("name", ["transition", "prioritised", *thorough("r2d2")])
def test_both_storages_train_bit_for_bit_alike(name: str) -> None:
    job = get_job(name)
    settings = job.config.replay
    assert settings is not None
    other: Any = "ref" if settings.storage == "array" else "array"
    twin = Job(dataclasses.replace(job.config, replay=dataclasses.replace(settings, storage=other)))
    assert not differences(job.run(job.start(), 4), twin.run(twin.start(), 4))


def leaves(state: experiments.TrainState) -> np.ndarray:
    """The priorities of all rows, `[SEEDS, capacity]`."""
    return np.asarray(state.replay.priorities.leaves).reshape(SEEDS, -1)


@only("prioritised")
def test_priorities_are_set_once_the_learner_learns(job: Job) -> None:
    waiting, _ = job.run(job.start(), 1)  # two steps of four environments: no window of three yet
    np.testing.assert_array_equal(leaves(waiting), 0.0)
    learning, metrics = job.run(waiting, 1)  # four steps: two may start a window
    drawn = leaves(learning)
    np.testing.assert_array_equal(drawn[:, 8:], 0.0)
    assert np.all(drawn[:, :8] > 0)
    assert np.any(drawn[:, :8] != 1.0)
    # Of 48 draws among 8 rows, nearly all rows were drawn; their priorities are temporal difference errors.
    assert 0.1 < np.median(drawn[:, :8]) / np.median(metrics["td_error"]) < 10.0


def test_nothing_is_learnt_before_min_size_rows_are_stored() -> None:
    config = get_job("transition").config
    assert config.replay is not None
    job = Job(dataclasses.replace(config, replay=dataclasses.replace(config.replay, min_size=20)))
    _, metrics = job.run(job.start(), 4)  # eight rows each
    np.testing.assert_array_equal(np.isnan(metrics["td_error"]), [[True, True, False, False]] * SEEDS)


@only("prioritised")
def test_priorities_of_a_failed_seed_stay_numbers(job: Job) -> None:
    state, _ = job.run(job.start(), 3)
    spoilt = state.env_params.noise.at[0].set(jnp.nan)
    state, _ = job.run(dataclasses.replace(state, env_params=dataclasses.replace(state.env_params, noise=spoilt)), 4)
    np.testing.assert_array_equal(state.failed.flag, np.arange(SEEDS) == 0)
    assert np.all(np.isfinite(leaves(state)))


@dataclasses.dataclass(frozen=True)
class Exponents:
    """What a buffer was asked for."""

    importance: list[Any] = dataclasses.field(default_factory=list)
    priority: list[Any] = dataclasses.field(default_factory=list)


@only("prioritised")
def test_exponents_among_the_hyperparameters_reach_the_buffer(job: Job) -> None:
    trainer, asked = job.trainer, Exponents()
    buffer, agent = trainer.buffer, trainer.agent
    assert buffer is not None

    def sample(state: Any, key: jax.Array, importance_exponent: Any = None) -> Any:
        asked.importance.append(importance_exponent)
        return buffer.sample(state, key, importance_exponent)

    def set_priorities(state: Any, indices: Any, priorities: Any, priority_exponent: Any = 1.0) -> Any:
        asked.priority.append(priority_exponent)
        return buffer.set_priorities(state, indices, priorities, priority_exponent)

    spied = dataclasses.replace(buffer, sample=sample, set_priorities=set_priorities)
    state = jax.eval_shape(trainer.init, job.keys[0])
    jax.eval_shape(dataclasses.replace(trainer, buffer=spied).iteration, state)
    assert set(asked.importance) == {None}
    assert set(asked.priority) == {1.0}
    numbers = {name: jnp.zeros(()) for name in ("importance_exponent", "priority_exponent")}
    agent_state = dataclasses.replace(state.agent, hyperparameters={**state.agent.hyperparameters, **numbers})
    asked.importance.clear()
    asked.priority.clear()
    jax.eval_shape(
        dataclasses.replace(trainer, buffer=spied, agent=agent).iteration, dataclasses.replace(state, agent=agent_state)
    )
    assert all(getattr(asked_for, "shape", None) == () for asked_for in asked.importance + asked.priority)


@only("transition")
def test_a_buffer_of_flashbax_trains_in_the_loop(job: Job) -> None:
    buffer = replay.from_flashbax(
        flashbax.make_trajectory_buffer(
            add_batch_size=4,
            sample_batch_size=16,
            sample_sequence_length=3,
            period=1,
            min_length_time_axis=3,
            max_length_time_axis=64,
        )
    )
    trainer = dataclasses.replace(job.trainer, buffer=buffer)
    axes = experiments.axes()
    keys = jax.random.split(jax.random.key(0), SEEDS)  # flashbax draws with a default key's methods
    state = jax.jit(jax.vmap(trainer.init, out_axes=axes))(keys)
    chunk = jax.jit(jax.vmap(trainer.chunk, in_axes=(axes,), out_axes=(axes, 0)))
    for _ in range(150):
        state, _ = chunk(state)
    greedy = jax.jit(jax.vmap(experiments.make_evaluate(job.config)))(state.agent, keys)
    assert np.all(np.mean(greedy.episode_return, axis=1) > 2.5)
    assert all(leaf.ndim == 0 for leaf in jax.tree.leaves(state.clock))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("transition", None, r"\[replay\] is missing"),
        ("rollout", {"capacity": 256, "batch_size": 16}, r"\[replay\] has no use"),
        ("transition", {"kind": "sequence", "n_step": 1}, r"replay\.kind = 'sequence' gives sequences.*'prioritised'"),
        ("sequence", {"kind": "uniform", "length": 1}, r"replay\.kind = 'uniform' gives transitions.*to 'sequence'"),
        (
            "sequence",
            {"kind": "prioritised", "length": 1},
            r"gives transitions.*'prioritised' with replay\.length above 1",
        ),
        (
            "prioritised",
            {"n_step": 1, "length": 3},
            r"replay\.kind = 'prioritised' gives sequences.*without replay\.length",
        ),
    ],
)
def test_a_replay_table_that_does_not_go_with_the_agent(name: str, changes: Any, message: str) -> None:
    config = get_job(name).config
    settings: Any = config.replay
    if changes is not None:
        settings = experiments.ReplayConfig(**{**(dataclasses.asdict(settings) if settings else {}), **changes})
    else:
        settings = None
    with pytest.raises(InputError, match=message):
        experiments.make_trainer(dataclasses.replace(config, replay=settings))
