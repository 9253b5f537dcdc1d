"""`check`: whether an environment is what JAX needs: pure, stable in its types, and true in what it says of itself.

`validate` looks at shapes alone and costs nothing; this traces an environment several times, compiles it and plays it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from rollax.envs import checker_play, checker_traces
from rollax.envs.base import strongly_typed
from rollax.envs.checker_findings import FINDINGS as FINDINGS
from rollax.envs.checker_findings import Finding as Finding
from rollax.envs.registry import make
from rollax.envs.validation import ProtocolError, describe, validate
from rollax.errors import InputError


def check(
    env: Any, *, steps: int = 512, eager_steps: int = 3, time_limit: int | None = None, seed: int = 0
) -> tuple[Finding, ...]:
    """Looks for what makes an environment wrong under JAX, or wrong about itself.

    Args:
        env: An environment without batch dimensions or automatic resets, its class or a function that returns one, of
            Rollax or of gymnax; or what `envs.make` knows by name.
        steps: Random environment steps that each of 8 lanes plays at least.
        eager_steps: Steps that are taken without jit as well, at least 1.
        time_limit: The number of environment steps after which an episode is cut off, where it is neither a field of
            the params nor an attribute of the environment with a usual name, such as `max_steps_in_episode`.
        seed: Chooses the random keys.

    Returns:
        The findings, at most one for each name of `FINDINGS`; empty if nothing was found. What cannot be played is not
        looked at further, so more may come once these are gone. An environment that raises is a finding, too.

    Raises:
        InputError: A name is unknown, or `steps`, `eager_steps` or `time_limit` is below 1.
    """
    for name, value in (("steps", steps), ("eager_steps", eager_steps), ("time_limit", time_limit)):
        if value is not None and value < 1:
            raise InputError(f"{name} = {value} must be at least 1.")
    if isinstance(env, str):
        env = make(env)
    found: dict[str, Finding] = {}
    try:
        for finding in _findings(env, steps, eager_steps, time_limit, jax.random.key(seed)):
            found.setdefault(finding.name, finding)
    except InputError as error:
        name = error.name if isinstance(error, ProtocolError) else "protocol"
        found.setdefault(name, Finding(name, str(error)))
    except Exception as error:  # whatever an environment does, its user gets a sentence
        found.setdefault("raises", Finding("raises", f"env raises {describe(error)}."))
    return tuple(found.values())


def _findings(env: Any, steps: int, eager_steps: int, time_limit: int | None, key: jax.Array) -> Iterator[Finding]:
    env = make(env)
    validate(env)
    params = strongly_typed(env.default_params)
    key_traces, key_play = jax.random.split(key)
    traced = list(checker_traces.look(env, params, key_traces))
    yield from traced
    # Each program would be another one then, and differences between them would say no more than that.
    if all(finding.name != "python-state" for finding in traced):
        yield from checker_play.look(env, params, key_play, steps, eager_steps, time_limit)
