"""Finds and runs the benchmarks of the source tree (`tests/benchmarks/bench_*.py`), each a script with arguments of its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import DriftboxError, EnvironmentLacking, UsageError
from edge.environment import importing_from

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "benchmarks"


def benchmarks(folder: Path = FOLDER) -> dict[str, tuple[Path, str]]:
    """name -> (script, its first sentence). Raises EnvironmentLacking when the source tree is not here."""
    scripts = sorted(folder.glob("bench_*.py"))
    if not scripts:
        raise EnvironmentLacking(
            "the benchmarks are not installed",
            subject="bench",
            remedy="run from a clone of the source tree: they are in tests/benchmarks",
        )
    return {script.stem.removeprefix("bench_"): (script, _about(script)) for script in scripts}


def _about(script: Path) -> str:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def run_benchmark(name: str, arguments: Sequence[str], folder: Path = FOLDER) -> None:
    """Runs one in a process of its own. Raises UsageError for an unknown name, EnvironmentLacking when it
    says by its exit code 3 that the machine lacks something, DriftboxError when it fails."""
    known = benchmarks(folder)
    if name not in known:
        raise UsageError(f"no benchmark is called '{name}'", subject=name, remedy=f"known: {', '.join(known)}")
    script = known[name][0]
    done = subprocess.run([sys.executable, str(script), *arguments], env=importing_from(folder.parents[1]), check=False)
    if done.returncode == EnvironmentLacking.exit_code:
        raise EnvironmentLacking(f"benchmark {name} cannot run on this machine", subject=name, remedy="see what it printed")
    if done.returncode != 0:
        raise DriftboxError(f"benchmark {name} ended with code {done.returncode}", subject=name, remedy="see what it printed")
