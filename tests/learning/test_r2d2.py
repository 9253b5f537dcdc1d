"""R2D2 learns the right values and actions of the five probe environments, and to remember."""

import functools

import jax.numpy as jnp
import pytest
from tests.agents.probes import KINDS, Probe, action_values, train

from rollax import experiments
from rollax.agents import r2d2, value_learning

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@functools.cache
def trained() -> tuple[r2d2.Parts, dict[str, r2d2.State]]:
    settings = r2d2.Config(
        learning_rate=5e-3,
        discount=DISCOUNT,
        n_step=2,
        burn_in=2,
        epsilon_end=0.2,
        epsilon_steps=2_000.0,
        target_rate=0.1,
        memory_size=16,
        hidden_sizes=(16,),
    )
    replay = experiments.ReplayConfig(
        capacity=4_096, batch_size=16, kind="prioritised", length=6, cross_episodes=True, min_size=256
    )
    states = train(False, "r2d2", settings, replay, total_env_steps=12_800, num_envs=8, num_steps=4)
    return r2d2.make_parts(Probe().observation_space(), Probe().action_space(), settings), states


@pytest.mark.parametrize("kind", KINDS)
def test_probe(kind: str) -> None:
    parts, state = trained()[0], trained()[1][kind]
    for seen, expected in action_values(kind, DISCOUNT).items():
        memory = parts.torso.init_memory(1)
        for step, number in enumerate(seen):
            observation, is_first = jnp.array([[number]], jnp.float32), jnp.array([step == 0])
            memory, features = parts.torso.step(state.params.torso, memory, observation, is_first)
        values = value_learning.signed_parabolic(parts.values(state.params, features))[0].tolist()
        assert values == pytest.approx(expected, abs=0.1)


def test_memory_chain() -> None:
    config = experiments.load("r2d2_memorychain", ["train.total_env_steps=400_000"])
    result = experiments.run(config, seeds=4)
    assert result.summary["iqm"] >= 0.9
    assert result.summary["failed_seeds"] == []
