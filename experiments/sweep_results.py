"""What a sweep finds: the score of each member over its seeds, their order, and the table of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax.experiments import config as configs
from rollax.experiments import logs, reporting
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.members import Member
from rollax.experiments.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class LaneResult:
    """How one lane of a job ended."""

    evaluation: Mapping[str, Any]  # its last row of evaluations.csv
    failed: bool
    numbers: Mapping[str, float]  # the swept hyperparameters at the end, where a population changed them


@dataclasses.dataclass(frozen=True)
class Score:
    """How a member did on its tuning seeds, where it trained last."""

    member: Member
    values: Mapping[str, Any]  # of the parameters at the end
    iqm: float
    interval: tuple[float, float]
    seeds: int
    failed: int  # seeds whose learner stopped being finite
    unfinished: int  # episodes
    rung: int  # from 0
    env_steps: int

    @property
    def order(self) -> tuple[int, float, int]:
        """What scores are sorted by, best first; a member without a score is last in its rung."""
        return -self.rung, math.inf if math.isnan(self.iqm) else -self.iqm, self.member.index


def lane_results(folder: RunFolder) -> list[LaneResult]:
    """Reads how the lanes of a finished job ended. Raises InputError if it is none."""
    summary = folder.read_summary()
    lanes = folder.finished_seeds()
    numbers = summary.get("hyperparameters", {})
    return [
        LaneResult(row, lane in summary["failed_seeds"], {name: values[lane] for name, values in numbers.items()})
        for lane, row in enumerate(folder.evaluation_records()[-lanes:])
    ]


def score(member: Member, lanes: Sequence[LaneResult], rung: int) -> Score:
    """Returns the score of a member from those of its seeds."""
    found = reporting.scores([dict(lane.evaluation) for lane in lanes])
    # What a population has changed is float32: its shortest text is a number that reads well in a config.
    changed = {f"agent.{name}": float(str(np.float32(value))) for name, value in lanes[0].numbers.items()}
    return Score(
        member,
        {**member.values, **changed},
        found["iqm"],
        (found["interval"][0], found["interval"][1]),
        len(lanes),
        sum(lane.failed for lane in lanes),
        found["unfinished"],
        rung,
        lanes[0].evaluation["env_steps"],
    )


def row(rank: int, found: Score) -> dict[str, Any]:
    """Returns the row of a member in sweep.csv, by column."""
    return {
        "rank": rank,
        "member": found.member.index,
        **found.values,
        "iqm": found.iqm,
        "low": found.interval[0],
        "high": found.interval[1],
        "seeds": found.seeds,
        "failed": found.failed,
        "unfinished": found.unfinished,
        "rung": found.rung,
        "env_steps": found.env_steps,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns rows as the text of sweep.csv; values that are no numbers or strings are written as JSON."""
    cells = [[value if isinstance(value, str) else json.dumps(value) for value in row.values()] for row in rows]
    return logs.csv_text([list(rows[0]), *cells])


def best_config(found: Score) -> ExperimentConfig:
    """Returns the config of a member with the values that it ended with, for a run of its own."""
    config = found.member.config
    numbers = {name: found.values[f"agent.{name}"] for name in found.member.numbers}
    agent = dataclasses.replace(config.agent, **numbers)
    return configs.check(dataclasses.replace(config, name=f"{config.name or 'sweep'}_best", agent=agent))
