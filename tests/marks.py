"""Marks of parameters."""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """Returns values of `pytest.mark.parametrize` as those that only `make thorough` tests."""
    many = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=pytest.mark.thorough) for value in many]
