"""docs/sweeps.md: its configs load, its commands are the command line's, its gradient is that of finite differences."""

import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollax.experiments import cli, members, runner, sweep_config, sweeps
from rollax.experiments import config as configs
from tests.pages import blocks

PAGE = "docs/sweeps.md"


def test_the_configs_of_the_page_load() -> None:
    sweep, *additions = blocks(PAGE, "toml")
    made = configs.from_dict(tomllib.loads(sweep))
    found = members.members(made)
    assert len(found) == 16
    assert len(members.groups(found)) == 2
    halving, population = (configs.from_dict(tomllib.loads(sweep + addition)) for addition in additions)
    assert halving.sweep is not None
    assert halving.sweep.halving == sweep_config.HalvingConfig()
    assert population.sweep is not None
    assert population.sweep.population == sweep_config.PopulationConfig(period=2)


def test_the_commands_of_the_page_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole.toml").write_text(blocks(PAGE, "toml")[0])
    (tmp_path / "runs" / "cartpole").mkdir(parents=True)
    (tmp_path / "runs" / "cartpole" / "best.toml").write_text('[env]\nid = "CartPole-v1"\n')
    rows = [{"rank": 1}]
    found = SimpleNamespace(rows=rows, best=None, summary={"test": None}, folder=tmp_path)
    scores = {"config": "best", "seeds": 8, "iqm": 1.0, "interval": [1.0, 1.0], "unfinished": 0, "failed_seeds": []}
    trained = SimpleNamespace(summary={**scores, "env_steps": 1, "steps_per_second": 1.0}, folder=tmp_path)
    seeds: list[Any] = []
    monkeypatch.setattr(sweeps, "sweep", lambda config, number, **_: (seeds.append(number), found)[1])
    monkeypatch.setattr(sweeps, "resume_sweep", lambda folder, **_: (seeds.append(str(folder)), found)[1])
    monkeypatch.setattr(runner, "run", lambda config, **keywords: (seeds.append(keywords["seeds"]), trained)[1])
    for line in blocks(PAGE, "bash")[0].splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "rollax"
        assert cli.main(words[1:]) in (0, 1), capsys.readouterr().err  # 1: the stand-in has no best member
    assert seeds == [None, 2, "runs/cartpole", 8]


def test_the_gradient_of_the_page_is_that_of_finite_differences(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE, "python")
    page: dict[str, Any] = {}
    exec(compile(block, PAGE, "exec"), page)
    above, below = (float(page["differentiate"](rate)[0]) for rate in (1.2e-3, 0.8e-3))
    difference = (above - below) / 0.4e-3
    assert abs(difference) > 1.0
    assert float(page["gradient"]) == pytest.approx(difference, rel=2e-3)
    expected = f"loss {page['loss']:.1f}, d loss / d learning rate {page['gradient']:.1f}\n"
    assert capsys.readouterr().out == expected
