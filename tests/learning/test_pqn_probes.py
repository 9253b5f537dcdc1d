"""PQN learns the right values and actions of the five probe environments."""

import functools

import jax.numpy as jnp
import pytest
from tests.agents import flat
from tests.agents.probes import KINDS, Probe, action_values, train

from rollax.agents import pqn

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@functools.cache
def trained() -> tuple[pqn.Parts, dict[str, pqn.State]]:
    settings = pqn.Config(
        learning_rate=5e-3,
        learning_rate_schedule="constant",  # rectified Adam starts slowly by itself
        discount=DISCOUNT,
        hidden_sizes=(16,),
        epsilon_end=0.5,
        epsilon_steps=1000.0,
    )
    states = train(False, "pqn", settings, total_env_steps=20_000, num_envs=8, num_steps=16)
    return pqn.make_parts(Probe().observation_space(), Probe().action_space(), settings), states


@pytest.mark.parametrize("kind", KINDS)
def test_probe(kind: str) -> None:
    parts, state = trained()[0], trained()[1][kind]
    for seen, expected in action_values(kind, DISCOUNT).items():
        features = flat.features(parts.torso, state.params.torso, jnp.array([seen[-1:]], jnp.float32))
        values = parts.value_layer.apply(state.params.value, features)[0].tolist()
        assert values == pytest.approx(expected, abs=0.1)
