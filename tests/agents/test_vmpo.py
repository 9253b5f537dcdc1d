"""V-MPO: weights and dual variables against rlax, divergences by hand and against rlax, and whole updates."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax.agents import Rollout, actor_critic, distributions, trust_region, vmpo
from rollax.agents.distributions import MultiCategorical, TanhNormal
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

SPACES = {"discrete": Discrete(3), "multidiscrete": MultiDiscrete((2, 3)), "box": Box(-2.0, 2.0, (2,))}


# Weights.


def test_weights_by_hand() -> None:
    weights, divergence = jax.jit(vmpo.weigh)(jnp.array([[1.0, 4.0, 2.0, 3.0]]), 0.5)
    better = np.exp([8.0, 6.0]) / np.exp([8.0, 6.0]).sum()  # 4 and 3 are the better half
    np.testing.assert_allclose(weights, [[0, better[0], 0, better[1]]], rtol=1e-5)
    np.testing.assert_allclose(divergence, np.sum(better * np.log(2 * better)), rtol=1e-5)


def test_equal_advantages_weigh_alike() -> None:
    weights, divergence = jax.jit(vmpo.weigh)(jnp.full((2, 4), 7.0), 1.0)
    np.testing.assert_allclose(weights, np.full((2, 4), 1 / 8), rtol=1e-6)
    np.testing.assert_allclose(divergence, 0, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_weights_and_the_slope_of_the_temperature_against_rlax(temperature: float) -> None:
    advantage = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), jnp.float32)

    def theirs(temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
        constraint = rlax.LagrangePenalty(temperature, jnp.float32(0.1))
        ones = jnp.ones_like(advantage)
        loss, weights, _ = rlax.vmpo_compute_weights_and_temperature_loss(
            advantage, ones, ones, constraint, lambda x: x, 0.5
        )
        return jnp.sum(loss), weights

    slope, expected = jax.grad(theirs, has_aux=True)(jnp.float32(temperature))
    weights, divergence = jax.jit(vmpo.weigh)(advantage, temperature)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(0.1 - divergence, slope, rtol=1e-3, atol=1e-5)


# Divergences.


def normals(seed: int) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(size=(5, 3)), jnp.float32), jnp.asarray(
        random.uniform(0.5, 2, (5, 3)), jnp.float32
    )


def test_divergences_of_normals() -> None:
    (loc, scale), (old_loc, old_scale) = normals(0), normals(1)
    old, new = (distrax.Independent(distrax.Normal(*each), 1) for each in ((old_loc, old_scale), (loc, scale)))
    exact = jax.jit(distributions.kl_divergence)(old, new)
    np.testing.assert_allclose(exact, old.kl_divergence(new), rtol=1e-5)
    parts = jax.jit(distributions.divergences)(old, new)
    of_mean, of_scale = (
        jax.vmap(rlax.multivariate_normal_kl_divergence)(old_loc, old_scale, *other)
        for other in ((loc, old_scale), (old_loc, scale))
    )
    np.testing.assert_allclose(parts["mean"], of_mean, rtol=1e-4)
    np.testing.assert_allclose(parts["scale"], of_scale, rtol=1e-4)
    # A tanh behind both changes nothing.
    squashed = TanhNormal(old_loc, old_scale), TanhNormal(loc, scale)
    np.testing.assert_array_equal(distributions.kl_divergence(*squashed), distributions.kl_divergence(old, new))


def test_divergences_of_choices() -> None:
    old_logits, logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 2, 4)), jnp.float32)
    expected = jax.vmap(jax.vmap(rlax.categorical_kl_divergence))(old_logits, logits)
    one = (distrax.Categorical(logits=each[:, 0]) for each in (old_logits, logits))
    np.testing.assert_allclose(jax.jit(distributions.kl_divergence)(*one), expected[:, 0], rtol=1e-5)
    both = MultiCategorical(old_logits), MultiCategorical(logits)
    divergences = jax.jit(distributions.divergences)(*both)
    np.testing.assert_allclose(divergences["policy"], expected.sum(axis=-1), rtol=1e-5)


def test_an_illegal_action_is_no_divergence() -> None:
    logits = jnp.array([[0.5, -1e9, 1.0]])
    same = distributions.kl_divergence(distrax.Categorical(logits=logits), distrax.Categorical(logits=logits + 0.0))
    np.testing.assert_array_equal(same, [0.0])
    gradient = jax.grad(
        lambda new: distributions.kl_divergence(distrax.Categorical(logits=logits), distrax.Categorical(logits=new))[0]
    )(jnp.array([[1.5, -1e9, 0.0]]))
    assert np.isfinite(gradient).all()


# Updates.


def case(space: str, **changes: Any) -> tuple[actor_critic.Parts, vmpo.State, Rollout]:
    """An agent and a random rollout that it acted in: 4 steps of 8 environments."""
    settings = {"hidden_sizes": (8,), "learning_rate_schedule": "constant", "num_epochs": 1, "num_minibatches": 1}
    config = vmpo.Config(**{**settings, **changes})
    parts = vmpo.make_parts(Box(-3, 3, (2,)), SPACES[space], config)
    state = jax.jit(functools.partial(vmpo.init, parts))(jax.random.key(0))
    random = np.random.default_rng(0)
    seen, after = jnp.asarray(random.normal(size=(2, 4, 8, 2)), jnp.float32)
    _, features, _ = parts.torso.unroll(state.params.torso, (), seen, jnp.zeros((4, 8), jnp.bool_))
    policy = parts.policy(state.params, features, None)
    if space == "box":
        sample = policy.distribution.loc + jnp.asarray(random.normal(size=(4, 8, 2)), jnp.float32)
    else:
        sample = jax.random.categorical(jax.random.key(1), policy.logits).astype(jnp.int32)
    ended = jnp.asarray(random.random((2, 4, 8)) < 0.2)
    return (
        parts,
        state,
        Rollout(
            observation=seen,
            action=parts.head.to_action(sample),
            reward=jnp.asarray(random.normal(size=(4, 8)), jnp.float32),
            terminated=ended[0],
            truncated=ended[1],
            is_first=jnp.zeros((4, 8), jnp.bool_),
            final_observation=after,
            extras={"sample": sample},
        ),
    )


@pytest.mark.parametrize("space", SPACES)
def test_the_first_step_follows_the_weighted_log_probs(space: str) -> None:
    parts, state, rollout = case(space, value_coefficient=0.0)
    _, batch = vmpo.prepare(parts, state, rollout, rollout.reward[..., None])
    gradient, metrics = jax.jit(jax.grad(functools.partial(vmpo.loss, parts), has_aux=True))(
        state.params, state.hyperparameters, state.duals, ((), ()), batch
    )
    weights, _ = vmpo.weigh(batch.advantage, 1.0)
    assert np.sum(weights > 0) == 16

    def weighted(params: actor_critic.Params) -> jax.Array:
        features, _, _ = parts.forward(params, ((), ()), batch.observation, batch.is_first)
        return -jnp.sum(weights * parts.policy(params, features, None).log_prob(batch.sample))

    # Where the policy is the one that acted the divergences are 0, and so are their gradients.
    expected = jax.jit(jax.grad(weighted))(state.params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), gradient, expected)
    for name in state.duals.log:
        if name != "improvement":
            np.testing.assert_allclose(metrics[f"kl_{name}"], 0, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_a_large_penalty_holds_the_policy(space: str) -> None:
    moved = {}
    for penalty in (1e-3, 1e5):
        parts, state, rollout = case(
            space, num_epochs=30, learning_rate=3e-3, initial_penalty=penalty, initial_scale_penalty=penalty
        )
        after, report = jax.jit(functools.partial(vmpo.update, parts))(state, rollout, jax.random.key(2))
        assert all(np.isfinite(value) for value in report.metrics.values())
        moved[penalty] = sum(
            float(value) for name, value in report.metrics.items() if name.startswith("kl_") and "improve" not in name
        )
        assert after.updates == 1
    assert moved[1e5] < 0.1 * moved[1e-3]


@pytest.mark.parametrize("space", SPACES)
def test_dual_variables_rise_above_their_bounds_and_fall_below(space: str) -> None:
    bounds = ("epsilon", "epsilon_mean", "epsilon_scale", "epsilon_policy")
    for bound, rises in ((1e-9, True), (1e3, False)):
        parts, state, rollout = case(space, num_epochs=5, learning_rate=1e-2, **dict.fromkeys(bounds, bound))
        after, _ = jax.jit(functools.partial(vmpo.update, parts))(state, rollout, jax.random.key(2))
        names = trust_region.OF_BOX if space == "box" else trust_region.OF_CHOICES
        assert after.duals.log.keys() == names.keys()
        for name, log in after.duals.log.items():
            assert (log > state.duals.log[name]) == rises, name


def test_minibatches_and_epochs_are_steps() -> None:
    parts, state, rollout = case("discrete", num_epochs=3, num_minibatches=4)
    after, _ = jax.jit(functools.partial(vmpo.update, parts))(state, rollout, jax.random.key(2))
    counts = [leaf for leaf in jax.tree.leaves(after.opt_state) if leaf.dtype == jnp.int32]
    assert [int(count) for count in counts] == [12]
    other, _ = jax.jit(functools.partial(vmpo.update, parts))(dataclasses.replace(state), rollout, jax.random.key(3))
    assert not np.array_equal(other.params.policy["params"]["bias"], after.params.policy["params"]["bias"])
