"""YAML to `BoxConfig`, or to `ControllerConfig`. Every problem is reported at once, with field path and line; nothing outside the file
is touched.

    config = load_config(Path("box.yaml"))      # ConfigError.problems: ((field path, text), ...)

No problem text ever shows a value of a field that may hold a secret.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from configs.errors import ConfigError
from configs.schema import CROSS_SECTION, BoxConfig, ControllerConfig
from configs.schema.base import limits_of
from configs.schema.crosscheck import cross_problems

Loc = tuple[str | int, ...]

#: Reported by other means: with their paths by `cross_problems`; as the problem of the field that the default hangs on.
_NOT_REPORTED = (CROSS_SECTION, "default_factory_not_called")

#: Keys whose value is never shown in a message.
_PRIVATE_KEYS = ("url", "record_url", "password", "username")


def load_config(path: Path) -> BoxConfig:
    """Reads and validates the file. Raises ConfigError with all problems; touches neither network nor camera."""
    return parse_config(_text_of(path), source=str(path))


def load_controller(path: Path | None, changes: Mapping[str, Mapping[str, Any]] | None = None) -> ControllerConfig:
    """The configuration of a fleet's controller. path: None means an empty one; changes: section -> key -> value, of the command line:
    they count more than the file. Raises ConfigError with all problems."""
    source = str(path) if path is not None else "the command line"
    data, lines, problems = _read_yaml(_text_of(path), source) if path is not None else ({}, {}, [])
    for section, values in (changes or {}).items():
        held = data.get(section) or {}
        data[section] = {**held, **values} if isinstance(held, dict) else held
    config: ControllerConfig | None = None
    try:
        config = ControllerConfig.model_validate(data)
    except ValidationError as error:
        problems += [(d["loc"], _explain(d, ControllerConfig)) for d in error.errors(include_url=False)]
    if config is None or problems:
        _raise_all(problems, lines, source, "docs/fleet/controller.md describes every key")
    return config


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist", subject=str(path), remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a UTF-8 text"
        raise ConfigError(f"configuration file {path} cannot be read: {reason}", subject=str(path)) from None


def load_demo() -> BoxConfig:
    """The built-in demo, see `configs/demo.yaml`."""
    return load_config(Path(__file__).with_name("demo.yaml"))


def parse_config(text: str, *, source: str = "configuration") -> BoxConfig:
    """Like `load_config`, for text that has been read already; `source` names it in messages."""
    data, lines, problems = _read_yaml(text, source)
    return _validated(data, lines, problems, source)


def with_cameras(config: BoxConfig, cameras: Sequence[Mapping[str, Any]], *, source: str) -> BoxConfig:
    """`config` with other cameras, written as in YAML; checked as a file is. Addresses may also be `CameraUrl`. Raises ConfigError; its
    problems name a camera by its place in `cameras`."""
    rest = config.model_dump(exclude={"cameras"})
    data = {name: getattr(config, name) for name in rest} | {"cameras": [dict(camera) for camera in cameras]}
    found = _validated(data, {}, [], source, plain=rest | {"cameras": data["cameras"]})
    return config.model_copy(update={"cameras": found.cameras})


def with_media(config: BoxConfig, media: Mapping[str, Any], *, source: str) -> BoxConfig:
    """`config` with another `storage.media`, written as in YAML; checked as a file is. Raises ConfigError; its problems name fields by
    their place in the file, `storage.media.clip_days`."""
    storage = config.storage.model_dump(mode="json", exclude_unset=True) | {"media": dict(media)}
    plain = config.model_dump() | {"storage": storage}
    data = {name: getattr(config, name) for name in plain} | {"storage": storage}
    found = _validated(data, {}, [], source, plain=plain)
    return config.model_copy(update={"storage": found.storage})


def _validated(
    data: dict[str, Any],
    lines: dict[Loc, int],
    problems: list[tuple[Loc, str]],
    source: str,
    *,
    plain: dict[str, Any] | None = None,
) -> BoxConfig:
    """plain: `data` without objects, for the rules that join sections; None: it has none. Raises ConfigError with all problems."""
    config: BoxConfig | None = None
    try:
        config = BoxConfig.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems += [(d["loc"], _explain(d)) for d in details if d["type"] not in _NOT_REPORTED]
    problems += [(_loc_of(path), text) for path, text in cross_problems(plain or data)]
    if config is None or problems:
        _raise_all(problems, lines, source)
    return config


def _raise_all(
    problems: list[tuple[Loc, str]],
    lines: dict[Loc, int],
    source: str,
    remedy: str = "docs/configuration.md describes every key",
) -> typing.NoReturn:
    placed = [(field_path(loc), text, _line_of(loc, lines)) for loc, text in problems]
    placed.sort(key=lambda p: (p[2], p[0]))
    count = "1 problem" if len(placed) == 1 else f"{len(placed)} problems"
    raise ConfigError(
        f"{source}: {count}",
        subject=source,
        remedy=remedy,
        problems=tuple((path or "(file)", f"{text} (line {line})" if line else text) for path, text, line in placed),
    )


def field_path(loc: Loc) -> str:
    """('cameras', 1, 'fps') -> 'cameras[1].fps'."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _loc_of(path: str) -> Loc:
    parts = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


# --- YAML -------------------------------------------------------------------------------------------------------------


def _read_yaml(text: str, source: str) -> tuple[dict[str, Any], dict[Loc, int], list[tuple[Loc, str]]]:
    """The plain data, the line of every field, and keys that stand twice. Raises ConfigError on a syntax error."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise ConfigError(
            f"{source} is not YAML: {where}: {error.problem or 'syntax error'}",
            subject=source,
            problems=(("(file)", f"{where}: {error.problem or 'syntax error'}"),),
            remedy="check indentation, colons and quotes there",
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        detail = type(error).__name__
        raise ConfigError(f"{source} is not YAML text ({detail})", subject=source, problems=(("(file)", detail),)) from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        text = "must consist of sections (box:, cameras:, ...)"
        raise ConfigError(f"{source} {text}", subject=source, problems=(("(file)", text),))
    lines: dict[Loc, int] = {}
    twice: list[tuple[Loc, str]] = []
    for loc, child, again in _walk(node, ()):
        lines[loc] = child.start_mark.line + 1
        if again:
            twice.append((loc, "stands here a second time; only one can count"))
    return data, lines, twice


def _walk(node: yaml.Node | None, loc: Loc) -> Iterator[tuple[Loc, yaml.Node, bool]]:
    """(path, node that stands on the path's line, is it a repeated key) of everything below `node`."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*loc, str(key.value))
            yield here, key, key.value in seen
            seen.add(key.value)
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield (*loc, number), value, False
            yield from _walk(value, (*loc, number))


def _line_of(loc: Loc, lines: dict[Loc, int]) -> int:
    """Line of the field, or of the nearest thing around it; 0 when unknown."""
    for end in range(len(loc), 0, -1):
        if loc[:end] in lines:
            return lines[loc[:end]]
    return 0


# --- pydantic's words to ours -----------------------------------------------------------------------------------------

_PLAIN = {
    "missing": "is required",
    "string_type": "must be text (put it in quotes)",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
    "tuple_type": "must be a list",
    "dict_type": "must be a section with keys of its own",
    "path_type": "must be a path",
    "finite_number": "must be a finite number",
    "string_too_long": "is too long",
}


def _explain(detail: ErrorDetails, root: type[BaseModel] = BoxConfig) -> str:
    loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(loc, root)
    shown = _shown_input(loc, detail)
    if kind in ("literal_error", "enum"):
        return _not_allowed(loc, detail, shown, root)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return f"must be {_range_text(loc, root)}{shown}"
    if kind in _PLAIN:
        limit = f" (at most {context['max_length']} characters)" if "max_length" in context else ""
        return _PLAIN[kind] + limit + ("" if kind == "missing" else shown)
    if kind.endswith(("_type", "_parsing")) or "type" in kind:
        return f"has the wrong type: {detail['msg']}"
    return detail["msg"]


def _shown_input(loc: Loc, detail: ErrorDetails) -> str:
    value = detail.get("input")
    if any(part in _PRIVATE_KEYS for part in loc) or isinstance(value, dict | list):
        return ""
    text = f"{value!r}" if isinstance(value, str) else yaml.safe_dump(value).removesuffix("\n...\n").strip()
    return f", not {text[:40]}"


def _unknown_key(loc: Loc, root: type[BaseModel]) -> str:
    known = sorted(_fields_at(loc[:-1], root))
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown key{hint}; known keys: {', '.join(known)}"


def _not_allowed(loc: Loc, detail: ErrorDetails, shown: str, root: type[BaseModel]) -> str:
    allowed = [str(value).lower() if isinstance(value, bool) else str(value) for value in _allowed_at(loc, root)]
    near = difflib.get_close_matches(str(detail.get("input")), allowed, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"must be {'one of: ' if len(allowed) > 1 else ''}{', '.join(allowed)}{shown}{hint}"


def _range_text(loc: Loc, root: type[BaseModel]) -> str:
    model, name = _model_at(loc[:-1], root), str(loc[-1])
    field = model.model_fields[name] if model else None
    limits = limits_of(field.metadata) if field else ""
    unit = (field.json_schema_extra or {}).get("unit", "") if field and isinstance(field.json_schema_extra, dict) else ""
    return f"{limits} {unit}".strip()


def _fields_at(loc: Loc, root: type[BaseModel]) -> Mapping[str, Any]:
    model = _model_at(loc, root)
    return model.model_fields if model else {}


def _allowed_at(loc: Loc, root: type[BaseModel]) -> tuple[Any, ...]:
    field = _fields_at(loc[:-1], root).get(str(loc[-1]))
    annotation = field.annotation if field else None
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _model_at(loc: Loc, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section class that stands at `loc`."""
    model: type[BaseModel] | None = root
    is_name = False  # the next part is a key that the user chose
    for part in loc:
        if model is None:
            return None
        if isinstance(part, int) or is_name:
            is_name = False
            continue
        field = model.model_fields.get(part)
        is_name = field is not None and typing.get_origin(field.annotation) is dict
        model = next(_models_in(field.annotation), None) if field else None
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
