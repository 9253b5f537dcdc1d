"""Benchmarks: steps per second of whole training loops, compilation apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax

from rollax.experiments import config as configs
from rollax.experiments.sharding import over_seeds, padded, seed_mesh
from rollax.experiments.trainer import axes, make_trainer

SECONDS = 5.0
"""About how long one measurement lasts."""


def run_ppo(seeds: Sequence[int] = (1, 8), repeats: int = 5) -> list[dict[str, Any]]:
    """Times PPO in its usual setting, for each number of seeds in turn.

    The setting: CartPole-v1, 4 environments x 128 steps, 4 epochs, 4 minibatches, 2 x 64 tanh actor and critic.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Measurements; the median counts.

    Returns:
        One row for each number of seeds: `steps_per_second` (environment steps of all seeds, learning included),
        `compile_seconds`, `devices`.
    """
    config = configs.load("ppo_cartpole", ["train.total_env_steps=25600", "log.every=25600"])
    return [_time(config, "ppo CartPole-v1 4x128", count, repeats) for count in seeds]


def _time(config: configs.ExperimentConfig, name: str, seeds: int, repeats: int) -> dict[str, Any]:
    trainer = make_trainer(config)
    mesh = seed_mesh(seeds)
    keys = jax.random.split(jax.random.key(0), padded(seeds, mesh))
    started = time.perf_counter()
    state = over_seeds(trainer.init, mesh, (0,), axes())(keys)
    chunk = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), donate_argnums=(0,)).lower(state).compile()
    compile_seconds = time.perf_counter() - started
    state, warm_up = _chunks(chunk, state, 1)
    calls = max(1, round(SECONDS / warm_up))
    rates = []
    for _ in range(repeats):
        state, seconds = _chunks(chunk, state, calls)
        rates.append(calls * trainer.env_steps_per_chunk * seeds / seconds)
    return {
        "name": name,
        "seeds": seeds,
        "devices": mesh.size,
        "device": jax.local_devices()[0].device_kind,
        "steps_per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "compile_seconds": compile_seconds,
        "jax": jax.__version__,
    }


def _chunks(chunk: Any, state: Any, calls: int) -> tuple[Any, float]:
    started = time.perf_counter()
    for _ in range(calls):
        state, _ = chunk(state)
    jax.block_until_ready(state)
    return state, time.perf_counter() - started
