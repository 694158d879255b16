"""One controller writes at a time. Whoever holds the lease does; everything it wishes bears the lease's term.

The seam is `LeaseStore`; SQLite (controllers on one data folder) is here, others stand beside it (a Ray actor, a Kubernetes Lease). A
store must give a term to one holder only and never a lower one than before; it may be away.

`LeaseKeeper` is what the controller asks. It counts its own time on the monotonic clock, from *before* it asked the store, so that it
stops no later than the store would give the lease away, also when it slept meanwhile (a suspended machine). What it still sends then
is refused by the database (`FleetDatabase.transaction`) and by boxes, for its term is not the highest any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cluster.controller.database import FleetDatabase
from configs.errors import DriftboxError, EnvironmentLacking

LEASE = "controller"
#: In a holder's note, before what tells its fleet from others.
OF_FLEET = ", fleet "


@dataclass(frozen=True, kw_only=True)
class Held:
    """mine: whether the asker holds it; holder: who does; term: of that; until_utc_s: by the store's clock; note: the holder's
    address."""

    mine: bool
    holder: str
    term: int
    until_utc_s: float
    note: str = ""


class LeaseStore(Protocol):
    """May raise EnvironmentLacking or StorageError: it is away."""

    def take(self, holder: str, *, lasts_s: float, note: str = "", above: int = 0) -> Held:
        """Takes the lease if it is free or over (by a new, higher term), renews it if `holder` has it (the same term), or says who has
        it. above: a term up to this one was seen elsewhere: ours must be higher, so a renewal may bring a new one. One atomic step."""
        ...

    def give(self, holder: str, term: int) -> None:
        """Gives it back, if it is still `holder`'s by `term`."""
        ...


class SqliteLeases:
    """The lease in `fleet.db`. utc_s: the clock of this machine, which all who share the file have."""

    def __init__(self, db: FleetDatabase, utc_s: Callable[[], float], *, name: str = LEASE) -> None:
        self._db, self._utc_s, self._name = db, utc_s, name

    def take(self, holder: str, *, lasts_s: float, note: str = "", above: int = 0) -> Held:
        with self._db.transaction() as db:
            now_s = self._utc_s()
            row = db.execute("SELECT holder, term, until_utc, note FROM lease WHERE name = ?", (self._name,)).fetchone()
            # A clock that was set back must not keep the lease away from everybody for hours.
            over = row is None or row["until_utc"] <= now_s or row["until_utc"] > now_s + 10 * lasts_s
            if row is not None and row["holder"] != holder and not over:
                return Held(mine=False, holder=row["holder"], term=row["term"], until_utc_s=row["until_utc"], note=row["note"])
            same = row is not None and row["holder"] == holder and not over and row["term"] > above
            term = int(row["term"]) if same else self._next_term(above, int(row["term"]) if row is not None else 0)
            until_s = now_s + lasts_s
            db.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)", (self._name, holder, term, until_s, note))
            return Held(mine=True, holder=holder, term=term, until_utc_s=until_s, note=note)

    def _next_term(self, *seen: int) -> int:
        return max(*seen, int(self._db.rows("SELECT term FROM fence")[0]["term"])) + 1

    def give(self, holder: str, term: int) -> None:
        with self._db.transaction() as db:
            db.execute("UPDATE lease SET until_utc = 0 WHERE name = ? AND holder = ? AND term = ?", (self._name, holder, term))

    def holder(self) -> Held | None:
        """Who has it, for people."""
        rows = self._db.rows("SELECT holder, term, until_utc, note FROM lease WHERE name = ?", (self._name,))
        return None if not rows else Held(
            mine=False, holder=rows[0]["holder"], term=rows[0]["term"], until_utc_s=rows[0]["until_utc"], note=rows[0]["note"]
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """lasts_s: of the lease; renew_s: between two renewals; margin_s: so much earlier its holder stops by itself; rival_s: so long after
    another controller was last heard this one does not ask for the lease."""

    lasts_s: float = 15.0
    renew_s: float = 4.0
    margin_s: float = 3.0
    rival_s: float = 12.0

    @staticmethod
    def of(lasts_s: float) -> LeaseTimes:
        """In the same proportions."""
        part = lasts_s / 15.0
        return LeaseTimes(lasts_s=lasts_s, renew_s=4.0 * part, margin_s=3.0 * part, rival_s=12.0 * part)


class LeaseKeeper:
    """id: of this controller, another with every start. Thread-safe: a step may take longer than the lease, so that another thread
    renews it meanwhile (`cluster.controller.serve`)."""

    def __init__(
        self, store: LeaseStore, id: str, monotonic_s: Callable[[], float], *, times: LeaseTimes | None = None, note: str = ""
    ) -> None:
        self._store, self.id, self._monotonic_s, self.times, self._note = store, id, monotonic_s, times or LeaseTimes(), note
        self._term, self._until_s, self._next_s = 0, 0.0, 0.0
        self._above, self._rival_until_s = 0, 0.0
        self._lock = threading.RLock()
        self.why = "it has not begun"

    @property
    def term(self) -> int:
        """Of the lease in hand, 0: there is none."""
        return self._term if self.holds() else 0

    def holds(self) -> bool:
        """Whether this controller may write, now."""
        return self._term > 0 and self._monotonic_s() < self._until_s

    def look(self) -> None:
        """Takes or renews it when it is time. Trouble with the store is told by `why`; what is in hand stays good until its time."""
        with self._lock:
            now_s = self._monotonic_s()
            if now_s < max(self._next_s, self._rival_until_s):
                return
            self._next_s = now_s + self.times.renew_s
            try:
                self._ask(now_s)
            except DriftboxError as error:
                self.why = f"the lease cannot be asked for: {error.message}"

    def begin(self) -> None:
        """The first look, at the door: a store that cannot be used is an error here, and so is a lease that another fleet holds: a
        stand-by with another authority would take over a fleet whose boxes it cannot reach."""
        with self._lock:
            found = self._ask(self._monotonic_s())
        theirs, ours = (note.partition(OF_FLEET)[2] for note in (found.note, self._note))
        if not found.mine and theirs and ours and theirs != ours:
            raise EnvironmentLacking(
                f"controller {found.holder} of another fleet holds the lease (its fleet {theirs}, ours {ours})", subject="lease",
                remedy="a stand-by needs a copy of its data folder, ca/ included; a fleet of its own another lease.name",
            )  # fmt: skip

    def _ask(self, now_s: float) -> Held:
        found = self._store.take(self.id, lasts_s=self.times.lasts_s, note=self._note, above=self._above)
        if not found.mine:
            where = f" at {found.note}" if found.note else ""
            self._term, self.why = 0, f"controller {found.holder} is in charge{where} (term {found.term})"
            return found
        self._term, self._until_s, self.why = found.term, now_s + self.times.lasts_s - self.times.margin_s, ""
        return found

    def heard(self, other: str, term: int, *, live: bool) -> None:
        """Another controller writes, or has written, by `term`. With a higher one it has taken over, whatever our store says: a lease of
        another store, or of this folder before it was put back from an old copy. live: it is there now; else only its term counts.
        Between two of the same term the one with the higher id goes on."""
        with self._lock:
            if other == self.id or (term, other) < (self._term, self.id):
                return
            self._above = max(self._above, term)
            if self._term or live:
                self.why = f"controller {other} writes by term {term}, ours is {self._term or 'none'}"
            self._term = 0
            if live:
                self._rival_until_s = self._monotonic_s() + self.times.rival_s

    def surpass(self, term: int) -> None:
        """A term this high was given out before, by a store that we do not have: ours must be higher, or nobody obeys."""
        with self._lock:
            if not self._term or term < self._term:
                return
            self._above, self._next_s = max(self._above, term), 0.0
            self._term, self.why = 0, f"a wish of term {term} was found: a higher term is needed"

    def give(self) -> None:
        """Lets go, so that a stand-by need not wait."""
        with self._lock:
            if self._term:
                with suppress(DriftboxError):
                    self._store.give(self.id, self._term)
            self._term, self.why, self._rival_until_s = 0, "it has ended", float("inf")
