"""Settings of every test: the CPU as two devices, a compile cache that outlives the run, typed keys only."""

from __future__ import annotations

import os
import time
from pathlib import Path

import jax
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
COMPILE_CACHE = Path(os.environ.get("ROLLAX_TEST_CACHE") or REPOSITORY / ".cache" / "jax").resolve()

# JAX reads its variables once, when it is imported, and by now some plugin may have imported it: so this process is set
# through jax.config, and the variables are for the command lines that tests start. Those choose their own number of
# devices, so it is not among the variables.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILE_CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
# Drawing is to files only, on a desktop too.
os.environ["MPLBACKEND"] = "Agg"

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", str(COMPILE_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_legacy_prng_key", "error")

EXPLICIT_MARKERS = ("learning", "suite", "thorough")
END = os.environ.get("ROLLAX_TEST_END")
"""When the last test may begin, in seconds since 1970; those after it are skipped. For what runs while time is left."""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as quick what is not marked as slow, so that a new test cannot fall out of `make test` unnoticed."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in EXPLICIT_MARKERS):
            item.add_marker(pytest.mark.quick)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what would begin too late."""
    if END is not None and time.time() > float(END):
        pytest.skip("no time is left")
