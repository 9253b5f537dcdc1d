"""Files that are replaced whole: a reader, or a killed process, sees the old content or the new one."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rollax.errors import InputError


def require_file(path: Path, field: str) -> None:
    """Checks that a file can be written, before there is anything to write. It makes an empty one if there is none.

    Args:
        path: The file.
        field: Who named it, for the sentence.

    Raises:
        InputError: It cannot.
    """
    try:
        with path.open("a"):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"{field} = {str(path)!r} cannot be written ({_reason(error)}): name another file.") from error


def require_folder(path: Path, field: str) -> None:
    """Makes a folder, with its parents, unless it is there. Raises InputError, as `require_file`, if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{field} = {str(path)!r} is no folder ({_reason(error)}): name another one.") from error


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` in place of a file at once: a reader, or a killed process, sees the old file or the new one.

    Raises:
        OSError: If writing fails; it names the file, which keeps its earlier content.
    """
    written = partial(path)
    with naming(path):
        try:
            with written.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise


def partial(path: Path) -> Path:
    """Returns where a file is written before it is put in place."""
    return path.with_name(f".{path.name}.partial")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives an OSError raised inside, which says what failed but often not where, the name of the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def json_text(value: object) -> bytes:
    """Returns nested mappings, sequences, numbers and arrays as strict JSON; NaN and infinity become null."""
    return f"{json.dumps(_strict(value), indent=2, allow_nan=False)}\n".encode()


def _strict(value: object) -> object:
    """Returns a value as strict JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _strict(value.tolist())
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
