"""Where a camera is: an address whose credentials nobody sees by accident."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from configs.errors import ConfigError, redact

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):(//)?")
_DEVICE = re.compile(r"^/dev/video\d+$")


class SourceKind(StrEnum):
    RTSP = "rtsp"
    HTTP = "http"
    FILE = "file"
    V4L2 = "v4l2"


_KINDS = {
    "rtsp": SourceKind.RTSP,
    "rtsps": SourceKind.RTSP,
    "http": SourceKind.HTTP,
    "https": SourceKind.HTTP,
    "file": SourceKind.FILE,
    "v4l2": SourceKind.V4L2,
}


@dataclass(frozen=True, repr=False)
class SourceUrl:
    """rtsp(s)://, http(s)://, file: or a path, v4l2: or /dev/videoN. `str`, `repr` and formatting show it without credentials;
    only `reveal` gives the whole, to the library that opens it. It cannot be pickled.

    Raises ConfigError for an address that could not be opened, without repeating it.
    """

    _text: str

    def __post_init__(self) -> None:
        if not self._text or any(char.isspace() or not char.isprintable() for char in self._text) and not self._is_path():
            raise ConfigError("a camera's address is empty or holds blanks", remedy="write %20 for a blank in an address")
        if self._scheme() not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise ConfigError(f"a camera's address starts with '{self._scheme()}:'", remedy=f"use one of {known}, or a path")
        if self.kind in (SourceKind.RTSP, SourceKind.HTTP):
            self._check_host()

    def _check_host(self) -> None:
        try:
            parts = urlsplit(self._text)
            good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is no number: most often a password with an unquoted '/', '?' or '#'
            good = False
        if not good or "@" in parts.path + parts.query + parts.fragment and parts.username is None:
            raise ConfigError(
                f"the {self._scheme()} address of a camera cannot be read",
                remedy="write scheme://user:password@host:port/path, with %2F for '/', %3F for '?', %40 for '@' in a password",
            )

    def _scheme(self) -> str:
        if self._is_path():
            return "v4l2" if _DEVICE.match(self._text) else "file"
        found = _SCHEME.match(self._text)
        return found[1].lower() if found else "file"

    def _is_path(self) -> bool:
        return self._text.startswith(("/", "./", "../")) or _SCHEME.match(self._text) is None

    @property
    def kind(self) -> SourceKind:
        return _KINDS[self._scheme()]

    @property
    def path(self) -> str:
        """The path of a file or device; "" for others."""
        if self.kind is SourceKind.FILE and not self._is_path():
            return self._text.removeprefix("file:").removeprefix("//")
        if self.kind is SourceKind.V4L2 and not self._is_path():
            return self._text.removeprefix("v4l2:").removeprefix("//")
        return self._text if self.kind in (SourceKind.FILE, SourceKind.V4L2) else ""

    def reveal(self) -> str:
        """The whole address, credentials included. For the call that opens it and for nothing else."""
        return self._text

    def __str__(self) -> str:
        return redact(self._text)

    def __repr__(self) -> str:
        return f"SourceUrl({redact(self._text)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a SourceUrl may hold a password and is not written anywhere")
