"""Array and ref storage: the same samples from both, writes in place, and sentences for each wrong use of a Ref."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rollax import InputError, replay
from rollax.replay import Buffer, ReplayState, Sample

N = 2
SIZE = 8
STEPS = 7  # of 2 rows each: the ring wraps
SEEDS = 3
AXES = ReplayState(rows=0, positions=None)
BOTH = pytest.mark.parametrize("storage", ["array", "ref"])
Run = Callable[[Buffer], tuple[ReplayState, Sample]]


def rows(first: Any, count: int) -> dict[str, jax.Array]:
    """Time rows `first, first + 1, ...`; an id is 10 times its row plus its environment."""
    ids = 10 * (first + jnp.arange(count, dtype=jnp.int32)[:, None]) + jnp.arange(N, dtype=jnp.int32)
    return {"id": ids, "pair": jnp.stack([ids, -ids], axis=-1).astype(jnp.float32)}


def example() -> dict[str, jax.Array]:
    return jax.tree.map(lambda leaf: leaf[0], rows(0, 1))


def made(storage: str = "ref") -> Buffer:
    return replay.uniform(capacity=SIZE * N, batch_size=5, n_step=2, storage=storage)


def thawed(first: int = 0) -> ReplayState:
    """A thawed state that holds 5 rows."""
    buffer = made()
    return buffer.thaw(buffer.add(buffer.init(example()), rows(first, 5)))


def keys(seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), STEPS)


def step(buffer: Buffer, state: ReplayState, inputs: tuple[jax.Array, jax.Array]) -> tuple[ReplayState, Sample]:
    index, key = inputs
    state = buffer.add(state, rows(2 * index, 2))
    return state, buffer.sample(state, key)


def plain(leaf: Any) -> np.ndarray:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def equal(first: Any, second: Any) -> None:
    """Asserts that two trees are equal to the bit, dtypes and structure too."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(plain(a), plain(b))


def holds_refs(state: ReplayState) -> bool:
    return all(isinstance(leaf, jax.Ref) for leaf in jax.tree.leaves(state.rows))


# Both storages give the same.


@functools.cache
def reference(seed: int = 0) -> tuple[ReplayState, Sample]:
    """The final state and the samples of a plain `lax.scan` with immutable arrays."""
    buffer = made("array")
    run = jax.jit(lambda state, xs: lax.scan(functools.partial(step, buffer), state, xs))
    return run(buffer.init(example()), (jnp.arange(STEPS), keys(seed)))


def loop(buffer: Buffer, jit: Callable[..., Any]) -> tuple[ReplayState, Sample]:
    add, sample = jit(buffer.add), jit(buffer.sample)
    state, samples = buffer.thaw(buffer.init(example())), []
    for index, key in enumerate(keys()):
        state = add(state, rows(2 * index, 2))
        samples.append(sample(state, key))
    return buffer.freeze(state), jax.tree.map(lambda *leaves: jnp.stack(leaves), *samples)


def scan(buffer: Buffer, state: ReplayState, xs: Any) -> tuple[ReplayState, Sample]:
    state, samples = replay.scan(functools.partial(step, buffer), buffer.thaw(state), xs)
    return buffer.freeze(state), samples


def chunks(buffer: Buffer) -> tuple[ReplayState, Sample]:
    run, state, samples = jax.jit(functools.partial(scan, buffer), donate_argnums=0), buffer.init(example()), []
    for part in (slice(0, 3), slice(3, 5), slice(5, 7)):
        state, drawn = run(state, (jnp.arange(STEPS)[part], keys()[part]))
        samples.append(drawn)
    return state, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *samples)


def scan_between_calls(buffer: Buffer) -> tuple[ReplayState, Sample]:
    whole = replay.jit(lambda state, xs: replay.scan(functools.partial(step, buffer), state, xs))
    state, samples = whole(buffer.thaw(buffer.init(example())), (jnp.arange(STEPS), keys()))
    return buffer.freeze(state), samples


RUNS: dict[str, Run] = {
    "eager loop": lambda buffer: loop(buffer, lambda function: function),
    "replay.jit loop": lambda buffer: loop(buffer, replay.jit),
    "replay.scan": lambda buffer: scan(buffer, buffer.init(example()), (jnp.arange(STEPS), keys())),
    "jit": lambda buffer: jax.jit(functools.partial(scan, buffer))(buffer.init(example()), (jnp.arange(STEPS), keys())),
    "replay.jit of replay.scan": scan_between_calls,
    "chunks": chunks,
}


@BOTH
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_way_to_loop_gives_the_same_samples_and_state(run: Run, storage: str) -> None:
    state, samples = run(made(storage))
    equal(state, reference()[0])
    equal(samples, reference()[1])
    assert len(np.unique(np.asarray(samples.indices))) > 5  # of something, not of constants


@BOTH
def test_each_seed_of_a_vmap_is_a_single_run(storage: str) -> None:
    buffer, one = made(storage), made(storage).init(example())
    many = ReplayState(jax.tree.map(lambda leaf: jnp.stack([leaf] * SEEDS), one.rows), one.positions)
    mapped = jax.vmap(functools.partial(scan, buffer), in_axes=(AXES, (None, 0)), out_axes=(AXES, 0))
    states, samples = jax.jit(mapped)(many, (jnp.arange(STEPS), jnp.stack([keys(seed) for seed in range(SEEDS)])))
    for seed in range(SEEDS):
        equal(dataclasses.replace(states, rows=jax.tree.map(lambda leaf, i=seed: leaf[i], states.rows)), reference()[0])
        equal(jax.tree.map(lambda leaf, i=seed: leaf[i], samples), reference(seed)[1])


@BOTH
def test_rows_of_unusual_dtypes(storage: str) -> None:
    buffer = replay.uniform(capacity=4 * N, batch_size=6, storage=storage)

    def row(index: jax.Array) -> dict[str, jax.Array]:
        return {
            "key": jax.random.split(jax.random.fold_in(jax.random.key(1), index), N),
            "flag": jnp.broadcast_to(index % 2 == 0, (N,)),
            "byte": jnp.full((N, 3), 251 + index, jnp.uint8),
            "half": jnp.full((N, 2), index + 0.5, jnp.bfloat16),
        }

    def run(key: jax.Array) -> tuple[ReplayState, Sample]:
        def body(state: ReplayState, index: jax.Array) -> tuple[ReplayState, None]:
            return buffer.add(state, jax.tree.map(lambda leaf: leaf[None], row(index))), None

        state, _ = replay.scan(body, buffer.thaw(buffer.init(row(0))), jnp.arange(3))
        sample = buffer.sample(state, key)
        return buffer.freeze(state), sample

    key = jax.random.key(2)
    state, sample = run(key)
    equal((state, sample), jax.jit(run)(key))
    # What was stored is what was given, bit for bit.
    expected = [row(jnp.int32(index)) for index in range(3)]
    equal(jax.tree.map(lambda leaf: leaf[:3], state.rows), jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))
    for place, index in enumerate(np.asarray(sample.indices)):
        drawn = jax.tree.map(lambda leaf, i=place: leaf[0, i], sample.experience)
        equal(drawn, jax.tree.map(lambda leaf, i=index: leaf[i % N], expected[index // N]))
    assert len(np.unique(np.asarray(sample.indices))) > 2


# Thawed states pass through `replay.scan` and `replay.jit`.


def test_the_very_same_refs_come_back() -> None:
    state, buffer = thawed(), made()
    added = replay.jit(buffer.add)(state, rows(5, 1))
    scanned, _ = replay.scan(lambda state, index: (buffer.add(state, rows(index, 1)), None), added, jnp.arange(6, 9))
    for after in (added, scanned):
        assert holds_refs(after)
        for ref, before in zip(jax.tree.leaves(after.rows), jax.tree.leaves(state.rows), strict=True):
            assert ref is before
    assert int(scanned.positions.cursor) == 9 % SIZE
    # Time rows 0 to 8 were written to a ring of 8: the ninth over the first.
    np.testing.assert_array_equal(np.asarray(state.rows["id"][...])[:, 0], [80, 10, 20, 30, 40, 50, 60, 70])


def test_refs_come_back_at_their_places_among_other_values() -> None:
    first, second, buffer = thawed(), thawed(100), made()

    def swapped(states: dict[str, ReplayState], *, number: jax.Array) -> tuple[jax.Array, list[ReplayState]]:
        return number + 1, [buffer.add(states["second"], rows(9, 1)), states["first"]]

    number, (after_second, after_first) = replay.jit(swapped)({"first": first, "second": second}, number=jnp.int32(4))
    assert int(number) == 5
    assert after_first.rows["id"] is first.rows["id"]
    assert after_second.rows["id"] is second.rows["id"]
    assert (int(after_first.positions.cursor), int(after_second.positions.cursor)) == (5, 6)


def test_without_refs_they_are_those_of_jax() -> None:
    def body(carry: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        carry = {"sum": carry["sum"] * 0.5 + x}
        return carry, carry["sum"] ** 2

    init, xs = {"sum": jnp.float32(1.5)}, jnp.arange(5.0)
    for options in ({}, {"reverse": True}, {"unroll": 2}, {"length": 5}):
        equal(replay.scan(body, init, xs, **options), lax.scan(body, init, xs, **options))
    equal(
        replay.scan(lambda carry, _: (carry + 1, carry), jnp.int32(3), length=4),
        lax.scan(lambda carry, _: (carry + 1, carry), jnp.int32(3), length=4),
    )

    def function(x: jax.Array, power: int, *, scale: jax.Array) -> dict[str, Any]:
        return {"y": scale * x**power, "none": None, "pair": (x, power)}

    compiled = replay.jit(function, static_argnames="power")
    equal(
        compiled(xs, power=3, scale=jnp.float32(2)),
        jax.jit(function, static_argnames="power")(xs, power=3, scale=jnp.float32(2)),
    )


def test_replay_jit_compiles_once_for_equal_shapes() -> None:
    traced = []
    buffer, state = made(), thawed()

    @replay.jit
    def add(state: ReplayState, new: Any) -> ReplayState:
        traced.append(1)
        return buffer.add(state, new)

    for index in range(4):
        state = add(state, rows(index, 1))
    add(thawed(), rows(0, 1))
    assert len(traced) == 1


def test_a_function_that_only_reads_leaves_the_ref_alone() -> None:
    state, buffer = thawed(), made()
    before = np.asarray(state.rows["id"][...])
    sample = replay.jit(buffer.sample)(state, jax.random.key(0))
    equal(sample, made("array").sample(buffer.freeze(state), jax.random.key(0)))
    np.testing.assert_array_equal(state.rows["id"][...], before)


# Copies.


@pytest.mark.parametrize("jit", [lambda function: function, replay.jit], ids=["eager", "replay.jit"])
def test_later_writes_do_not_change_what_freeze_gave(jit: Callable[..., Any]) -> None:
    state, buffer = thawed(), made()
    frozen = buffer.freeze(state)
    assert not any(isinstance(leaf, jax.Ref) for leaf in jax.tree.leaves(frozen))
    before = jax.tree.map(np.array, frozen)
    state = jit(buffer.add)(state, rows(5, 8))
    jax.tree.map(np.testing.assert_array_equal, frozen, before)
    assert not np.array_equal(buffer.freeze(state).rows["id"], before.rows["id"])  # the write did happen


def test_thaw_leaves_the_arrays_of_its_caller_alone() -> None:
    buffer = made()
    state = buffer.add(buffer.init(example()), rows(0, 5))
    before = jax.tree.map(np.array, state)
    # Outside of jit, inside, and inside without donation of the argument.
    buffer.add(buffer.thaw(state), rows(50, 8))
    replay.jit(buffer.add)(buffer.thaw(state), rows(50, 8))
    after, _ = jax.jit(functools.partial(scan, buffer))(state, (jnp.arange(STEPS), keys()))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    jax.tree.map(np.testing.assert_array_equal, state, before)
    assert not np.array_equal(after.rows["id"], before.rows["id"])


def test_two_thawed_states_of_the_same_arrays_are_apart() -> None:
    buffer = made()
    state = buffer.init(example())
    first, second = buffer.thaw(state), buffer.thaw(state)
    buffer.add(first, rows(7, 1))
    assert int(first.rows["id"][0, 0]) == 70
    assert int(second.rows["id"][0, 0]) == 0


def test_array_storage_has_nothing_to_thaw() -> None:
    buffer = made("array")
    state = buffer.init(example())
    assert buffer.thaw(state) is state
    assert buffer.freeze(state) is state


# In place.


def nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@BOTH
@pytest.mark.parametrize("seeds", [None, SEEDS], ids=["one", "vmap"])
def test_a_donated_program_works_in_place(seeds: int | None, storage: str) -> None:
    buffer = replay.uniform(capacity=5000 * 4, batch_size=16, storage=storage)
    row = {"observation": jnp.zeros((4, 64)), "action": jnp.zeros(4, jnp.int32)}

    def body(state: ReplayState, key: jax.Array) -> tuple[ReplayState, jax.Array]:
        new = jax.tree.map(lambda leaf: jnp.full((1, *leaf.shape), state.positions.cursor, leaf.dtype), row)
        state = buffer.add(state, new)
        return state, jnp.sum(buffer.sample(state, key).experience["observation"])

    def run(state: ReplayState, keys: jax.Array) -> tuple[ReplayState, jax.Array]:
        state, sums = replay.scan(body, buffer.thaw(state), keys)
        return buffer.freeze(state), sums

    state, drawn = jax.eval_shape(buffer.init, row), jax.eval_shape(keys)
    if seeds is not None:
        run = jax.vmap(run, in_axes=(AXES, 0), out_axes=(AXES, 0))
        wide = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype))
        state, drawn = dataclasses.replace(state, rows=wide(state.rows)), wide(drawn)
    memory = jax.jit(run, donate_argnums=0).lower(state, drawn).compile().memory_analysis()
    assert nbytes(state.rows) == 5000 * 4 * 65 * 4 * (seeds or 1)
    assert memory.alias_size_in_bytes == nbytes(state)
    assert memory.temp_size_in_bytes < 0.1 * nbytes(state)


def test_a_ref_stays_where_it_is_in_memory() -> None:
    buffer, state = made(), thawed()
    add = replay.jit(buffer.add)
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state.rows)]
    for index in range(5, 12):
        state = add(state, rows(index, 1))
        assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state.rows)] == places
    assert int(state.rows["id"][11 % SIZE, 0]) == 110


# What cannot work.


def batched() -> ReplayState:
    """A thawed state of 3 seeds."""
    buffer, state = made(), made().init(example())
    return buffer.thaw(
        dataclasses.replace(state, rows=jax.tree.map(lambda leaf: jnp.stack([leaf] * SEEDS), state.rows))
    )


def maybe_sampled(state: ReplayState, key: jax.Array) -> jax.Array:
    return lax.cond(
        jax.random.uniform(key) < 0.5,
        lambda: made().sample(state, key).experience["id"],
        lambda: jnp.zeros((2, 5), jnp.int32),
    )


def maybe_added(state: ReplayState, key: jax.Array) -> jax.Array:
    def add() -> int:
        made().add(state, rows(0, 1))
        return 1

    return lax.cond(jax.random.uniform(key) < 0.5, add, lambda: 0)


def cond_in_a_mapped_scan(touch: Callable[..., Any]) -> None:
    buffer = made()

    def one(state: ReplayState, seed_keys: jax.Array) -> Any:
        state, out = replay.scan(lambda state, key: (state, touch(state, key)), buffer.thaw(state), seed_keys)
        return buffer.freeze(state), out

    seeds = jnp.stack([keys(seed) for seed in range(SEEDS)])
    jax.jit(jax.vmap(one, in_axes=(AXES, 0), out_axes=(AXES, 0)))(buffer.freeze(batched()), seeds)


def cond_in_a_mapped_call(touch: Callable[..., Any]) -> None:
    replay.jit(jax.vmap(touch, in_axes=(AXES, 0)))(batched(), keys()[:SEEDS])


def written_unmapped(state: ReplayState) -> Any:
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * SEEDS), rows(0, 1))
    return jax.vmap(lambda state, new: made().add(state, new).positions, in_axes=(None, 0))(state, many)


def closed_over_by_jit() -> None:
    state, key = thawed(), jax.random.key(0)
    replay.jit(lambda passed: (made().add(passed, rows(0, 1)), made().sample(state, key)))(state)


def closed_over_by_a_scan_in_jit() -> None:
    state, key = thawed(), jax.random.key(0)

    def body(passed: ReplayState, _: None) -> tuple[ReplayState, Sample]:
        return made().add(passed, rows(0, 1)), made().sample(state, key)

    replay.jit(lambda passed: replay.scan(body, passed, length=2))(state)


def swapped_in_a_scan() -> None:
    replay.scan(lambda states, _: ((states[1], states[0]), None), (thawed(), thawed()), length=2)


TWICE = r"the same thawed buffer was passed twice: pass the state once, or thaw a second buffer from arrays of its own"
CLOSED = r"a thawed buffer was closed over and also passed as an argument: pass the state, and use only that"
COND = r"touched inside lax\.cond or lax\.switch under vmap: sample before the cond and pass the sample in"
UNMAPPED = r"a thawed buffer without a seed axis was written to under vmap: .* with in_axes 0"
FROZEN_ELSEWHERE = r"freeze was called in another function than thaw .* in the function that thawed it, after its loops"
OTHER = r"the step of replay\.scan returned other Refs than it got: .* thaw before the scan"
NOT_PASSED = r"a function under replay\.jit returned a thawed state that it was not given: pass the state in"
RETURNED = (
    r"a thawed buffer was returned from a compiled function: use replay\.jit and replay\.scan in place of jax\.jit"
)

WRONG_USES: dict[str, tuple[Callable[[], Any], str]] = {
    "twice in a call": (lambda: (lambda state: replay.jit(lambda a, b: a)(state, state))(thawed()), TWICE),
    "twice in keywords": (lambda: (lambda state: replay.jit(lambda a, b: a)(a=state, b=state))(thawed()), TWICE),
    "twice in a carry": (
        lambda: (lambda state: replay.scan(lambda carry, _: (carry, None), (state, state), length=2))(thawed()),
        TWICE,
    ),
    "closed over and passed": (closed_over_by_jit, CLOSED),
    "closed over by a scan and passed": (closed_over_by_a_scan_in_jit, CLOSED),
    "read in a cond in a scan": (lambda: cond_in_a_mapped_scan(maybe_sampled), COND),
    "written in a cond in a scan": (lambda: cond_in_a_mapped_scan(maybe_added), COND),
    "read in a cond in a call": (lambda: cond_in_a_mapped_call(maybe_sampled), COND),
    "written in a cond in a call": (lambda: cond_in_a_mapped_call(maybe_added), COND),
    "written unmapped in a call": (lambda: replay.jit(written_unmapped)(thawed()), UNMAPPED),
    "written unmapped in a scan": (
        lambda: replay.scan(lambda state, _: (state, written_unmapped(state)), thawed(), length=2),
        UNMAPPED,
    ),
    "frozen in replay.jit": (lambda: replay.jit(made().freeze)(thawed()), FROZEN_ELSEWHERE),
    "frozen in jax.jit": (lambda: jax.jit(made().freeze)(thawed()), FROZEN_ELSEWHERE),
    "frozen in an eager scan": (
        lambda: replay.scan(lambda state, _: (state, made().freeze(state).rows), thawed(), length=2),
        FROZEN_ELSEWHERE,
    ),
    "frozen in a scan that thaws outside": (
        lambda: jax.jit(
            lambda state: replay.scan(lambda state, _: (made().freeze(state), None), made().thaw(state), length=2)
        )(made().init(example())),
        FROZEN_ELSEWHERE,
    ),
    "frozen in an inner scan": (
        lambda: replay.scan(
            lambda state, _: (state, replay.scan(lambda x, _: (x, made().freeze(state).rows), 0, length=2)[1]),
            thawed(),
            length=2,
        ),
        FROZEN_ELSEWHERE,
    ),
    "a plain state frozen": (lambda: made().freeze(made().init(example())), r"freeze was given a state that is not th"),
    "frozen twice": (lambda: made().freeze(made().freeze(thawed())), r"not thawed: it is made of arrays already"),
    "thawed twice": (lambda: made().thaw(thawed()), r"thawed already: freeze it first, or go on using it"),
    "another Ref from a step": (lambda: replay.scan(lambda state, _: (thawed(), None), thawed(), length=2), OTHER),
    "other order of Refs from a step": (swapped_in_a_scan, OTHER),
    "thawed in replay.jit and returned": (lambda: replay.jit(thawed)(), NOT_PASSED),
    "closed over and returned": (lambda: (lambda state: replay.jit(lambda: state)())(thawed()), NOT_PASSED),
    "carried by lax.scan": (
        lambda: replay.jit(lambda state: lax.scan(lambda state, _: (state, None), state, length=2)[0])(thawed()),
        RETURNED,
    ),
}


@pytest.mark.parametrize(("use", "message"), WRONG_USES.values(), ids=WRONG_USES)
def test_a_wrong_use_of_a_thawed_state_gets_its_own_sentence(use: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        use()


def test_a_failed_scan_does_not_forbid_freezing() -> None:
    state = thawed()
    with pytest.raises(InputError, match=FROZEN_ELSEWHERE):
        replay.scan(lambda state, _: (made().freeze(state), None), state, length=2)
    np.testing.assert_array_equal(made().freeze(state).rows["id"][:5, 0], [0, 10, 20, 30, 40])


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError("the user's own"), InputError("another sentence"), KeyError("swap")])
def test_errors_that_have_nothing_to_do_with_refs_pass_through(error: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise error

    for run in (
        lambda: replay.jit(fail)(thawed()),
        lambda: replay.scan(fail, thawed(), length=2),
        lambda: replay.scan(fail, jnp.int32(0), length=2),
    ):
        with pytest.raises(type(error)) as caught:
            run()
        assert caught.value is error


def test_what_jax_says_of_other_mistakes_is_kept() -> None:
    with pytest.raises(TypeError, match="incompatible shapes for broadcasting"):
        replay.jit(lambda state: jnp.zeros(3) + jnp.zeros(4))(thawed())
    with pytest.raises(TypeError, match="carry"):
        replay.scan(lambda carry, _: ((carry[0], carry[1] + 0.5), None), (thawed(), jnp.int32(0)), length=2)


# Faults that there once were.


@pytest.mark.parametrize("init", [lambda: jnp.int32(1), thawed], ids=["arrays", "Refs"])
def test_a_step_that_returns_another_tree_is_refused(init: Callable[[], Any]) -> None:
    carry = {"a": jnp.int32(1), "b": jnp.int32(2), "c": init()}
    with pytest.raises((InputError, TypeError)):
        replay.scan(lambda x, _: ({"b": x["b"], "bb": x["a"], "c": x["c"]}, None), carry, length=1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda state: made().sample(state, jax.random.key(0)), r"a thawed buffer was used after it was frozen"),
        (made().freeze, FROZEN_ELSEWHERE),
    ],
)
def test_a_state_that_is_used_after_it_was_frozen(use: Callable[[ReplayState], Any], message: str) -> None:
    def run(state: ReplayState) -> Any:
        state = made().thaw(state)
        state = made().add(state, rows(0, 1))
        return made().freeze(state), use(state)

    with pytest.raises(InputError, match=message):
        replay.jit(run)(made().init(example()))


@pytest.mark.parametrize("inside", ["cond", "scan", "vmap", "jit"])
def test_freezing_inside_another_transformation_of_the_same_function(inside: str) -> None:
    def run(state: ReplayState) -> Any:
        state = made().thaw(state)

        def frozen(*_: Any) -> Any:
            return made().freeze(state).positions.filled

        transformed: dict[str, Callable[[], Any]] = {
            "cond": lambda: jax.lax.cond(state.positions.filled > 0, frozen, frozen),
            "scan": lambda: jax.lax.scan(lambda _, x: (0, frozen()), 0, length=2),
            "vmap": lambda: jax.vmap(frozen)(jnp.zeros(2)),
            "jit": lambda: jax.jit(frozen)(),
        }
        return transformed[inside]()

    with pytest.raises(InputError, match=FROZEN_ELSEWHERE):
        jax.jit(run)(made().init(example()))
