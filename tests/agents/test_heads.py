"""Policy heads: draws against scipy, masks, scaling to bounds, and action spaces that have no head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from rollax import InputError
from rollax.agents import heads
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
LOGITS = np.array([1.0, -0.5, 0.0, 2.0, -3.0])

# Categorical.


@MAYBE_JIT
@pytest.mark.parametrize("mask", [None, [True, True, False, True, False]])
def test_draws_are_softmax(mask: list[bool] | None, transform: Transform) -> None:
    head = heads.make(Discrete(5), "ppo")
    assert head.num_outputs == 5
    count = 20_000

    @transform
    def draw(key: jax.Array) -> jax.Array:
        outputs = jnp.broadcast_to(jnp.asarray(LOGITS), (count, 5))
        legal = None if mask is None else jnp.broadcast_to(jnp.asarray(mask), (count, 5))
        return head.sample(head.distribution(outputs, head.init(), legal), head.noise(key, count))

    sample = draw(jax.random.key(0))
    assert sample.shape == (count,)
    assert sample.dtype == jnp.int32
    np.testing.assert_array_equal(head.to_action(sample), sample)
    observed = np.bincount(sample, minlength=5)
    legal = np.ones(5, bool) if mask is None else np.asarray(mask)
    probabilities = scipy.special.softmax(np.where(legal, LOGITS, -np.inf))
    assert (observed[~legal] == 0).all()
    assert scipy.stats.chisquare(observed[legal], count * probabilities[legal]).pvalue > 1e-3


@MAYBE_JIT
def test_log_probs_and_entropy_of_legal_actions(transform: Transform) -> None:
    head = heads.make(Discrete(5), "ppo")
    mask = np.array([True, True, False, True, False])

    @transform
    def evaluate() -> tuple[jax.Array, jax.Array, jax.Array]:
        policy = head.distribution(jnp.asarray(LOGITS), head.init(), jnp.asarray(mask))
        return policy.log_prob(jnp.array([0, 1, 3])), policy.entropy(), policy.mode()

    log_prob, entropy, mode = evaluate()
    expected = scipy.special.log_softmax(LOGITS[mask])
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(entropy, -np.sum(np.exp(expected) * expected), rtol=1e-5)
    assert mode == 3


def test_a_single_legal_action() -> None:
    head = heads.make(Discrete(4), "ppo")
    mask = jnp.array([[False, False, True, False]] * 3)

    def objective(outputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        policy = head.distribution(outputs, head.init(), mask)
        log_prob, entropy = policy.log_prob(jnp.full((3,), 2)), policy.entropy()
        return jnp.sum(log_prob + entropy), (log_prob, entropy)

    outputs = jnp.array([[5.0, -1, 0, 2], [0, 0, 0, 0], [1e4, -1e4, -1e4, 0]])
    gradient, (log_prob, entropy) = jax.jit(jax.grad(objective, has_aux=True))(outputs)
    np.testing.assert_array_equal(log_prob, np.zeros(3))
    np.testing.assert_array_equal(entropy, np.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros((3, 4)))
    samples = head.sample(head.distribution(outputs, head.init(), mask), head.noise(jax.random.key(0), 3))
    np.testing.assert_array_equal(samples, [2, 2, 2])


def test_each_environment_has_its_own_mask() -> None:
    head = heads.make(Discrete(3), "ppo")
    mask = jnp.array([[True, False, False], [False, True, True], [True, True, False]])

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> jax.Array:
        policy = head.distribution(jnp.zeros((3, 3)), head.init(), mask)
        return head.sample(policy, head.noise(key, 3))

    samples = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
    assert [set(np.unique(column)) for column in samples.T] == [{0}, {1, 2}, {0, 1}]


# Gaussian.


@pytest.mark.parametrize(
    ("space", "sample", "action"),
    [
        (Box(-2, 2, (1,)), [[0.0], [1.0], [-1.0], [0.5], [1.7], [-9.0]], [[0], [2], [-2], [1], [2], [-2]]),
        (
            Box([-1.0, 2.0], [1.0, 6.0]),
            [[0.0, 0.0], [0.5, 0.5], [-1.0, -1.0], [2.0, 2.0]],
            [[0, 4], [0.5, 5], [-1, 2], [1, 6]],
        ),
        (Box(-np.inf, np.inf, (2,)), [[0.3, -40.0]], [[0.3, -40.0]]),
        (Box([0.0, -np.inf], [np.inf, 1.0]), [[-3.0, -3.0], [3.0, 3.0]], [[0, -3], [3, 1]]),
        (Box(0, 10, (2, 2)), [[-1.0, 0.0, 1.0, 0.5]], [[[0, 5], [10, 7.5]]]),
        (Box(-3, 5), [[0.0], [1.0]], [1, 5]),
    ],
    ids=["symmetric", "by entry", "unbounded", "half bounded", "matrix", "scalar"],
)
def test_actions_are_scaled_and_clipped(space: Box, sample: Any, action: Any) -> None:
    head = heads.make(space, "ppo")
    got = jax.jit(head.to_action)(jnp.asarray(sample, jnp.float32))
    assert got.dtype == space.dtype
    np.testing.assert_allclose(got, np.asarray(action, np.float64), rtol=1e-6)
    assert jax.jit(jax.vmap(space.contains))(got).all()
    plain = head.to_action(jnp.asarray(sample, jnp.float32)[None])  # [T, N]
    np.testing.assert_allclose(plain, got[None], rtol=1e-6)


@MAYBE_JIT
def test_log_probs_and_entropy_against_scipy(transform: Transform) -> None:
    head = heads.make(Box(-2, 2, (3,)), "ppo")
    assert head.num_outputs == 3
    location = np.array([[0.1, -0.4, 2.0], [1.0, 0.0, -1.0]])
    log_scale = np.array([0.0, -1.0, 0.5])

    @transform
    def evaluate(key: jax.Array) -> tuple[jax.Array, ...]:
        policy = head.distribution(jnp.asarray(location, jnp.float32), jnp.asarray(log_scale, jnp.float32), None)
        noise = head.noise(key, 2)
        sample = head.sample(policy, noise)
        return noise, sample, policy.log_prob(sample), policy.entropy(), policy.mode()

    noise, sample, log_prob, entropy, mode = evaluate(jax.random.key(0))
    normal = scipy.stats.norm(location, np.exp(log_scale))
    np.testing.assert_allclose(sample, location + np.exp(log_scale) * noise, rtol=1e-5)
    # Of the sample, wherever it lies: not of the clipped action.
    np.testing.assert_allclose(log_prob, normal.logpdf(np.asarray(sample)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy, normal.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(mode, location, rtol=1e-6)


def test_a_sample_outside_the_bounds_keeps_its_own_log_prob() -> None:
    head = heads.make(Box(-1, 1, (1,)), "ppo")
    policy = head.distribution(jnp.zeros((1, 1)), head.init(), None)
    sample = head.sample(policy, jnp.array([[1.7]]))
    np.testing.assert_allclose(sample, [[1.7]])
    np.testing.assert_array_equal(head.to_action(sample), [[1.0]])
    np.testing.assert_allclose(policy.log_prob(sample), scipy.stats.norm.logpdf([1.7]), rtol=1e-6)


def test_gaussian_draws() -> None:
    head = heads.make(Box(-1, 1, (2,)), "ppo")

    @jax.jit
    def draw(key: jax.Array) -> jax.Array:
        outputs = jnp.broadcast_to(jnp.array([0.5, -1.0]), (10_000, 2))
        policy = head.distribution(outputs, jnp.array([0.0, -1.0]), None)
        return head.sample(policy, head.noise(key, 10_000))

    samples = np.asarray(draw(jax.random.key(0)), np.float64)
    for column, location, scale in ((0, 0.5, 1.0), (1, -1.0, np.exp(-1))):
        assert scipy.stats.kstest(samples[:, column], scipy.stats.norm(location, scale).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.05


def test_the_scale_starts_at_one_and_has_gradients() -> None:
    head = heads.make(Box(-1, 1, (2,)), "ppo")
    params = head.init()
    np.testing.assert_array_equal(params, np.zeros(2))

    def log_prob(params: jax.Array) -> jax.Array:
        return jnp.sum(head.distribution(jnp.zeros((1, 2)), params, None).log_prob(jnp.array([[2.0, 0.5]])))

    # d/d log sigma of log N(x; 0, sigma) = x^2 / sigma^2 - 1
    np.testing.assert_allclose(jax.jit(jax.grad(log_prob))(params), [3.0, -0.75], rtol=1e-5)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (2,))], ids=["Discrete", "Box"])
def test_noise_of_many_steps_is_the_noise_of_each(space: Any) -> None:
    head = heads.make(space, "ppo")
    keys = jax.random.split(jax.random.key(0), 4)
    together = jax.vmap(lambda key: head.noise(key, 3))(keys)
    np.testing.assert_array_equal(together, jnp.stack([head.noise(key, 3) for key in keys]))
    assert together.shape == (4, 3, head.num_outputs)


# Spaces without a head.


@pytest.mark.parametrize("space", [MultiDiscrete((2, 3)), {"a": Discrete(2)}, None])
def test_other_action_spaces_are_a_sentence(space: Any) -> None:
    with pytest.raises(
        InputError, match=r"action space .* does not fit train\.agent = 'ppo', which acts in Discrete and Box"
    ):
        heads.make(space, "ppo")
