"""The house is what docs/architecture.md says: paths exist, arrows hold, only the wiring names concrete classes."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("configs", "scheduler", "streams", "models", "edge", "cluster")
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "first-run.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
#: Paths in back quotes, with or without a function behind them; placeholders such as <camera> and files of a data folder are none.
_PATH = re.compile(r"`((?:configs|scheduler|streams|models|edge|cluster|tests|scripts|docs)/[\w./*-]*)`")
_IN_DATA_FOLDER = ("models/<", "events/", "samples/", "exports/")


def sources() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_path_that_the_docs_name_exists(page: Path) -> None:
    named = set(_PATH.findall(page.read_text(encoding="utf-8")))
    missing = [n for n in sorted(named) if not list(ROOT.glob(n.rstrip("/"))) and not n.startswith(_IN_DATA_FOLDER)]
    assert not missing


def test_the_architecture_names_every_folder_and_seam() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for wanted in (*(f"`{p}/`" for p in PACKAGES), "streams/source.py", "models/detector.py", "edge/gpu/base.py"):
        assert wanted in text


def test_import_arrows_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(tool)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


#: Classes behind a seam, and who may name them: their own module and family, the wiring, and what exists to look at one of them.
CONCRETE = {
    "LaneBackend": {"edge/gpu/lanes.py", "edge/gpu/choose.py"},
    "GreenBackend": {"edge/gpu/green.py", "edge/gpu/choose.py"},
    "MigBackend": {"edge/gpu/mig.py", "edge/gpu/choose.py"},
    "MpsBackend": {
        "edge/gpu/mps.py",
        "edge/gpu/choose.py",
        "edge/wiring/compute.py",
        "edge/wiring/box.py",
        "edge/wiring/calibrating.py",
    },
    "NoShares": {"edge/gpu/none.py", "edge/gpu/choose.py"},
    "UltralyticsDetector": {"models/ultralytics_detector.py", "models/zoo.py"},
    "TorchvisionDetector": {"models/torchvision_detector.py", "models/zoo.py"},
}


@functools.cache
def names_of_sources() -> dict[str, set[str]]:
    """Source -> what it imports by name, and the classes it defines."""
    found: dict[str, set[str]] = {}
    for path in sources():
        names = found.setdefault(str(path.relative_to(ROOT)), set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
    return found


@pytest.mark.parametrize("name", sorted(CONCRETE))
def test_concrete_classes_are_named_where_things_are_wired(name: str) -> None:
    users = {source for source, names in names_of_sources().items() if name in names}
    assert users, "nobody defines it"
    assert users <= CONCRETE[name]


def test_ultralytics_is_imported_behind_one_seam_only() -> None:
    """AGPL-3.0: whoever leaves it out must be able to."""
    users = [
        str(path.relative_to(ROOT))
        for path in sources()
        if re.search(r"^\s*(?:from|import) ultralytics\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert users == ["models/ultralytics_detector.py"]


def test_nothing_of_a_workplace_is_named() -> None:
    """No absolute machine path in code or docs, apart from those of the operating system."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"(?<![\w.])/(?:work|root|home|mnt)/\w+")
    found = [
        name
        for name in tracked
        if name.endswith((".py", ".md", ".yaml", ".toml", ".sh", "Makefile"))
        and name != "tests/test_architecture.py"
        and pattern.search((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not found
