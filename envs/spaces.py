"""Spaces: the shape, dtype and bounds of one action or observation, as concrete host-side values.

An observation space is any PyTree whose leaves are spaces (a dict of boxes, say); an action space is one space.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers `0, ..., n - 1`: arrays of shape `()`."""

    n: int
    dtype: np.dtype = np.dtype(np.int32)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"Discrete.n = {self.n} must be at least 1.")

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one element uniformly."""
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x: Any) -> jax.Array:
        """Returns whether `x` is an element, as a bool array of shape `()`."""
        x = jnp.asarray(x)
        if x.shape != () or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return (x >= 0) & (x < self.n)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers whose entry `i` lies in `0, ..., nvec[i] - 1`: arrays of shape `(len(nvec),)`."""

    nvec: tuple[int, ...]
    dtype: np.dtype = np.dtype(np.int32)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nvec", tuple(int(n) for n in self.nvec))  # a list or an array will do
        if not self.nvec or min(self.nvec) < 1:
            raise InputError(f"MultiDiscrete.nvec = {self.nvec} must hold at least one number, each at least 1.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one element uniformly."""
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)

    def contains(self, x: Any) -> jax.Array:
        """Returns whether `x` is an element, as a bool array of shape `()`."""
        x = jnp.asarray(x)
        if x.shape != self.shape or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return jnp.all((x >= 0) & (x < jnp.asarray(self.nvec)))


def _shown(bounds: np.ndarray) -> str:
    """Returns bounds as a few numbers: the one that they all are, a short list, or from the least to the largest."""
    low, high = bounds.min(initial=np.inf), bounds.max(initial=-np.inf)
    if low >= high:
        return f"{low:g}"
    return f"[{', '.join(f'{bound:g}' for bound in bounds.flat)}]" if bounds.size <= 8 else f"{low:g}..{high:g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """Arrays of one shape with a lower and an upper bound for each entry; bounds may be infinite."""

    low: np.ndarray  # [*shape]
    high: np.ndarray  # [*shape]
    dtype: np.dtype

    def __init__(self, low: Any, high: Any, shape: Sequence[int] | None = None, dtype: Any = np.float32) -> None:
        """Broadcasts the bounds to `shape`.

        Args:
            low: The lower bounds, a number or an array.
            high: The upper bounds, a number or an array.
            shape: The shape of one element; that of the bounds when it is None.
            dtype: The dtype of one element.

        Raises:
            InputError: A lower bound is above its upper bound.
        """
        try:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high)) if shape is None else tuple(shape)
            low, high = (np.array(np.broadcast_to(np.asarray(bound, np.float64), shape)) for bound in (low, high))
        except ValueError as error:
            raise InputError(f"Box.low = {low} and Box.high = {high} do not fit the shape {shape}: {error}.") from error
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            low, high = np.clip(np.ceil(low), limits.min, None), np.clip(np.floor(high), None, limits.max)
        if not np.all(low <= high):
            raise InputError(f"Box.low = {low} must not be above Box.high = {high}.")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "dtype", np.dtype(dtype))

    def __repr__(self) -> str:
        return f"Box({_shown(self.low)}, {_shown(self.high)}, {self.shape}, {self.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws one element: uniformly where both bounds are finite, elsewhere from a clipped unit normal."""
        if not np.issubdtype(self.dtype, np.floating):
            # Drawn in 32 bits, where one more than the largest byte has room.
            low, high = (np.clip(bound, -(2**31), 2**31 - 2).astype(np.int32) for bound in (self.low, self.high))
            return jax.random.randint(key, self.shape, low, high + 1, jnp.int32).astype(self.dtype)
        key_uniform, key_normal = jax.random.split(key)
        finite = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = (jnp.asarray(np.where(finite, bound, 0.0), jnp.float32) for bound in (self.low, self.high))
        share = jax.random.uniform(key_uniform, self.shape)
        uniform = jnp.clip(low * (1.0 - share) + high * share, low, high)  # the difference of the bounds can overflow
        normal = jax.random.normal(key_normal, self.shape)
        normal = jnp.clip(normal, jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32))
        return jnp.where(finite, uniform, normal).astype(self.dtype)

    def contains(self, x: Any) -> jax.Array:
        """Returns whether `x` is an element, as a bool array of shape `()`."""
        x = jnp.asarray(x)
        integral = jnp.issubdtype(x.dtype, jnp.integer)
        if x.shape != self.shape or (np.issubdtype(self.dtype, np.integer) and not integral):
            return jnp.asarray(False)
        compared = x if integral else x.astype(jnp.float32)
        low, high = (np.ceil(self.low), np.floor(self.high)) if integral else (self.low, self.high)
        if integral:
            limits = jnp.iinfo(x.dtype)
            low, high = np.clip(low, limits.min, limits.max), np.clip(high, limits.min, limits.max)
        return jnp.all((compared >= jnp.asarray(low, compared.dtype)) & (compared <= jnp.asarray(high, compared.dtype)))


Space = Discrete | MultiDiscrete | Box


def size(space: Space) -> int:
    """Returns how many numbers one element of `space` has."""
    return math.prod(space.shape)


def leaves(space: Any) -> list[Space]:
    """Returns the spaces at the leaves of a PyTree of spaces.

    Raises:
        InputError: A leaf is no space.
    """
    found = jax.tree.leaves(space)
    if not found:
        raise InputError("observation space has no leaves: give it at least one Discrete, MultiDiscrete or Box.")
    for leaf in found:
        if not isinstance(leaf, Space):
            raise InputError(
                f"observation space has a leaf of type {type(leaf).__name__}: use Discrete, MultiDiscrete or Box."
            )
    return found


def zeros(space: Any) -> Any:
    """Returns the all-zero element of a PyTree of spaces: an example of its shapes and dtypes."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), space)


def alike(space: Any, other: Any) -> bool:
    """Returns whether two PyTrees of spaces have the same structure, kinds, shapes, dtypes and numbers of choices."""

    def describe(leaf: Space) -> tuple[Any, ...]:
        return type(leaf), leaf.shape, leaf.dtype, getattr(leaf, "n", None), getattr(leaf, "nvec", None)

    trees: list[Any] = [jax.tree.structure(space), jax.tree.structure(other)]  # PyTreeDef has no type for ==
    return trees[0] == trees[1] and [describe(leaf) for leaf in leaves(space)] == [
        describe(leaf) for leaf in leaves(other)
    ]
