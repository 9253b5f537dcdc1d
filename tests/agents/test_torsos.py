"""Torsos: the CNN and its convolution, lower precision, and torsos of one's own by import path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax import lax
from tests.agents import flat

from rollax import InputError
from rollax.agents import networks, ppo, torsos
from rollax.agents.memory import Torso
from rollax.envs.spaces import Box, Discrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
IMAGE = Box(0, 1, (10, 10, 4), np.bool_)

# The convolution.


@MAYBE_JIT
@pytest.mark.parametrize(("shape", "kernel_shape"), [((2, 10, 10, 4), (3, 3, 4, 16)), ((3, 5, 7, 2), (2, 3, 2, 5))])
def test_the_convolution_and_its_gradients(
    shape: tuple[int, ...], kernel_shape: tuple[int, ...], transform: Transform
) -> None:
    image = jax.random.normal(jax.random.key(0), shape)
    kernel = 0.3 * jax.random.normal(jax.random.key(1), kernel_shape)
    expected = lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    weights = jax.random.normal(jax.random.key(2), expected.shape)

    def objective(convolve: Callable[..., jax.Array]) -> Callable[..., Any]:
        return jax.grad(lambda image, kernel: jnp.sum(weights * convolve(image, kernel)), argnums=(0, 1))

    def reference(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    got = transform(networks.convolve)(image, kernel)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5)
    gradients = zip(
        transform(objective(networks.convolve))(image, kernel), objective(reference)(image, kernel), strict=True
    )
    for ours, theirs in gradients:
        np.testing.assert_allclose(ours, theirs, atol=5e-5, rtol=1e-5)
    # And against scipy, which shares nothing with XLA: correlation over height, width and the sum of channels.
    for row, filter_index in ((0, 0), (1, 3)):
        maps = [
            scipy.signal.correlate2d(image[row, :, :, channel], kernel[:, :, channel, filter_index], mode="valid")
            for channel in range(shape[-1])
        ]
        np.testing.assert_allclose(got[row, :, :, filter_index], sum(maps), atol=1e-5)


# The CNN.


@MAYBE_JIT
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.uint8])
def test_cnn_against_numpy(dtype: Any, transform: Transform) -> None:
    space = Box(0, 1, (10, 10, 4), dtype)
    torso = networks.make_torso("cnn", space, (6,), "relu")
    image = np.random.default_rng(0).integers(0, 2, (3, 10, 10, 4)).astype(dtype)
    params = transform(torso.init)(jax.random.key(0), jnp.asarray(image[:1]))
    kernel, bias = np.asarray(params["params"]["kernel"]), np.asarray(params["params"]["bias"])
    dense = params["params"]["mlp"]["Dense_0"]
    assert kernel.shape == (3, 3, 4, 16)
    np.testing.assert_allclose(kernel.reshape(36, 16).T @ kernel.reshape(36, 16), 2 * np.eye(16), atol=1e-5)
    assert not bias.any()
    assert dense["kernel"].shape == (8 * 8 * 16, 6)

    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), axis=(1, 2))
    maps = np.maximum(np.einsum("bhwcij,ijcf->bhwf", windows, kernel.astype(np.float64)), 0)
    expected = np.maximum(maps.reshape(3, -1) @ np.asarray(dense["kernel"], np.float64), 0)
    features = transform(torso.apply)(params, jnp.asarray(image))
    assert features.dtype == jnp.float32
    assert expected.any()
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_cnn_has_gradients_everywhere() -> None:
    torso = networks.make_torso("cnn", IMAGE, (6,), "tanh")
    image = jnp.asarray(np.random.default_rng(0).random((3, 10, 10, 4)) < 0.3)
    params = jax.jit(torso.init)(jax.random.key(0), image)
    gradients = jax.jit(jax.grad(lambda params: jnp.sum(torso.apply(params, image))))(params)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


# Lower precision.


@pytest.mark.parametrize(("name", "space"), [("mlp", Box(-9, 9, (7,))), ("cnn", IMAGE)], ids=["mlp", "cnn"])
def test_bfloat16_features_are_float32_and_close(name: str, space: Box) -> None:
    single = networks.make_torso(name, space, (32, 16), "tanh")
    half = networks.make_torso(name, space, (32, 16), "tanh", "bfloat16")
    observation = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 8))
    params = jax.jit(half.init)(jax.random.key(1), observation)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    expected, features = jax.jit(single.apply)(params, observation), jax.jit(half.apply)(params, observation)
    assert features.dtype == jnp.float32
    error = np.abs(features - expected).max()
    assert 0 < error < 0.05  # computed in bfloat16: near, and not the same
    gradients = jax.jit(jax.grad(lambda params: jnp.sum(half.apply(params, observation))))(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


# Torsos of one's own.

OWN = """
import types

import flax.linen as nn
import jax
import jax.numpy as jnp

from rollax.agents.networks import Network

class Module(nn.Module):
    width: int

    @nn.compact
    def __call__(self, observation):
        assert set(observation) == {"image", "which"}
        assert observation["image"].dtype == jnp.uint8
        assert observation["image"].shape[1:] == (2, 3)
        pixels = observation["image"].reshape(-1, 6) / 255.0
        return nn.tanh(nn.Dense(self.width)(pixels) + nn.Embed(4, self.width)(observation["which"]))

def module(observation_space):
    assert observation_space["image"].shape == (2, 3)
    return Module(observation_space["which"].n + 1)

def network(observation_space):
    return Network(
        init=lambda key, observation: {"weight": jax.random.normal(key, (6, 3))},
        apply=lambda params, observation: observation["image"].reshape(-1, 6) / 255.0 @ params["weight"],
    )

def no_network(observation_space):
    return types.SimpleNamespace(init=None)

def flat(observation_space):
    return Network(lambda key, observation: (), lambda params, observation: jnp.zeros(3))

def deep(observation_space):
    return Network(lambda key, observation: (), lambda params, observation: jnp.zeros((1, 3, 2)))

def two(observation_space):
    return Network(lambda key, observation: (), lambda params, observation: (jnp.zeros((1, 3)), jnp.zeros((1, 3))))
"""
OWN_SPACE = {"image": Box(0, 255, (2, 3), np.uint8), "which": Discrete(4)}


def own_torso(path: str, name: str) -> Torso:
    return torsos.make(ppo.Config(torso=f"{path}:{name}"), OWN_SPACE)


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    path = tmp_path / "own_torso.py"
    path.write_text(OWN)
    return str(path)


@pytest.mark.parametrize(("name", "width"), [("module", 5), ("network", 3)])
def test_a_torso_of_ones_own_gets_the_observation_as_it_is(own_file: str, name: str, width: int) -> None:
    torso = own_torso(own_file, name)
    assert torsos.num_features(torso, OWN_SPACE) == width
    observation = {"image": jnp.full((7, 2, 3), 200, jnp.uint8), "which": jnp.arange(7, dtype=jnp.int32) % 4}
    params = jax.jit(torso.init)(jax.random.key(0), observation)
    features = jax.jit(flat.features, static_argnums=0)(torso, params, observation)
    assert features.shape == (7, width)
    assert np.isfinite(features).all()
    if name == "network":
        np.testing.assert_allclose(features[0], 200 / 255 * np.asarray(params["weight"]).sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_network", r"agent\.torso = '.*own_torso\.py:no_network' must return an object with init and apply"),
        ("absent", r"agent\.torso = .* has no 'absent'"),
    ],
)
def test_own_torsos_that_are_none(own_file: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        own_torso(own_file, name)


@pytest.mark.parametrize("name", ["flat", "deep", "two"])
def test_features_of_another_shape_are_a_sentence(own_file: str, name: str) -> None:
    torso = own_torso(own_file, name)
    with pytest.raises(InputError, match=r"agent\.torso .*return \[batch, F\]"):
        torsos.num_features(torso, OWN_SPACE)


# Names and dtypes that are none.


@pytest.mark.parametrize(
    ("name", "space", "dtype", "message"),
    [
        ("mpl", IMAGE, "float32", r"agent\.torso = 'mpl' is unknown: did you mean 'mlp'"),
        ("cnn", Box(-1, 1, (4,)), "float32", r"agent\.torso = 'cnn' needs one Box \[height, width, channels\]"),
        ("cnn", {"a": IMAGE}, "float32", r"agent\.torso = 'cnn' needs one Box \[height, width, channels\]"),
        ("cnn", Discrete(3), "float32", r"agent\.torso = 'cnn' needs one Box"),
        ("mlp", IMAGE, "float16", r"agent\.compute_dtype = 'float16' is unknown: choose one of float32, bfloat16"),
    ],
)
def test_torsos_that_do_not_exist_or_fit(name: str, space: Any, dtype: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        networks.make_torso(name, space, (8,), "tanh", dtype)


def test_an_image_too_small_for_the_kernel_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"agent\.torso"):
        networks.make_torso("cnn", Box(0, 1, (2, 2, 1)), (8,), "tanh")
