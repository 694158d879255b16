"""The messages of `scheduler.fleet.types` as JSON. Unknown fields are ignored (a newer peer may send them), missing ones refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json

from configs.errors import UsageError
from scheduler.fleet.types import SCHEMA

T = TypeVar("T")

#: Longest message that is looked at, in bytes: a box has dozens of cameras, not tens of thousands.
MOST_BYTES = 4 * 1024 * 1024


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(cls: Any) -> TypeAdapter[Any]:
    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(with_config(ConfigDict(extra="ignore", allow_inf_nan=False))(cls))
    return _adapters[cls]


def encode(message: object) -> bytes:
    """UTF-8 JSON of one of the messages."""
    return json.dumps(
        _adapter(type(message)).dump_python(message, mode="json"), separators=(",", ":"), allow_nan=False
    ).encode()


def as_dict(message: object) -> dict[str, Any]:
    """The same as a plain dict, for a store or a page."""
    found = _adapter(type(message)).dump_python(message, mode="json")
    assert isinstance(found, dict)
    return found


def decode(cls: type[T], payload: bytes | str | dict[str, Any]) -> T:
    """The message. UsageError (subject: the class) for anything that is not one: too long, no JSON, wrong fields, a newer schema."""
    if isinstance(payload, (bytes, str)) and len(payload) > MOST_BYTES:
        raise _unusable(cls, f"it is longer than {MOST_BYTES} bytes")
    try:
        body = payload if isinstance(payload, dict) else from_json(payload, allow_inf_nan=False)
        if isinstance(body, dict) and _has_schema(cls) and body.get("schema") != SCHEMA:
            raise _unusable(cls, f"it has schema {body.get('schema')!r}, this release reads {SCHEMA}")
        found = _adapter(cls).validate_python(body, strict=False)
    except ValidationError as error:
        raise _unusable(cls, _told(error)) from None
    except ValueError as error:
        raise _unusable(cls, str(error).splitlines()[0][:200]) from None
    assert isinstance(found, cls)
    return found


def _told(error: ValidationError) -> str:
    """The fields that are wrong and why, the first ones."""
    found = [(".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in error.errors(include_input=False)]
    return "; ".join(f"{where}: {why}" if where else why for where, why in found[:3])[:300]


def _has_schema(cls: Any) -> bool:
    return any(field.name == "schema" for field in dataclasses.fields(cls))


def _unusable(cls: type[Any], why: str) -> UsageError:
    return UsageError(
        f"a {cls.__name__} cannot be read: {why}", subject=cls.__name__, remedy="is the sender a Driftbox of this release?"
    )
