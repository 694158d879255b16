"""Answers as they stand in the docs, compared with real ones."""

from __future__ import annotations

from typing import Any

import pytest


def near(documented: Any, got: Any, *, rel: float, abs: float, path: str = "") -> None:
    """Every documented key is there, and floats agree to the digits that are written."""
    if isinstance(documented, dict):
        assert documented.keys() == got.keys(), path
        for key, value in documented.items():
            near(value, got[key], rel=rel, abs=abs, path=f"{path}.{key}")
    elif isinstance(documented, list):
        assert len(documented) == len(got), path
        for i, value in enumerate(documented):
            near(value, got[i], rel=rel, abs=abs, path=f"{path}[{i}]")
    elif isinstance(documented, float):
        assert got == pytest.approx(documented, rel=rel, abs=abs), path
    else:
        assert got == documented, path
