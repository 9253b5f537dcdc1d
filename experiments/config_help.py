"""What `rollax config KEY` tells: every field of a config with its type, its default and its text.

The text is what stands beside the field in its dataclass, and nowhere else: the string under it, or the comment above
or behind it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
import typing
from typing import Any

from rollax.errors import InputError, nearest
from rollax.experiments import config as configs
from rollax.experiments import tables

_WIDTH = 100
_FOOTER = "rollax config TABLE tells the fields of a table, rollax config TABLE.FIELD one of them."


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a table."""

    key: str  # dotted, as `--set` takes it
    kind: str  # which values it takes, in words
    default: str  # as TOML; "" where nothing is set by default
    text: str  # what it means

    def __str__(self) -> str:
        setting = f"{self.key} = {self.default}" if self.default else self.key
        return f"{setting}  ({self.kind})\n{_paragraph(self.text)}"


def answer(key: str | None = None, agent: str | None = None) -> str:
    """Returns what `rollax config KEY` prints.

    Args:
        key: None for the list of tables; a table, such as `train`; a field, such as `train.num_envs` or `num_envs`; an
            agent or one of its fields, such as `dqn` or `dqn.double`; `transforms`, or one of them.
        agent: The agent that `agent` stands for, as `train.agent` names it; None: the default of that field.

    Raises:
        InputError: There is no such key, or no such agent.
    """
    if key is None:
        return _overview()
    known = _own_texts()
    if agent is not None or key not in known:  # the rest imports JAX
        known |= _agent_texts(key, agent) | _transform_texts()
    if key in known:
        return known[key]
    same_name = [text for name, text in known.items() if name.rpartition(".")[2] == key]
    if not same_name:
        raise InputError(f"there is no key {tables.show(key)} in a config: {nearest(key, known)}")
    return "\n\n".join(same_name)


def fields_of(cls: type[Any], table: str) -> list[Field]:
    """Returns the fields of a dataclass that is a table of a config.

    Args:
        cls: The dataclass.
        table: The table's dotted name; "" for the root.
    """
    hints, texts = typing.get_type_hints(cls), texts_of(cls)
    found = []
    for field in dataclasses.fields(cls):
        rest = field.metadata == tables.REST
        if field.init:
            found.append(
                Field(
                    key=f"{table}.*" if rest else tables.dotted(table, field.name),
                    kind="any value" if rest else tables.expected(hints[field.name]),
                    default=_default(field),
                    text=texts.get(field.name) or " ".join(map(_summary, _dataclasses_in(hints[field.name]))),
                )
            )
    return found


def texts_of(cls: type[Any]) -> dict[str, str]:
    """Returns the text that stands beside each field of a dataclass and of its bases, by the field's name."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _texts_in(textwrap.dedent(inspect.getsource(base)))
    return texts


def _texts_in(source: str) -> dict[str, str]:
    """Returns the text beside each annotated name of a class, from the class's source."""
    lines = source.splitlines()
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (cls,) = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    texts = {}
    for node, following in zip(cls.body, [*cls.body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        while lines[first - 2].lstrip().startswith("#"):  # the comment above; a class does not begin with one
            first -= 1
        parts = [comments[number] for number in range(first, last + 1) if number in comments]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            parts.append(str(following.value.value))
        texts[node.target.id] = " ".join(" ".join(parts).split())
    return texts


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default in (dataclasses.MISSING, None) else tables.literal(field.default)


def tables_of(cls: type[Any], name: str = "") -> dict[str, type[Any]]:
    """Returns a dataclass that is a table of a config, and those in it, by their dotted names.

    Args:
        cls: The dataclass.
        name: Its dotted name; "" for the root.
    """
    found = {name: cls}
    for field, hint in typing.get_type_hints(cls).items():
        for inner in _dataclasses_in(hint):
            found |= tables_of(inner, tables.dotted(name, field))
    return found


def _dataclasses_in(hint: Any) -> list[type[Any]]:
    """Returns the dataclasses that a type hint names: the hint, or the options of a union."""
    options = (hint, *typing.get_args(hint))
    return [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]


def _own_texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, cls in tables_of(configs.ExperimentConfig).items():
        texts |= _table_texts(cls, name)
    del texts["agent"]  # the field of the root: the table has an answer of its own
    return texts


def _agent_texts(key: str, agent: str | None) -> dict[str, str]:
    from rollax.agents import registry

    first = key.partition(".")[0]
    table, named = (first, first) if first in registry.AGENTS else ("agent", agent or str(configs.TrainConfig.agent))
    others = {name: "" for name in registry.AGENTS if name != table}
    return others | _table_texts(registry.resolve(named).config_type, table)


def _table_texts(cls: type[Any], table: str) -> dict[str, str]:
    """Returns the texts of a table and of each of its fields, by their keys."""
    fields = fields_of(cls, table)
    texts = {field.key: str(field) for field in fields}
    if table:
        texts[table] = "\n\n".join([_paragraph(_summary(cls), indent=0), *texts.values()])
    return texts


def _transform_texts() -> dict[str, str]:
    from rollax.envs.transforms import TRANSFORMS

    texts = {}
    for name, transform in TRANSFORMS.items():
        _, *parameters = inspect.signature(transform).parameters.values()  # the first is the environment
        arguments = ", ".join(str(parameter).replace("'", "") for parameter in parameters)
        paragraphs = inspect.cleandoc(transform.__doc__ or "").split("\n\n")
        texts[f"transforms.{name}"] = "\n".join([f"{name}({arguments})", *map(_paragraph, paragraphs)])
    return texts | {"transforms": "\n\n".join(texts.values())}


def _overview() -> str:
    texts = {name: _summary(cls) for name, cls in tables_of(configs.ExperimentConfig).items() if name}
    texts["agent"] = "What the agent is told: fields of its own, as of `rollax config dqn`."
    texts["transforms"] = "What `env.transforms` can name."
    width = max(map(len, texts))
    return "\n".join([*(f"{name:{width}}  {text}" for name, text in texts.items()), _FOOTER])


def _summary(cls: type[Any]) -> str:
    """Returns the first paragraph of a dataclass's docstring, without the name of the table before it."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    text = re.sub(r"^`\[[\w.]+\]`: ", "", text)
    return text[:1].upper() + text[1:]


def _paragraph(text: str, indent: int = 4) -> str:
    margin = " " * indent
    return textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=margin, subsequent_indent=margin)
