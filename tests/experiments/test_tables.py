from __future__ import annotations

import dataclasses
import datetime
import math
import tomllib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from rollax.errors import InputError
from rollax.experiments.tables import REST, build, to_table, write

if TYPE_CHECKING:
    from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int
    rate: float = 0.5
    flag: bool = False
    label: str = "a"
    mode: Literal["slow", "fast", 3] = "slow"
    sizes: tuple[int, ...] = (64, 64)
    pair: tuple[int, str] = (1, "x")
    limit: float | None = 0.5
    cap: int | None = None
    either: int | str = 0
    inner: Inner | None = None
    function: Callable[..., Any] | str = "f"
    anything: Any = None
    mapping: Mapping[str, int] = dataclasses.field(default_factory=dict)
    derived: int = dataclasses.field(default=7, init=False)


@dataclasses.dataclass(frozen=True)
class Open:
    id: str
    rest: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata=REST)


@dataclasses.dataclass(frozen=True)
class Unresolved:
    value: Fraction


def test_defaults_and_conversions() -> None:
    assert build(Outer, {"count": 1}, "t") == Outer(1)
    table = {"count": 1e5, "rate": 2, "sizes": [1, 2.0], "pair": [3, "y"], "mode": 3, "inner": {"width": 4}, "cap": 5}
    built = build(Outer, table, "t")
    assert built == Outer(100_000, 2.0, sizes=(1, 2), pair=(3, "y"), mode=3, inner=Inner(4), cap=5)
    assert type(built.count) is int
    assert type(built.rate) is float
    assert build(Outer, {"count": np.int64(3), "rate": np.float32(0.5)}, "t") == Outer(3, 0.5)


def test_none_is_a_word() -> None:
    built = build(Outer, {"count": 1, "limit": "none", "cap": "none"}, "t")
    assert built.limit is None
    assert built.cap is None
    # None that is the default needs no word; None that is not would come back as the default.
    assert to_table(built)["limit"] == "none"
    assert "cap" not in to_table(built)


def test_what_no_rule_knows_goes_through() -> None:
    marker = object()
    built = build(Outer, {"count": 1, "anything": marker, "function": len, "mapping": {"a": 1}}, "t")
    assert built.anything is marker
    assert built.function is len
    assert built.mapping == {"a": 1}


def test_instance_is_built_anew_and_its_objects_stay() -> None:
    marker = Inner(1)  # a dataclass under `Any` is an object, not a table
    built = build(Outer, Outer(2.0, inner=Inner(3.0), anything=marker), "t")  # type: ignore[arg-type]
    assert (built.count, built.inner, type(built.count)) == (2, Inner(3), int)
    assert built.anything is marker
    assert to_table(built)["anything"] is marker
    assert to_table(built)["inner"] == {"width": 3, "scale": 1.0}


def test_rest_collects_unknown_keys() -> None:
    built = build(Open, {"id": "a", "rest": 1, "size": [1]}, "env")
    assert built == Open("a", {"rest": 1, "size": [1]})
    assert to_table(built) == {"id": "a", "rest": 1, "size": [1]}
    assert build(Open, built, "env") == built


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cuont": 1}, ["t.cuont", "unknown", "'count'"]),
        ({"derived": 1}, ["t.derived", "unknown"]),
        ({3: 1}, ["t.3", "unknown"]),
        ({"count": True}, ["t.count = True", "truth value", "whole number"]),
        ({"count": "four"}, ["t.count = 'four'", "string", "whole number"]),
        ({"count": 1.5}, ["t.count = 1.5", "whole number"]),
        ({"count": math.inf}, ["t.count = inf", "whole number"]),
        ({"count": 2**63}, ["t.count", "64 bits"]),
        ({"count": -(10**5000)}, ["t.count", "64 bits"]),
        ({"count": {}}, ["t.count = {}", "a table", "whole number"]),
        ({"count": None}, ["t.count = None", "whole number"]),
        ({"rate": math.nan}, ["t.rate = nan", "finite"]),
        ({"rate": math.inf}, ["t.rate = inf", "finite"]),
        ({"rate": 1e39}, ["t.rate = 1e+39", "finite"]),
        ({"rate": 10**400}, ["t.rate = 1", "finite"]),
        ({"rate": True}, ["t.rate = True", "number, such as 0.5"]),
        ({"rate": [1.0]}, ["t.rate = [1.0]", "a list"]),
        ({"flag": 1}, ["t.flag = 1", "true or false, such as false"]),
        ({"flag": "true"}, ["t.flag = 'true'", "true or false"]),
        ({"label": 3}, ["t.label = 3", 'string, such as "a"']),
        ({"label": "\udcff"}, ["t.label", "UTF-8"]),
        ({"mode": "fst"}, ["t.mode = 'fst'", "did you mean 'fast'"]),
        ({"mode": True}, ["t.mode = True"]),
        ({"sizes": 64}, ["t.sizes = 64", "list", "[64, 64]"]),
        ({"sizes": "64"}, ["t.sizes = '64'", "list"]),
        ({"sizes": [64, "a"]}, ["t.sizes[1] = 'a'", "whole number"]),
        ({"pair": [1]}, ["t.pair = [1]", "1 entries", "give 2"]),
        ({"limit": "low"}, ["t.limit = 'low'", "number"]),
        ({"either": 1.5}, ["t.either = 1.5", "whole number or a string"]),
        ({"inner": 3}, ["t.inner = 3", "a table"]),
        ({"inner": {"width": 1, "scael": 2}}, ["t.inner.scael", "'scale'"]),
        ({"inner": {}}, ["t.inner.width is missing", "[t.inner]"]),
        ({"function": 3}, ["t.function = 3", "a function or a string"]),
        ({"mapping": 3}, ["t.mapping = 3", "a table"]),
        ({"rate": datetime.date(2020, 1, 1)}, ["t.rate", "date"]),
        ({"rate": "x\n" * 500}, ["t.rate", "..."]),
    ],
)
def test_misfit_is_one_sentence(change: dict[Any, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        build(Outer, {"count": 1, **change}, "t")
    message = str(error.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert len(message) < 250
    assert message[-1] in ".?"


@pytest.mark.parametrize("table", [3, "text", [], None, Inner(1)])
def test_no_table(table: Any) -> None:
    with pytest.raises(InputError, match=r"^t = .*: give a table\.$"):
        build(Outer, table, "t")


def test_missing() -> None:
    with pytest.raises(InputError, match=r"^t\.count is missing: give a whole number under \[t\]\.$"):
        build(Outer, {}, "t")


def test_type_hint_that_does_not_exist_at_run_time() -> None:
    with pytest.raises(InputError, match=r"Unresolved.*Fraction"):
        build(Unresolved, {"value": 1}, "agent")


def some_function() -> None:
    pass


def test_write_reads_back() -> None:
    table = {
        "text": 'quotes " \\ \n tab\t delete \x7f ü 🤖',
        "truth": True,
        "whole": -3,
        "numpy": np.int32(4),
        "number": 1e-5,
        "large": 1e300,
        "infinite": math.inf,
        "less": -math.inf,
        "list": [1, [2.5, "a"], {"b": 1, "c d": []}],
        "tuple": (1, 2),
        "day": datetime.date(2020, 1, 2),
        "moment": datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "empty": {},
        "odd key.": 1,
        "": 2,
        "table": {"x": 1, "deep": {"y": 2}, "z": 3},
        "only": {"tables": {"q": 1}},
    }
    assert tomllib.loads(write(table)) == {**table, "tuple": [1, 2]}
    assert tomllib.loads(write({})) == {}


def test_write_names_what_only_python_has() -> None:
    def local() -> None:
        pass

    written = tomllib.loads(write({"function": some_function, "cls": Inner, "object": Inner(1), "local": local}))
    assert written["function"] == f"{__name__}:some_function"
    assert written["cls"] == f"{__name__}:Inner"
    assert written["object"] == f"<{__name__}.Inner>"  # loading it must fail rather than build another one
    assert written["local"].startswith("<")
