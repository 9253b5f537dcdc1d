"""`rollax config KEY`: every field is documented by the text beside it, with its unit, and a wrong key is told."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rollax.__main__ import main
from rollax.agents import registry
from rollax.agents.registry import AGENTS
from rollax.envs.transforms import TRANSFORMS
from rollax.errors import InputError
from rollax.experiments import config_help
from rollax.experiments.config import ExperimentConfig

OWN = {name: cls for name, cls in config_help.tables_of(ExperimentConfig).items() if name}

# What a number can be a number of, or what it is by name.
UNITS = re.compile(
    r"""\b(steps?|updates|calls|iterations?|episodes|rows|samples|passes|minibatches|rewards|actions|returns?|nats
    |units\ of|shares?|weights?|power|gamma|lambda|alpha|beta|beta_1|epsilon|step\ size|norm|logarithm|scale|ratio
    |log-probability|widths?|layers|heads|quantiles|atoms|critics|numbers|seed|how\ many|members
    |evaluations|rungs?|bytes|pairs|multiplied|from\ 0\ to\ 1|rho_bar)\b""",
    re.IGNORECASE | re.VERBOSE,
)


AGENT = '''
"""Mine."""
import dataclasses

@dataclasses.dataclass(frozen=True)
class Config:
    """What mine can be told."""

    reach: float = 2.0  # metres


def make(observation_space, action_space, config: Config): ...
'''


@dataclasses.dataclass(frozen=True)
class Parent:
    first: int = 1  # rows behind
    both: tuple[int, ...] = (
        1,  # of the one
        2,  # of the other
    )


@dataclasses.dataclass(frozen=True)
class Example(Parent):
    """An example."""

    # Rows above,
    # on two lines.
    second: int = 2
    third: float = 0.5
    """Share, in a string,
    on two lines.
    """
    bare: str = "text # no comment"
    first: int = 3  # rows of the child
    shared: int = 0  # steps behind

    # A comment on no field.


def test_texts_stand_above_behind_or_under_their_fields() -> None:
    assert config_help.texts_of(Example) == {
        "first": "rows of the child",
        "both": "of the one of the other",
        "second": "Rows above, on two lines.",
        "third": "Share, in a string, on two lines.",
        "bare": "",
        "shared": "steps behind",
    }


@pytest.mark.parametrize("table", [*OWN, *AGENTS])
def test_every_field_is_documented_and_every_number_says_of_what(table: str) -> None:
    cls = OWN[table] if table in OWN else registry.resolve(table).config_type
    fields = config_help.fields_of(cls, table)
    assert [field.key.rpartition(".")[2] for field in fields if not field.key.endswith("*")] == [
        field.name for field in dataclasses.fields(cls) if not field.metadata
    ]
    for field in fields:
        assert len(field.text) >= 10, field
        if "number" in field.kind:
            assert UNITS.search(field.text), field
        # Asked for alone, a field has no neighbours that its text could point at.
        assert not re.match(r"(\w+ of (its|that|those|it)\b|that\b|those\b)", field.text, re.IGNORECASE), field


def test_a_field_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "train.num_envs"]) == 0
    assert capsys.readouterr().out == "train.num_envs = 4  (a whole number)\n    N, parallel environments per seed\n"
    assert main(["config", "agent.learning_rate", "--agent", "pqn"]) == 0
    named = capsys.readouterr().out
    assert named == "agent.learning_rate = 0.0005  (a number)\n    Step size of RAdam at the start.\n"
    assert main(["config", "pqn.learning_rate"]) == 0
    assert capsys.readouterr().out == named.replace("agent.", "pqn.")


def test_a_table_tells_all_of_its_fields_and_the_list_all_tables() -> None:
    lines = config_help.answer().splitlines()
    assert {line.split()[0] for line in lines[:-1]} == {*OWN, "agent", "transforms"}
    for table, cls in OWN.items():
        told = config_help.answer(table)
        for field in config_help.fields_of(cls, table):
            assert str(field) in told
    assert config_help.answer("agent") == config_help.answer("agent", "ppo")
    assert config_help.answer("agent", "ppo").replace("agent.", "ppo.") == config_help.answer("ppo")


def test_a_name_without_its_table_finds_all_fields_of_that_name() -> None:
    told = config_help.answer("every")
    assert [line for line in told.splitlines() if line.startswith(("log.every", "evaluation.every"))]
    assert told.count(".every = ") == len([name for name in OWN if "every" in config_help.texts_of(OWN[name])]) >= 3
    assert "discount" in config_help.answer("discount", "dqn")


def test_transforms_are_told_with_their_arguments() -> None:
    told = config_help.answer("transforms")
    assert [part.partition("(")[0] for part in told.split("\n\n")] == list(TRANSFORMS)
    assert all(len(part.splitlines()) >= 2 for part in told.split("\n\n"))
    one = config_help.answer("transforms.frame_stack")
    assert one.startswith("frame_stack(size: int)\n")
    assert one in told


def test_an_agent_of_a_file_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AGENT, encoding="utf-8")
    told = config_help.answer("agent.reach", f"{tmp_path / 'mine.py'}:make")
    assert told == "agent.reach = 2.0  (a number)\n    metres"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.num_env"], "there is no key 'train.num_env' in a config: did you mean 'train.num_envs'"),
        (["dqn.doubel"], "there is no key 'dqn.doubel' in a config: did you mean 'dqn.double'"),
        (["tranforms"], "did you mean 'transforms'"),
        (["sacc"], "did you mean 'sac'"),
        (["agent.discount", "--agent", "pp"], "train.agent = 'pp' is no known agent: did you mean 'ppo'"),
        (["train", "--agent", "pp"], "train.agent = 'pp' is no known agent"),
    ],
)
def test_a_key_that_does_not_exist_is_answered_with_the_nearest(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_key_is_an_input_error() -> None:
    with pytest.raises(InputError, match="there is no key"):
        config_help.answer("")
