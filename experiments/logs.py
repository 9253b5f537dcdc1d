"""Logs as CSV: rows are appended whole, so a process killed at any time leaves a file that can be read."""

from __future__ import annotations

import csv
import io
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import InputError, nearest
from rollax.experiments import files

Columns = dict[str, NDArray[Any]]
Rows = Sequence[Mapping[str, SupportsFloat]] | Mapping[str, ArrayLike]

# The columns that say which point a row describes; the only integers.
INDEX_COLUMNS = ("seed", "env_steps")
_COUNTS = (*INDEX_COLUMNS, "episodes", "finished", "unfinished")


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


def append(path: Path, rows: Rows) -> None:
    """Appends rows to a CSV file, after the header if there is none yet; see `RunFolder.append_metrics`."""
    records = _records(rows) if isinstance(rows, Mapping) else rows
    if not records:
        return
    with files.naming(path):
        header = _read_header(path)
        lines = [] if header else [header := _new_header(path, records[0])]
        for record in records:
            _check_columns(path, header, record)
            lines.append([_text(column, record[column]) for column in header])
        _append_whole(path, csv_text(lines))


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


def csv_text(lines: Iterable[Sequence[str]]) -> bytes:
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


def read_rows(path: Path) -> list[list[str]]:
    """Returns the whole lines of a CSV file as cells, the header first; empty if there is no file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1].decode()
    return list(csv.reader(io.StringIO(whole, newline="")))


def read_columns(path: Path) -> Columns:
    """Reads a log; see `RunFolder.read_metrics`."""
    header, *rows = read_rows(path) or [[]]
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


def read_records(path: Path) -> list[dict[str, Any]]:
    """Reads a log as the rows that were appended, counts as integers; none if there are none."""
    if len(read_rows(path)) < 2:
        return []
    columns = read_columns(path)
    values = [[int(x) if name in _COUNTS else float(x) for x in column] for name, column in columns.items()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
