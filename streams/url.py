"""Where a camera is: an address whose credentials nobody sees by accident."""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import urlsplit

from configs.errors import ConfigError, redact

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):(//)?")
#: Ends a word wherever the address might be printed, so `redact` could not see where it ends.
_UNQUOTED = re.compile(r"""[\s"'<>]""")
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


class SourceUrl:
    """rtsp(s)://, http(s)://, file: or a path, v4l2: or /dev/videoN. `str`, `repr` and formatting show it without credentials;
    only `reveal` gives the whole, to the library that opens it. It cannot be pickled, and is no dataclass, which `asdict` would
    spell out.

    Raises ConfigError for an address that could not be opened, without repeating it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        if not self._text:
            raise ConfigError("a camera's address is empty", remedy="give the address or path of a camera")
        if self._scheme() not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise ConfigError(f"a camera's address starts with '{self._scheme()}:'", remedy=f"use one of {known}, or a path")
        if self.kind in (SourceKind.RTSP, SourceKind.HTTP) and not self._is_readable():
            raise ConfigError(
                f"the {self._scheme()} address of a camera cannot be read",
                remedy="write scheme://user:password@host:port/path, with %2F for '/', %3F for '?', %23 for '#', %40 for '@' "
                "and %20 for a blank in a password",
            )

    def _is_readable(self) -> bool:
        if _UNQUOTED.search(self._text) or not self._text.isprintable():
            return False
        try:
            parts = urlsplit(self._text)
            if not parts.hostname or parts.port == 0:
                return False
        except ValueError:  # a port that is no number: most often an unquoted '/', '?' or '#' in a password
            return False
        # "joe:8080/pw@host" reads as host joe, port 8080: an '@' behind a host without a user tells it.
        return parts.username is not None or "@" not in parts.path + parts.query + parts.fragment

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
    def is_plain(self) -> bool:
        """Of a network's address: whether it is spoken to without TLS."""
        return self._scheme() in ("rtsp", "http")

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceUrl) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> SourceUrl:
        return self

    def __deepcopy__(self, memo: object) -> SourceUrl:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a SourceUrl may hold a password and is not written anywhere")
