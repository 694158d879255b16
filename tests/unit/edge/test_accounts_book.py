"""`Accounts` and its tables: hashes renewed, one password at a time, races, bounds of what is kept, nothing that opens a door."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError, UsageError
from edge.store import accounts as tables
from edge.store.accounts import AccountStore, role_named
from edge.store.store import Store
from edge.web.accounts import book
from edge.web.accounts.book import PASSWORDS, Accounts
from edge.web.accounts.limits import SignInLimits
from edge.web.accounts.rules import TooSoon, digest
from edge.web.who import Role
from tests.support.accounts import PASSWORD, House, StandingClock


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    yield built
    built.close()


# --- passwords --------------------------------------------------------------------------------------------------------


def test_the_real_hash_is_argon2id_with_64_mib(tmp_path: Path) -> None:
    with Store(tmp_path / "db") as store:
        kept = AccountStore(store)
        accounts = Accounts(kept, StandingClock())
        accounts.add_user("kim", Role.ADMIN, PASSWORD, by="test", address="")
        text = kept.password_hash("kim")
        assert text is not None
        assert text.startswith("$argon2id$v=19$m=65536,t=3,p=1$")
        accounts.sign_in("kim", PASSWORD, address="x")
        assert kept.password_hash("kim") == text, "as it should be already"
        with pytest.raises(UsageError, match="wrong"):
            accounts.sign_in("kim", PASSWORD + ".", address="x")
    assert PASSWORDS.memory_cost == 65536


def test_a_hash_of_weaker_parameters_is_renewed_at_the_next_sign_in(house: House) -> None:
    before = house.kept.password_hash("admin")
    stronger = Accounts(house.kept, house.clock, hasher=PasswordHasher(time_cost=2, memory_cost=16, parallelism=1))
    with pytest.raises(UsageError):
        stronger.sign_in("admin", "wrong wrong wrong", address="x")
    assert house.kept.password_hash("admin") == before, "not for a wrong one"
    stronger.sign_in("admin", PASSWORD, address="x")
    after = house.kept.password_hash("admin")
    assert after != before
    assert after is not None
    assert "m=16,t=2" in after
    stronger.sign_in("admin", PASSWORD, address="x")
    assert house.kept.password_hash("admin") == after


def test_a_renewed_hash_never_overwrites_a_password_that_was_changed_meanwhile(house: House) -> None:
    old = house.kept.password_hash("viewer")
    assert old is not None
    house.accounts.set_password("viewer", "something else entirely", by="admin", address="")
    new = house.kept.password_hash("viewer")
    house.kept.renew_hash("viewer", old, "a hash of the old password")
    assert house.kept.password_hash("viewer") == new


def test_a_damaged_hash_lets_nobody_in(house: House) -> None:
    with house.store.transaction() as db:
        db.execute("UPDATE users SET password_hash = 'x' WHERE name = 'admin'")
    with pytest.raises(UsageError, match="wrong"):
        house.accounts.sign_in("admin", "x", address="x")


class Held(PasswordHasher):
    """Looks at passwords when it is told to."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.go, self.began, self.at_once, self.most = threading.Event(), threading.Semaphore(0), 0, 0

    def verify(self, *given: Any) -> Any:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.began.release()
        self.go.wait(60)
        try:
            return super().verify(*given)
        finally:
            self.at_once -= 1


def test_one_password_at_a_time_a_few_wait_the_rest_is_turned_away(tmp_path: Path) -> None:
    with Store(tmp_path / "db") as store:
        hasher = Held()
        accounts = Accounts(AccountStore(store), StandingClock(), hasher=hasher)
        accounts.add_user("kim", Role.VIEWER, PASSWORD, by="test", address="")
        results: list[str] = []

        def sign_in(number: int) -> None:
            try:
                accounts.sign_in("kim", PASSWORD, address=f"192.0.2.{number}")
                results.append("in")
            except TooSoon:
                results.append("too soon")

        threads = [threading.Thread(target=sign_in, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        assert hasher.began.acquire(timeout=60)
        while len(results) < 12 - 1 - book.MOST_WAITING:
            threading.Event().wait(0.01)
        hasher.go.set()
        for thread in threads:
            thread.join(60)
        assert results.count("in") == 1 + book.MOST_WAITING
        assert hasher.most == 1
        accounts.sign_in("kim", PASSWORD, address="192.0.2.11")  # nothing was counted against who was turned away


# --- races ------------------------------------------------------------------------------------------------------------


def test_two_claims_at_once_make_one_admin(tmp_path: Path) -> None:
    house = House(tmp_path, claimed=False)
    code = house.accounts.first_code()
    results: list[str] = []
    refused: list[str] = []
    assert code is not None
    start = threading.Barrier(4)

    def claim(name: str) -> None:
        start.wait(60)
        try:
            house.accounts.claim(code, name, PASSWORD, address=name)
            results.append(name)
        except UsageError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=claim, args=(f"kim{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [user.name for user in house.accounts.users()] == results
    assert len(results) == 1
    assert set(refused) <= {"claimed", "wrong", "too_soon"}
    house.close()


def test_an_account_that_vanishes_while_it_signs_in_is_not_let_in(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = house.accounts._verify

    def slow(user: str, password: str) -> None:
        verify(user, password)
        house.kept.remove_user("viewer")

    monkeypatch.setattr(house.accounts, "_verify", slow)
    with pytest.raises(UsageError):
        house.accounts.sign_in("viewer", PASSWORD, address="x")


def test_a_believed_session_is_forgotten_when_something_is_taken_away(house: House) -> None:
    done = house.accounts.sign_in("viewer", PASSWORD, address="x")
    assert house.accounts.believed(done.session_id) is not None
    house.accounts.set_role("viewer", Role.OPERATOR, by="admin", address="")
    assert house.accounts.believed(done.session_id) is None
    found = house.accounts.by_session(done.session_id)
    assert found is not None
    assert found.who.role is Role.OPERATOR
    house.clock.pass_s(book.BELIEVED_S)
    assert house.accounts.believed(done.session_id) is None


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_sessions_of_an_account_are_bounded_and_the_newest_stay(house: House) -> None:
    ids = []
    for _ in range(tables.MOST_SESSIONS + 5):
        house.clock.pass_s(1)
        ids.append(house.accounts.sign_in("viewer", PASSWORD, address="192.0.2.1").session_id)
    alive = [house.accounts.by_session(id) is not None for id in ids]
    assert alive == [False] * 5 + [True] * tables.MOST_SESSIONS


def test_the_audit_log_is_bounded_and_strangers_push_nobody_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "AUDIT_KNOWN", 20)
    monkeypatch.setattr(tables, "AUDIT_UNKNOWN", 5)
    monkeypatch.setattr(tables, "_PRUNE_EVERY", 10)
    house.accounts.audit("kim", "", "kept", "ok")
    for number in range(200):
        house.accounts.audit("(unknown)", f"192.0.2.{number}", "token", "401", known=False)
    entries = house.accounts.audit_log(limit=500)
    assert "kept" in {e.action for e in entries}
    assert sum(e.who == "(unknown)" for e in entries) <= 5 + 10
    for number in range(100):
        house.accounts.audit("kim", "", f"step {number}", "ok")
    assert len(house.accounts.audit_log(limit=500)) <= 20 + 5 + 10


def test_whatever_is_noted_is_bounded_and_redacted(house: House) -> None:
    @settings(max_examples=40)
    @given(st.text(max_size=600), st.text(max_size=600))
    def noted(action: str, detail: str) -> None:
        house.accounts.audit("kim", "", action, "ok", f"rtsp://kim:zzCANARYzz@host {detail}")
        entry = house.accounts.audit_log(limit=1)[0]
        assert len(entry.action) <= 300
        assert len(entry.detail) <= 500
        assert "CANARY" not in entry.detail

    noted()


# --- tables -----------------------------------------------------------------------------------------------------------


def test_nothing_in_the_database_opens_a_door(house: House, tmp_path: Path) -> None:
    done = house.accounts.sign_in("admin", PASSWORD, address="x")
    token = house.token()
    house.store.close()
    with sqlite3.connect(tmp_path / "driftbox.db") as db:
        text = "\n".join(line for line in db.iterdump())
    for secret in (PASSWORD, done.session_id, token, token.split("_", 2)[2]):
        assert secret not in text
    assert digest(done.session_id) in text
    assert repr(done) == "SignedIn(admin)"


def test_a_role_that_is_none_is_refused() -> None:
    assert role_named("Admin") is Role.ADMIN
    for word in ("king", "", "ADMIN ", "1"):
        with pytest.raises(UsageError, match="no role"):
            role_named(word)


def test_the_database_itself_holds_no_other_role(house: House) -> None:
    with pytest.raises(StorageError), house.store.transaction() as db:
        db.execute("UPDATE users SET role = 'king'")


def test_names_are_parameters_and_never_sql(house: House) -> None:
    hostile = "x'; DROP TABLE users; --"
    with pytest.raises(UsageError):
        house.accounts.sign_in(hostile, PASSWORD, address=hostile, agent=hostile)
    with pytest.raises(UsageError):
        house.accounts.remove_user(hostile, by=hostile, address=hostile)
    assert len(house.accounts.users()) == 3


def test_limits_of_its_own_may_be_given(tmp_path: Path) -> None:
    house = House(tmp_path, limits=SignInLimits())
    for _ in range(5):
        with pytest.raises(UsageError, match="wrong"):
            house.accounts.sign_in("admin", "wrong wrong", address="x")
    with pytest.raises(TooSoon) as caught:
        house.accounts.sign_in("admin", PASSWORD, address="x")
    assert caught.value.retry_s == 2.0
    house.clock.pass_s(2.0)
    house.accounts.sign_in("admin", PASSWORD, address="x")
    house.close()
