"""`[sweep]`: which values a sweep tries, on how many seeds, and how it spends its budget on the better ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from rollax.errors import InputError, nearest
from rollax.experiments.tables import build, dotted, show

SWEPT_TABLES = ("agent", "env", "replay", "train")
"""Tables whose values may be swept: what learns, and from what. The others say how it is measured."""

_INT32_MAX = 2**31 - 1
_MAX_MEMBERS = 100_000


@dataclasses.dataclass(frozen=True)
class Range:
    """`{ low, high, log, points }` in place of a list of values: numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False  # whether equal ratios, not equal differences, are equally likely, or apart
    points: int = 0  # values of a grid, evenly apart


@dataclasses.dataclass(frozen=True)
class HalvingConfig:
    """`[sweep.halving]`: the better members alone go on from rung to rung (successive halving)."""

    rungs: int = 3  # how many there are, R; rung r, from 0, ends after keep^(R-1-r) of the budget
    keep: float = 0.5  # share of the members that goes on to the next rung, rounded up


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """`[sweep.population]`: the worst members go on as changed copies of the best (population-based training)."""

    period: int = 1  # how many evaluations there are from one exchange to the next
    quantile: float = 0.25  # share of the members that is replaced, and that is copied; at least one of each
    factors: tuple[float, float] = (0.8, 1.25)  # scale of copied numbers, one of these each; they stay in range


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """`[sweep]`: what `rollax sweep` tries. A plain run leaves it out."""

    # A list of values for each dotted name, such as "agent.learning_rate"; or for a number of the agent a range,
    # { low = 1e-4, high = 1e-2, log = true }, in a grid with `points`, how many values it has.
    parameters: Mapping[str, Any]
    method: Literal["grid", "random"] = "grid"  # all combinations of values, or `samples` random ones
    samples: int = 0  # members of method "random"
    seed: int = 0  # the seed of the draws of method "random", and of the changes in a population
    seeds: int = 4  # how many tuning seeds each member is trained on
    test_seeds: int = 8  # how many fresh seeds the best member is trained on again; 0: it is not
    halving: HalvingConfig | None = None
    population: PopulationConfig | None = None
    max_lanes: int = 0  # member-seed pairs in one program at most; 0: as many as the memory holds
    memory_gb: float = 0.0  # memory of all devices together, in 10^9 bytes; 0: what is free


def check(sweep: SweepConfig) -> SweepConfig:
    """Returns a `[sweep]` table with its parameters under dotted names, after checking what it says by itself.

    Whether the parameters exist and take their values is known when the members are built.

    Raises:
        InputError: A value is out of range or does not go with the others.
    """
    parameters = _flattened(sweep.parameters, "")
    if not parameters:
        raise InputError("sweep.parameters is empty: name what to sweep, such as 'agent.learning_rate' = [1e-4, 1e-3].")
    sweep = dataclasses.replace(sweep, parameters=parameters)
    for name in parameters:
        _check_name(name)
    _check_numbers(sweep)
    members = sweep.samples
    if sweep.method == "grid":
        members = math.prod(len(grid_values(name, value)) for name, value in parameters.items())
    else:
        for name, value in parameters.items():
            parsed(name, value)
    if members > _MAX_MEMBERS:
        raise InputError(f"sweep.parameters make {members} members: leave out values; {_MAX_MEMBERS} can be trained.")
    if sweep.halving is not None and members < 2:
        raise InputError("sweep.halving has nothing to choose from one member: give more values or samples.")
    if sweep.population is not None:
        _check_population(sweep, sweep.population, members)
    return sweep


def parsed(name: str, value: Any) -> list[Any] | Range:
    """Returns the values of a parameter, or its range.

    Raises:
        InputError: It is neither, a value comes twice, or the range has nothing in it.
    """
    field = _field(name)
    if isinstance(value, Mapping):
        return _checked_range(build(Range, value, field), field)
    if not isinstance(value, list):
        raise InputError(f"{field} = {show(value)} is no list of values and no range: give {_EXAMPLE}.")
    if not value:
        raise InputError(f"{field} = [] is empty: give {_EXAMPLE}.")
    texts = [repr(entry) for entry in value]
    for index, text in enumerate(texts):
        if text in texts[:index]:
            raise InputError(f"{field} has {show(value[index])} twice: leave one of them out.")
    return value


def grid_values(name: str, value: Any) -> list[Any]:
    """Returns the values that a grid tries for a parameter. Raises InputError as `parsed` does."""
    values = parsed(name, value)
    if isinstance(values, list):
        return values
    if values.points < 2:
        raise InputError(
            f"{_field(name)}.points = {values.points} says not how many values a grid tries: give 2 or more, a list, "
            "or sweep.method = 'random'."
        )
    shares = [index / (values.points - 1) for index in range(values.points)]
    return [values.low, *(at(values, share) for share in shares[1:-1]), values.high]


def at(values: Range, share: float) -> float:
    """Returns the number of a range that lies a share, from 0 to 1, of the way up."""
    if values.log:
        exponent = math.log(values.low) + share * (math.log(values.high) - math.log(values.low))
        return min(max(math.exp(exponent), values.low), values.high)
    return min(max(values.low + share * (values.high - values.low), values.low), values.high)


_EXAMPLE = "a list, such as [1e-4, 1e-3], or { low = 1e-4, high = 1e-2, log = true }"


def _field(name: str) -> str:
    return dotted("sweep.parameters", name)


def _flattened(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns nested tables of parameters as one, whose keys are dotted names; a range is no such table."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        entries = {name: list(value) if isinstance(value, tuple) else value}
        if isinstance(value, Mapping) and not value.keys() & {"low", "high"} and name.count(".") < 10:
            entries = _flattened(value, f"{name}.")
        for entry in entries:
            if entry in flat:
                raise InputError(f"{_field(entry)} is given twice: leave one of them out.")
        flat |= entries
    return flat


def _check_name(name: str) -> None:
    table, _, key = name.partition(".")
    if table not in SWEPT_TABLES:
        raise InputError(f"{_field(name)} cannot be swept: {nearest(table, SWEPT_TABLES)}")
    if not key:
        raise InputError(f"{_field(name)} names a whole table: name a key of it, such as {name}.KEY.")
    if name == "train.seed":
        raise InputError("sweep.parameters.train.seed cannot be swept: sweep.seeds says on how many seeds to train.")


def _checked_range(values: Range, field: str) -> Range:
    if values.low >= values.high:
        raise InputError(f"{field}.low = {values.low} is not below high = {values.high}: make it smaller.")
    if values.log and values.low <= 0:
        raise InputError(f"{field}.low = {values.low} has no logarithm: give more than 0, or leave out log.")
    if not 0 <= values.points <= _MAX_MEMBERS:
        raise InputError(f"{field}.points = {values.points} is out of range: give 2 to {_MAX_MEMBERS}.")
    return values


def _check_numbers(sweep: SweepConfig) -> None:
    drawn = 1 if sweep.method == "random" else 0
    least = {"seed": 0, "seeds": 1, "samples": drawn, "test_seeds": 0, "max_lanes": 0, "memory_gb": 0}
    for name, bound in least.items():
        value = getattr(sweep, name)
        if value < bound:
            raise InputError(f"sweep.{name} = {value} is too small: give {bound} or more.")
        if value > _INT32_MAX:
            raise InputError(f"sweep.{name} = {value} is too large: give {_INT32_MAX} or less.")
    if sweep.method == "grid" and sweep.samples:
        raise InputError(
            f"sweep.samples = {sweep.samples} has no use in a grid, which tries all combinations: leave it out, or set "
            "sweep.method = 'random'."
        )
    halving = sweep.halving
    if halving is not None:
        if not 2 <= halving.rungs <= 20:
            raise InputError(f"sweep.halving.rungs = {halving.rungs} is out of range: give 2 to 20.")
        if not 0 < halving.keep < 1:
            raise InputError(f"sweep.halving.keep = {halving.keep} is no share between 0 and 1: give 0.5, say.")


def _check_population(sweep: SweepConfig, population: PopulationConfig, members: int) -> None:
    where = "sweep.population"
    if sweep.halving is not None:
        raise InputError("sweep.population and sweep.halving both replace the worst members: leave one of them out.")
    if population.period < 1:
        raise InputError(f"{where}.period = {population.period} is too small: give 1 or more.")
    if not 0 < population.quantile <= 0.5:
        raise InputError(f"{where}.quantile = {population.quantile} is out of range: give above 0 and at most 0.5.")
    if not 0 < min(population.factors) <= max(population.factors) <= 100:
        raise InputError(f"{where}.factors = {list(population.factors)} must be above 0 and at most 100.")
    if members < 2:
        raise InputError(f"{where} has nothing to exchange with one member: give more values or samples.")
