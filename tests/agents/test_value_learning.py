"""Losses and targets of action-value learning: by hand at both kinds of end, and against rlax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax.agents import value_learning
from rollax.agents.returns import NStep, n_step

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
B, A, K = 16, 3, 5


def random_batch(seed: int = 0) -> tuple[np.random.Generator, NStep]:
    """One-step windows, some of which terminate."""
    random = np.random.default_rng(seed)
    discount = np.where(random.random(B) < 0.3, 0.0, 0.9)
    return random, NStep(floats(random.normal(size=B)), floats(discount), jnp.zeros(B, jnp.int32))


def floats(array: Any) -> jax.Array:
    return jnp.asarray(array, jnp.float32)


# Targets.


@MAYBE_JIT
def test_targets_at_a_termination_and_at_a_truncation_by_hand(transform: Transform) -> None:
    # Windows of two steps with rewards 1 and 2: one goes on, one terminates first, one is truncated first, one
    # terminates in its second step, and one is both terminated and truncated there.
    terminated = jnp.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 1]], bool)
    truncated = jnp.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]], bool)
    reward = jnp.tile(jnp.array([[1.0], [2.0]]), 5)
    values, online = jnp.tile(jnp.array([[4.0, 6.0]]), (5, 1)), jnp.tile(jnp.array([[3.0, 2.0]]), (5, 1))

    @transform
    def targets(selector: jax.Array) -> jax.Array:
        return value_learning.q_target(n_step(reward, terminated, truncated, 0.5), values, selector)

    np.testing.assert_allclose(targets(values), [1 + 1 + 0.25 * 6, 1, 1 + 0.5 * 6, 2, 2], rtol=1e-6)
    np.testing.assert_allclose(targets(online), [1 + 1 + 0.25 * 4, 1, 1 + 0.5 * 4, 2, 2], rtol=1e-6)


@MAYBE_JIT
def test_targets_against_rlax(transform: Transform) -> None:
    random, folded = random_batch()
    values, following, online = (floats(random.normal(size=(B, A))) for _ in range(3))
    action = jnp.asarray(random.integers(0, A, B), jnp.int32)
    taken = value_learning.chosen(values, action)
    plain = transform(value_learning.q_target)(folded, following, following) - taken
    double = transform(value_learning.q_target)(folded, following, online) - taken
    theirs = jax.vmap(rlax.q_learning)(values, action, folded.reward, folded.discount, following)
    np.testing.assert_allclose(plain, theirs, atol=1e-6)
    theirs = jax.vmap(rlax.double_q_learning)(values, action, folded.reward, folded.discount, following, online)
    np.testing.assert_allclose(double, theirs, atol=1e-6)
    assert not np.allclose(plain, double)


@MAYBE_JIT
def test_targets_of_atoms(transform: Transform) -> None:
    random, folded = random_batch()
    atoms, selector = random.normal(size=(B, A, K)), random.normal(size=(B, A))
    targets = transform(value_learning.q_target)(folded, floats(atoms), floats(selector))
    for b in range(B):
        expected = float(folded.reward[b]) + float(folded.discount[b]) * atoms[b, selector[b].argmax()]
        np.testing.assert_allclose(targets[b], expected, atol=1e-6)


def munchausen(values: Any, action: int, following: Any, reward: float, discount: float) -> float:
    """The target by its definition, with tau = 0.5, alpha = 0.9 and l_0 = -1."""
    policy, next_policy = (np.exp(q / 0.5) / np.exp(q / 0.5).sum() for q in map(np.asarray, (values, following)))
    soft_value = sum(p * (q - 0.5 * np.log(p)) for p, q in zip(next_policy, following, strict=True))
    return float(reward + 0.9 * max(0.5 * np.log(policy[action]), -1.0) + discount * soft_value)


@MAYBE_JIT
@pytest.mark.parametrize("truncated", [False, True])
def test_munchausen_targets_by_hand(truncated: bool, transform: Transform) -> None:
    flags = jnp.array([[False, True, True]])
    never = jnp.zeros_like(flags)
    folded = n_step(jnp.ones((1, 3)), never if truncated else flags, flags if truncated else never, 0.9)
    values = jnp.array([[1.0, 2.0], [1.0, 2.0], [0.0, 9.0]])
    following = jnp.array([[0.0, 0.5], [3.0, 1.0], [2.0, 2.0]])
    action = jnp.array([0, 1, 0])

    @transform
    def targets(values: jax.Array, following: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_prob = value_learning.chosen(value_learning.log_policy(values, 0.5), action)
        log_policy = value_learning.log_policy(following, 0.5)
        each = value_learning.munchausen_target(folded, log_prob, following, log_policy, 0.9, 0.5, -1.0)
        of_atoms = value_learning.munchausen_target(
            folded, log_prob, jnp.stack([following, following + 1], axis=-1), log_policy, 0.9, 0.5, -1.0
        )
        return jnp.sum(jnp.exp(log_policy) * each, axis=-1), of_atoms

    discounts = [0.9, 0.9, 0.9] if truncated else [0.9, 0.0, 0.0]
    expected = [
        munchausen(q, a, later, 1.0, d)
        for q, a, later, d in zip(values.tolist(), action.tolist(), following.tolist(), discounts, strict=True)
    ]
    total, of_atoms = targets(values, following)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    # The last log-probability is cut off: 0.5 * log pi = -9.
    assert expected[2] == pytest.approx(1 - 0.9 + discounts[2] * (2 + 0.5 * np.log(2)))
    np.testing.assert_allclose(of_atoms[..., 1] - of_atoms[..., 0], np.tile(np.array(discounts)[:, None], 2), rtol=1e-5)


def test_illegal_actions_have_no_part_in_a_soft_policy() -> None:
    mask = jnp.array([[True, False, True], [False, False, True]])
    log_policy = value_learning.log_policy(jnp.array([[1.0, 99.0, 1.0], [5.0, 5.0, -5.0]]), 0.03, mask)
    np.testing.assert_allclose(jnp.exp(log_policy), [[0.5, 0, 0.5], [0, 0, 1]], atol=1e-6)
    folded = NStep(jnp.zeros(2), jnp.ones(2), jnp.zeros(2, jnp.int32))
    each = value_learning.munchausen_target(folded, jnp.zeros(2), jnp.ones((2, 3)), log_policy, 0.9, 0.03, -1.0)
    assert np.isfinite(each).all()
    soft_value = jnp.sum(jnp.exp(log_policy) * each, axis=-1)
    np.testing.assert_allclose(soft_value, [1 + 0.03 * np.log(2), 1], rtol=1e-5)


# Distributions.


@MAYBE_JIT
@pytest.mark.parametrize("support", [np.linspace(-2, 3, K), np.array([-2.0, -1.5, 0.0, 0.25, 3.0])])
def test_categorical_projection_against_rlax(support: np.ndarray, transform: Transform) -> None:
    random = np.random.default_rng(0)
    atoms, weights = random.normal(scale=3, size=(B, 7)), random.dirichlet(np.ones(7), B)
    atoms[0] = [-9, 9, -2, 3, 0, -1.5, 0.25]  # outside, at the ends and on atoms
    ours = transform(value_learning.categorical_projection)(floats(atoms), floats(weights), floats(support))
    project = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))
    np.testing.assert_allclose(ours, project(floats(atoms), floats(weights), floats(support)), atol=1e-6)
    np.testing.assert_allclose(ours.sum(axis=-1), np.ones(B), rtol=1e-5)
    inside = floats(np.clip(atoms, -2, 3))
    np.testing.assert_allclose(ours @ support, np.sum(inside * weights, axis=-1), atol=1e-5)  # keeps the mean


def test_categorical_projection_by_hand() -> None:
    support = jnp.array([0.0, 1.0, 2.0])
    terminated = value_learning.categorical_projection(jnp.full((1, 3), 1.25), jnp.full((1, 3), 1 / 3), support)
    np.testing.assert_allclose(terminated, [[0, 0.75, 0.25]], rtol=1e-5)
    truncated = value_learning.categorical_projection(
        0.5 + 0.5 * support[None], jnp.array([[0.5, 0.25, 0.25]]), support
    )
    np.testing.assert_allclose(truncated, [[0.25, 0.25 + 0.25 + 0.125, 0.125]], rtol=1e-5)


@MAYBE_JIT
def test_categorical_loss_against_rlax(transform: Transform) -> None:
    random, folded = random_batch()
    support = floats(np.linspace(-2, 2, K))
    logits, next_logits = floats(random.normal(size=(B, A, K))), floats(random.normal(size=(B, A, K)))
    selector, action = floats(random.normal(size=(B, A))), jnp.asarray(random.integers(0, A, B), jnp.int32)

    def projected() -> jax.Array:
        atoms = value_learning.bootstrapped(folded, jnp.broadcast_to(support, (B, K)))
        weights = value_learning.chosen(jax.nn.softmax(next_logits), jnp.argmax(selector, axis=-1))
        return value_learning.categorical_projection(atoms, weights, support)

    def ours(logits: jax.Array) -> jax.Array:
        log_probs = value_learning.chosen(jax.nn.log_softmax(logits), action)
        return value_learning.categorical_loss(log_probs, projected())

    def theirs(logits: jax.Array) -> jax.Array:
        rule = jax.vmap(rlax.categorical_double_q_learning, in_axes=(None, 0, 0, 0, 0, None, 0, 0))
        return rule(support, logits, action, folded.reward, folded.discount, support, next_logits, selector)

    target = np.asarray(projected(), np.float64)
    entropy = -np.sum(target * np.log(np.where(target > 0, target, 1)), axis=-1)
    np.testing.assert_allclose(transform(ours)(logits), theirs(logits) - entropy, atol=1e-5)
    assert (ours(logits) >= 0).all()
    gradients = [jax.grad(lambda logits, rule=rule: jnp.sum(rule(logits)))(logits) for rule in (ours, theirs)]
    np.testing.assert_allclose(*gradients, atol=1e-6)
    exact = value_learning.categorical_loss(jnp.log(projected() + 1e-12), projected())
    np.testing.assert_allclose(exact, np.zeros(B), atol=1e-5)


@MAYBE_JIT
@pytest.mark.parametrize("threshold", [None, 1.0, 0.3])
def test_quantile_loss_against_rlax(threshold: float | None, transform: Transform) -> None:
    random = np.random.default_rng(0)
    quantiles, atoms = floats(random.normal(size=(B, K))), floats(random.normal(size=(B, 4)))
    taus = floats(random.random((B, K)))
    ours = transform(lambda *args: value_learning.quantile_loss(*args, threshold))(
        quantiles, taus, atoms, jnp.full((B, 4), 0.25)
    )
    rule = jax.vmap(rlax.quantile_regression_loss, in_axes=(0, 0, 0, None))
    np.testing.assert_allclose(ours, rule(quantiles, taus, atoms, threshold or 0.0), rtol=1e-5)
    weights = jnp.tile(jnp.array([0.5, 0.25, 0.25, 0.0]), (B, 1))
    weighted = value_learning.quantile_loss(quantiles, taus, atoms, weights, threshold)
    repeated = rule(quantiles, taus, atoms[:, jnp.array([0, 0, 1, 2])], threshold or 0.0)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)


def test_quantile_loss_by_hand() -> None:
    # Two quantiles at 0 and 2, one target at 1 (a termination with reward 1): errors 1 and -1.
    def loss(threshold: float | None) -> float:
        one = jnp.ones((1, 1))
        return float(
            value_learning.quantile_loss(jnp.array([[0.0, 2.0]]), jnp.array([[0.25, 0.75]]), one, one, threshold)[0]
        )

    assert loss(None) == pytest.approx(0.25 * 1 + 0.25 * 1)
    assert loss(1.0) == pytest.approx(0.25 * 0.5 + 0.25 * 0.5)
    assert loss(0.5) == pytest.approx(2 * 0.25 * 0.5 * 0.75)


def test_dueling_by_hand() -> None:
    value, advantage = jnp.array([[[2.0]], [[-1.0]]]), jnp.array([[[1.0], [3.0]], [[0.0], [0.0]]])
    np.testing.assert_allclose(value_learning.dueling(value, advantage)[..., 0], [[1, 3], [-1, -1]])


@MAYBE_JIT
def test_value_transforms_against_rlax_and_each_other(transform: Transform) -> None:
    x = floats([0, 1e-6, -1e-3, 0.5, -1, 3, -40, 500, -1e4, 1e6])
    squashed = transform(value_learning.signed_hyperbolic)(x)
    np.testing.assert_allclose(squashed, rlax.signed_hyperbolic(x), rtol=1e-6)
    np.testing.assert_allclose(transform(value_learning.signed_parabolic)(squashed), x, rtol=1e-4, atol=1e-6)
    y = floats([0.0, -0.5, 2, -20, 400])
    np.testing.assert_allclose(value_learning.signed_parabolic(y), rlax.signed_parabolic(y), rtol=1e-3)
    assert value_learning.signed_hyperbolic(jnp.float32(3.0)) == pytest.approx(1 + 3e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: value_learning.chosen(jnp.ones((2, 3)), jnp.zeros((2, 1), jnp.int32)),
        lambda: value_learning.q_target(random_batch()[1], jnp.ones((B, A)), jnp.ones((B, A + 1))),
        lambda: value_learning.categorical_projection(jnp.ones((2, 3)), jnp.ones((2, 2)), jnp.arange(3.0)),
        lambda: value_learning.quantile_loss(jnp.ones((2, 3)), jnp.ones(3), jnp.ones((2, 3)), jnp.ones((2, 3)), 1.0),
    ],
)
def test_wrong_shapes_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError):
        call()
