"""What a run calls beside its own work: metrics and evaluations of one's own, and a rule to stop by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from rollax.envs.base import PyTree
from rollax.errors import InputError
from rollax.experiments import statistics

HOOK_STREAM = 0x686F6F6B
"""Folded into a seed's key for hooks, which never advance the training's own key."""


@dataclasses.dataclass(frozen=True)
class Point:
    """What a hook is shown: a run at one of its evaluations."""

    env_steps: int  # environment steps of each seed so far
    agent: PyTree  # the agents' states, leaves [S, ...]; gone after the call, as training goes on in place of them
    keys: jax.Array  # key [S], for an evaluation of one's own; others at each point, the same in a resumed run
    rows: list[dict[str, Any]]  # this evaluation, one row for each seed, as in evaluations.csv
    history: list[dict[str, Any]]  # all evaluations so far, this one last

    @property
    def iqm(self) -> float:
        """The interquartile mean over seeds of their mean greedy returns."""
        return float(statistics.iqm([row["return_mean"] for row in self.rows]))


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Functions that `run` and `resume` call at each evaluation. The devices wait for them before the next chunk.

    Attributes:
        on_evaluation: Returns columns for the rows of this evaluation in evaluations.csv, and in the other logs: by
            name a number, or one for each seed `[S]`; the same names each time. None adds nothing.
        stop: Returns whether the run ends here, as if its budget were spent: with all files, and `stopped_early` in its
            summary. It sees the columns of `on_evaluation`.
    """

    on_evaluation: Callable[[Point], Mapping[str, ArrayLike] | None] | None = None
    stop: Callable[[Point], bool] | None = None

    def __post_init__(self) -> None:
        for name in ("on_evaluation", "stop"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise InputError(f"Hooks.{name} = {hook!r} cannot be called: give a function of a Point.")

    def call(self, point: Point) -> bool:
        """Adds the columns to the rows of a point, and returns whether the run ends there.

        Raises:
            InputError: The columns are no mapping, others than at the evaluation before, there already, or not a number
                for each seed; or `stop` returns no truth value.
        """
        columns = self.on_evaluation(point) if self.on_evaluation is not None else None
        columns = {} if columns is None else columns
        if not isinstance(columns, Mapping):
            raise InputError(f"on_evaluation returns {columns!r}, no mapping of names to numbers: return one, or None.")
        for name, values in columns.items():
            _add_column(point.rows, name, values)
        before, now = point.history[0].keys(), point.rows[0].keys()
        if len(point.history) > len(point.rows) and before != now:
            raise InputError(
                f"on_evaluation adds {sorted(before ^ now)} at some evaluations and not at others: return the same "
                "names each time, with NaN where there is no number."
            )
        if self.stop is None:
            return False
        stops = self.stop(point)
        if np.ndim(stops) or np.asarray(stops).dtype != np.bool_:
            raise InputError(f"stop returns {stops!r}: return True to end the run, or False.")
        return bool(stops)


def hook_point(
    agent: PyTree, seed_keys: jax.Array, rows: list[dict[str, Any]], before: list[dict[str, Any]], chunk: int
) -> Point:
    """Returns what hooks are shown after a chunk.

    Args:
        agent: The agents' states, leaves `[S or more, ...]`.
        seed_keys: The keys that the seeds started from, key `[S or more]`.
        rows: The rows of the evaluation, one for each of S seeds.
        before: The rows of the evaluations before it.
        chunk: The number of the chunk.
    """
    seeds = len(rows)
    keys = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, HOOK_STREAM), chunk))(seed_keys[:seeds])
    agent = jax.tree.map(lambda leaf: leaf[:seeds], agent)
    return Point(rows[0]["env_steps"], agent, keys, rows, [*before, *rows])


def _add_column(rows: list[dict[str, Any]], name: str, values: ArrayLike) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise InputError(f"on_evaluation returns the column {name!r}: name it by a string of printable characters.")
    if name in rows[0]:
        raise InputError(f"on_evaluation returns {name!r}, a column that evaluations have already: name it otherwise.")
    try:
        numbers = np.broadcast_to(np.asarray(values, np.float64), (len(rows),))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"on_evaluation returns {name!r} with values that are no numbers of shape [{len(rows)}], one for each "
            f"seed ({error})."
        ) from error
    for row, number in zip(rows, numbers, strict=True):
        row[name] = float(number)
