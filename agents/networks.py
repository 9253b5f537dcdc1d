"""Networks shared by the agents: torsos from observations to features, linear layers, orthogonal initialisation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError, nearest

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "elu": nn.elu,
}
TORSOS = ("mlp", "cnn")
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Two pure functions from a batch of observations to features, or from features to outputs.

    Attributes:
        init: `(key, inputs) -> params`.
        apply: `(params, inputs) -> float [B, F]`, for inputs with leaves `[B, ...]`.
    """

    init: Callable[[jax.Array, PyTree], PyTree]
    apply: Callable[[PyTree, PyTree], jax.Array]


def make_torso(
    name: str,
    observation_space: PyTree,
    hidden_sizes: Sequence[int],
    activation: str,
    dtype: str = "float32",
    layer_norm: bool = False,
) -> Network:
    """Returns the network from observations to features that a config asks for.

    Args:
        name: "mlp" flattens and concatenates the observation's leaves; "cnn" puts a 3 x 3 convolution with 16 filters
            (as in MinAtar, Young and Tian 2019) before the MLP, for one `[height, width, channels]` observation.
        observation_space: A PyTree of spaces.
        hidden_sizes: Widths of the MLP's layers; the last is the number of features.
        activation: The activation after each layer.
        dtype: What the layers compute in, "float32" or "bfloat16"; parameters and features are float32.
        layer_norm: Whether each layer's outputs are normalised before the activation.

    Raises:
        InputError: There is no such torso, activation or dtype, or it does not fit the observations.
    """
    activate = get_activation(activation)
    if dtype not in DTYPES:
        raise InputError(f"agent.compute_dtype = {dtype!r} is unknown: choose one of {', '.join(DTYPES)}.")
    mlp = MLP(hidden_sizes, activate, DTYPES[dtype], layer_norm)
    if name == "mlp":
        return _from_flax(mlp, functools.partial(flatten_observation, space=observation_space))
    if name == "cnn":
        shape = observation_space.shape if isinstance(observation_space, spaces.Box) else ()
        if len(shape) != 3 or min(shape[:2]) < 3:
            raise InputError(
                f"agent.torso = 'cnn' needs one Box [height, width, channels] of 3 x 3 pixels or more, not "
                f"{observation_space!r}; use 'mlp'."
            )
        return _from_flax(CNN(mlp, activate, DTYPES[dtype]), lambda image: jnp.asarray(image, jnp.float32))
    raise InputError(f"agent.torso = {name!r} is unknown: {nearest(name, TORSOS)} An import path works too.")


def make_linear(num_outputs: int, scale: float) -> Network:
    """Returns a linear layer in float32, `[B, F] -> [B, num_outputs]`, with orthogonal weights of a given scale."""
    return _from_flax(nn.Dense(num_outputs, kernel_init=orthogonal(scale)), lambda features: features)


def get_activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the activation function called `name`.

    Raises:
        InputError: There is none.
    """
    if name not in ACTIVATIONS:
        raise InputError(f"agent.activation = {name!r} is no known activation: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def flatten_observation(observation: PyTree, space: PyTree) -> jax.Array:
    """Flattens and concatenates the leaves of a batch of observations.

    Args:
        observation: A PyTree of arrays `[..., *leaf_shape]`.
        space: The PyTree of spaces of one observation.

    Returns:
        float32 `[..., F]`.
    """

    def flatten(leaf: jax.Array, leaf_space: spaces.Space) -> jax.Array:
        leaf = jnp.asarray(leaf)
        batch_shape = leaf.shape[: leaf.ndim - len(leaf_space.shape)]
        return leaf.reshape(*batch_shape, spaces.size(leaf_space)).astype(jnp.float32)

    flat = jax.tree.leaves(jax.tree.map(flatten, observation, space))
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=-1)


def orthogonal(scale: float = 1.0) -> Callable[..., jax.Array]:
    """Initialiser of `[..., columns]` arrays with orthonormal rows or columns (Saxe et al. 2014), times `scale`.

    The same distribution as `jax.nn.initializers.orthogonal`, by Gram-Schmidt in place of LAPACK's QR: the batched QR
    that a vmap over seeds makes deadlocks a program on two CPU devices with jax 0.10.2.
    """

    def initialise(
        key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32, out_sharding: Any = None
    ) -> jax.Array:
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        length, count = max(rows, columns), min(rows, columns)
        vectors = jax.random.normal(key, (count, length), dtype)

        def orthogonalise(index: jax.Array, basis: jax.Array) -> jax.Array:
            # Rows from `index` on are still zero in `basis`. Twice is enough (Kahan and Parlett).
            vector = vectors[index]
            for _ in range(2):
                vector = vector - (basis @ vector) @ basis
            return basis.at[index].set(vector / jnp.linalg.norm(vector))

        basis = lax.fori_loop(0, count, orthogonalise, jnp.zeros_like(vectors))
        return scale * (basis if rows < columns else basis.T).reshape(shape)

    return initialise


class MLP(nn.Module):
    """A multi-layer perceptron with orthogonal weights and zero biases: `[..., F] -> [..., hidden_sizes[-1]]`."""

    hidden_sizes: Sequence[int]
    activate: Callable[[jax.Array], jax.Array]
    dtype: Any = jnp.float32
    layer_norm: bool = False
    batch_norm: bool = False  # of the inputs and after each activation
    dropout: bool = False  # before each activation, and before the layer norm

    @nn.compact
    def __call__(self, x: jax.Array, dropout_rate: jax.Array | float = 0.0, train: bool = False) -> jax.Array:
        """`train` takes batch norm's statistics from this batch, and writes them to the collection `batch_stats`."""

        def normalise(x: jax.Array) -> jax.Array:
            if not self.batch_norm:
                return x
            return nn.BatchNorm(use_running_average=not train, dtype=self.dtype, epsilon=1e-3)(x)

        x = normalise(x)
        for width in self.hidden_sizes:
            x = nn.Dense(width, dtype=self.dtype, kernel_init=orthogonal(np.sqrt(2.0)))(x)
            if self.dropout and self.has_rng("dropout"):
                kept = jax.random.bernoulli(self.make_rng("dropout"), 1.0 - dropout_rate, x.shape)
                x = jnp.where(kept, x / (1.0 - dropout_rate), 0.0)
            x = normalise(self.activate(nn.LayerNorm(dtype=self.dtype)(x) if self.layer_norm else x))
        return x


class CNN(nn.Module):
    """A 3 x 3 convolution with 16 filters and no padding, then an MLP: `[B, H, W, C] -> [B, F]`."""

    mlp: MLP
    activate: Callable[[jax.Array], jax.Array]
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        kernel = self.param("kernel", orthogonal(np.sqrt(2.0)), (3, 3, image.shape[-1], 16), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (16,), jnp.float32)
        maps = convolve(image.astype(self.dtype), kernel.astype(self.dtype)) + bias.astype(self.dtype)
        if self.mlp.layer_norm:
            maps = nn.LayerNorm(dtype=self.dtype, reduction_axes=(1, 2, 3))(maps)
        return self.mlp(self.activate(maps).reshape(image.shape[0], -1))


def convolve(image: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves `[B, H, W, C]` with a kernel `[h, w, C, F]`, without padding: `[B, H - h + 1, W - w + 1, F]`.

    On CPU as one matrix product with shifted slices, whose gradient inside a loop is several times faster than that of
    XLA's convolution; elsewhere as a convolution.
    """

    def as_product(image: jax.Array, kernel: jax.Array) -> jax.Array:
        height, width = (image.shape[axis] - kernel.shape[axis - 1] + 1 for axis in (1, 2))
        slices = [
            image[:, row : row + height, column : column + width]
            for row in range(kernel.shape[0])
            for column in range(kernel.shape[1])
        ]
        return jnp.concatenate(slices, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])

    def as_convolution(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return lax.platform_dependent(image, kernel, cpu=as_product, default=as_convolution)


def _from_flax(module: nn.Module, prepare: Callable[[PyTree], jax.Array]) -> Network:
    def apply(params: PyTree, inputs: PyTree) -> jax.Array:
        return jnp.asarray(module.apply(params, prepare(inputs)), jnp.float32)

    return Network(init=lambda key, inputs: module.init(key, prepare(inputs)), apply=apply)
