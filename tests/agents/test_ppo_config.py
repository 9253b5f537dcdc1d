"""What `ppo.check` and `ppo.make` say to a config or a space that cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollax import InputError, experiments
from rollax.agents import ppo
from rollax.envs.spaces import Box, Discrete, MultiDiscrete
from rollax.experiments.config import from_dict


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
        ({"clip_schedule": "liner"}, r"agent\.clip_schedule = 'liner' .*did you mean 'linear'"),
        ({"entropy_schedule": "liner"}, r"agent\.entropy_schedule = 'liner' .*did you mean 'linear'"),
        ({"target_kl": 0.0}, r"agent\.target_kl = 0\.0 must be above 0"),
        ({"normalise_advantage": "bach"}, r"agent\.normalise_advantage = 'bach' must be one of minibatch, batch, none"),
        ({"initial_log_scale": float("inf")}, r"agent\.initial_log_scale = inf must be finite"),
        ({"exploration_period": -1}, r"agent\.exploration_period = -1 must not be negative"),
    ],
)
def test_configs_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ppo.check(dataclasses.replace(ppo.Config(), **changes), num_steps=8, num_envs=4)


def check_and_make(config: ppo.Config) -> None:
    ppo.check(config, 8, 4)
    ppo.make(Box(-1, 1, (2,)), Discrete(2), config)  # knows the activations, torsos and dtypes


def test_every_field_of_the_config_is_checked() -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(ppo.Config):
        kind = type(getattr(ppo.Config(), field.name))
        if kind is bool:
            continue
        with pytest.raises(InputError, match=rf"agent\.{field.name} = "):
            check_and_make(dataclasses.replace(ppo.Config(), **{field.name: bad[kind]}))


def test_spaces_that_ppo_cannot_use() -> None:
    with pytest.raises(InputError, match=r"action space {'a': MultiDiscrete\(nvec=\(2, 3\).* 'ppo'"):
        ppo.make(Box(-1, 1, (2,)), {"a": MultiDiscrete((2, 3))})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"observation space has a leaf of type ndarray"):
        ppo.make({"a": np.zeros(3)}, Discrete(2))


OWN = """
import jax.numpy as jnp

from rollax.agents.networks import Network

def wrong(observation_space):
    return Network(lambda key, observation: (), lambda params, observation: jnp.zeros((3, 1)))
"""


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {"torso": "cnn"}, r"agent\.torso = 'cnn' needs one Box \[height, width, channels\]"),
        ("CartPole-v1", {"torso": "mpl"}, r"agent\.torso = 'mpl' is unknown: did you mean 'mlp'"),
        ("CartPole-v1", {"torso": "{file}:wrong"}, r"agent\.torso gives features of shape \(3, 1\)"),
        ("CartPole-v1", {"torso": "{file}:wrnog"}, r"agent\.torso .*did you mean 'wrong'"),
        ("CartPole-v1", {"compute_dtype": "float16"}, r"agent\.compute_dtype = 'float16' is unknown"),
        ("CartPole-v1", {"activation": "rellu"}, r"agent\.activation = 'rellu' .*did you mean 'relu'"),
        ("CartPole-v1", {"normalise_advantage": "bach"}, r"agent\.normalise_advantage = 'bach' .*batch"),
        (
            "Pendulum-v1",
            {"exploration_period": 4, "state_dependent_scale": True},
            r"agent\.state_dependent_scale = True does not go with agent\.exploration_period",
        ),
        ("CartPole-v1", {"squash": True}, r"agent\.squash.* have no use in the action space"),
        ("CartPole-v1", {"exploration_period": 4}, r"agent\.exploration_period have no use in the action space"),
    ],
)
def test_configs_that_cannot_be_built(env: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong_torso.py"
    path.write_text(OWN)
    settings = {name: value.format(file=path) if name == "torso" else value for name, value in settings.items()}
    tables = {
        "env": {"id": env},
        "train": {"agent": "ppo", "total_env_steps": 32, "num_envs": 4, "num_steps": 8},
        "agent": settings,
    }
    with pytest.raises(InputError, match=message):
        experiments.make_trainer(from_dict(tables))


def test_squashing_needs_bounds() -> None:
    observation = Box(-1, 1, (2,))
    ppo.make(observation, Box(-2, 3, (2,)), ppo.Config(squash=True))
    for low, high in ((-np.inf, np.inf), (0.0, np.inf)):
        with pytest.raises(InputError, match=r"agent\.squash = True needs a Box with finite bounds"):
            ppo.make(observation, Box(low, high, (2,)), ppo.Config(squash=True))
