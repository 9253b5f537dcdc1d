"""How XLA compiles the training and the evaluation of a run: as `[compiler]` of its config says."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax

from rollax.errors import InputError
from rollax.experiments.config import CompilerConfig
from rollax.experiments.tables import show


def check(settings: CompilerConfig) -> None:
    """Checks that XLA takes the options, one after another.

    Raises:
        InputError: It does not know one of them, or one cannot have its value. (A few values XLA takes and does not
            heed, or ends the process by.)
    """
    for name, value in settings.options.items():
        try:
            _compile(jax.jit(lambda: 0), (), {name: value})
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).removeprefix("INVALID_ARGUMENT: ").rstrip(".")
            raise InputError(
                f"compiler.{name} = {show(value)} is refused by XLA ({reason}): give an option of XLA_FLAGS, without "
                "its dashes, and a value of its kind, as in xla_gpu_autotune_level = 0."
            ) from error


def compiled(settings: CompilerConfig, function: Any, *arguments: Any) -> Any:
    """Returns a jitted function compiled for its arguments."""
    precision = settings.matmul_precision
    with contextlib.nullcontext() if precision == "default" else jax.default_matmul_precision(precision):
        return _compile(function, arguments, settings.options)


def _compile(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return function.lower(*arguments).compile(compiler_options=dict(options))
