"""Published figures to set scores beside: what random and solved is on an environment, and the best that others report.

Imports no JAX.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollax.errors import InputError

_GYMNASIUM = "Gymnasium's reward threshold"
_BEST = "the best that can be had"
_ZOO = "RL Baselines3 Zoo, benchmark.md: one run"
_CLEANRL = "CleanRL's documentation: mean of 3 seeds in training"
_BLINES = "gymnax-blines, logged curves: one seed"
_PQN = "PQN's demo: 3 seeds, read off a plot"
_PUREJAXRL = "PureJaxRL's example: one seed in training, read off a plot"
_SLM = "SLM-Lab, BENCHMARKS.md: 4 sessions, return in training"


@dataclasses.dataclass(frozen=True)
class Reference:
    """The two scores of an environment that min-max normalisation sends to 0 and 1: `(score - low) / (high - low)`."""

    low: float  # mean return of uniformly random actions
    high: float  # what counts as solved, or the best public figure where nothing does
    source: str  # of `high`; `low` is measured (tests/experiments/test_references.py)


_POSITIONS_ALONE = "CartPole-v1, transforms=[{'name': 'select', 'indices': [0, 2]}]"

REFERENCES: Mapping[str, Reference] = {
    "CartPole-v1": Reference(22.0, 475.0, _GYMNASIUM),
    _POSITIONS_ALONE: Reference(22.0, 475.0, _GYMNASIUM),
    "Acrobot-v1": Reference(-498.8, -100.0, _GYMNASIUM),
    "MountainCar-v0": Reference(-200.0, -110.0, _GYMNASIUM),
    "MountainCarContinuous-v0": Reference(-33.0, 90.0, _GYMNASIUM),
    "Pendulum-v1": Reference(-1226.0, -151.3, f"TQC ({_ZOO})"),
    "Catch-bsuite": Reference(-0.6, 1.0, _BEST),
    "DeepSea-bsuite, size=10": Reference(0.0, 0.99, _BEST),
    "FourRooms-misc": Reference(0.47, 1.0, _BEST),
    "MemoryChain-bsuite, memory_length=10": Reference(0.0, 1.0, _BEST),
    "MemoryChain-bsuite, memory_length=20": Reference(0.0, 1.0, _BEST),
    "Asterix-MinAtar": Reference(0.52, 71.0, _PQN),
    "Breakout-MinAtar": Reference(0.42, 43.38, _BLINES),
    "Freeway-MinAtar": Reference(0.4, 58.8, _BLINES),
    "SpaceInvaders-MinAtar": Reference(4.17, 170.0, _PUREJAXRL),
}
"""Reference scores by task: the id of the environment, and its arguments where it has any."""


@dataclasses.dataclass(frozen=True)
class PublicFigure:
    """A score that someone else has published."""

    task: str  # as in REFERENCES
    agent: str
    env_steps: int  # environment steps of one run
    score: float  # mean return of an episode
    source: str


PUBLIC_FIGURES: tuple[PublicFigure, ...] = (
    PublicFigure("CartPole-v1", "DQN", 50_000, 500.0, _ZOO),
    PublicFigure("CartPole-v1", "PPO", 100_000, 500.0, _ZOO),
    PublicFigure(_POSITIONS_ALONE, "recurrent PPO", 100_000, 500.0, _ZOO),
    PublicFigure("Acrobot-v1", "DQN", 100_000, -76.6, _ZOO),
    PublicFigure("Acrobot-v1", "QR-DQN", 100_000, -69.1, _ZOO),
    PublicFigure("Acrobot-v1", "PPO", 500_000, -86.36, _CLEANRL),
    PublicFigure("MountainCar-v0", "DQN", 120_000, -100.8, _ZOO),
    PublicFigure("MountainCar-v0", "PPO", 240_000, -118.3, _BLINES),
    PublicFigure("MountainCarContinuous-v0", "PPO", 20_000, 88.3, _ZOO),
    PublicFigure("MountainCarContinuous-v0", "SAC", 50_000, 94.7, _ZOO),
    PublicFigure("Pendulum-v1", "TQC", 20_000, -151.3, _ZOO),
    PublicFigure("Pendulum-v1", "TD3", 20_000, -151.9, _ZOO),
    PublicFigure("Pendulum-v1", "CrossQ", 300_000, -145.7, _SLM),
    PublicFigure("Catch-bsuite", "PPO", 96_000, 1.0, _BLINES),
    PublicFigure("FourRooms-misc", "PPO", 200_000, 1.0, _BLINES),
    PublicFigure("Asterix-MinAtar", "PPO", 9_920_000, 17.82, _BLINES),
    PublicFigure("Asterix-MinAtar", "PQN", 10_000_000, 71.0, _PQN),
    PublicFigure("Breakout-MinAtar", "PPO", 9_920_000, 43.38, _BLINES),
    PublicFigure("Freeway-MinAtar", "PPO", 9_920_000, 58.8, _BLINES),
    PublicFigure("SpaceInvaders-MinAtar", "PPO", 9_920_000, 131.6, f"{_BLINES}; its games begin with 28 aliens"),
    PublicFigure("SpaceInvaders-MinAtar", "PPO", 10_000_000, 170.0, _PUREJAXRL),
)
"""Published scores; how they were taken differs, as their sources say."""

_ROUNDING = 1.02
"""Budgets are rounded up to whole iterations and to round numbers: so much more is the same budget."""


def best_public(task: str, env_steps: int) -> PublicFigure | None:
    """Returns the best published score on a task by a run of at most `env_steps`; None if there is none."""
    within = [figure for figure in PUBLIC_FIGURES if figure.task == task and figure.env_steps <= _ROUNDING * env_steps]
    return max(within, key=lambda figure: figure.score, default=None)


def read_references(path: Path | None) -> dict[str, Reference]:
    """Returns the reference scores, with those of a file in place of the known ones.

    Args:
        path: A TOML file of lines `"TASK" = [random, solved]`; None takes the known ones.

    Raises:
        InputError: The file can't be read, or a line isn't two different finite numbers.
    """
    if path is None:
        return dict(REFERENCES)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--normalise {str(path)!r} cannot be read ({reason}): name a TOML file.") from error
    return {**REFERENCES, **{env: _reference(env, scores, str(path)) for env, scores in table.items()}}


def _reference(env: str, scores: Any, source: str) -> Reference:
    numbers = isinstance(scores, list) and all(type(score) in (int, float) for score in scores)
    if not numbers or len(scores) != 2 or not abs(scores[1] - scores[0]) < float("inf") or scores[0] == scores[1]:
        raise InputError(f"{source}: {env!r} = {scores!r} are no reference scores: give [random, solved], two numbers.")
    return Reference(float(scores[0]), float(scores[1]), source)
