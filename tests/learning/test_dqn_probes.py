"""DQN learns the right values and actions of the five probe environments, with every distribution of returns."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import KINDS, Probe, action_values, train
from tests.marks import thorough

from rollax import experiments
from rollax.agents import dqn
from rollax.agents.action_values import DISTRIBUTIONS

pytestmark = pytest.mark.learning
DISCOUNT = 0.5
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"distribution": name} for name in DISTRIBUTIONS},
    "double dueling": {"double": True, "dueling": True},
    "munchausen": {"munchausen": True},
    "noisy": {"noisy": True, "epsilon_start": 0.0, "epsilon_end": 0.0},
}
GATE = ("none", "categorical")
# What Munchausen learns of an action is less than its value by what the policy's surprise at it costs. Where nothing is
# seen but 0, the last layer's bias alone learns, which the weights of 21 atoms need longer for.
LEFT_OUT = {"munchausen": ("value", "action", "policy"), "categorical": ("value", "action")}
CASES = [
    case
    for variant in VARIANTS
    for kind in KINDS
    if kind not in LEFT_OUT.get(variant, ())
    for case in ([(variant, kind)] if variant in GATE else thorough((variant, kind)))
]


@functools.cache
def trained(variant: str) -> tuple[dqn.Parts, dict[str, dqn.State]]:
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
            **VARIANTS[variant],
        }
    )
    replay = experiments.ReplayConfig(capacity=4_000, batch_size=32)
    states = train(
        False, "dqn", settings, replay, total_env_steps=8_000, num_envs=4, num_steps=4, updates_per_iteration=2
    )
    return dqn.make_parts(Probe().observation_space(), Probe().action_space(), settings), states


@pytest.mark.parametrize(("variant", "kind"), CASES)
def test_probe(variant: str, kind: str) -> None:
    parts, state = trained(variant)[0], trained(variant)[1][kind]
    for seen, expected in action_values(kind, DISCOUNT).items():
        observation = jnp.array([seen[-1:]], jnp.float32)
        values = parts.returns(state.params, observation, None, state.hyperparameters).values[0].tolist()
        if kind in ("action", "policy") and variant == "noisy":
            # Noise alone need not try the wrong action often enough to learn its value.
            best, other = int(np.argmax(expected)), int(np.argmin(expected))
            assert values[best] == pytest.approx(1.0, abs=0.1)
            assert values[other] < 0.8
        else:
            assert values == pytest.approx(expected, abs=0.1)
