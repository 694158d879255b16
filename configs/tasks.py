"""Names of the tasks that a camera may have, known without importing any: `models.tasks.registry` holds the tasks themselves."""

from __future__ import annotations

from importlib import metadata

#: Entry point group of the tasks that installed packages bring.
GROUP = "driftbox.tasks"
DETECTION, CLASSIFICATION = "detection", "classification"
BUILT_IN: tuple[str, ...] = (DETECTION, CLASSIFICATION)


def known_tasks() -> tuple[str, ...]:
    """The built-in ones first, then those of installed packages, sorted. Reads package metadata only."""
    return (*BUILT_IN, *sorted({entry.name for entry in metadata.entry_points(group=GROUP)} - set(BUILT_IN)))
