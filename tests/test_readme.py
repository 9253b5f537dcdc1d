"""Every command and every snippet of the README runs, in its order, in an empty folder."""

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rollax.agents import AGENTS
from rollax.envs import transforms
from rollax.experiments import bench, cli
from rollax.experiments import config as configs
from rollax.experiments.trainer import make_trainer
from tests import pages

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


blocks = functools.partial(pages.blocks, "README.md")


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    split = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in split if words and words[0] == program]


def test_readme_has_what_these_tests_run() -> None:
    assert [words[0] for words in commands("make")] == ["train", "test"]
    assert {words[0] for words in commands("rollax")} == {
        "list",
        "config",
        "train",
        "eval",
        "plot",
        "render",
        "bench",
        "check-env",
    }
    assert len(blocks("python")) == 7
    assert len(blocks("toml")) == 3


@pytest.mark.parametrize("target", [words[0] for words in commands("make")])
def test_make_has_the_target(target: str) -> None:
    dry_run = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry_run.returncode == 0, dry_run.stderr
    wanted = {"train": "rollax train ppo_cartpole --seeds 8", "test": "pytest"}[target]
    assert wanted in dry_run.stdout


def test_ci_runs_the_test_command() -> None:
    assert re.search(r"^[^#]*\bmake test\b", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "SECONDS", 0.2)  # the commands are the same, figures less exact and runs shorter
    for words in commands("rollax"):
        words += ["--set", "train.total_env_steps=20_480"] if words[0] == "train" else []
        status = cli.main(words)
        captured = capsys.readouterr()
        assert status == 0, f"rollax {shlex.join(words)}\n{captured.err}"
        assert captured.out.strip()
    written = {file.name for file in (tmp_path / "runs" / "cartpole").iterdir()}
    assert written >= {"config.toml", "metrics.csv", "evaluations.csv", "summary.json", "curves.png", "checkpoints"}


@pytest.mark.parametrize("index", range(7))
def test_snippet(index: int, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(blocks("python")[index], encoding="utf-8")
    ran = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    expected = re.findall(r"print\(.*\)  # (\(.*?\))", blocks("python")[index])
    assert ran.stdout.splitlines() == expected


def test_config_is_the_shipped_one() -> None:
    shown = configs.from_dict({"name": "ppo_cartpole", **tomllib.loads(blocks("toml")[0])})
    assert shown == configs.load("ppo_cartpole")


def test_config_with_transforms_builds() -> None:
    trainer = make_trainer(configs.from_dict(tomllib.loads(blocks("toml")[1])))
    assert trainer.env.observation_space().shape == (8,)
    named = re.search(r"The transforms are (.*) \(`rollax\.envs\.transforms`\)", README)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named.group(1))) == set(transforms.TRANSFORMS)


def test_config_with_replay_builds_and_every_agent_is_named() -> None:
    shown = tomllib.loads(blocks("toml")[2])
    trainer = make_trainer(configs.from_dict({"env": {"id": "CartPole-v1"}, **shown}))
    assert trainer.buffer is not None
    named = re.search(r"The agents are (.*)\.\n", README)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named.group(1))) == set(AGENTS)


def test_folder_map_is_complete() -> None:
    shown = set(re.findall(r"^\| `([a-z/]+)/` \|", README, re.MULTILINE))
    assert shown == {"envs", "replay", "agents", "experiments", "src/rollax", "tests", "docs"}
    assert all((ROOT / folder).is_dir() for folder in shown)
