"""`run`: a whole job from a config, host side. Chunks, progress, logs, evaluation, final parameters, plot."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import rollax
from rollax.errors import InputError
from rollax.experiments import checkpoint, run_folder, statistics
from rollax.experiments import config as configs
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.evaluation import Evaluation, make_evaluate
from rollax.experiments.sharding import over_seeds, padded, seed_mesh, take_seeds
from rollax.experiments.trainer import Trainer, TrainState, axes, make_trainer

MAX_SEEDS = 1_000_000
EVALUATION_STREAM = 0x6576616C
"""Folded into a seed's key for its evaluations, which never advance the training's own key."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gives back."""

    state: TrainState  # leaves [S, ...] but for the clock
    summary: dict[str, Any]  # as in summary.json
    evaluations: list[dict[str, Any]]  # as in evaluations.csv
    folder: Path | None  # where the files are; None if none were asked for


@dataclasses.dataclass(frozen=True)
class _Programs:
    """The compiled programs of one run, each compiled once."""

    chunk: Any
    greedy: Any
    sampled: Any
    state: TrainState  # before the first chunk
    seed_keys: jax.Array  # key [S padded]
    compile_seconds: float


def run(
    config: ExperimentConfig | str | Path,
    seeds: int = 1,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Result:
    """Trains `seeds` seeds in one job on all devices of this process.

    Seed i starts from `fold_in(key(train.seed), i)`, whatever the number of seeds. After each chunk the metrics are
    logged; at every evaluation point and at the end each seed plays `evaluation.episodes` greedy episodes.

    Args:
        config: A config, the name of a shipped one, or the path of a TOML file.
        seeds: S.
        out: The folder to write; None writes nothing.
        overwrite: Whether a run that is already in `out` may be replaced.
        progress: Whether to show a progress bar on standard error.

    Raises:
        InputError: The config cannot work or the folder cannot be written; nothing has been compiled yet.
    """
    if isinstance(config, str | Path):
        config = configs.load(config)
    if not 1 <= seeds <= MAX_SEEDS:
        raise InputError(f"seeds = {seeds} must be between 1 and {MAX_SEEDS}.")
    trainer = make_trainer(config)
    evaluate = make_evaluate(config)
    folder = None if out is None else run_folder.create(out, overwrite)
    if folder is not None:
        folder.write_config(configs.to_toml(config))
    try:
        programs = _compile(trainer, evaluate, seeds)
    except BaseException:
        if folder is not None:
            folder.abandon()  # so that the corrected command may use it
        raise
    state, evaluations, run_seconds = _train(trainer, programs, seeds, folder, progress)
    sampled = _evaluate(programs.sampled, state, programs.seed_keys, trainer.num_chunks, seeds)
    summary = _summary(trainer, seeds, evaluations, sampled, state, programs.compile_seconds, run_seconds)
    state = jax.device_put(take_seeds(state, axes(), slice(seeds)), jax.local_devices()[0])
    if folder is not None:
        checkpoint.save(folder.checkpoints_path / "final", state.agent)
        folder.write_summary(summary)
        from rollax.experiments import plots  # matplotlib takes a second to import

        plots.plot_run(folder.path)
    return Result(state, summary, evaluations, None if folder is None else folder.path)


def evaluate_run(folder: str | Path, episodes: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Evaluates the final parameters of a run, greedily.

    Args:
        folder: The folder of a finished run.
        episodes: Episodes per seed; None takes the config's.
        seed: Chooses the episodes.

    Returns:
        `iqm` and `interval` over seeds, `unfinished` episodes, and `seeds`: a list of rows, one for each seed.

    Raises:
        InputError: The folder holds no finished run, or its checkpoint does not fit its config.
    """
    opened = run_folder.open(folder)
    config = configs.load(opened.config_path)
    if episodes is not None:
        if episodes < 1:
            raise InputError(f"episodes = {episodes} must be at least 1.")
        config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, episodes=episodes))
    seeds = int(opened.read_summary()["seeds"])
    trainer = make_trainer(config)
    keys = jax.random.split(jax.random.key(seed), seeds)
    like = jax.eval_shape(jax.vmap(trainer.init, out_axes=axes()), keys).agent
    agent_state = checkpoint.load(opened.checkpoints_path / "final", like)
    evaluation = jax.jit(jax.vmap(make_evaluate(config)))(agent_state, keys)
    rows = _rows(evaluation, 0, seeds)
    return {**_scores(rows), "seeds": rows}


def _compile(trainer: Trainer, evaluate: Any, seeds: int) -> _Programs:
    started = time.perf_counter()
    mesh = seed_mesh(seeds)
    root = jax.random.key(trainer.config.train.seed)
    seed_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(padded(seeds, mesh)))
    init = over_seeds(trainer.init, mesh, (0,), axes())
    state = init(seed_keys)
    chunk = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), donate_argnums=(0,)).lower(state).compile()

    def evaluate_seed(agent_state: Any, seed_key: jax.Array, index: jax.Array, explore: bool) -> Evaluation:
        key = jax.random.fold_in(jax.random.fold_in(seed_key, EVALUATION_STREAM), index)
        return evaluate(agent_state, key, explore=explore)

    def compiled(explore: bool) -> Any:
        evaluate_all = over_seeds(functools.partial(evaluate_seed, explore=explore), mesh, (0, 0, None), 0)
        return evaluate_all.lower(state.agent, seed_keys, jnp.zeros((), jnp.int32)).compile()

    greedy, sampled = compiled(explore=False), compiled(explore=True)
    jax.block_until_ready(state)
    return _Programs(chunk, greedy, sampled, state, seed_keys, time.perf_counter() - started)


def _train(
    trainer: Trainer, programs: _Programs, seeds: int, folder: run_folder.RunFolder | None, progress: bool
) -> tuple[TrainState, list[dict[str, Any]], float]:
    """Runs every chunk; the host logs one chunk while the devices work on the next."""
    evaluation = trainer.config.evaluation
    every = evaluation.every or -(-trainer.config.train.total_env_steps // 20)
    chunks_per_evaluation = max(1, -(-every // trainer.env_steps_per_chunk))
    total = trainer.num_chunks * trainer.env_steps_per_chunk
    state, evaluations = programs.state, []
    started = time.perf_counter()
    pending: list[tuple[int, Any, Evaluation | None]] = []
    with tqdm(total=total * seeds, unit=" env steps", unit_scale=True, disable=not progress) as bar:

        def log() -> None:
            index, metrics, evaluated = pending.pop()
            env_steps = index * trainer.env_steps_per_chunk
            metrics_rows = _metrics_rows(metrics, env_steps, seeds)
            if folder is not None:
                folder.append_metrics(metrics_rows)
            if evaluated is not None:
                rows = _rows(evaluated, env_steps, seeds)
                evaluations.extend(rows)
                if folder is not None:
                    folder.append_evaluations(rows)
                bar.set_postfix_str(f"greedy return IQM {_scores(rows)['iqm']:.2f}", refresh=False)
            bar.update(trainer.env_steps_per_chunk * seeds)

        for index in range(1, trainer.num_chunks + 1):
            state, metrics = programs.chunk(state)
            evaluated = None
            if index % chunks_per_evaluation == 0 or index == trainer.num_chunks:
                evaluated = programs.greedy(state.agent, programs.seed_keys, jnp.asarray(index, jnp.int32))
            if pending:
                log()
            pending.append((index, metrics, evaluated))
        log()
        jax.block_until_ready(state)
    return state, evaluations, time.perf_counter() - started


def _evaluate(program: Any, state: TrainState, seed_keys: jax.Array, index: int, seeds: int) -> list[dict[str, Any]]:
    return _rows(program(state.agent, seed_keys, jnp.asarray(index, jnp.int32)), 0, seeds)


def _metrics_rows(metrics: dict[str, jax.Array], env_steps: int, seeds: int) -> list[dict[str, Any]]:
    """Returns one row for each seed: means over the chunk's iterations, of episodes weighted by how many ended."""
    columns = {name: np.asarray(value)[:seeds] for name, value in metrics.items()}
    episodes = columns["episodes"]
    means = {"episodes": np.sum(episodes, axis=1)}
    for name, value in columns.items():
        if name != "episodes":
            weights = (episodes if name.startswith("episode_") else np.ones_like(episodes)) * ~np.isnan(value)
            total = np.sum(weights, axis=1)
            mean = np.sum(np.where(weights > 0, value, 0.0) * weights, axis=1) / np.maximum(total, 1)
            means[name] = np.where(total > 0, mean, np.nan)
    return [
        {"seed": seed, "env_steps": env_steps, **{name: value[seed].item() for name, value in means.items()}}
        for seed in range(seeds)
    ]


def _rows(evaluation: Evaluation, env_steps: int, seeds: int) -> list[dict[str, Any]]:
    """Returns one row of evaluations.csv for each seed; an unfinished episode is counted and not averaged in."""
    returns, lengths, finished = (
        np.asarray(leaf)[:seeds] for leaf in (evaluation.episode_return, evaluation.episode_length, evaluation.finished)
    )
    rows = []
    for seed in range(seeds):
        kept = returns[seed][finished[seed]].astype(np.float64)
        any_finished = kept.size > 0
        rows.append(
            {
                "seed": seed,
                "env_steps": env_steps,
                "return_mean": float(np.mean(kept)) if any_finished else float("nan"),
                "return_std": float(np.std(kept)) if any_finished else float("nan"),
                "length_mean": float(np.mean(lengths[seed][finished[seed]])) if any_finished else float("nan"),
                "finished": int(np.sum(finished[seed])),
                "unfinished": int(np.sum(~finished[seed])),
            }
        )
    return rows


def _scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the inter-quartile mean over seeds of each seed's mean return, its 95 % interval, and what is missing."""
    means = np.array([row["return_mean"] for row in rows])
    return {
        "iqm": float(statistics.iqm(means)),
        "interval": [float(bound) for bound in statistics.bootstrap_interval(means)],
        "unfinished": sum(row["unfinished"] for row in rows),
    }


def _summary(
    trainer: Trainer,
    seeds: int,
    evaluations: list[dict[str, Any]],
    sampled: list[dict[str, Any]],
    state: TrainState,
    compile_seconds: float,
    run_seconds: float,
) -> dict[str, Any]:
    total = trainer.num_chunks * trainer.env_steps_per_chunk
    sampled_scores = _scores(sampled)
    failed = np.asarray(state.failed.flag)[:seeds]
    return {
        "config": trainer.config.name,
        "seeds": seeds,
        "env_steps": total,
        **_scores(evaluations[-seeds:]),
        "iqm_sampled": sampled_scores["iqm"],
        "interval_sampled": sampled_scores["interval"],
        "episodes": trainer.config.evaluation.episodes,
        "failed_seeds": [int(seed) for seed in np.flatnonzero(failed)],
        "compile_seconds": compile_seconds,
        "run_seconds": run_seconds,
        "steps_per_second": total * seeds / run_seconds,
        "device": jax.local_devices()[0].device_kind,
        "devices": seed_mesh(seeds).size,
        "python": platform.python_version(),
        "versions": {
            "rollax": rollax.__version__,
            **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax", "gymnax")},
        },
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
