"""The programs of a job: what its lanes run on the devices, each compiled once."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rollax.experiments import compiler, debugging, memory, saving
from rollax.experiments.evaluation import Evaluation
from rollax.experiments.lanes import Lanes
from rollax.experiments.sharding import job_mesh, over_seeds, padded, placed, take_seeds
from rollax.experiments.trainer import Trainer, TrainState, axes

EVALUATION_STREAM = 0x6576616C
"""Folded into a seed's key for its evaluations, which never advance the training's own key."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled programs of jobs with equally many lanes and one structure; each maps over the lanes."""

    init: Any
    chunk: Any
    greedy: Any
    sampled: Any
    no_best: Any
    keep_best: Any


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A job that is ready: its programs, and what they start from."""

    programs: Programs
    start: saving.Saved
    keys: jax.Array  # key [L padded]
    compile_seconds: float


def prepare(
    trainer: Trainer,
    lanes: Lanes,
    evaluate: Any,
    debug: bool = False,
    compiled: dict[int, Programs] | None = None,
) -> Prepared:
    """Compiles the programs of a job, and initialises its lanes.

    Args:
        trainer: What each lane trains.
        lanes: The lanes; they are spread over the devices, or their environments are, as `train.spread` says.
        evaluate: From `make_evaluate`.
        debug: Whether nothing is compiled, but one lane watched for the first NaN.
        compiled: Programs of this structure by their number of lanes, to take them from and to put them into.

    Raises:
        InputError: XLA has no such options, or there is no room for the lanes.
    """
    started = time.perf_counter()
    compiler.check(trainer.config.compiler)
    mesh = job_mesh(trainer.config.train, lanes.count)
    total = padded(lanes.count, mesh)
    keys, numbers = placed(lambda: (lanes.keys(trainer.config.train.seed, total), lanes.numbers(total)), mesh)
    compiled = {} if compiled is None else compiled
    if total in compiled:
        state = compiled[total].init(keys, numbers)
        best = compiled[total].no_best(state.agent)
    else:
        trainer = debugging.checked(trainer) if debug else trainer
        compiled[total], state, best = _compile(trainer, mesh, evaluate, debug, keys, numbers)
    jax.block_until_ready(state)
    if debug:
        debugging.print_shapes(take_seeds(state, axes(), 0))
    return Prepared(compiled[total], saving.Saved(state, best), keys, time.perf_counter() - started)


def _compile(
    trainer: Trainer, mesh: Mesh, evaluate: Any, debug: bool, keys: jax.Array, numbers: dict[str, jax.Array]
) -> tuple[Programs, TrainState, saving.Best]:
    if debug:
        evaluate = debugging.watched(evaluate)
        init = debugging.of_one_seed(debugging.watched(trainer.init), (0, 0), axes())
    else:
        init = over_seeds(trainer.init, mesh, (0, 0), axes())
        memory.require_room(trainer.config, jax.eval_shape(init, keys, numbers))
    state = init(keys, numbers)

    def compiled(
        function: Any, in_axes: Any, out_axes: Any, *arguments: Any, donate: tuple[int, ...] = (), at_once: int = 0
    ) -> Any:
        if debug:
            return debugging.of_one_seed(function, in_axes, out_axes)
        mapped = over_seeds(function, mesh, in_axes, out_axes, donate, at_once)
        return compiler.compiled(trainer.config.compiler, mapped, *arguments)

    def evaluate_seed(agent_state: Any, seed_key: jax.Array, index: jax.Array, explore: bool) -> Evaluation:
        key = jax.random.fold_in(jax.random.fold_in(seed_key, EVALUATION_STREAM), index)
        return evaluate(agent_state, key, explore=explore)

    at_once = trainer.config.train.seeds_at_once
    chunk = compiled(trainer.chunk, (axes(),), (axes(), 0), state, donate=(0,), at_once=at_once)
    index = np.int32(0)
    greedy, sampled = (
        compiled(functools.partial(evaluate_seed, explore=explore), (0, 0, None), 0, state.agent, keys, index)
        for explore in (False, True)
    )
    no_best = over_seeds(saving.no_best, mesh, (0,), 0)
    best = no_best(state.agent)
    evaluation = jax.eval_shape(greedy, state.agent, keys, index) if debug else greedy.out_info
    keep_best = compiled(saving.keep_best, (0, 0, 0, None), 0, best, state.agent, evaluation, index, donate=(0,))
    return Programs(init, chunk, greedy, sampled, no_best, keep_best), state, best
