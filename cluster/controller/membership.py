"""Which boxes are members: join codes, certificates, who was sent away. In `fleet.db`; thread-safe.

Joining and the event that tells the controller of it are one transaction. What is refused is refused with a UsageError whose code is
that of docs/fleet/controller.md.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from dataclasses import dataclass

from cluster.controller import codes, inbox
from cluster.controller.authority import Authority, Issued, Peer, key_digest
from cluster.controller.database import FleetDatabase
from cluster.controller.events import BoxForgotten, BoxJoined
from cluster.controller.round import iso_utc
from cluster.controller.services import Invitation, InviteRow, MemberRow
from configs.errors import UsageError
from edge.web.accounts.limits import SignInLimits
from edge.web.accounts.rules import TooSoon
from scheduler.fleet.types import checked

#: Tries with one code; wrong codes from one address slow down beside that (`SignInLimits`).
TRIES = 10
DAY_S = 86_400.0
MOST_DAYS = 30.0
#: The controller itself, as an addressee of parcels and by the name in its certificate; no box can be called so.
CONTROLLER = "fleet"
#: Certificates of a box that are good beside each other: the old one, while the new one is put in force.
_KEPT_OPEN = 2


@dataclass(frozen=True, kw_only=True)
class Joining:
    """What a box asks for. capacity_pct: percent of one GPU that it may be counted for."""

    code: str
    box: str
    site: str
    csr: str
    capacity_pct: float
    address: str = ""


class Membership:
    """Over the fleet's database and authority."""

    def __init__(self, db: FleetDatabase, authority: Authority) -> None:
        self._db, self.authority = db, authority
        self._limits, self._lock = SignInLimits(), threading.Lock()

    # --- codes --------------------------------------------------------------------------------------------------------

    def invite(self, *, by: str, box: str, days: float, now_utc_s: float, url: str) -> Invitation:
        """A new join code. UsageError for a box that cannot be called so, or a time out of range."""
        if not (math.isfinite(days) and 0 < days <= MOST_DAYS):
            raise UsageError(f"a join code is good for 0 to {MOST_DAYS:g} days, not {days:g}", subject="days")
        if box:
            _checked_box(box)
        secret = codes.new_secret()
        hashed = codes.digest(secret)
        expires_s = now_utc_s + days * DAY_S
        with self._db.transaction() as db:
            db.execute("DELETE FROM invites WHERE expires_utc < ?", (now_utc_s - MOST_DAYS * DAY_S,))
            values = (hashed[:8], hashed, now_utc_s, expires_s, TRIES, box, by)
            db.execute(
                "INSERT INTO invites (ref, code_hash, made_utc, expires_utc, tries_left, box, made_by) VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        code = codes.code_of(secret, self.authority.fingerprint)
        return Invitation(
            code=code, ref=hashed[:8], expires_utc_s=expires_s, command=f"driftbox fleet join {url} --code {code}"
        )

    def revoke_invite(self, ref: str) -> None:
        with self._db.transaction() as db:
            if db.execute("DELETE FROM invites WHERE ref = ? AND used_by = ''", (ref,)).rowcount == 0:
                raise UsageError(f"there is no open join code {ref[:20]}", subject=ref[:20], code="not_found")

    def invites(self) -> list[InviteRow]:
        """Newest first."""
        rows = self._db.rows("SELECT * FROM invites ORDER BY made_utc DESC, ref")
        return [
            InviteRow(
                ref=row["ref"], made_utc_s=row["made_utc"], expires_utc_s=row["expires_utc"], tries_left=row["tries_left"],
                box=row["box"], used_by=row["used_by"], by=row["made_by"],
            )
            for row in rows
        ]  # fmt: skip

    # --- joining ------------------------------------------------------------------------------------------------------

    def join(self, asked: Joining, *, now_utc_s: float) -> Issued:
        """Makes a box a member. The same box with the same key and code is answered again. UsageError: 'code_unknown', 'code_expired',
        'code_used', 'id_taken', 'csr', 'box'; TooSoon ('too_soon') after wrong codes."""
        account = "join"
        with self._lock:
            wait_s = self._limits.begin(account, asked.address, now_s=now_utc_s)
        if wait_s > 0:
            raise TooSoon(wait_s)
        try:
            issued = self._join(asked, now_utc_s)
        except UsageError as error:
            if not error.code.startswith("code_"):
                with self._lock:
                    self._limits.take_back(account, asked.address)
            raise
        with self._lock:
            self._limits.succeeded(account, asked.address)
        return issued

    def _join(self, asked: Joining, now_utc_s: float) -> Issued:
        _checked_box(asked.box)
        checked(asked.site, "a site")
        if not (math.isfinite(asked.capacity_pct) and asked.capacity_pct > 0):
            raise UsageError("capacity_pct must be above 0", subject="capacity_pct", code="box")
        key = key_digest(asked.csr)
        hashed = codes.digest(asked.code)
        with self._db.transaction() as db:
            invite = db.execute("SELECT * FROM invites WHERE code_hash = ?", (hashed,)).fetchone()
            again = invite is not None and (invite["used_by"], invite["used_key"]) == (asked.box, key)
            refusal = None if again else self._refusal(db, invite, asked, now_utc_s)
            if refusal is None:
                issued = self.authority.sign(asked.csr, asked.box, now_utc_s=now_utc_s)
                self._enter(db, asked, issued, now_utc_s)
                db.execute("UPDATE invites SET used_by = ?, used_key = ? WHERE code_hash = ?", (asked.box, key, hashed))
                if not again:
                    event = BoxJoined(box=asked.box, site=asked.site, at_utc_s=now_utc_s, capacity_pct=asked.capacity_pct)
                    inbox.put(db, event, at_utc_s=now_utc_s)
        # Outside: a refused try that cost the code one of its tries must stay written.
        if refusal is not None:
            raise refusal
        return issued

    def _refusal(
        self, db: sqlite3.Connection, invite: sqlite3.Row | None, asked: Joining, now_utc_s: float
    ) -> UsageError | None:
        remedy = "driftbox fleet boxes invite, at the controller, makes a new one"
        if invite is None:
            return UsageError("the controller does not know this join code", code="code_unknown", remedy=remedy)
        if invite["used_by"]:
            return UsageError(f"this join code was used by box {invite['used_by']}", code="code_used", remedy=remedy)
        if now_utc_s >= invite["expires_utc"] or invite["tries_left"] <= 0:
            return UsageError("the time or the tries of this join code are over", code="code_expired", remedy=remedy)
        db.execute("UPDATE invites SET tries_left = tries_left - 1 WHERE code_hash = ?", (invite["code_hash"],))
        if invite["box"] not in ("", asked.box):
            return UsageError(
                f"this join code is for box {invite['box']}", subject=asked.box, code="code_unknown", remedy=remedy
            )
        taken = db.execute("SELECT until_utc FROM members WHERE box = ?", (asked.box,)).fetchone()
        if taken is not None and self._good(db, asked.box, now_utc_s) and invite["box"] != asked.box:
            return UsageError(
                f"a box {asked.box} is a member already", subject=asked.box, code="id_taken",
                remedy=f"give this one another box.id; if it is the same box, make its code with --box {asked.box}",
            )  # fmt: skip
        return None

    def _good(self, db: sqlite3.Connection, box: str, now_utc_s: float) -> bool:
        sql = "SELECT 1 FROM certificates WHERE box = ? AND revoked = '' AND until_utc > ? LIMIT 1"
        return db.execute(sql, (box, now_utc_s)).fetchone() is not None

    def _enter(self, db: sqlite3.Connection, asked: Joining, issued: Issued, now_utc_s: float) -> None:
        values = (asked.box, asked.site, now_utc_s, asked.capacity_pct, issued.fingerprint, issued.until_utc_s, issued.pem)
        db.execute("UPDATE certificates SET revoked = 'it joined anew' WHERE box = ? AND revoked = ''", (asked.box,))
        db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        db.execute("INSERT INTO certificates VALUES (?, ?, ?, '')", (issued.fingerprint, asked.box, issued.until_utc_s))

    def renew(self, peer: Peer, csr: str, *, now_utc_s: float) -> Issued:
        """A new certificate for a member. Its old one stays good until its time, for the box may be killed before it has the new one."""
        issued = self.authority.sign(csr, peer.box, now_utc_s=now_utc_s)
        with self._db.transaction() as db:
            db.execute("DELETE FROM certificates WHERE until_utc < ?", (now_utc_s - 365 * DAY_S,))
            db.execute("INSERT INTO certificates VALUES (?, ?, ?, '')", (issued.fingerprint, peer.box, issued.until_utc_s))
            db.execute(
                "UPDATE members SET fingerprint = ?, until_utc = ?, certificate = ? WHERE box = ?",
                (issued.fingerprint, issued.until_utc_s, issued.pem, peer.box),
            )
            db.execute(
                "UPDATE certificates SET revoked = 'renewed' WHERE box = ?1 AND revoked = '' AND fingerprint NOT IN"
                " (SELECT fingerprint FROM certificates WHERE box = ?1 AND revoked = '' ORDER BY rowid DESC LIMIT ?2)",
                (peer.box, _KEPT_OPEN),
            )
        return issued

    # --- who is a member ----------------------------------------------------------------------------------------------

    def problem(self, peer: Peer, *, now_utc_s: float) -> UsageError | None:
        """Why a certificate of ours opens nothing, None: it does."""
        rows = self._db.rows("SELECT box, revoked FROM certificates WHERE fingerprint = ?", (peer.fingerprint,))
        anew = "let the box join again with a new code (driftbox fleet boxes invite)"
        if not rows or rows[0]["revoked"] or rows[0]["box"] != peer.box:
            why = rows[0]["revoked"] if rows else "it is not known here"
            return UsageError(
                f"the certificate of box {peer.box} is worth nothing any more: {why}", subject=peer.box,
                code="certificate_revoked", remedy=anew,
            )  # fmt: skip
        if now_utc_s >= peer.until_utc_s:
            return UsageError(
                f"the certificate of box {peer.box} expired at {iso_utc(peer.until_utc_s)}", subject=peer.box,
                code="certificate_expired", remedy=anew,
            )  # fmt: skip
        return None

    def revoke(self, box: str, reason: str) -> None:
        """UsageError 'not_found' for a box that is no member."""
        with self._db.transaction() as db:
            if db.execute("SELECT 1 FROM members WHERE box = ?", (box,)).fetchone() is None:
                raise _no_member(box)
            db.execute("UPDATE certificates SET revoked = ? WHERE box = ? AND revoked = ''", (reason or "it was revoked", box))

    def forget(self, box: str, reason: str, *, now_utc_s: float) -> None:
        """No member any more; the controller hears of it."""
        with self._db.transaction() as db:
            if db.execute("DELETE FROM members WHERE box = ?", (box,)).rowcount == 0:
                raise _no_member(box)
            db.execute("UPDATE certificates SET revoked = ? WHERE box = ? AND revoked = ''", (reason, box))
            inbox.put(db, BoxForgotten(box=box, at_utc_s=now_utc_s), at_utc_s=now_utc_s)

    def members(self) -> list[MemberRow]:
        rows = self._db.rows(
            "SELECT m.*, c.revoked FROM members m LEFT JOIN certificates c ON c.fingerprint = m.fingerprint ORDER BY m.box"
        )
        return [
            MemberRow(
                box=row["box"], site=row["site"], joined_utc_s=row["joined_utc"], until_utc_s=row["until_utc"],
                fingerprint=row["fingerprint"], revoked=row["revoked"] or "",
            )
            for row in rows
        ]  # fmt: skip

    def certificate_of(self, box: str) -> str:
        """PEM. UsageError 'not_found'."""
        rows = self._db.rows("SELECT certificate FROM members WHERE box = ?", (box,))
        if not rows:
            raise _no_member(box)
        return str(rows[0]["certificate"])

    def site_of(self, box: str) -> str:
        rows = self._db.rows("SELECT site FROM members WHERE box = ?", (box,))
        if not rows:
            raise _no_member(box)
        return str(rows[0]["site"])

    def revoked(self) -> list[str]:
        """Fingerprints of certificates that would be good by their time."""
        return [str(row[0]) for row in self._db.rows("SELECT fingerprint FROM certificates WHERE revoked <> '' ORDER BY 1")]


def _checked_box(box: str) -> None:
    try:
        checked(box, "a box")
    except ValueError as error:
        raise UsageError(str(error), subject="box", code="box") from None
    if box == CONTROLLER:
        raise UsageError(f"no box can be called {CONTROLLER}: that is the controller", subject=box, code="box")


def _no_member(box: str) -> UsageError:
    return UsageError(f"box {box[:80]} is no member of this fleet", subject=box[:80], code="not_found")
