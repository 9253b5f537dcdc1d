"""DQN learns the right values and actions of the five probe environments, with every distribution of returns."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import KINDS, Probe

from rollax import experiments
from rollax.agents import dqn
from rollax.agents.action_values import DISTRIBUTIONS

pytestmark = pytest.mark.learning
DISCOUNT = 0.5
CASES = [
    *((kind, {}) for kind in KINDS),
    *((kind, {"distribution": name}) for name in DISTRIBUTIONS[1:] for kind in ("discounted", "policy")),
    ("discounted", {"double": True, "dueling": True}),
    ("discounted", {"munchausen": True}),
    *((kind, {"noisy": True, "epsilon_start": 0.0, "epsilon_end": 0.0}) for kind in ("discounted", "policy")),
]


@functools.cache
def probe_of(kind: str) -> Probe:
    return Probe(kind)


def trained(kind: str, changes: dict[str, Any]) -> tuple[dqn.Parts, dqn.State]:
    probe = probe_of(kind)
    settings = dqn.Config(
        **{
            "learning_rate": 5e-3,
            "discount": DISCOUNT,
            "hidden_sizes": (16,),
            "epsilon_end": 0.5,
            "epsilon_steps": 1000.0,
            "target_rate": 0.1,
            "num_atoms": 21,
            "value_min": -2.0,
            "value_max": 2.0,
            "num_quantiles": 8,
            "num_taus": 8,
            **changes,
        }
    )
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig(probe),
        train=experiments.TrainConfig(
            "dqn", total_env_steps=8_000, num_envs=4, num_steps=4, updates_per_iteration=2, unroll=1
        ),
        agent=settings,
        replay=experiments.ReplayConfig(capacity=4_000, batch_size=32),
    )
    state, _ = jax.jit(experiments.make_train(config))(jax.random.key(0))
    return dqn.make_parts(probe.observation_space(), probe.action_space(), settings), state.agent


@pytest.mark.parametrize(("kind", "changes"), CASES, ids=str)
def test_probe(kind: str, changes: dict[str, Any]) -> None:
    parts, state = trained(kind, changes)

    def values(seen: float) -> np.ndarray:
        observation = jnp.array([[seen]], jnp.float32)
        return np.asarray(parts.returns(state.params, observation, None, state.hyperparameters).values[0])

    close = functools.partial(pytest.approx, abs=0.1)
    if kind == "value":
        assert values(0.0) == close([1.0, 1.0])
    elif kind == "observation":
        assert values(1.0) == close([1.0, 1.0])
        assert values(-1.0) == close([-1.0, -1.0])
    elif kind == "discounted":
        assert values(0.0) == close([DISCOUNT, DISCOUNT])
        assert values(1.0) == close([1.0, 1.0])
    else:  # noise alone need not try the wrong action often enough to learn its value
        for seen, right in ((0.0, 1),) if kind == "action" else ((1.0, 1), (-1.0, 0)):
            assert values(seen)[right] == close(1.0)
            assert values(seen)[1 - right] == close(-1.0) if "noisy" not in changes else values(seen)[1 - right] < 0.8
