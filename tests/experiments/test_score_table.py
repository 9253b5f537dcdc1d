"""`rollax table`: what it trains and in which order, what it keeps, and the page made from run folders alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.contract.jobs import BEACON, COUNTER, ROLLOUT_AGENT, TOYS

from rollax import InputError
from rollax.experiments import cli, provenance, run_folder, runner, score_page, score_table
from rollax.experiments import config as configs
from rollax.experiments.trainer import make_trainer

SUMMARY: dict[str, Any] = {
    "seeds": 2,
    "env_steps": 100_352,
    "iqm": 480.25,
    "interval": [470.0, 490.0],
    "failed_seeds": [],
    "run_seconds": 75.4,
    "steps_per_second": 123_456.7,
    "device": "cpu",
    "devices": 2,
    "machine": "a machine",
    "commit": "abc",
    "versions": {"rollax": "1.2", "jax": "3.4"},
    "finished_at": "2026-01-02T03:04:05+00:00",
}


def write_config(folder: Path, name: str, steps: int, env: str = COUNTER, **train: Any) -> str:
    path = folder / f"{name}.toml"
    settings = {"agent": ROLLOUT_AGENT, "total_env_steps": steps, "num_envs": 2, "num_steps": 4, "unroll": 1, **train}
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    cap = "episodes = 2\nstep_cap = 8"
    path.write_text(f'[env]\nid = "{env}"\n[train]\n{lines}\n[evaluation]\n{cap}\n', encoding="utf-8")
    return str(path)


def write_run(folder: Path, name: str, env: str = 'id = "CartPole-v1"', **summary: Any) -> None:
    run = run_folder.create(folder / name)
    run.write_config(f'name = "{name}"\n[env]\n{env}\n[train]\nagent = "ppo"\n')
    run.write_summary({**SUMMARY, **summary})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How runs were begun, and their names; none trains, and each is finished at once."""
    calls: list[tuple[str, str]] = []

    def finish(how: str, path: Path) -> None:
        calls.append((how, path.name))
        run_folder.RunFolder(path).write_summary(SUMMARY)

    def run(config: Any, seeds: int, *, out: Path, overwrite: bool, progress: bool) -> None:
        assert (seeds, overwrite, progress) == (2, True, False)
        made = run_folder.create(out, overwrite)
        made.write_manifest({"seeds": seeds})
        made.write_config(configs.to_toml(config))
        finish("run", out)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "resume", lambda path, progress: finish("resume", path))
    return calls


def test_the_cheapest_is_trained_first_and_minatar_last(tmp_path: Path, started: list[tuple[str, str]]) -> None:
    sources = [
        write_config(tmp_path, "long", 6400),
        write_config(tmp_path, "minatar", 8, "Breakout-MinAtar"),
        write_config(tmp_path, "short", 640),
        write_config(tmp_path, "suite", 8, "jumanji/Snake-v1"),
    ]
    table = {"seeds": 2, "out": tmp_path / "runs", "docs": tmp_path / "scores.md"}
    outcomes = list(score_table.run_table(sources, **table))
    assert [outcome.name for outcome in outcomes] == ["suite", "short", "long", "minatar"]
    assert "jumanji" in outcomes[0].reason
    assert str(outcomes[1]) == "short: IQM 480.2 [470.0, 490.0]"
    assert started == [("run", name) for name in ("short", "long", "minatar")]
    page = (tmp_path / "scores.md").read_text()
    assert all(f"`{name}`" in page for name in ("short", "long", "minatar"))
    assert f"- `suite`: {outcomes[0].reason}" in page.partition("## Without a score")[2]


def test_cost_is_state_times_rows_acted_on_and_learnt_from() -> None:
    replay = {"capacity": 64, "batch_size": 16, "n_step": 3}
    tables: dict[str, Any] = {
        "env": {"id": BEACON},
        "train": {"agent": f"{TOYS}/transition_agent.py:make", "num_envs": 4, "num_steps": 2, "unroll": 1},
        "replay": replay,
    }
    tables["train"] |= {"total_env_steps": 800, "updates_per_iteration": 5}
    trainer = make_trainer(configs.from_dict(tables))
    state = trainer.agent.init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(state))
    assert score_table.cost(trainer) == size * (800 + 100 * 5 * 16 * 3)
    once, twice = (
        score_table.cost(make_trainer(configs.load("ppo_cartpole", [f"agent.num_epochs={epochs}"])))
        for epochs in (1, 2)
    )
    assert twice == 1.5 * once


def test_finished_runs_are_kept_and_interrupted_ones_go_on(tmp_path: Path, started: list[tuple[str, str]]) -> None:
    sources = [write_config(tmp_path, name, steps) for name, steps in (("a", 8), ("b", 80), ("c", 800))]
    table = {"seeds": 2, "out": tmp_path / "runs", "docs": tmp_path / "scores.md"}
    list(score_table.run_table(sources, **table))
    (tmp_path / "runs" / "b" / "summary.json").unlink()  # as an interrupt leaves it
    (tmp_path / "runs" / "c" / "config.toml").unlink()  # as a kill at the very start leaves it
    (tmp_path / "runs" / "c" / "summary.json").unlink()
    started.clear()
    (tmp_path / "scores.md").unlink()
    outcomes = list(score_table.run_table(sources, minutes=0, **table))
    assert [bool(outcome.summary) for outcome in outcomes] == [True, False, False]
    page = (tmp_path / "scores.md").read_text()
    assert "- `b`: interrupted: the time was over\n- `c`: not begun: the time was over\n" in page
    list(score_table.run_table(sources, **table))
    assert started == [("resume", "b"), ("run", "c")]
    assert "Without a score" not in (tmp_path / "scores.md").read_text()


def test_a_real_run_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    source, out, docs = write_config(tmp_path, "tiny", 16), tmp_path / "runs", tmp_path / "scores.md"
    assert cli.main(["table", source, "--seeds", "2", "--out", str(out), "--docs", str(docs), "--quiet"]) == 0
    summary = json.loads((out / "tiny" / "summary.json").read_text())
    assert capsys.readouterr().out.startswith(f"tiny: IQM {summary['iqm']:.2f} [")
    row = next(line for line in docs.read_text().splitlines() if "`tiny`" in line)
    assert f"| {summary['iqm']:.2f} |" in row
    assert "| 2 | 16 |" in row
    assert (summary["machine"], summary["commit"]) == (provenance.machine(), provenance.commit())


def test_the_page_is_made_from_the_run_folders(tmp_path: Path) -> None:
    write_run(tmp_path, "ppo_cartpole")
    write_run(tmp_path, "dqn_cartpole", failed_seeds=[1], iqm=None, interval=[None, None], run_seconds=7500, commit="d")
    write_run(tmp_path, "ppo_catch", 'id = "Catch-bsuite"', iqm=0.5, interval=[0.25, 0.75], run_seconds=180)
    write_run(tmp_path, "ppo_long", 'id = "CartPole-v1"\nmax_steps_in_episode = 1000')
    page = score_page.page(tmp_path, {"pqn_x": "not begun yet"})
    table, _, notes = page.partition("## Runs")
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    assert header == list(score_page._COLUMNS)
    tail = ["100,352", "{}", "123,000", "500.0 (DQN, 50,000 steps; 1)"]
    assert rows == [
        ["CartPole-v1", "`dqn_cartpole`", "ppo", "–", "[–, –]", "2 (1 failed)", tail[0], "2.1 h", *tail[2:], "a"],
        ["CartPole-v1", "`ppo_cartpole`", "ppo", "480.2", "[470.0, 490.0]", "2", tail[0], "75 s", *tail[2:], "b"],
        # Another task: no public figure is known.
        [
            "CartPole-v1, max_steps_in_episode=1000",
            "`ppo_long`",
            *["ppo", "480.2", "[470.0, 490.0]", "2", "100,352", "75 s", "123,000", "", "b"],
        ],
        [
            "Catch-bsuite",
            "`ppo_catch`",
            *["ppo", "0.50", "[0.25, 0.75]", "2", "100,352", "3 min", "123,000", "1.00 (PPO, 96,000 steps; 2)", "b"],
        ],
    ]
    assert "- b: 2026-01-02, commit abc, rollax 1.2, jax 3.4; a machine, 2 devices (cpu)" in notes
    assert re.search(r"^- 2: gymnax-blines", notes, re.MULTILINE)
    assert notes.endswith("## Without a score\n\n- `pqn_x`: not begun yet\n")


def test_many_notes_have_marks_of_their_own() -> None:
    assert [score_page._letter(number) for number in (1, 26, 27, 52, 53, 703)] == ["a", "z", "aa", "az", "ba", "aaa"]


def test_bad_input(tmp_path: Path, started: list[tuple[str, str]]) -> None:
    (tmp_path / "deep").mkdir()
    one, same_name = write_config(tmp_path, "one", 8), write_config(tmp_path / "deep", "one", 16)
    table: dict[str, Any] = {"seeds": 2, "out": tmp_path / "runs", "docs": tmp_path / "scores.md"}
    list(score_table.run_table([one], **table))
    for sources, options, words in (
        ([one], {"seeds": 0}, "seeds = 0 must be between 1 and"),
        ([one], {"minutes": -1.0}, r"minutes = -1\.0 is no time"),
        ([one], {"docs": tmp_path / "none" / "scores.md"}, "is in no folder that exists"),
        ([one], {"docs": tmp_path}, "--docs = .* cannot be written .*: name another file"),
        ([one], {"out": tmp_path / "scores.md"}, r"--out = .*scores\.md' is no folder"),
        ([one, same_name], {}, "two configs have the name 'one'"),
        ([same_name], {}, r"runs/one' is one of another config: move it away, or choose another --out"),
        ([one], {"seeds": 3}, "is one of 2 seeds in place of 3"),
        (["ppo_cartpol"], {}, "'ppo_cartpole'"),
    ):
        with pytest.raises(InputError, match=words):
            list(score_table.run_table(sources, **{**table, **options}))
    write_run(tmp_path / "runs", "old")
    (tmp_path / "runs" / "old" / "summary.json").write_text('{"seeds": 1, "failed_seeds": []}')
    with pytest.raises(InputError, match="lacks 'env_steps': another version wrote it"):
        list(score_table.run_table([one], **table))


def test_a_commit_is_that_of_this_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = provenance.commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{12,}(-dirty)?", found)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "site-packages" / "provenance.py"))
    assert provenance.commit() is None
    assert re.search(r", \d+ cores?$", provenance.machine())
