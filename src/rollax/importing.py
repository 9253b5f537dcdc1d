"""Objects named by text: `package.module:NAME` or `path/to/file.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from rollax.errors import InputError, nearest


def is_import_path(text: str) -> bool:
    """Returns whether `text` has the form `MODULE:NAME` or `FILE.py:NAME`."""
    module, separator, name = text.rpartition(":")
    return bool(separator and module and name.isidentifier())


def import_object(text: str, field: str) -> Any:
    """Imports the object that `text` names.

    Args:
        text: `package.module:NAME`, or `path/to/file.py:NAME` for a file outside any package.
        field: The config field that `text` comes from, named in errors.

    Raises:
        InputError: The text has another form, or the module, the file or the name in it does not exist.
    """
    if not is_import_path(text):
        raise InputError(f"{field} = {text!r} is no import path: write 'package.module:NAME' or 'file.py:NAME'.")
    module_name, _, name = text.rpartition(":")
    module = _import_file(Path(module_name), field) if module_name.endswith(".py") else _import(module_name, field)
    if not hasattr(module, name):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise InputError(f"{field} = {text!r}: {module_name} has no {name!r}; {nearest(name, public)}")
    return getattr(module, name)


def _import(module_name: str, field: str) -> ModuleType:
    if module_name.startswith("."):
        raise InputError(f"{field}: {module_name!r} is a relative module; name it from its top package.")
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(missing + ".")):
            raise InputError(
                f"{field}: there is no module {module_name!r}; install it, or name a file as 'file.py:NAME'."
            ) from error
        raise InputError(f"{field}: {module_name!r} cannot be imported ({type(error).__name__}: {error}).") from error


def _import_file(path: Path, field: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{field}: there is no file {str(path)!r}; the path is taken from the current folder.")
    resolved = path.resolve()
    # One name per file, so that naming a file twice gives the same classes and two files never collide.
    name = f"rollax_file_{resolved.stem}_{zlib.crc32(str(resolved).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, resolved)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses and type hints of the file look their module up here
    sys.path.insert(0, str(resolved.parent))  # so that it can import its neighbours, as a script can
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{field}: {str(path)!r} cannot be imported ({type(error).__name__}: {error}).") from error
    finally:
        sys.path.remove(str(resolved.parent))
    return module
