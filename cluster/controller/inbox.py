"""What owners and joining boxes want, written down until the controller has acted on it: events in order, each acted on once.

Whoever may open the data folder may write here, a command beside a running controller as well as its own web server; only the
controller in charge takes them out, in the same transaction as what comes of them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.controller import events as happened
from cluster.controller.database import FleetDatabase
from scheduler.fleet.codec import as_dict, decode

#: Events that may wait, by the name under which they are kept.
KINDS: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        happened.BoxJoined, happened.BoxForgotten, happened.CustomerPut, happened.CustomerRemoved, happened.DrainWished,
        happened.PinWished, happened.OffersSet, happened.CollectSet, happened.RolloutWished,
        happened.SitePut, happened.GroupWeighed,
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Waiting:
    number: int
    event: happened.Event


def put(db: sqlite3.Connection, event: happened.Event, *, at_utc_s: float) -> None:
    """Inside a transaction."""
    name = type(event).__name__
    if name not in KINDS:
        raise ValueError(f"{name} does not wait")
    db.execute("INSERT INTO inbox (at_utc, event, body) VALUES (?, ?, ?)", (at_utc_s, name, json.dumps(as_dict(event))))


def waiting(db: FleetDatabase, after: int) -> list[Waiting]:
    """Oldest first."""
    rows = db.rows("SELECT number, event, body FROM inbox WHERE number > ? ORDER BY number LIMIT 1000", (after,))
    return [Waiting(number=row["number"], event=decode(KINDS[row["event"]], json.loads(row["body"]))) for row in rows]


def taken(db: sqlite3.Connection, up_to: int) -> None:
    """Inside the transaction that keeps what came of them."""
    db.execute("DELETE FROM inbox WHERE number <= ?", (up_to,))
