"""A NaN in one seed holds that seed's learner and touches no other."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from tests.contract.jobs import SEEDS, Job, differences, take_seed

from rollax import experiments

FAILING = 1  # the seed
GOOD, BAD = 3, 4  # iterations before the NaN comes, and after that


def spoil(state: experiments.TrainState, seed: int) -> experiments.TrainState:
    """Makes one number of the environment of one seed NaN."""
    fields = {"noise", "gravity"} & {field.name for field in dataclasses.fields(state.env_params)}
    spoilt = {name: getattr(state.env_params, name).at[seed].set(jnp.nan) for name in fields}
    assert len(spoilt) == 1
    return dataclasses.replace(state, env_params=dataclasses.replace(state.env_params, **spoilt))


def test_nan_in_one_seed_is_held_and_flagged_and_touches_no_other(job: Job) -> None:
    good, _ = job.run(job.start(), GOOD)
    undisturbed, _ = job.run(good, BAD)
    failed, _ = job.run(spoil(good, FAILING), BAD)
    flags = np.arange(SEEDS) == FAILING
    np.testing.assert_array_equal(failed.failed.flag, flags)
    np.testing.assert_array_equal(failed.failed.iteration, np.where(flags, GOOD, -1))
    for seed in range(SEEDS):
        if seed != FAILING:
            assert not differences(take_seed(failed, seed), take_seed(undisturbed, seed))
    held, last_good = take_seed(failed, FAILING), take_seed(good, FAILING)
    counted = dataclasses.replace(last_good.agent, env_steps=failed.clock.env_steps)
    assert not differences(held.agent, counted)  # all but the count of steps, which go on
    assert differences(held.env, last_good.env)


def test_a_failed_learner_stays_held_when_the_cause_is_gone(job: Job) -> None:
    good, _ = job.run(job.start(), GOOD)
    failed, _ = job.run(spoil(good, FAILING), 1)
    mended = dataclasses.replace(failed, env_params=good.env_params, env=good.env, timestep=good.timestep)
    later, _ = job.run(mended, 2)
    np.testing.assert_array_equal(later.failed.iteration, np.where(np.arange(SEEDS) == FAILING, GOOD, -1))
    held, last_good = take_seed(later, FAILING).agent, take_seed(good, FAILING).agent
    assert not differences(held, dataclasses.replace(last_good, env_steps=later.clock.env_steps))
    assert not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(held) if leaf.dtype == np.float32)
