"""The agents with a policy and a value function learn the five probe environments, discrete and continuous."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents import flat
from tests.agents.probes import BEST, KINDS, Probe, train

from rollax import envs, experiments
from rollax.agents import a2c, actor_critic, awr, impala, ppo, reinforce, vmpo

pytestmark = pytest.mark.learning
DISCOUNT = 0.5
PASSES = {"num_minibatches": 2}
ONCE = {"num_steps": 4, "total_env_steps": 40_000}
VARIANTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "ppo": (ppo, PASSES, {}),
    "ppo kl": (ppo, {**PASSES, "objective": "kl"}, {}),
    "ppo dpo": (ppo, {**PASSES, "objective": "dpo"}, {}),
    "ppo rnd": (ppo, {**PASSES, "bonus": "rnd", "bonus_coefficient": 0.1}, {}),
    "ppo icm": (ppo, {**PASSES, "bonus": "icm", "bonus_coefficient": 0.1}, {}),
    "vmpo": (vmpo, {**PASSES, "epsilon_mean": 0.1, "epsilon_scale": 0.01, "epsilon_policy": 0.1}, {}),
    "a2c": (a2c, {}, ONCE),
    "impala": (impala, {}, ONCE),
    "reinforce": (reinforce, {}, ONCE),
    "awr": (awr, {}, {"num_steps": 4, "updates_per_iteration": 2}),
    "reinforce without baseline": (reinforce, {"baseline": False}, ONCE),
}
VALUELESS = "reinforce without baseline"
# The gate of CI has each file of agents/ once; what PPO's other objectives and bonuses do with a Box is not theirs.
GATE = {("ppo", True), ("vmpo", False), ("a2c", False), ("impala", False), ("reinforce", False), ("awr", False)}


def marks(variant: str, continuous: bool) -> list[pytest.MarkDecorator]:
    if continuous and variant.startswith("ppo "):
        return [pytest.mark.suite]
    return [] if (variant, continuous) in GATE else [pytest.mark.thorough]


CASES = [
    pytest.param(variant, continuous, kind, marks=marks(variant, continuous))
    for variant in VARIANTS
    for continuous in (False, True)
    for kind in (("action", "policy") if variant == VALUELESS else KINDS)
]


@functools.cache
def trained(variant: str, continuous: bool) -> tuple[actor_critic.Parts, dict[str, Any]]:
    module, changes, steps = VARIANTS[variant]
    settings = module.Config(
        **{"learning_rate": 5e-3, "discount": DISCOUNT, "hidden_sizes": (16,), **changes},
        **({"entropy_coefficient": 0.0} if hasattr(module.Config, "entropy_coefficient") else {}),
    )
    replay = None
    if variant == "awr":
        replay = experiments.ReplayConfig(capacity=4_096, batch_size=32, kind="sequence", length=4)
    states = train(
        continuous,
        module.__name__.split(".")[-1],
        settings,
        replay,
        **{"total_env_steps": 20_000, "num_envs": 8, "num_steps": 16, **steps},
    )
    probe = Probe(continuous=continuous)
    return module.make_parts(probe.observation_space(), probe.action_space(), settings), states


def value(parts: actor_critic.Parts, state: Any, seen: float) -> float:
    observation = jnp.array([[seen]], jnp.float32)
    return float(parts.value(state.params, flat.features(parts.torso, state.params.value_torso, observation))[0, 0])


def greedy(parts: actor_critic.Parts, state: Any, seen: float) -> np.ndarray:
    timestep = jax.tree.map(lambda leaf: leaf[None], envs.timestep(jnp.array([seen], jnp.float32)))
    memory = actor_critic.init_memory(parts, 1)
    _, decision = actor_critic.act_with(parts, state, memory, timestep, None, explore=False)
    return np.asarray(decision.action)[0]


@pytest.mark.parametrize(("variant", "continuous", "kind"), CASES)
def test_probe(variant: str, continuous: bool, kind: str) -> None:
    parts, state = trained(variant, continuous)[0], trained(variant, continuous)[1][kind]
    if kind in ("action", "policy"):
        for seen in (0.0,) if kind == "action" else (1.0, -1.0):
            right = 1.0 if seen >= 0 else -1.0
            if continuous:
                assert greedy(parts, state, seen)[0] == pytest.approx(BEST * right, abs=0.15)
            else:
                assert greedy(parts, state, seen) == (1 if right > 0 else 0)
    else:
        expected = {
            "value": {0.0: 1.0},
            "observation": {1.0: 1.0, -1.0: -1.0},
            "discounted": {0.0: DISCOUNT, 1.0: 1.0},
        }[kind]
        for seen, worth in expected.items():
            assert value(parts, state, seen) == pytest.approx(worth, abs=0.1)
