"""A run that can be looked into: nothing is compiled, shapes are printed, and the first NaN says where it arose."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from rollax.errors import InputError
from rollax.experiments.sharding import take_seeds
from rollax.experiments.trainer import Trainer, TrainState


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises where the first NaN arises in it, once it is run without jit."""

    @functools.wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        with jax.debug_nans(True):
            return function(*args, **kwargs)

    return watching


def checked(trainer: Trainer) -> Trainer:
    """Returns a trainer whose agent and environment raise at their first NaN, once they are run without jit.

    The loop around them is not watched: a metric of it is NaN where there is nothing to report.
    """

    class WatchedEnv:
        """The trainer's environments, watched."""

        reset, step = staticmethod(watched(trainer.env.reset)), staticmethod(watched(trainer.env.step))

        def __getattr__(self, name: str) -> Any:
            return getattr(trainer.env, name)

    agent = dataclasses.replace(
        trainer.agent,
        act_with=watched(trainer.agent.act_with),
        observe=watched(trainer.agent.observe),
        update=watched(trainer.agent.update),
    )
    env: Any = WatchedEnv()
    return dataclasses.replace(trainer, agent=agent, env=env)


def of_one_seed(function: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Returns a function of trees with a seed axis of length 1 that runs `function` on that seed without jit.

    Args:
        function: A function of one seed.
        in_axes: The seed axis of each argument, 0 or None, or a prefix tree of them.
        out_axes: The same of the result.

    Raises:
        InputError: When called: a NaN arose; it says where.
    """

    def call(*arguments: Any) -> Any:
        single = [take_seeds(argument, axes, 0) for argument, axes in zip(arguments, in_axes, strict=True)]
        with jax.disable_jit(), _located():
            return take_seeds(function(*single), out_axes, None)

    return call


def print_shapes(state: TrainState) -> None:
    """Prints path, dtype and shape of every leaf of a state of one seed to standard error."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        print(f"{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}", file=sys.stderr)


@contextlib.contextmanager
def _located() -> Iterator[None]:
    """Names the line outside of JAX and its relatives that a NaN came from."""
    try:
        yield
    except FloatingPointError as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            frame
            for frame in frames
            if {"site-packages", "rollax"} & {*Path(frame.filename).parts} != {"site-packages"}
        ]
        own = own or frames
        raise InputError(
            f"a number became NaN at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}: {own[-1].line}"
        ) from error
