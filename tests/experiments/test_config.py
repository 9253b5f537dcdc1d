from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollax import experiments
from rollax.agents import ppo
from rollax.envs.catalogue import SUITES
from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments.config import (
    EnvConfig,
    EvaluationConfig,
    ExperimentConfig,
    ReplayConfig,
    TrainConfig,
    check,
    from_dict,
    load,
    to_toml,
)

CARTPOLE: dict[str, Any] = {"env": {"id": "CartPole-v1"}}


@dataclasses.dataclass(frozen=True)
class StandInConfig:
    step_size: float = 0.1
    network: Any = None


def make(observation_space: Any, action_space: Any, config: StandInConfig) -> Any:
    raise NotImplementedError  # nothing builds an agent here


@dataclasses.dataclass
class StandInEnv:
    size: int = 3

    def reset(self) -> None:
        raise NotImplementedError


AGENT_FILE = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Config:
    step_size: float = 0.1
    learning_rate: float = 0.5

def make(observation_space, action_space, config: Config):
    raise NotImplementedError
"""


@pytest.fixture
def agent_file(tmp_path: Path) -> str:
    (tmp_path / "my_algo.py").write_text(AGENT_FILE)
    return f"{tmp_path / 'my_algo.py'}:make"


def message(function: Any, *arguments: Any, **keywords: Any) -> str:
    """The sentence that bad input gets."""
    with pytest.raises(InputError) as error:
        function(*arguments, **keywords)
    text = str(error.value)
    assert "\n" not in text
    return text


# Loading


def test_shipped_are_the_files_of_the_folder() -> None:
    folder = Path(__file__).parents[2] / "experiments" / "configs"
    assert configs.shipped() == sorted(path.stem for path in folder.glob("*.toml"))
    assert {"ppo_cartpole", "ppo_acrobot", "ppo_pendulum"} <= set(configs.shipped())


@pytest.mark.parametrize("name", configs.shipped())
def test_shipped_config_loads_and_fits_its_agent(name: str) -> None:
    config = load(name)
    assert config.name == name
    # A config of a published variant has its name.
    variants = {
        "ppo": {"ppo", "dpo"},
        "dqn": {"dqn", "doubledueling", "c51", "qrdqn", "iqn", "rainbow"},
        "sac": {"sac", "tqc", "crossq"},
        "ddpg": {"ddpg", "td3", "d4pg"},
    }
    assert name.split("_")[0] in variants.get(config.train.agent, {config.train.agent})
    suite = str(config.env.id).partition("/")[0]
    if suite in SUITES:
        pytest.importorskip(SUITES[suite].package)
    experiments.make_trainer(config)


def test_contract_values_of_ppo_cartpole() -> None:
    config = load("ppo_cartpole")
    assert config.env == EnvConfig("CartPole-v1")
    assert config.train == TrainConfig("ppo", 500_000, 4, 128)
    assert config.agent == ppo.Config(learning_rate=config.agent.learning_rate)  # which is tuned for this one
    assert config.replay is None
    assert config.evaluation == EvaluationConfig(every=0, episodes=128, env=None, step_cap=0)


@pytest.mark.parametrize("name", configs.shipped())
def test_written_config_reads_back_equal(name: str, tmp_path: Path) -> None:
    config = load(name)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load(tmp_path / "config.toml") == config


def test_everything_set_reads_back_equal() -> None:
    config = from_dict(
        {
            "name": "all of it",
            "env": {"id": "DeepSea-bsuite", "size": 8, "params": {"a": [1, 2], "b": math.inf}, "kwargs": "kept"},
            "train": {"total_env_steps": 1e4, "seed": 2**31 - 1},
            "agent": {"hidden_sizes": [], "learning_rate": 1},
            "replay": {"capacity": 4096, "batch_size": 32, "n_step": 3},
            "evaluation": {"env": {"id": "DeepSea-bsuite", "size": 9}, "episodes": 1},
            "log": {"every": 1000},
        }
    )
    assert config.env.kwargs == {"size": 8, "params": {"a": [1, 2], "b": math.inf}, "kwargs": "kept"}
    assert config.evaluation.env == EnvConfig("DeepSea-bsuite", {"size": 9})
    assert config.train.total_env_steps == 10_000
    assert config.agent.hidden_sizes == ()
    assert config.agent.learning_rate == 1.0
    assert from_dict(tomllib.loads(to_toml(config))) == config


def test_name_comes_from_the_file_unless_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b'\xef\xbb\xbf[env]\nid = "CartPole-v1"\n')  # with the mark that some editors put first
    assert load(path).name == "mine"
    assert load(str(path), ["name=other"]).name == "other"


def test_empty_tables_are_defaults() -> None:
    empty: dict[str, Any] = {"train": {}, "agent": {}, "evaluation": {}, "log": {}}
    assert from_dict({**CARTPOLE, **empty}) == from_dict(CARTPOLE)


def test_overrides() -> None:
    config = load(
        "ppo_cartpole",
        [
            "agent.learning_rate=1e-3",
            "env.id=Acrobot-v1",
            "train.total_env_steps=1e5",
            "train.num_envs = 8",
            "agent.hidden_sizes=[32, 32]",
            "agent.activation = relu",
            "agent.normalise_advantage=batch",
            "agent.normalise_observation=true",
            "evaluation.env.id='Pendulum-v1'",
            "env.nested.key=a=b",
            "train.seed=1",
            "train.seed=2",
        ],
    )
    assert config.env == EnvConfig("Acrobot-v1", {"nested": {"key": "a=b"}})
    assert config.train == TrainConfig("ppo", 100_000, 8, 128, seed=2)
    assert config.agent == ppo.Config(
        learning_rate=1e-3,
        hidden_sizes=(32, 32),
        activation="relu",
        normalise_advantage="batch",
        normalise_observation=True,
    )
    assert config.evaluation.env == EnvConfig("Pendulum-v1")


def test_another_agent_starts_from_its_own_defaults(agent_file: str) -> None:
    config = load("ppo_acrobot", ["agent.step_size=0.3"], agent=agent_file)
    assert config.train.agent == agent_file
    assert (config.agent.step_size, config.agent.learning_rate) == (0.3, 0.5)  # and not ppo_acrobot's 1e-3
    assert load("ppo_acrobot", [f"train.agent={agent_file}"]).agent.learning_rate == 0.5


def test_same_agent_keeps_the_table_of_the_file() -> None:
    assert load("ppo_acrobot", agent="ppo") == load("ppo_acrobot")
    assert load("ppo_acrobot", ["agent.discount=0.5"]).agent.learning_rate == load("ppo_acrobot").agent.learning_rate


# From Python


def test_python_objects() -> None:
    env = StandInEnv(4)  # a dataclass, which must stay an object
    config = from_dict({"env": {"id": env}, "train": {"agent": make}, "agent": {"network": env}})
    assert config.env.id is env
    assert config.train.agent is make
    assert config.agent.network is env
    written = tomllib.loads(to_toml(config))
    assert written["env"]["id"] == f"<{__name__}.StandInEnv>"
    assert written["train"]["agent"] == f"{__name__}:make"
    assert check(config).env.id is env


def test_dataclasses_in_place_of_tables() -> None:
    config = ExperimentConfig(env=EnvConfig("CartPole-v1"), agent=ppo.Config())
    assert check(config) == config == from_dict({"env": config.env, "agent": config.agent, "train": config.train})


def test_check_converts_what_python_lets_through() -> None:
    config = ExperimentConfig(
        env=EnvConfig("CartPole-v1"),
        agent=ppo.Config(num_epochs=2.0),  # type: ignore[arg-type]
        train=TrainConfig(total_env_steps=1e5),  # type: ignore[arg-type]
    )
    checked = check(config)
    assert type(checked.train.total_env_steps) is int
    assert type(checked.agent.num_epochs) is int


def test_check_refuses_another_agents_config() -> None:
    config = ExperimentConfig(env=EnvConfig("CartPole-v1"), agent=StandInConfig())
    assert "agent = StandInConfig" in message(check, config)
    assert "config = 3" in message(check, 3)


def test_check_does_not_change_its_argument() -> None:
    tables = {"env": {"id": "CartPole-v1", "size": 1}, "train": {"num_envs": 2.0}}
    from_dict(tables)
    assert tables == {"env": {"id": "CartPole-v1", "size": 1}, "train": {"num_envs": 2.0}}


# What bad input gets


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({}, ["env is missing", "a table"]),
        ({"env": {}}, ["env.id is missing"]),
        ({"env": {"idd": "CartPole-v1"}}, ["env.id is missing"]),
        ({"env": 3}, ["env = 3", "a table"]),
        ({"env": {"id": 3}}, ["env.id = 3", "rollax list envs"]),
        ({"env": {"id": ["CartPole-v1"]}}, ["env.id = ['CartPole-v1']"]),
        ({"env": {"id": "CartPole-v1", "x": math.nan}}, ["env.x = nan"]),
        ({"env": {"id": "CartPole-v1", "x": None}}, ["env.x = None"]),
        ({"env": {"id": "CartPole-v1", "x": [{"y": None}]}}, ["env.x = [{'y': None}]"]),
        ({"env": {"id": "CartPole-v1", "x": [10**5000]}}, ["env.x", "64 bits"]),
        ({"env": {"id": "CartPole-v1", "\udcff": 1}}, ["env.", "UTF-8"]),
        ({"env": {"id": "CartPole-v1", 3: 4}}, ["env.3"]),
        ({"trian": {"agent": "dqn"}, "agent": {"epsilon": 1}}, ["trian is unknown", "'train'"]),
        ({"sweep": {}}, ["sweep.parameters is missing"]),
        ({"train": []}, ["train = []", "a table"]),
        ({"train": {"num_env": 1}}, ["train.num_env ", "'num_envs'"]),
        ({"train": {"agent": "pp0"}}, ["train.agent = 'pp0'", "ppo"]),
        ({"train": {"agent": 3}}, ["train.agent = 3", "a string or a function"]),
        ({"train": {"agent": "no_such_file.py:make"}}, ["train.agent", "no_such_file.py"]),
        ({"train": {"total_env_steps": 0}}, ["train.total_env_steps = 0", "1 or more"]),
        ({"train": {"total_env_steps": 1.5}}, ["train.total_env_steps = 1.5", "whole number"]),
        ({"train": {"total_env_steps": 1e30}}, ["train.total_env_steps = 1e+30", "64 bits"]),
        ({"train": {"total_env_steps": True}}, ["train.total_env_steps = True"]),
        ({"train": {"num_envs": 0}}, ["train.num_envs = 0", "1 or more"]),
        ({"train": {"num_envs": 2**31}}, ["train.num_envs", "or less"]),
        ({"train": {"num_envs": 2**16, "num_steps": 2**15}}, ["train.num_envs", "train.num_steps", "32 bits"]),
        ({"train": {"num_steps": -1}}, ["train.num_steps = -1", "1 or more"]),
        ({"train": {"updates_per_iteration": 0}}, ["train.updates_per_iteration = 0", "1 or more"]),
        ({"train": {"unroll": 0}}, ["train.unroll = 0", "1 or more"]),
        ({"train": {"seed": -1}}, ["train.seed = -1", "0 or more"]),
        ({"train": {"seed": 2**31}}, ["train.seed", "or less"]),
        ({"agent": 3}, ["agent = 3", "a table"]),
        ({"agent": {"lerning_rate": 1}}, ["agent.lerning_rate", "'learning_rate'"]),
        ({"agent": {"learning_rate": "fast"}}, ["agent.learning_rate = 'fast'", "number", "0.00025"]),
        ({"agent": {"learning_rate": math.nan}}, ["agent.learning_rate = nan", "finite"]),
        ({"agent": {"hidden_sizes": 64}}, ["agent.hidden_sizes = 64", "list"]),
        ({"agent": {"normalise_observation": "yes"}}, ["agent.normalise_observation = 'yes'", "true or false"]),
        ({"agent": {"normalise_advantage": True}}, ["agent.normalise_advantage = True", "minibatch", "batch"]),
        ({"evaluation": {"episodes": 0}}, ["evaluation.episodes = 0", "1 or more"]),
        ({"evaluation": {"every": -1}}, ["evaluation.every = -1", "0 or more"]),
        ({"evaluation": {"step_cap": -1}}, ["evaluation.step_cap = -1", "0 or more"]),
        ({"evaluation": {"env": "CartPole-v1"}}, ["evaluation.env = 'CartPole-v1'", "a table"]),
        ({"evaluation": {"env": {"id": 3}}}, ["evaluation.env.id = 3"]),
        ({"log": {"a\nb": 1}}, ['log."a\\nb" is unknown']),
        ({"log": {"x" * 999: 1}}, ["xxx...", "is unknown"]),
        ({"log": {"every": -1}}, ["log.every = -1", "0 or more"]),
        ({"replay": {}}, ["replay.capacity is missing", "[replay]"]),
        ({"replay": {"capacity": 512}}, ["replay.batch_size is missing"]),
        ({"replay": {"capacity": 0, "batch_size": 1}}, ["replay.capacity = 0", "1 or more"]),
        ({"replay": {"capacity": 512, "batch_size": 0}}, ["replay.batch_size = 0", "1 or more"]),
        ({"replay": {"capacity": 512, "batch_size": 1, "n_step": 0}}, ["replay.n_step = 0", "1 or more"]),
        ({"replay": {"capacity": 512, "batch_size": 1, "n_step": 129}}, ["replay.n_step = 129", "128"]),
        ({"replay": {"capacity": 512, "batch_size": 1, "length": 4}}, ["replay.length = 4", "kind = 'uniform'"]),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "cross_episodes": True}},
            ["replay.cross_episodes = True", "kind = 'uniform'"],
        ),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "kind": "sequence", "n_step": 3}},
            ["replay.n_step = 3", "kind = 'sequence'"],
        ),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "kind": "sequence", "length": 129}},
            ["replay.length = 129", "128"],
        ),
        ({"replay": {"capacity": 512, "batch_size": 1, "kind": "sequence", "length": 0}}, ["replay.length = 0"]),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "kind": "prioritised", "length": 4, "n_step": 3}},
            ["replay.n_step = 3", "kind = 'prioritised'", "replay.length = 4"],
        ),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "kind": "prioritised", "cross_episodes": True}},
            ["replay.cross_episodes = True", "kind = 'prioritised'", "replay.length = 1"],
        ),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "kind": "prioritised", "length": 129}},
            ["replay.length = 129", "128"],
        ),
        ({"replay": {"capacity": 512, "batch_size": 1, "min_size": -1}}, ["replay.min_size = -1", "0 or more"]),
        (
            {"replay": {"capacity": 512, "batch_size": 1, "min_size": 513}},
            ["replay.min_size = 513", "replay.capacity = 512", "smaller"],
        ),
        ({"replay": {"capacity": 513, "batch_size": 1}}, ["replay.capacity = 513", "num_envs = 4", "516"]),
        ({"replay": {"capacity": 508, "batch_size": 1}}, ["replay.capacity = 508", "512"]),
        ({"replay": {"capacity": 512, "batch_size": 1, "kind": "unifrom"}}, ["replay.kind", "'uniform'"]),
        ({"replay": {"capacity": 512, "batch_size": 1, "storage": "disk"}}, ["replay.storage = 'disk'", "array"]),
        ({"name": 3}, ["name = 3", "a string"]),
        ({"name": "../up"}, ["name = '../up'", "folder"]),
        ({"name": ".."}, ["name = '..'", "folder"]),
        ({"name": "a\0b"}, ["name = ", "folder"]),
    ],
)
def test_value_that_cannot_work(tables: dict[str, Any], words: list[str]) -> None:
    text = message(from_dict, tables if "env" in tables or not tables else {**CARTPOLE, **tables})
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("tables", [None, 3, "ppo_cartpole", [("env", 1)]])
def test_no_tables(tables: Any) -> None:
    assert "the config = " in message(from_dict, tables)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.seed", ["'train.seed'", "table.key=value"]),
        ("", ["''", "table.key=value"]),
        ("=3", ["table.key=value"]),
        ("train..seed=1", ["table.key=value"]),
        ("train.seed.x=1", ["'train.seed.x' cannot be set", "train.seed = 3"]),
        ("train=3", ["train = 3", "a table"]),
        ("agent=3", ["agent = 3", "a table"]),
        ("agent.learning_rate=", ["agent.learning_rate = ''", "a number"]),
        ("agent.learning_rate=nan", ["agent.learning_rate = nan", "finite"]),
        ("agent.hidden_sizes=[64,", ["agent.hidden_sizes = '[64,'", "a list"]),
        ("agent.normalise_observation=True", ["agent.normalise_observation = 'True'", "true or false"]),
        ("agent.normalise_advantage=true", ["agent.normalise_advantage = True", "minibatch", "batch"]),
        ("train.seed=1\nname='x'", ["train.seed = ", "a whole number"]),
        ("train.seed=" + "9" * 5000, ["train.seed", "a whole number"]),
        ("train.seed=0x" + "f" * 5000, ["train.seed", "64 bits"]),
        ("agent.hidden_sizes=" + "[" * 5000, ["agent.hidden_sizes", "a list"]),
        ("train.num_envs=2024-01-01", ["train.num_envs", "of type date"]),
        ("name=\udcff", ["name", "UTF-8"]),
        ("train.sede=1", ["train.sede", "'seed'"]),
    ],
)
def test_override_that_cannot_work(override: str, words: list[str]) -> None:
    text = message(load, "ppo_cartpole", ["train.seed=3", override])
    assert [word for word in words if word not in text] == []


def test_files_that_are_no_config(tmp_path: Path) -> None:
    assert "'ppo_cartpole'" in message(load, "ppo_cartpol")
    assert "'ppo_cartpole'" in message(load, tmp_path / "ppo_cart_pole.toml")
    assert "is a folder" in message(load, tmp_path)
    for content, words in [
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "not a text file"),
        (b"[env\nid = 3", "not valid TOML"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (b"", "env is missing"),
        (b"env = 'CartPole-v1'", "give a table"),
        (b"[[env]]\nid = 'CartPole-v1'", "a list: give a table"),
        (b"[env.id]\nx = 1", "env.id = {'x': 1}"),
    ]:
        path = tmp_path / "bad.toml"
        path.write_bytes(content)
        assert words in message(load, path)
    for name in ("a\0b", "x" * 5000, f"{tmp_path}/bad.toml/inside", "", "."):
        assert message(load, name)


def test_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot be read ([Errno 13] Permission denied" in message(load, tmp_path / "secret.toml")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["CartPole-v1", "ppo", "uniform", "array", "none", 2**31, 2**63, 10**400, 1e300, 128.0, 4]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
FIELDS = {
    "env": EnvConfig,
    "train": TrainConfig,
    "agent": ppo.Config,
    "replay": ReplayConfig,
    "evaluation": EvaluationConfig,
    "log": configs.LogConfig,
}


def tables_of(name: str) -> st.SearchStrategy[Any]:
    """Tables whose keys are mostly real, so that the fuzz gets past the first error."""
    fields = [field.name for field in dataclasses.fields(FIELDS[name])]
    table = st.dictionaries(st.sampled_from(fields), VALUES, max_size=3)
    return table | st.dictionaries(st.text(max_size=4), VALUES, max_size=2) | VALUES


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    tables=st.fixed_dictionaries({}, optional={name: tables_of(name) for name in FIELDS}),
    valid_env=st.booleans(),
    extra=st.dictionaries(st.text(max_size=6), VALUES, max_size=1),
)
def test_any_tables_give_a_config_or_a_sentence(tables: dict[str, Any], valid_env: bool, extra: dict[str, Any]) -> None:
    if valid_env:
        tables["env"] = {"id": "CartPole-v1", **extra}
    try:
        config = from_dict(tables)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert from_dict(tomllib.loads(to_toml(config))) == config


def test_a_warm_up_longer_than_the_run_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"replay\.min_size = 40000 rows are never stored in train\.total_env_steps"):
        load("dqn_cartpole", ["train.total_env_steps=2000", "replay.min_size=40000"])
