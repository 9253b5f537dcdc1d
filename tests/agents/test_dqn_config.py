"""What `dqn.check` and `dqn.make` say to a config or a space that cannot work, and that the shipped configs can."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rollax import InputError, experiments
from rollax.agents import dqn
from rollax.envs.spaces import Box, Discrete, MultiDiscrete
from rollax.experiments.config import from_dict


def test_a_config_that_works() -> None:
    dqn.check(dqn.Config(), num_steps=1, num_envs=8)
    dqn.check(dqn.Config(hidden_sizes=(), epsilon_start=0.0, epsilon_end=0.0, discount=1.0, munchausen=True), 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0"),
        ({"learning_rate_schedule": "liner"}, r"agent\.learning_rate_schedule = 'liner' .*did you mean 'linear'"),
        ({"horizon": -1.0}, r"agent\.horizon = -1\.0 must not be negative"),
        ({"discount": 1.01}, r"agent\.discount = 1\.01 must be between 0 and 1"),
        ({"epsilon_start": 1.5}, r"agent\.epsilon_start = 1\.5 must be between 0 and 1"),
        ({"epsilon_end": -0.1}, r"agent\.epsilon_end = -0\.1 must be between 0 and 1"),
        ({"epsilon_steps": -1.0}, r"agent\.epsilon_steps = -1\.0 must not be negative"),
        ({"noisy_scale": -1.0}, r"agent\.noisy_scale = -1\.0 must not be negative"),
        ({"munchausen_scale": -1.0}, r"agent\.munchausen_scale = -1\.0 must not be negative"),
        ({"munchausen_temperature": 0.0}, r"agent\.munchausen_temperature = 0\.0 must be above 0"),
        ({"munchausen_floor": 0.5}, r"agent\.munchausen_floor = 0\.5 must not be above 0"),
        ({"munchausen": True, "double": True}, r"agent\.double = True has no use with agent\.munchausen"),
        ({"value_min": 100.0}, r"agent\.value_min = 100\.0 must be below agent\.value_max = 100\.0"),
        ({"huber_threshold": 0.0}, r"agent\.huber_threshold = 0\.0 must be above 0"),
        ({"target_period": 0}, r"agent\.target_period = 0 must be at least 1"),
        ({"target_rate": 0.0}, r"agent\.target_rate = 0\.0 must be above 0 and at most 1"),
        ({"target_rate": 1.5}, r"agent\.target_rate = 1\.5 must be above 0 and at most 1"),
        ({"max_grad_norm": 0.0}, r"agent\.max_grad_norm = 0\.0 must be above 0"),
        ({"adam_epsilon": 0.0}, r"agent\.adam_epsilon = 0\.0 must be above 0"),
        ({"priority_exponent": -0.5}, r"agent\.priority_exponent = -0\.5 must not be negative"),
        ({"importance_exponent": 1.5}, r"agent\.importance_exponent = 1\.5 must be between 0 and 1"),
        ({"hidden_sizes": (8, 0)}, r"agent\.hidden_sizes = \(8, 0\) must be at least 1"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dqn.check(dataclasses.replace(dqn.Config(), **changes), num_steps=1, num_envs=8)


def check_and_make(config: dqn.Config) -> None:
    dqn.check(config, 1, 8)
    dqn.make(Box(-1, 1, (2,)), Discrete(2), config)  # knows the activations, torsos and dtypes


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(dqn.Config):
        kind = type(getattr(dqn.Config(), field.name))
        # A range is wrong as a whole.
        named = "value_min" if field.name == "value_max" else field.name
        if kind is not bool:
            with pytest.raises(InputError, match=rf"agent\.{named} = "):
                check_and_make(dataclasses.replace(dqn.Config(), **{field.name: bad[kind]}))


@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), MultiDiscrete((2, 3))])
def test_spaces_that_dqn_cannot_act_in(space: Any) -> None:
    with pytest.raises(InputError, match=r"action space .* does not fit train\.agent = 'dqn', which acts in Discrete"):
        dqn.make(Box(-1, 1, (2,)), space)


MEMORY = """
import jax.numpy as jnp

class Memory:
    def init(self, key, observation):
        return ()

    def init_memory(self, num_envs):
        return jnp.zeros((num_envs, 1))

    def step(self, params, memory, observation):
        return memory + observation, memory

def remember(observation_space):
    return Memory()
"""


def tables(**changes: Any) -> dict[str, Any]:
    return {
        "env": {"id": "CartPole-v1"},
        "train": {"agent": "dqn", "total_env_steps": 32, "num_envs": 4, "num_steps": 1},
        "replay": {"capacity": 64, "batch_size": 8},
        **changes,
    }


def test_configs_that_cannot_be_built(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(MEMORY)
    for changes, message in (
        ({"agent": {"torso": f"{path}:remember"}}, r"agent\.torso = .* has a memory, .* use train\.agent = 'r2d2'"),
        ({"agent": {"memory": "gru"}}, r"agent\.memory is unknown"),
        ({"env": {"id": "Pendulum-v1"}}, r"action space .* 'dqn', which acts in Discrete"),
        ({"replay": None}, r"\[replay\] is missing: train\.agent = 'dqn' learns from replay"),
        ({"replay": {"capacity": 64, "batch_size": 8, "kind": "sequence"}}, r"learns from transitions"),
    ):
        with pytest.raises(InputError, match=message):
            experiments.make_trainer(from_dict({k: v for k, v in tables(**changes).items() if v is not None}))
