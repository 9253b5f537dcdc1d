"""The benchmark of replay: time of adding and sampling, and memory, beside flashbax used directly."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
from jax import lax

from rollax import replay

BATCH_SIZE = 64
STEPS = 2000
"""Steps of one compiled scan."""


@dataclasses.dataclass(frozen=True)
class _Subject:
    """One buffer under test. Both functions run `STEPS` steps in one scan."""

    init: Callable[[], Any]  # state of one seed
    add: Callable[[Any, jax.Array], Any]  # (state, key) -> state
    cycle: Callable[[Any, jax.Array], Any]  # (state, key) -> (state, checksum): add, sample, set priorities
    axes: Any  # the state's seed axes


def run_replay(
    seeds: Sequence[int] = (1, 8),
    rows: Sequence[tuple[int, str]] = ((100_000, "float32[8]"), (1_000_000, "float32[8]"), (100_000, "bool[10,10,4]")),
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Times buffers in a compiled scan: one row added per step, then a batch of 64 sampled, then its priorities set.

    Args:
        seeds: Numbers of seeds, each a vmap on one device.
        rows: Capacities, and the dtype and shape of the one array of a row.
        repeats: Measurements; the median counts. The buffers take turns.

    Returns:
        One row for each buffer and case: `add_us`, a scan of adds alone, and `cycle_us`, one of whole steps, in
        microseconds per step and seed; `memory`, bytes that the whole-step program holds at its peak, per byte of rows.
    """
    return [row for count in seeds for capacity, name in rows for row in _case(capacity, name, count, repeats)]


def _case(capacity: int, name: str, seeds: int, repeats: int) -> Iterator[dict[str, Any]]:
    dtype, shape = name.rstrip("]").split("[")
    example = jnp.zeros([int(size) for size in shape.split(",")], dtype)
    programs = {subject: _Program(make, seeds) for subject, make in _subjects(capacity, example).items()}
    measured: dict[str, list[tuple[float, float]]] = {subject: [] for subject in programs}
    for _ in range(repeats):
        for subject, program in programs.items():
            measured[subject].append(program.measure())
    for subject, program in programs.items():
        add, cycle = (statistics.median(times) for times in zip(*measured[subject], strict=True))
        yield {
            "name": f"{capacity:,} x {name}",
            "seeds": seeds,
            "buffer": subject,
            "add_us": add,
            "cycle_us": cycle,
            "memory": program.peak_bytes / (seeds * capacity * example.nbytes),
            "device": jax.local_devices()[0].device_kind,
            "jax": jax.__version__,
        }


class _Program:
    """The compiled programs of one subject, and their state."""

    def __init__(self, subject: _Subject, seeds: int):
        self.keys = jax.random.split(jax.random.key(0), seeds)
        self.state = jax.jit(lambda: jax.vmap(lambda _: subject.init(), out_axes=subject.axes)(jnp.zeros(seeds)))()
        axes = subject.axes

        def compiled(function: Any, out_axes: Any) -> Any:
            mapped = jax.vmap(function, in_axes=(axes, 0), out_axes=out_axes)
            return jax.jit(mapped, donate_argnums=0).lower(self.state, self.keys).compile()

        self.add = compiled(subject.add, axes)
        self.cycle = compiled(subject.cycle, (axes, 0))
        used = self.cycle.memory_analysis()
        self.peak_bytes = (
            used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
        )

    def measure(self) -> tuple[float, float]:
        """Returns microseconds per step and seed of adds alone and of whole steps."""
        started = time.perf_counter()
        self.state = jax.block_until_ready(self.add(self.state, self.keys))
        between = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.cycle(self.state, self.keys))
        ended = time.perf_counter()
        unit = STEPS * len(self.keys) * 1e-6
        return (between - started) / unit, (ended - between) / unit


def _subjects(capacity: int, example: jax.Array) -> dict[str, _Subject]:
    options = {"max_length": capacity, "min_length": BATCH_SIZE, "sample_batch_size": BATCH_SIZE}
    return {
        "uniform, array": _rollax(replay.uniform(capacity, BATCH_SIZE), example),
        "uniform, ref": _rollax(replay.uniform(capacity, BATCH_SIZE, storage="ref"), example),
        "flashbax item": _flashbax(flashbax.make_item_buffer(**options), example),
        "prioritised, array": _rollax(replay.prioritised(capacity, BATCH_SIZE), example),
        "prioritised, ref": _rollax(replay.prioritised(capacity, BATCH_SIZE, storage="ref"), example),
        "flashbax prioritised item": _flashbax(
            flashbax.make_prioritised_item_buffer(**options, priority_exponent=1.0), example
        ),
    }


def _rollax(buffer: replay.Buffer, example: jax.Array) -> _Subject:
    def add(state: replay.ReplayState, index: jax.Array) -> replay.ReplayState:
        return buffer.add(state, jnp.full((1, 1, *example.shape), index, example.dtype))

    def cycle(state: replay.ReplayState, inputs: Any) -> Any:
        index, (key_sample, key_priority) = inputs
        state = add(state, index)
        sample = buffer.sample(state, key_sample)
        state = buffer.set_priorities(state, sample.indices, _priorities(key_priority))
        return state, _checksum(sample.experience)

    def whole(state: replay.ReplayState, step: Any, inputs: Any) -> Any:
        state, sums = replay.scan(step, buffer.thaw(state), inputs)
        return buffer.freeze(state), sums

    return _Subject(
        init=lambda: buffer.init(example[None]),
        add=lambda state, key: whole(state, lambda state, index: (add(state, index), None), jnp.arange(STEPS))[0],
        cycle=lambda state, key: whole(state, cycle, _inputs(key)),
        axes=replay.ReplayState(rows=0, positions=None),
    )


def _flashbax(buffer: Any, example: jax.Array) -> _Subject:
    def add(state: Any, index: jax.Array) -> Any:
        return buffer.add(state, jnp.full(example.shape, index, example.dtype))

    def cycle(state: Any, inputs: Any) -> Any:
        index, (key_sample, key_priority) = inputs
        state = add(state, index)
        sample = buffer.sample(state, key_sample)
        if hasattr(buffer, "set_priorities"):
            state = buffer.set_priorities(state, sample.indices, _priorities(key_priority))
        return state, _checksum(sample.experience)

    return _Subject(
        init=lambda: buffer.init(example),
        add=lambda state, key: lax.scan(lambda state, index: (add(state, index), None), state, jnp.arange(STEPS))[0],
        cycle=lambda state, key: lax.scan(cycle, state, _inputs(key)),
        axes=0,
    )


def _inputs(key: jax.Array) -> Any:
    keys = jax.random.split(key, (STEPS, 2))
    return jnp.arange(STEPS), (keys[:, 0], keys[:, 1])


def _priorities(key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (BATCH_SIZE,), minval=1e-3, maxval=5.0)


def _checksum(experience: Any) -> jax.Array:
    # What a learner would read: without it the compiler leaves out the sample.
    sums = [jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(experience)]
    return jnp.sum(jnp.stack(sums))
