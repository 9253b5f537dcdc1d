"""What a run says while it trains: the rows of its logs and its progress bar, written beside the devices' work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from rollax.experiments import loggers, processes, reporting
from rollax.experiments.evaluation import Evaluation
from rollax.experiments.run_folder import RunFolder
from rollax.experiments.trainer import Trainer


class Journal:
    """Logs the chunks of a run; a context manager, which closes the logs.

    The rows of a chunk are written once the devices work on the next one, as fetching its numbers waits for them.

    Attributes:
        evaluations: The rows of all evaluations so far, as in evaluations.csv.
        seconds: What this process spent on rows, logs and progress, without its waits for the devices and for hooks.
    """

    def __init__(
        self,
        trainer: Trainer,
        seeds: int,
        folder: RunFolder | None,
        evaluations: list[dict[str, Any]],
        chunks: int,
        last_chunk: int,
        show: bool,
    ) -> None:
        """Opens the logs.

        Args:
            trainer: What is trained.
            seeds: S.
            folder: Where the logs are; None for none.
            evaluations: The rows of the evaluations of an earlier part of the run.
            chunks: Those of that part.
            last_chunk: The number of the chunk that the run ends with.
            show: Whether there is a progress bar.
        """
        self.evaluations = evaluations
        self.seconds = 0.0
        self._env_steps = trainer.env_steps_per_chunk
        self._seeds = seeds
        self._pending: tuple[int, Any, Evaluation | None] | None = None
        self._logs = [] if folder is None else loggers.open_all(folder, trainer.config.log, trainer.config.name)
        with contextlib.ExitStack() as stack:
            for log in self._logs:
                stack.callback(log.close)
            steps = self._env_steps * seeds
            bar = tqdm(total=last_chunk * steps, unit=" env steps", unit_scale=True, disable=not show)
            self._bar = stack.enter_context(bar)
            self._bar.update(chunks * steps)
            self._stack = stack.pop_all()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        started = time.perf_counter()
        self._stack.close()
        self.seconds += time.perf_counter() - started

    def add(self, chunk: int, metrics: Any, evaluated: Evaluation | None) -> None:
        """Takes what a chunk brought, arrays that may still be computed; `write` writes it."""
        assert self._pending is None
        self._pending = (chunk, metrics, evaluated)

    def write(self, hook: Callable[[list[dict[str, Any]]], bool] | None = None) -> bool:
        """Writes what was added last, if it has not been written.

        Args:
            hook: Called with the rows of its evaluation, if there was one, before they are logged; it may add columns.

        Returns:
            What the hook returned, and False without one.
        """
        if self._pending is None:
            return False
        chunk, *arrays = self._pending
        self._pending = None
        metrics, evaluated = processes.fetch(arrays)
        started = time.perf_counter()
        env_steps = chunk * self._env_steps
        rows = reporting.metrics_rows(metrics, env_steps, self._seeds)
        for log in self._logs:
            log.metrics(rows)
        hooked, ends = 0.0, False
        if evaluated is not None:
            rows = reporting.evaluation_rows(evaluated, env_steps, self._seeds)
            if hook is not None:
                began = time.perf_counter()
                ends = hook(rows)
                hooked = time.perf_counter() - began
            self.evaluations.extend(rows)
            for log in self._logs:
                log.evaluations(rows)
            self._bar.set_postfix_str(reporting.progress(rows), refresh=False)
        self._bar.update(self._env_steps * self._seeds)
        self.seconds += time.perf_counter() - started - hooked
        return ends
