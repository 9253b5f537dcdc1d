"""What the adapters share: spaces read off examples, params that keywords override, a time limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree
from rollax.envs.transforms import TimeLimit
from rollax.errors import InputError, nearest


def box(example: Any, low: Any = -np.inf, high: Any = np.inf) -> spaces.Box:
    """Returns the Box with an example's shape and dtype; booleans are 0 or 1, whatever the bounds.

    Args:
        example: An array, or what `jax.eval_shape` gives for one.
        low: Lower bounds that broadcast to the example's shape.
        high: Upper bounds that broadcast to the example's shape.
    """
    if example.dtype == np.bool_:
        low, high = 0, 1
    return spaces.Box(low, high, example.shape, example.dtype)


def limited(env: Environment, max_steps: int | None) -> Environment:
    """Returns an environment whose episodes are truncated after `max_steps` steps; None leaves it as it is.

    Raises:
        InputError: `max_steps` is no positive whole number.
    """
    if max_steps is None:
        return env
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise InputError(f"env.max_steps_in_episode = {max_steps!r} must be a whole number, at least 1.")
    return TimeLimit(env, max_steps)


def override(env_id: str, params: Any, overrides: Mapping[str, Any], others: Collection[str] = ()) -> PyTree:
    """Returns a dataclass of params with other values, each in the type of its default.

    Args:
        env_id: The environment, named in errors.
        params: The defaults, a dataclass with a method `replace`.
        overrides: New values by field.
        others: Further keywords of the environment, named in errors.

    Raises:
        InputError: There is no such field, or a value does not have the type and shape of its default.
    """
    fields = {field.name for field in dataclasses.fields(params)}
    for name in overrides:
        if name not in fields:
            raise InputError(f"env.{name} is nothing that {env_id} knows: {nearest(name, fields | set(others))}")
    return params.replace(
        **{name: _in_type_of(name, value, getattr(params, name)) for name, value in overrides.items()}
    )


def _in_type_of(name: str, value: Any, default: Any) -> Any:
    wanted = np.asarray(default)
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        given = np.asarray(None)
    number = given.dtype.kind in "iuf" and wanted.dtype.kind in "iuf"
    if given.shape != wanted.shape or not (number or given.dtype.kind == wanted.dtype.kind):
        raise InputError(f"env.{name} = {value!r} must be a number like its default {default!r}.")
    if name in ("max_steps_in_episode", "max_timesteps") and given < 1:
        raise InputError(f"env.{name} = {value!r} must be at least 1.")
    converted = given.astype(wanted.dtype)
    if wanted.dtype.kind in "iu" and not np.array_equal(converted, given):
        raise InputError(f"env.{name} = {value!r} must be a whole number like its default {default!r}.")
    return converted.item() if converted.ndim == 0 else converted
