"""`make`: from an id, an import path or an object to an environment."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rollax.envs.base import Environment
from rollax.envs.catalogue import ENVIRONMENTS, SUITES
from rollax.envs.validation import ProtocolError, call, describe
from rollax.errors import InputError, nearest
from rollax.importing import import_object, is_import_path

_REQUIRED = ("reset", "step", "observation_space", "action_space", "default_params")


def make(
    env: str | Environment, /, *, transforms: Sequence[str | Mapping[str, Any]] = (), **kwargs: Any
) -> Environment:
    """Builds an environment.

    Args:
        env: An id of `rollax list envs`; `package.module:NAME` or `file.py:NAME`, where NAME is an environment, its
            class or a function that returns one; or such an object itself. An environment is returned as it is, one
            of gymnax's in its adapter.
        transforms: Names of `rollax.envs.transforms`, or tables with a `name` and arguments, innermost first.
        **kwargs: For an id of a suite, those that name a field of the environment's params override it and the others
            go to its constructor; for a class or a function, its arguments.

    Raises:
        InputError: The id is unknown, a keyword does not fit, or the object lacks a part of the protocol.
    """
    made = _make(env, kwargs)
    if not transforms:
        return made
    from rollax.envs.transforms import apply

    return apply(made, transforms)


def _make(env: str | Environment, kwargs: dict[str, Any]) -> Environment:
    if not isinstance(env, str):
        return _checked(env, kwargs, f"env.id = {env!r}")
    if env in ENVIRONMENTS:
        return _of_suite(env, kwargs)
    if is_import_path(env):
        return _checked(import_object(env, "env.id"), kwargs, f"env.id = {env!r}")
    hint = f"name what is in the file, as {env}:NAME." if env.endswith(".py") else nearest(env, ENVIRONMENTS)
    raise InputError(f"env.id = {env!r} is no known environment: {hint}")


def _of_suite(env_id: str, kwargs: dict[str, Any]) -> Environment:
    name, _, rest = env_id.rpartition("/")
    try:
        adapter = importlib.import_module(f"rollax.envs.adapters.{name or 'gymnax'}")
    except ModuleNotFoundError as error:
        if error.name is None or name not in SUITES or error.name.partition(".")[0] != SUITES[name].package:
            raise
        raise InputError(
            f"env.id = {env_id!r} needs the package {SUITES[name].package}, which is not installed: "
            f"pip install 'rollax[{name}]'."
        ) from error
    try:
        return adapter.make(rest, **kwargs)
    except InputError:
        raise
    except Exception as error:  # a suite may raise anything at an argument that does not fit
        raise InputError(f"env.id = {env_id!r} cannot be built with {kwargs}: {describe(error)}.") from error


def _checked(env: Any, kwargs: dict[str, Any], field: str) -> Environment:
    if inspect.isclass(env) or inspect.isfunction(env):
        try:
            inspect.signature(env).bind(**kwargs)
        except TypeError as error:
            raise InputError(f"{field} cannot be called with the arguments {kwargs}: {error}.") from error
        try:
            env = env(**kwargs)
        except InputError:
            raise
        except Exception as error:
            raise ProtocolError("raises", f"{field} cannot be built: {describe(error)}.") from error
    elif kwargs:
        raise InputError(
            f"{field} is built already, so the arguments {sorted(kwargs)} have no use: remove them, "
            "or name a class or function that takes them."
        )
    if any(kind.__module__ == "gymnax.environments.environment" for kind in type(env).__mro__):
        from rollax.envs.adapters.gymnax import GymnaxEnv

        return call(field, lambda: GymnaxEnv(env))
    missing = [name for name in _REQUIRED if not hasattr(env, name)]
    if missing:
        raise InputError(f"{field} is no environment: it lacks {', '.join(missing)} (see rollax.envs.Environment).")
    return env
