"""Checkpoints: PyTrees of arrays on disk, on orbax. Nothing that is loaded can run code.

A checkpoint is a folder that appears only when it is complete. It holds the leaves as arrays and a manifest as JSON:
the format's version, the packages' versions, and the path, shape and dtype of every leaf. `restore` compares the
manifest with the tree that it is asked for before it reads any array.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import rollax
from rollax.errors import InputError
from rollax.experiments import processes

FORMAT = 1
"""Of what is in a checkpoint; another one can't be read."""

PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax")
"""Packages whose other versions may compute other bits."""


def save(path: str | Path, tree: Any, notes: Mapping[str, Any] | None = None) -> None:
    """Writes a PyTree of arrays, such as a `TrainState`, to a folder.

    Args:
        path: The folder; it must not exist, and appears only when it is complete.
        tree: Leaves are arrays, typed keys included; freeze a replay buffer of `jax.Ref`s first.
        notes: What else to write into the manifest, as JSON can hold it.

    Raises:
        InputError: A leaf is a `jax.Ref`, or the folder exists.
        OSError: It cannot be written, because the disk is full for instance.
    """
    path = Path(path).absolute()
    if path.exists():
        raise InputError(f"checkpoint {str(path)!r} exists: save under another name.")
    arguments = _arguments(tree, notes or {})
    with _writing(path), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=arguments)


def restore(path: str | Path, like: Any) -> Any:
    """Reads a PyTree that `save` wrote, every bit of it.

    Args:
        path: The folder.
        like: A tree of the same structure, with arrays or `jax.ShapeDtypeStruct`s as leaves. Arrays are put where those
            of `like` are; without a sharding there, on the first device.

    Raises:
        InputError: There is no checkpoint, it cannot be read, it has another format, or its leaves are not those of
            `like` in number, names, shapes, dtypes and kinds of keys.
    """
    path = Path(path).absolute()
    _compare(path, read_manifest(path)["tree"], _describe(like))
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def target(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or first)

    leaves, treedef = jax.tree.flatten(like)
    wanted = {name: target(leaf) for name, leaf in _named(leaves).items()}
    with _reading(path), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        arguments = ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted))
        arrays = checkpointer.restore(path, args=arguments)["arrays"]
    names = {index: name for name, index in _places(leaves).items()}
    empty = {index: jnp.zeros(leaf.shape, leaf.dtype) for index, leaf in enumerate(leaves) if index not in names}
    found = [empty[index] if index in empty else arrays[names[index]] for index in range(len(leaves))]
    return jax.tree.unflatten(treedef, found)


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint.

    Raises:
        InputError: There is no checkpoint, it cannot be read, or it has another format.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise InputError(f"there is no checkpoint {str(path)!r}: the run did not get there, or it is another folder.")
    with _reading(path), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        arguments = ocp.args.Composite(manifest=ocp.args.JsonRestore())
        manifest: dict[str, Any] = checkpointer.restore(path, args=arguments)["manifest"]
        kind = manifest["format"]
    if kind != FORMAT:
        raise InputError(
            f"checkpoint {str(path)!r} has format {kind} and this rollax {rollax.__version__} reads {FORMAT}: use the "
            f"version that wrote it, {manifest['versions']['rollax']}."
        )
    return manifest


def versions() -> dict[str, str]:
    """Returns the versions that a checkpoint's bits depend on."""
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"rollax": rollax.__version__, "python": platform.python_version(), **packages}


def warn_of_other_versions(path: Path, manifest: Mapping[str, Any]) -> None:
    """Warns, in one sentence, if other packages wrote a checkpoint than those that will go on from it."""
    now = versions()
    others = [
        f"{name} {old} (now {now.get(name)})" for name, old in manifest["versions"].items() if now.get(name) != old
    ]
    if others:
        warnings.warn(
            f"checkpoint {str(path)!r} was written with {', '.join(others)}: what follows may differ in the last bits "
            "from an uninterrupted run.",
            stacklevel=3,
        )


class Checkpoints:
    """The checkpoints of one run in a folder, each named by a number that grows; the newest few are kept.

    They are written while the caller goes on: `save` returns as soon as the arrays are copied, so that they may be
    donated. `close` waits for the last one.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder = folder.absolute()
        self._keep = keep
        self._writing: Path | None = None
        self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())

    def save(self, number: int, tree: Any, notes: Mapping[str, Any]) -> None:
        """Begins to write a checkpoint, once the one before is complete.

        Raises:
            OSError: The one before, or this one, cannot be written; those before it are as they were.
        """
        self.wait()
        self._writing = self.folder / str(number)
        if self._writing.exists():
            return
        with _writing(self._writing):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._checkpointer.save(self._writing, args=_arguments(tree, notes))

    def wait(self) -> None:
        """Waits until the last checkpoint is complete, and then removes those that are too old.

        Raises:
            OSError: It cannot be written; those before it are as they were.
        """
        path, self._writing = self._writing, None
        if path is None:
            return
        with _writing(path):
            self._checkpointer.wait_until_finished()
        if processes.is_first():
            for number in numbers(self.folder)[: -self._keep]:
                shutil.rmtree(self.folder / str(number), ignore_errors=True)

    def close(self) -> None:
        """Waits as `wait` does, and ends."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()


def numbers(folder: Path) -> list[int]:
    """Returns the numbers of the complete checkpoints of a run, in increasing order."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _arguments(tree: Any, notes: Mapping[str, Any]) -> ocp.args.Composite:
    manifest = {"format": FORMAT, "versions": versions(), "tree": _describe(tree), **notes}
    return ocp.args.Composite(
        arrays=ocp.args.StandardSave(_named(jax.tree.leaves(tree))), manifest=ocp.args.JsonSave(manifest)
    )


def _places(leaves: list[Any]) -> dict[str, int]:
    """Returns the names under which leaves are stored; orbax cannot store those without elements."""
    return {f"{index:05d}": index for index, leaf in enumerate(leaves) if np.prod(leaf.shape, dtype=int)}


def _named(leaves: list[Any]) -> dict[str, Any]:
    return {name: leaves[index] for name, index in _places(leaves).items()}


def _describe(tree: Any) -> list[list[Any]]:
    """Returns path, shape and dtype of each leaf; the dtype of a key names its implementation."""
    described: list[list[Any]] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if isinstance(leaf, jax.Ref):
            raise InputError(f"{name} is a jax.Ref: freeze the replay buffer before saving its state.")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise InputError(
                f"{name or 'the tree'} is {type(leaf).__name__}, not an array: give it as jnp.asarray(...)."
            )
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not is_key and (leaf.dtype.kind in "OSUMm" or jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype):
            raise InputError(
                f"{name} is {leaf.dtype}, which JAX does not hold here: convert it to another dtype first."
            )
        described.append([name, list(leaf.shape), str(leaf.dtype)])
    if not any(np.prod(shape, dtype=int) for _, shape, _ in described):
        raise InputError("there is nothing to save or restore: the tree has no array with elements.")
    return described


def _compare(path: Path, saved: list[list[Any]], wanted: list[list[Any]]) -> None:
    """Raises an InputError that names the first leaf that differs."""
    for (name, *old), (wanted_name, *new) in zip(saved, wanted, strict=False):
        where = f"checkpoint {str(path)!r} does not fit"
        if name != wanted_name:
            raise InputError(
                f"{where}: it holds {name} where {wanted_name} is wanted; another agent or version wrote it."
            )
        if old == new:
            continue
        if "key<" in old[1] and "key<" in new[1] and old[1] != new[1]:
            raise InputError(
                f"{where}: its random keys are {old[1]} and those of this process {new[1]}; set jax_default_prng_impl "
                "to the implementation that it was written with."
            )
        raise InputError(
            f"{where}: {name} is {old[1]}{old[0]} in it and {new[1]}{new[0]} is wanted; give the config that wrote it."
        )
    if len(saved) != len(wanted):
        raise InputError(
            f"checkpoint {str(path)!r} does not fit: it holds {len(saved)} arrays and {len(wanted)} are wanted; "
            "another agent or version wrote it."
        )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong as a checkpoint is written into one sentence."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise OSError(
            f"checkpoint {str(path)!r} could not be written ({_reason(error)}); those before it are as they were."
        ) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns whatever goes wrong as a checkpoint is read into one sentence."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except Exception as error:  # what orbax and its storage raise for a damaged file has no common class
        raise InputError(
            f"checkpoint {str(path)!r} cannot be read ({_reason(error)}): restore its files; or, to resume a run from "
            "an older one, delete it."
        ) from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".")
