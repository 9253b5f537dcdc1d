"""The part of the environment checker that compiles and plays: random episodes, and single steps taken again."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.envs import spaces
from rollax.envs.base import Environment, PyTree, TimeStep, select, strongly_typed, with_types_of
from rollax.envs.checker_findings import Finding, difference, plain
from rollax.envs.validation import call
from rollax.envs.wrappers import Wrapper

LIMIT_FIELDS = ("max_steps_in_episode", "max_episode_steps", "max_steps", "max_timesteps", "time_limit")

_LANES, _LENGTH = 8, 64  # environments that play side by side, and steps of one compiled scan
_COMPARED = 16  # steps that are compared with and without vmap
_LONGEST = 10_000  # steps that are played at most to reach a time limit
_LIMITS = (3, 6)  # time limits tried: no task ends by its own rules after every number of steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Row:
    """One step and one reset of a lane; in a block of them all leaves have leading axes `[_LANES, _LENGTH]`."""

    key_step: jax.Array  # key []
    key_reset: jax.Array  # key []
    state: PyTree  # before the step
    action: jax.Array  # [*action_shape]
    next_state: PyTree
    timestep: TimeStep
    fresh_state: PyTree  # of a reset with `key_reset`
    fresh: TimeStep


class _Outcome(NamedTuple):
    state: PyTree
    timestep: TimeStep


def look(
    env: Environment, params: PyTree, key: jax.Array, steps: int, eager_steps: int, time_limit: int | None
) -> Iterator[Finding]:
    """Plays an environment; the arguments are those of `check`.

    Raises:
        InputError: The environment raises, or cannot be vmapped.
    """
    key_single, key_play = jax.random.split(key)
    single = _Single(env, params)
    impurities = list(single.impurities(key_single))
    yield from impurities
    field, limit = _declared_limit(env, params, time_limit)
    if field is None and limit is not None:
        steps = max(steps, min(limit + 1, _LONGEST))
    play = _Play(env, single)
    play.start(key_play, params)
    blocks = []
    for index in range(-(-steps // _LENGTH)):
        rows = play.block()
        blocks.append(_ends(rows))
        yield from _numbers(rows, env.observation_space(), index * _LENGTH)
        restarts = list(_auto_resets(single, rows))
        yield from restarts or _final_observations(rows)
        if index == 0:
            yield from _same_resets(rows)
            if not impurities:
                yield from single.differences(rows, eager_steps)
    played = _Ends(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))
    if field is not None:
        yield from _time_limits(f"params.{field}", _play_with_limits(play, key_play, params, field))
    elif limit is not None:
        yield from _time_limits(f"their time limit of {limit} steps", [(limit, played)])


# Single steps.


class _Single:
    """Reset and step of one environment, compiled."""

    def __init__(self, env: Environment, params: PyTree) -> None:
        self._env, self._params = env, params
        self._reset = jax.jit(lambda key, params: _Outcome(*strongly_typed(env.reset(key, params))))
        self._step = jax.jit(lambda *given: _Outcome(*_step(env, *given)))
        self._action_space = env.action_space()

    def reset(self, key: jax.Array, params: PyTree | None = None) -> _Outcome:
        given = self._params if params is None else params
        return call("env.reset", lambda: jax.block_until_ready(self._reset(key, given)))

    def step(self, key: jax.Array, state: PyTree, action: jax.Array) -> _Outcome:
        return call("env.step", lambda: jax.block_until_ready(self._step(key, state, action, self._params)))

    def impurities(self, key: jax.Array) -> Iterator[Finding]:
        """Runs the same programs twice on the same inputs."""
        key_reset, key_action, key_step = jax.random.split(key, 3)
        state = self.reset(key_reset).state
        action = self._action_space.sample(key_action)
        functions: dict[str, Callable[[], _Outcome]] = {
            "env.reset": lambda: self.reset(key_reset),
            "env.step": lambda: self.step(key_step, state, action),
        }
        for what, function in functions.items():
            if change := difference(function(), function(), tolerance=0.0):
                yield Finding(
                    "impure",
                    f"{what} gives other results for the same inputs ({change}): a callback has a state of its "
                    "own; compute from the arguments alone.",
                )

    def differences(self, rows: _Row, eager_steps: int) -> Iterator[Finding]:
        """Takes steps of a block again, alone and without jit."""
        ended = np.flatnonzero(np.asarray(rows.timestep.ended))[:1]
        spread = np.linspace(0, _LANES * _LENGTH - 1, _COMPARED).astype(int)
        for count, flat in enumerate(dict.fromkeys([*ended, *spread])):
            row = _at(rows, *divmod(int(flat), _LENGTH))
            stepped, step_arguments = _Outcome(row.next_state, row.timestep), (row.key_step, row.state, row.action)
            cases: tuple[tuple[str, _Outcome, Callable[..., _Outcome], Callable[..., Any], tuple[Any, ...]], ...] = (
                ("env.step", stepped, self.step, self._env.step, step_arguments),
                ("env.reset", _Outcome(row.fresh_state, row.fresh), self.reset, self._env.reset, (row.key_reset,)),
            )
            for what, mapped, compiled, function, arguments in cases:
                alone = compiled(*arguments)
                if change := difference(mapped, alone):
                    yield Finding(
                        "vmap",
                        f"{what} gives other results under vmap ({change}): no reduction, shape or callback may "
                        "depend on how many environments run side by side.",
                    )
                if count < eager_steps:
                    without_jit = functools.partial(function, *arguments, self._params)
                    if change := difference(alone, _Outcome(*call(f"{what} without jit", without_jit))):
                        yield Finding(
                            "jit",
                            f"{what} gives other results with jit and without ({change}): no branch may depend on "
                            "whether a value is traced, or on anything but the arguments.",
                        )


def _step(
    env: Environment, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree
) -> tuple[PyTree, TimeStep]:
    next_state, timestep = env.step(key, state, action, params)
    return with_types_of(next_state, state), strongly_typed(timestep)


# Random play.


class _Play:
    """Random actions in `_LANES` environments side by side, in blocks of `_LENGTH` steps."""

    def __init__(self, env: Environment, single: _Single) -> None:
        self._single = single
        self._block = jax.jit(jax.vmap(lambda *given: _block(env, *given), in_axes=(0, 0, None)))

    def start(self, key: jax.Array, params: PyTree) -> None:
        """Starts episodes with these params; nothing is compiled again."""
        self._params = params
        self._key, *keys = jax.random.split(key, 1 + _LANES)
        self._carry = jax.tree.map(lambda *lanes: jnp.stack(lanes), *(self._single.reset(key, params) for key in keys))

    def block(self) -> _Row:
        """Plays on and returns what was played, leaves `[_LANES, _LENGTH, ...]`."""
        self._key, *keys = jax.random.split(self._key, 1 + _LANES)
        self._carry, rows = call(
            "env under vmap",
            lambda: jax.block_until_ready(self._block(jnp.stack(keys), self._carry, self._params)),
            "vmap",
        )
        return rows


def _block(env: Environment, key: jax.Array, carry: _Outcome, params: PyTree) -> tuple[_Outcome, _Row]:
    space = env.action_space()

    def step(carry: _Outcome, key: jax.Array) -> tuple[_Outcome, _Row]:
        state, before = carry
        key_action, key_step, key_reset = jax.random.split(key, 3)
        action = space.sample(key_action)
        if before.action_mask is not None and isinstance(space, spaces.Discrete):
            action = jax.random.categorical(key_action, jnp.where(before.action_mask, 0.0, -jnp.inf)).astype(
                space.dtype
            )
        next_state, timestep = _step(env, key_step, state, action, params)
        timestep = with_types_of(timestep, before)
        fresh_state, fresh = strongly_typed(env.reset(key_reset, params))
        row = _Row(key_step, key_reset, state, action, next_state, timestep, fresh_state, fresh)
        first_state = with_types_of(Wrapper(env).carry_over(next_state, fresh_state), fresh_state)
        return select(timestep.ended, _Outcome(first_state, fresh), _Outcome(next_state, timestep)), row

    return jax.lax.scan(step, carry, jax.random.split(key, _LENGTH))


def _numbers(rows: _Row, space: PyTree, steps: int) -> Iterator[Finding]:
    """Looks at rewards and observations of a block that began after so many `steps`."""
    for what, timestep in (("env.step", rows.timestep), ("env.reset", rows.fresh)):
        yield from _unfit(f"{what} returns a reward", timestep.reward, None, steps)
        observations = jax.tree_util.tree_leaves_with_path(timestep.observation)
        for (path, leaf), leaf_space in zip(observations, spaces.leaves(space), strict=True):
            yield from _unfit(f"{what} returns an observation{jax.tree_util.keystr(path)}", leaf, leaf_space, steps)


def _unfit(what: str, leaf: jax.Array, space: spaces.Space | None, steps: int) -> Iterator[Finding]:
    """Looks for numbers that are not finite or outside their space, in a leaf `[_LANES, _LENGTH, ...]`."""
    values = np.asarray(leaf, np.float32).reshape(_LANES, _LENGTH, -1)
    finite = np.isfinite(values)
    if not finite.all():
        _, step, _ = np.argwhere(~finite)[0]
        yield Finding(
            "nan",
            f"{what} of {values[~finite][0]} at random step {steps + step + 1}: keep divisors from zero, and "
            "arguments of logarithms and roots positive.",
        )
    if space is None:
        return
    inside = np.asarray(jax.vmap(jax.vmap(space.contains))(leaf))
    outside = np.argwhere(~inside & finite.all(-1))
    if len(outside):
        lane, step = outside[0]
        yield Finding(
            "observation",
            f"{what} with {_misfit(values[lane, step], space)} at random step {steps + step + 1}: clip it, or "
            "declare the bounds that hold.",
        )


def _misfit(values: np.ndarray, space: spaces.Space) -> str:
    """Returns what is outside its space in the numbers of one element, and which bounds it has there."""
    if not isinstance(space, spaces.Box):
        return f"{values.tolist()}, which {space} does not hold,"
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (space.low, space.high))
    entry = int(np.argmax((values < low) | (values > high)))
    place = [int(index) for index in np.unravel_index(entry, space.shape)]
    return f"{values[entry]:g} at {place}, which its Box bounds by {low[entry]:g} and {high[entry]:g},"


def _same_resets(rows: _Row) -> Iterator[Finding]:
    if len(set(_bytes((rows.fresh_state, rows.fresh.observation)))) == 1:
        yield Finding(
            "same-reset",
            f"env.reset gives the same state for {_LANES * _LENGTH} keys: draw the start from its key, or allow this "
            "finding if the task always starts alike.",
        )


def _final_observations(rows: _Row) -> Iterator[Finding]:
    for what, timestep in (("env.step", rows.timestep), ("env.reset", rows.fresh)):
        final = (timestep.final_observation, timestep.final_action_mask)
        if change := difference(final, (timestep.observation, timestep.action_mask), tolerance=0.0):
            yield Finding(
                "final-observation",
                f"{what} returns a final_observation that is not the observation ({change}): a raw environment "
                "never resets itself, so both are what the step led to; let envs.timestep fill it.",
            )


def _auto_resets(single: _Single, rows: _Row) -> Iterator[Finding]:
    """Compares the states after ends of episodes with those of resets, by the key of the step and by others."""
    sentence = (
        "env.step returns {} where an episode ended: leave resets to envs.AutoReset, and return the state and the "
        "observation that the step led to."
    )
    if np.asarray(rows.timestep.is_first).any():
        yield Finding("auto-reset", sentence.format("is_first"))
        return
    before, after = _bytes(rows.state), _bytes(rows.next_state)
    ends = np.flatnonzero(np.asarray(rows.timestep.ended))[:_LANES]
    # A state that no step changes tells nothing.
    if not len(ends) or any(before[end] == after[end] for end in ends):
        return
    resets, others = set(_bytes(rows.fresh_state)), np.flatnonzero(~np.asarray(rows.timestep.ended))
    if any(after[other] in resets for other in others):  # episodes pass through states that others begin in
        resets = set()

    def restarted(end: int) -> bool:
        key = rows.key_step.ravel()[end]
        keys = jnp.stack([key, *jax.random.split(key), *jax.random.split(key, 3)])
        return after[end] in resets or any(after[end] in _bytes(single.reset(key).state, ()) for key in keys)

    if all(restarted(end) for end in ends):
        yield Finding("auto-reset", sentence.format("the state of a new episode"))


class _Ends(NamedTuple):
    terminated: np.ndarray  # bool [N, T]
    truncated: np.ndarray  # bool [N, T]


def _ends(rows: _Row) -> _Ends:
    return _Ends(np.asarray(rows.timestep.terminated), np.asarray(rows.timestep.truncated))


def _declared_limit(env: Environment, params: PyTree, time_limit: int | None) -> tuple[str | None, int | None]:
    """Returns the name of the param that is the time limit, or else the limit as it is given or an attribute tells."""
    if time_limit is not None:
        return None, time_limit
    fields = {_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    attributes = [getattr(holder, name, None) for holder in (env, params) for name in LIMIT_FIELDS]
    return (
        next((name for name in LIMIT_FIELDS if name in fields), None),
        next((value for value in attributes if isinstance(value, int)), None),
    )


def _play_with_limits(play: _Play, key: jax.Array, params: PyTree, field: str) -> list[tuple[int, _Ends]]:
    """Plays a block with each of some short limits, so that random play reaches them."""
    cases = []
    for limit in _LIMITS:
        play.start(key, _with_leaf(params, field, limit))
        cases.append((limit, _ends(play.block())))
    return cases


def _time_limits(declared: str, cases: list[tuple[int, _Ends]]) -> Iterator[Finding]:
    if all(_only_terminates(*case) for case in cases):
        yield Finding(
            "time-limit",
            f"episodes that reach {declared} end terminated and never truncated, so nothing is bootstrapped there: set "
            "truncated at the limit, and terminated only where the rules of the task end the episode.",
        )


def _name(path: Any) -> str:
    return str(getattr(path[-1], "name", getattr(path[-1], "key", ""))) if path else ""


def _with_leaf(tree: PyTree, name: str, value: int) -> PyTree:
    """Returns `tree` with `value` in its leaves of that name, in their types."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full_like(leaf, value) if _name(path) == name else leaf, tree
    )


def _only_terminates(limit: int, ends: _Ends) -> bool:
    """Returns whether all episodes that reach `limit` steps end there, or one later, by a termination alone."""
    reached = 0
    for lane in zip(*ends, strict=True):
        length = 0
        for end, cut in zip(*lane, strict=True):
            length += 1
            if length >= limit:
                if cut or (length > limit and not end):
                    return False
                reached += bool(end)
            length = 0 if end or cut else length
    return reached > 0


# Trees.


def _at(tree: PyTree, lane: int, step: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[lane, step], tree)


def _bytes(tree: PyTree, axes: tuple[int, ...] = (_LANES, _LENGTH)) -> list[bytes]:
    """Returns the bytes of each of the elements, one after another, of a tree with these leading axes."""
    count = math.prod(axes)
    leaves = [np.ascontiguousarray(plain(leaf)).reshape(count, -1).view(np.uint8) for leaf in jax.tree.leaves(tree)]
    return [row.tobytes() for row in np.concatenate([np.zeros((count, 0), np.uint8), *leaves], axis=1)]
