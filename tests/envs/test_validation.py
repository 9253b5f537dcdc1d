"""A mistake in one's own environment is answered with a sentence that names it, before anything compiles."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rollax import InputError, envs
from rollax.experiments import cli


@dataclasses.dataclass(frozen=True)
class Line:
    """Right in everything; the tests break one part."""

    @property
    def default_params(self) -> Any:
        return ()

    def observation_space(self, params: Any = None) -> Any:
        return envs.Box(-9.0, 9.0, (2,))

    def action_space(self, params: Any = None) -> Any:
        return envs.Discrete(2)

    def reset(self, key: jax.Array, params: Any) -> Any:
        return {"x": 0.0}, envs.timestep(jnp.zeros(2))

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        return {"x": state["x"] + action}, envs.timestep(jnp.zeros(2), 1.0)


def boom(*args: Any) -> Any:
    raise RuntimeError("boom")


def branch(env: Any, key: Any, state: Any, action: Any, params: Any) -> Any:
    moved = {"x": state["x"] + 1.0} if action > 0 else state
    return moved, envs.timestep(jnp.zeros(2))


BROKEN: dict[str, tuple[str, Callable[..., Any], str]] = {
    "step raises": ("step", boom, r"env\.step raises RuntimeError: boom at .*test_validation\.py:\d+"),
    "reset raises": ("reset", boom, r"env\.reset raises RuntimeError: boom"),
    "space raises": ("action_space", boom, r"env\.action_space raises RuntimeError: boom"),
    "branch": ("step", branch, r"env\.step raises TracerBoolConversionError: .*test_validation\.py:\d+"),
    "bare array": ("reset", lambda *a: jnp.zeros(2), r"env\.reset returns a .*return \(state, envs\.timestep"),
    "gym tuple": ("step", lambda *a: (jnp.zeros(2), 1.0, False, {}), r"env\.step returns a tuple of 4"),
    "space": (
        "observation_space",
        lambda *a: envs.Box(0, 1, (5,)),
        r"reset returns an observation of float32\[2\].*\[5\]",
    ),
    "dtype": ("observation_space", lambda *a: envs.Box(0, 255, (2,), "uint8"), r"float32\[2\].*is uint8\[2\]"),
    "tree": ("observation_space", lambda *a: {"a": envs.Box(0, 1)}, r"observation of structure .*make them the same"),
    "action": ("action_space", lambda *a: 2, r"env\.action_space is a int: use envs\.Discrete"),
    "step shape": (
        "step",
        lambda s, k, x, a, p: (x, envs.timestep(jnp.zeros(3))),
        r"env\.step returns an observation of .*3",
    ),
    "reward": ("step", lambda s, k, x, a, p: (x, envs.timestep(jnp.zeros(2), jnp.zeros(2))), r"reward of shape \(2,\)"),
    "state": ("step", lambda s, k, x, a, p: ({"y": 0.0}, envs.timestep(jnp.zeros(2))), r"state of structure"),
    "state shape": ("step", lambda s, k, x, a, p: ({"x": jnp.zeros(3)}, envs.timestep(jnp.zeros(2))), r"\['x'\]"),
}


def test_a_right_environment_passes() -> None:
    envs.validate(Line())


@pytest.mark.parametrize("fault", BROKEN)
def test_a_mistake_is_a_sentence(fault: str) -> None:
    name, replacement, sentence = BROKEN[fault]
    broken = type("Broken", (Line,), {name: replacement})()
    with pytest.raises(InputError, match=sentence):
        envs.validate(broken)


def test_the_command_line_answers_and_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "neighbour.py").write_text("LIMIT = 3\n")
    file = tmp_path / "mine.py"
    file.write_text(
        "import neighbour\nfrom tests.envs.test_validation import Line\nclass Bad(Line):\n    step = None\n"
    )
    command = ["train", "ppo_cartpole", "--quiet", "--out", str(tmp_path / "run"), "--set", f"env.id={file}:Bad"]
    assert cli.main(command) == 2
    assert "env.step raises TypeError" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    file.write_text("import no_such_module\n")
    other = tmp_path / "other.py"
    other.write_text("import no_such_module\n")
    command[-1] = f"env.id={other}:Bad"
    assert cli.main(command) == 2
    assert "cannot be imported (ModuleNotFoundError" in capsys.readouterr().err
