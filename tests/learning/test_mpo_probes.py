"""MPO learns the right values and actions of the five probe environments, discrete and continuous."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.probes import BEST, KINDS, Probe, action_values, train
from tests.marks import thorough

from rollax import envs, experiments
from rollax.agents import mpo

pytestmark = pytest.mark.learning
DISCOUNT = 0.5


@functools.cache
def trained(continuous: bool) -> tuple[mpo.Parts, dict[str, mpo.State]]:
    probe = Probe(continuous=continuous)
    settings = mpo.Config(
        learning_rate=5e-3,
        critic_learning_rate=5e-3,
        dual_learning_rate=5e-2,
        discount=DISCOUNT,
        epsilon=0.5,
        epsilon_mean=0.1,
        epsilon_policy=0.1,
        epsilon_scale=1e-2,
        num_samples=8,
        target_rate=0.05,
        random_steps=500.0,
        hidden_sizes=(16,),
    )
    replay = experiments.ReplayConfig(capacity=4_000, batch_size=32)
    steps = {"total_env_steps": 8_000, "num_envs": 4, "num_steps": 4, "updates_per_iteration": 4}
    return mpo.make_parts(probe.observation_space(), probe.action_space(), settings), train(
        continuous, "mpo", settings, replay, **steps
    )


def values(parts: mpo.Parts, state: mpo.State, seen: float, action: float) -> np.ndarray:
    """Q of a discrete probe's actions, or of one action of a continuous probe: the mean over the critics."""
    observation, shown = jnp.array([[seen]]), jnp.array([[action]])
    learner = state.critics
    returns = parts.critics.returns(learner.params, learner.statistics, observation, shown, state.hyperparameters)
    return np.asarray(returns.values.mean(axis=0)[0])


def greedy(parts: mpo.Parts, state: mpo.State, seen: float) -> np.ndarray:
    timestep = jax.tree.map(lambda leaf: leaf[None], envs.timestep(jnp.array([seen])))
    _, decision = parts.policy.act_with(state, (), timestep, None, explore=False)
    return np.asarray(decision.action)[0]


@pytest.mark.parametrize("kind", thorough(*KINDS))
def test_discrete_probe(kind: str) -> None:
    parts, state = trained(False)[0], trained(False)[1][kind]
    for seen, expected in action_values(kind, DISCOUNT).items():
        learnt = values(parts, state, seen[-1], 0.0)
        if kind in ("action", "policy"):
            # A policy that is sure of the right action seldom tries the wrong one, so only the right one's value.
            assert learnt[np.argmax(expected)] == pytest.approx(1.0, abs=0.1)
            assert greedy(parts, state, seen[-1]) == np.argmax(expected)
        else:
            assert learnt == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_continuous_probe(kind: str) -> None:
    parts, state = trained(True)[0], trained(True)[1][kind]
    if kind in ("action", "policy"):
        for seen in (0.0,) if kind == "action" else (1.0, -1.0):
            right = BEST if seen >= 0 else -BEST
            assert greedy(parts, state, seen)[0] == pytest.approx(right, abs=0.15)
            assert values(parts, state, seen, right)[0] == pytest.approx(1.0, abs=0.15)
    else:
        for seen, expected in action_values(kind, DISCOUNT).items():
            for action in (-0.5, 0.0, 0.5):
                assert values(parts, state, seen[-1], action)[0] == pytest.approx(expected[0], abs=0.1)
