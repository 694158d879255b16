"""Events, commands and engine checkpoints as JSON lines: one object a line, keys in declared order, `kind` first.

Floats are written so that they read back exactly, so equal commands are equal bytes; `driftbox replay` relies on it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from configs.errors import StorageError
from scheduler.commands import COMMANDS
from scheduler.events import EVENTS
from scheduler.scenes import Scenes

T = TypeVar("T")
_KINDS: dict[str, type[Any]] = {cls.__name__: cls for cls in (*EVENTS, *COMMANDS, Scenes)}


def register(cls: type[T]) -> type[T]:
    """Adds a dataclass to what `encode` and `decode` know (a decorator)."""
    _KINDS[cls.__name__] = cls
    return cls


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def encode(value: object) -> str:
    """One JSON line without the newline. Raises TypeError for a class that is not registered."""
    cls = type(value)
    if _KINDS.get(cls.__name__) is not cls:
        raise TypeError(f"{cls.__name__} is neither an event nor a command")
    body = _adapter(cls.__name__).dump_python(value, mode="json")
    return json.dumps({"kind": cls.__name__, **body}, separators=(",", ":"), allow_nan=False)


def decode(line: str) -> Any:
    """The value written by `encode`. Raises StorageError (code 'corrupt') for anything else."""
    try:
        body = json.loads(line)
        return _adapter(body.pop("kind")).validate_python(body)
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise StorageError(
            f"a journal line cannot be read: {line[:80]!r}",
            code="corrupt",
            remedy="the journal was written by another version or damaged; move its segment out of events/",
        ) from error
