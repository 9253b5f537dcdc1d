"""PPO learns the right values and actions of the five probe environments, discrete and continuous."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents import flat
from tests.agents.probes import BEST, KINDS, Probe, train

from rollax import envs
from rollax.agents import ppo

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@functools.cache
def trained(kind: str, continuous: bool) -> tuple[ppo.Parts, ppo.State]:
    probe = Probe(kind, continuous)
    settings = ppo.Config(
        learning_rate=5e-3, discount=DISCOUNT, entropy_coefficient=0.0, hidden_sizes=(16,), num_minibatches=2
    )
    state = train(probe, "ppo", settings, total_env_steps=20_000, num_envs=8, num_steps=16)
    return ppo.make_parts(probe.observation_space(), probe.action_space(), settings), state


def value(parts: ppo.Parts, state: ppo.State, seen: float) -> float:
    observation = jnp.array([[seen]], jnp.float32)
    return float(parts.value(state.params, flat.features(parts.torso, state.params.value_torso, observation))[0])


def greedy(parts: ppo.Parts, state: ppo.State, seen: float) -> np.ndarray:
    timestep = jax.tree.map(lambda leaf: leaf[None], envs.timestep(jnp.array([seen], jnp.float32)))
    memory = ppo.init_memory(parts, 1)
    _, decision = ppo.act_with(parts, state, memory, dataclasses.replace(timestep), None, explore=False)
    return np.asarray(decision.action)[0]


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", KINDS)
def test_probe(kind: str, continuous: bool) -> None:
    parts, state = trained(kind, continuous)
    if kind == "value":
        assert value(parts, state, 0.0) == pytest.approx(1.0, abs=0.1)
    elif kind == "observation":
        assert value(parts, state, 1.0) == pytest.approx(1.0, abs=0.1)
        assert value(parts, state, -1.0) == pytest.approx(-1.0, abs=0.1)
    elif kind == "discounted":
        assert value(parts, state, 0.0) == pytest.approx(DISCOUNT, abs=0.1)
        assert value(parts, state, 1.0) == pytest.approx(1.0, abs=0.1)
    else:
        for seen in (0.0,) if kind == "action" else (1.0, -1.0):
            right = 1.0 if seen >= 0 else -1.0
            if continuous:
                assert greedy(parts, state, seen)[0] == pytest.approx(BEST * right, abs=0.15)
            else:
                assert greedy(parts, state, seen) == (1 if right > 0 else 0)
