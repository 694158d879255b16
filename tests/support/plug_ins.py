"""Real little packages with a task in them: a module and a dist-info folder, put where Python looks for packages."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from configs.units import CLASSES, NOTHING
from models import zoo
from models.tasks.base import Picture
from scheduler.types import Detections

DOCS = Path(__file__).resolve().parents[2] / "docs"


def documented_code(page: str, first_line: str) -> str:
    """The Python block of a page in docs/ that begins with that line."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    [code] = [block for block in blocks if block.startswith(first_line)]
    return code


def make_package(
    folder: Path, package: str, *, modules: dict[str, str], tasks: dict[str, str] | None = None,
    transforms: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Writes what `pip install` leaves behind. tasks, transforms: entry points, name -> 'module:object'."""
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        line
        for group, entries in (("tasks", tasks), ("transforms", transforms))
        for line in (f"[driftbox.{group}]", *(f"{name} = {value}" for name, value in (entries or {}).items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """Python finds the packages of `folder` inside, and has forgotten their modules and models afterwards."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    known = dict(zoo.ZOO)
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for name in [path.stem for path in folder.glob("*.py")]:
            sys.modules.pop(name, None)
        for arch in set(zoo.ZOO) - set(known):
            del zoo.ZOO[arch]
        importlib.invalidate_caches()


@contextmanager
def installed_example(folder: Path) -> Iterator[Path]:
    """The package of docs/tasks.md: a task `occupied`."""
    code = documented_code("tasks.md", '"""Is anybody there?')
    make_package(
        folder, "driftbox-occupied", modules={"driftbox_occupied": code}, tasks={"occupied": "driftbox_occupied:OCCUPIED"}
    )
    with on_path(folder):
        yield folder


def occupied_picture(seed: int) -> tuple[Picture, Detections]:
    """Noise, with somebody (a bright upright shape) in it for even seeds, and the label of the whole picture."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 90, (96, 128, 3)).astype(np.uint8)
    somebody = seed % 2 == 0
    if somebody:
        x = int(rng.integers(10, 90))
        image[20:80, x : x + 24] += 150
    label = Detections(
        xyxy=np.array([[0, 0, 128, 96]], np.float32),
        score=np.ones(1, np.float32),
        class_id=np.array([CLASSES.index("person") if somebody else NOTHING], np.int64),
    )
    return Picture(image=image), label
