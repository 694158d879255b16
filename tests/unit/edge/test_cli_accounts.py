"""`driftbox accounts ...` on a data folder, before the first start and beside a running box; and what the start says."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import parse_config
from edge import cli_accounts
from edge.cli import main
from edge.clock import SystemClock
from edge.store.accounts import AccountStore
from edge.store.store import Store
from edge.web.accounts import book
from edge.web.accounts.book import Accounts
from edge.web.accounts.local import local_token_path
from edge.web.who import Role
from edge.wiring import running
from tests.support.accounts import PASSWORD, QUICK, House, StandingClock, bearer

CODE = re.compile(r"\b[0-9A-Z]{4}(?:-[0-9A-Z]{4}){3}\b")


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book.Accounts.__init__, "__kwdefaults__", book.Accounts.__init__.__kwdefaults__ | {"hasher": QUICK})


class Ran:
    """A command that has ended."""

    def __init__(
        self, folder: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], typed: str | None = None
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(typed or ""))
            with pytest.raises(SystemExit) as ended:
                main(["accounts", *words, "--data-dir", str(folder)])
        self.code = int(ended.value.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words, typed=None: Ran(tmp_path / "data", words, capsys, typed)


@contextmanager
def accounts(folder: Path) -> Iterator[Accounts]:
    with Store(folder / "data" / "driftbox.db") as store:
        yield Accounts(AccountStore(store), SystemClock())


def test_the_first_account_may_be_made_before_the_first_start(run: Any, tmp_path: Path) -> None:
    done = run("add", "Kim", "--role", "admin", "--password-stdin", typed=PASSWORD + "\n")
    assert (done.code, done.out) == (0, "kim may sign in as admin\n")
    assert PASSWORD not in done.out + done.err
    with accounts(tmp_path) as kept:
        assert kept.sign_in("kim", PASSWORD, address="x").asking.who.role is Role.ADMIN
        assert kept.first_code() is None, "so no claim code is shown"
    assert run("claim-code").code == 2


def test_a_generated_password_is_shown_once_and_works(run: Any, tmp_path: Path) -> None:
    made = run("add", "bo", "--generate", "--json").json
    with accounts(tmp_path) as kept:
        kept.sign_in("bo", made["password"], address="x")
    other = run("password", "bo", "--generate", "--json").json["password"]
    assert other != made["password"]
    with accounts(tmp_path) as kept:
        kept.sign_in("bo", other, address="x")
        assert len(kept.sessions(kept.sign_in("bo", other, address="x").asking)) == 2, "those of before are over"


def test_roles_and_removal(run: Any) -> None:
    run("add", "kim", "--role", "admin", "--generate")
    run("add", "bo", "--generate")
    assert run("role", "bo", "operator").code == 0
    assert {row["name"]: row["role"] for row in run("list", "--json").json["accounts"]} == {"bo": "operator", "kim": "admin"}
    refused = run("remove", "kim")
    assert (refused.code, "only admin" in refused.err) == (2, True)
    assert run("role", "kim", "viewer").code == 2
    assert run("remove", "bo").code == 0
    assert run("remove", "bo").code == 2
    assert "kim" in run("list").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "kim", "--role", "king", "--generate"), "no role"),
        (("add", "../x", "--generate"), "begins with a letter"),
        (("add", "kim"), "no terminal"),
        (("add", "kim", "--password-stdin", "--generate"), "two ways"),
        (("password", "nobody", "--generate"), "no account nobody"),
        (("revoke", "0" * 12), "no such token"),
        (("token", "x", "--area", "../x"), "no part"),
        (("token", "x", "--camera", "../x"), "no camera id"),
        (("token", "x", "--camera", "gate", "--role", "admin"), "operator at most"),
    ],
)
def test_what_cannot_be_is_refused(run: Any, words: tuple[str, ...], told: str) -> None:
    done = run(*words)
    assert (done.code, told in done.err) == (2, True)
    assert "Traceback" not in done.err


def test_a_short_password_from_standard_input_is_refused(run: Any) -> None:
    done = run("add", "kim", "--password-stdin", typed="zzzshort\n")
    assert done.code == 2
    assert "zzzshort" not in done.out + done.err


def test_a_password_is_asked_for_twice(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    answers = iter([PASSWORD, PASSWORD + "x", PASSWORD, PASSWORD])
    monkeypatch.setattr(cli_accounts.getpass, "getpass", lambda prompt: next(answers))
    monkeypatch.setattr(cli_accounts.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    for code in (2, 0):
        with pytest.raises(SystemExit) as ended:
            main(["accounts", "add", "kim", "--data-dir", str(tmp_path / "data")])
        assert int(ended.value.code or 0) == code
    capsys.readouterr()


def test_a_token_is_held_to_cameras(run: Any) -> None:
    made = run("token", "shop", "--camera", "till", "--camera", "shop", "--json").json
    assert made["cameras"] == ["shop", "till"]
    assert run("tokens", "--json").json["tokens"][0]["cameras"] == ["shop", "till"]
    assert "shop, till" in run("tokens").out


def test_tokens_are_made_listed_and_revoked(run: Any, tmp_path: Path) -> None:
    made = run("token", "prometheus", "--area", "metrics", "--days", "30", "--json").json
    assert (made["role"], made["areas"], made["owner"]) == ("viewer", ["metrics"], None)
    with accounts(tmp_path) as kept:
        asking = kept.by_token(made["token"])
        assert asking is not None
        assert asking.who.name == "box/prometheus"
    listed = run("tokens", "--json")
    assert made["token"] not in listed.out
    assert listed.json["tokens"][0]["id"] == made["id"]
    assert "prometheus" in run("tokens").out
    assert run("revoke", made["id"]).code == 0
    with accounts(tmp_path) as kept:
        assert kept.by_token(made["token"]) is None
    forever = run("token", "x", "--days", "0", "--json").json
    assert forever["expires_utc"] is None


def test_the_audit_log_tells_what_was_done_here(run: Any) -> None:
    run("add", "kim", "--role", "admin", "--generate")
    run("token", "x")
    entries = run("audit", "--json").json["entries"]
    assert [(e["action"], e["address"]) for e in entries] == [("token.add", "command line"), ("user.add", "command line")]
    assert "(on the box)" in entries[0]["who"]
    assert "user.add" in run("audit").out


def test_a_lost_claim_code_is_replaced(run: Any, tmp_path: Path) -> None:
    first, second = (CODE.search(run("claim-code").out) for _ in range(2))
    assert first is not None
    assert second is not None
    with accounts(tmp_path) as kept:
        from configs.errors import UsageError

        with pytest.raises(UsageError, match="not the box's claim code"):
            kept.claim(first[0], "kim", PASSWORD, address="x")
        assert kept.claim(second[0], "kim", PASSWORD, address="x").asking.who.role is Role.ADMIN
    assert "an account already" in run("claim-code").err


def test_a_running_box_heeds_what_was_changed_beside_it(tmp_path: Path, run: Any) -> None:
    (tmp_path / "data").mkdir()
    house = House(tmp_path / "data")
    page, token = house.signed_in(Role.VIEWER), house.token()
    assert page.get("/api/v1/me").status_code == 200
    assert house.client().get("/api/v1/me", headers=bearer(token)).status_code == 200
    run("password", "viewer", "--generate")
    run("revoke", house.accounts.tokens()[0].id)
    house.clock.pass_s(book.BELIEVED_S)
    assert page.get("/api/v1/me").status_code == 401
    assert house.client().get("/api/v1/me", headers=bearer(token)).status_code == 401
    house.close()


def test_the_start_shows_the_code_once(tmp_path: Path) -> None:
    house, said = House(tmp_path, claimed=False), []
    running._say_claim(house.accounts, said.append)
    running._say_claim(house.accounts, said.append)
    assert CODE.search(said[0])
    assert not CODE.search(said[1])
    assert "driftbox accounts claim-code" in said[1]
    house.accounts.add_user("kim", Role.ADMIN, PASSWORD, by="test", address="")
    running._say_claim(house.accounts, said.append)
    assert len(said) == 2
    house.close()


def a_box(folder: Path, store: Store) -> Any:
    parts = SimpleNamespace(clock=StandingClock())
    return SimpleNamespace(runtime=SimpleNamespace(parts=parts, notes=[]), store=store, folder=SimpleNamespace(root=folder))


@pytest.mark.parametrize(
    ("web", "login", "warned"),
    [
        ("port: 80", True, ""),
        ("login: false", False, ""),
        ("login: false, host: 0.0.0.0, tls: 'off'", False, "sees the cameras"),
        ("host: 0.0.0.0, tls: 'off'", True, "cross the network unprotected"),
    ],
)
def test_what_the_start_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: str, login: bool, warned: str) -> None:
    monkeypatch.setattr(running.log, "warning", lambda *_: None)
    config = parse_config(f"box: {{data_dir: {tmp_path}}}\nweb: {{{web}}}")
    with Store(tmp_path / "driftbox.db") as store, ExitStack() as stack:
        box = a_box(tmp_path, store)
        assert (running._accounts(box, config) is not None) is login
        assert running._certificates(box, config, stack, lambda text: None) is None
        told = [note.text for note in store.notes()] + [note.text for _, note in box.runtime.notes]
        assert local_token_path(tmp_path).exists() is login
    assert bool(told) is bool(warned)
    assert all(warned in text for text in told)


def test_the_start_makes_a_certificate_and_tells_its_fingerprint(tmp_path: Path) -> None:
    config = parse_config(f"box: {{data_dir: {tmp_path}}}\nweb: {{host: 0.0.0.0}}")
    said: list[str] = []
    with Store(tmp_path / "driftbox.db") as store, ExitStack() as stack:
        made = running._certificates(a_box(tmp_path, store), config, stack, said.append)
        assert made is not None
        assert said == [f"certificate: SHA-256 {made.certificate.fingerprint}"]
