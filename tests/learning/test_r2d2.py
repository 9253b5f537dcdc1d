"""R2D2 learns the right values and actions of the five probe environments, and to remember."""

import functools

import jax
import jax.numpy as jnp
import pytest
from tests.agents.probes import KINDS, Probe

from rollax import experiments
from rollax.agents import r2d2, value_learning

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@functools.cache
def trained(kind: str) -> tuple[r2d2.Parts, r2d2.State]:
    probe = Probe(kind)
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
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig(probe),
        train=experiments.TrainConfig("r2d2", total_env_steps=12_800, num_envs=8, num_steps=4, unroll=1),
        agent=settings,
        replay=experiments.ReplayConfig(
            capacity=4_096, batch_size=16, kind="prioritised", length=6, cross_episodes=True, min_size=256
        ),
    )
    state, _ = jax.jit(experiments.make_train(config))(jax.random.key(0))
    return r2d2.make_parts(probe.observation_space(), probe.action_space(), settings), state.agent


def action_values(kind: str, *seen: float) -> list[float]:
    """Q(s, .) where the last of what was seen in an episode was seen."""
    parts, state = trained(kind)
    memory = parts.torso.init_memory(1)
    for step, number in enumerate(seen):
        observation, is_first = jnp.array([[number]], jnp.float32), jnp.array([step == 0])
        memory, features = parts.torso.step(state.params.torso, memory, observation, is_first)
    return value_learning.signed_parabolic(parts.values(state.params, features))[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_probe(kind: str) -> None:
    if kind == "value":
        assert action_values(kind, 0.0) == pytest.approx([1.0, 1.0], abs=0.1)
    elif kind == "observation":
        assert action_values(kind, 1.0) == pytest.approx([1.0, 1.0], abs=0.1)
        assert action_values(kind, -1.0) == pytest.approx([-1.0, -1.0], abs=0.1)
    elif kind == "discounted":
        assert action_values(kind, 0.0) == pytest.approx([DISCOUNT, DISCOUNT], abs=0.1)
        assert action_values(kind, 0.0, 1.0) == pytest.approx([1.0, 1.0], abs=0.1)
    elif kind == "action":
        assert action_values(kind, 0.0) == pytest.approx([-1.0, 1.0], abs=0.1)
    else:
        assert action_values(kind, 1.0) == pytest.approx([-1.0, 1.0], abs=0.1)
        assert action_values(kind, -1.0) == pytest.approx([1.0, -1.0], abs=0.1)


def test_memory_chain() -> None:
    config = experiments.load("r2d2_memorychain", ["train.total_env_steps=400_000"])
    result = experiments.run(config, seeds=4)
    assert result.summary["iqm"] >= 0.9
    assert result.summary["failed_seeds"] == []
