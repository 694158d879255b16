"""Secrets and camera addresses: kept as references, resolved only when needed, never shown.

A secret is written as `env:NAME` (an environment variable), `file:PATH` (the file's content without the last line break),
or, not recommended, as plain text. A camera address may hold the same references in braces: `rtsp://user:${env:CAM_PW}@host/stream`.
`str`, `repr` and JSON of both types show references and hosts, never a credential; only `resolve()` gives the real text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from configs.errors import EnvironmentLacking, redact

#: What a camera address may begin with. A text without `://` is the path of a file or a device.
URL_SCHEMES: tuple[str, ...] = ("rtsp", "rtsps", "http", "https", "file", "v4l2", "rendered")

_SCHEMES_TEXT = ", ".join("rendered:" if scheme == "rendered" else f"{scheme}://" for scheme in URL_SCHEMES)

_REFERENCE = re.compile(r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")
_IN_BRACES = re.compile(r"\$\{([^{}]*)\}")


def _resolve_reference(reference: str) -> str:
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise EnvironmentLacking(
                f"secret env:{name} is not set", subject=f"env:{name}", remedy=f"set the environment variable {name}"
            )
        return value
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a UTF-8 text"
        raise EnvironmentLacking(
            f"secret file:{name} cannot be read: {reason}", subject=f"file:{name}", remedy="create the file or correct the path"
        ) from None


class _Hidden:
    """Base of the two types: the text is private, every way of showing the object goes through `shown`."""

    __slots__ = ("_text",)
    _text: str

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_text", text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def shown(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.shown()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown()!r})"

    def __format__(self, spec: str) -> str:
        return format(self.shown(), spec)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Hidden) and other._text == self._text

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._text,))

    def __deepcopy__(self, memo: object) -> _Hidden:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def _validated(cls, value: object) -> _Hidden:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or not value.strip():
            raise PydanticCustomError("not_text", "must be a text (put it in quotes)")
        cls._check(value)
        return cls(value)

    @classmethod
    def _check(cls, text: str) -> None:
        raise NotImplementedError


class Secret(_Hidden):
    """A password. Shown as its reference (`env:NAME`, `file:PATH`) or as `***`."""

    __slots__ = ()

    def shown(self) -> str:
        return self._text if self.is_reference() else "***"

    def is_reference(self) -> bool:
        return _REFERENCE.fullmatch(self._text) is not None

    def resolve(self) -> str:
        """The secret itself. Raises EnvironmentLacking naming the variable or the file when it is not there."""
        return _resolve_reference(self._text) if self.is_reference() else self._text

    @classmethod
    def _check(cls, text: str) -> None:
        if text.startswith("env:") and _REFERENCE.fullmatch(text) is None:
            raise PydanticCustomError("reference", "after env: comes the name of an environment variable (A-Z, 0-9, _)")


class CameraUrl(_Hidden):
    """Where a camera is. Shown without user information; `${env:NAME}` and `${file:PATH}` are filled in by `resolve()`."""

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """`rtsp`, `http`, ...; `file` for a plain path, `v4l2` for /dev/video*."""
        if "://" in self._text:
            return self._text.partition("://")[0].lower()
        if self._text.startswith("rendered:"):
            return "rendered"
        return "v4l2" if self._text.startswith("/dev/video") else "file"

    def shown(self) -> str:
        head, separator, rest = self._text.partition("://") if "://" in self._text else ("", "", self._text)
        # The last '@' of all: a password that was not percent-encoded may itself hold '@', '/' or '?'.
        if "@" in rest:
            rest = "***@" + rest.rpartition("@")[2]
        return redact(f"{head}{separator}{rest}")

    def resolve(self) -> str:
        """The whole address with its references filled in; values are percent-encoded. Raises EnvironmentLacking."""
        return _IN_BRACES.sub(lambda found: quote(_resolve_reference(found[1]), safe=""), self._text)

    def references(self) -> tuple[str, ...]:
        return tuple(_IN_BRACES.findall(self._text))

    @classmethod
    def _check(cls, text: str) -> None:
        for reference in _IN_BRACES.findall(text):
            if _REFERENCE.fullmatch(reference) is None:
                raise PydanticCustomError("reference", "in ${...} only env:NAME and file:PATH are possible")
        scheme, separator, rest = text.partition("://")
        if not separator:
            return
        if scheme.lower() not in URL_SCHEMES:
            raise PydanticCustomError("scheme", "unknown kind of address; known: " + _SCHEMES_TEXT)
        if scheme.lower() in ("rtsp", "rtsps", "http", "https"):
            _check_network_address(rest)


def _check_network_address(rest: str) -> None:
    authority = re.split(r"[/?#]", _IN_BRACES.sub("x", rest), maxsplit=1)[0]
    host, _, port = authority.rpartition("@")[2].partition("]" if "[" in authority else ":")
    port = port.removeprefix(":")
    if not host:
        raise PydanticCustomError("host", "the host is missing: scheme://[user:password@]host[:port]/path")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise PydanticCustomError(
            "port", "the port must be 1 to 65535; a '/', '?' or '#' in a password must be percent-encoded (%2F, %3F, %23)"
        )
