"""One run whose environments are spread over devices is the run of one device."""

from __future__ import annotations

import math
import re

import jax
import pytest
from tests.contract.jobs import BEACON, differences, make_config

from rollax import InputError, experiments

pytestmark = pytest.mark.quick

CONFIGS = {
    "ppo": make_config(
        "ppo", "CartPole-v1", 8, 4, settings={"hidden_sizes": (8,), "num_minibatches": 2, "num_epochs": 1}
    ),
    "dqn": make_config(
        "dqn",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 2},
        settings={"hidden_sizes": (8,)},
        replay=experiments.ReplayConfig(capacity=64, batch_size=8, kind="prioritised", n_step=2),
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_environments_over_devices_equal_one_device(name: str) -> None:
    trainer = experiments.make_trainer(CONFIGS[name])
    init, chunk = experiments.over_environments(trainer)
    key, updates = jax.random.key(1), 2
    spread, alone = init(key), jax.jit(trainer.init)(key)
    assert not differences(alone, spread, 1e-6)
    step = jax.jit(trainer.chunk)
    for _ in range(updates):
        alone, metrics = step(alone)
        spread, spread_metrics = chunk(spread)
    assert not differences((alone, metrics), (spread, spread_metrics), 1e-5)
    halves = {shard.data.shape[0] for shard in spread.timestep.reward.addressable_shards}
    assert halves == {trainer.config.train.num_envs // len(jax.devices())}


def test_gradients_are_summed_over_devices() -> None:
    trainer = experiments.make_trainer(CONFIGS["ppo"])
    init, chunk = experiments.over_environments(trainer)
    state = init(jax.random.key(1))
    program = chunk.lower(state).compile().as_text()  # type: ignore[attr-defined]
    results = [line.partition(" all-reduce(")[0] for line in program.splitlines() if " all-reduce(" in line]
    shapes = [re.findall(r"f32\[([\d,]*)\]", result) for result in results]
    sizes = [sum(math.prod(map(int, filter(None, shape.split(",")))) for shape in tensors) for tensors in shapes]
    params = sum(leaf.size for leaf in jax.tree.leaves(state.agent.params))
    assert max(sizes) >= params, "no sum over devices is as large as the gradient"


def test_environments_have_to_divide_among_the_devices() -> None:
    config = make_config("ppo", "CartPole-v1", 3, 4, settings={"hidden_sizes": (8,), "num_minibatches": 1})
    with pytest.raises(InputError, match=r"train\.num_envs = 3 is not a multiple of the 2 devices"):
        experiments.over_environments(experiments.make_trainer(config))
