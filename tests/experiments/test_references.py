"""Reference scores: those of random actions are what random actions get; public figures are found by budget."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from typing import Any

import jax
import numpy as np
import pytest

from rollax.agents.base import Agent, Decision
from rollax.experiments import config as configs
from rollax.experiments import make_evaluate, references
from rollax.experiments.config import from_dict
from rollax.experiments.references import REFERENCES, best_public
from rollax.experiments.results import task_of

EPISODES = 512
QUICK = ("CartPole-v1", "MountainCarContinuous-v0", "Catch-bsuite", "FourRooms-misc")


@dataclasses.dataclass(frozen=True)
class Config:
    """Nothing to configure."""


def make_random(observation_space: Any, action_space: Any, config: Config) -> Agent:
    """Makes an agent that draws every action uniformly and learns nothing."""
    return Agent(
        init=lambda key, hyperparameters=None: (),
        init_memory=lambda num_envs: (),
        noise=lambda key, num_envs: jax.vmap(action_space.sample)(jax.random.split(key, num_envs)),
        act_with=lambda state, memory, timestep, noise, explore=True: (memory, Decision(noise, {})),
        observe=lambda state, rollout: state,
        update=lambda state, batch, key: (state, None),
        consumes="rollout",
    )


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task in QUICK else pytest.mark.suite) for task in REFERENCES]
)
def test_random_actions_score_the_lower_reference(task: str) -> None:
    env, *settings = re.split(r", (?=\w+=)", task)
    kwargs = {name: ast.literal_eval(value) for name, value in (setting.split("=", 1) for setting in settings)}
    config = from_dict(
        {"env": {"id": env, **kwargs}, "train": {"agent": make_random}, "evaluation": {"episodes": EPISODES}}
    )
    played = jax.jit(make_evaluate(config), static_argnames="explore")((), jax.random.key(1), explore=True)
    returns = np.asarray(played.episode_return)
    assert played.finished.all()
    low, high = REFERENCES[task].low, REFERENCES[task].high
    error = 4 * np.std(returns) / np.sqrt(EPISODES) + 0.01 * (high - low)  # the listed numbers are rounded
    assert abs(np.mean(returns) - low) < error


def test_the_tasks_of_references_are_named_as_those_of_runs() -> None:
    for name in ("ppo_cartpole", "ppo_cartpole_hidden", "ppo_deepsea", "pqn_memorychain", "ppo_memorychain"):
        assert task_of(tomllib.loads(configs.to_toml(configs.load(name)))) in REFERENCES


def test_the_best_public_figure_within_a_budget() -> None:
    assert best_public("Pendulum-v1", 10_000) is None
    assert best_public("Own-v0", 10_000_000) is None
    for env_steps, agent in ((19_900, "TQC"), (300_000, "CrossQ")):  # budgets are rounded
        figure = best_public("Pendulum-v1", env_steps)
        assert figure is not None
        assert figure.agent == agent
    assert all(reference.high > reference.low for reference in REFERENCES.values())
    assert all(figure.env_steps > 0 and figure.source for figure in references.PUBLIC_FIGURES)
