"""Writes docs/configuration.md from the schema: `python -m configs.describe docs/configuration.md`."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from configs.schema import BoxConfig, CameraUrl, Secret
from configs.schema.base import limits_of

_HEAD = """# Configuration

One YAML file. This page is generated from the schema (`make docs`); a test keeps it current.

- `driftbox check CONFIG` validates without touching the world: every problem at once, with path and line; unknown keys are
  refused.
- `driftbox doctor CONFIG` looks at cameras, broker, disk and weights.
- `configs/example.yaml` shows every section, `configs/demo.yaml` is the built-in demo.

**Secrets.** `telemetry.mqtt.password` is `env:NAME` (an environment variable), `file:PATH` (the content of a file without its
last line break) or plain text. A camera address holds the same references in braces, `rtsp://user:${env:CAM_PW}@host/stream`;
what is filled in is percent-encoded for you, so a password may hold any character. References are resolved only when a camera
is opened or the broker is dialled. Pages, logs, errors, MQTT and the journal never show a secret, only its reference or `***`.

**Units** stand in the column of that name: *pct* are percent points of one GPU (100 = one GPU; on a CPU-only box, one core),
*fraction*, *score*, *F1* and *IoU* are 0 to 1.
"""

#: What a section may stand in -> how its heading says so.
_KINDS = {"": "", "[]": " (a list)", ".NAME": " (by name)"}


def configuration_markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections(BoxConfig, "")])


def every_key() -> tuple[str, ...]:
    """All keys as they are named in the page: `window.seconds`, `cameras[].url`, ..."""
    return tuple(path for path, _ in _leaves(BoxConfig, ""))


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner, suffix = _inner_model(field.annotation)
        if inner is None:
            yield f"{prefix}{name}", field
        else:
            yield from _leaves(inner, f"{prefix}{name}{suffix}.")


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    rows = [(name, field) for name, field in model.model_fields.items() if _inner_model(field.annotation)[0] is None]
    if rows:
        yield "| key | type | unit | range | default | meaning |"
        yield "|---|---|---|---|---|---|"
        yield from (_row(f"{prefix}{name}", field) for name, field in rows)
        yield ""
    for name, field in model.model_fields.items():
        inner, suffix = _inner_model(field.annotation)
        if inner is not None:
            level = "##" if not prefix else "###"
            yield f"{level} `{prefix}{name}`" + _KINDS[suffix]
            yield f"{(inner.__doc__ or '').strip()}\n"
            yield from _sections(inner, f"{prefix}{name}{suffix}.")


@dataclass(frozen=True, kw_only=True)
class Described:
    """What is told of one key, as texts; backquotes mark what is written literally."""

    kind: str
    unit: str
    range: str
    default: str
    meaning: str


def described(field: FieldInfo) -> Described:
    """What is told of a field of the schema."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return Described(
        kind=_type_name(field.annotation),
        unit=str(extra.get("unit", "")),
        range=str(extra.get("range_text", "")) or _range(field),
        default=_default(field, extra),
        meaning=field.description or "",
    )


def _row(path: str, field: FieldInfo) -> str:
    told = described(field)
    cells = (f"`{path}`", told.kind, told.unit, told.range, told.default, told.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _range(field: FieldInfo) -> str:
    if typing.get_origin(field.annotation) is Literal:
        return ", ".join(f"`{json.dumps(v) if isinstance(v, bool) else v}`" for v in typing.get_args(field.annotation))
    return limits_of(field.metadata)


def _default(field: FieldInfo, extra: dict[str, Any]) -> str:
    if extra.get("default_text"):
        return str(extra["default_text"])
    if field.default is PydanticUndefined:
        example = extra.get("example")
        return f"required, e.g. `{example}`" if example else "required"
    value = field.default
    if isinstance(value, bool | float | int):
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if str(value) else "empty"


def _type_name(annotation: Any) -> str:
    known = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true/false",
        Path: "path",
        Secret: "secret",
        CameraUrl: "address",
    }
    if annotation in known:
        return known[annotation]
    if typing.get_origin(annotation) is Literal:
        return "true/false" if all(isinstance(v, bool) for v in typing.get_args(annotation)) else "choice"
    if typing.get_origin(annotation) is tuple:
        return "list"
    if typing.get_origin(annotation) is dict:
        return "map"
    inner = [a for a in typing.get_args(annotation) if a is not type(None)]
    return _type_name(inner[0])


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """(section class, suffix of `_KINDS`) of a field that holds a section, a list of sections, or sections by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    if typing.get_origin(annotation) is dict:
        value = typing.get_args(annotation)[1]
        return (value, ".NAME") if isinstance(value, type) and issubclass(value, BaseModel) else (None, "")
    first = (typing.get_args(annotation) or (None,))[0]
    if typing.get_origin(annotation) is tuple and isinstance(first, type) and issubclass(first, BaseModel):
        return first, "[]"
    return None, ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(configuration_markdown(), encoding="utf-8")
