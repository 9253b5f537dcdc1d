"""What cannot fit the memory is answered with the part that is too large, from shapes alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rollax import experiments
from rollax.errors import InputError
from rollax.experiments import memory
from rollax.experiments.config import EvaluationConfig, ReplayConfig


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
