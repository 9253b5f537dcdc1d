"""`run(debug=True)`: the same run without compilation, with shapes, and with the place of the first NaN."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import BEACON, TOYS, differences

from rollax import experiments
from rollax.errors import InputError
from rollax.experiments import cli, run_folder
from rollax.experiments.config import ExperimentConfig, from_dict

TRAIN = {"total_env_steps": 16, "num_envs": 2, "num_steps": 4, "unroll": 1}
EVALUATION = {"every": 8, "episodes": 2, "step_cap": 3}
AGENT_WITH_NAN = """
import dataclasses
import jax.numpy as jnp
from rollax.agents import ppo

def make(observation_space, action_space, config: ppo.Config):
    agent = ppo.make(observation_space, action_space, config)

    def update(state, rollout, key):
        learnt, report = agent.update(state, rollout, key)
        scale = jnp.sqrt(0.5 - state.updates)
        return dataclasses.replace(learnt, env_steps=learnt.env_steps + 0 * (scale > 0)), report

    return dataclasses.replace(agent, update=update)
"""
ENVIRONMENT_WITH_NAN = """
import dataclasses
import jax.numpy as jnp
from tests.contract.toys.environment import Counter

class Broken(Counter):
    def step(self, key, state, action, params):
        state, timestep = super().step(key, state, action, params)
        reward = jnp.log(2.5 - state.count)
        return state, dataclasses.replace(timestep, reward=reward)
"""


@pytest.fixture(autouse=True)
def _every_operation_is_cached() -> Iterator[None]:
    """Without jit each operation is a program of its own: hundreds, too small for the cache of the other tests."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 0.0)
    yield
    jax.config.update(name, before)


def make_config(agent: str = "ppo", env: dict[str, Any] | None = None, **tables: Any) -> ExperimentConfig:
    """A run that is short enough to be taken step by step; a Beacon of three steps ends within the step cap."""
    settings = {"hidden_sizes": [4], "num_minibatches": 1, "num_epochs": 1} if "toys" not in agent else {}
    tables = {"agent": settings, "evaluation": EVALUATION, **tables, "train": {**TRAIN, **tables.get("train", {})}}
    tables["train"]["agent"] = agent
    return from_dict({"env": env or {"id": BEACON, "limit": 3}, **tables})


def assert_undisturbed() -> None:
    """Nothing of the debugging is left: functions are compiled, and NaNs are numbers like others."""
    config: Any = jax.config
    assert not config.jax_disable_jit
    assert not config.jax_debug_nans
    traced = []

    @jax.jit
    def logarithm(x: jax.Array) -> jax.Array:
        traced.append(isinstance(x, jax.core.Tracer))
        return jnp.log(x)

    assert np.isnan(logarithm(jnp.float32(-1.0)))
    assert np.isnan(logarithm(jnp.float32(-2.0)))
    assert traced == [True]


@pytest.mark.thorough
def test_debugging_is_the_same_run_and_prints_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config()
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, normalise_observation=True))
    compiled = experiments.run(config, out=tmp_path / "compiled")
    assert ".agent" not in capsys.readouterr().err
    debugged = experiments.run(config, out=tmp_path / "debugged", debug=True)
    printed = capsys.readouterr().err.splitlines()
    assert_undisturbed()

    assert not differences(compiled.state, debugged.state, tolerance=1e-5)
    assert not differences(compiled.best, debugged.best, tolerance=1e-5)
    assert np.all(np.isfinite(debugged.best.score))  # episodes ended, so there was something to compare
    for name in ("read_metrics", "read_evaluations"):
        logs = [getattr(run_folder.open(tmp_path / run), name)() for run in ("compiled", "debugged")]
        assert logs[0].keys() == logs[1].keys()
        assert len(logs[0]["seed"]) == 2
        for column, values in logs[0].items():
            np.testing.assert_allclose(logs[1][column], values, rtol=1e-5, atol=1e-5, err_msg=f"{name}: {column}")

    start = jax.eval_shape(experiments.make_trainer(config).init, jax.random.key(0))
    shapes = [
        f"{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(start)
    ]
    assert [line for line in printed if line.startswith(".")] == shapes
    assert ".timestep.observation['position']: float32[2, 2]" in shapes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("agent", "replay"),
    [
        ("transition_agent", {"n_step": 2, "kind": "prioritised", "storage": "ref"}),
        ("sequence_agent", {"kind": "sequence", "length": 2}),
        ("recurrent_agent", None),
    ],
)
def test_every_kind_of_agent_can_be_debugged(agent: str, replay: dict[str, Any] | None) -> None:
    tables = {} if replay is None else {"replay": {"capacity": 16, "batch_size": 4, **replay}}
    config = make_config(f"{TOYS}/{agent}.py:make", **tables)
    result = experiments.run(config, debug=True)
    assert result.state.clock.iteration == 2
    assert result.summary["failed_seeds"] == []
    assert np.all(result.state.agent.updates > 0)


def test_a_nan_in_an_agent_is_located(tmp_path: Path) -> None:
    file = tmp_path / "nan_agent.py"
    file.write_text(AGENT_WITH_NAN)
    line = AGENT_WITH_NAN.splitlines().index("        scale = jnp.sqrt(0.5 - state.updates)") + 1
    with pytest.raises(InputError) as raised:
        experiments.run(make_config(f"{file}:make"), debug=True)
    assert f"{file}:{line}, in update: scale = jnp.sqrt(0.5 - state.updates)" in str(raised.value)
    assert_undisturbed()


def test_a_nan_in_an_environment_is_located_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")  # the command line leaves them as they are
    (tmp_path / "nan_environment.py").write_text(ENVIRONMENT_WITH_NAN)
    line = ENVIRONMENT_WITH_NAN.splitlines().index("        reward = jnp.log(2.5 - state.count)") + 1
    settings = {
        "env.id": f"{tmp_path / 'nan_environment.py'}:Broken",
        **{f"train.{name}": value for name, value in TRAIN.items()},
        **{f"evaluation.{name}": value for name, value in EVALUATION.items()},
        "agent.hidden_sizes": [4],
    }
    arguments = ["train", "ppo_cartpole", "--debug", "--quiet", "--out", str(tmp_path / "run"), "--set"]
    assert cli.main([*arguments, *(f"{name}={value}" for name, value in settings.items())]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"rollax: error: a number became NaN .*", printed[-1])
    assert f"{tmp_path / 'nan_environment.py'}:{line}, in step: reward = jnp.log(2.5 - state.count)" in printed[-1]
    assert ".clock.iteration: int32[]" in printed
    assert_undisturbed()


def test_more_than_one_seed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    with pytest.raises(InputError, match=r"seeds = 2 cannot be debugged at once: give 1\."):
        experiments.run(make_config(), seeds=2, debug=True)
    arguments = ["train", "ppo_cartpole", "--debug", "--seeds", "3", "--out", str(tmp_path / "run")]
    assert cli.main(arguments) == 2
    assert "seeds = 3" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
