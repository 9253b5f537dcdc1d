"""Bonuses: what is new pays more, what has been learnt less, whatever the actions are; and scales by hand."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import thorough

from rollax import InputError
from rollax.agents import Rollout, a2c, bonuses, normalisation, ppo
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

KINDS = ("rnd", "icm")
ACTIONS = {"discrete": Discrete(3), "multidiscrete": MultiDiscrete((2, 3)), "box": Box(-2.0, 2.0, (2,))}
HYPER = {"bonus_discount": jnp.float32(0.5), "bonus_learning_rate": jnp.float32(1e-2)}
OBSERVATION = {"one": Box(-9, 9, (2,)), "other": Discrete(5)}


def rows(space: Any, seed: int = 0, steps: int = 8, num_envs: int = 16, spread: float = 0.1) -> Rollout:
    """Steps whose successors lie around one place, `spread` wide, and are told by the action."""
    random = np.random.default_rng(seed)

    def seen() -> dict[str, jax.Array]:
        place = spread * random.normal(size=(steps, num_envs, 2)) + 1.0
        return {
            "one": jnp.asarray(place, jnp.float32),
            "other": jnp.asarray(random.integers(5, size=(steps, num_envs))),
        }

    keys = jax.random.split(jax.random.key(seed), steps * num_envs)
    action = jax.vmap(space.sample)(keys).reshape(steps, num_envs, *space.shape)
    never = jnp.zeros((steps, num_envs), jnp.bool_)
    return Rollout(seen(), action, jnp.zeros((steps, num_envs)), never, never, never, seen())


def make(kind: str, space: Any) -> bonuses.Bonus:
    bonus = bonuses.make(ppo.Config(bonus=kind, hidden_sizes=(16,), bonus_features=8), OBSERVATION, space)
    assert bonus is not None
    return bonus


@pytest.mark.parametrize("space", ACTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_new_pays_more_than_what_is_known(kind: str, space: str) -> None:
    bonus = make(kind, ACTIONS[space])
    state = jax.jit(bonus.init)(jax.random.key(0))
    learn = jax.jit(bonus.learn)

    # One environment of sixteen is where no other is.
    def at(seed: int) -> Rollout:
        rollout = rows(ACTIONS[space], seed)
        elsewhere = {**rollout.final_observation, "one": rollout.final_observation["one"].at[-1, 0].set(-3.0)}
        return dataclasses.replace(rollout, final_observation=elsewhere)

    for seed in range(150):
        state, reward = learn(state, rows(ACTIONS[space], seed), HYPER)
    known = float(jnp.mean(reward))
    _, reward = learn(state, at(999), HYPER)
    assert reward[-1, 0] > 3 * jnp.mean(reward[:-1])
    assert np.isfinite(reward).all()
    assert (reward >= 0).all()
    assert known > 0


def test_random_features_are_learnt_and_stay_as_they_are() -> None:
    bonus = make("rnd", Discrete(3))
    first = state = jax.jit(bonus.init)(jax.random.key(0))
    learn, errors = jax.jit(bonus.learn), []
    for seed in range(200):
        state, reward = learn(state, rows(Discrete(3), seed), HYPER)
        errors.append(float(jnp.mean(reward) * normalisation.standard_deviation(state.return_statistics)))
    assert errors[-1] < 0.1 * errors[0]
    jax.tree.map(np.testing.assert_array_equal, state.random_params, first.random_params)
    assert state.observation_statistics.count == 200 * 8 * 16


def test_curiosity_forgets_what_no_action_tells_of() -> None:
    # Features are shaped by the inverse model alone: the error of the forward model gives them no gradient.
    predictor = bonuses.icm(ppo.Config(hidden_sizes=(4,), bonus_features=3), Box(-1, 1, (2,)), Discrete(2))
    params, _ = predictor.init(jax.random.key(0), jnp.zeros((1, 2)))
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)), jnp.float32)

    def error(params: Any) -> jax.Array:
        return jnp.sum(predictor.errors(params, (), batch, jnp.zeros(5, jnp.int32), batch + 1)[1])

    gradient = jax.jit(jax.grad(error))(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((gradient["features"], gradient["inverse"])))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient["forward"]))
    loss, each = jax.jit(predictor.errors)(params, (), batch, jnp.zeros(5, jnp.int32), batch + 1)
    assert loss.shape == each.shape == (5,)


def test_bonuses_are_scaled_by_the_spread_of_their_discounted_sums() -> None:
    reward = jnp.array([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0]])
    sums = jax.jit(bonuses.discounted_sums)(reward, 0.5)
    np.testing.assert_allclose(sums, [[1, 2], [3.5, 1], [1.75, 4.5]])

    def errors(params: Any, *others: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(6) * params, reward.reshape(-1)

    predictor = bonuses.Predictor(lambda key, observation: (jnp.zeros(()), ()), errors)
    state = bonuses.init(predictor, Box(-1, 1, (1,)), jax.random.key(0))
    never = jnp.zeros((3, 2), jnp.bool_)
    place = jnp.zeros((3, 2, 1))
    rollout = Rollout(place, jnp.zeros((3, 2), jnp.int32), reward, never, never, never, place)
    _, bonus = jax.jit(functools.partial(bonuses.learn, predictor))(state, rollout, HYPER)
    np.testing.assert_allclose(bonus, reward / np.std([1, 2, 3.5, 1, 1.75, 4.5]), rtol=1e-5)


@pytest.mark.parametrize("module", [a2c, *thorough(ppo)], ids=["a2c", "ppo"])
def test_a_bonus_adds_a_value_and_a_metric(module: Any) -> None:
    rollout = rows(Discrete(3))
    rollout = dataclasses.replace(rollout, extras={"sample": rollout.action})
    agents = [module.make(OBSERVATION, Discrete(3), module.Config(bonus=kind)) for kind in ("none", "rnd")]
    states = [agent.init(jax.random.key(0)) for agent in agents]
    assert [state.params.value["params"]["bias"].shape for state in states] == [(1,), (2,)]
    assert states[0].bonus is None
    reports = [
        jax.jit(agent.update)(state, rollout, jax.random.key(1)) for agent, state in zip(agents, states, strict=True)
    ]
    assert "bonus" not in reports[0][1].metrics
    assert reports[1][1].metrics["bonus"] > 0
    before, after = states[1].bonus.params, reports[1][0].bonus.params
    assert any(np.any(x != y) for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


def test_bonuses_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"agent\.bonus = 'rmd' is no known bonus: did you mean 'rnd'"):
        bonuses.check("rmd")
    path = tmp_path / "own.py"
    path.write_text(
        "import types\n"
        "step = lambda params, memory, observation: (memory, observation)\n"
        "init, init_memory = (lambda key, observation: ()), (lambda num_envs: np.zeros((num_envs, 1)))\n"
        "cell = lambda space: types.SimpleNamespace(init=init, init_memory=init_memory, step=step)\n"
        "import numpy as np\n"
    )
    with pytest.raises(InputError, match=r"cell' has a memory, which agent\.bonus = 'rnd' has no use for"):
        bonuses.make(ppo.Config(bonus="rnd", torso=f"{path}:cell"), Box(-1, 1, (1,)), Discrete(2))
