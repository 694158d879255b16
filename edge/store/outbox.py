"""What waits for the broker, in the box's database: in order, bounded, on disk before it is sent.

Messages are of two sorts. Of a *state* (`latest`) only the newest of its topic is worth telling, so an older one that still waits is
replaced. Every other message is told, in the order in which it was put, and goes only when the outbox is full: the oldest first, and
counted, so that it can be said.

One thread uses an outbox (that of `edge.telemetry.mqtt`); the counts in memory are right because nobody else writes its table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge.store.store import Store

MESSAGES_MAX = 200_000
BYTES_MAX = 128 * 2**20
#: Rows looked at together when some have to go.
_BATCH = 1000
_LOST = "lost"
#: Bytes of a row, as `Message.size_bytes` counts them.
_SIZE = "length(CAST(topic AS BLOB)) + length(payload)"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One publication, QoS 1. retain: the broker keeps it for who comes later; latest: an older one of the topic that still waits is
    not worth telling any more."""

    topic: str
    payload: bytes
    retain: bool = False
    latest: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.topic.encode()) + len(self.payload)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A message in the outbox."""

    id: int
    message: Message


class Outbox:
    """See the module. messages_max, bytes_max (topics and payloads): beyond them the oldest go. Raises StorageError from every method;
    what a failed `put` was given is then not in the outbox."""

    def __init__(self, store: Store, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._store, self._messages_max, self._bytes_max = store, messages_max, bytes_max
        self._handed = 0  # highest id given out by `take`; those may be on their way and are not touched
        (row,) = store.rows(f"SELECT count(*) AS n, coalesce(sum({_SIZE}), 0) AS size FROM outbox")
        self._count, self._bytes = int(row["n"]), int(row["size"])

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def has_room(self) -> bool:
        """It is at most half full."""
        return 2 * self._count <= self._messages_max and 2 * self._bytes <= self._bytes_max

    def put(self, messages: Sequence[Message], *, at_utc: float) -> int:
        """Queues messages, all or none; returns how many older ones had to go."""
        if not messages:
            return 0
        with self._store.transaction() as db:
            kept = _newest(messages)
            replaced = [self._replace(db, message.topic) for message in kept if message.latest]
            db.executemany(
                "INSERT INTO outbox (topic, payload, qos, retain, queued_utc, latest) VALUES (?, ?, 1, ?, ?, ?)",
                [(m.topic, m.payload, int(m.retain), at_utc, int(m.latest)) for m in kept],
            )
            count = self._count + len(kept) - sum(n for n, _ in replaced)
            size = self._bytes + sum(m.size_bytes for m in kept) - sum(freed for _, freed in replaced)
            dropped, freed = self._trim(db, count, size)
            if dropped:
                _add_lost(db, dropped)
        self._count, self._bytes = count - dropped, size - freed
        return dropped

    def take(self, limit: int) -> list[Waiting]:
        """The next messages that were not taken yet, oldest first. They stay until `acknowledge`, or until `rewind` for who crashed."""
        rows = self._store.rows(
            "SELECT id, topic, payload, retain, latest FROM outbox WHERE id > ? ORDER BY id LIMIT ?", (self._handed, limit)
        )
        if rows:
            self._handed = int(rows[-1]["id"])
        return [_waiting(row) for row in rows]

    def rewind(self) -> None:
        """Everything that is still there is to be taken again: what had taken it is no more."""
        self._handed = 0

    def acknowledge(self, taken: Iterable[Waiting]) -> None:
        """Removes messages that the broker has."""
        found = list(taken)
        with self._store.transaction() as db:
            gone = [w for w in found if db.execute("DELETE FROM outbox WHERE id = ?", (w.id,)).rowcount]
        self._count -= len(gone)
        self._bytes -= sum(w.message.size_bytes for w in gone)

    def lost(self) -> int:
        """Messages that had to go and were not told of yet (`forget_lost`), also by an earlier run."""
        return int(self.fact(_LOST) or 0)

    def forget_lost(self) -> None:
        self.remember(_LOST, "0")

    def fact(self, name: str) -> str | None:
        """Something that telemetry remembers over restarts."""
        rows = self._store.rows("SELECT value FROM telemetry_facts WHERE name = ?", (name,))
        return str(rows[0]["value"]) if rows else None

    def remember(self, name: str, value: str) -> None:
        with self._store.transaction() as db:
            db.execute("INSERT OR REPLACE INTO telemetry_facts (name, value) VALUES (?, ?)", (name, value))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _replace(self, db: sqlite3.Connection, topic: str) -> tuple[int, int]:
        """(messages, bytes) of older states of a topic that are no longer worth telling."""
        sizes = db.execute(
            f"DELETE FROM outbox WHERE topic = ? AND latest = 1 AND id > ? RETURNING {_SIZE} AS size",
            (topic, self._handed),
        ).fetchall()
        return len(sizes), sum(int(row["size"]) for row in sizes)

    def _trim(self, db: sqlite3.Connection, count: int, size: int) -> tuple[int, int]:
        """(messages, bytes) that had to go: the oldest events, and states when there is nothing else."""
        dropped = freed = 0
        for latest in (0, 1):
            while count - dropped > self._messages_max or size - freed > self._bytes_max:
                rows = db.execute(
                    f"SELECT id, {_SIZE} AS size FROM outbox WHERE id > ? AND latest = ? ORDER BY id LIMIT ?",
                    (self._handed, latest, _BATCH),
                ).fetchall()
                if not rows:
                    break
                going = []
                for row in rows:
                    if count - dropped <= self._messages_max and size - freed <= self._bytes_max:
                        break
                    going.append((row["id"],))
                    dropped, freed = dropped + 1, freed + int(row["size"])
                db.executemany("DELETE FROM outbox WHERE id = ?", going)
        return dropped, freed


def waiting_in(store: Store) -> int:
    """Messages that wait in the database, whoever put them there. Raises StorageError."""
    return int(store.rows("SELECT count(*) AS n FROM outbox")[0]["n"])


def _newest(messages: Sequence[Message]) -> list[Message]:
    """Without states that a later message of the same batch replaces."""
    last = {message.topic: index for index, message in enumerate(messages) if message.latest}
    return [m for index, m in enumerate(messages) if not m.latest or last[m.topic] == index]


def _add_lost(db: sqlite3.Connection, count: int) -> None:
    db.execute(
        "INSERT INTO telemetry_facts (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + CAST(excluded.value AS INTEGER)",
        (_LOST, str(count)),
    )


def _waiting(row: sqlite3.Row) -> Waiting:
    message = Message(topic=row["topic"], payload=bytes(row["payload"]), retain=bool(row["retain"]), latest=bool(row["latest"]))
    return Waiting(id=row["id"], message=message)
