"""Which models a task runs with, for tasks other than detection; and that a task's name is known."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.tasks import CLASSIFICATION, known_tasks


class TaskModels(Section):
    """The models of the cameras that have this task. For detection they are `models.edge` and `models.golden`."""

    edge: str = setting(..., text="Model that watches these cameras: a known name or a weights file.", example="mobilenetv2")
    golden: str = setting(
        "", text="Large model that labels their samples; empty: `models.golden`.", default_text="`models.golden`"
    )


#: What the built-in tasks run with where the configuration says nothing.
SHIPPED: dict[str, TaskModels] = {CLASSIFICATION: TaskModels(edge="mobilenetv2")}


def checked_task(name: str) -> str:
    """Raises the configuration's error for a task that nobody brings, naming those that are there."""
    known = known_tasks()
    if name not in known:
        raise PydanticCustomError(
            "task", "there is no task {name}; known: {known}", {"name": repr(name), "known": ", ".join(known)}
        )
    return name
