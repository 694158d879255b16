"""What a configuration asks of this process's environment, before heavy libraries are imported."""

from __future__ import annotations

import os
from pathlib import Path

from configs.schema import BoxConfig
from edge.allocator import few_arenas

WEIGHTS_VARIABLE = "DRIFTBOX_WEIGHTS"

#: ultralytics stays quiet, local and off the network; openvino's and others' telemetry stays at home.
QUIET = {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "YOLO_VERBOSE": "0"}


def prepare(config: BoxConfig) -> None:
    """Sets what libraries read at import, and how memory is kept. Values that the operator has set already stay."""
    few_arenas()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    use_weights_dir(config)


def importing_from(root: Path) -> dict[str, str]:
    """This process's environment for a child that is to import the packages under `root`, wherever it is started."""
    given = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *([given] if given else [])])}


def use_weights_dir(config: BoxConfig) -> None:
    """Lets `models.weights` search `models.weights_dir`, unless DRIFTBOX_WEIGHTS names a folder already."""
    if config.models.weights_dir is not None:
        os.environ.setdefault(WEIGHTS_VARIABLE, str(config.models.weights_dir.expanduser()))
