"""Loads a script of `tests/benchmarks` as a module, for tests of what it reads and prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def benchmark(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The script `name`.py, fresh, with its folder importable as it is when it is run; both are undone with `patch`."""
    patch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module
