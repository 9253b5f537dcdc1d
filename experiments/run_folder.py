"""The folder of one run: the one place that knows its files, makes them and reads them back.

    config.toml        the resolved config
    metrics.csv        training metrics, one row per seed and log point: seed, env_steps, ...
    evaluations.csv    evaluations, one row per seed and evaluation: seed, env_steps, ...
    summary.json       the result of the whole run
    curves.png         the learning curves
    checkpoints/       what a resumed run starts from

Rows are appended whole and files are replaced whole, so a process killed at any time leaves files that can be read.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import operator
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import InputError, nearest

Columns = dict[str, NDArray[Any]]
Rows = Sequence[Mapping[str, SupportsFloat]] | Mapping[str, ArrayLike]

# The columns that say which point a row describes; the only integers.
INDEX_COLUMNS = ("seed", "env_steps")


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
    def curves_path(self) -> Path:
        """The learning curves."""
        return self.path / "curves.png"

    @property
    def checkpoints_path(self) -> Path:
        """The folder of checkpoints; whoever saves the first one makes it."""
        return self.path / "checkpoints"

    def write_config(self, text: str) -> None:
        """Writes the resolved config, a TOML document. Raises OSError, which names the file, if that fails."""
        replace_file(self.config_path, text.encode())

    def append_metrics(self, rows: Rows) -> None:
        """Appends training metrics.

        Args:
            rows: One mapping of column to number per row; or one mapping of column to array, where the arrays broadcast
                against each other, such as `seed [S]`, `env_steps []` and `loss [S]`. Both need `seed` and `env_steps`
                (environment steps of one seed so far).

        Raises:
            InputError: If the columns aren't those of the rows before; nothing is written then.
            OSError: If writing fails, of a full disk for instance; it names the file, which keeps its earlier rows.
        """
        _append(self.metrics_path, rows)

    def append_evaluations(self, rows: Rows) -> None:
        """Appends evaluations; arguments and errors are those of `append_metrics`."""
        _append(self.evaluations_path, rows)

    def read_metrics(self) -> Columns:
        """Reads the training metrics.

        Returns:
            Column to array `[rows]`: `seed` and `env_steps` int64, all others float64 with the bits that were written.

        Raises:
            InputError: If nothing has been logged yet, or the file isn't one that a run wrote.
        """
        return _read_columns(self.metrics_path)

    def read_evaluations(self) -> Columns:
        """Reads the evaluations; result and errors are those of `read_metrics`."""
        return _read_columns(self.evaluations_path)

    def drop_after(self, env_steps: int) -> None:
        """Drops the rows logged after a checkpoint, so that a run resumed from it doesn't log them twice.

        Args:
            env_steps: Environment steps of one seed at the checkpoint; rows at this very point stay.

        Raises:
            InputError: If a file isn't one that a run wrote.
            OSError: If rewriting fails; it names the file, which keeps its rows.
        """
        for path in (self.metrics_path, self.evaluations_path):
            header, *rows = _read_rows(path) or [[]]
            if rows:
                keep = _read_columns(path)["env_steps"] <= env_steps
                kept = (row for row, early in zip(rows, keep, strict=True) if early)
                replace_file(path, _csv_text([header, *kept]))

    def abandon(self) -> None:
        """Removes the folder of a run that never started, unless something was logged in it."""
        if not (self.metrics_path.exists() or self.evaluations_path.exists()):
            self.config_path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds other things
                self.path.rmdir()

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Writes the result of the run as strict JSON, which has no NaN and no infinity: both become null.

        Args:
            summary: Nested mappings and sequences of strings, numbers, None and numpy scalars or arrays.

        Raises:
            OSError: If writing fails; it names the file, which keeps its earlier content.
        """
        replace_file(self.summary_path, f"{json.dumps(_strict(summary), indent=2, allow_nan=False)}\n".encode())

    def read_summary(self) -> dict[str, Any]:
        """Reads the result of the run; what was NaN or infinite comes back as None.

        Raises:
            InputError: If the run hasn't written one yet, or the file isn't JSON.
        """
        try:
            return cast(dict[str, Any], json.loads(self.summary_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(
                f"{str(self.path)!r} holds no summary.json: its run has not finished; train it again with --overwrite."
            ) from None
        except ValueError as error:
            raise InputError(f"{str(self.summary_path)!r} is not a summary that a run wrote: {error}.") from error


# All that a run writes. The config comes last: a removal cut short leaves a folder that still looks like a run.
_WRITTEN = ("metrics.csv", "evaluations.csv", "summary.json", "curves.png", "checkpoints", "config.toml")


def create(path: str | Path, overwrite: bool = False) -> RunFolder:
    """Makes the folder of a new run, with its parents, and proves that it can be written by writing to it.

    Args:
        path: The folder; new or empty.
        overwrite: Whether an earlier run there may be removed. Only the files that a run writes are, and only from a
            folder that looks like a run's: it has a `config.toml`, and a log or a summary or nothing of anyone else.

    Raises:
        InputError: If the folder is a file, can't be written, or holds something that may not be removed.
    """
    folder = Path(path).absolute()
    where = f"--out {str(path)!r}"
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{where} is a file, and a run writes a folder: choose another folder with --out.")
        folder.mkdir(parents=True, exist_ok=True)
        held = {entry.name for entry in folder.iterdir()}
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
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rollax-") as file:
            file.write(b"A full disk, a quota and a read-only mount show only when something is written.\n")
        for name in _WRITTEN:
            _remove(folder / name)
            _remove(_partial(folder / name))
    except OSError as error:
        raise InputError(f"{where} cannot be written ({error.strerror}): choose another folder with --out.") from error
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


def by_seed(columns: Mapping[str, NDArray[Any]], value: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Turns the rows of a log into one curve per seed.

    Args:
        columns: What `read_metrics` or `read_evaluations` returned, or some of its rows.
        value: The column to take.

    Returns:
        `env_steps [P]`, increasing, and `values [S, P]`, seeds in increasing order. A seed without a row at a point is
        NaN there; of several rows for one seed and point the last one counts.

    Raises:
        InputError: If there is no such column.
    """
    if value not in columns:
        raise InputError(f"there is no column {value!r}: {nearest(value, columns)}")
    seeds, row = np.unique(columns["seed"], return_inverse=True)
    env_steps, point = np.unique(columns["env_steps"], return_inverse=True)
    values = np.full((len(seeds), len(env_steps)), np.nan)
    values[row, point] = columns[value]
    return env_steps, values


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` in place of a file at once: a reader, or a killed process, sees the old file or the new one.

    Raises:
        OSError: If writing fails; it names the file, which keeps its earlier content.
    """
    partial = _partial(path)
    with _naming(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _partial(path: Path) -> Path:
    """Returns where a file is written before it is put in place."""
    return path.with_name(f".{path.name}.partial")


def _is_run(held: set[str]) -> bool:
    """Returns whether a folder that holds these names is a run's; other projects have a config.toml too."""
    ours = {*_WRITTEN, *(_partial(Path(name)).name for name in _WRITTEN)}
    return "config.toml" in held and (held <= ours or not held.isdisjoint(_WRITTEN[:3]))


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


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Gives an OSError raised inside, which says what failed but often not where, the name of the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _append(path: Path, rows: Rows) -> None:
    """Appends rows to a CSV file, after the header if there is none yet; see `RunFolder.append_metrics`."""
    records = _records(rows) if isinstance(rows, Mapping) else rows
    if not records:
        return
    with _naming(path):
        header = _read_header(path)
        lines = [] if header else [header := _new_header(path, records[0])]
        for record in records:
            _check_columns(path, header, record)
            lines.append([_text(column, record[column]) for column in header])
        _append_whole(path, _csv_text(lines))


def _records(columns: Mapping[str, ArrayLike]) -> list[dict[str, SupportsFloat]]:
    """Returns the rows of columns that broadcast against each other, those of the first axis first."""
    arrays = np.broadcast_arrays(*(np.asarray(column) for column in columns.values()))
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*(array.ravel().tolist() for array in arrays), strict=True)
    ]


def _new_header(path: Path, record: Mapping[str, object]) -> list[str]:
    """Returns the header for a first row: where the row belongs, then the other columns as they come."""
    for column in INDEX_COLUMNS:
        if column not in record:
            raise InputError(f"a row for {path.name} has no {column!r}: give every row a seed and its env_steps.")
    return [*INDEX_COLUMNS, *(column for column in record if column not in INDEX_COLUMNS)]


def _check_columns(path: Path, header: list[str], record: Mapping[str, object]) -> None:
    """Raises InputError unless a row has exactly the columns of the file."""
    if missing := [column for column in header if column not in record]:
        raise InputError(
            f"a row for {str(path)!r} lacks the columns {missing}: all rows of a run have the same columns; "
            "start another run with another --out."
        )
    if unknown := [column for column in record if column not in header]:
        raise InputError(
            f"a row for {str(path)!r} has the columns {unknown}, which the rows before it lack: all rows of a run have "
            "the same columns; start another run with another --out."
        )


def _text(column: str, value: SupportsFloat) -> str:
    """Returns a number as text that reads back as the same float64, or as the same integer in an index column."""
    return str(operator.index(cast(SupportsIndex, value))) if column in INDEX_COLUMNS else repr(float(value))


def _csv_text(lines: Iterable[Sequence[str]]) -> bytes:
    """Returns lines of cells as CSV."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue().encode()


def _append_whole(path: Path, content: bytes) -> None:
    """Appends whole lines in one write, after cutting off a torn line; takes back what a full disk let through."""
    with path.open("a+b", buffering=0) as file:
        end = _end_of_last_line(file)
        file.truncate(end)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)
            raise


def _end_of_last_line(file: io.FileIO) -> int:
    """Returns how many bytes of a file are whole lines; a process killed as it wrote may leave a torn one."""
    end = file.seek(0, os.SEEK_END)
    while end:
        file.seek(end - 1)
        if file.read(1) == b"\n":
            break
        end -= 1
    return end


def _read_header(path: Path) -> list[str]:
    """Returns the header of a CSV file; empty if there is no whole one."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        line = file.readline()
    return next(csv.reader([line])) if line.endswith("\n") else []


def _read_rows(path: Path) -> list[list[str]]:
    """Returns the whole lines of a CSV file as cells, the header first; empty if there is no file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1].decode()
    return list(csv.reader(io.StringIO(whole, newline="")))


def _read_columns(path: Path) -> Columns:
    """Reads a log; see `RunFolder.read_metrics`."""
    header, *rows = _read_rows(path) or [[]]
    if not rows:
        raise InputError(f"{str(path.parent)!r} holds no {path.name} with rows: its run has not logged any yet.")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(
                f"{str(path)!r} is not a log that a run wrote: its header has {len(header)} cells and line {line} "
                f"{len(row)}; restore the file."
            )
    try:
        columns = {
            column: np.array([int(cell) if column in INDEX_COLUMNS else float(cell) for cell in cells])
            for column, cells in zip(header, zip(*rows, strict=True), strict=True)
        }
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not a log that a run wrote: {error}; restore the file.") from error
    if missing := [column for column in INDEX_COLUMNS if column not in columns]:
        raise InputError(f"{str(path)!r} is not a log that a run wrote: it lacks the columns {missing}.")
    return columns


def _strict(value: object) -> object:
    """Returns a value as strict JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _strict(value.tolist())
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
