"""The members of a sweep: what each one sets, its config, and which of them are one program."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.agents.base import number_names
from rollax.agents.registry import resolve
from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments import sweep_config
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.sweep_config import Range, SweepConfig
from rollax.experiments.tables import show, to_table


@dataclasses.dataclass(frozen=True)
class Member:
    """One choice of values.

    Attributes:
        index: Its number in the sweep.
        values: The value of each swept parameter by its dotted name.
        config: The config with these values, and without `[sweep]`.
    """

    index: int
    values: Mapping[str, Any]
    config: ExperimentConfig

    @property
    def numbers(self) -> dict[str, float]:
        """Swept hyperparameters of the agent: they are arrays in its state, so lanes of one program may differ."""
        swept = (name.removeprefix("agent.") for name in self.values if name.startswith("agent."))
        return {name: getattr(self.config.agent, name) for name in swept if name in number_names(self.config.agent)}


def members(config: ExperimentConfig) -> list[Member]:
    """Returns the members of a checked config with a `[sweep]` table, each with a checked config.

    A grid has the last parameter vary fastest. A random draw depends on the sweep's seed and the parameter's name, so
    one more parameter, or more samples, leave the other draws as they are.

    Raises:
        InputError: A parameter does not exist, does not take one of its values, or is a range and no number.
    """
    assert config.sweep is not None
    drawn = _grid(config.sweep) if config.sweep.method == "grid" else _random(config.sweep)
    tables = {**to_table(dataclasses.replace(config, sweep=None)), "agent": to_table(config.agent)}
    found = [Member(index, values, _config(config, tables, values)) for index, values in enumerate(drawn)]
    for name, value in config.sweep.parameters.items():
        if isinstance(value, Mapping) and not all(name.removeprefix("agent.") in member.numbers for member in found):
            raise InputError(
                f"sweep.parameters.{name} is a range, and {name} is no number in the agent's state but a part of the "
                "program: give a list of values."
            )
    return found


def groups(found: list[Member]) -> list[list[Member]]:
    """Returns the members in groups that differ in hyperparameters alone, so that each group is one program."""
    grouped: list[tuple[ExperimentConfig, list[Member]]] = []
    for member in found:
        alike = dataclasses.replace(member.config.agent, **dict.fromkeys(member.numbers, 0.0))
        structure = dataclasses.replace(member.config, agent=alike)
        group = next((group for other, group in grouped if other == structure), None)
        if group is None:
            grouped.append((structure, group := []))
        group.append(member)
    return [group for _, group in grouped]


def bounds(sweep: SweepConfig, name: str) -> tuple[float, float]:
    """Returns the smallest and the largest value that a sweep gives to a hyperparameter."""
    values = sweep_config.parsed(f"agent.{name}", sweep.parameters[f"agent.{name}"])
    return (values.low, values.high) if isinstance(values, Range) else (float(min(values)), float(max(values)))


def _grid(sweep: SweepConfig) -> list[dict[str, Any]]:
    values = [sweep_config.grid_values(name, value) for name, value in sweep.parameters.items()]
    return [dict(zip(sweep.parameters, row, strict=True)) for row in itertools.product(*values)]


def _random(sweep: SweepConfig) -> list[dict[str, Any]]:
    columns = {}
    for name, value in sweep.parameters.items():
        values = sweep_config.parsed(name, value)
        shares = np.random.default_rng([sweep.seed, zlib.crc32(name.encode())]).random(sweep.samples).tolist()
        if isinstance(values, Range):
            columns[name] = [sweep_config.at(values, share) for share in shares]
        else:
            columns[name] = [values[int(share * len(values))] for share in shares]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _config(config: ExperimentConfig, tables: Mapping[str, Any], values: Mapping[str, Any]) -> ExperimentConfig:
    """Returns the config of a member; another agent than the config's starts from the defaults of its own Config."""
    tables = dict(tables)
    if values.get("train.agent", config.train.agent) != config.train.agent:
        tables["agent"] = {}
    for name, value in values.items():
        table = tables
        *path, key = name.split(".")
        for part in path:
            inner = table.get(part, {})
            if not isinstance(inner, Mapping):
                raise InputError(f"sweep.parameters.{name} cannot be set: {part} = {show(inner)} is no table.")
            table[part] = dict(inner)
            table = table[part]
        table[key] = value
    built = configs.from_dict(tables)
    algorithm = resolve(built.train.agent)
    if algorithm.check is not None:
        algorithm.check(built.agent, built.train.num_steps, built.train.num_envs)
    return built
