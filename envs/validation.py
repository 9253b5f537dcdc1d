"""Whether a raw environment keeps its protocol: shapes, dtypes and structures, by tracing one reset and one step.

Nothing is compiled or run. Training calls it on every environment before anything else, so that a mistake in one's own
is answered with a sentence that names it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed
from rollax.errors import InputError


class ProtocolError(InputError):
    """An environment that breaks its protocol; `name` is that of the finding of `envs.check`."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


def validate(env: Environment, field: str = "env") -> None:
    """Checks one raw environment.

    Args:
        env: The environment, without batch dimensions.
        field: What errors call it.

    Raises:
        InputError: `reset`, `step` or a space raises, they do not return `(state, TimeStep)`, or shapes, dtypes or
            structures differ between the observation space, `reset` and `step`.
    """
    observation_space = call(f"{field}.observation_space", env.observation_space)
    action_space = call(f"{field}.action_space", env.action_space)
    spaces.leaves(observation_space)
    if not isinstance(action_space, spaces.Space):
        raise ProtocolError(
            "protocol",
            f"{field}.action_space is a {type(action_space).__name__}: use envs.Discrete, MultiDiscrete or Box.",
        )
    params = call(f"{field}.default_params", lambda: strongly_typed(env.default_params))
    key, action = jax.random.key(0), spaces.zeros(action_space)
    started = call(f"{field}.reset", lambda: jax.eval_shape(env.reset, key, params))
    state, first = _checked_pair(started, observation_space, f"{field}.reset")
    strong = jax.eval_shape(strongly_typed, state)
    stepped = call(f"{field}.step", lambda: jax.eval_shape(env.step, key, strong, action, params))
    next_state, following = _checked_pair(stepped, observation_space, f"{field}.step")
    _compare("state", next_state, state, f"{field}.step returns a state", "reset's", dtypes=False)
    _compare("protocol", following.action_mask, first.action_mask, f"{field}.step returns an action mask", "reset's")


def call(what: str, function: Callable[[], Any], name: str = "raises") -> Any:
    """Returns what `function` returns.

    Args:
        what: What the sentence calls it.
        function: Something of the environment's.
        name: The finding that it is if it raises.

    Raises:
        InputError: It raises; the sentence says what and where.
    """
    try:
        return function()
    except InputError:
        raise
    except jax.errors.UnexpectedTracerError as error:
        raise ProtocolError(
            "python-state",
            f"{what} reads a value that an earlier trace has left on an object or in a global "
            f"({type(error).__name__}): keep what one call hands to the next in the state.",
        ) from error
    except Exception as error:
        raise ProtocolError(name, f"{what} raises {describe(error)}.") from error


def describe(error: BaseException) -> str:
    """Returns one clause on an exception: its type, its first line, and where in the user's code it was raised."""
    ours = ("/rollax/", "/jax/", "/envs/validation.py", "<frozen")
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not any(o in frame.filename for o in ours)
    ]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {text}{place}"


def _checked_pair(returned: Any, observation_space: PyTree, name: str) -> tuple[PyTree, TimeStep]:
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], TimeStep)):
        kind = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise ProtocolError(
            "protocol", f"{name} returns {kind}: return (state, envs.timestep(observation, reward, ...))."
        )
    state, timestep = returned
    wanted = jax.eval_shape(lambda: spaces.zeros(observation_space))
    _compare("observation", timestep.observation, wanted, f"{name} returns an observation", "the observation space's")
    for part in ("reward", "terminated", "truncated"):
        shape = jnp.shape(getattr(timestep, part))
        if shape != ():
            raise ProtocolError(
                "reward" if part == "reward" else "flags",
                f"{name} returns a {part} of shape {shape}: return one number.",
            )
    return state, timestep


def _compare(name: str, given: PyTree, wanted: PyTree, what: str, whose: str, dtypes: bool = True) -> None:
    trees: list[Any] = [jax.tree.structure(given), jax.tree.structure(wanted)]  # PyTreeDef has no type for ==
    if trees[0] != trees[1]:
        raise ProtocolError(name, f"{what} of structure {trees[0]}, and {whose} is {trees[1]}: make them the same.")

    def compare(path: Any, one: Any, other: Any) -> None:
        if one.shape != other.shape or (dtypes and one.dtype != other.dtype):
            place = jax.tree_util.keystr(path) and f" at {jax.tree_util.keystr(path)}"
            raise ProtocolError(
                name,
                f"{what} of {one.dtype}{list(one.shape)}{place}, and {whose} is {other.dtype}{list(other.shape)}: "
                "make them the same.",
            )

    jax.tree_util.tree_map_with_path(compare, given, wanted)
