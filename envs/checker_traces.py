"""The part of the environment checker that only traces: types of the state, hidden Python state, random keys."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, strongly_typed, with_types_of
from rollax.envs.checker_findings import Finding, difference
from rollax.envs.validation import ProtocolError, call
from rollax.errors import InputError

CONSTANT_BYTES = 1_000_000  # closed-over arrays of one function, in bytes, from which they are a finding

_TRACES = 3


def look(env: Environment, params: PyTree, key: jax.Array) -> Iterator[Finding]:
    """Looks at an environment that `validate` has passed, with strongly typed params.

    Raises:
        InputError: Something is found that keeps the environment from being played.
    """
    yield from _types(env, params, key)
    yield from _hidden_state(env, params, key)
    yield from _key_reuse(env, params, key)


# Types.


def _types(env: Environment, params: PyTree, key: jax.Array) -> Iterator[Finding]:
    """Compares the types of the state after a reset and two steps, by tracing alone."""
    action = spaces.zeros(env.action_space())
    state, first = jax.eval_shape(env.reset, key, params)
    following, timestep = call("env.step", lambda: jax.eval_shape(env.step, key, state, action, params))
    for what, part in (("env.reset", first), ("env.step", timestep)):
        for field, name, kind in (
            ("reward", "reward", jnp.floating),
            ("terminated", "flags", jnp.bool_),
            ("truncated", "flags", jnp.bool_),
        ):
            dtype = jnp.result_type(getattr(part, field))
            if not jnp.issubdtype(dtype, kind):
                wanted = "float32" if kind is jnp.floating else "bool"
                raise ProtocolError(
                    name, f"{what} returns {field} of {dtype}: make it {wanted}, as envs.timestep does."
                )
        for final, now in ((part.final_observation, part.observation), (part.final_action_mask, part.action_mask)):
            if _described(final) != _described(now):
                raise ProtocolError(
                    "final-observation",
                    f"{what} returns a final_observation (or its action mask) of other types than the observation: "
                    "let envs.timestep fill both.",
                )
    again, _ = call("env.step", lambda: jax.eval_shape(env.step, key, following, action, params))
    for before, after, whose in ((state, following, "reset's"), (following, again, "that of the step before it")):
        types = zip(_described(before), _described(after), strict=False)
        changed = next((pair for pair in types if pair[0] != pair[1]), None)
        if changed is not None:
            (path, was), (_, now) = changed
            sentence = f"env.step returns a state with {now} at {path or 'its root'}, and {whose} has {was}: "
            sentence += "convert it, as with jnp.asarray(value, dtype), so that the state can be a loop's carry."
            try:
                jax.eval_shape(with_types_of, after, before)
            except InputError as error:
                raise ProtocolError("state", sentence) from error
            yield Finding("state", sentence)
            return


def _described(tree: PyTree) -> list[tuple[str, str]]:
    """Returns path and type of each leaf; a weak type is another one."""

    def describe_leaf(leaf: Any) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}" + (" (weak)" if getattr(leaf, "weak_type", False) else "")

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), describe_leaf(leaf)) for path, leaf in leaves]


# Traces.


def _hidden_state(env: Environment, params: PyTree, key: jax.Array) -> Iterator[Finding]:
    """Traces reset and step several times: the programs have to be the same, and small."""
    state, _ = jax.eval_shape(lambda: strongly_typed(env.reset(key, params)))
    functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "env.reset": (env.reset, (key, params)),
        "env.step": (env.step, (key, state, spaces.zeros(env.action_space()), params)),
    }
    for what, (function, arguments) in functions.items():
        programs = [_trace(what, function, arguments, attempt) for attempt in range(_TRACES)]
        texts = [re.sub(r"0x[0-9a-f]+", "", str(program)) for program in programs]  # addresses of objects
        constants = [_constants(program) for program in programs]
        if change := _change(texts, constants):
            yield Finding(
                "python-state",
                f"{what} is another program each time that it is traced ({change}), and compiled code keeps the first: "
                "keep counters and such in the state, numbers in params, and draw random numbers from the key.",
            )
        arrays = {id(held): held for held in constants[0] if isinstance(held, jax.Array | np.ndarray)}.values()
        size = sum(held.nbytes for held in arrays)
        if size >= CONSTANT_BYTES:
            largest = max(arrays, key=lambda held: held.nbytes)
            yield Finding(
                "large-constant",
                f"{what} closes over {size:,} bytes of arrays, the largest {largest.dtype}{list(largest.shape)}, which "
                f"are copied into every program (the limit is {CONSTANT_BYTES:,}): hand them over in params.",
            )


def _trace(what: str, function: Callable[..., Any], arguments: tuple[Any, ...], attempt: int) -> Any:
    """Traces anew.

    JAX reuses the earlier trace of a function that it has seen. It has not seen a fresh one, and other metadata make it
    trace the functions inside that are jitted by themselves again. The clocks run ahead, because float32 would not tell
    two traces of the same minute apart.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(set_xla_metadata(rollax_trace=str(attempt)))
        for clock in ("time", "monotonic", "perf_counter"):
            ahead = functools.partial(_ahead, getattr(time, clock), 1e6 * attempt)
            stack.enter_context(mock.patch.object(time, clock, ahead))
        return call(what, lambda: jax.make_jaxpr(lambda *given: function(*given))(*arguments))


def _ahead(clock: Callable[[], float], seconds: float) -> float:
    return clock() + seconds


def _constants(program: Any) -> list[Any]:
    """Returns the arrays that a program, or one inside it, holds."""
    found = list(getattr(program, "consts", ()))
    for equation in program.eqns:
        found += [variable.val for variable in equation.invars if hasattr(variable, "val")]
        inner = [value for value in jax.tree.leaves(equation.params) if hasattr(value, "eqns")]
        found += [constant for program in inner for constant in _constants(program)]
    return found


def _change(texts: list[str], constants: list[list[Any]]) -> str | None:
    """Returns what tells later traces from the first, or None."""
    if any(isinstance(constant, jax.core.Tracer) for held in constants for constant in held):
        return "it reads a value that an earlier trace has left on an object or in a global"
    for text, held in zip(texts[1:], constants[1:], strict=True):
        for line, other in zip(texts[0].splitlines(), text.splitlines(), strict=False):
            if line != other:
                return f"{line.strip()[:80]!r}, then {other.strip()[:80]!r}"
        if text != texts[0]:
            return "it is longer, or shorter"
        if changed := difference(constants[0], held, tolerance=0.0):
            return f"an array that it closes over changes: {changed}"
    return None


def _key_reuse(env: Environment, params: PyTree, key: jax.Array) -> Iterator[Finding]:
    """Traces reset, step, and an episode of two steps under JAX's checker."""
    action = spaces.zeros(env.action_space())
    state, _ = jax.eval_shape(lambda: strongly_typed(env.reset(key, params)))

    def episode(key: jax.Array, action: jax.Array, params: PyTree) -> Any:
        key_reset, key_first, key_second = jax.random.split(key, 3)
        state, timestep = strongly_typed(env.reset(key_reset, params))
        for key_step in (key_first, key_second):
            following, timestep = env.step(key_step, state, action, params)
            state = with_types_of(following, state)
        return state, timestep

    functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "env.reset uses a key twice": (env.reset, (key, params)),
        "env.step uses a key twice": (env.step, (key, state, action, params)),
        "a key kept in the state is used again in the next step": (episode, (key, action, params)),
    }
    for what, (function, arguments) in functions.items():
        try:
            with jax.debug_key_reuse(True):
                jax.make_jaxpr(lambda *given, function=function: function(*given))(*arguments)
        except jax.errors.KeyReuseError:
            yield Finding("key-reuse", f"{what}: split it, use each part once, and keep an unused one.")
            return
