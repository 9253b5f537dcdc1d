"""Networks: flattened observations, orthogonal matrices, and the perceptron against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rollax import InputError
from rollax.agents import networks
from rollax.agents.networks import MLP, flatten_observation, orthogonal
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]

# Orthogonal initialisation.


def gram(matrix: jax.Array | np.ndarray) -> np.ndarray:
    """The inner products of the rows or of the columns, whichever are fewer, of a `[rows, columns]` matrix."""
    matrix = np.asarray(matrix, np.float64)
    return matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix


@pytest.mark.parametrize("shape", [(64, 64), (4, 64), (64, 2), (1, 1), (300, 64), (1, 5), (3, 3, 4, 8)])
def test_rows_or_columns_are_orthonormal_times_the_scale(shape: tuple[int, ...]) -> None:
    initialise = jax.jit(lambda key, scale: orthogonal(scale)(key, shape))
    for index, scale in enumerate((1.0, np.sqrt(2.0), 0.01)):
        matrix = np.asarray(initialise(jax.random.key(index), jnp.float32(scale)))
        assert matrix.shape == shape
        assert matrix.dtype == np.float32
        products = gram(matrix.reshape(-1, shape[-1]) / scale)
        np.testing.assert_allclose(products, np.eye(len(products)), atol=1e-5)


def test_plain_equals_jitted() -> None:
    initialise = orthogonal(1.5)
    plain = initialise(jax.random.key(3), (5, 7))
    np.testing.assert_allclose(jax.jit(initialise, static_argnums=1)(jax.random.key(3), (5, 7)), plain, atol=1e-6)
    np.testing.assert_allclose(gram(plain), 1.5**2 * np.eye(5), atol=1e-5)


@pytest.fixture(scope="module")
def matrices() -> np.ndarray:
    """8 x 8 matrices of 3,000 keys."""
    keys = jax.random.split(jax.random.key(1), 3000)
    return np.asarray(jax.jit(jax.vmap(lambda key: orthogonal()(key, (8, 8))))(keys))


def test_each_key_of_a_vmap_gives_its_own_matrix(matrices: np.ndarray) -> None:
    products = matrices @ matrices.transpose(0, 2, 1)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(8), products.shape), atol=1e-5)
    assert len(np.unique(matrices[:, 0, 0])) > 2990
    alone = jax.jit(orthogonal(), static_argnums=1)(jax.random.split(jax.random.key(1), 3000)[7], (8, 8))
    np.testing.assert_allclose(alone, matrices[7], atol=1e-5)


def test_matrices_are_uniform_over_the_orthogonal_group(matrices: np.ndarray) -> None:
    # scipy's are by QR, with the signs put right, as those of jax.nn.initializers.orthogonal. Under that distribution
    # entries have mean 0 and variance 1/n, either sign of the determinant is as likely, and the trace has variance 1.
    theirs = scipy.stats.ortho_group.rvs(8, size=3000, random_state=np.random.default_rng(0))
    deviation = np.sqrt(1 / 8 / 3000)
    np.testing.assert_allclose(matrices.mean(0), np.zeros((8, 8)), atol=5 * deviation)
    np.testing.assert_allclose(matrices.var(0), np.full((8, 8), 1 / 8), atol=0.02)
    traces = [np.trace(group, axis1=1, axis2=2) for group in (matrices, theirs)]
    np.testing.assert_allclose(np.var(traces[0]), 1.0, atol=0.15)
    assert abs(np.mean(np.linalg.det(matrices.astype(np.float64)))) < 5 / np.sqrt(3000)
    assert scipy.stats.ks_2samp(*traces).pvalue > 1e-3
    for row, column in ((0, 0), (0, 7), (7, 0), (7, 7), (3, 4)):
        assert scipy.stats.ks_2samp(matrices[:, row, column], theirs[:, row, column]).pvalue > 1e-3
    # Angles of the eigenvalues: those of a random orthogonal matrix repel one another.
    angles = [np.sort(np.abs(np.angle(np.linalg.eigvals(group))), axis=1)[:, 3] for group in (matrices, theirs)]
    assert scipy.stats.ks_2samp(*angles).pvalue > 1e-3


def test_one_by_one_is_either_sign() -> None:
    signs = jax.jit(jax.vmap(lambda key: orthogonal()(key, (1, 1))))(jax.random.split(jax.random.key(0), 400))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(np.mean(signs)) < 5 / np.sqrt(400)


# Flattened observations.

SPACE = {"b": Box(-1, 1, (2, 2)), "a": {"y": Discrete(5), "x": Box(0, 255, (3,), np.uint8)}, "c": MultiDiscrete((2, 3))}


def example(batch: tuple[int, ...]) -> dict[str, Any]:
    """Leaves numbered 0, 1, 2, ... in the order of their names: 3 of a.x, 1 of a.y, 4 of b, 2 of c."""
    numbers = np.arange(10) + 10 * np.arange(np.prod(batch, dtype=int)).reshape(*batch, 1)
    return {
        "a": {"x": numbers[..., :3].astype(np.uint8), "y": numbers[..., 3].astype(np.int32)},
        "b": numbers[..., 4:8].reshape(*batch, 2, 2).astype(np.float32),
        "c": numbers[..., 8:].astype(np.int32),
    }


@MAYBE_JIT
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_a_nested_observation(batch: tuple[int, ...], transform: Transform) -> None:
    observation = jax.tree.map(jnp.asarray, example(batch))
    flat = transform(lambda observation: flatten_observation(observation, SPACE))(observation)
    assert flat.dtype == jnp.float32
    assert flat.shape == (*batch, 10)
    np.testing.assert_array_equal(np.ravel(flat), np.arange(10 * np.prod(batch, dtype=int)))


@MAYBE_JIT
def test_single_leaves(transform: Transform) -> None:
    def flatten(observation: Any, space: Any) -> Any:
        return transform(lambda observation: flatten_observation(observation, space))(jnp.asarray(observation))

    np.testing.assert_array_equal(flatten(3, Discrete(5)), [3.0])
    np.testing.assert_array_equal(flatten([[3, 4]], Discrete(5)), [[[3.0], [4.0]]])
    np.testing.assert_array_equal(flatten(np.ones((4, 2, 3)), Box(0, 1, (2, 3))), np.ones((4, 6)))
    np.testing.assert_array_equal(flatten(0.5, Box(0, 1)), [0.5])
    assert flatten(np.zeros((2, 3)), Discrete(5)).shape == (2, 3, 1)


def test_tuples_and_numpy_leaves() -> None:
    space = (Box(0, 1, (2,)), Discrete(3))
    flat = flatten_observation((np.array([[0.5, 1.0]]), np.array([2])), space)
    np.testing.assert_array_equal(flat, [[0.5, 1.0, 2.0]])


# The perceptron.


def test_mlp_against_numpy() -> None:
    torso = networks.make_torso("mlp", Box(-9, 9, (7,)), (5, 4), "tanh")
    layer = networks.make_linear(3, 0.01)
    x = jax.random.normal(jax.random.key(1), (2, 6, 7))
    params = jax.jit(torso.init)(jax.random.key(0), x[0, 0])
    last = jax.jit(layer.init)(jax.random.key(1), jnp.zeros(4))
    assert sorted(params["params"]) == ["Dense_0", "Dense_1"]
    layers = [params["params"]["Dense_0"], params["params"]["Dense_1"], last["params"]]
    for weights, shape, scale in zip(layers, [(7, 5), (5, 4), (4, 3)], [np.sqrt(2), np.sqrt(2), 0.01], strict=True):
        assert weights["kernel"].shape == shape
        np.testing.assert_array_equal(weights["bias"], np.zeros(shape[1]))
        np.testing.assert_allclose(gram(weights["kernel"] / scale), np.eye(min(shape)), atol=1e-5)

    hidden = np.asarray(x, np.float64)
    params, last = jax.tree.map(lambda leaf: leaf + 0.1, (params, last))  # biases too
    layers = [params["params"]["Dense_0"], params["params"]["Dense_1"], last["params"]]
    for index, weights in enumerate(layers):
        hidden = hidden @ np.asarray(weights["kernel"], np.float64) + np.asarray(weights["bias"], np.float64)
        if index < 2:
            hidden = np.tanh(hidden)

    def apply(params: Any, last: Any, x: jax.Array) -> jax.Array:
        return layer.apply(last, torso.apply(params, x))

    np.testing.assert_allclose(apply(params, last, x), hidden, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(apply)(params, last, x), hidden, rtol=1e-5)


def test_seeds_of_a_vmap_have_their_own_weights() -> None:
    network = MLP((3,), jnp.tanh)
    keys = jax.random.split(jax.random.key(0), 4)
    kernels = jax.jit(jax.vmap(lambda key: network.init(key, jnp.zeros(4))))(keys)["params"]["Dense_0"]["kernel"]
    assert kernels.shape == (4, 4, 3)
    assert len({kernel.tobytes() for kernel in np.asarray(kernels)}) == 4


def test_without_hidden_layers_it_is_linear() -> None:
    torso, layer = networks.make_torso("mlp", Box(-9, 9, (3,)), (), "tanh"), networks.make_linear(2, 1.0)
    params = torso.init(jax.random.key(0), jnp.zeros((1, 3)))
    assert jax.tree.leaves(params) == []
    np.testing.assert_array_equal(torso.apply(params, jnp.arange(3.0)[None]), [[0.0, 1.0, 2.0]])
    last = layer.init(jax.random.key(0), jnp.zeros((1, 3)))
    assert sorted(last["params"]) == ["bias", "kernel"]
    np.testing.assert_allclose(layer.apply(last, 2 * jnp.ones(3)), 2 * layer.apply(last, jnp.ones(3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "at_minus_1", "at_2"),
    [
        ("tanh", np.tanh(-1), np.tanh(2)),
        ("relu", 0, 2),
        ("silu", -1 / (1 + np.e), 2 / (1 + np.exp(-2))),
        ("elu", np.exp(-1) - 1, 2),
        ("gelu", -scipy.stats.norm.cdf(-1), 2 * scipy.stats.norm.cdf(2)),
    ],
)
def test_activations(name: str, at_minus_1: float, at_2: float) -> None:
    # gelu is the usual approximation by tanh, which is within 1e-3 of the exact one.
    np.testing.assert_allclose(networks.get_activation(name)(jnp.array([-1.0, 2.0])), [at_minus_1, at_2], atol=1e-3)


def test_an_unknown_activation_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"agent\.activation = 'tahn' is no known activation: did you mean 'tanh'"):
        networks.get_activation("tahn")
    with pytest.raises(InputError, match=r"agent\.activation = 'softmax'"):
        networks.make_torso("mlp", Box(-1, 1, (4,)), (3,), "softmax")
