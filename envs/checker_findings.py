"""What the environment checker can find, and how it compares trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs.base import PyTree

FINDINGS: Mapping[str, str] = {
    "protocol": "a part of the protocol is missing or returns something else",
    "raises": "the environment raises",
    "python-state": "a trace depends on Python state: an attribute, a global, host randomness, the clock",
    "large-constant": "arrays are closed over and so compiled into the program",
    "impure": "one compiled program gives two results for the same inputs",
    "jit": "the result differs with and without jit",
    "vmap": "the result differs with and without vmap",
    "state": "the types or the tree of the state change between reset and step, or between steps",
    "observation": "an observation is outside its space",
    "reward": "the reward is not one float",
    "flags": "terminated or truncated is not one bool",
    "nan": "an observation or a reward is NaN or infinite",
    "same-reset": "reset ignores its key",
    "key-reuse": "a random key is used twice",
    "final-observation": "final_observation is not what the step led to",
    "auto-reset": "a raw environment resets itself",
    "time-limit": "a time limit is reported as a termination",
}
"""What `check` can find: stable names, and what each stands for."""

_TOLERANCE = 1e-3  # relative to the largest number of a leaf; programs that round differently are the same


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an environment."""

    name: str  # one of FINDINGS
    sentence: str  # what was seen where, and the remedy


def plain(leaf: Any) -> np.ndarray:
    """Returns an array as NumPy has it, random keys as their numbers `[..., words]`."""
    leaf = jnp.asarray(leaf)
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def difference(one: PyTree, other: PyTree, tolerance: float = _TOLERANCE) -> str | None:
    """Returns where two trees differ first, and in which numbers; None if they are the same."""
    others = jax.tree.leaves(other)
    if len(jax.tree.leaves(one)) != len(others):
        return "their trees differ"
    for (path, leaf), against in zip(jax.tree_util.tree_leaves_with_path(one), others, strict=True):
        a, b = plain(leaf), plain(against)
        if a.shape != b.shape:
            return f"{jax.tree_util.keystr(path)} has shape {a.shape} and {b.shape}"
        same = a == b
        if jnp.issubdtype(a.dtype, jnp.floating):
            a, b = a.astype(np.float64), b.astype(np.float64)
            finite = b[np.isfinite(b)]
            slack = tolerance * max(1.0, np.abs(finite).max(initial=0.0))
            same = np.isclose(a, b, rtol=0.0, atol=slack, equal_nan=True)
        if not np.all(same):
            place = np.argwhere(~np.asarray(same))[0]
            return f"{jax.tree_util.keystr(path)}: {a[tuple(place)]} and {b[tuple(place)]}"
    return None
