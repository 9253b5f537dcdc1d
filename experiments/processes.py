"""Several processes that run one job together, each on its own devices, once `jax.distributed` has joined them.

All of them run the same program and call what is here in the same order. The first one writes the files. Where there is
but one process, nothing here costs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from rollax.errors import InputError


def join(place: str | None = None) -> None:
    """Joins this process to the others of its job. It has to come before anything that starts JAX's devices.

    Args:
        place: "HOST:PORT,N,K": where the first process listens, how many there are, and the number of this one, from 0.
            None lets JAX find that out, which it can under SLURM, Kubernetes, Open MPI and on Cloud TPUs.

    Raises:
        InputError: The place has another form, or JAX cannot find it out, or the others do not come.
    """
    given = () if place is None else _parsed(place)
    try:
        jax.distributed.initialize(*given)
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if place is None and "coordinator_address" in reason:
            reason = "no SLURM, Kubernetes, Open MPI or TPU pod was found"
        raise InputError(
            f"--distributed {place or ''} does not join the processes of a job ({reason}): {_REMEDY}"
        ) from error


_REMEDY = "give HOST:PORT,N,K, such as 10.0.0.1:1234,2,0 for the first of two processes."


def _parsed(place: str) -> tuple[str, int, int]:
    """Returns address, number of processes and number of this one. Raises InputError if it is no such place."""
    found = re.fullmatch(r"([^,\s]+):(\d{1,5}),(\d{1,6}),(\d{1,6})", place)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise InputError(f"--distributed {place!r} is no place of a job: {_REMEDY}")
    count, number = int(found[3]), int(found[4])
    if not number < count:
        raise InputError(f"--distributed {place!r}: there is no process {number} of {count}; the first one is 0.")
    return f"{found[1]}:{found[2]}", count, number


def count() -> int:
    """Returns how many processes run this job."""
    return jax.process_count()


def is_first() -> bool:
    """Returns whether this is the process that writes files and speaks."""
    return jax.process_index() == 0


def fetch(tree: Any) -> Any:
    """Returns a tree of device arrays as NumPy arrays, whole on each process; keys stay where they are."""
    if count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def agreed(flag: bool) -> bool:
    """Returns what the first process says, on all of them."""
    return flag if count() == 1 else bool(multihost_utils.broadcast_one_to_all(np.asarray(flag)))


def on_first(function: Callable[[], Any]) -> None:
    """Calls a function on the first process, while the others wait; they fail with it.

    Raises:
        Exception: What the function raises, on the first process.
        InputError: It failed there, on the others.
    """
    failure: Exception | None = None
    if is_first():
        try:
            function()
        except (InputError, OSError) as error:
            failure = error
    failed = agreed(failure is not None)
    if failure is not None:
        raise failure
    if failed:
        raise InputError(f"process {jax.process_index()} ends, as the first process could not go on: it says why.")
