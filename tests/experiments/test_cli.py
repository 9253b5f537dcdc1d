from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rollax
from rollax import envs
from rollax.agents.registry import AGENTS
from rollax.envs.catalogue import ENVIRONMENTS
from rollax.errors import InputError
from rollax.experiments import (
    bench,
    bench_compile,
    bench_replay,
    bench_roofline,
    cli,
    commands,
    env_checks,
    plots,
    run_evaluation,
    runner,
)
from rollax.experiments.bench_roofline import Products, of_network
from rollax.experiments.config import ExperimentConfig, shipped

SCORES: dict[str, Any] = {"iqm": 495.25, "interval": [480.0, 500.0], "unfinished": 0}
SUMMARY: dict[str, Any] = {
    **SCORES,
    "seeds": 8,
    "env_steps": 501_760,
    "steps_per_second": 1_234_567.8,
    "failed_seeds": [],
}


@pytest.fixture(autouse=True)
def _devices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands set the number of devices unless the user has, and these run inside the tests' own process."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that `runner.run` was called with; it trains nothing."""
    calls: list[dict[str, Any]] = []

    def run(config: ExperimentConfig, **keywords: Any) -> Any:
        calls.append({"config": config, **keywords})
        return SimpleNamespace(summary={"config": config.name, **SUMMARY}, folder=keywords["out"])

    monkeypatch.setattr(runner, "run", run)
    return calls


def failing(error: BaseException) -> Any:
    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    return raise_it


def test_train(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "train ppo_cartpole --seeds 8 --seed 3 --out here --overwrite --set agent.discount=0.5 env.x=1"
    assert cli.main([*arguments.split(), "--set", "train.num_envs=8", "--quiet"]) == 0
    (call,) = runs
    config = call.pop("config")
    assert call == {
        "seeds": 8,
        "out": Path("here"),
        "overwrite": True,
        "progress": False,
        "init_from": None,
        "debug": False,
        "profile": None,
    }
    assert (config.train.seed, config.train.num_envs, config.agent.discount) == (3, 8, 0.5)
    assert config.env.kwargs == {"x": 1}
    score, curves = capsys.readouterr().out.splitlines()
    assert score == (
        "ppo_cartpole: greedy return IQM 495.25 [480.00, 500.00] over 8 seeds after 501,760 steps of each seed, "
        "1,234,568 steps per second"
    )
    assert curves == "curves: here/curves.png"


def test_train_defaults(runs: list[dict[str, Any]]) -> None:
    assert cli.main(["train", "ppo_acrobot"]) == 0
    (call,) = runs
    assert re.fullmatch(r"runs/ppo_acrobot-\d{8}-\d{6}", str(call["out"]))
    assert (call["seeds"], call["overwrite"], call["progress"]) == (1, False, True)
    assert call["config"].train.seed == 0


def test_devices_are_started_for_what_a_run_spreads(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(commands, "start_jax", started.append)
    assert cli.main(["train", "ppo_cartpole", "--seeds", "3"]) == 0
    spread = ["train.spread=environments", "train.num_envs=64"]
    assert cli.main(["train", "ppo_cartpole", "--seeds", "3", "--set", *spread]) == 0
    assert started == [3, 64]


def test_train_tells_what_failed(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SUMMARY, "failed_seeds", [1, 5])
    monkeypatch.setitem(SUMMARY, "unfinished", 7)
    monkeypatch.setitem(SUMMARY, "seeds", 1)
    assert cli.main(["train", "ppo_cartpole"]) == 0
    captured = capsys.readouterr()
    # Of one seed there is no interval.
    assert "greedy return 495.25 (7 episodes unfinished) after" in captured.out.splitlines()[0]
    assert captured.err == "failed, their learners stopped being finite: seeds 1, 5\n"
    monkeypatch.setitem(SUMMARY, "failed_seeds", [0])
    monkeypatch.setitem(SUMMARY, "iqm", float("nan"))
    assert cli.main(["train", "ppo_cartpole"]) == 1
    assert "no episode ended: set or raise evaluation.step_cap" in capsys.readouterr().err


def test_train_an_outside_agent(runs: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Config:\n    alpha: float = 0.1\n"
        "def make(observation_space, action_space, config: Config): ...\n"
    )
    agent = f"{tmp_path / 'mine.py'}:make"
    assert cli.main(["train", "ppo_cartpole", "--agent", agent, "--set", "agent.alpha=0.2"]) == 0
    assert (runs[0]["config"].train.agent, runs[0]["config"].agent.alpha) == (agent, 0.2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["needs a CONFIG, or --resume RUN"]),
        (["ppo_cartpol"], ["'ppo_cartpole'"]),
        (["no/such/file.toml"], ["no/such/file.toml"]),
        (["."], ["is a folder"]),
        (["ppo_cartpole", "--seed", "-1"], ["train.seed = -1"]),
        (["ppo_cartpole", "--set", "agent.lerning_rate=1"], ["agent.lerning_rate", "'learning_rate'"]),
        (["ppo_cartpole", "--set", "nothing"], ["'nothing'", "table.key=value"]),
        (["ppo_cartpole", "--agent", "nope"], ["train.agent = 'nope'"]),
        (["ppo_cartpole", "--agent", "nope.py:make"], ["nope.py"]),
        # From here on the runner refuses, before it compiles anything.
        (["ppo_cartpole", "--seeds", "0"], ["seeds = 0"]),
        (["ppo_cartpole", "--seeds", "-3"], ["seeds = -3"]),
        (["ppo_cartpole", "--seeds", "99999999999"], ["seeds = 99999999999"]),
        (["ppo_cartpole", "--set", "env.id=CartPole"], ["env.id = 'CartPole'", "CartPole-v1"]),
        (["ppo_cartpole", "--set", "agent.num_minibatches=3"], ["num_minibatches = 3"]),
        (["ppo_cartpole", "--set", "agent.learning_rate=-1"], ["learning_rate = -1"]),
        (["ppo_cartpole", "--out", __file__], ["is a file", "--out"]),
        (["ppo_cartpole", "--out", str(Path(__file__).parent)], ["is not empty", "--out"]),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rollax: error: ")
    assert err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    assert list(tmp_path.iterdir()) == []  # no folder of a run that never began


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trian"],
        ["train", "ppo_cartpole", "--seeds", "many"],
        ["train", "ppo_cartpole", "--see", "3"],
        ["list", "runs"],
        ["bench"],
        ["bench", "mpo"],
        ["eval"],
    ],
)
def test_arguments_that_cannot_be_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        cli.main(arguments)
    assert status.value.code == 2
    assert "usage: rollax" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("seeds = 0 is no number of seeds."), 2, "rollax: error: seeds = 0 is no number of seeds.\n"),
        (OSError(28, "No space left on device", "runs/x"), 1, "rollax: error: [Errno 28] No space left on device: "),
        (KeyboardInterrupt(), 130, "rollax: interrupted\n"),
    ],
)
def test_a_run_that_ends_early(
    error: BaseException, status: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run", failing(error))
    assert cli.main(["train", "ppo_cartpole"]) == status
    assert capsys.readouterr().err.startswith(line)


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", failing(ValueError("a fault")))
    with pytest.raises(ValueError, match="a fault"):
        cli.main(["train", "ppo_cartpole"])


def test_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"env_steps": 0, "return_std": 0.5, "length_mean": 490.5, "finished": 10, "unfinished": 0}
    rows = [{"seed": seed, "return_mean": 1234.5 + seed, **row} for seed in range(2)]
    calls: list[Any] = []

    def evaluate_run(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        calls.append((*arguments, keywords))
        return {**SCORES, "seeds": rows}

    monkeypatch.setattr(run_evaluation, "evaluate_run", evaluate_run)
    assert cli.main(["eval", "runs/x", "--episodes", "10", "--seed", "4"]) == 0
    assert cli.main(["eval", "runs/x", "--best"]) == 0
    assert calls == [(Path("runs/x"), 10, 4, {"best": False}), (Path("runs/x"), None, 0, {"best": True})]
    assert (
        capsys.readouterr().out.splitlines()
        == [
            "seed  return_mean  return_std  length_mean  finished  unfinished",
            "   0     1,234.50        0.50       490.50        10           0",
            "   1     1,235.50        0.50       490.50        10           0",
            "greedy return IQM 495.25 [480.00, 500.00] over 2 seeds",
        ]
        * 2
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eval", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run", "--seed", "-1"], "--seed = -1"),
        (["eval", "no/such/run", "--seed", "9999999999"], "--seed = 9999999999"),
        (["plot", "no/such/run"], "no/such/run"),
        (["compare", "no/such/run"], "no/such/run"),
        (["compare", "NAME=no/such/run"], "'no/such/run' does not exist"),
        (["compare", "x", "--threshold", "nan"], "threshold = nan"),
        (["table", "--docs", "no/such/folder/scores.md"], "make 'no/such/folder' first"),
        (["table", "--minutes", "nan", "--docs", "scores.md"], "minutes = nan"),
        (["plot", __file__], "is a file"),
        (["bench", "ppo", "--seeds", "0"], "seeds = 0"),
        (["bench", "ppo", "--json", "no/such/folder/file.json"], "--json = 'no/such/folder/file.json'"),
        (["bench", "ppo", "--json", "."], "--json = '.'"),
        (["bench", "env", "--against", "true"], "--against has no use with bench env"),
        (
            ["bench", "ppo", "--against", "no-such-program --fast"],
            "--against 'no-such-program --fast' names no program",
        ),
        (["bench", "ppo", "--against", "'"], "is no command line"),
        (["check-env"], "needs MODULE:NAME"),
        (["check-env", "CartPole-v1", "--all", "--out", "file"], "needs MODULE:NAME"),
        (["check-env", "--all"], "--all and --out FILE"),
        (["check-env", "CartPole"], "'CartPole-v1'"),
        (["check-env", "no_such_file.py:Walk"], "there is no file 'no_such_file.py'"),
        (["check-env", "CartPole-v1", "--allow", "nan", "same-rest"], "did you mean 'same-reset'"),
        (["check-env", "CartPole-v1", "--time-limit", "0"], "time_limit = 0 must be at least 1"),
    ],
)
def test_other_commands_refuse(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_plot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plots, "plot_run", lambda folder: folder / "curves.png")
    assert cli.main(["plot", "runs/x"]) == 0
    assert capsys.readouterr().out == "runs/x/curves.png\n"


@pytest.mark.parametrize(("arguments", "seeds"), [([], (1, 8)), (["--seeds", "3"], (3,))])
def test_bench(
    arguments: list[str], seeds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def run_ppo(seeds: tuple[int, ...], memories: list[str], rival: Any = None) -> list[dict[str, Any]]:
        assert memories == ["none"] and rival is None
        return [{"name": "ppo", "seeds": count, "steps_per_second": 1e6 * count} for count in seeds]

    monkeypatch.setattr(bench, "run_ppo", run_ppo)
    assert cli.main(["bench", "ppo", *arguments, "--json", str(tmp_path / "bench.json")]) == 0
    assert json.loads((tmp_path / "bench.json").read_text()) == run_ppo(seeds, ["none"])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "seeds", "steps_per_second"]
    assert [line.split()[2] for line in lines] == [f"{1e6 * count:,.2f}" for count in seeds]


def test_bench_sac_shows_the_roofline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    small = ("agent.hidden_sizes=[8]", "replay.batch_size=8")
    monkeypatch.setattr(bench, "PENDULUM_SETTING", (*bench.PENDULUM_SETTING, *small))
    (row,) = bench.run_sac(seeds=(1,), repeats=1)
    assert row["roofline"] > 0
    assert row["steps_per_second"] > 0
    assert row["peak_megabytes"] > 10
    monkeypatch.setattr(bench, "run_sac", lambda seeds, rival: [row])
    assert cli.main(["bench", "sac", "--seeds", "1"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert "roofline" in header.split()
    assert f"{row['roofline']:,.2f}" in line.split()


def test_products_of_a_network() -> None:
    # A pass backwards has no product for the gradient of the observations.
    first, second, last = of_network(128, (4, 120, 84, 2), forwards=2.0, backwards=1.0)
    assert first == Products(128, 4, 120, 3.0)
    assert second == Products(128, 120, 84, 4.0)
    assert last == Products(128, 84, 2, 4.0)


def test_a_roofline_is_one_over_the_sum_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_roofline, "_time", lambda product, seeds, seconds: product.rows * seeds * seconds)
    # 0.5 products of 2 seconds each and 1 of 4 for each step of each of 4 seeds at once.
    assert bench_roofline.roofline([Products(1, 1, 1, 0.5), Products(2, 1, 1, 1.0)], 4, 0.5) == 4 / (0.5 * 2 + 4)


def test_bench_td3_has_the_sizes_of_sac(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    timed: list[ExperimentConfig] = []
    products: list[list[Products]] = []

    def time(config: ExperimentConfig, name: str, of_update: list[Products], *rest: Any) -> dict[str, Any]:
        timed.append(config)
        products.append(of_update)
        return {"name": name}

    monkeypatch.setattr(bench, "_time", time)
    assert cli.main(["bench", "sac", "--seeds", "1"]) == 0
    assert cli.main(["bench", "td3", "--seeds", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1::2]] == ["sac", "td3"]
    assert products == [[Products(256, 256, 256, 16)], [Products(256, 256, 256, 11.5)]]
    sac, td3 = timed
    assert td3.replay == sac.replay
    assert td3.train.updates_per_iteration == td3.train.num_steps == sac.train.num_steps
    agents: list[Any] = [sac.agent, td3.agent]
    assert {agent.hidden_sizes for agent in agents} == {(256, 256)}
    assert agents[1].num_critics == agents[1].actor_period == 2


def test_bench_ppo_with_memories(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measured(config: Any, name: str, products: list[Products], seeds: int, *rest: Any) -> dict[str, Any]:
        assert bool(products) == (config.agent.memory == "none")
        return {"trained": config.agent.memory, "seeds": seeds}

    monkeypatch.setattr(bench, "_time", measured)
    assert cli.main(["bench", "ppo", "--seeds", "1", "--memory", "none", "linear"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["memory", "trained", "seeds"]
    assert [line.split() for line in lines] == [["none", "none", "1"], ["linear", "linear", "1"]]


def test_bench_against_a_command_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setattr(bench, "DQN_SETTING", (*bench.DQN_SETTING, "train.total_env_steps=100", "log.every=100"))
    turns = tmp_path / "turns"
    # Its figures rise with each turn, the rate from 1,000 for each seed.
    program = f"""import json
with open({str(turns)!r}, 'a') as file:
    turn = file.write('x') and file.tell()
print('compiling')
figures = dict(steps_per_second=1000 * {{seeds}} * turn, compile_seconds=turn, peak_megabytes=100 * turn, other='x')
print(json.dumps(figures))"""
    command = shlex.join([sys.executable, "-c", program])
    measured = tmp_path / "bench.json"
    assert cli.main(["bench", "dqn", "--seeds", "2", "--against", command, "--json", str(measured)]) == 0
    (row,) = json.loads(measured.read_text())
    assert turns.read_text() == "xxxxx"  # after each of our five measurements
    assert row["against"] == 6000  # the medians of turns 1 to 5
    assert row["ratio"] == row["steps_per_second"] / 6000
    assert (row["against_compile_seconds"], row["against_peak_megabytes"]) == (3, 300)
    assert "against_other" not in row


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('it broke')", "ended with status 1 (it broke)"),
        ("print('fast')", "printed 'fast' last"),
        ("print(-1)", "printed '-1' last"),
        ("print('{}')", "printed '{}' last"),
    ],
)
def test_a_rival_has_to_print_its_rate(program: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        bench.Rival(shlex.join([sys.executable, "-c", program])).measure(1)


def test_a_rival_may_print_json() -> None:
    program = "import json; print(json.dumps({'steps_per_second': 2.5, 'compile_seconds': 4, 'jax': '0.10.2'}))"
    measured = bench.Rival(shlex.join([sys.executable, "-c", program])).measure(1)
    assert measured == {"steps_per_second": 2.5, "compile_seconds": 4}


def test_a_rival_may_print_a_number_alone() -> None:
    assert bench.Rival(shlex.join([sys.executable, "-c", "print(2.5)"])).measure(1) == {"steps_per_second": 2.5}


@pytest.mark.thorough
def test_bench_compile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_compile.run_compile, "__defaults__", ((1,), ("reinforce_cartpole",), 1))
    assert cli.main(["bench", "compile", "--seeds", "2"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "seeds", "cold_seconds", "warm_seconds", "device", "jax"]
    name, seeds, cold, warm, *_ = line.split()
    assert (name, seeds) == ("reinforce_cartpole", "2")
    assert float(cold) > 0 and float(warm) > 0


def test_bench_env(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    monkeypatch.setattr(bench.run_env, "__defaults__", (("CartPole-v1",), 2, 4, 1))
    assert cli.main(["bench", "env"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["name", "reset", "steps_per_second"]
    assert len(lines) == 3


@pytest.mark.thorough
def test_bench_replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_replay, "STEPS", 3)
    monkeypatch.setattr(bench_replay.run_replay, "__defaults__", ((1,), ((128, "float32[2]"),), 1))
    assert cli.main(["bench", "replay", "--seeds", "2"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:6] == ["name", "seeds", "buffer", "add_us", "cycle_us", "memory"]
    assert len(lines) == 6


def test_check_env(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []

    def check(env: Any, **keywords: Any) -> tuple[envs.Finding, ...]:
        calls.append((env, keywords))
        return envs.Finding("nan", "A number is NaN: divide."), envs.Finding("jit", "Results differ: branch.")

    monkeypatch.setattr(envs, "check", check)
    assert cli.main(["check-env", "CartPole-v1", "--time-limit", "7", "--allow", "jit"]) == 1
    assert cli.main(["check-env", "rollax.envs:Box", "--eager-steps", "1", "--allow", "jit", "nan"]) == 0
    assert calls == [
        ("CartPole-v1", {"eager_steps": 3, "time_limit": 7}),
        (envs.Box, {"eager_steps": 1, "time_limit": None}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "nan: A number is NaN: divide.",
        "rollax.envs:Box: no findings but those allowed (2)",
    ]


def test_check_env_of_all_ids_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {
        "right": (0, "right: no findings\n", ""),
        "wrong": (1, "jit: Results differ: branch.\nnan: A number is NaN.\n", "a warning\n"),
        "missing": (2, "", "noise\nrollax: error: it needs a file.\n"),
        "killed": (-9, "", ""),
    }
    checked: list[str] = []

    def run(command: list[str], **keywords: Any) -> Any:
        env_id = command[4]
        checked.append(env_id)
        assert command[1:] == ["-m", "rollax", "check-env", env_id, "--eager-steps", "1"]
        if env_id == "slow":
            raise subprocess.TimeoutExpired(command, keywords["timeout"])
        status, out, err = outcomes[env_id]
        return subprocess.CompletedProcess(command, status, out, err)

    monkeypatch.setattr(env_checks.subprocess, "run", run)
    monkeypatch.setattr(commands, "_environments", lambda: ["right", "wrong"])
    out = tmp_path / "findings.jsonl"
    command = ["check-env", "--all", "--out", str(out)]
    assert cli.main(command) == 1
    assert cli.main([*command, "--allow", "jit", "nan"]) == 0
    with out.open("a") as file:
        file.write('{"env": "missing", "find')  # a process that was killed as it wrote
    monkeypatch.setattr(commands, "_environments", lambda: ["right", "wrong", "missing", "slow", "killed"])
    assert cli.main([*command, "--allow", "jit", "nan"]) == 1
    assert checked == ["right", "wrong", "missing", "slow", "killed"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["right: no findings", "wrong: jit, nan", "right: no findings", "wrong: no findings"]
    assert lines[6:] == [
        "missing: it needs a file.",
        "slow: the check took longer than 120 seconds",
        "killed: exit status -9",
    ]
    whole = out.read_text().splitlines()
    written = [json.loads(line) for line in (*whole[:2], *whole[3:])]
    assert [result["env"] for result in written] == ["right", "wrong", "missing", "slow", "killed"]
    assert written[1]["findings"] == {"jit": "Results differ: branch.", "nan": "A number is NaN."}


def test_list_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["agents:", "envs:", "configs:"]
    assert {f"  {name}" for name in [*ENVIRONMENTS, *shipped()]} <= set(lines)


@pytest.mark.parametrize(
    ("kind", "names"), [("agents", list(AGENTS)), ("envs", list(ENVIRONMENTS)), ("configs", shipped())]
)
def test_list_one_kind(kind: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", kind]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        cli.main(arguments)
    assert status.value.code == 0
    assert capsys.readouterr().out.startswith(
        f"rollax {rollax.__version__}" if arguments == ["--version"] else "usage:"
    )


def in_a_process(program: str, **variables: str) -> str:
    unset = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    finished = subprocess.run(
        [sys.executable, "-c", program], env={**environment, **variables}, capture_output=True, text=True, check=True
    )
    return finished.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list"], ["list", "configs"], ["train"], ["nope"]])
def test_commands_that_only_tell_import_no_jax(arguments: list[str]) -> None:
    program = f"""
import sys
from rollax.experiments import cli
try:
    cli.main({arguments})
except SystemExit:
    pass
print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib', 'flax', 'matplotlib')])
"""
    assert in_a_process(program) == "[]"


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
START = "from rollax.experiments import startup; startup.start_jax({seeds}); import jax; print({shown})"


@pytest.mark.parametrize(
    ("seeds", "variables", "devices"),
    [
        (1, {}, 1),
        (2, {}, min(CORES, 2)),
        (10_000, {}, CORES),
        (-1, {}, 1),  # the runner refuses it later
        (1, {"JAX_NUM_CPU_DEVICES": "3"}, 3),
        (1, {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
    ],
)
def test_devices_are_as_many_as_seeds_and_cores_unless_the_user_has_set_them(
    seeds: int, variables: dict[str, str], devices: int
) -> None:
    program = START.format(seeds=seeds, shown="jax.local_device_count()")
    assert in_a_process(program, **variables) == str(devices)


def test_devices_that_run_already_are_used() -> None:
    program = "import jax; jax.devices();" + START.format(seeds=8, shown="jax.local_device_count()")
    assert in_a_process(program) == "1"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"JAX_COMPILATION_CACHE_DIR": "mine"}, "mine"),
        ({"XDG_CACHE_HOME": "caches"}, "caches/rollax/jax"),
        ({"HOME": "home", "XDG_CACHE_HOME": ""}, "home/.cache/rollax/jax"),
    ],
)
def test_compiled_programs_are_kept_where_the_user_says(variables: dict[str, str], folder: str) -> None:
    program = START.format(seeds=1, shown="jax.config.jax_compilation_cache_dir")
    assert in_a_process(program, **variables) == folder
