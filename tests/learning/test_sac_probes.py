"""SAC and its family learn the right values and actions of the five probe environments, continuous and discrete."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import BEST, KINDS, Probe, action_values, train
from tests.marks import thorough

from rollax import envs, experiments
from rollax.agents import sac

pytestmark = pytest.mark.learning
DISCOUNT = 0.5
QUANTILES = {"distribution": "quantile", "num_quantiles": 8, "dropped_quantiles": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "sac": {},
    "discrete": {},
    "tqc": QUANTILES,
    "crossq": {"batch_norm": True, "adam_momentum": 0.5},
    "redq droq": {"num_critics": 4, "target_critics": 2, "mean_critics": True, "dropout": 0.01},
}


@functools.cache
def trained(variant: str) -> tuple[sac.Parts, dict[str, sac.State]]:
    probe = Probe(continuous=variant != "discrete")
    settings = sac.Config(
        **{
            "learning_rate": 3e-3,
            "critic_learning_rate": 5e-3,
            "discount": DISCOUNT,
            "learn_temperature": False,
            "initial_temperature": 0.01,
            "hidden_sizes": (32,),
            "target_rate": 0.1,
            **VARIANTS[variant],
        }
    )
    replay = experiments.ReplayConfig(capacity=6_000, batch_size=64)
    steps = {"total_env_steps": 6_000, "num_envs": 4, "num_steps": 4, "updates_per_iteration": 8}
    states = train(probe.continuous, "sac", settings, replay, **steps)
    return sac.make_parts(probe.observation_space(), probe.action_space(), settings), states


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["sac", *thorough(*(name for name in VARIANTS if name != "sac"))])
def test_probe(variant: str, kind: str) -> None:
    parts, state, continuous = trained(variant)[0], trained(variant)[1][kind], variant != "discrete"
    values = action_values(kind, DISCOUNT)
    for seen in values:
        observation = jnp.array([seen[-1:]], jnp.float32)
        action = greedy(parts, state, observation)
        if kind in ("action", "policy"):
            right = 1.0 if seen[-1] >= 0 else -1.0
            if continuous:
                assert action[0] == pytest.approx(BEST * right, abs=0.15)
            else:
                assert action == (1 if right > 0 else 0)
            continue
        shown = jnp.asarray(action).reshape(1, -1) if continuous else None
        expected = parts.critics.returns(
            state.critics.params, state.critics.statistics, observation, shown, state.hyperparameters
        )
        # The entropy's worth is small, but counted in the value of a step that another one follows.
        assert expected.values.mean() == pytest.approx(values[seen][0], abs=0.1)


def greedy(parts: sac.Parts, state: sac.State, observation: jax.Array) -> np.ndarray:
    timestep = jax.tree.map(lambda leaf: leaf[None], envs.timestep(observation[0]))
    _, decision = parts.policy.act_with(state, (), timestep, None, explore=False)
    return np.asarray(decision.action)[0]
