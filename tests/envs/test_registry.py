"""`envs.make`: ids, import paths, classes, functions and objects, and what it says to anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from rollax import InputError, envs

SOURCE = """
import jax.numpy as jnp
from rollax import envs
from rollax.envs import spaces

class Walk:
    default_params = ()
    def __init__(self, size=3):
        self.size = size
    def reset(self, key, params):
        return jnp.zeros((), jnp.int32), envs.timestep(jnp.zeros(1))
    def step(self, key, state, action, params):
        return state + action, envs.timestep(jnp.full((1,), state + action), 1.0, state + action >= self.size)
    def observation_space(self, params=None):
        return spaces.Box(0, self.size, (1,))
    def action_space(self, params=None):
        return spaces.Discrete(2)

def long_walk(size=9):
    return Walk(size)

ready = Walk(4)
NUMBER = 7

class Half:
    def reset(self, key, params): ...
    def step(self, key, state, action, params): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "walk.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "kwargs", "size"),
    [
        ("Walk", {}, 3),
        ("Walk", {"size": 5}, 5),
        ("long_walk", {}, 9),
        ("long_walk", {"size": 2}, 2),
        ("ready", {}, 4),
    ],
)
def test_a_class_a_function_and_an_object_of_a_file(name: str, kwargs: dict[str, Any], size: int, file: Path) -> None:
    env = envs.make(f"{file}:{name}", **kwargs)
    assert env.observation_space().high == size
    state, timestep = envs.AutoReset(env).reset(jax.random.key(0), env.default_params)
    assert bool(timestep.is_first)
    assert state == 0


def test_a_file_named_relative_to_the_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert envs.make("walk.py:Walk").action_space().n == 2


def test_a_file_is_imported_once(file: Path) -> None:
    assert type(envs.make(f"{file}:ready")) is type(envs.make(f"{file}:Walk"))
    assert envs.make(f"{file}:ready") is envs.make(f"{file}:ready")


def test_two_files_of_one_name_do_not_meet(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "walk.py"
    other.parent.mkdir()
    other.write_text(SOURCE.replace("size=3", "size=30"))
    assert envs.make(f"{file}:Walk").size == 3
    assert envs.make(f"{other}:Walk").size == 30


def test_a_name_of_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.rename(file.parent / "rollax_test_walk.py")
    monkeypatch.syspath_prepend(file.parent)
    assert envs.make("rollax_test_walk:Walk", size=6).size == 6


def test_objects_classes_and_functions_as_they_are() -> None:
    env = envs.make("MountainCar-v0")
    assert envs.make(env) is env
    assert isinstance(envs.make(envs.AutoReset, env=env), envs.AutoReset)

    def build(num_envs: int) -> envs.Vectorise:
        return envs.Vectorise(env, num_envs)

    assert envs.make(build, num_envs=3).num_envs == 3


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v0", r"env\.id = 'CartPole-v0' is no known environment: did you mean 'CartPole-v1'"),
        ("cartpole-v1", r"did you mean 'CartPole-v1'"),
        ("Breakout", r"did you mean 'Breakout-MinAtar'"),
        ("quite different", r"there are \d+ to choose from"),
        ("", r"env\.id = '' is no known environment"),
        ("walk.py", r"env\.id = 'walk\.py' is no known environment"),
        ("no_such_module:Walk", r"env\.id: there is no module 'no_such_module'"),
        ("rollax.no_such_module:Walk", r"env\.id: there is no module 'rollax\.no_such_module'"),
        ("rollax.envs.spaces:Boks", r"rollax\.envs\.spaces has no 'Boks'; did you mean 'Box'"),
        ("no/such/file.py:Walk", r"env\.id: there is no file 'no/such/file\.py'.*current folder"),
    ],
)
def test_names_that_are_nothing(env_id: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        envs.make(env_id)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Wolk", {}, r"has no 'Wolk'; did you mean 'Walk'"),
        ("NUMBER", {}, r"is no environment: it lacks reset, step, observation_space, action_space, default_params"),
        ("Half", {}, r"is no environment: it lacks observation_space, action_space, default_params"),
        ("Walk", {"sise": 3}, r"cannot be called with the arguments \{'sise': 3\}: .*'sise'"),
        ("long_walk", {"sise": 3}, r"cannot be called with the arguments \{'sise': 3\}"),
        ("ready", {"size": 3}, r"is built already, so the arguments \['size'\] have no use: remove them"),
    ],
)
def test_objects_of_a_file_that_are_no_environments(
    name: str, kwargs: dict[str, Any], message: str, file: Path
) -> None:
    with pytest.raises(InputError, match=message) as error:
        envs.make(f"{file}:{name}", **kwargs)
    assert f"{file}:{name}" in str(error.value)


@pytest.mark.parametrize("env", [7, None, object(), lambda: 7], ids=["number", "None", "object", "function"])
def test_objects_that_are_no_environments(env: Any) -> None:
    with pytest.raises(InputError, match=r"is no environment: it lacks reset, step"):
        envs.make(env)


def test_a_fault_inside_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_at_all\nWalk = 1\n")
    for _ in range(2):  # the second time too: nothing half imported stays behind
        with pytest.raises(InputError, match=r"cannot be imported .*no_such_module_at_all"):
            envs.make(f"{path}:Walk")


def test_a_fault_inside_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_raises.py").write_text("Walk = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"'module_that_raises' cannot be imported \(ZeroDivisionError"):
        envs.make("module_that_raises:Walk")


# Faults that there once were.


def test_a_relative_module_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"\.walk"):
        envs.make(".walk:Walk")
