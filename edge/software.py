"""Which version of Driftbox this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def software_version() -> str:
    """'unknown' where it was never installed."""
    try:
        return version("driftbox")
    except PackageNotFoundError:
        return "unknown"
