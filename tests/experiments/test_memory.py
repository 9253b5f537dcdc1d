"""Estimates of memory against the compiled program, without allocating anything."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.contract.jobs import CONFIGS
from tests.marks import thorough

from rollax import InputError, experiments
from rollax.experiments import config as configs
from rollax.experiments import memory
from rollax.experiments.config import EvaluationConfig, ReplayConfig
from rollax.experiments.sharding import over_seeds, padded, seed_mesh
from rollax.experiments.trainer import axes

ROWS = 1_000_000


def program_bytes(config: experiments.ExperimentConfig, seeds: int) -> int:
    """What the compiler says of the chunk of so many seeds, on the devices of this process."""
    trainer = experiments.make_trainer(config)
    mesh = seed_mesh(seeds)
    state = memory._state(trainer, padded(seeds, mesh))
    at_once = config.train.seeds_at_once
    compiled = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), (0,), at_once).lower(state).compile()
    analysis = compiled.memory_analysis()  # of one device
    assert analysis is not None
    one = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return mesh.size * (one + analysis.temp_size_in_bytes)


def large_replay() -> experiments.ExperimentConfig:
    config = CONFIGS["transition"]()
    assert config.replay is not None
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, capacity=ROWS))


@pytest.mark.parametrize("at_once", [0, *thorough(4)])
def test_the_estimate_is_that_of_the_compiled_program(at_once: int) -> None:
    config = CONFIGS["rollout"]()
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, seeds_at_once=at_once))
    estimate = experiments.estimate_memory(config, seeds=16)
    assert estimate.program == pytest.approx(program_bytes(config, 16), rel=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo_cartpole", "dqn_cartpole"])
def test_the_estimate_of_a_shipped_config_is_that_of_the_compiled_program(name: str) -> None:
    config = configs.load(name)
    estimate = experiments.estimate_memory(config, seeds=16)
    assert estimate.program == pytest.approx(program_bytes(config, 16), rel=0.15)


def test_a_large_buffer_is_nearly_all_that_there_is() -> None:
    trainer = experiments.make_trainer(large_replay())
    buffers = 8 * memory.tree_bytes(memory._state(trainer, 1).replay)
    assert buffers > 8 * ROWS * 4 * 4  # observation, its successor, reward and action
    program = program_bytes(large_replay(), 8)
    assert program == pytest.approx(buffers, rel=0.1)
    assert experiments.estimate_memory(large_replay(), 8).program == pytest.approx(program, rel=0.15)


def test_bytes_of_a_tree() -> None:
    tree = {"a": jnp.zeros((3, 2)), "b": jnp.zeros((5,), jnp.uint8), "key": jax.random.key(0)}
    assert memory.tree_bytes(tree) == 24 + 5 + 8


def test_seeds_are_fitted_into_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 seeds need 2 * 100 shared bytes and 2 * 40 + 2 * 5 + 10 = 100 each.
    needed = experiments.Memory(shared=100, state=16 * 40, best=16 * 5, temporary=16 * 10)
    assert (needed.program, needed.total) == (100 + 16 * 50, 200 + 16 * 100)
    monkeypatch.setattr(memory, "estimate_memory", lambda config, seeds: needed)
    config = CONFIGS["rollout"]()
    for available, fitting in ((1800, 16), (1799, 14), (899, 6), (400, 2), (300, 1)):  # two devices share them evenly
        assert memory.largest_number_of_seeds(config, 16, available) == (fitting, needed)
    with pytest.raises(InputError, match=r"one seed needs 1e-07 GB of memory and may have 2\.99e-07: make"):
        memory.largest_number_of_seeds(config, 16, 299)


def test_there_is_memory() -> None:
    assert 2**24 < memory.available_memory() < 2**50


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def shapes(seeds: int) -> Any:
    """Two environments: 32 bytes of state, of what they show, and of memory each; a buffer of 100 rows of 40 bytes."""
    return SimpleNamespace(
        agent={"weights": floats(seeds, 250)},  # 1,000 bytes
        memory=floats(seeds, 2, 8),
        env=floats(seeds, 2, 8),
        timestep=floats(seeds, 2, 8),
        replay=floats(seeds, 50, 2, 10),
        key=jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds)),
    )


@pytest.mark.parametrize(
    ("train", "replay", "evaluation", "seeds", "needed", "largest"),
    [
        # 192 of environments, 64 T, 1,000 of weights, 64 E, 4,000 of replay, and 40 B U n.
        ({"num_steps": 1}, {}, {"episodes": 1}, 1, 192 + 64 + 1_000 + 64 + 4_000 + 40, "replay.capacity"),
        ({"num_steps": 1_000}, {}, {"episodes": 1}, 1, 192 + 64_000 + 1_000 + 64 + 4_000 + 40, "train.num_steps"),
        ({"num_steps": 1}, {}, {"episodes": 10_000}, 1, 192 + 64 + 1_000 + 640_000 + 4_040, "evaluation.episodes"),
        (
            {"num_steps": 1, "updates_per_iteration": 5},
            {"batch_size": 50, "n_step": 3},
            {"episodes": 1},
            2,
            2 * (192 + 64 + 1_000 + 64 + 4_000 + 40 * 5 * 50 * 3),
            "replay.batch_size",
        ),
    ],
)
def test_the_sum_and_its_largest_part(
    train: dict[str, Any],
    replay: dict[str, Any],
    evaluation: dict[str, Any],
    seeds: int,
    needed: int,
    largest: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig("CartPole-v1"),
        agent=None,
        train=experiments.TrainConfig(num_envs=2, **train),
        replay=ReplayConfig(capacity=100, **{"batch_size": 1, **replay}),
        evaluation=EvaluationConfig(**evaluation),
    )
    monkeypatch.setattr(memory, "room_of", lambda devices: needed)
    memory.require_room(config, shapes(seeds))
    monkeypatch.setattr(memory, "room_of", lambda devices: needed - 1)
    with pytest.raises(InputError, match=rf"GB of memory, .* for {largest}.*make it smaller") as caught:
        memory.require_room(config, shapes(seeds))
    assert ("fewer seeds" in str(caught.value)) == (seeds > 1)


def test_a_run_that_cannot_fit_is_answered_before_it_is_compiled() -> None:
    config = experiments.load("ppo_cartpole", ["evaluation.episodes=2e9"])
    with pytest.raises(InputError, match=r"the run needs at least .* for evaluation\.episodes"):
        experiments.run(config)


def test_the_room_of_this_machine_is_that_of_its_cores_together() -> None:
    room = memory.room_of(jax.local_devices())
    assert room == memory.room_of(jax.local_devices()[:1])
    assert room > 10**9
