"""`run` and the command line: each program is compiled once, and an agent from outside the package gets everything."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest
from tests.contract.jobs import COUNTER, ROLLOUT_AGENT, TOYS, make_config

from rollax import experiments
from rollax.__main__ import main

REPOSITORY = TOYS.parents[2]


def test_a_run_compiles_each_program_once_and_leaves_unfinished_episodes_out() -> None:
    compiled: Counter[str] = Counter()

    def listen(event: str, duration: float, **metadata: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled[str(metadata["fun_name"])] += 1

    evaluation = experiments.EvaluationConfig(every=4, episodes=6, step_cap=4)
    config = make_config(ROLLOUT_AGENT, COUNTER, 2, 2, env_kwargs={"lengths": (2, 6)}, evaluation=evaluation)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        result = experiments.run(config, seeds=3)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    for name, count in {"init": 1, "chunk": 1, "evaluate": 2}.items():  # evaluation is greedy, or sampled
        assert sum(compiled[program] for program in compiled if name in program) == count, compiled
    assert [(row["env_steps"], row["seed"]) for row in result.evaluations] == [
        (4 * chunk, seed) for chunk in range(1, 5) for seed in range(3)
    ]
    for row in result.evaluations:
        assert row["finished"] + row["unfinished"] == 6
        expected = 2.0 if row["finished"] else np.nan  # the long episodes are not over by the step cap
        np.testing.assert_array_equal([row["return_mean"], row["length_mean"]], [expected, expected])
    assert sum(row["unfinished"] for row in result.evaluations) > 0
    assert result.summary["unfinished"] == sum(row["unfinished"] for row in result.evaluations[-3:])
    np.testing.assert_array_equal(result.state.agent.env_steps, [16, 16, 16])
    assert result.state.clock.iteration == 4


def test_an_agent_from_outside_the_package_trains_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    jax.devices()  # the command line sets their number where JAX has not started
    settings = {
        "env.id": "tests/contract/toys/environment.py:Counter",
        "env.lengths": [3],
        "train.total_env_steps": 300,
        "train.num_envs": 8,
        "train.num_steps": 8,
        "train.unroll": 1,
        "agent.discount": 0.25,
        "evaluation.every": 128,
        "evaluation.episodes": 4,
        "evaluation.step_cap": 6,
        "log.every": 64,
    }
    arguments = ["train", "ppo_cartpole", "--agent", "tests/contract/toys/rollout_agent.py:make", "--seeds", "2"]
    arguments += ["--out", str(tmp_path / "run"), "--quiet"]
    arguments += ["--set", *(f"{name}={value}" for name, value in settings.items())]
    assert main(arguments) == 0, capsys.readouterr().err

    def read(name: str) -> list[dict[str, str]]:
        with (tmp_path / "run" / name).open(newline="") as file:
            return list(csv.DictReader(file))

    metrics, evaluations = read("metrics.csv"), read("evaluations.csv")
    assert len(metrics) == 2 * 5  # 300 steps are rounded up to five iterations of 64
    assert {"reward", "episode_return"} <= metrics[0].keys()
    assert [int(row["env_steps"]) for row in evaluations] == [128, 128, 256, 256, 320, 320]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env_steps"] == 320
    assert summary["iqm"] == summary["iqm_sampled"] == 3.0
    assert summary["unfinished"] == 0
    assert (tmp_path / "run" / "curves.png").stat().st_size > 0
    resolved = experiments.load(tmp_path / "run" / "config.toml")
    assert resolved.agent.discount == 0.25
    assert resolved.agent.learning_rate == type(resolved.agent)().learning_rate  # not that of PPO's table
    assert main(["eval", str(tmp_path / "run")]) == 0
    assert "return_mean" in capsys.readouterr().out
