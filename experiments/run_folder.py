"""The folder of one run: the one place that knows its files, makes them and reads them back.

    manifest.json      format, number of seeds, versions: what a resumed run needs to know beside its config
    config.toml        the resolved config
    metrics.csv        training metrics, one row per seed and log point: seed, env_steps, ...
    evaluations.csv    evaluations, one row per seed and evaluation: seed, env_steps, ...
    summary.json       the result of the whole run
    population.csv     exchanges of population-based training, one row per seed and exchange: seed, env_steps, ...
    curves.png         the learning curves
    tensorboard/       event files, where `[log]` asks for them
    wandb/, wandb.json the files of Weights & Biases, and which run there it is, where `[log]` asks for them
    checkpoints/       numbered ones, which a resumed run starts from; the agents at the end, final and best

A sweep has a manifest, a config and a summary too, and these:

    sweep.csv          its members, the best first
    sweep.png          scores over the parameters
    best.toml          the config of the best member
    parts/             the folders of the runs that it consists of

Rows are appended whole and files are replaced whole, so a process killed at any time leaves files that can be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rollax.errors import InputError
from rollax.experiments import files, logs

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has none, and runs there are not locked
    fcntl = None

MAX_SEEDS = 1_000_000


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of one run. `create` and `open` make it: they check that the folder can be used.

    Attributes:
        path: The folder, absolute.
    """

    path: Path

    @property
    def config_path(self) -> Path:
        """The resolved config."""
        return self.path / "config.toml"

    @property
    def manifest_path(self) -> Path:
        """What a resumed run needs to know beside its config."""
        return self.path / "manifest.json"

    @property
    def metrics_path(self) -> Path:
        """The training metrics."""
        return self.path / "metrics.csv"

    @property
    def evaluations_path(self) -> Path:
        """The evaluations."""
        return self.path / "evaluations.csv"

    @property
    def summary_path(self) -> Path:
        """The result of the whole run."""
        return self.path / "summary.json"

    @property
    def population_path(self) -> Path:
        """The exchanges between members of a population."""
        return self.path / "population.csv"

    @property
    def curves_path(self) -> Path:
        """The learning curves."""
        return self.path / "curves.png"

    @property
    def tensorboard_path(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def wandb_path(self) -> Path:
        """Which run of Weights & Biases it is."""
        return self.path / "wandb.json"

    @property
    def sweep_path(self) -> Path:
        """The members of a sweep."""
        return self.path / "sweep.csv"

    @property
    def sweep_plot_path(self) -> Path:
        """The scores of a sweep over its parameters."""
        return self.path / "sweep.png"

    @property
    def best_config_path(self) -> Path:
        """The config of the best member of a sweep."""
        return self.path / "best.toml"

    @property
    def parts_path(self) -> Path:
        """The folder of the runs that a sweep consists of."""
        return self.path / "parts"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of checkpoints; whoever saves the first one makes it."""
        return self.path / "checkpoints"

    def write_config(self, text: str) -> None:
        """Writes the resolved config, a TOML document. Raises OSError, which names the file, if that fails."""
        files.replace_file(self.config_path, text.encode())

    def read_config(self) -> dict[str, Any]:
        """Reads the tables of the resolved config. Raises InputError if the file isn't TOML."""
        try:
            return tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except ValueError as error:  # no TOML, or no text
            raise InputError(f"{str(self.config_path)!r} is not the config of a run ({error}): restore it.") from error

    def write_manifest(self, manifest: Mapping[str, object]) -> None:
        """Writes the manifest as JSON. Raises OSError, which names the file, if that fails."""
        files.replace_file(self.manifest_path, files.json_text(manifest))

    def read_manifest(self) -> dict[str, Any]:
        """Reads the manifest. Raises InputError if there is none, or it isn't one that a run wrote."""
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
            if not (isinstance(manifest, dict) and _is_count(manifest.get("seeds"))):
                raise ValueError("it names no number of seeds")
            if not isinstance(manifest.get("init_from"), str | None):
                raise ValueError("init_from is no path")
            return manifest
        except (OSError, ValueError) as error:
            raise InputError(
                f"{str(self.manifest_path)!r} is not the manifest of a run ({error}): restore it, or train again."
            ) from error

    def append_metrics(self, rows: logs.Rows) -> None:
        """Appends training metrics.

        Args:
            rows: One mapping of column to number per row; or one mapping of column to array, where the arrays broadcast
                against each other, such as `seed [S]`, `env_steps []` and `loss [S]`. Both need `seed` and `env_steps`
                (environment steps of one seed so far).

        Raises:
            InputError: If the columns aren't those of the rows before; nothing is written then.
            OSError: If writing fails, of a full disk for instance; it names the file, which keeps its earlier rows.
        """
        logs.append(self.metrics_path, rows)

    def append_evaluations(self, rows: logs.Rows) -> None:
        """Appends evaluations; arguments and errors are those of `append_metrics`."""
        logs.append(self.evaluations_path, rows)

    def append_population(self, rows: logs.Rows) -> None:
        """Appends exchanges of population-based training; arguments and errors are those of `append_metrics`."""
        logs.append(self.population_path, rows)

    def read_metrics(self) -> logs.Columns:
        """Reads the training metrics.

        Returns:
            Column to array `[rows]`: `seed` and `env_steps` int64, all others float64 with the bits that were written.

        Raises:
            InputError: If nothing has been logged yet, or the file isn't one that a run wrote.
        """
        return logs.read_columns(self.metrics_path)

    def read_evaluations(self) -> logs.Columns:
        """Reads the evaluations; result and errors are those of `read_metrics`."""
        return logs.read_columns(self.evaluations_path)

    def metrics_records(self) -> list[dict[str, Any]]:
        """Reads the training metrics as the rows that were appended, each value of its type; none if none were."""
        return logs.read_records(self.metrics_path)

    def evaluation_records(self) -> list[dict[str, Any]]:
        """Reads the evaluations as the rows that were appended, each value of its type; none if none were."""
        return logs.read_records(self.evaluations_path)

    def remove_checkpoint(self, name: str) -> None:
        """Removes a checkpoint, if there is one."""
        _remove(self.checkpoints_path / name)

    def drop_after(self, env_steps: int) -> None:
        """Drops the rows logged after a checkpoint, so that a run resumed from it doesn't log them twice.

        Args:
            env_steps: Environment steps of one seed at the checkpoint; rows at this very point stay.

        Raises:
            InputError: If a file isn't one that a run wrote.
            OSError: If rewriting fails; it names the file, which keeps its rows.
        """
        for path in (self.metrics_path, self.evaluations_path, self.population_path):
            header, *rows = logs.read_rows(path) or [[]]
            if rows:
                keep = logs.read_columns(path)["env_steps"] <= env_steps
                kept = (row for row, early in zip(rows, keep, strict=True) if early)
                files.replace_file(path, logs.csv_text([header, *kept]))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training into the folder; the system lets go of it when this one ends.

        Raises:
            InputError: Another process is training into it.
        """
        if fcntl is None:
            yield
            return
        with self.manifest_path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"run {str(self.path)!r} is being trained by another process: wait for that one, or end it."
                ) from None
            yield

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Writes the result of the run as strict JSON, which has no NaN and no infinity: both become null.

        Args:
            summary: Nested mappings and sequences of strings, numbers, None and numpy scalars or arrays.

        Raises:
            OSError: If writing fails; it names the file, which keeps its earlier content.
        """
        files.replace_file(self.summary_path, files.json_text(summary))

    def read_summary(self) -> dict[str, Any]:
        """Reads the result of the run; what was NaN or infinite comes back as None.

        Raises:
            InputError: If the run hasn't written one yet, or the file isn't JSON.
        """
        try:
            summary = json.loads(self.summary_path.read_text(encoding="utf-8"))
            if not isinstance(summary, dict):
                raise ValueError("it is no object")
            return cast(dict[str, Any], summary)
        except FileNotFoundError:
            raise InputError(
                f"{str(self.path)!r} holds no summary.json: its run has not finished; go on with rollax train --resume."
            ) from None
        except ValueError as error:
            raise InputError(f"{str(self.summary_path)!r} is not a summary that a run wrote: {error}.") from error

    def require_seeds(self) -> None:
        """Raises InputError if this is a sweep, or a job of one: its lanes are no seeds of one thing."""
        if self.parts_path.exists():
            raise InputError(
                f"{str(self.path)!r} is a sweep, whose results are in sweep.csv: name a run, such as one of its best "
                f"member (rollax train {self.best_config_path})."
            )
        lanes = self.read_manifest().get("lanes") if self.manifest_path.exists() else None
        if isinstance(lanes, dict) and lanes.get("tuning"):
            raise InputError(
                f"{str(self.path)!r} is a job of a sweep, whose lanes are members and no seeds of one algorithm: their "
                "results are in the sweep's sweep.csv."
            )

    def finished_seeds(self) -> int:
        """Returns how many seeds a finished run has. Raises InputError as `read_summary` does, or if it names none."""
        seeds: Any = self.read_summary().get("seeds")
        if not _is_count(seeds):
            raise InputError(
                f"{str(self.summary_path)!r} is not a summary that a run wrote: it names no number of seeds."
            )
        return int(seeds)


# All that a run writes. The config comes last: a removal cut short leaves a folder that still looks like a run.
_WRITTEN = (
    "metrics.csv",
    "evaluations.csv",
    "summary.json",
    "population.csv",
    "curves.png",
    "tensorboard",
    "wandb",
    "wandb.json",
    "sweep.csv",
    "sweep.png",
    "best.toml",
    "parts",
    "checkpoints",
    "manifest.json",
    "config.toml",
)


_PROBE = ".rollax-"
"""How the name of the file begins that proves that a folder can be written."""


def check(path: str | Path, overwrite: bool = False) -> None:
    """Checks that `create` can make the folder of a new run, and changes nothing.

    Args:
        path: The folder; new or empty.
        overwrite: Whether an earlier run there may be removed. Only the files that a run writes are, and only from a
            folder that looks like a run's: it has a `config.toml`, and a log or a summary or nothing of anyone else.

    Raises:
        InputError: If the folder is a file, can't be written, is being trained into, or holds something that may not be
            removed.
    """
    folder = Path(path).absolute()
    where = f"--out {str(path)!r}"
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{where} is a file, and a run writes a folder: choose another folder with --out.")
        held = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
        if held and not overwrite:
            raise InputError(
                f"{where} is not empty (it holds {_few(held)}): choose another folder with --out, "
                "or replace an earlier run there with --overwrite."
            )
        if held and not _is_run(held):
            raise InputError(
                f"{where} is not the folder of a run (it holds {_few(held)}), so --overwrite leaves it as it is: "
                "choose another folder with --out."
            )
        run = RunFolder(folder)
        if run.manifest_path.is_file():
            with run.locked():
                pass
        made = [level for level in (folder, *folder.parents) if not level.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=_PROBE) as file:
                file.write(b"A full disk, a quota and a read-only mount show only when something is written.\n")
        finally:
            for level in made:
                level.rmdir()
    except OSError as error:
        raise InputError(f"{where} cannot be written ({error.strerror}): choose another folder with --out.") from error


def create(path: str | Path, overwrite: bool = False) -> RunFolder:
    """Makes the folder of a new run, with its parents; arguments and errors are those of `check`."""
    check(path, overwrite)
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():
            if entry.name.startswith(_PROBE):
                _remove(entry)
        for name in _WRITTEN:
            _remove(folder / name)
            _remove(files.partial(folder / name))
    except OSError as error:
        raise InputError(
            f"--out {str(path)!r} cannot be written ({error.strerror}): choose another folder with --out."
        ) from error
    return RunFolder(folder)


def open(path: str | Path) -> RunFolder:
    """Opens the folder of an earlier run, to evaluate, plot or resume it.

    Args:
        path: The folder that the run wrote.

    Raises:
        InputError: If it isn't the folder of a run; the message says what is missing.
    """
    folder = Path(path).absolute()
    remedy = "name the folder that `rollax train --out` wrote"
    if not folder.exists():
        raise InputError(f"run {str(path)!r} does not exist: {remedy}.")
    if not folder.is_dir():
        raise InputError(f"run {str(path)!r} is a file, not the folder of a run: {remedy}.")
    run = RunFolder(folder)
    if not run.config_path.is_file():
        raise InputError(f"run {str(path)!r} holds no config.toml, so it is not the folder of a run: {remedy}.")
    return run


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SEEDS


def _is_run(held: set[str]) -> bool:
    """Returns whether a folder that holds these names is a run's; other projects have a config.toml too."""
    ours = {*_WRITTEN, *(files.partial(Path(name)).name for name in _WRITTEN)}
    if {name for name in held if not name.startswith(_PROBE)} <= ours:  # it may have been killed before its config
        return not held.isdisjoint({"manifest.json", "config.toml"})
    return "config.toml" in held and not held.isdisjoint(_WRITTEN[:3])


def _few(names: set[str]) -> str:
    """Names the first few entries of a folder."""
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _remove(path: Path) -> None:
    """Removes a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
