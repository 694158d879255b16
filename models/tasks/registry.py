"""Tasks by name: the built-in ones and those that installed packages bring (entry point group `driftbox.tasks`).

A package announces its task in its own metadata, and Driftbox finds it when it is installed beside it (docs/tasks.md). What is
announced is looked at before it is used: two packages with one name, a package that cannot be imported and an object that lacks a
method are refused by name, before a camera starts.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from configs.errors import EnvironmentLacking, UsageError
from configs.plug_ins import announced, package_of
from models.tasks.base import Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION

#: Entry point group; each entry names an object that implements `models.tasks.base.Task`, under the task's own name.
GROUP = "driftbox.tasks"
BUILT_IN: dict[str, Task] = {task.name: task for task in (DETECTION, CLASSIFICATION)}

#: How each method is called: (positional arguments, keyword arguments). Any value does; only names and numbers are checked.
_CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "load": (1, ("device",)),
    "load_golden": (1, ("device",)),
    "predict": (2, ("score_min", "yield_point")),
    "loss": (3, ()),
    "distill_loss": (4, ()),
    "labels": (2, ("score_min", "yield_point")),
    "counts": (3, ()),
    "shown": (1, ()),
}
_FIELDS: dict[str, type] = {"name": str, "wants_regions": bool, "quality_name": str}


def known_tasks() -> tuple[str, ...]:
    """Names that `task_of` can be asked for: the built-in ones, then those of installed packages, sorted. Nothing is imported."""
    return (*BUILT_IN, *sorted({entry.name for entry in _announced()} - set(BUILT_IN)))


def task_of(name: str) -> Task:
    """The task of that name. Raises UsageError for a name nobody has, or that two packages have; EnvironmentLacking for a package whose
    task cannot be used; both say which package."""
    entries = [entry for entry in _announced() if entry.name == name]
    if name in BUILT_IN:
        if entries:
            raise _clash(name, ["driftbox", *map(package_of, entries)])
        return BUILT_IN[name]
    if not entries:
        raise UsageError(f"there is no task {name!r}", subject=name, remedy=f"known: {', '.join(known_tasks())}")
    if len(entries) > 1:
        raise _clash(name, [package_of(entry) for entry in entries])
    return _loaded(entries[0])


def meet_packages() -> None:
    """Imports every package that brings a task, so that it can add its models to `models.zoo`. One that is broken is left for
    `task_of` to refuse."""
    for entry in _announced():
        with contextlib.suppress(Exception):
            entry.load()


def _announced() -> Iterable[metadata.EntryPoint]:
    return announced(GROUP)


def _clash(name: str, packages: list[str]) -> UsageError:
    return UsageError(
        f"more than one package brings a task {name!r}: {', '.join(packages)}",
        subject=name,
        remedy="uninstall all but one of them, or have one renamed",
    )


def _loaded(entry: metadata.EntryPoint) -> Task:
    try:
        task = entry.load()
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise _broken(entry, f"{entry.value} cannot be imported ({type(error).__name__}: {error})") from error
    problems = problems_of(task)
    if problems:
        raise _broken(entry, "; ".join(problems))
    if task.name != entry.name:
        raise _broken(entry, f"it is announced as {entry.name!r} and calls itself {task.name!r}")
    return task


def _broken(entry: metadata.EntryPoint, why: str) -> EnvironmentLacking:
    package = package_of(entry)
    return EnvironmentLacking(
        f"the task {entry.name!r} of the package {package} cannot be used: {why}",
        subject=package,
        remedy="ask its maker for a version that fits this Driftbox (docs/tasks.md), or uninstall it",
    )


def problems_of(task: Any) -> list[str]:
    """What keeps an object from being a task, in words; empty for one that can be used."""
    if inspect.isclass(task):
        return ["the entry point names a class; name an instance of it"]
    wrong = [
        f"it has no {field} ({kind.__name__})"
        for field, kind in _FIELDS.items()
        if not isinstance(getattr(task, field, None), kind)
    ]
    return wrong + [problem for method in _CALLS if (problem := _problem_of_method(task, method))]


def _problem_of_method(task: Any, name: str) -> str:
    method = getattr(task, name, None)
    if not callable(method):
        return f"it has no method {name}"
    positional, keywords = _CALLS[name]
    try:
        inspect.signature(method).bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return f"its method {name} cannot be called as Driftbox does ({error})"
    return ""
