"""The training state: fresh, strongly typed, safe to donate, the same from chunk to chunk; and each key used once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.contract.jobs import Job, only
from tests.marks import thorough

from rollax import experiments
from rollax.envs.base import strongly_typed


def addresses(tree: Any) -> list[int]:
    """Returns where the buffers of a tree are, keys' too."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.size]
    return [
        (jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).unsafe_buffer_pointer()
        for leaf in leaves
    ]


def types(tree: Any) -> dict[str, Any]:
    """Returns shape, dtype and weakness of each leaf by its path."""
    avals = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return {path: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for path, leaf in avals.items()}


def test_init_aliases_nothing_and_may_be_donated(job: Job) -> None:
    key = job.keys[0]
    env_params = strongly_typed(job.trainer.env.default_params)
    learning_rate = jnp.asarray(0.1)
    state = job.trainer.init(key, {"learning_rate": learning_rate}, env_params)
    caller = (key, env_params, learning_rate, job.trainer.env.default_params)
    shared = [address for address, count in Counter(addresses(state)).items() if count > 1]
    assert not shared
    assert not set(addresses(state)) & set(addresses(caller))
    job.chunk_seed(state)
    assert state.agent.env_steps.is_deleted()  # it was donated indeed
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(caller) if isinstance(leaf, jax.Array))
    jax.block_until_ready(jax.tree.map(jnp.array, caller))


def test_no_leaf_is_weakly_typed_and_a_chunk_returns_what_it_takes(job: Job) -> None:
    for start in (lambda: job.start_seed(job.keys[0]), job.start):
        state = start()
        assert not [path for path, (_, _, weak) in types(state).items() if weak]
        chunk = job.chunk_seeds if state.agent.env_steps.ndim else job.trainer.chunk
        following, metrics = jax.eval_shape(chunk, state)
        assert jax.tree.structure(following) == jax.tree.structure(state)
        assert types(following) == types(state)
        assert not [path for path, (_, _, weak) in types(metrics).items() if weak]


def test_a_chunk_compiles_once(job: Job) -> None:
    job.run(job.start(), 2)
    job.run_seed(job.start_seed(job.keys[0]), 2)
    assert job.chunk_seeds._cache_size() == 1
    assert job.chunk_seed._cache_size() == 1


CHECKS: dict[str, Callable[[], Any]] = {
    "key reuse": lambda: jax.debug_key_reuse(True),
    "leaks": jax.checking_leaks,
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
}


@pytest.mark.parametrize("check", ["key reuse", "rank promotion", *thorough("leaks")])
def test_a_training_step_passes_the_checks_of_jax(job: Job, check: str) -> None:
    key, trainer, evaluate = job.keys[0], job.trainer, experiments.make_evaluate(job.config)
    with CHECKS[check]():
        # New functions, so that what was traced without the check is not taken for them. Tracing is what checks.
        state = jax.eval_shape(jax.jit(lambda key: trainer.init(key)), key)
        jax.jit(lambda state: trainer.iteration(state)).trace(state)
        jax.jit(lambda state: trainer.chunk(state)).trace(state)
        for explore in (False, True):
            jax.jit(lambda state, key, explore=explore: evaluate(state, key, explore)).trace(state.agent, key)


@pytest.mark.parametrize(
    "name",
    [
        *("rainbow_cartpole", "iqn_cartpole", "pqn_memorychain", "sac_pendulum", "td3_pendulum", "mpo_pendulum"),
        *("a2c_cartpole", "awr_cartpole", "impala_cartpole", "ppo_deepsea", "reinforce_cartpole", "vmpo_cartpole"),
    ],
)
def test_a_shipped_agent_uses_each_key_once(name: str) -> None:
    trainer = experiments.make_trainer(experiments.load(name))
    state = jax.eval_shape(trainer.init, jax.random.key(0))
    with jax.debug_key_reuse(True):
        jax.jit(lambda state: trainer.iteration(state)).trace(state)


@only("rollout")
def test_a_key_used_twice_would_be_found(job: Job) -> None:
    trainer = job.trainer
    agent = trainer.agent

    def update(state: Any, rollout: Any, key: jax.Array) -> Any:
        noise = jax.random.normal(key) * jax.random.uniform(key)
        return agent.update(state, dataclasses.replace(rollout, reward=rollout.reward + noise), key)

    trainer = dataclasses.replace(trainer, agent=dataclasses.replace(agent, update=update))
    state = jax.eval_shape(trainer.init, job.keys[0])
    jax.jit(trainer.iteration).trace(state)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(lambda state: trainer.iteration(state)).trace(state)
