"""Configs that are wrong in random ways build or are answered with a sentence, and what builds can be traced.

ROLLAX_FUZZ sets how many there are, as in `ROLLAX_FUZZ=1000 pytest tests/experiments/test_fuzz.py`; one of fifteen, of
those that build, is traced too, which is where most of the time goes.
"""

from __future__ import annotations

import os
from typing import Any

import jax
from tests.experiments import fuzz

from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.evaluation import make_evaluate
from rollax.experiments.trainer import Trainer, make_trainer

COUNT = int(os.environ.get("ROLLAX_FUZZ", "60"))
BASES = (
    "ppo_cartpole",
    "dqn_cartpole",
    "sac_pendulum",
    "mpo_pendulum",
    "r2d2_memorychain",
    "ppo_breakout",
    "pqn_cartpole",
)


def built(config: ExperimentConfig) -> tuple[Trainer, Any] | str:
    """Returns what a config builds, or the sentence that it is answered with."""
    try:
        return make_trainer(config), make_evaluate(config)
    except InputError as error:
        return str(error)


def test_mutants_build_or_are_answered_with_a_sentence_and_what_builds_can_be_traced() -> None:
    bases = [fuzz.filled(name) for name in BASES]
    left, outcomes = COUNT // 15, {"sentence": 0, "built": 0}
    for seed in range(COUNT):
        tables = fuzz.mutant(bases, seed)
        try:
            result: Any = built(configs.from_dict(tables))
        except InputError as error:
            result = str(error)
        except Exception as error:
            raise AssertionError(f"mutant {seed}: {tables}") from error
        if isinstance(result, str):
            outcomes["sentence"] += 1
            assert result.strip() == result
            assert result.endswith((".", "?")), result
            assert "\n" not in result
            assert len(result) < 1_000, result
        else:
            outcomes["built"] += 1
            if left:
                left -= 1
                trace(*result, f"mutant {seed}: {tables}")
    assert min(outcomes.values()) > COUNT // 5  # the mutants are neither all wrong nor all right


def trace(trainer: Trainer, evaluate: Any, what: str) -> None:
    """Traces a training from its start, and an evaluation: what can be said before compiling has been said."""
    try:
        state = jax.eval_shape(trainer.init, jax.random.key(0))
        jax.eval_shape(trainer.chunk, state)
        jax.eval_shape(evaluate, state.agent, jax.random.key(0))
    except Exception as error:
        raise AssertionError(what) from error
