"""What transforms share: their state, the sentences on their arguments, the bounds of actions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep
from rollax.envs.wrappers import WrapperState
from rollax.errors import InputError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TransformState(WrapperState):
    """The state inside, and what a transform remembers."""

    own: PyTree


def require(condition: bool, field: str, value: Any, remedy: str) -> None:
    """Raises InputError, with one sentence on an argument of a transform, unless `condition` holds."""
    if not condition:
        raise InputError(f"env.transforms: {field} = {value!r} {remedy}.")


def check_arguments(
    name: str, transform: Callable[..., Environment], env: Environment, arguments: Mapping[str, Any]
) -> None:
    """Raises InputError where a transform does not take these arguments, or a value is not of the kind it is told.

    Args:
        name: The transform's name.
        transform: Its constructor, whose annotations say which kinds of values it takes.
        env: The environment inside.
        arguments: What else it is called with.
    """
    try:
        bound = inspect.signature(transform).bind(env, **arguments)
    except TypeError as error:
        raise InputError(f"env.transforms: {name} does not take {dict(arguments)} ({error}).") from error
    for parameter in bound.signature.parameters.values():
        given = bound.arguments.get(parameter.name)
        if parameter.annotation in _KINDS and given is not None:
            kind, holds = _KINDS[parameter.annotation]
            several = parameter.kind is inspect.Parameter.VAR_KEYWORD
            for key, value in given.items() if several else ((parameter.name, given),):
                require(holds(value), f"{name}.{key}", value, f"must be {kind}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and -(2**31) < int(value) < 2**31


def _is_number(value: Any) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and bool(-_FLOAT_LIMIT <= value <= _FLOAT_LIMIT)


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(holds, value))


_FLOAT_LIMIT = float(np.finfo(np.float32).max)
_KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number of 32 bits", _is_whole),
    "float": ("a finite number", _is_number),
    "Sequence[int]": ("a list of whole numbers", lambda value: _is_list(value, _is_whole)),
    "Sequence[float]": ("a list of finite numbers", lambda value: _is_list(value, _is_number)),
}
"""The kinds of arguments of transforms by their annotations, and whether a value is of one."""


def bounded_box(env: Environment, name: str) -> tuple[jax.Array, jax.Array]:
    """Returns the bounds of an environment's actions, float32 `[*action_shape]` each.

    Raises:
        InputError: They are no Box with finite bounds; the sentence names the transform.
    """
    space = env.action_space()
    bounded = isinstance(space, spaces.Box) and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))
    require(bounded, name, space, "needs a Box with finite bounds as its action space")
    return jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)


def with_observation(timestep: TimeStep, observation: PyTree) -> TimeStep:
    """Returns a time step, inside an episode or at its end, that shows another observation."""
    return dataclasses.replace(timestep, observation=observation, final_observation=observation)
