"""The one table of serving policies."""

from __future__ import annotations

from collections.abc import Callable

from configs.errors import UsageError
from scheduler.orloj.clipper import Clipper
from scheduler.orloj.clockwork import Clockwork
from scheduler.orloj.edf import Edf
from scheduler.orloj.fifo import Fifo
from scheduler.orloj.nexus import Nexus
from scheduler.orloj.policy import PrintedOrloj, orloj
from scheduler.orloj.types import BatchPolicy

#: Every serving policy by its name.
POLICIES: dict[str, Callable[..., BatchPolicy]] = {
    "orloj": orloj,
    "orloj-printed": PrintedOrloj,
    "clockwork": Clockwork,
    "nexus": Nexus,
    "clipper": Clipper,
    "edf": Edf,
    "fifo": Fifo,
}


def make_batch_policy(name: str) -> BatchPolicy:
    """A new policy with its usual settings. Errors: UsageError listing the known ones."""
    if name not in POLICIES:
        raise UsageError(f"unknown serving policy '{name}'", subject=name, remedy=f"known: {', '.join(POLICIES)}")
    return POLICIES[name]()
