"""`Accounts`: the claim, signing in, and who asks. Thread-safe; called from the web server's worker threads and from the command line.

What it refuses, it refuses with a UsageError whose code says why: 'wrong' (name, password or claim code), 'too_soon', 'taken',
'not_found', 'last_admin', 'password', 'name', 'claimed'. No error and no entry of the audit log holds what was typed.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from configs.errors import DriftboxError, StorageError, UsageError
from configs.units import is_camera_id
from edge.clock import Clock
from edge.store.accounts import AccountStore, ApiToken, AuditEntry, Session, User
from edge.web.accounts import rules
from edge.web.accounts.limits import SignInLimits
from edge.web.accounts.rules import SessionRules, Token, TooSoon, digest, same
from edge.web.who import Role, Who

log = logging.getLogger("driftbox")

#: RFC 9106's choice for machines with little memory, on one core: the box's cameras need the other.
PASSWORDS = PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=1)
#: A session or token that was found in the database is believed for so long; `driftbox accounts` beside a running box takes effect then.
BELIEVED_S = 2.0
_MOST_BELIEVED = 1000
#: When it was used last is written this often.
TOUCH_S = 60.0
#: Passwords that wait to be looked at beside the one that is; more are turned away.
MOST_WAITING = 4
#: Counted as an account by the limits; no account can be called so.
_CLAIM = "(claim)"
#: Failures of the same kind from the same address are told once in so many seconds: a loop fills no audit log.
QUIET_S = 60.0

Kind = Literal["session", "token", "local"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Who asks, and by what. ref: of the session or the token; user: the account behind it, None: a token of the command line, or the
    box's own; areas: parts of the interface it is held to, empty: none; ends_utc: when it stops to be good, None: not by itself."""

    who: Who
    kind: Kind
    ref: str
    user: str | None
    areas: tuple[str, ...] = ()
    ends_utc: float | None = None


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """session_id: goes into the cookie and nowhere else."""

    session_id: str
    asking: Asking

    def __repr__(self) -> str:
        return f"SignedIn({self.asking.who.name})"


class Accounts:
    """The accounts of one data folder. local: the token of the running box for commands on its own machine, None: there is none."""

    def __init__(
        self, store: AccountStore, clock: Clock, *, hasher: PasswordHasher = PASSWORDS, limits: SignInLimits | None = None,
        sessions: SessionRules | None = None, local: Token | None = None,
    ) -> None:  # fmt: skip
        self._store, self._clock, self._hasher = store, clock, hasher
        self._limits, self._limits_lock = limits or SignInLimits(), threading.Lock()
        self.session_rules = sessions or SessionRules()
        self._local_hash = digest(local.secret) if local is not None else None
        self._waiting, self._hashing = threading.BoundedSemaphore(1 + MOST_WAITING), threading.Lock()
        self._nobody = hasher.hash(
            secrets.token_urlsafe(16)
        )  # verified against where there is no account: as slow as if there were
        self._believed: OrderedDict[str, tuple[float, Asking | None]] = OrderedDict()
        self._unstored: OrderedDict[str, Session] = OrderedDict()  # sessions of a box whose disk is full
        self._told: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._lock = threading.Lock()

    # --- claim --------------------------------------------------------------------------------------------------------

    def claimed(self) -> bool:
        return self._store.claimed()

    def first_code(self) -> str | None:
        """A claim code for a box that nobody has claimed and that has shown none yet; None otherwise."""
        return None if self.claimed() or self._store.has_code() else self.new_code()

    def new_code(self) -> str:
        """A new claim code; the one before is void. Raises UsageError 'claimed'."""
        code = rules.new_claim_code()
        if not self._store.set_code(digest(rules.claim_code_of(code)), at_utc=self._clock.utc_s()):
            raise _claimed()
        return code

    def claim(self, code: str, name: str, password: str, *, address: str, agent: str = "") -> SignedIn:
        """Makes the first admin and signs it in. The code is used up."""
        if self.claimed():
            raise _claimed()
        user = rules.account_name(name)
        rules.check_new_password(password, user)
        with self._tried(_CLAIM, address, "claim"):
            given, wanted = digest(rules.claim_code_of(code)), self._store.code_hash()
            if wanted is None or not same(given, wanted):
                raise UsageError(
                    "this is not the box's claim code", code="wrong",
                    remedy="it is printed at the first start; `driftbox accounts claim-code` on the box makes a new one",
                )  # fmt: skip
        if not self._store.claim(given, user, self._hash(password), at_utc=self._clock.utc_s()):
            raise _claimed()
        self.audit(user, address, "claim", "ok")
        return self._new_session(user, address, agent)

    # --- signing in ---------------------------------------------------------------------------------------------------

    def sign_in(self, name: str, password: str, *, address: str, agent: str = "") -> SignedIn:
        """A new session. Raises UsageError 'wrong' or TooSoon; which of name and password is wrong is not told."""
        user = name.strip().lower()[: rules.MOST_PASSWORD]
        with self._tried(user, address, "sign-in"):
            self._verify(user, password)
        self.audit(user, address, "sign-in", "ok")
        return self._new_session(user, address, agent)

    def sign_out(self, session_id: str, *, address: str) -> None:
        asking = self.by_session(session_id)
        self._store.end_session(digest(session_id))
        self._forget(lambda session: asking is not None and session.ref == asking.ref)
        if asking is not None:
            self.audit(asking.who.name, address, "sign-out", "ok")

    def change_own_password(self, name: str, old: str, new: str, *, session_id: str, address: str) -> None:
        """All other sessions of the account end. Raises UsageError 'wrong', 'password', TooSoon."""
        rules.check_new_password(new, name)
        with self._tried(name, address, "password"):
            self._verify(name, old)
        self._store.set_password(name, self._hash(new), keep_session=digest(session_id))
        self._forget(lambda session: session.user == name)
        self.audit(name, address, "password", "ok", "changed the own password")

    def end_session(self, asking: Asking, ref: str, *, address: str) -> None:
        """Of the own account; an admin those of all. Raises UsageError 'not_found'."""
        ended = self._store.end_session_ref(ref, of=_own_only(asking))
        if not ended and ref not in {session.ref for session in self.sessions(asking)}:
            raise UsageError("there is no such session", code="not_found")
        self._forget(lambda session: session.ref == ref)
        self.audit(asking.who.name, address, "session.end", "ok", f"session {ref}")

    def sessions(self, asking: Asking) -> list[Session]:
        """Those of the own account; an admin sees all."""
        now_utc, own = self._clock.utc_s(), _own_only(asking)
        with self._lock:
            unstored = [s for s in self._unstored.values() if own in (None, s.user)]
        return [s for s in (*unstored, *self._store.sessions(own)) if self._alive(s, now_utc)]

    # --- who asks -----------------------------------------------------------------------------------------------------

    def believed(self, secret: str) -> Asking | None:
        """Who was found by this cookie or token a moment ago; asks no database. None: it is not known."""
        with self._lock:
            found = self._believed.get(digest(secret))
        return found[1] if found is not None and self._clock.monotonic_s() < found[0] else None

    def by_session(self, session_id: str) -> Asking | None:
        """None: no such session, or its time is over."""
        key, now_utc = digest(session_id), self._clock.utc_s()
        session = self._store.session(key) or self._unstored_session(key)
        if session is None or not self._alive(session, now_utc):
            return None
        if now_utc - session.seen_utc >= TOUCH_S:
            with suppress(StorageError):  # a full disk signs nobody out
                self._store.touch_session(key, now_utc)
        ends_utc = self.session_rules.ends_utc(created_utc=session.created_utc, seen_utc=now_utc)
        who = Who(name=session.user, role=session.role)
        return self._believe(session_id, Asking(who=who, kind="session", ref=session.ref, user=session.user, ends_utc=ends_utc))

    def by_token(self, text: str) -> Asking | None:
        """None: forged, revoked or expired."""
        token = rules.parse_token(text)
        if token is None:
            return None
        if token.id == rules.LOCAL_TOKEN:
            right = self._local_hash is not None and same(digest(token.secret), self._local_hash)
            return Asking(who=Who(name="local", role=Role.ADMIN), kind="local", ref="local", user=None) if right else None
        found = self._store.token(token.id)
        now_utc = self._clock.utc_s()
        if found is None or not same(digest(token.secret), found[1]):
            return None
        kept = found[0]
        if kept.expires_utc is not None and now_utc >= kept.expires_utc:
            return None
        if kept.used_utc is None or now_utc - kept.used_utc >= TOUCH_S:
            with suppress(StorageError):
                self._store.touch_token(kept.id, now_utc)
        who = Who(name=f"{kept.owner or 'box'}/{kept.name}", role=kept.role, cameras=frozenset(kept.cameras) or None)
        asking = Asking(
            who=who, kind="token", ref=kept.id, user=kept.owner, areas=kept.areas, ends_utc=kept.expires_utc
        )  # fmt: skip
        return self._believe(text, asking)

    def tidy(self) -> int:
        """Removes sessions whose time is over; how many."""
        now_utc, r = self._clock.utc_s(), self.session_rules
        return self._store.end_sessions_before(created_utc=now_utc - r.most_s, seen_utc=now_utc - r.idle_s)

    # --- users --------------------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        return self._store.users()

    def user(self, name: str) -> User:
        return self._store.user(name)

    def add_user(self, name: str, role: Role, password: str, *, by: str, address: str) -> User:
        """Raises UsageError 'name', 'password', 'taken'."""
        user = rules.account_name(name)
        rules.check_new_password(password, user)
        self._store.add_user(user, role, self._hash(password), at_utc=self._clock.utc_s())
        self.audit(by, address, "user.add", "ok", f"{user} as {role.word}")
        return self._store.user(user)

    def set_role(self, name: str, role: Role, *, by: str, address: str) -> User:
        """In force at once, also for open sessions and tokens. Raises UsageError 'not_found', 'last_admin'."""
        self._store.set_role(name, role)
        self._forget()
        self.audit(by, address, "user.role", "ok", f"{name} is {role.word}")
        return self._store.user(name)

    def set_password(self, name: str, password: str, *, by: str, address: str) -> None:
        """All sessions of the account end. Raises UsageError 'not_found', 'password'."""
        self._store.user(name)
        rules.check_new_password(password, name)
        self._store.set_password(name, self._hash(password))
        self._forget(lambda session: session.user == name)
        self.audit(by, address, "user.password", "ok", name)

    def remove_user(self, name: str, *, by: str, address: str) -> None:
        """With its sessions and tokens. Raises UsageError 'not_found', 'last_admin'."""
        self._store.remove_user(name)
        self._forget(lambda session: session.user == name)
        self.audit(by, address, "user.remove", "ok", name)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def add_token(
        self, name: str, role: Role, *, owner: str | None, by: str, address: str, areas: Iterable[str] = (),
        cameras: Iterable[str] = (), lives_s: float | None = None,
    ) -> tuple[Token, ApiToken]:  # fmt: skip
        """The token, which is shown once, and what is kept of it. Raises UsageError 'name', 'taken', 'role'."""
        called, now_utc, token = rules.account_name(name), self._clock.utc_s(), rules.new_token()
        held_to = tuple(sorted(set(areas)))
        wrong = next((area for area in held_to if rules.AREA.fullmatch(area) is None), None)
        if wrong is not None:
            raise UsageError(f"{wrong[:40]!r} is no part of the interface", code="name", remedy="e.g. status, events, metrics")
        seen = _cameras_of(cameras, role)
        self._store.add_token(
            token.id, digest(token.secret), name=called, role=role, areas=held_to, cameras=seen, owner=owner, at_utc=now_utc,
            expires_utc=None if lives_s is None else now_utc + lives_s,
        )  # fmt: skip
        told = ", ".join([*held_to, *(f"camera {camera}" for camera in seen)]) or "nothing"
        self.audit(by, address, "token.add", "ok", f"{called} ({token.id}) as {role.word}, held to {told}")
        found = self._store.token(token.id)
        assert found is not None
        return token, found[0]

    def tokens(self, owner: str | None = None) -> list[ApiToken]:
        """All, or those of one account."""
        return self._store.tokens(owner)

    def revoke_token(self, id: str, *, of: str | None, by: str, address: str) -> None:
        """of: only one of this account. In force at once. Raises UsageError 'not_found'."""
        if not self._store.revoke_token(id, of=of):
            raise UsageError("there is no such token", subject=id, code="not_found")
        self._forget()
        self.audit(by, address, "token.revoke", "ok", id)

    # --- audit log ----------------------------------------------------------------------------------------------------

    def audit(self, who: str, address: str, action: str, outcome: str, detail: str = "", *, known: bool = True) -> None:
        """Notes who did what; a disk that is full is told in the log and stops nobody."""
        if not known and self._told_lately((address, who, action, outcome)):
            return
        try:
            self._store.add_audit(
                at_utc=self._clock.utc_s(), who=who, address=address, action=action, outcome=outcome, detail=detail, known=known
            )
        except StorageError as error:
            log.warning("the audit log misses %s by %s: %s", action, who, error.message)

    def audit_log(self, *, limit: int = 100, before: int | None = None, who: str | None = None) -> list[AuditEntry]:
        """Newest first. before: only entries with a smaller id."""
        return self._store.audit(limit=limit, before=before, who=who)

    # --- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _tried(self, user: str, address: str, action: str) -> Iterator[None]:
        """Around what looks at a password or code: counts the try as wrong until the body has ended well."""
        with self._limits_lock:
            wait_s = self._limits.begin(user, address, now_s=self._clock.monotonic_s())
        if wait_s > 0:
            self._refused(user, address, action, "too soon")
            raise TooSoon(wait_s)
        try:
            yield
        except DriftboxError as error:
            if error.code == "wrong":
                self._refused(user, address, action, "wrong")
            else:  # nothing was looked at
                with self._limits_lock:
                    self._limits.take_back(user, address)
            raise
        with self._limits_lock:
            self._limits.succeeded(user, address)

    def _refused(self, user: str, address: str, action: str, outcome: str) -> None:
        # People type their password where the name belongs: only names of accounts are written down.
        known = user == _CLAIM or self._store.password_hash(user) is not None
        self.audit(user if known else "(no such account)", address, action, outcome, known=False)

    def _verify(self, user: str, password: str) -> None:
        kept = self._store.password_hash(user)
        plain = rules.password_of(password)[: rules.MOST_PASSWORD + 1]
        right = self._right(kept or self._nobody, plain)
        if kept is None or not right:
            raise UsageError("name or password is wrong", code="wrong", remedy="check both")
        if self._hasher.check_needs_rehash(kept):
            with suppress(StorageError):
                self._store.renew_hash(user, kept, self._hash(password))

    def _right(self, kept: str, plain: str) -> bool:
        try:
            return self._one_at_a_time(lambda: self._hasher.verify(kept, plain.encode("utf-8", "surrogatepass")))
        except (VerificationError, InvalidHashError):
            return False

    def _hash(self, password: str) -> str:
        return self._one_at_a_time(lambda: self._hasher.hash(rules.password_of(password).encode("utf-8", "surrogatepass")))

    def _one_at_a_time(self, work: Callable[[], T]) -> T:
        """Each takes 64 MiB and a tenth of a second of a core that cameras need."""
        if not self._waiting.acquire(blocking=False):
            raise TooSoon(1.0)
        try:
            with self._hashing:
                return work()
        finally:
            self._waiting.release()

    def _new_session(self, user: str, address: str, agent: str) -> SignedIn:
        session_id, ref, now_utc = rules.new_session_id(), secrets.token_hex(6), self._clock.utc_s()
        key, told = digest(session_id), agent[:200]
        try:
            self.tidy()
            self._store.add_session(key, ref, user, at_utc=now_utc, address=address, agent=told)
        except StorageError as error:
            # Whoever comes to make room must be let in; this session ends with the process.
            log.warning("a session of %s is kept in memory only: %s", user, error.message)
            role = self._store.user(user).role
            with self._lock:
                self._unstored[key] = Session(
                    ref=ref, user=user, role=role, created_utc=now_utc, seen_utc=now_utc, address=address, agent=told
                )
                while len(self._unstored) > _MOST_BELIEVED:
                    self._unstored.popitem(last=False)
        asking = self.by_session(session_id)
        if asking is None:
            raise UsageError("the account was removed", code="wrong")
        return SignedIn(session_id=session_id, asking=asking)

    def _alive(self, session: Session, now_utc: float) -> bool:
        return self.session_rules.alive(created_utc=session.created_utc, seen_utc=session.seen_utc, now_utc=now_utc)

    def _believe(self, secret: str, asking: Asking) -> Asking:
        with self._lock:
            self._believed[digest(secret)] = (self._clock.monotonic_s() + BELIEVED_S, asking)
            while len(self._believed) > _MOST_BELIEVED:
                self._believed.popitem(last=False)
        return asking

    def _unstored_session(self, key: str) -> Session | None:
        """One that a full disk kept in memory, in the account's role of now."""
        with self._lock:
            session = self._unstored.get(key)
        if session is None or self._store.password_hash(session.user) is None:
            return None
        return replace(session, role=self._store.user(session.user).role)

    def _forget(self, ended: Callable[[Session], bool] = lambda _: False) -> None:
        """After whatever takes something away: it is gone with the next request. ended: which of the sessions in memory went with it."""
        with self._lock:
            self._believed.clear()
            for key in [key for key, session in self._unstored.items() if ended(session)]:
                del self._unstored[key]

    def _told_lately(self, key: tuple[str, ...]) -> bool:
        now_s = self._clock.monotonic_s()
        with self._lock:
            told_s = self._told.get(key)
            if told_s is not None and now_s - told_s < QUIET_S:
                return True
            self._told[key] = now_s
            self._told.move_to_end(key)
            while len(self._told) > _MOST_BELIEVED:
                self._told.popitem(last=False)
        return False


def _cameras_of(cameras: Iterable[str], role: Role) -> tuple[str, ...]:
    """Ids that a token of that role is to be held to; none means none. Cameras need not be there yet. Raises UsageError."""
    found = tuple(sorted(set(cameras)))
    wrong = next((camera for camera in found if not is_camera_id(camera)), None)
    if wrong is not None or len(found) > rules.MOST_CAMERAS:
        what = f"{wrong[:40]!r} is no camera id" if wrong is not None else f"more than {rules.MOST_CAMERAS} cameras"
        raise UsageError(what, code="name", remedy="driftbox cameras list tells the ids")
    if found and role >= Role.ADMIN:
        raise UsageError(
            "a token that is held to cameras is an operator at most", code="role",
            remedy="an admin's work is about the whole box; choose viewer or operator",
        )  # fmt: skip
    return found


def _own_only(asking: Asking) -> str | None:
    return None if asking.who.role >= Role.ADMIN else asking.who.name if asking.user is None else asking.user


def _claimed() -> UsageError:
    return UsageError("this box has an account already", code="claimed", remedy="sign in; an admin makes further accounts")
