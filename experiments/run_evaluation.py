"""The agents that a finished run left, evaluated anew: the final ones, or the best of each seed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from rollax.errors import InputError
from rollax.experiments import checkpoint, reporting, run_folder
from rollax.experiments import config as configs
from rollax.experiments.evaluation import make_evaluate
from rollax.experiments.saving import agents_like
from rollax.experiments.trainer import make_trainer

ABSOLUTE_EPISODES = 10
"""How many times the episodes of an evaluation the absolute metric takes."""


def evaluate_run(
    folder: str | Path, episodes: int | None = None, seed: int = 0, *, best: bool = False
) -> dict[str, Any]:
    """Evaluates the agents of a run, greedily: those at the end, or the best of each seed.

    The best are those of the highest mean return during training, which luck has a part in; evaluated anew, in ten
    times the episodes, they give the absolute metric (Gorsane et al. 2022, https://arxiv.org/abs/2209.10485). It is
    written into `summary.json`, as `absolute`.

    Args:
        folder: The folder of a finished run.
        episodes: Episodes per seed; None takes the config's, and ten times as many for the best agents.
        seed: Chooses the episodes.
        best: Whether to evaluate the best agents.

    Returns:
        `iqm` and `interval` over seeds, `unfinished` episodes, `episodes` per seed, and `seeds`: a list of rows, one
        for each seed.

    Raises:
        InputError: The folder holds no finished run, or its checkpoint does not fit its config.
        OSError: The summary cannot be written.
    """
    opened = run_folder.open(folder)
    opened.require_seeds()
    config = configs.load(opened.config_path)
    if episodes is None:
        episodes = config.evaluation.episodes * (ABSOLUTE_EPISODES if best else 1)
    if episodes < 1:
        raise InputError(f"episodes = {episodes} must be at least 1.")
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, episodes=episodes))
    seeds = opened.finished_seeds()
    path = opened.checkpoints_path / ("best" if best else "final")
    agent_state = checkpoint.restore(path, agents_like(make_trainer(config), seeds))
    keys = jax.random.split(jax.random.key(seed), seeds)
    evaluation = jax.jit(jax.vmap(make_evaluate(config)))(agent_state, keys)
    rows = reporting.evaluation_rows(evaluation, 0, seeds)
    result = {**reporting.scores(rows), "episodes": episodes, "seeds": rows}
    if best:
        opened.write_summary({**opened.read_summary(), "absolute": result})
    return result
