"""Accounts for tests: quick hashes, a clock that stands still, a database in a folder, a browser's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from fastapi.testclient import TestClient

from edge.api import make_app
from edge.clock import SystemClock
from edge.status import StatusSource
from edge.store.accounts import AccountStore
from edge.store.store import Store
from edge.web.accounts.book import Accounts
from edge.web.accounts.limits import SignInLimits
from edge.web.accounts.rules import Token
from edge.web.fake import FakeSource
from edge.web.hosts import HostNames
from edge.web.services import Services
from edge.web.who import Role

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "seven green umbrellas"
HOSTS = HostNames(names=frozenset({"box.local"}))
PAGE = {"X-Driftbox": "page"}
#: "From this machine" for the gate.
HERE, AWAY = ("127.0.0.1", 50_000), ("192.0.2.7", 50_000)


class StandingClock(SystemClock):
    """Both clocks are what the test says."""

    def __init__(self, now_utc: float = 1_790_000_000.0) -> None:
        self.now_utc, self.now_s = now_utc, 1000.0

    def utc_s(self) -> float:
        return self.now_utc

    def monotonic_s(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_utc += seconds
        self.now_s += seconds


class House:
    """A box's accounts over a database in `folder`, with one account of each role; the password of all is PASSWORD."""

    def __init__(
        self, folder: Path, *, claimed: bool = True, local: Token | None = None, limits: SignInLimits | None = None
    ) -> None:
        self.clock = StandingClock()
        self.store = Store(folder / "driftbox.db")
        self.kept = AccountStore(self.store)
        self.accounts = Accounts(self.kept, self.clock, hasher=QUICK, local=local, limits=limits)
        for role in Role if claimed else ():
            self.accounts.add_user(role.word, role, PASSWORD, by="test", address="")

    def app(self, services: Services | None = None, source: StatusSource | None = None) -> Any:
        parts = services or Services()
        with_accounts = {name: getattr(parts, name) for name in vars(parts)} | {"accounts": self.accounts, "hosts": HOSTS}
        return make_app(source or FakeSource(), Services(**with_accounts))

    def client(
        self, *, address: tuple[str, int] = AWAY, base_url: str = "http://box.local", services: Services | None = None
    ) -> TestClient:
        """Somebody's browser or program, not signed in."""
        return TestClient(self.app(services), base_url=base_url, client=address)

    def signed_in(self, role: Role = Role.ADMIN, **how: Any) -> TestClient:
        """A page on which the account of this role has signed in."""
        client = self.client(**how)
        answer = client.post("/api/v1/sign-in", json={"name": role.word, "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        client.headers.update(PAGE)
        return client

    def token(
        self, role: Role = Role.VIEWER, *, areas: tuple[str, ...] = (), lives_s: float | None = None, name: str = "prog"
    ) -> str:
        token, _ = self.accounts.add_token(name, role, owner="admin", by="test", address="", areas=areas, lives_s=lives_s)
        return str(token)

    def close(self) -> None:
        self.store.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
