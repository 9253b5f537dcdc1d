"""Which chunks a trace has, and that a run writes one."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from tests.contract.jobs import CONFIGS

from rollax import InputError, experiments
from rollax.experiments.profiling import Profile

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("first", "last", "traced"),
    [(1, 20, [2, 3, 4]), (1, 3, [2, 3]), (1, 1, [1]), (7, 8, [8]), (5, 20, [6, 7, 8])],
)
def test_chunks_of_a_trace(
    first: int, last: int, traced: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    with Profile(tmp_path, first, last) as profile:
        for chunk in range(first, last + 1):
            profile.before(chunk)
            calls.append(str(chunk))
            profile.after(chunk, ())
    inside = calls[calls.index("start") + 1 : calls.index("stop")]
    assert inside == [str(chunk) for chunk in traced]
    assert calls.count("start") == calls.count("stop") == 1


def test_an_interrupted_trace_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    with Profile(tmp_path, 1, 9) as profile:
        profile.before(2)
    assert calls == ["start", "stop"]


def test_a_run_writes_a_trace(tmp_path: Path) -> None:
    experiments.run(CONFIGS["rollout"](), profile=tmp_path / "trace")
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


def test_a_file_is_no_folder_for_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--profile = .*file' is no folder \(File exists\)"):
        experiments.run(CONFIGS["rollout"](), profile=tmp_path / "file")
