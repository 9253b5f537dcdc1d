"""Where a run's rows go: always to CSV files, and to TensorBoard and Weights & Biases where `[log]` says so.

A logger is handed the rows of one point at a time, one for each seed, in the order of their environment steps. Points
that a resumed run comes to again are in no log twice.
"""

from __future__ import annotations

import importlib.util
import json
import math
import secrets
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from rollax.errors import InputError
from rollax.experiments import files, statistics
from rollax.experiments.config import LogConfig
from rollax.experiments.run_folder import RunFolder

Row = Mapping[str, Any]


class Logger(Protocol):
    """What a run writes its rows to."""

    def metrics(self, rows: Sequence[Row]) -> None:
        """Logs the training metrics of one point, one row for each seed, with `seed` and `env_steps`."""

    def evaluations(self, rows: Sequence[Row]) -> None:
        """Logs one evaluation, one row for each seed, with `seed` and `env_steps`."""

    def close(self) -> None:
        """Writes what is not written yet."""


def check(settings: LogConfig) -> None:
    """Checks that the packages which `[log]` needs are there.

    Raises:
        InputError: One is missing; the sentence names the extra that brings it.
    """
    for wanted, setting, package, extra in (
        (settings.tensorboard, "log.tensorboard = true", "tensorboardX", "tensorboard"),
        (settings.wandb != "off", f"log.wandb = {settings.wandb!r}", "wandb", "wandb"),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise InputError(
                f"{setting} needs the package {package}, which is not installed: pip install 'rollax[{extra}]'."
            )


def open_all(folder: RunFolder, settings: LogConfig, name: str) -> list[Logger]:
    """Opens the logs of a run, new or resumed.

    Args:
        folder: The run's folder. A resumed run has dropped from its CSV files what comes again.
        settings: Which logs there are beside the CSV files.
        name: What the run is called where runs are listed.

    Raises:
        InputError: As of `check`, or Weights & Biases refuses.
    """
    check(settings)
    loggers: list[Logger] = [CsvLogger(folder)]
    if settings.tensorboard:
        loggers.append(TensorBoardLogger(folder))
    if settings.wandb != "off":
        loggers.append(WandbLogger(folder, settings, name))
    return loggers


class CsvLogger:
    """Rows in `metrics.csv` and `evaluations.csv`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def metrics(self, rows: Sequence[Row]) -> None:
        self._folder.append_metrics(rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        self._folder.append_evaluations(rows)

    def close(self) -> None:
        pass


class TensorBoardLogger:
    """Event files in the folder `tensorboard` of a run; see `series` for their tags.

    A resumed run writes them anew from the CSV files, which have each point once, and goes on.
    """

    def __init__(self, folder: RunFolder) -> None:
        from tensorboardX import FileWriter

        with files.naming(folder.tensorboard_path):
            if folder.tensorboard_path.exists():
                shutil.rmtree(folder.tensorboard_path)
        self._writer = FileWriter(str(folder.tensorboard_path))
        for table, rows in _logged(folder):
            self._write(table, rows)

    def metrics(self, rows: Sequence[Row]) -> None:
        self._write("train", rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        self._write("evaluation", rows)

    def close(self) -> None:
        self._writer.close()

    def _write(self, table: str, rows: Sequence[Row]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        # All series in one record: a record for each takes twenty times as long.
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in series(table, rows).items()]
        self._writer.add_summary(Summary(value=values), rows[0]["env_steps"])


class WandbLogger:
    """A run of Weights & Biases; see `series` for the names of its values, whose step is that of the environment.

    Its id, and how far it was logged, are kept in the folder's `wandb.json`, so that a resumed run goes on in it.
    """

    def __init__(self, folder: RunFolder, settings: LogConfig, name: str) -> None:
        import wandb

        self._path = folder.wandb_path
        known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        self._id = known.get("id") or secrets.token_hex(4)
        self._last = int(known.get("env_steps", 0))
        self._run = _wandb_run(wandb, folder, settings, name, self._id)
        self._values: dict[str, float] = {}
        self._step = 0
        self._keep()
        for table, rows in _logged(folder):
            self._log(table, rows)

    def metrics(self, rows: Sequence[Row]) -> None:
        self._log("train", rows)

    def evaluations(self, rows: Sequence[Row]) -> None:
        self._log("evaluation", rows)

    def close(self) -> None:
        self._flush()
        self._run.finish()

    def _log(self, table: str, rows: Sequence[Row]) -> None:
        """Collects what one point has, as a step can be logged once."""
        step = int(rows[0]["env_steps"])
        if step > self._step:
            self._flush()
        self._step = step
        self._values |= series(table, rows)

    def _flush(self) -> None:
        if self._values and self._step > self._last:
            self._run.log(self._values, step=self._step)
            self._last = self._step
            self._keep()
        self._values = {}

    def _keep(self) -> None:
        files.replace_file(self._path, files.json_text({"id": self._id, "env_steps": self._last}))


def _wandb_run(wandb: ModuleType, folder: RunFolder, settings: LogConfig, name: str, run_id: str) -> Any:
    try:
        return wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity or None,
            name=name or folder.path.name,
            id=run_id,
            resume="allow" if settings.wandb == "online" else None,
            mode=settings.wandb,
            dir=str(folder.path),
            config=tomllib.loads(folder.config_path.read_text(encoding="utf-8")),
            settings=wandb.Settings(silent=True),
        )
    except wandb.errors.Error as error:
        raise InputError(
            f"log.wandb = {settings.wandb!r} cannot start ({error}): run `wandb login`, or set it to 'offline'."
        ) from error


def series(table: str, rows: Sequence[Row]) -> dict[str, float]:
    """Returns the values of one point by their tags.

    Each seed has series of its own, `seed_3/train/episode_return`, and `iqm/train/episode_return` is the interquartile
    mean over the seeds. What is NaN, such as the return where no episode ended, is left out.

    Args:
        table: `train` or `evaluation`.
        rows: One for each seed.
    """
    columns = [name for name in rows[0] if name not in ("seed", "env_steps")]
    values = {f"seed_{row['seed']}/{table}/{name}": float(row[name]) for row in rows for name in columns}
    values |= {f"iqm/{table}/{name}": float(statistics.iqm([row[name] for row in rows])) for name in columns}
    return {tag: value for tag, value in values.items() if not math.isnan(value)}


def _logged(folder: RunFolder) -> list[tuple[str, list[Row]]]:
    """Returns what the CSV files hold, as `(table, rows of one point)`, in the order that it was logged in."""
    points: dict[tuple[int, str], list[Row]] = {}
    for table, rows in (("train", folder.metrics_records()), ("evaluation", folder.evaluation_records())):
        for row in rows:
            points.setdefault((row["env_steps"], table), []).append(row)
    order = sorted(points, key=lambda point: point[0])  # stable: training before the evaluation
    return [(table, points[env_steps, table]) for env_steps, table in order]
