"""Interrupts: the first one ends a run in order, the second one at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Handler:
    """Sets an event at the first interrupt, and puts back what was there before for the second one."""

    def __init__(self, before: Any):
        self.before = before
        self.event = threading.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.event.set()
        signal.signal(signal.SIGINT, self.before)
        print("\nrollax: ending after this chunk and a checkpoint; again to end at once", file=sys.stderr)


@contextlib.contextmanager
def stop_requested(enabled: bool = True) -> Iterator[threading.Event]:
    """Yields an event that the first interrupt sets; the second one is as usual. In the main thread alone.

    Within another such block the event is that of the outer one.
    """
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield threading.Event()
        return
    before = signal.getsignal(signal.SIGINT)
    if isinstance(before, _Handler):
        yield before.event
        return
    handler = _Handler(before)
    signal.signal(signal.SIGINT, handler)
    try:
        yield handler.event
    finally:
        signal.signal(signal.SIGINT, before)
