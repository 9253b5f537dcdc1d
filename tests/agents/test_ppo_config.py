"""What `ppo.check` and `ppo.make` say to a config or a space that cannot work."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rollax import InputError
from rollax.agents import ppo
from rollax.envs.spaces import Box, Discrete, MultiDiscrete


def test_a_config_that_works() -> None:
    ppo.check(ppo.Config(), num_steps=128, num_envs=4)
    ppo.check(ppo.Config(num_minibatches=1, hidden_sizes=(), entropy_coefficient=0.0, discount=1.0), 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": -1e-3}, r"agent\.learning_rate = -0\.001 must be above 0"),
        ({"learning_rate": 0.0}, r"agent\.learning_rate = 0\.0 must be above 0"),
        ({"learning_rate": float("nan")}, r"agent\.learning_rate = nan must be above 0"),
        ({"learning_rate_schedule": "liner"}, r"agent\.learning_rate_schedule = 'liner' .*did you mean 'linear'"),
        ({"horizon": -1.0}, r"agent\.horizon = -1\.0 must not be negative"),
        ({"discount": 1.01}, r"agent\.discount = 1\.01 must be between 0 and 1"),
        ({"discount": -0.1}, r"agent\.discount = -0\.1 must be between 0 and 1"),
        ({"gae_lambda": 2.0}, r"agent\.gae_lambda = 2\.0 must be between 0 and 1"),
        ({"clip_epsilon": -0.2}, r"agent\.clip_epsilon = -0\.2 must not be negative"),
        ({"entropy_coefficient": -0.2}, r"agent\.entropy_coefficient = -0\.2 must not be negative"),
        ({"value_coefficient": -0.5}, r"agent\.value_coefficient = -0\.5 must not be negative"),
        ({"max_grad_norm": 0.0}, r"agent\.max_grad_norm = 0\.0 must be above 0"),
        ({"adam_epsilon": 0.0}, r"agent\.adam_epsilon = 0\.0 must be above 0"),
        ({"num_epochs": 0}, r"agent\.num_epochs = 0 must be at least 1"),
        ({"num_minibatches": 0}, r"agent\.num_minibatches = 0 must be at least 1"),
        (
            {"num_minibatches": 3},
            r"agent\.num_minibatches = 3 must divide train\.num_envs \* train\.num_steps = 4 \* 8 = 32",
        ),
        ({"num_minibatches": 64}, r"agent\.num_minibatches = 64 must divide"),
        ({"hidden_sizes": (8, 0)}, r"agent\.hidden_sizes = \(8, 0\) must be at least 1"),
        ({"activation": "rellu"}, r"agent\.activation = 'rellu' .*did you mean 'relu'"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ppo.check(dataclasses.replace(ppo.Config(), **changes), num_steps=8, num_envs=4)


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: 0, str: "?", tuple: (0,)}
    for field in dataclasses.fields(ppo.Config):
        kind = type(getattr(ppo.Config(), field.name))
        if kind is bool:
            continue
        with pytest.raises(InputError, match=rf"agent\.{field.name} = "):
            ppo.check(dataclasses.replace(ppo.Config(), **{field.name: bad[kind]}), 8, 4)


def test_spaces_that_ppo_cannot_use() -> None:
    with pytest.raises(InputError, match=r"action space MultiDiscrete\(nvec=\(2, 3\).* 'ppo'"):
        ppo.make(Box(-1, 1, (2,)), MultiDiscrete((2, 3)))
    with pytest.raises(InputError, match=r"observation space has a leaf of type ndarray"):
        ppo.make({"a": np.zeros(3)}, Discrete(2))
