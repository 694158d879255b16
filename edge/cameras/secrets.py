"""Credentials of cameras that were typed into the product: each in a file of its own under `secrets/` of the data folder, for the box's
user only. The database and everything shown hold a name instead: `rtsp://${secret:gate-1-user}:${secret:gate-1-password}@host/x`.

A file is written before the row that names it, and removed after no row does, so a kill leaves at most a file that nobody names; those
are removed when the box starts. Names are used once, so an old row never shows a new password. The data folder may be moved: a name
becomes the reference `${file:...}` of the configuration (`configs.schema.secret`) only when the camera is opened.
"""

from __future__ import annotations

import os
import re
import secrets as random
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from configs.errors import ConfigError, secret_values
from configs.files import fsync_path, storage_errors, write_all

FOLDER = "secrets"
#: What stands for credentials that were not typed anew.
SAME = "***"
_NAMED = re.compile(r"\$\{secret:([a-z0-9_-]{1,200})\}")


@dataclass(frozen=True, kw_only=True)
class Split:
    """An address without its credentials. text: names in their places; values: by name, never shown."""

    text: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def split(text: str, prefix: str) -> Split:
    """Takes the credentials out of an address: user and password, and values of its query that are secret by their names. prefix:
    begins their names. Raises ConfigError as `refuse_references`."""
    refuse_references(text)
    values: dict[str, str] = {}

    def named(what: str, value: str) -> str:
        name = f"{prefix}-{what}"
        values[name] = unquote(value)
        return f"${{secret:{name}}}"

    head, separator, rest = text.partition("://")
    if not separator:
        return Split(text=text)
    info, at, tail = rest.rpartition("@")
    spans = secret_values(tail)
    for number, (begin, end) in reversed(list(enumerate(spans))):
        tail = tail[:begin] + named(f"query{number}", tail[begin:end]) + tail[end:]
    if at:
        user, colon, password = info.partition(":")
        info = (named("user", user) if user else "") + (colon and ":" + named("password", password) if password else colon)
    if SAME in values.values():
        raise ConfigError(f"{SAME} is no password", remedy="type it, or leave the whole address as it was shown")
    return Split(text=f"{head}://{info}{at}{tail}", values=values)


def refuse_references(text: str) -> str:
    """`text`; raises ConfigError when it holds references: which files the box reads and sends is not for the network to say."""
    if "${" in text:
        raise ConfigError(
            "an address that is typed here holds no ${...}",
            remedy="type user and password; references belong into the configuration file",
        )
    return text


def same_place(text: str, before: str) -> bool:
    """Whether an address with `***` for its credentials goes to where those of `before` went: same kind, host and port."""
    return _place(text) == _place(before)


def with_credentials_of(text: str, before: str) -> str:
    """`text`, whose credentials are `***`, with what `before` has in their place."""
    head, _, rest = text.partition("://")
    info = before.partition("://")[2].rpartition("@")[0]
    return f"{head}://{info}@{rest.rpartition('@')[2]}"


def is_same(text: str) -> bool:
    """Whether an address has `***` where credentials stand."""
    rest = text.partition("://")[2]
    return rest.rpartition("@")[0] in (SAME, f"{SAME}:{SAME}")


def _place(text: str) -> tuple[str, str]:
    head, _, rest = text.partition("://")
    return head.lower(), re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)[0].lower()


def names_in(text: str) -> list[str]:
    """The secrets that an address names."""
    return _NAMED.findall(text)


class SecretFiles:
    """The folder. Raises StorageError."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir.resolve() / FOLDER

    def new_prefix(self, camera: str) -> str:
        return f"{camera}-{random.token_hex(4)}"

    def keep(self, values: Mapping[str, str]) -> None:
        """Writes each into its file; on the disk when it returns."""
        if not values:
            return
        with storage_errors(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, value in values.items():
                fd = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    write_all(fd, f"{value}\n".encode())
                    os.fsync(fd)
                finally:
                    os.close(fd)
            fsync_path(self.folder)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            with storage_errors(self.folder), suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def remove_unnamed(self, named: Collection[str]) -> list[str]:
        """Removes what no row names; which those were. For a start, when nobody writes."""
        if not self.folder.is_dir():
            return []
        left = sorted(path.name for path in self.folder.iterdir() if path.name not in named)
        self.remove(left)
        return left

    def reference(self, text: str) -> str:
        """An address as the configuration has it: names become `${file:...}`."""
        return _NAMED.sub(lambda found: f"${{file:{self.folder / found[1]}}}", text)
