"""Tasks by name: the built-in ones and those that installed packages bring (entry point group `driftbox.tasks`)."""

from __future__ import annotations

from models.tasks.base import Task
from models.tasks.detection import DETECTION

#: Entry point group; each entry names an object that implements `models.tasks.base.Task`.
GROUP = "driftbox.tasks"
BUILT_IN: dict[str, Task] = {DETECTION.name: DETECTION}
