"""One run whose environments are spread over devices is the run of one device."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.contract.jobs import BEACON, differences, make_config
from tests.contract.jobs import CONFIGS as JOBS
from tests.marks import thorough

from rollax import InputError, experiments
from rollax.experiments import config as configs
from rollax.experiments import logs, memory, saving
from rollax.experiments.sharding import job_mesh, over_seeds, places, seed_mesh
from rollax.experiments.trainer import axes

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


def spread(name: str, over: str, at_once: int = 0, **changes: Any) -> experiments.ExperimentConfig:
    """Returns one of the configs, with two iterations and what is spread over the devices."""
    config = CONFIGS[name]
    steps = 2 * config.train.num_envs * config.train.num_steps
    train = dataclasses.replace(config.train, total_env_steps=steps, spread=over, seeds_at_once=at_once)
    return dataclasses.replace(config, train=train, **changes)


@pytest.mark.parametrize(("name", "seeds"), [("dqn", 2), *thorough(("ppo", 1))])
def test_a_run_over_environments_is_the_run_over_seeds(name: str, seeds: int, tmp_path: Path) -> None:
    runs = [experiments.run(spread(name, over, 1), seeds, out=tmp_path / over) for over in ("seeds", "environments")]
    assert [run.summary["devices"] for run in runs] == [seeds, 2]
    assert not differences(*((run.state, run.best) for run in runs), 1e-5)
    for file in ("metrics.csv", "evaluations.csv"):
        assert not differences(*(logs.read_columns(tmp_path / over / file) for over in ("seeds", "environments")), 1e-5)


def test_a_run_over_environments_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, seeds, shares = saving.Keeper.save, 2, []

    def save_and_stop(keeper: saving.Keeper, chunk: int, saved: saving.Saved, seconds: float) -> None:
        save(keeper, chunk, saved, seconds)
        shares.extend(shard.data.shape for shard in saved.state.timestep.reward.addressable_shards)
        raise KeyboardInterrupt

    monkeypatch.setattr(saving.Keeper, "save", save_and_stop)
    config = spread("dqn", "environments", checkpoint=experiments.CheckpointConfig(every=1))
    with pytest.raises(KeyboardInterrupt):
        experiments.run(config, seeds, out=tmp_path)
    assert shares == [(seeds, config.train.num_envs // 2)] * 2
    monkeypatch.undo()
    resumed, whole = experiments.resume(tmp_path), experiments.run(spread("dqn", "environments"), seeds)
    assert not differences((resumed.state, resumed.best), (whole.state, whole.best))
    alone = experiments.run(spread("dqn", "seeds"), seeds)
    assert not differences((alone.state, alone.best), (whole.state, whole.best), 1e-5)


@pytest.mark.thorough
def test_the_memory_of_spread_environments_is_that_of_the_compiled_program() -> None:
    config = spread("dqn", "environments")
    trainer, mesh = experiments.make_trainer(config), job_mesh(config.train, 1)
    state = memory._state(trainer, 1)
    state = jax.tree.map(lambda leaf, place: leaf.update(sharding=place), state, places(state, mesh, 1))
    compiled = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), (0,)).lower(state).compile()
    analysis = compiled.memory_analysis()
    one = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    program = 2 * (one + analysis.temp_size_in_bytes)
    estimate = experiments.estimate_memory(config)
    assert estimate.program == pytest.approx(program, rel=0.15)
    assert estimate.state == pytest.approx(2 * analysis.argument_size_in_bytes - estimate.shared, rel=0.15)


def test_seeds_in_groups_are_those_of_one_vmap_and_stay_in_place() -> None:
    config, seeds = JOBS["prioritised"](), 6
    assert config.replay is not None
    config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=8_192))
    trainer, mesh = experiments.make_trainer(config), seed_mesh(1)
    init = over_seeds(trainer.init, mesh, (0,), axes())
    results = []
    for at_once, held_twice in ((0, 0), (5, 3)):  # groups are equal: of three, below five
        state = init(jax.random.split(jax.random.key(0), seeds))
        chunk = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), (0,), at_once).lower(state).compile()
        most = (held_twice / seeds + 0.1) * memory.tree_bytes(state)
        assert chunk.memory_analysis().temp_size_in_bytes < most
        for _ in range(3):
            state, metrics = chunk(state)
        results.append((state, metrics))
    assert not differences(*results, tolerance=1e-5)


@pytest.mark.parametrize(
    ("train", "count"),
    [
        ({}, 3),
        ({"num_envs": 64}, 3),
        ({"num_envs": 64, "spread": "seeds"}, 3),
        ({"spread": "environments"}, experiments.TrainConfig.num_envs),
        ({"num_envs": 64, "spread": "environments"}, 64),
        ({"num_envs": "many", "spread": "environments"}, 3),  # as all below: an error, once it is checked
        ({"num_envs": -1, "spread": "environments"}, 3),
        ({"num_envs": math.inf, "spread": "environments"}, 3),
        ("spread", 3),
    ],
)
def test_the_command_line_starts_a_device_for_each_environment_that_is_spread(train: Any, count: int) -> None:
    assert configs.spread_count({"train": train}, 3) == count


def test_what_cannot_be_spread_is_one_sentence() -> None:
    config = spread("ppo", "environments")
    odd = dataclasses.replace(config, train=dataclasses.replace(config.train, num_envs=3))
    with pytest.raises(InputError, match=r"train\.num_envs = 3 is not a multiple of the 2 devices"):
        experiments.run(odd)
    with pytest.raises(InputError, match=r"train\.spread = 'environments' cannot be debugged"):
        experiments.run(config, debug=True)
    with pytest.raises(InputError, match=r"train\.spread = 'environments' cannot spread environments that the host"):
        experiments.make_host_train(config, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"train\.spread = 'devices' .*'environments'"):
        experiments.load("ppo_cartpole", ["train.spread=devices"])
    with jax.default_prng_impl("philox4x32"), pytest.raises(InputError, match="keys are of a philox kind"):
        experiments.run(config)
    init, _ = experiments.over_environments(experiments.make_trainer(config))
    with pytest.raises(InputError, match="keys are of a philox kind"):
        init(jax.random.key(0, impl="philox4x32"))
    train = experiments.shard(experiments.make_train(config), 2)
    with pytest.raises(InputError, match="keys are of a philox kind"):
        train(jax.random.split(jax.random.key(0, impl="philox4x32"), 2))
