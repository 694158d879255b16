"""What installed packages announce, read from their metadata: nothing is imported here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def announced(group: str) -> Iterable[metadata.EntryPoint]:
    """Entry points of a group; one that is found twice (the same package seen through two paths) counts once."""
    entries = {(package_of(entry), entry.name, entry.value): entry for entry in metadata.entry_points(group=group)}
    return entries.values()


def package_of(entry: metadata.EntryPoint) -> str:
    """The package that an entry point belongs to, for people."""
    return entry.dist.name if entry.dist is not None else entry.value
