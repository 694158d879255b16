"""Who may use the box over HTTP, in SQLite: users, sessions, API tokens, the claim, the audit log.

Of everything that opens a door only a hash is kept. What takes something away (a password, a session, a role) is on disk when it
returns. Raises StorageError from every method.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from configs.errors import UsageError, redact
from edge.store.store import Store
from edge.web.who import Role

#: The audit log keeps so many entries of people and programs that were let in, and so many of those who were not.
AUDIT_KNOWN, AUDIT_UNKNOWN = 50_000, 5_000
_PRUNE_EVERY = 200
#: Sessions of one account; the oldest end when it signs in once more.
MOST_SESSIONS = 50


@dataclass(frozen=True, kw_only=True)
class User:
    name: str
    role: Role
    created_utc: float
    signed_in_utc: float | None


@dataclass(frozen=True, kw_only=True)
class Session:
    """ref: names it in lists; it opens nothing."""

    ref: str
    user: str
    role: Role
    created_utc: float
    seen_utc: float
    address: str
    agent: str


@dataclass(frozen=True, kw_only=True)
class ApiToken:
    """role: the lesser of its own and its owner's; areas: parts of the interface it is held to, cameras: ids of those it is held to,
    empty: none; owner: who made it, None: on the box's command line."""

    id: str
    name: str
    role: Role
    areas: tuple[str, ...]
    owner: str | None
    created_utc: float
    expires_utc: float | None
    used_utc: float | None
    cameras: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    id: int
    at_utc: float
    who: str
    address: str
    action: str
    outcome: str
    detail: str


class AccountStore:
    """The tables of migration m007_accounts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._added = 0

    # --- users --------------------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        return [_user(row) for row in self._store.rows("SELECT * FROM users ORDER BY name")]

    def user(self, name: str) -> User:
        """Raises UsageError 'not_found'."""
        rows = self._store.rows("SELECT * FROM users WHERE name = ?", (name,))
        if not rows:
            raise _no_user(name)
        return _user(rows[0])

    def password_hash(self, name: str) -> str | None:
        rows = self._store.rows("SELECT password_hash FROM users WHERE name = ?", (name,))
        return str(rows[0]["password_hash"]) if rows else None

    def add_user(self, name: str, role: Role, password_hash: str, *, at_utc: float) -> None:
        """Raises UsageError 'taken'."""
        with self._store.transaction(durable=True) as db:
            _insert_user(db, name, role, password_hash, at_utc)

    def set_role(self, name: str, role: Role) -> None:
        """Raises UsageError: 'not_found', 'last_admin'."""
        with self._store.transaction(durable=True) as db:
            if role < Role.ADMIN:
                _keep_an_admin(db, name)
            _changed(db.execute("UPDATE users SET role = ? WHERE name = ?", (role.word, name)), name)

    def set_password(self, name: str, password_hash: str, *, keep_session: str = "") -> None:
        """All sessions of the account end, but the one of this hash. Raises UsageError 'not_found'."""
        with self._store.transaction(durable=True) as db:
            _changed(db.execute("UPDATE users SET password_hash = ? WHERE name = ?", (password_hash, name)), name)
            db.execute("DELETE FROM sessions WHERE user = ? AND id_hash <> ?", (name, keep_session))

    def renew_hash(self, name: str, old: str, new: str) -> None:
        """The same password under newer parameters, unless it was changed meanwhile."""
        with self._store.transaction() as db:
            db.execute("UPDATE users SET password_hash = ? WHERE name = ? AND password_hash = ?", (new, name, old))

    def remove_user(self, name: str) -> None:
        """With its sessions and tokens. Raises UsageError: 'not_found', 'last_admin'."""
        with self._store.transaction(durable=True) as db:
            _keep_an_admin(db, name)
            _changed(db.execute("DELETE FROM users WHERE name = ?", (name,)), name)

    # --- claim --------------------------------------------------------------------------------------------------------

    def claimed(self) -> bool:
        """Whether somebody has an account."""
        return bool(self._store.rows("SELECT 1 FROM users LIMIT 1"))

    def has_code(self) -> bool:
        """Whether a claim code was made that nobody has used."""
        return bool(self._store.rows("SELECT 1 FROM claim WHERE used_utc IS NULL"))

    def set_code(self, code_hash: str, *, at_utc: float) -> bool:
        """A new claim code instead of any before; False: the box is claimed."""
        with self._store.transaction(durable=True) as db:
            if db.execute("SELECT 1 FROM users LIMIT 1").fetchone():
                return False
            db.execute(
                "INSERT OR REPLACE INTO claim (id, code_hash, made_utc, used_utc) VALUES (1, ?, ?, NULL)", (code_hash, at_utc)
            )
            return True

    def code_hash(self) -> str | None:
        """Of the code that may still be used."""
        rows = self._store.rows("SELECT code_hash FROM claim WHERE used_utc IS NULL")
        return str(rows[0]["code_hash"]) if rows else None

    def claim(self, code_hash: str, name: str, password_hash: str, *, at_utc: float) -> bool:
        """Makes the first admin and uses the code up, both or neither; False: somebody was quicker, or the code is another by now."""
        with self._store.transaction(durable=True) as db:
            if db.execute("SELECT 1 FROM users LIMIT 1").fetchone():
                return False
            used = db.execute("UPDATE claim SET used_utc = ? WHERE code_hash = ? AND used_utc IS NULL", (at_utc, code_hash))
            if used.rowcount != 1:
                return False
            _insert_user(db, name, Role.ADMIN, password_hash, at_utc)
            return True

    # --- sessions -----------------------------------------------------------------------------------------------------

    def add_session(self, id_hash: str, ref: str, user: str, *, at_utc: float, address: str, agent: str) -> None:
        """Raises UsageError 'not_found' when the account was removed meanwhile."""
        with self._store.transaction(durable=True) as db:
            _changed(db.execute("UPDATE users SET signed_in_utc = ? WHERE name = ?", (at_utc, user)), user)
            db.execute(
                "INSERT INTO sessions (id_hash, ref, user, created_utc, seen_utc, address, agent) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (id_hash, ref, user, at_utc, at_utc, address, agent),
            )
            db.execute(
                "DELETE FROM sessions WHERE user = ?1 AND id_hash NOT IN"
                " (SELECT id_hash FROM sessions WHERE user = ?1 ORDER BY seen_utc DESC, rowid DESC LIMIT ?2)",
                (user, MOST_SESSIONS),
            )

    def session(self, id_hash: str) -> Session | None:
        rows = self._store.rows(f"{_SESSIONS} WHERE s.id_hash = ?", (id_hash,))
        return _session(rows[0]) if rows else None

    def sessions(self, user: str | None = None) -> list[Session]:
        """Newest first; of everybody, or of one account."""
        rows = self._store.rows(f"{_SESSIONS} WHERE ?1 IS NULL OR s.user = ?1 ORDER BY s.seen_utc DESC", (user,))
        return [_session(row) for row in rows]

    def touch_session(self, id_hash: str, at_utc: float) -> None:
        with self._store.transaction() as db:
            db.execute("UPDATE sessions SET seen_utc = ? WHERE id_hash = ?", (at_utc, id_hash))

    def end_session(self, id_hash: str) -> None:
        with self._store.transaction(durable=True) as db:
            db.execute("DELETE FROM sessions WHERE id_hash = ?", (id_hash,))

    def end_session_ref(self, ref: str, *, of: str | None) -> bool:
        """of: only when it is this account's. Whether there was one."""
        with self._store.transaction(durable=True) as db:
            return db.execute("DELETE FROM sessions WHERE ref = ?1 AND (?2 IS NULL OR user = ?2)", (ref, of)).rowcount > 0

    def end_sessions_before(self, *, created_utc: float, seen_utc: float) -> int:
        """Removes sessions that are that old or older; how many."""
        with self._store.transaction() as db:
            return db.execute("DELETE FROM sessions WHERE created_utc <= ? OR seen_utc <= ?", (created_utc, seen_utc)).rowcount

    # --- tokens -------------------------------------------------------------------------------------------------------

    def add_token(
        self, id: str, secret_hash: str, *, name: str, role: Role, areas: tuple[str, ...], owner: str | None, at_utc: float,
        expires_utc: float | None, cameras: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Raises UsageError 'taken' when the owner has a token of this name."""
        values = (
            id, name, secret_hash, role.word, json.dumps(list(areas)), owner, at_utc, expires_utc, json.dumps(list(cameras)),
        )  # fmt: skip
        with self._store.transaction(durable=True) as db:
            if db.execute("SELECT 1 FROM tokens WHERE name = ? AND owner IS ?", (name, owner)).fetchone():
                raise UsageError(
                    f"there is a token called {name}", subject=name, code="taken", remedy="choose another name, or revoke it"
                )
            db.execute(
                "INSERT INTO tokens (id, name, secret_hash, role, areas, owner, created_utc, expires_utc, cameras)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )

    def token(self, id: str) -> tuple[ApiToken, str] | None:
        """(token, hash of its secret)."""
        rows = self._store.rows(f"{_TOKENS} WHERE t.id = ?", (id,))
        return (_token(rows[0]), str(rows[0]["secret_hash"])) if rows else None

    def tokens(self, owner: str | None = None) -> list[ApiToken]:
        """Newest first; all, or those of one account."""
        rows = self._store.rows(
            f"{_TOKENS} WHERE ?1 IS NULL OR t.owner = ?1 ORDER BY t.created_utc DESC, t.rowid DESC", (owner,)
        )
        return [_token(row) for row in rows]

    def touch_token(self, id: str, at_utc: float) -> None:
        with self._store.transaction() as db:
            db.execute("UPDATE tokens SET used_utc = ? WHERE id = ?", (at_utc, id))

    def revoke_token(self, id: str, *, of: str | None) -> bool:
        """of: only when it is this account's. Whether there was one."""
        with self._store.transaction(durable=True) as db:
            return db.execute("DELETE FROM tokens WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)", (id, of)).rowcount > 0

    # --- audit log ----------------------------------------------------------------------------------------------------

    def add_audit(
        self, *, at_utc: float, who: str, address: str, action: str, outcome: str, detail: str = "", known: bool = True
    ) -> None:
        """Redacted here. known: somebody who was let in; the others cannot push these out."""
        values = (at_utc, who, address, redact(action)[:300], outcome, redact(detail)[:500], int(known))
        with self._store.transaction() as db:
            db.execute(
                "INSERT INTO audit (at_utc, who, address, action, outcome, detail, known) VALUES (?, ?, ?, ?, ?, ?, ?)", values
            )
            self._added += 1
            if self._added % _PRUNE_EVERY == 0:
                _prune_audit(db)

    def audit(self, *, limit: int = 100, before: int | None = None, who: str | None = None) -> list[AuditEntry]:
        """Newest first. before: only entries with a smaller id."""
        rows = self._store.rows(
            "SELECT id, at_utc, who, address, action, outcome, detail FROM audit"
            " WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR who = ?2) ORDER BY id DESC LIMIT ?3",
            (before, who, limit),
        )
        return [AuditEntry(**dict(row)) for row in rows]


_SESSIONS = "SELECT s.ref, s.user, s.created_utc, s.seen_utc, s.address, s.agent, u.role FROM sessions s JOIN users u ON u.name = s.user"
_TOKENS = "SELECT t.*, u.role AS owner_role FROM tokens t LEFT JOIN users u ON u.name = t.owner"


def role_named(word: str) -> Role:
    """Raises UsageError."""
    try:
        return Role[word.upper()]
    except KeyError:
        known = ", ".join(role.word for role in Role)
        raise UsageError(f"there is no role {word[:40]!r}", subject="role", code="role", remedy=f"roles: {known}") from None


def _insert_user(db: sqlite3.Connection, name: str, role: Role, password_hash: str, at_utc: float) -> None:
    if db.execute("SELECT 1 FROM users WHERE name = ?", (name,)).fetchone():
        raise UsageError(f"there is an account {name} already", subject=name, code="taken", remedy="choose another name")
    db.execute(
        "INSERT INTO users (name, role, password_hash, created_utc) VALUES (?, ?, ?, ?)",
        (name, role.word, password_hash, at_utc),
    )


def _keep_an_admin(db: sqlite3.Connection, name: str) -> None:
    """Raises UsageError when the box would have no admin without this account."""
    role = db.execute("SELECT role FROM users WHERE name = ?", (name,)).fetchone()
    others = db.execute("SELECT 1 FROM users WHERE role = ? AND name <> ? LIMIT 1", (Role.ADMIN.word, name)).fetchone()
    if role is not None and role["role"] == Role.ADMIN.word and others is None:
        raise UsageError(
            f"{name} is the only admin", subject=name, code="last_admin", remedy="make another account an admin first"
        )


def _changed(done: sqlite3.Cursor, name: str) -> None:
    if done.rowcount != 1:
        raise _no_user(name)


def _no_user(name: str) -> UsageError:
    return UsageError(f"there is no account {name}", subject=name, code="not_found", remedy="driftbox accounts list")


def _prune_audit(db: sqlite3.Connection) -> None:
    for known, keep in ((1, AUDIT_KNOWN), (0, AUDIT_UNKNOWN)):
        db.execute(
            "DELETE FROM audit WHERE known = ?1 AND id <= (SELECT id FROM audit WHERE known = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
            (known, keep),
        )


def _user(row: sqlite3.Row) -> User:
    return User(
        name=row["name"], role=role_named(row["role"]), created_utc=row["created_utc"], signed_in_utc=row["signed_in_utc"]
    )


def _session(row: sqlite3.Row) -> Session:
    return Session(**(dict(row) | {"role": role_named(row["role"])}))


def _token(row: sqlite3.Row) -> ApiToken:
    role = role_named(row["role"])
    return ApiToken(
        id=row["id"], name=row["name"], role=min(role, role_named(row["owner_role"])) if row["owner_role"] else role,
        areas=tuple(json.loads(row["areas"])), owner=row["owner"], created_utc=row["created_utc"], expires_utc=row["expires_utc"],
        used_utc=row["used_utc"], cameras=tuple(json.loads(row["cameras"])),
    )  # fmt: skip
