"""A trace of a few chunks of a run by JAX's profiler, for XProf, TensorBoard or Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

CHUNKS = 3
"""Chunks of a trace. It begins with the second one of a run, as the first warms up, or with the only one."""


class Profile:
    """Traces a few chunks into a folder; nothing without one. A context manager, which ends a trace that is open."""

    def __init__(self, folder: Path | None, first: int, last: int) -> None:
        """Chooses the chunks to trace, of those from `first` to `last`."""
        self._folder = folder
        self._begin = min(first + 1, last)
        self._end = min(self._begin + CHUNKS - 1, last)
        self._open = False

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            jax.profiler.stop_trace()

    def before(self, chunk: int) -> None:
        """Begins the trace if this chunk is its first."""
        if self._folder is not None and chunk == self._begin:
            jax.profiler.start_trace(self._folder)
            self._open = True

    def after(self, chunk: int, state: Any) -> None:
        """Ends the trace, once the devices are done, if this chunk was its last."""
        if self._open and chunk == self._end:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self._open = False
