"""DDPG, TD3 and D4PG learn the right values and actions of the five probe environments."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import BEST, KINDS, Probe, train
from tests.marks import thorough

from rollax import envs, experiments
from rollax.agents import ddpg

pytestmark = pytest.mark.learning
DISCOUNT = 0.5
VARIANTS: dict[str, dict[str, Any]] = {
    "ddpg": {},
    "td3": {"num_critics": 2, "actor_period": 2, "target_noise": 0.2, "target_period": 2},
    "d4pg": {"distribution": "categorical", "num_atoms": 21, "value_min": -2.0, "value_max": 2.0},
}


@functools.cache
def trained(variant: str) -> tuple[ddpg.Parts, dict[str, ddpg.State]]:
    probe = Probe(continuous=True)
    settings = ddpg.Config(
        **{
            "learning_rate": 2e-3,
            "critic_learning_rate": 5e-3,
            "discount": DISCOUNT,
            "exploration_noise": 0.3,
            "random_steps": 2000.0,
            "hidden_sizes": (32,),
            "target_rate": 0.1,
            **VARIANTS[variant],
        }
    )
    replay = experiments.ReplayConfig(capacity=8_000, batch_size=64)
    states = train(
        True, "ddpg", settings, replay, total_env_steps=8_000, num_envs=4, num_steps=4, updates_per_iteration=4
    )
    return ddpg.make_parts(probe.observation_space(), probe.action_space(), settings), states


def act(parts: ddpg.Parts, state: ddpg.State, seen: float) -> np.ndarray:
    timestep = jax.tree.map(lambda leaf: leaf[None], envs.timestep(jnp.array([seen], jnp.float32)))
    return np.asarray(ddpg.act_with(parts, state, (), timestep, None, explore=False)[1].action)


def values(parts: ddpg.Parts, state: ddpg.State, seen: float, action: np.ndarray) -> list[float]:
    """What each critic expects of an action, whose units are those of the probes' space."""
    of = state.critics
    observation, hyper = jnp.array([[seen]], jnp.float32), state.hyperparameters
    returns = parts.critics.returns(of.params, of.statistics, observation, jnp.asarray(action), hyper)
    return returns.values[:, 0, 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["td3", *thorough("ddpg", "d4pg")])
def test_probe(variant: str, kind: str) -> None:
    parts, state = trained(variant)[0], trained(variant)[1][kind]
    expected = {
        "value": {0.0: 1.0},
        "observation": {1.0: 1.0, -1.0: -1.0},
        "discounted": {0.0: DISCOUNT, 1.0: 1.0},
        "action": {0.0: 1.0},
        "policy": {1.0: 1.0, -1.0: 1.0},
    }[kind]
    for seen, value in expected.items():
        action = act(parts, state, seen)
        if kind in ("action", "policy"):
            right = BEST * (-1.0 if seen < 0 else 1.0)
            assert action[0, 0] == pytest.approx(right, abs=0.15)
            # Critics know what a wrong action loses too.
            worse = values(parts, state, seen, np.full((1, 1), -right, np.float32))
            assert worse == pytest.approx([0.0] * len(worse), abs=0.25)
        each = values(parts, state, seen, action)
        assert each == pytest.approx([value] * len(each), abs=0.15)
