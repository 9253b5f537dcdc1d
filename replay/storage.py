"""Where rows and priorities live: in immutable arrays, or in `jax.Ref`s that are written in place.

Readers and writers of a buffer go through `read` and `write`, which mean the same for both. A buffer's state
always crosses the borders of compiled functions as arrays, but in a Python loop of one's own, where a thawed state may
be passed around: `scan` and `jit` are JAX's, for functions that take and return states with Refs in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import get_opaque_trace_state

from rollax.errors import InputError

PyTree = Any

STORAGES = ("array", "ref")

_THAWED: dict[int, Any] = {}
"""For each Ref that `thaw` made and that lives, by its id: the state of tracing then, which says where to freeze it."""

_REMEDIES = {
    r"only one reference to a mutable array|appeared at both": (
        "the same thawed buffer was passed twice: pass the state once, or thaw a second buffer from arrays of its own."
    ),
    r"both closed over and passed": (
        "a thawed buffer was closed over and also passed as an argument: pass the state, and use only that."
    ),
    r"State effect not supported in vmap-of-cond": (
        "a thawed buffer was touched inside lax.cond or lax.switch under vmap: sample before the cond and pass the "
        "sample in, write unconditionally, and choose between values with jnp.where."
    ),
    r"vmapped value on an unbatched array reference": (
        "a thawed buffer without a seed axis was written to under vmap: pass the state as an argument of the mapped "
        "function with in_axes 0, or map outside the function that thaws it."
    ),
    r"mutable array references cannot be returned|returned a mutable array reference": (
        "a thawed buffer was returned from a compiled function: use replay.jit and replay.scan in place of jax.jit and "
        "lax.scan, or freeze the state before returning it."
    ),
    r"must be called on `Ref` types|Array has been deleted": (
        "a thawed buffer was used after it was frozen or lost to an error: go on with the state that freeze returned."
    ),
}


def read(target: Any, *index: jax.Array, width: int | None = None) -> jax.Array:
    """Returns `target[index]`, or with a width, of a matrix, `target[index, :width]`.

    Args:
        target: An array or a Ref.
        *index: One int32 array for each of the first axes, within bounds; they are broadcast against each other.
        width: How many columns to read; given with one index of shape `[B]`.
    """
    contents = _contents(target)
    if width is None:
        return contents[tuple(jnp.broadcast_arrays(*index))]
    contents = contents[...] if isinstance(contents, jax.Ref) else contents
    return jax.vmap(lambda row: lax.dynamic_slice(contents, (row, 0), (1, width))[0])(*index)


def write(target: Any, *index: jax.Array, values: jax.Array) -> Any:
    """Writes `target[index] = values`, in place where `target` is a Ref.

    Args:
        target: An array or a Ref.
        *index: As of `read`; an index that appears twice must bring the same values.
        values: Of the target's dtype.

    Returns:
        The array with its new values, or the very same Ref.
    """
    place = tuple(jnp.broadcast_arrays(*index))
    if isinstance(target, jax.Ref) and not isinstance(target, jax.core.Tracer):
        target[place] = values
        return target
    return overwrite(target, _contents(target).at[place].set(values))


def overwrite(target: Any, values: jax.Array) -> Any:
    """Returns `values` where `target` is an array; where it is a Ref, writes them to all of it and returns it."""
    if isinstance(target, jax.Ref):
        target[...] = values
        return target
    return values


def _contents(target: Any) -> Any:
    """Returns a Ref that is being traced as the array in it: the compiler leaves out that read and the one write.

    A Ref's own indexing with arrays makes slower programs: under vmap each element is gathered for itself.
    """
    return target[...] if isinstance(target, jax.core.Tracer) and isinstance(target, jax.Ref) else target


def thaw(tree: PyTree) -> PyTree:
    """Returns the tree with a new Ref in place of each array; the arrays are copied, or reused under jit.

    Raises:
        InputError: A leaf is a Ref already.
    """

    def to_ref(leaf: jax.Array) -> Any:
        if isinstance(leaf, jax.Ref):
            raise InputError("thaw was given a state that is thawed already: freeze it first, or go on using it.")
        ref = jax.new_ref(leaf)
        _THAWED[id(ref)] = get_opaque_trace_state()
        weakref.finalize(ref, _THAWED.pop, id(ref), None)
        return ref

    return jax.tree.map(to_ref, tree)


def freeze(tree: PyTree) -> PyTree:
    """Returns the tree with an array in place of each Ref; outside of jit a copy.

    Raises:
        InputError: A leaf is no Ref, or was thawed in another function than the one that is being traced.
    """

    def to_array(leaf: Any) -> jax.Array:
        if not isinstance(leaf, jax.Ref):
            raise InputError("freeze was given a state that is not thawed: it is made of arrays already.")
        if _THAWED.get(id(leaf)) != get_opaque_trace_state():
            raise InputError(
                "freeze was called in another function than thaw (inside jit, scan, cond or vmap, on a state from "
                "outside), or twice: freeze the state once, in the function that thawed it, after its loops."
            )
        if not isinstance(leaf, jax.core.Tracer):
            return leaf[...]
        del _THAWED[id(leaf)]
        return jax.freeze(leaf)

    return jax.tree.map(to_array, tree)


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """`lax.scan` whose carry may hold Refs, such as a thawed buffer.

    A Ref can't be carried; it is closed over, and the very same Ref is put back into the carry that `step` gets and
    into the one that is returned. Without Refs in `init` it is `lax.scan`.

    Args:
        step: `(carry, x) -> (carry, y)`; each Ref must come back at its place in the carry.
        init: The first carry.
        xs: As of `lax.scan`.
        length: As of `lax.scan`.
        **options: As of `lax.scan`.

    Raises:
        InputError: The same Ref is in the carry twice, another Ref comes back, or a Ref is used in a way that JAX
            refuses; with the remedy.
    """
    refs, arrays, join = _without_refs(init)
    if not refs:
        return lax.scan(step, init, xs, length, **options)
    _refuse_twice(refs)
    structure: Any = jax.tree.structure(init)

    def body(arrays: list[Any], x: Any) -> tuple[list[Any], Any]:
        carry, y = step(join(arrays), x)
        if jax.tree.structure(carry) != structure:
            raise InputError(
                f"the step of replay.scan returned a carry of the structure {jax.tree.structure(carry)} and got one of "
                f"{structure}: return the same."
            )
        after, arrays, _ = _without_refs(carry)
        if [id(ref) for ref in after] != [id(ref) for ref in refs]:
            raise InputError(
                "the step of replay.scan returned other Refs than it got: return the state that buffer.add gave back, "
                "and thaw before the scan."
            )
        return arrays, y

    with explained():
        arrays, ys = lax.scan(body, arrays, xs, length, **options)
    return join(arrays), ys


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` for functions that take and return states with Refs in them, such as `buffer.add` with a thawed state.

    What comes back holds the very Refs that were passed. A call with Refs costs about 100 microseconds more than one
    with donated arrays, so it is for loops in Python; around a compiled loop, thaw and freeze in the loop's function.

    Args:
        function: The function.
        **options: As of `jax.jit`.

    Raises:
        InputError: When called: the same Ref is passed twice, or a Ref is used in a way that JAX refuses; with the
            remedy.
    """

    @functools.wraps(function)
    def without_refs(*args: Any, **kwargs: Any) -> _Result:
        passed, _, _ = _without_refs((args, kwargs))
        places = {id(ref): place for place, ref in enumerate(passed)}
        leaves, treedef = jax.tree.flatten(function(*args, **kwargs))
        refs = tuple(places.get(id(leaf), -1) if isinstance(leaf, jax.Ref) else None for leaf in leaves)
        if -1 in refs:
            raise InputError(
                "a function under replay.jit returned a thawed state that it was not given: pass the state in, or "
                "freeze it before returning it."
            )
        return _Result([leaf for leaf in leaves if not isinstance(leaf, jax.Ref)], treedef, refs)

    compiled = jax.jit(without_refs, **options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        passed, _, _ = _without_refs((args, kwargs))
        _refuse_twice(passed)
        with explained():
            result = compiled(*args, **kwargs)
        arrays = iter(result.arrays)
        leaves = [next(arrays) if place is None else passed[place] for place in result.refs]
        return jax.tree.unflatten(result.treedef, leaves)

    return call


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raises an `InputError` with the remedy in place of what JAX says of a wrong use of a Ref inside."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        for pattern, remedy in _REMEDIES.items():
            if re.search(pattern, str(error)):
                raise InputError(remedy) from error
        raise


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["treedef", "refs"])
@dataclasses.dataclass(frozen=True)
class _Result:
    """What a function under `jit` returned, without its Refs."""

    arrays: list[Any]
    treedef: Any
    refs: tuple[int | None, ...]  # for each leaf, which of the Refs that were passed it is; None: an array


def _without_refs(tree: PyTree) -> tuple[list[Any], list[Any], Callable[[list[Any]], PyTree]]:
    """Returns the Refs of a tree, its other leaves, and a function from such other leaves to the whole tree."""
    leaves, treedef = jax.tree.flatten(tree)
    refs = [leaf for leaf in leaves if isinstance(leaf, jax.Ref)]
    arrays = [leaf for leaf in leaves if not isinstance(leaf, jax.Ref)]

    def join(arrays: list[Any]) -> PyTree:
        rest = iter(arrays)
        return jax.tree.unflatten(treedef, [leaf if isinstance(leaf, jax.Ref) else next(rest) for leaf in leaves])

    return refs, arrays, join


def _refuse_twice(refs: list[Any]) -> None:
    if len({id(ref) for ref in refs}) < len(refs):
        raise InputError(_REMEDIES[next(iter(_REMEDIES))])
