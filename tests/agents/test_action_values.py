"""Action-value heads: their distributions, their losses against rlax, their noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rollax import InputError
from rollax.agents import action_values, dqn, hyperparameters_of
from rollax.agents.action_values import DISTRIBUTIONS, Head, Noise, Target

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
B, F, A, K = 8, 6, 3, 5
KINDS = pytest.mark.parametrize("kind", DISTRIBUTIONS)


def make(kind: str, **changes: Any) -> tuple[Head, dict[str, jax.Array]]:
    config = dqn.Config(
        distribution=kind, num_atoms=K, num_quantiles=K, num_taus=K, value_min=-2.0, value_max=2.0, **changes
    )
    return action_values.make(config, F, A), hyperparameters_of(config)


def features(batch: int = B) -> jax.Array:
    return jax.random.normal(jax.random.key(7), (batch, F))


@KINDS
@pytest.mark.parametrize("stream_sizes", [(), (4,)])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_shapes_and_weights(kind: str, dueling: bool, noisy: bool, stream_sizes: tuple[int, ...]) -> None:
    head, hyper = make(kind, dueling=dueling, noisy=noisy, stream_sizes=stream_sizes)

    @jax.jit
    def run(key: jax.Array) -> Any:
        key_init, key_noise = jax.random.split(key)
        params = head.init(key_init, hyper)
        return params, [head.returns(params, features(), noise, hyper) for noise in (head.noise(key_noise, B), None)]

    params, (drawn, still) = run(jax.random.key(0))
    width = 1 if kind == "none" else K
    for returns in (drawn, still):
        assert returns.atoms.shape == returns.log_weights.shape == (B, A, width)
        assert returns.values.shape == (B, A)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(returns))
        np.testing.assert_allclose(jnp.exp(returns.log_weights).sum(axis=-1), np.ones((B, A)), rtol=1e-5)
    assert (drawn.values != still.values).all() == (noisy or kind == "implicit")
    streams = params["streams"] if kind == "implicit" else params
    assert set(streams) == ({"advantage", "value"} if dueling else {"advantage"})
    assert all(len(layers) == 1 + len(stream_sizes) for layers in streams.values())
    if kind != "categorical":
        assert np.unique(np.asarray(still.values)).size == B * A


@KINDS
def test_dueling_by_hand(kind: str) -> None:
    head, hyper = make(kind, dueling=True)
    params = head.init(jax.random.key(0), hyper)
    streams = params["streams"] if kind == "implicit" else params
    kernel = np.asarray(streams["value"][0]["kernel"])
    assert kernel.shape == (F, K if kind in ("categorical", "quantile") else 1)
    without = jax.tree.map(jnp.zeros_like, streams["advantage"])
    streams = {**streams, "advantage": without}
    returns = head.returns({**params, "streams": streams} if kind == "implicit" else streams, features(), None, hyper)
    np.testing.assert_allclose(returns.values, np.tile(np.asarray(returns.values)[:, :1], A), rtol=1e-5)
    if kind == "none":
        np.testing.assert_allclose(returns.values[:, :1], np.asarray(features()) @ kernel, atol=1e-5)


def test_a_plain_head_is_a_linear_layer() -> None:
    head, hyper = make("none")
    params = head.init(jax.random.key(0), hyper)
    kernel = np.asarray(params["advantage"][0]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, np.eye(A), atol=1e-5)  # orthogonal
    np.testing.assert_allclose(
        head.returns(params, features(), None, hyper).values, np.asarray(features()) @ kernel, atol=1e-5
    )


def target(folded_reward: Any, discount: Any, atoms: Any, weights: Any) -> Target:
    return Target(jnp.asarray(folded_reward + discount * atoms, jnp.float32), jnp.asarray(weights, jnp.float32))


@MAYBE_JIT
@pytest.mark.parametrize("huber", [False, True])
@KINDS
def test_losses_against_rlax(kind: str, huber: bool, transform: Transform) -> None:
    head, hyper = make(kind, huber=huber, huber_threshold=0.4)
    random = np.random.default_rng(0)
    action = jnp.asarray(random.integers(0, A, B), jnp.int32)
    reward, discount = random.normal(size=(B, 1)), np.where(random.random((B, 1)) < 0.3, 0.0, 0.9)
    key_init, key_noise, key_next = jax.random.split(jax.random.key(0), 3)
    params = head.init(key_init, hyper)
    returns = head.returns(params, features(), head.noise(key_noise, B), hyper)
    following = head.returns(params, features()[::-1], head.noise(key_next, B), hyper)
    best = jnp.argmax(following.values, axis=-1)
    atoms = np.asarray(following.atoms)[np.arange(B), best]
    weights = np.exp(np.asarray(following.log_weights))[np.arange(B), best]
    ours = transform(lambda *args: head.loss(*args, hyper))(returns, action, target(reward, discount, atoms, weights))
    reward, discount = jnp.asarray(reward[:, 0], jnp.float32), jnp.asarray(discount[:, 0], jnp.float32)
    if kind == "none":
        error = jax.vmap(rlax.q_learning)(returns.values, action, reward, discount, following.values)
        theirs = rlax.huber_loss(error, 0.4) if huber else rlax.l2_loss(error)
    elif kind == "categorical":
        rule = jax.vmap(rlax.categorical_q_learning, in_axes=(None, 0, 0, 0, 0, None, 0))
        support = jnp.linspace(-2, 2, K)
        theirs = rule(support, returns.log_weights, action, reward, discount, support, following.log_weights)
        project = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))
        projected = project(reward[:, None] + discount[:, None] * support, jnp.asarray(weights), support)
        theirs = theirs + jnp.sum(jax.scipy.special.xlogy(projected, projected), axis=-1)
    else:
        by_quantile, by_quantile_next = (jnp.swapaxes(z.atoms, 1, 2) for z in (returns, following))
        rule = jax.vmap(rlax.quantile_q_learning, in_axes=(0, 0, 0, 0, 0, 0, 0, None))
        theirs = rule(
            by_quantile,
            returns.taus,
            action,
            reward,
            discount,
            by_quantile_next,
            by_quantile_next,
            0.4 if huber else 0.0,
        )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_support_of_a_categorical_head_is_a_number_of_the_state() -> None:
    head, hyper = make("categorical")
    params = head.init(jax.random.key(0), hyper)
    wider = {**hyper, "value_max": jnp.float32(6.0)}
    returns = head.returns(params, features(), None, wider)
    np.testing.assert_allclose(returns.atoms[0, 0], [-2, 0, 2, 4, 6])
    certain = Target(jnp.full((B, 1), 6.0), jnp.ones((B, 1)))
    loss = head.loss(returns, jnp.zeros(B, jnp.int32), certain, wider)
    np.testing.assert_allclose(loss, -returns.log_weights[:, 0, -1], rtol=1e-5)


def test_implicit_quantiles() -> None:
    head, hyper = make("implicit")
    params = head.init(jax.random.key(0), hyper)
    noise = head.noise(jax.random.key(1), B)
    assert noise.taus is not None
    assert np.unique(np.asarray(noise.taus)).size == B * K
    assert (noise.taus >= 0).all()
    assert (noise.taus < 1).all()
    still = head.returns(params, features(), None, hyper)
    np.testing.assert_allclose(still.taus, np.tile([0.1, 0.3, 0.5, 0.7, 0.9], (B, 1)), rtol=1e-6)
    # By its formula, in float64.
    drawn = head.returns(params, features(), noise, hyper)
    embedding = params["embedding"]["params"]
    kernel = np.asarray(params["streams"]["advantage"][0]["kernel"], np.float64)
    for b in range(B):
        for k in range(K):
            cosines = np.cos(np.pi * np.arange(64) * float(noise.taus[b, k]))
            phi = np.maximum(cosines @ np.asarray(embedding["kernel"], np.float64), 0)
            expected = (np.asarray(features()[b], np.float64) * phi) @ kernel
            np.testing.assert_allclose(drawn.atoms[b, :, k], expected, atol=1e-3)


# Noise.


def test_noisy_layers_by_their_formula() -> None:
    head, hyper = make("none", noisy=True, noisy_scale=0.3)
    params = head.init(jax.random.key(0), hyper)
    layer = jax.tree.map(np.asarray, params["advantage"][0])
    np.testing.assert_allclose(layer["kernel_scale"], np.full((F, A), 0.3 / np.sqrt(F)), rtol=1e-6)
    np.testing.assert_allclose(layer["bias_scale"], np.full(A, 0.3 / np.sqrt(F)), rtol=1e-6)
    noise = head.noise(jax.random.key(1), B)
    e_in, e_out = jax.tree.map(np.asarray, noise.layers["advantage"][0])
    values = head.returns(params, features(), noise, hyper).values
    for b in range(B):
        weights = layer["kernel"] + layer["kernel_scale"] * np.outer(e_in[b], e_out[b])
        bias = layer["bias"] + layer["bias_scale"] * e_out[b]
        np.testing.assert_allclose(values[b], np.asarray(features()[b]) @ weights + bias, atol=1e-5)


def test_noise_is_a_signed_root_of_normals_and_independent() -> None:
    head, _ = make("none", noisy=True, dueling=True, stream_sizes=(4,))
    noise = head.noise(jax.random.key(0), 4000)
    drawn = np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(noise)], axis=1)
    assert drawn.shape == (4000, (F + 4 + 4 + A) + (F + 4 + 4 + 1))
    # E |sgn(n) sqrt|n||^2 = E|n| = sqrt(2 / pi)
    np.testing.assert_allclose(np.mean(np.square(drawn), axis=0), np.sqrt(2 / np.pi), atol=0.06)
    correlation = np.corrcoef(drawn.T) - np.eye(drawn.shape[1])
    assert np.abs(correlation).max() < 0.08
    shared = head.noise(jax.random.key(0), 4000, shared=True)
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(shared))


@pytest.mark.parametrize("kind", ["none", "implicit"])
def test_shared_noise_is_that_of_one_network_for_the_whole_batch(kind: str) -> None:
    head, hyper = make(kind, noisy=True, dueling=True, stream_sizes=(4,))
    params = head.init(jax.random.key(0), hyper)
    noise = head.noise(jax.random.key(1), B, shared=True)
    same = jnp.broadcast_to(features()[:1], (B, F))
    if noise.taus is not None:
        noise = dataclasses.replace(noise, taus=jnp.full_like(noise.taus, 0.5))
    values = np.asarray(head.returns(params, same, noise, hyper).values)
    np.testing.assert_allclose(values, np.tile(values[:1], (B, 1)), rtol=1e-5)
    repeated = Noise(jax.tree.map(lambda leaf: jnp.tile(leaf, (B, 1)), noise.layers), noise.taus)
    np.testing.assert_allclose(values, head.returns(params, same, repeated, hyper).values, atol=1e-5)
    own = np.asarray(
        head.returns(params, same, Noise(head.noise(jax.random.key(1), B).layers, noise.taus), hyper).values
    )
    assert np.unique(own.round(6)).size == B * A


@KINDS
def test_no_key_is_used_twice(kind: str) -> None:
    head, hyper = make(kind, noisy=True, dueling=True, stream_sizes=(4,))
    with jax.debug_key_reuse(True):
        key_init, key_noise = jax.random.split(jax.random.key(0))
        params = jax.jit(head.init)(key_init, hyper)
        noise = jax.jit(lambda key: head.noise(key, B))(key_noise)
        jax.jit(head.returns)(params, features(), noise, hyper)
    kernels = [np.asarray(leaf) for leaf in jax.tree.leaves(params) if leaf.ndim == 2 and np.unique(leaf).size > 1]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distribution": "quantil"}, r"agent\.distribution = 'quantil' .*did you mean 'quantile'"),
        ({"num_atoms": 1}, r"agent\.num_atoms = 1 must be at least 2"),
        ({"num_quantiles": 0}, r"agent\.num_quantiles = 0 must be at least 1"),
        ({"num_taus": 0}, r"agent\.num_taus = 0 must be at least 1"),
        ({"stream_sizes": (8, 0)}, r"agent\.stream_sizes = \(8, 0\) must be at least 1"),
    ],
)
def test_heads_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        action_values.check(dqn.Config(**changes))
