"""Networks shared by the agents: observation flattening, multi-layer perceptrons, orthogonal initialisation."""

from __future__ import annotations

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


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
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
    """Initialiser of `[rows, columns]` matrices with orthonormal rows or columns (Saxe et al. 2014), times `scale`.

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
    """A multi-layer perceptron with orthogonal weights and zero biases: `[..., F] -> [..., num_outputs]`."""

    hidden_sizes: Sequence[int]
    num_outputs: int
    activation: str = "tanh"
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hidden_sizes:
            x = activation(self.activation)(nn.Dense(width, kernel_init=orthogonal(np.sqrt(2.0)))(x))
        return nn.Dense(self.num_outputs, kernel_init=orthogonal(self.output_scale))(x)
