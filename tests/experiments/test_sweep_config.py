"""`[sweep]`: what is drawn, what is one program, and the sentence that each wrong value gets."""

from __future__ import annotations

import dataclasses
import random
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from tests.experiments import fuzz

from rollax import InputError
from rollax.experiments import config as configs
from rollax.experiments import members, run_folder, sweep_config, sweeps
from rollax.experiments.lanes import TUNING_STREAM, Lanes

RATE = "agent.learning_rate"


def config(parameters: Any, tables: Any = None, **settings: Any) -> configs.ExperimentConfig:
    small = {"env": {"id": "CartPole-v1"}, "train": {"total_env_steps": 2560, "num_steps": 32}, **(tables or {})}
    return configs.from_dict({**small, "sweep": {"parameters": parameters, **settings}})


def values(made: configs.ExperimentConfig, name: str) -> list[Any]:
    return [member.values[name] for member in members.members(made)]


def test_a_grid_is_all_combinations_and_the_last_parameter_varies_fastest() -> None:
    made = config({RATE: [1e-3, 1e-2], "agent.gae_lambda": {"low": 0.5, "high": 0.9, "points": 3}})
    found = members.members(made)
    expected = [(1e-3, 0.5), (1e-3, 0.7), (1e-3, 0.9), (1e-2, 0.5), (1e-2, 0.7), (1e-2, 0.9)]
    np.testing.assert_allclose([tuple(member.values.values()) for member in found], expected, rtol=1e-12)
    assert [member.index for member in found] == list(range(6))
    assert found[5].numbers == {"learning_rate": 1e-2, "gae_lambda": 0.9}
    assert found[5].config == dataclasses.replace(
        made, sweep=None, agent=dataclasses.replace(made.agent, learning_rate=1e-2, gae_lambda=0.9)
    )


def test_a_logarithmic_grid_has_equal_ratios() -> None:
    made = config({RATE: {"low": 1e-4, "high": 1e-1, "log": True, "points": 4}})
    assert values(made, RATE) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1], rel=1e-12)
    assert values(made, RATE)[0] == 1e-4
    assert values(made, RATE)[-1] == 1e-1


def test_random_draws_have_their_distributions() -> None:
    parameters = {
        RATE: {"low": 1e-5, "high": 1e-1, "log": True},
        "agent.discount": {"low": 0.5, "high": 0.9},
        "agent.memory": ["none", "gru", "lstm"],
    }
    made = config(parameters, method="random", samples=2000, seed=1)
    assert made.sweep is not None
    drawn = members._random(made.sweep)
    rates, discounts, memories = ([row[name] for row in drawn] for name in parameters)
    assert stats.kstest(rates, stats.loguniform(1e-5, 1e-1).cdf).pvalue > 0.01
    assert stats.kstest(discounts, stats.uniform(0.5, 0.4).cdf).pvalue > 0.01
    assert stats.chisquare([memories.count(name) for name in parameters["agent.memory"]]).pvalue > 0.01
    assert abs(stats.spearmanr(rates, discounts).statistic) < 0.06  # 2.7 standard deviations
    assert min(rates) >= 1e-5
    assert max(rates) <= 1e-1


def test_a_draw_does_not_depend_on_the_other_parameters_but_on_the_seed() -> None:
    rate = {RATE: {"low": 1e-5, "high": 1e-1, "log": True}}
    alone = values(config(rate, method="random", samples=3), RATE)
    assert values(config({"agent.discount": [0.9, 0.99], **rate}, method="random", samples=5), RATE)[:3] == alone
    assert values(config(rate, method="random", samples=3, seed=1), RATE) != alone


def test_numbers_of_the_agent_share_a_program_and_structure_does_not() -> None:
    made = config({RATE: [1e-3, 1e-2], "agent.num_epochs": [1, 2], "train.num_envs": [2, 4]})
    grouped = members.groups(members.members(made))
    assert [[member.index for member in group] for group in grouped] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [set(member.numbers) for group in grouped for member in group] == [{"learning_rate"}] * 8
    assert len(members.groups(members.members(config({RATE: [1e-3, 1e-2, 1e-1]})))) == 1


def test_agents_can_be_swept_and_each_starts_from_its_own_defaults() -> None:
    made = config({"train.agent": ["ppo", "a2c"], RATE: [1e-3, 1e-2]}, {"agent": {"hidden_sizes": [8]}})
    grouped = members.groups(members.members(made))
    assert [group[0].config.train.agent for group in grouped] == ["ppo", "a2c"]
    assert [group[0].config.agent.hidden_sizes for group in grouped] == [(8,), (64, 64)]
    assert [member.config.agent.learning_rate for member in grouped[1]] == [1e-3, 1e-2]


def test_names_may_be_nested_and_the_config_is_written_back() -> None:
    text = """
name = "nested"
[env]
id = "CartPole-v1"
[sweep]
method = "random"
samples = 4
seeds = 2
halving = { rungs = 2 }
[sweep.parameters.agent]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
hidden_sizes = [[8], [8, 8]]
"""
    made = configs.from_dict(tomllib.loads(text))
    assert made.sweep is not None
    assert list(made.sweep.parameters) == [RATE, "agent.hidden_sizes"]
    assert configs.from_dict(tomllib.loads(configs.to_toml(made))) == made


def test_a_setting_on_the_command_line_adds_a_sweep() -> None:
    made = configs.load("ppo_cartpole", ["sweep.parameters.agent.learning_rate=[1e-3, 2e-3]", "sweep.seeds=2"])
    assert values(made, RATE) == [1e-3, 2e-3]


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ({}, {}, r"sweep\.parameters is empty: name what to sweep"),
    ({RATE: []}, {}, r"agent\.learning_rate\" = \[\] is empty: give a list"),
    ({RATE: 1e-3}, {}, r"= 0\.001 is no list of values and no range"),
    ({RATE: [1e-3, 1e-3]}, {}, r"has 0\.001 twice"),
    ({RATE: [1e-3], "agent": {"learning_rate": [1]}}, {}, r"is given twice"),
    ({RATE: ["fast", 1e-3]}, {}, r"agent\.learning_rate = 'fast' is a string: give a number"),
    ({RATE: [-1.0]}, {}, r"agent\.learning_rate = -1\.0 must"),
    ({"agent.lerning_rate": [1]}, {}, r"agent\.lerning_rate is unknown: did you mean 'learning_rate'"),
    ({"agents.learning_rate": [1]}, {}, r"cannot be swept: did you mean 'agent'"),
    ({"agent": [1]}, {}, r"names a whole table"),
    ({"evaluation.episodes": [1, 2]}, {}, r"cannot be swept: choose one of agent, env, replay, train"),
    ({"train.seed": [1, 2]}, {}, r"train\.seed cannot be swept: sweep\.seeds says"),
    ({"train.seed.x": [1, 2]}, {}, r"train\.seed\.x cannot be set: seed = 0 is no table"),
    ({RATE: {"low": 1, "high": 1}}, {"method": "random", "samples": 1}, r"\.low = 1\.0 is not below high = 1\.0"),
    ({RATE: {"low": 0, "high": 1, "log": True}}, {"method": "random", "samples": 1}, r"low = 0\.0 has no logarithm"),
    ({RATE: {"low": 1}}, {}, r"\.high is missing: give a number"),
    ({RATE: {"low": 1, "high": 2, "steps": 3}}, {}, r"\.steps is unknown"),
    ({RATE: {"low": 1, "high": 2}}, {}, r"\.points = 0 says not how many values a grid tries"),
    (
        {"train.num_envs": {"low": 1, "high": 2, "points": 2}},
        {},
        r"is a range, and train\.num_envs is no number in the agent's state .*: give a list",
    ),
    ({RATE: [1]}, {"method": "bayes"}, r"sweep\.method = 'bayes' is unknown"),
    ({RATE: [1]}, {"method": "random"}, r"sweep\.samples = 0 is too small: give 1 or more"),
    ({RATE: [1]}, {"samples": 3}, r"sweep\.samples = 3 has no use in a grid"),
    ({RATE: [1]}, {"seeds": 0}, r"sweep\.seeds = 0 is too small: give 1 or more"),
    ({RATE: [1]}, {"test_seeds": 2**40}, r"sweep\.test_seeds = 1099511627776 is too large"),
    ({RATE: {"low": 1, "high": 2, "points": 10**6}}, {}, r"\.points = 1000000 is out of range"),
    ({RATE: [1]}, {"halving": {"rungs": 1}}, r"sweep\.halving\.rungs = 1 is out of range"),
    ({RATE: [1]}, {"halving": {"keep": 1}}, r"sweep\.halving\.keep = 1\.0 is no share"),
    ({RATE: [1]}, {"halving": {}}, r"sweep\.halving has nothing to choose from one member"),
    ({RATE: [1, 2]}, {"halving": {"rungs": 9}}, r"has rungs shorter than the 20 chunks of a run can tell apart"),
    ({RATE: [1, 2]}, {"halving": {}, "population": {}}, r"both replace the worst members"),
    ({RATE: [1, 2]}, {"population": {"period": 0}}, r"sweep\.population\.period = 0 is too small"),
    ({RATE: [1, 2]}, {"population": {"quantile": 0.6}}, r"sweep\.population\.quantile = 0\.6 is out of range"),
    ({RATE: [1, 2]}, {"population": {"factors": [0, 1]}}, r"sweep\.population\.factors = \[0\.0, 1\.0\] must be"),
    ({RATE: [1]}, {"population": {}}, r"has nothing to exchange with one member"),
    ({RATE: [1, 2]}, {"population": {"period": 20}}, r"period = 20 leaves no exchange, as a run has 19 evaluations"),
    ({"train.num_envs": [2, 4]}, {"population": {}}, r"members of other structure cannot take them over"),
    ({RATE: [1, 2]}, {"population": {}, "max_lanes": 3}, r"needs all its 8 lanes in one program, and 3 are allowed"),
]


@pytest.mark.parametrize(("parameters", "settings", "sentence"), WRONG)
def test_what_cannot_work_is_one_sentence(
    parameters: Any, settings: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps.runner, "run_lanes", lambda *_, **__: pytest.fail("something was trained"))
    with pytest.raises(InputError, match=sentence) as error:
        sweeps.sweep(config(parameters, **settings), out=tmp_path / "sweep")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "sweep").exists()


def test_wrong_tables_of_any_kind_are_sentences() -> None:
    names = [RATE, "agent", "agent.hidden_sizes", "train.num_envs", "env.id", "env.x.y", "replay.x", "train.agent"]
    keys = [field.name for field in dataclasses.fields(sweep_config.SweepConfig)]
    sentences: list[str] = []
    for seed in range(300):
        draw = random.Random(seed)
        values = [1e-3, 1e-2, 4, "ppo", *draw.sample(fuzz.VALUES, 4)]
        chosen = [draw.sample(values, draw.randint(1, 2)), {"low": 1e-3, "high": 1, "points": 2}, draw.choice(values)]
        parameters = {name: draw.choices(chosen, (6, 2, 1))[0] for name in draw.sample(names, draw.randint(1, 2))}
        settings = {draw.choice(keys): draw.choice(fuzz.VALUES)} if draw.random() < 0.3 else {}
        try:
            members.members(config(**{"parameters": parameters, **settings}))
            sentences.append("")
        except InputError as error:
            sentences.append(str(error))
        except Exception as error:
            raise AssertionError(f"{parameters} {settings}") from error
    assert 20 < sentences.count("") < 280
    assert all(not text or text.endswith((".", "?")) for text in sentences)
    assert not any("\n" in text for text in sentences)


def test_a_config_without_a_sweep_has_nothing_to_try(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\[sweep\] is missing: name what to sweep"):
        sweeps.sweep("ppo_cartpole", out=tmp_path / "sweep")


def test_tuning_seeds_are_never_those_of_a_plain_run() -> None:
    assert TUNING_STREAM > run_folder.MAX_SEEDS  # so no plain run's seed is the root of tuning seeds
    seeds = tuple(range(500))
    tuning, plain = (jax.random.key_data(Lanes(seeds, tuning=tuning).keys(7, 500)) for tuning in (True, False))
    both = np.concatenate([tuning, plain])
    assert len(np.unique(both, axis=0)) == 1000
