"""Typed dataclasses from tables of plain values, and such tables to TOML text.

A table is what a TOML file holds: a mapping from field names to booleans, numbers, strings, lists and further tables.
`build` reads a dataclass's type hints, so any dataclass can be a table of a config, also one of a user's own file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

from rollax.errors import InputError, nearest

T = TypeVar("T")

REST: Mapping[str, Any] = {"rest": True}
"""The metadata of a dataclass field that collects all keys of its table which name no other field."""

_INT_LIMIT = 2**63
_FLOAT_LIMIT = 3.4028235e38  # the largest float32
_NONE = "none"  # TOML has no null


def build(cls: type[T], table: Any, where: str) -> T:
    """Builds a dataclass from a table, converting each value to the type hint of its field.

    Whole numbers fit `float`, floats without a fraction (`1e5`) fit `int`, lists fit `tuple`, tables fit dataclasses,
    and the string "none" fits `X | None`. Any other difference of type is an error: `true` is no number.

    Args:
        cls: A dataclass. A field whose metadata is `REST` collects the keys that name no field.
        table: A mapping, or an instance of `cls`, which is built anew so that its values are checked as well.
        where: The dotted name of the table, "" for the root; errors begin with it.

    Raises:
        InputError: The table is no mapping, a key names no field, a field without a default is missing, or a value
            does not fit its field.
    """
    if isinstance(table, cls):
        table = _open(table)
    if not isinstance(table, Mapping):
        raise _mismatch(table, cls, where or "the config", None)
    fields = {field.name: field for field in _fields(cls)}
    rest = next((name for name, field in fields.items() if field.metadata == REST), None)
    named = {name: field for name, field in fields.items() if name != rest}
    others = {key: value for key, value in table.items() if key not in named}
    for key in others:
        if rest is None or not isinstance(key, str):
            raise InputError(f"{dotted(where, key)} is unknown: {nearest(str(key), named)}")
    hints = _type_hints(cls, where)
    values: dict[str, Any] = {} if rest is None else {rest: others}
    for name, field in named.items():
        if name in table:
            values[name] = convert(table[name], hints[name], dotted(where, name), _default(field))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            place = f" under [{where}]" if where else ""
            raise InputError(f"{dotted(where, name)} is missing: give {expected(hints[name])}{place}.")
    return cls(**values)


def convert(value: Any, annotation: Any, field: str, example: Any = None) -> Any:
    """Returns `value` converted to the type that `annotation` names.

    Args:
        value: A plain value, or any Python object where the annotation lets it through.
        annotation: `bool`, `int`, `float`, `str`, `Literal`, `tuple`, a dataclass, a union of these, or any class or
            generic alias, of whose origin the value has to be an instance.
        field: The dotted name of the field, named in errors.
        example: A value that would have been right, named in errors unless it is None.

    Raises:
        InputError: The value has another type, is no finite 32-bit number, or is none of the literals.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, annotation, field, example)
    if origin is Literal:
        return _convert_literal(value, arguments, field)
    if origin is tuple and arguments:
        return _convert_tuple(value, annotation, field, example)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return build(annotation, value, field)
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if annotation is float and is_number:
        return _finite(value, field)
    if annotation is int and is_number and (isinstance(value, Integral) or float(value).is_integer()):
        return _whole(value, field)
    if annotation is str and isinstance(value, str):
        return _text(value, field)
    if annotation not in (int, float):
        cls = origin or annotation
        if annotation is Any or not isinstance(cls, type) or isinstance(value, cls):
            return value
    raise _mismatch(value, annotation, field, example)


def to_table(instance: Any) -> dict[str, Any]:
    """Returns the table that `build` makes a dataclass instance of.

    None is left out where it is the default and "none" elsewhere; a dataclass becomes a table where the type hint of
    its field names it.
    """
    hints = typing.get_type_hints(type(instance))
    defaults = {field.name: field.default for field in _fields(type(instance))}
    table: dict[str, Any] = {}
    for name, value in _open(instance).items():
        hint = hints.get(name)
        if value is None and name in defaults:
            if defaults[name] is not None:
                table[name] = _NONE
        elif dataclasses.is_dataclass(type(value)) and type(value) in (hint, *typing.get_args(hint)):
            table[name] = to_table(value)
        else:
            table[name] = value
    return table


def write(table: Mapping[str, Any], where: tuple[str, ...] = ()) -> str:
    """Returns a table as TOML text: its values first, then its tables, each under a header.

    A value that TOML cannot hold becomes a string: `module:NAME` for a function or class that can be imported again,
    and `<module.NAME>`, after its type, for any other object.

    Args:
        table: What `to_table` returns.
        where: The keys that lead to the table from the root.
    """
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {literal(value)}" for key, value in values.items()]
    if where and (lines or not table):
        lines.insert(0, f"[{'.'.join(_key(part) for part in where)}]")
    parts = ["\n".join(lines) + "\n"] if lines else []
    parts += [write(value, (*where, key)) for key, value in table.items() if isinstance(value, Mapping)]
    return "\n".join(parts)


def _fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _open(instance: Any) -> dict[str, Any]:
    """Returns the values of a dataclass instance by the keys of its table; no value is changed."""
    table: dict[str, Any] = {}
    for field in _fields(type(instance)):
        value = getattr(instance, field.name)
        table |= value if field.metadata == REST else {field.name: value}
    return table


def _default(field: dataclasses.Field[Any]) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


def _type_hints(cls: type[Any], where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError as error:
        raise InputError(
            f"[{where}] is built from the type hints of {cls.__qualname__}, where {error}: import it at run time."
        ) from error


def _convert_union(value: Any, annotation: Any, field: str, example: Any) -> Any:
    options = typing.get_args(annotation)
    if types.NoneType in options and (value is None or (isinstance(value, str) and value == _NONE)):
        return None
    options = tuple(option for option in options if option is not types.NoneType)
    if len(options) == 1:
        return convert(value, options[0], field, example)
    for option in options:
        try:
            return convert(value, option, field, example)
        except InputError:
            continue
    raise _mismatch(value, annotation, field, example)


def _convert_literal(value: Any, options: tuple[Any, ...], field: str) -> Any:
    for option in options:
        if type(value) is type(option) and value == option:
            return option
    raise InputError(f"{field} = {show(value)} is unknown: {nearest(str(value), [str(option) for option in options])}")


def _convert_tuple(value: Any, annotation: Any, field: str, example: Any) -> tuple[Any, ...]:
    items = typing.get_args(annotation)
    if not isinstance(value, (list, tuple)):
        raise _mismatch(value, annotation, field, example)
    if items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value):
        raise InputError(f"{field} = {show(value)} has {len(value)} entries: give {len(items)}.")
    return tuple(
        convert(entry, item, f"{field}[{index}]") for index, (entry, item) in enumerate(zip(value, items, strict=True))
    )


def _whole(value: Any, field: str) -> int:
    if abs(value) >= _INT_LIMIT:
        raise InputError(f"{field} = {show(value)} does not fit 64 bits: give a smaller one.")
    return int(value)


def _finite(value: Any, field: str) -> float:
    if not abs(value) <= _FLOAT_LIMIT:  # so written that NaN fails too
        raise InputError(f"{field} = {show(value)} is no finite 32-bit number: give one.")
    return float(value)


def _text(value: str, field: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{field} = {show(value)} is not valid text: give it in UTF-8.") from error
    return str(value)


def _mismatch(value: Any, annotation: Any, field: str, example: Any) -> InputError:
    shown = "" if example is None else f", such as {literal(example)}"
    return InputError(f"{field} = {show(value)} is {_kind(value)}: give {expected(annotation)}{shown}.")


def dotted(where: str, key: Any) -> str:
    """Returns the name of a key of the table `where` ("" for the root), quoted as in TOML where it has to be."""
    name = _key(key) if len(str(key)) <= 80 else show(key)
    return f"{where}.{name}" if where else name


def show(value: Any) -> str:
    """Returns a value as one short line for an error."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python refuses to print whole numbers of more than 4,300 digits
        return "(a number with thousands of digits)"
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def _kind(value: Any) -> str:
    names: list[tuple[Any, str]] = [
        (bool, "a truth value"),
        (Integral, "a whole number"),
        (Real, "a number"),
        (str, "a string"),
        (Mapping, "a table"),
        ((list, tuple), "a list"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), f"of type {type(value).__name__}")


def expected(annotation: Any) -> str:
    """Returns which values a type hint takes, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(expected(option) for option in arguments)
    if origin is tuple:
        return "a list" if not arguments else f"a list, each entry {expected(arguments[0])}"
    if origin is Literal:
        return " or ".join(repr(option) for option in arguments)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return "a table"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
        types.NoneType: "'none'",
        Callable: "a function",
        Mapping: "a table",
        Any: "an object",
    }
    cls = origin or annotation
    return names.get(cls) or f"a {getattr(cls, '__name__', cls)}"


def _key(key: Any) -> str:
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else literal(str(key))


def literal(value: Any) -> str:
    """Returns a value as TOML text on one line; see `write` for what TOML cannot hold."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which JSON lets through.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {literal(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return literal(_name(value))


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    module, name = getattr(named, "__module__", "?"), named.__qualname__
    if named is value and name.isidentifier() and module != "__main__":
        return f"{module}:{name}"
    return f"<{module}.{name}>"
