"""PQN learns the right values and actions of the five probe environments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents import flat
from tests.agents.probes import KINDS, Probe

from rollax import experiments
from rollax.agents import pqn

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_probe(kind: str) -> None:
    probe = Probe(kind)
    settings = pqn.Config(
        learning_rate=5e-3,
        learning_rate_schedule="constant",  # rectified Adam starts slowly by itself
        discount=DISCOUNT,
        hidden_sizes=(16,),
        epsilon_end=0.5,
        epsilon_steps=1000.0,
    )
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig(probe),
        train=experiments.TrainConfig("pqn", total_env_steps=20_000, num_envs=8, num_steps=16, unroll=1),
        agent=settings,
    )
    state, _ = jax.jit(experiments.make_train(config))(jax.random.key(0))
    parts = pqn.make_parts(probe.observation_space(), probe.action_space(), settings)

    def values(seen: float) -> np.ndarray:
        features = flat.features(parts.torso, state.agent.params.torso, jnp.array([[seen]], jnp.float32))
        return np.asarray(parts.value_layer.apply(state.agent.params.value, features)[0])

    if kind == "value":
        np.testing.assert_allclose(values(0.0), [1.0, 1.0], atol=0.1)
    elif kind == "observation":
        np.testing.assert_allclose(values(1.0), [1.0, 1.0], atol=0.1)
        np.testing.assert_allclose(values(-1.0), [-1.0, -1.0], atol=0.1)
    elif kind == "discounted":
        np.testing.assert_allclose(values(0.0), [DISCOUNT, DISCOUNT], atol=0.1)
        np.testing.assert_allclose(values(1.0), [1.0, 1.0], atol=0.1)
    else:
        np.testing.assert_allclose(values(1.0 if kind == "policy" else 0.0), [-1.0, 1.0], atol=0.1)
        if kind == "policy":
            np.testing.assert_allclose(values(-1.0), [1.0, -1.0], atol=0.1)
