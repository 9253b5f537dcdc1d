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


def head_of(space: Any, **options: Any) -> heads.Head:
    return heads.make(space, "ppo", num_features=4, **options)


def policy_of(head: heads.Head, outputs: jax.Array, params: Any = None, mask: jax.Array | None = None) -> Any:
    """The distribution of a head that needs no features."""
    params = head.init(jnp.float32(0)) if params is None else params
    return head.distribution(outputs, jnp.zeros((*outputs.shape[:-1], 4)), params, mask)


def sample_of(head: heads.Head, policy: Any, noise: Any) -> jax.Array:
    """The samples of a head that needs no features and carries no memory."""
    memory, sample = head.sample(policy, jnp.zeros((len(noise), 4)), (), noise, (), jnp.zeros(len(noise), jnp.bool_))
    assert memory == ()
    return sample


# Categorical.


@MAYBE_JIT
@pytest.mark.parametrize("mask", [None, [True, True, False, True, False]])
def test_draws_are_softmax(mask: list[bool] | None, transform: Transform) -> None:
    head = head_of(Discrete(5))
    assert head.num_outputs == 5
    count = 20_000

    @transform
    def draw(key: jax.Array) -> jax.Array:
        outputs = jnp.broadcast_to(jnp.asarray(LOGITS), (count, 5))
        legal = None if mask is None else jnp.broadcast_to(jnp.asarray(mask), (count, 5))
        return sample_of(head, policy_of(head, outputs, mask=legal), head.noise(key, count))

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
    head = head_of(Discrete(5))
    mask = np.array([True, True, False, True, False])

    @transform
    def evaluate() -> tuple[jax.Array, jax.Array, jax.Array]:
        policy = policy_of(head, jnp.asarray(LOGITS), mask=jnp.asarray(mask))
        return policy.log_prob(jnp.array([0, 1, 3])), policy.entropy(), policy.mode()

    log_prob, entropy, mode = evaluate()
    expected = scipy.special.log_softmax(LOGITS[mask])
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(entropy, -np.sum(np.exp(expected) * expected), rtol=1e-5)
    assert mode == 3


def test_a_single_legal_action() -> None:
    head = head_of(Discrete(4))
    mask = jnp.array([[False, False, True, False]] * 3)

    def objective(outputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        policy = policy_of(head, outputs, mask=mask)
        log_prob, entropy = policy.log_prob(jnp.full((3,), 2)), policy.entropy()
        return jnp.sum(log_prob + entropy), (log_prob, entropy)

    outputs = jnp.array([[5.0, -1, 0, 2], [0, 0, 0, 0], [1e4, -1e4, -1e4, 0]])
    gradient, (log_prob, entropy) = jax.jit(jax.grad(objective, has_aux=True))(outputs)
    np.testing.assert_array_equal(log_prob, np.zeros(3))
    np.testing.assert_array_equal(entropy, np.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros((3, 4)))
    samples = sample_of(head, policy_of(head, outputs, mask=mask), head.noise(jax.random.key(0), 3))
    np.testing.assert_array_equal(samples, [2, 2, 2])


def test_each_environment_has_its_own_mask() -> None:
    head = head_of(Discrete(3))
    mask = jnp.array([[True, False, False], [False, True, True], [True, True, False]])

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> jax.Array:
        policy = policy_of(head, jnp.zeros((3, 3)), mask=mask)
        return sample_of(head, policy, head.noise(key, 3))

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
    head = head_of(space)
    got = jax.jit(head.to_action)(jnp.asarray(sample, jnp.float32))
    assert got.dtype == space.dtype
    np.testing.assert_allclose(got, np.asarray(action, np.float64), rtol=1e-6)
    assert jax.jit(jax.vmap(space.contains))(got).all()
    plain = head.to_action(jnp.asarray(sample, jnp.float32)[None])  # [T, N]
    np.testing.assert_allclose(plain, got[None], rtol=1e-6)


@MAYBE_JIT
def test_log_probs_and_entropy_against_scipy(transform: Transform) -> None:
    head = head_of(Box(-2, 2, (3,)))
    assert head.num_outputs == 3
    location = np.array([[0.1, -0.4, 2.0], [1.0, 0.0, -1.0]])
    log_scale = np.array([0.0, -1.0, 0.5])

    @transform
    def evaluate(key: jax.Array) -> tuple[jax.Array, ...]:
        policy = policy_of(head, jnp.asarray(location, jnp.float32), jnp.asarray(log_scale, jnp.float32))
        noise = head.noise(key, 2)
        sample = sample_of(head, policy, noise)
        return noise, sample, policy.log_prob(sample), policy.entropy(), policy.mode()

    noise, sample, log_prob, entropy, mode = evaluate(jax.random.key(0))
    normal = scipy.stats.norm(location, np.exp(log_scale))
    np.testing.assert_allclose(sample, location + np.exp(log_scale) * noise, rtol=1e-5)
    # Of the sample, wherever it lies: not of the clipped action.
    np.testing.assert_allclose(log_prob, normal.logpdf(np.asarray(sample)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy, normal.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(mode, location, rtol=1e-6)


def test_a_sample_outside_the_bounds_keeps_its_own_log_prob() -> None:
    head = head_of(Box(-1, 1, (1,)))
    policy = policy_of(head, jnp.zeros((1, 1)))
    sample = sample_of(head, policy, jnp.array([[1.7]]))
    np.testing.assert_allclose(sample, [[1.7]])
    np.testing.assert_array_equal(head.to_action(sample), [[1.0]])
    np.testing.assert_allclose(policy.log_prob(sample), scipy.stats.norm.logpdf([1.7]), rtol=1e-6)


def test_gaussian_draws() -> None:
    head = head_of(Box(-1, 1, (2,)))

    @jax.jit
    def draw(key: jax.Array) -> jax.Array:
        outputs = jnp.broadcast_to(jnp.array([0.5, -1.0]), (10_000, 2))
        policy = policy_of(head, outputs, jnp.array([0.0, -1.0]))
        return sample_of(head, policy, head.noise(key, 10_000))

    samples = np.asarray(draw(jax.random.key(0)), np.float64)
    for column, location, scale in ((0, 0.5, 1.0), (1, -1.0, np.exp(-1))):
        assert scipy.stats.kstest(samples[:, column], scipy.stats.norm(location, scale).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.05


def test_the_scale_starts_at_one_and_has_gradients() -> None:
    head = head_of(Box(-1, 1, (2,)))
    params = head.init(jnp.float32(0))
    np.testing.assert_array_equal(params, np.zeros(2))

    def log_prob(params: jax.Array) -> jax.Array:
        return jnp.sum(policy_of(head, jnp.zeros((1, 2)), params).log_prob(jnp.array([[2.0, 0.5]])))

    # d/d log sigma of log N(x; 0, sigma) = x^2 / sigma^2 - 1
    np.testing.assert_allclose(jax.jit(jax.grad(log_prob))(params), [3.0, -0.75], rtol=1e-5)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (2,))], ids=["Discrete", "Box"])
def test_noise_of_many_steps_is_the_noise_of_each(space: Any) -> None:
    head = head_of(space)
    keys = jax.random.split(jax.random.key(0), 4)
    together = jax.vmap(lambda key: head.noise(key, 3))(keys)
    np.testing.assert_array_equal(together, jnp.stack([head.noise(key, 3) for key in keys]))
    assert together.shape == (4, 3, head.num_outputs)


# Spaces without a head.


@pytest.mark.parametrize("space", [{"a": Discrete(2)}, None])
def test_other_action_spaces_are_a_sentence(space: Any) -> None:
    with pytest.raises(
        InputError,
        match=r"action space .* does not fit train\.agent = 'ppo', which acts in Discrete, MultiDiscrete and Box",
    ):
        head_of(space)


# MultiDiscrete.

NVEC = (2, 4, 3)
ENTRIES = [slice(0, 2), slice(2, 6), slice(6, 9)]


def multi_discrete_case(masked: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Outputs `[5, 9]` and a mask with at least one legal choice for each entry."""
    generator = np.random.default_rng(0)
    outputs, mask = generator.normal(0.0, 2.0, (5, 9)), generator.random((5, 9)) < 0.5
    mask[:, [1, 3, 8]] = True
    mask[0] = [False, True, False, True, False, False, False, False, True]  # a single one each
    return outputs, mask if masked else None


@MAYBE_JIT
@pytest.mark.parametrize("masked", [False, True])
def test_multi_discrete_is_a_sum_of_categoricals(masked: bool, transform: Transform) -> None:
    head = head_of(MultiDiscrete(NVEC))
    assert head.num_outputs == 9
    outputs, mask = multi_discrete_case(masked)
    legal = np.ones((5, 9), bool) if mask is None else mask
    logits = [scipy.special.log_softmax(np.where(legal, outputs, -np.inf)[:, entry], axis=-1) for entry in ENTRIES]
    probabilities = [np.exp(logit) for logit in logits]
    mode = np.stack([logit.argmax(-1) for logit in logits], axis=-1)

    @transform
    def evaluate(outputs: jax.Array, sample: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        policy = policy_of(head, outputs, mask=None if mask is None else jnp.asarray(mask))
        return policy.log_prob(sample), policy.entropy(), policy.mode()

    for sample in (mode, np.array([[1, 1, 2]] * 5)):
        log_prob, entropy, got_mode = evaluate(jnp.asarray(outputs, jnp.float32), jnp.asarray(sample))
        expected = sum(logit[np.arange(5), sample[:, index]] for index, logit in enumerate(logits))
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)
        entropies = sum(scipy.stats.entropy(probability, axis=-1) for probability in probabilities)
        np.testing.assert_allclose(entropy, entropies, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(got_mode, mode)
    if mask is not None:
        assert float(entropy[0]) == 0.0


@pytest.mark.parametrize("masked", [False, True])
def test_multi_discrete_draws(masked: bool) -> None:
    head = head_of(MultiDiscrete(NVEC))
    outputs, mask = multi_discrete_case(masked)
    legal = np.ones((5, 9), bool) if mask is None else mask
    count = 4000

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> jax.Array:
        policy = policy_of(head, jnp.asarray(outputs, jnp.float32), mask=None if mask is None else jnp.asarray(mask))
        return head.to_action(sample_of(head, policy, head.noise(key, 5)))

    samples = np.asarray(draw(jax.random.split(jax.random.key(0), count)))
    assert samples.shape == (count, 5, 3)
    assert samples.dtype == np.int32
    for row in range(5):
        for index, entry in enumerate(ENTRIES):
            allowed = legal[row, entry]
            observed = np.bincount(samples[:, row, index], minlength=NVEC[index])
            assert len(observed) == NVEC[index]
            assert (observed[~allowed] == 0).all()
            expected = count * scipy.special.softmax(outputs[row, entry][allowed])
            if allowed.sum() == 1:
                assert observed[allowed] == [count]
                continue
            assert scipy.stats.chisquare(observed[allowed], expected).pvalue > 1e-4
    # Entries are drawn independently.
    if not masked:
        assert abs(np.corrcoef(samples[:, 0, 1], samples[:, 0, 2])[0, 1]) < 0.06


def test_a_single_legal_choice_of_each_entry_has_no_gradient() -> None:
    head = head_of(MultiDiscrete(NVEC))
    mask = jnp.array([[False, True, False, True, False, False, False, False, True]])

    def objective(outputs: jax.Array) -> jax.Array:
        policy = policy_of(head, outputs, mask=mask)
        return jnp.sum(policy.log_prob(jnp.array([[1, 1, 2]])) + policy.entropy())

    value, gradient = jax.jit(jax.value_and_grad(objective))(jnp.array([[1e4, -1e4, 0, 1, 5, -1e4, 2, 3, 4]]))
    assert value == 0.0
    np.testing.assert_array_equal(gradient, np.zeros((1, 9)))


# Scales that depend on the state.


@MAYBE_JIT
def test_a_state_dependent_scale_against_scipy(transform: Transform) -> None:
    head = head_of(Box(-1, 1, (2,)), state_dependent_scale=True)
    assert head.num_outputs == 4
    outputs = np.array([[0.5, -0.2, 0.3, -1.0], [0.0, 1.0, 2.0, 0.0]], np.float32)
    params = np.array([-0.5, 0.2], np.float32)

    @transform
    def evaluate(outputs: jax.Array, params: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        policy = policy_of(head, outputs, params)
        sample = sample_of(head, policy, noise)
        return sample, policy.log_prob(sample), policy.entropy()

    noise = head.noise(jax.random.key(0), 2)
    assert noise.shape == (2, 2)
    sample, log_prob, entropy = evaluate(jnp.asarray(outputs), jnp.asarray(params), noise)
    # Near 0 the logarithm moves as much as the output; it is bounded by 3.
    scale = np.exp(params + outputs[:, 2:] / np.sqrt(1 + np.square(outputs[:, 2:] / 3)))
    np.testing.assert_allclose(sample, outputs[:, :2] + scale * np.asarray(noise), rtol=1e-5)
    normal = scipy.stats.norm(outputs[:, :2], scale)
    np.testing.assert_allclose(log_prob, normal.logpdf(np.asarray(sample)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy, normal.entropy().sum(-1), rtol=1e-5)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("output", [-20.0, -9.0, 0.0, 9.0, 20.0])
def test_a_state_dependent_scale_has_a_gradient_far_out(output: float, squash: bool) -> None:
    head = head_of(Box(-1, 1, (1,)), state_dependent_scale=True, squash=squash)

    def log_prob(change: jax.Array) -> jax.Array:
        outputs = jnp.stack([jnp.zeros(()), change])[None]
        return jnp.sum(policy_of(head, outputs).log_prob(jnp.array([[0.5]])))

    value, gradient = jax.jit(jax.value_and_grad(log_prob))(jnp.float32(output))
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert gradient != 0


def test_squashed_actions_stay_inside() -> None:
    head = head_of(Box([-2.0, 0.0], [2.0, 10.0]), squash=True)
    samples = jnp.array([[0.0, 0.0], [0.5, -0.5], [30.0, -30.0]])
    actions = np.asarray(jax.jit(head.to_action)(samples))
    middle = [[0.0, 5.0], [2 * np.tanh(0.5), 5 - 5 * np.tanh(0.5)], [2.0, 0.0]]
    np.testing.assert_allclose(actions, middle, rtol=1e-6, atol=1e-6)


# Exploration by a function of the features (gSDE).

FEATURES = np.array([0.5, -1.0, 2.0, 0.1], np.float32)


def exploring_head(**options: Any) -> tuple[heads.Head, jax.Array]:
    """A head of two actions and four features, and a scale for each pair."""
    head = head_of(Box(-1, 1, (2,)), exploration_period=8, **options)
    assert head.num_outputs == 2
    return head, jnp.asarray(np.random.default_rng(0).normal(-0.5, 0.5, (4, 2)), jnp.float32)


def test_the_marginal_variance_of_exploration() -> None:
    head, params = exploring_head()
    count = 100_000

    @jax.jit
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        features = jnp.broadcast_to(FEATURES, (count, 4))
        outputs = jnp.broadcast_to(jnp.array([0.3, -0.7]), (count, 2))
        policy = head.distribution(outputs, features, params, None)
        first = jnp.ones(count, jnp.bool_)
        _, sample = head.sample(policy, features, params, head.noise(key, count), head.init_memory(count), first)
        return sample, policy.log_prob(sample), policy.entropy()

    sample, log_prob, entropy = (np.asarray(array, np.float64) for array in draw(jax.random.key(0)))
    variance = np.square(FEATURES) @ np.exp(2 * np.asarray(params, np.float64))
    np.testing.assert_allclose(sample.mean(axis=0), [0.3, -0.7], atol=5 * np.sqrt(variance.max() / count))
    np.testing.assert_allclose(sample.var(axis=0), variance, rtol=0.02)
    normal = scipy.stats.norm([0.3, -0.7], np.sqrt(variance))
    np.testing.assert_allclose(log_prob, normal.logpdf(sample).sum(axis=-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, np.full(count, normal.entropy().sum()), rtol=1e-4)
    assert scipy.stats.kstest(sample[:, 0], scipy.stats.norm(0.3, np.sqrt(variance[0])).cdf).pvalue > 1e-3


@MAYBE_JIT
def test_the_matrix_is_kept_until_an_episode_starts_or_its_time_is_up(transform: Transform) -> None:
    head, params = exploring_head()
    scale = np.exp(np.asarray(params, np.float64))
    matrix, _ = head.noise(jax.random.key(0), 3)
    other, _ = head.noise(jax.random.key(1), 3)
    never, features = jnp.zeros(3, jnp.bool_), jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)

    @transform
    def sample(features: jax.Array, noise: Any, memory: Any, is_first: jax.Array) -> tuple[Any, jax.Array]:
        policy = head.distribution(jnp.zeros((3, 2)), features, params, None)
        return head.sample(policy, features, params, noise, memory, is_first)

    memory, first = sample(features, (matrix, never), head.init_memory(3), ~never)
    np.testing.assert_array_equal(memory, matrix)
    np.testing.assert_allclose(first, np.einsum("nf,nfd->nd", features, scale * np.asarray(matrix)), atol=1e-5)
    kept, again = sample(features, (other, never), memory, never)
    np.testing.assert_array_equal(kept, matrix)
    np.testing.assert_array_equal(again, first)
    _, elsewhere = sample(2 * features, (other, never), memory, never)
    np.testing.assert_allclose(elsewhere, 2 * np.asarray(first), rtol=1e-5, atol=1e-6)
    new, _ = sample(features, (other, jnp.array([False, True, False])), memory, jnp.array([True, False, False]))
    np.testing.assert_array_equal(new, np.stack([other[0], other[1], matrix[2]]))


def test_the_matrix_lasts_a_period_on_average() -> None:
    head, _ = exploring_head()
    matrix, redraw = jax.jit(head.noise, static_argnums=1)(jax.random.key(0), 20_000)
    assert matrix.shape == (20_000, 4, 2)
    assert abs(np.mean(redraw) - 1 / 8) < 5 * np.sqrt(1 / 8 * 7 / 8 / 20_000)
    assert scipy.stats.kstest(np.ravel(matrix[:2000]), scipy.stats.norm.cdf).pvalue > 1e-3
    # Whether it is drawn anew says nothing about what is drawn.
    assert abs(np.corrcoef(redraw, matrix[:, 0, 0])[0, 1]) < 0.04


def test_exploration_starts_with_the_scale_asked_for() -> None:
    head = head_of(Box(-1, 1, (2,)), exploration_period=8)
    params = head.init(jnp.float32(np.log(0.3)))
    policy = head.distribution(jnp.zeros((1, 2)), jnp.ones((1, 4)), params, None)
    # Entropy of a normal with scale 0.3, twice.
    np.testing.assert_allclose(policy.entropy(), [2 * scipy.stats.norm(0, 0.3).entropy()], rtol=1e-4)


def test_squashed_exploration() -> None:
    head, params = exploring_head(squash=True)
    features = jnp.asarray(FEATURES)[None]
    policy = head.distribution(jnp.array([[0.3, -0.7]]), features, params, None)
    noise, first = head.noise(jax.random.key(0), 1), jnp.ones(1, jnp.bool_)
    _, sample = head.sample(policy, features, params, noise, head.init_memory(1), first)
    scale = np.sqrt(np.square(FEATURES) @ np.exp(2 * np.asarray(params, np.float64)))
    u = np.asarray(sample, np.float64)
    expected = scipy.stats.norm([0.3, -0.7], scale).logpdf(u) - np.log1p(-np.square(np.tanh(u)))
    np.testing.assert_allclose(policy.log_prob(sample), expected.sum(axis=-1), rtol=1e-4)
    np.testing.assert_allclose(head.to_action(sample), np.tanh(u), rtol=1e-5)


@pytest.mark.parametrize(
    "space", [Box(-np.inf, np.inf, (2,)), Box([0.0, -1.0], [np.inf, 1.0])], ids=["unbounded", "half bounded"]
)
def test_squashing_an_unbounded_box_is_a_sentence(space: Box) -> None:
    with pytest.raises(InputError, match=r"agent\.squash = True needs a Box with finite bounds"):
        head_of(space, squash=True)
