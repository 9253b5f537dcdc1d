"""Many seeds in one program: each is a run of its own, in chunks or in one go, and what they share stays shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import (
    COUNTER,
    ROLLOUT_AGENT,
    SEEDS,
    Job,
    differences,
    fingerprints,
    make_config,
    only,
    replaying,
    take_seed,
    toys,
)

from rollax import InputError, experiments

TOLERANCE = 1e-5


def learnt(state: experiments.TrainState, seed: int) -> Any:
    """Returns the agent of one seed without the numbers that it was given."""
    return dataclasses.replace(take_seed(state, seed).agent, hyperparameters={})


def test_seeds_differ_and_equal_their_own_runs(job: Job) -> None:
    state, _ = job.run(job.start(), job.first_update)
    assert len(fingerprints([learnt(state, seed) for seed in range(SEEDS)])) == SEEDS
    for seed in range(SEEDS):
        alone = job.run_seed(job.start_seed(job.keys[seed]), job.first_update)
        assert not differences(alone, take_seed(state, seed), TOLERANCE)


def test_the_same_job_twice_is_the_same_bit_for_bit(job: Job) -> None:
    assert not differences(job.run(job.start(), 5), job.run(job.start(), 5))


def test_chunks_equal_the_whole_run_bit_for_bit(job: Job) -> None:
    train = experiments.make_train(job.config)
    whole = jax.jit(jax.vmap(train, out_axes=(experiments.axes(), 0)))(job.keys)
    assert not differences(whole, job.run(job.start(), job.trainer.num_chunks))


def test_values_of_a_hyperparameter_train_in_one_program(job: Job) -> None:
    rates = job.learning_rates * np.array([0.5, 1.0, 2.0, 4.0], np.float32)
    keys = jnp.repeat(job.keys[:1], SEEDS)
    state, _ = job.run(job.start(keys, rates), job.first_update)
    assert len(fingerprints([learnt(state, seed) for seed in range(SEEDS)])) == SEEDS
    for seed in range(SEEDS):
        alone = job.run_seed(job.start_seed(job.keys[0], rates[seed]), job.first_update)
        assert not differences(alone, take_seed(state, seed), TOLERANCE)
    # Other seeds and other numbers: what was compiled for the tests before serves here too.
    job.run(job.start(), 1)
    assert job.chunk_seeds._cache_size() == job.chunk_seed._cache_size() == 1


@only("rollout")
def test_the_budget_sets_a_horizon_that_is_left_at_zero(job: Job) -> None:
    assert job.start_seed(job.keys[0]).agent.hyperparameters["horizon"] == job.trainer.num_iterations
    own = job.trainer.init(job.keys[0], {"horizon": 7.0})
    assert own.agent.hyperparameters["horizon"] == 7.0


@toys
def test_each_seed_can_have_its_own_env_params(job: Job) -> None:
    limits = np.array([1, 2, 3, 5], np.int32)
    noise = np.array([0.0, 0.5, 0.5, 0.5], np.float32)
    params = dataclasses.replace(job.env_params, goal=np.full((SEEDS,), 100.0, np.float32), limit=limits, noise=noise)
    state, metrics = job.run(job.start(env_params=params), 8)
    assert not differences(state.env_params, params)
    ended = metrics["episodes"] > 0
    assert np.all(np.any(ended, axis=1))
    np.testing.assert_array_equal(
        metrics["episode_length"][ended], np.broadcast_to(limits[:, None], ended.shape)[ended]
    )
    # Starts and moves are whole numbers without noise.
    x = np.asarray(state.env.env.x)
    np.testing.assert_array_equal(np.all(x == np.round(x), axis=1), noise == 0.0)


def test_the_clock_has_no_seed_axis(job: Job) -> None:
    state, _ = job.run(job.start(), 12)
    assert all(leaf.ndim == 0 for leaf in jax.tree.leaves(state.clock))
    others = dataclasses.replace(state, clock=())
    assert all(leaf.shape[0] == SEEDS for leaf in jax.tree.leaves(others))
    assert state.clock.iteration == 12
    assert state.clock.env_steps == 12 * job.trainer.env_steps_per_iteration
    np.testing.assert_array_equal(state.agent.env_steps, np.full(SEEDS, state.clock.env_steps))


@pytest.mark.parametrize(
    "call",
    [
        lambda trainer, state: trainer.chunk(state),
        lambda trainer, state: jax.jit(trainer.chunk)(state),
        lambda trainer, state: jax.vmap(trainer.chunk)(state),
        lambda trainer, state: jax.jit(jax.vmap(trainer.chunk))(state),
    ],
    ids=["stacked", "stacked and jitted", "vmapped", "vmapped and jitted"],
)
@only("rollout", "transition")
def test_a_clock_with_a_seed_axis_is_refused(job: Job, call: Callable[..., Any]) -> None:
    state = job.start()
    clock = jax.tree.map(lambda leaf: jnp.stack([leaf] * SEEDS), state.clock)
    with pytest.raises(InputError, match=r"TrainState\.clock has a seed axis.*axes\(\)"):
        call(job.trainer, dataclasses.replace(state, clock=clock))


@replaying
def test_positions_with_a_seed_axis_are_refused(job: Job) -> None:
    state = job.start()
    clock = dataclasses.replace(
        state.clock, positions=jax.tree.map(lambda leaf: jnp.stack([leaf] * SEEDS), state.clock.positions)
    )
    axes = dataclasses.replace(
        experiments.axes(), clock=dataclasses.replace(clock, iteration=None, env_steps=None, positions=0)
    )
    with pytest.raises(InputError, match=r"TrainState\.clock has a seed axis"):
        jax.vmap(job.trainer.chunk, in_axes=(axes,))(dataclasses.replace(state, clock=clock))


@only("rollout", "transition", "prioritised", "sequence")
def test_the_update_gate_of_many_seeds_is_a_real_conditional(job: Job) -> None:
    compiled = job.chunk_seeds.lower(job.start()).compile()
    gates = 0 if job.config.replay is None else 1  # and no other conditional, which would hide a gate that is none
    assert compiled.as_text().count(" conditional(") == gates


@replaying
def test_the_learner_waits_until_the_buffer_can_be_sampled(job: Job) -> None:
    start = job.start()
    waiting, metrics = job.run(start, 1)
    assert not differences(waiting.agent.params, start.agent.params)
    np.testing.assert_array_equal(waiting.agent.updates, np.zeros(SEEDS))
    reported = metrics.keys() & {"td_error", "trace_error"}
    assert len(reported) == 1
    assert np.all(np.isnan([metrics[name] for name in reported]))
    learning, metrics = job.run(waiting, 1)
    assert differences(learning.agent.params, start.agent.params)
    np.testing.assert_array_equal(learning.agent.updates, np.full(SEEDS, job.config.train.updates_per_iteration))
    assert np.all(np.isfinite([metrics[name] for name in reported]))


@pytest.mark.parametrize("seeds", [3, 4])
def test_seeds_over_two_devices_equal_seeds_on_one(seeds: int) -> None:
    assert jax.local_device_count() == 2
    trainer = experiments.make_trainer(make_config(ROLLOUT_AGENT, COUNTER, 2, 3))

    def train(key: jax.Array) -> Any:
        return trainer.chunk(trainer.init(key))

    keys = jax.random.split(jax.random.key(0), seeds)  # of philox keys, XLA refuses to shard random bits on the CPU
    expected = jax.jit(jax.vmap(train, out_axes=(experiments.axes(), 0)))(keys)
    results = experiments.shard(train, seeds)(keys)
    assert not differences(results, expected, TOLERANCE)
    if seeds == 4:
        assert len(results[1]["reward"].sharding.device_set) == 2


@only("rollout")
def test_shard_refuses_another_number_of_keys(job: Job) -> None:
    with pytest.raises(InputError, match="pass 3 keys"):
        experiments.shard(job.trainer.train, 3)(job.keys)


def test_memory_grows_with_iterations_only_and_little(job: Job) -> None:
    def num_bytes(iterations: int) -> int:
        trainer = dataclasses.replace(job.trainer, num_chunks=iterations)
        shapes = jax.eval_shape(jax.vmap(trainer.train, out_axes=(experiments.axes(), 0)), job.keys)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    short, middle, long = num_bytes(4), num_bytes(8), num_bytes(16)
    assert long - middle == 2 * (middle - short)
    assert middle - short <= 4 * SEEDS * 1000
