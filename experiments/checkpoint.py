"""Saving and loading PyTrees of arrays, on orbax; nothing loaded can run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from rollax.errors import InputError


def save(path: Path, tree: Any) -> None:
    """Writes `tree` to the folder `path`, which appears only when it is complete.

    Args:
        path: A folder that does not exist yet.
        tree: A PyTree of arrays; typed keys are allowed.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), tree)


def load(path: Path, like: Any) -> Any:
    """Reads the tree that `save` wrote.

    Args:
        path: The folder.
        like: A tree of the same structure with arrays or `jax.ShapeDtypeStruct` leaves.

    Raises:
        InputError: There is no complete checkpoint, or its structure or shapes are not those of `like`.
    """
    if not path.is_dir():
        raise InputError(f"there is no checkpoint {str(path)!r}: the run did not finish, or it is another folder.")
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), like)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(path.absolute(), target)
    except (ValueError, KeyError, FileNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"checkpoint {str(path)!r} does not fit the run's config.toml: {reason}") from error
