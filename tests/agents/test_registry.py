"""`resolve`: from a name, a file or a function to an algorithm."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from rollax import InputError
from rollax.agents import AGENTS, ppo, resolve

SOURCE = """
from __future__ import annotations
import dataclasses
from rollax.agents import Agent

@dataclasses.dataclass(frozen=True)
class Config:
    step_size: float = 0.1

def check(config, num_steps, num_envs):
    raise AssertionError(config.step_size)

def make(observation_space, action_space, config: Config) -> Agent: ...
def unannotated(observation_space, action_space, config): ...
def wrong(observation_space, action_space, config: dict): ...
def short(observation_space, config: Config): ...
def dangling(observation_space, action_space, config: NoSuchConfig): ...
NUMBER = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_algo.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", AGENTS)
def test_every_shipped_agent(name: str) -> None:
    algorithm = resolve(name)
    assert algorithm.name == name
    assert algorithm.make.__module__ == f"rollax.agents.{name}"
    assert algorithm.config_type.__name__ == "Config"
    assert algorithm.check is not None
    assert algorithm.make.__doc__


def test_ppo_by_name_by_path_and_as_a_function() -> None:
    for agent in ("ppo", "rollax.agents.ppo:make", ppo.make):
        algorithm = resolve(agent)
        assert algorithm.make is ppo.make
        assert algorithm.check is ppo.check
        assert algorithm.config_type is ppo.Config
    assert "make" in resolve(ppo.make).name


def test_a_file(file: Path) -> None:
    algorithm = resolve(f"{file}:make")
    assert algorithm.name == f"{file}:make"
    assert algorithm.config_type.__name__ == "Config"
    assert algorithm.config_type().step_size == 0.1
    assert algorithm.check is not None
    with pytest.raises(AssertionError, match=r"0\.1"):
        algorithm.check(algorithm.config_type(), 1, 1)


def test_a_file_without_a_check(tmp_path: Path) -> None:
    path = tmp_path / "no_check.py"
    path.write_text(SOURCE.replace("def check", "def other"))
    assert resolve(f"{path}:make").check is None


def test_a_file_that_only_passes_on_an_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "passes_on.py"
    path.write_text("from rollax.agents.ppo import make\n")
    assert resolve(f"{path}:make").check is ppo.check


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("ppoo", r"train\.agent = 'ppoo' is no known agent: did you mean 'ppo'"),
        ("world_models", r"train\.agent = 'world_models' is no known agent: choose one of .*ppo"),
        ("my_algo.py", r"train\.agent = 'my_algo\.py' is no known agent"),
        ("no_such_file.py:make", r"train\.agent: there is no file 'no_such_file\.py'.*current folder"),
        ("no_such_module:make", r"train\.agent: there is no module 'no_such_module'"),
        ("rollax.agents.ppo:mak", r"rollax\.agents\.ppo has no 'mak'; did you mean 'make'"),
        ("builtins:len", r"must be a function make\(observation_space, action_space, config: Config\)"),
    ],
)
def test_names_that_are_nothing(agent: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(agent)


@pytest.mark.parametrize("name", ["unannotated", "wrong", "short", "NUMBER"])
def test_functions_of_another_form(name: str, file: Path) -> None:
    with pytest.raises(InputError, match=r"must be a function make\(.*whose Config is a dataclass") as error:
        resolve(f"{file}:{name}")
    assert f"{file}:{name}" in str(error.value)


def test_a_lambda_is_named() -> None:
    with pytest.raises(InputError, match=r"train\.agent = '.*<lambda>' must be a function"):
        resolve(lambda observation_space, action_space, config: None)


# Faults that there once were.


@pytest.mark.parametrize("agent", [7, None], ids=["number", "None"])
def test_objects_that_are_no_functions(agent: Any) -> None:
    with pytest.raises(InputError, match="must be a function make"):
        resolve(agent)


def test_a_partial_function() -> None:
    algorithm = resolve(functools.partial(ppo.make))
    assert algorithm.config_type is ppo.Config
    assert callable(algorithm.make)


def test_a_class_without_a_signature() -> None:
    with pytest.raises(InputError, match="must be a function make"):
        resolve("builtins:dict")


def test_an_annotation_that_names_nothing(file: Path) -> None:
    with pytest.raises(InputError, match=r"must be a function make.*NoSuchConfig"):
        resolve(f"{file}:dangling")
