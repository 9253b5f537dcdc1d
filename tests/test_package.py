"""The package as it is built and installed: what is in it, under which names, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pytest

import rollax

REPOSITORY = Path(__file__).resolve().parent.parent
SUB_PACKAGES = ("agents", "envs", "experiments", "replay")
# Where the files of each folder of the repository are, once installed.
INSTALLED = {"src/rollax/": "rollax/", **{f"{name}/": f"rollax/{name}/" for name in SUB_PACKAGES}}


# Imports point one way: what each sub-package may import of the others.
MAY_IMPORT = {"envs": set(), "replay": set(), "agents": {"envs"}, "experiments": {"agents", "envs", "replay"}}


def sources() -> set[str]:
    """The repository's files: also those not yet added, but not those ignored or deleted."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name for name in listed if (REPOSITORY / name).is_file()}


def python(*arguments: str, cwd: Path, paths: Sequence[Path] = ()) -> str:
    """What a fresh interpreter prints, with `paths` before everything that is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive.

    They are built from a copy of the files, which is what a clone has, so nothing that an earlier build left counts.
    """
    copy = tmp_path_factory.mktemp("clone")
    for name in sources():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, copy / name)
    built = tmp_path_factory.mktemp("dist")
    python(
        "-c",
        "import sys; from setuptools import build_meta as backend; folder = sys.argv[1];"
        "backend.build_wheel(folder); backend.build_sdist(folder)",  # each replaces sys.argv
        str(built),
        cwd=copy,
    )
    return built


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, file: str) -> str:
    return wheel.read(f"rollax-{rollax.__version__}.dist-info/{file}").decode()


def test_wheel_has_every_file_of_the_five_folders_and_no_other(wheel: zipfile.ZipFile) -> None:
    expected = {
        installed + name.removeprefix(folder)
        for name in sources()
        for folder, installed in INSTALLED.items()
        if name.startswith(folder)
    }
    information = f"rollax-{rollax.__version__}.dist-info/"
    # One name at the top: `agents`, `envs`, ... bare would collide with other packages.
    assert {name for name in wheel.namelist() if not name.startswith(information)} == expected


def test_sdist_has_every_file_of_the_five_folders(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in sources() if name.startswith(tuple(INSTALLED))} - packed == set()
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"} <= packed


def test_the_wheel_that_the_sdist_makes_is_the_same(
    distributions: Path, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    python("-c", "import sys; from setuptools import build_meta; build_meta.build_wheel('..')", cwd=source)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert set(archive.namelist()) == set(wheel.namelist())
        assert sum(name.startswith("rollax/experiments/configs/") for name in archive.namelist()) >= 40


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {rollax.__version__}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


def test_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    lines = metadata(wheel, "METADATA").splitlines()
    assert f"Version: {rollax.__version__}" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert {
        f"Provides-Extra: {extra}" for extra in ("test", "tensorboard", "wandb", "docs", "cuda", "tpu", "all")
    } <= set(lines)
    assert "rollax = rollax.__main__:main" in metadata(wheel, "entry_points.txt").splitlines()


def test_wheel_imports_from_its_own_files(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    names = ["rollax", *(f"rollax.{name}" for name in SUB_PACKAGES)]
    program = (
        "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
    )
    files = python("-c", program, *names, cwd=tmp_path, paths=[tmp_path]).splitlines()
    assert files == [str(tmp_path / name.replace(".", "/") / "__init__.py") for name in names]


@pytest.mark.parametrize("name", SUB_PACKAGES)
def test_bare_names_are_not_importable(name: str, tmp_path: Path) -> None:
    program = f"import importlib.util as util; print(util.find_spec({name!r}))"
    assert python("-c", program, cwd=tmp_path).strip() == "None"


@pytest.mark.parametrize("name", SUB_PACKAGES)
def test_every_public_name_exists(name: str) -> None:
    """Names load lazily from a stub, so a name that is only in the stub fails at its first use and not before."""
    package = importlib.import_module(f"rollax.{name}")
    assert package.__doc__
    for public in package.__all__:
        assert getattr(package, public) is not None, public
        assert public in dir(package)


@pytest.mark.parametrize("name", SUB_PACKAGES)
def test_imports_point_one_way(name: str) -> None:
    imported = set()
    for path in sorted(source for source in sources() if source.startswith(f"{name}/") and source.endswith(".py")):
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    crossed = {module.split(".")[1] for module in imported if module.startswith("rollax.")} & set(SUB_PACKAGES)
    assert crossed - {name} <= MAY_IMPORT[name]


@pytest.mark.parametrize(
    "arguments", [None, ["--help"], ["list", "envs"], ["list", "agents"], ["list", "configs"], ["config", "replay"]]
)
def test_import_and_the_commands_that_only_tell_load_no_jax(arguments: list[str] | None, tmp_path: Path) -> None:
    program = f"""
import sys
import rollax
from rollax.__main__ import main
try:
    status = 0 if {arguments} is None else main({arguments})
except SystemExit as exit:  # argparse prints its help so
    status = exit.code
print("status", status or 0, "jax", "jax" in sys.modules)
"""
    assert python("-c", program, cwd=tmp_path).splitlines()[-1] == "status 0 jax False"


def test_importing_every_sub_package_starts_no_device(tmp_path: Path) -> None:
    names = ", ".join(f"rollax.{name}" for name in SUB_PACKAGES)
    program = f"""
import {names}
for package in ({names}):
    for public in package.__all__:
        getattr(package, public)
import jax
print(jax._src.xla_bridge.backends_are_initialized())
"""
    assert python("-c", program, cwd=tmp_path).splitlines()[-1] == "False"


def test_module_runs_as_the_command_does(tmp_path: Path) -> None:
    assert "usage: rollax" in python("-m", "rollax", "--help", cwd=tmp_path)


@pytest.mark.parametrize("module", ["rollax", "rollax.envs.base", "tests.envs.test_base"])
def test_warning_of_our_own_is_an_error(module: str) -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module=module)


def test_settings_of_the_tests_hold() -> None:
    assert [device.platform for device in jax.devices()] == ["cpu", "cpu"]
    with pytest.raises(ValueError, match="Legacy uint32 key"):
        jax.random.normal(jax.random.PRNGKey(0))
