"""What all sections share: frozen, unknown keys refused, every field with description, unit, range and default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from configs.units import is_camera_id


class Section(BaseModel):
    """A part of the configuration. Frozen: a changed configuration is a new object, so that nobody sees half of a change."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        """`tls: off` names a word where there is such a word; YAML reads it as false."""
        if not isinstance(given, Mapping):
            return given
        said = {True: "on", False: "off"}
        return {
            name: said[value]
            if isinstance(value, bool)
            and name in cls.model_fields
            and said[value] in get_args(cls.model_fields[name].annotation)
            else value
            for name, value in given.items()
        }


def setting(
    default: Any = ...,
    *,
    text: str,
    strict: bool = True,
    unit: str = "",
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    max_length: int | None = None,
    default_factory: Callable[..., Any] | None = None,
    default_text: str = "",
    example: str = "",
    range_text: str = "",
) -> Any:
    """One field: `text` says what it does, `unit` what the number counts; bounds as in pydantic.

    default_text: how a computed default is named in the documentation; example: a value shown there for a required field;
    range_text: what is allowed, where bounds do not say it.
    Numbers and booleans are strict: YAML is typed, so `"5"` for a number and `yes` for a port are mistakes, not values
    (strict=False for types that know no strictness).
    """
    strictly = strict and (type(default) in (bool, int, float) or bool(unit))
    extra: dict[str, Any] = {"unit": unit, "default_text": default_text, "example": example, "range_text": range_text}
    kwargs: dict[str, Any] = {
        "description": text,
        "ge": ge,
        "le": le,
        "gt": gt,
        "max_length": max_length,
        "strict": strictly or None,
    }
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    if default_factory is not None:
        return Field(default_factory=default_factory, json_schema_extra=extra, **kwargs)
    return Field(default, json_schema_extra=extra, **kwargs)


def limits_of(metadata: list[Any]) -> str:
    """'10 to 16' for ge=10, le=16; 'above 0, at most 1' for gt=0, le=1; '' without bounds."""
    found = {name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le", "lt") if hasattr(item, name)}
    if "ge" in found and "le" in found:
        return f"{found['ge']:.12g} to {found['le']:.12g}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return ", ".join(f"{words[name]} {value:.12g}" for name, value in found.items())


def checked_id(value: str) -> str:
    """`value` when it may name folders, topics and addresses."""
    if not is_camera_id(value):
        raise PydanticCustomError(
            "id", "must begin with a lower case letter or a digit; then those, '_' and '-', at most 63 characters"
        )
    return value
