"""What has to be set before JAX starts its devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def start_jax(seeds: int) -> None:
    """Sets what has to be set before JAX starts its devices; in a process where they run already, those are used.

    Each CPU core becomes a device, no more of them than there are seeds, so that seeds spread over the cores. Compiled
    programs are kept in a cache folder of the user. What the user has set in the environment stays.

    Args:
        seeds: Seeds of the job; or environments of each, where those are spread.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(RuntimeError):  # a container's user may have no home
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            jax.config.update("jax_compilation_cache_dir", str(caches / "rollax" / "jax"))
    if "JAX_NUM_CPU_DEVICES" in os.environ or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(1, min(cores(), seeds)))


def cores() -> int:
    """Returns how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
