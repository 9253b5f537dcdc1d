"""What a compiled chunk of training needs beside its replay buffers: little, in both storages."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import pytest
from tests.contract.jobs import get_job
from tests.marks import thorough

from rollax import experiments

SEEDS = 8
CAPACITY = 1 << 21


def nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# The learner that is not ready yet is a branch of the same program, so that this holds for it too.
@pytest.mark.parametrize("storage", ["array", "ref"])
@pytest.mark.parametrize(
    "name", ["prioritised", *thorough("transition", "sequence"), pytest.param("r2d2", marks=pytest.mark.suite)]
)
def test_a_chunk_of_many_seeds_holds_their_buffers_once(name: str, storage: Any) -> None:
    config = get_job(name).config
    assert config.replay is not None
    config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=CAPACITY, storage=storage))
    trainer, axes = experiments.make_trainer(config), experiments.axes()
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), SEEDS))
    state = jax.eval_shape(jax.vmap(trainer.init, out_axes=axes), keys)
    buffers = nbytes(state.replay)
    assert buffers >= SEEDS * 64e6
    chunk = jax.jit(jax.vmap(trainer.chunk, in_axes=(axes,), out_axes=(axes, 0)), donate_argnums=0)
    used = chunk.lower(state).compile().memory_analysis()
    assert used.temp_size_in_bytes <= 0.1 * buffers
    peak = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
    assert peak <= 1.1 * buffers
