"""Accounts over HTTP, without a socket: claiming, signing in, who passes the gate, users, tokens, sessions, the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import StorageError
from edge.api import make_app
from edge.labels_fake import FakeLabels
from edge.web.accounts import book
from edge.web.accounts.rules import new_token
from edge.web.fake import FakeSource
from edge.web.services import Services
from edge.web.who import Role
from tests.support.accounts import AWAY, HERE, HOSTS, PAGE, PASSWORD, House, bearer

NEW = "a lamp under the stairs"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    yield built
    built.close()


@pytest.fixture
def unclaimed(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path, claimed=False)
    yield built
    built.close()


# --- closed by default ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/healthz", "/readyz", "/api/v1/sign-in"])
def test_what_everybody_may_see(house: House, path: str) -> None:
    assert house.client().get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/api/v1/status", "/api/v1/openapi.json", "/api/v1/cameras/gate/picture.jpg", "/api/v1/me", "/api/v1/accounts/users",
     "/api/v1/nothing", "/nothing", "/metrics", "/docs", "/static/../api/v1/status", "//api/v1/status", "/API/V1/STATUS",
     "/api/v1/status/", "/api/v1/sign-in/", "/static", "/healthz/../api/v1/status", "/%2e%2e/api/v1/status"],
)  # fmt: skip
def test_nobody_sees_anything_else(house: House, path: str) -> None:
    answer = house.client().get(path)
    assert answer.status_code in (401, 404), "what is not there may be told, what is there is not"
    assert "gate" not in answer.text
    assert "cameras" not in answer.text


def test_no_route_is_open_by_oversight(house: House) -> None:
    """Every route of the schema, with whatever method, without an account."""
    spec = house.app(Services(labels=FakeLabels())).openapi()
    client, asked = house.client(services=Services(labels=FakeLabels())), 0
    for path, methods in spec["paths"].items():
        for method in methods:
            told = path.format_map({"camera": "gate", "camera_id": "gate", "window": 1, "seq": 0, "name": "admin", "id": "0" * 12,
                                    "ref": "0" * 12}) if "{" in path else path  # fmt: skip
            answer = client.request(method.upper(), told, json={} if method in ("post", "put", "patch") else None)
            is_open = (method, path) in {
                ("get", "/healthz"), ("get", "/readyz"), ("get", "/api/v1/sign-in"), ("post", "/api/v1/sign-in"),
                ("post", "/api/v1/claim"),
            }  # fmt: skip
            assert is_open or answer.status_code == 401, (method, path, answer.status_code)
            asked += 1
    assert asked > 20


def test_the_page_is_told_what_to_show(unclaimed: House, tmp_path: Path) -> None:
    client = unclaimed.client()
    assert client.get("/api/v1/sign-in").json() == {"login": True, "claimed": False, "me": None}
    code = unclaimed.accounts.first_code()
    client.post("/api/v1/claim", json={"code": code, "name": "kim", "password": PASSWORD})
    told = client.get("/api/v1/sign-in").json()
    assert (told["claimed"], told["me"]["name"], told["me"]["role"], told["me"]["kind"]) == (True, "kim", "admin", "session")


def test_a_box_without_accounts_says_so() -> None:
    def asked(address: tuple[str, int], path: str) -> Any:
        return TestClient(make_app(FakeSource()), base_url="http://127.0.0.1", client=address).get(path).json()

    assert asked(HERE, "/api/v1/sign-in")["login"] is False
    assert asked(HERE, "/api/v1/me") == {"name": "local", "role": "admin", "kind": "none", "ends_utc": None}
    assert asked(AWAY, "/api/v1/me")["role"] == "viewer", "only this machine may change something"


# --- claim ------------------------------------------------------------------------------------------------------------


def test_the_claim_code_makes_the_first_admin_once(unclaimed: House) -> None:
    code = unclaimed.accounts.first_code()
    assert code is not None
    client = unclaimed.client()
    given = {"code": code.lower().replace("-", " "), "name": " Kim ", "password": PASSWORD}
    answer = client.post("/api/v1/claim", json=given)
    assert (answer.status_code, answer.json()["name"], answer.json()["role"]) == (201, "kim", "admin")
    assert client.get("/api/v1/status").status_code == 200, "and is signed in"
    again = unclaimed.client().post("/api/v1/claim", json=given | {"name": "eve"})
    assert (again.status_code, again.json()["detail"][:12]) == (409, "this box has")
    assert [user.name for user in unclaimed.accounts.users()] == ["kim"]


def test_a_wrong_code_claims_nothing_and_slows_down(unclaimed: House) -> None:
    unclaimed.accounts.first_code()
    client = unclaimed.client()
    given = {"code": "0000-0000-0000-0000", "name": "eve", "password": PASSWORD}
    answers = [client.post("/api/v1/claim", json=given).status_code for _ in range(7)]
    assert answers == [401] * 5 + [429] * 2
    assert not unclaimed.accounts.claimed()
    assert client.post("/api/v1/claim", json=given | {"code": ""}).status_code == 429


def test_a_code_that_was_lost_is_replaced(unclaimed: House) -> None:
    first, second = unclaimed.accounts.first_code(), unclaimed.accounts.new_code()
    assert unclaimed.accounts.first_code() is None, "printed once"
    client = unclaimed.client()
    assert client.post("/api/v1/claim", json={"code": first, "name": "kim", "password": PASSWORD}).status_code == 401
    assert client.post("/api/v1/claim", json={"code": second, "name": "kim", "password": PASSWORD}).status_code == 201


@pytest.mark.parametrize(
    ("name", "password"),
    [("kim", "abc"), ("kim", "password123"), ("kimkimkimk", "kimkimkimk"), ("kim", "aaaaaaaaaaaa"), ("kim", "a" * 201),
     ("kim", "\0" * 12), ("", PASSWORD), ("Ünï", PASSWORD),
     ("../../etc", PASSWORD), ("<b>", PASSWORD), ("😀", PASSWORD), ("a b", PASSWORD)],
)  # fmt: skip
def test_names_and_passwords_that_cannot_be(unclaimed: House, name: str, password: str) -> None:
    code = unclaimed.accounts.first_code()
    answer = unclaimed.client().post("/api/v1/claim", json={"code": code, "name": name, "password": password})
    assert answer.status_code == 400
    assert len(password) < 5 or password not in answer.text
    assert not unclaimed.accounts.claimed()


def test_nothing_that_was_typed_comes_back(house: House) -> None:
    """Also when it was typed where something else belongs."""
    for body in (
        {"name": 5, "password": "zzCANARYzz"}, {"password": "zzCANARYzz"}, {"name": "a", "password": "zzCANARYzz", "more": "zzCANARYzz"},
        {"name": "zzCANARYzz" * 30, "password": "zzCANARYzz" * 200}, ["zzCANARYzz"], "zzCANARYzz",
    ):  # fmt: skip
        answer = house.client().post("/api/v1/sign-in", json=body)
        assert answer.status_code in (401, 422)
        assert "CANARY" not in answer.text
    assert "CANARY" not in str(house.accounts.audit_log())


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_signing_in_and_out(house: House) -> None:
    page = house.signed_in(Role.VIEWER)
    assert page.get("/api/v1/status").status_code == 200
    assert page.get("/api/v1/me").json()["role"] == "viewer"
    stolen = dict(page.cookies)
    assert page.post("/api/v1/sign-out", json={}).status_code == 204
    assert not page.cookies
    assert page.get("/api/v1/status").status_code == 401
    assert house.client().get("/api/v1/status", cookies=stolen).status_code == 401, "over on the box, too"


def test_the_cookie_is_the_pages_alone(house: House) -> None:
    for scheme, name in (("http", "driftbox"), ("https", "__Host-driftbox")):
        client = house.client(base_url=f"{scheme}://box.local")
        cookie = client.post("/api/v1/sign-in", json={"name": "admin", "password": PASSWORD}).headers["set-cookie"]
        assert cookie.startswith(f"{name}=")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; ")[1:])
        assert ("Secure" in cookie.split("; ")) is (scheme == "https")
        assert "Domain" not in cookie


def test_behind_a_proxy_with_tls_the_cookie_is_secure(house: House) -> None:
    answer = house.client().post(
        "/api/v1/sign-in", json={"name": "admin", "password": PASSWORD}, headers={"X-Forwarded-Proto": "https"}
    )
    assert answer.headers["set-cookie"].startswith("__Host-driftbox=")


@pytest.mark.parametrize(("wait_s", "status"), [(23 * 3600, 200), (25 * 3600, 401)])
def test_a_session_ends_when_nothing_is_asked(house: House, wait_s: float, status: int) -> None:
    page = house.signed_in()
    house.clock.pass_s(wait_s)
    assert page.get("/api/v1/status").status_code == status


def test_a_session_ends_after_a_month_however_busy(house: House) -> None:
    page = house.signed_in()
    for _ in range(59):
        house.clock.pass_s(12 * 3600)
        assert page.get("/api/v1/status").status_code == 200
    house.clock.pass_s(12 * 3600)
    assert page.get("/api/v1/status").status_code == 401
    house.signed_in()
    assert len(house.kept.sessions()) == 1, "and is cleared away"


@pytest.mark.parametrize("cookie", ["", "x", "a" * 43, "../../x", "é" * 20, '"', "a=b; driftbox=c", "a" * 100_000])
def test_a_forged_session_is_none(house: House, cookie: str) -> None:
    headers = {"Cookie": f"driftbox={cookie}".encode()}
    assert house.client().get("/api/v1/status", headers=headers).status_code == 401  # type: ignore[arg-type]


def test_sessions_are_listed_and_ended_by_their_own(house: House) -> None:
    mine, other = house.signed_in(Role.VIEWER), house.signed_in(Role.VIEWER)
    operators = house.signed_in(Role.OPERATOR)
    rows = mine.get("/api/v1/accounts/sessions").json()
    assert [row["user"] for row in rows] == ["viewer", "viewer"]
    assert sum(row["own"] for row in rows) == 1
    theirs = operators.get("/api/v1/accounts/sessions").json()[0]["ref"]
    assert mine.delete(f"/api/v1/accounts/sessions/{theirs}").status_code in (403, 404)
    assert operators.get("/api/v1/me").status_code == 200
    admin = house.signed_in()
    assert len(admin.get("/api/v1/accounts/sessions").json()) == 4
    for row in rows:
        assert admin.delete(f"/api/v1/accounts/sessions/{row['ref']}").status_code == 204
    assert {page.get("/api/v1/me").status_code for page in (mine, other)} == {401}


def test_another_password_ends_the_other_sessions(house: House) -> None:
    here, elsewhere = house.signed_in(Role.VIEWER), house.signed_in(Role.VIEWER)
    assert here.put("/api/v1/me/password", json={"old": "wrong wrong", "new": NEW}).status_code == 403
    assert here.put("/api/v1/me/password", json={"old": PASSWORD, "new": "short"}).status_code == 400
    assert here.put("/api/v1/me/password", json={"old": PASSWORD, "new": NEW}).status_code == 204
    assert here.get("/api/v1/me").status_code == 200
    assert elsewhere.get("/api/v1/me").status_code == 401
    assert house.client().post("/api/v1/sign-in", json={"name": "viewer", "password": PASSWORD}).status_code == 401
    assert house.client().post("/api/v1/sign-in", json={"name": "viewer", "password": NEW}).status_code == 200


# --- what another site's page can make a browser send ------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://box.local:81"}, {"Sec-Fetch-Site": "cross-site"},
     {"Sec-Fetch-Site": "same-site"}, {"Host": "evil.example"}, {"X-Driftbox": None}],
)  # fmt: skip
def test_a_write_with_a_cookie_comes_from_the_boxs_own_page(house: House, headers: dict[str, str | None]) -> None:
    page = house.signed_in()
    for name, value in headers.items():
        page.headers.pop(name, None)
        if value is not None:
            page.headers[name] = value
    answer = page.post("/api/v1/accounts/users", json={"name": "eve", "password": PASSWORD, "role": "admin"})
    assert answer.status_code in (403, 421)
    assert "eve" not in [user.name for user in house.accounts.users()]


def test_the_boxs_own_page_may(house: House) -> None:
    page = house.signed_in()
    page.headers.update({"Origin": "http://box.local", "Sec-Fetch-Site": "same-origin"})
    assert page.post("/api/v1/accounts/users", json={"name": "bo", "password": PASSWORD}).status_code == 201


def test_another_site_signs_nobody_in(house: House) -> None:
    given = {"name": "admin", "password": PASSWORD}
    client = house.client()
    assert client.post("/api/v1/sign-in", json=given, headers={"Origin": "http://evil.example"}).status_code == 403
    form = client.post("/api/v1/sign-in", data=given)
    assert form.status_code == 415


@pytest.mark.parametrize(
    "host",
    ["evil.example", "box.local.evil.example", "", "[::1", "192.168.1.9.nip.io", "lan.evil.example", "localhost.evil.example"],
)
def test_a_foreign_name_that_leads_here_sees_nothing(house: House, host: str) -> None:
    page = house.signed_in()
    assert page.get("/api/v1/status", headers={"Host": host}).status_code == 421
    assert page.get("/", headers={"Host": host}).status_code == 421
    assert page.get("/healthz", headers={"Host": host}).status_code == 200, "probes know no names"


@pytest.mark.parametrize(
    "host",
    [
        "box.local",
        "BOX.local:8080",
        "box.local.",
        "127.0.0.1",
        "[::1]:8080",
        "192.168.1.9:80",
        "localhost",
        "nas",
        "gate.lan:8443",
        "a.b.home.arpa",
    ],
)
def test_its_own_names_and_addresses(house: House, host: str) -> None:
    assert house.signed_in().get("/api/v1/status", headers={"Host": host}).status_code == 200


def test_the_host_is_looked_at_without_accounts_too() -> None:
    client = TestClient(make_app(FakeSource(), Services(hosts=HOSTS)), base_url="http://evil.example")
    assert client.get("/api/v1/status").status_code == 421
    assert client.get("/api/v1/status", headers={"Host": "box.local"}).status_code == 200


# --- roles ------------------------------------------------------------------------------------------------------------


def test_viewers_change_nothing_even_where_a_route_asks_for_no_role(house: House) -> None:
    parts = Services(labels=FakeLabels())
    boxes: Any = {"boxes": []}
    assert house.signed_in(Role.VIEWER, services=parts).put("/api/v1/labels/gate/1/0", json=boxes).status_code == 403
    assert house.signed_in(Role.OPERATOR, services=parts).put("/api/v1/labels/gate/1/0", json=boxes).status_code == 200
    assert house.signed_in(Role.VIEWER, services=parts).get("/api/v1/labels").status_code == 200


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_admins_look_after_accounts(house: House, role: Role) -> None:
    page = house.signed_in(role)
    user = {"name": "eve", "password": PASSWORD, "role": "admin"}
    answers = [
        page.get("/api/v1/accounts/users"), page.post("/api/v1/accounts/users", json=user), page.get("/api/v1/accounts/audit"),
        page.patch(f"/api/v1/accounts/users/{role.word}", json={"role": "admin"}), page.delete("/api/v1/accounts/users/admin"),
        page.put("/api/v1/accounts/users/admin/password", json={"password": NEW}),
    ]  # fmt: skip
    assert {answer.status_code for answer in answers} == {403}
    assert [u.name for u in house.accounts.users()] == ["admin", "operator", "viewer"]


def test_users_are_added_changed_and_removed(house: House) -> None:
    admin = house.signed_in()
    assert admin.post("/api/v1/accounts/users", json={"name": "Bo", "password": PASSWORD}).json()["role"] == "viewer"
    assert admin.post("/api/v1/accounts/users", json={"name": "bo", "password": PASSWORD}).status_code == 409
    client = house.client()
    client.post("/api/v1/sign-in", json={"name": "BO", "password": PASSWORD})
    assert client.get("/api/v1/me").json()["role"] == "viewer"
    assert admin.patch("/api/v1/accounts/users/bo", json={"role": "operator"}).json()["role"] == "operator"
    assert client.get("/api/v1/me").json()["role"] == "operator", "at once, in open sessions"
    assert admin.put("/api/v1/accounts/users/bo/password", json={"password": NEW}).status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    client.post("/api/v1/sign-in", json={"name": "bo", "password": NEW})
    assert client.get("/api/v1/me").status_code == 200
    assert admin.delete("/api/v1/accounts/users/bo").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert admin.delete("/api/v1/accounts/users/bo").status_code == 404


def test_the_last_admin_stays(house: House) -> None:
    admin = house.signed_in()
    assert admin.delete("/api/v1/accounts/users/admin").status_code == 409
    assert admin.patch("/api/v1/accounts/users/admin", json={"role": "viewer"}).status_code == 409
    admin.patch("/api/v1/accounts/users/operator", json={"role": "admin"})
    assert admin.patch("/api/v1/accounts/users/admin", json={"role": "viewer"}).status_code == 200
    assert admin.get("/api/v1/accounts/users").status_code == 403, "in force at once"


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_works_until_it_is_revoked(house: House) -> None:
    admin = house.signed_in()
    made = admin.post(
        "/api/v1/accounts/tokens", json={"name": "grafana", "role": "viewer", "areas": ["status", "metrics"]}
    ).json()
    program = house.client()
    assert program.get("/api/v1/status", headers=bearer(made["token"])).status_code == 200
    assert program.get("/api/v1/labels", headers=bearer(made["token"])).status_code == 403, "held to status and metrics"
    assert program.get("/api/v1/me", headers=bearer(made["token"])).status_code == 403
    listed = admin.get("/api/v1/accounts/tokens")
    assert made["token"] not in listed.text
    assert listed.json()[0] | {"used_utc": 0} == made["about"] | {"used_utc": 0}
    assert listed.json()[0]["used_utc"] == house.clock.now_utc
    assert admin.delete(f"/api/v1/accounts/tokens/{made['about']['id']}").status_code == 204
    answer = program.get("/api/v1/status", headers=bearer(made["token"]))
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_a_token_needs_no_page(house: House) -> None:
    program = house.client(services=Services(labels=FakeLabels()))
    put = program.put("/api/v1/labels/gate/1/0", json={"boxes": []}, headers=bearer(house.token(Role.OPERATOR)))
    assert put.status_code == 200
    named = program.get("/api/v1/status", headers=bearer(house.token(name="other")) | {"Host": "box.corp.example"})
    assert named.status_code == 200, "no page of another site can bring a token"


def test_a_token_ends_by_itself(house: House) -> None:
    token, program = house.token(lives_s=3600.0), house.client()
    assert program.get("/api/v1/status", headers=bearer(token)).status_code == 200
    house.clock.pass_s(3601)
    assert program.get("/api/v1/status", headers=bearer(token)).status_code == 401


def test_a_token_does_no_more_than_its_maker(house: House) -> None:
    operator = house.signed_in(Role.OPERATOR)
    assert operator.post("/api/v1/accounts/tokens", json={"name": "x", "role": "admin"}).status_code == 403
    made = operator.post("/api/v1/accounts/tokens", json={"name": "x", "role": "operator"}).json()
    assert operator.post("/api/v1/accounts/tokens", json={"name": "x"}).status_code == 409
    admin, program = house.signed_in(), house.client()
    admin.patch("/api/v1/accounts/users/operator", json={"role": "viewer"})
    assert program.get("/api/v1/me", headers=bearer(made["token"])).json()["role"] == "viewer", "as its maker is now"
    assert operator.delete(f"/api/v1/accounts/tokens/{made['about']['id']}").status_code == 403
    admin.delete("/api/v1/accounts/users/operator")
    assert program.get("/api/v1/me", headers=bearer(made["token"])).status_code == 401


def test_a_token_makes_no_tokens(house: House) -> None:
    answer = house.client().post("/api/v1/accounts/tokens", json={"name": "y"}, headers=bearer(house.token(Role.ADMIN)))
    assert answer.status_code == 403


def test_others_tokens_are_not_seen(house: House) -> None:
    house.token()
    operator = house.signed_in(Role.OPERATOR)
    assert operator.get("/api/v1/accounts/tokens").json() == []
    id = house.accounts.tokens()[0].id
    assert operator.delete(f"/api/v1/accounts/tokens/{id}").status_code == 404
    assert house.accounts.tokens()


def test_forged_tokens_open_nothing(house: House) -> None:
    real = house.token()
    other = house.token(name="other")
    forged = [
        str(new_token()), real[:-1], real + "x", real.upper(), other[:22] + real[22:], "driftbox_local_" + "x" * 43, "", "x" * 10_000,
        f"{real} {real}", "driftbox__" + "x" * 43,
    ]  # fmt: skip
    for token in forged:
        assert house.client().get("/api/v1/status", headers=bearer(token)).status_code == 401, token
    for scheme in ("Basic", "Digest", "bearer-ish", ""):
        answer = house.client().get("/api/v1/status", headers={"Authorization": f"{scheme} {real}"})
        assert answer.status_code == 401
    assert house.client().get("/api/v1/status", headers={"Authorization": f"bearer  {real}"}).status_code == 200


def test_a_wrong_token_is_not_made_good_by_a_cookie(house: House) -> None:
    assert house.signed_in().get("/api/v1/status", headers=bearer(str(new_token()))).status_code == 401


def test_the_boxs_own_token_is_good_on_its_machine_only(tmp_path: Path) -> None:
    local = new_token("local")
    house = House(tmp_path, local=local)
    assert house.client(address=HERE).get("/api/v1/me", headers=bearer(str(local))).json()["kind"] == "local"
    assert house.client(address=AWAY).get("/api/v1/me", headers=bearer(str(local))).status_code == 401
    assert house.client(address=HERE).get("/api/v1/me", headers=bearer(str(new_token("local")))).status_code == 401
    house.close()


def test_metrics_are_open_to_this_machine(house: House) -> None:
    assert house.client(address=HERE).get("/metrics").status_code != 401
    assert house.client(address=HERE).get("/metrics", headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 401
    assert house.client(address=AWAY).get("/metrics").status_code == 401
    assert house.client(address=AWAY).get("/metrics", headers=bearer(house.token(areas=("metrics",)))).status_code != 401


# --- wrong passwords in a loop ----------------------------------------------------------------------------------------


def test_guessing_slows_down_and_keeps_nobody_else_out(house: House) -> None:
    eve, right = house.client(address=("203.0.113.66", 1)), {"name": "admin", "password": PASSWORD}
    answers = [eve.post("/api/v1/sign-in", json={"name": "admin", "password": f"guess {n} guess"}) for n in range(20)]
    assert [a.status_code for a in answers] == [401] * 5 + [429] * 15
    assert int(answers[-1].headers["Retry-After"]) >= 1
    assert eve.post("/api/v1/sign-in", json=right).status_code == 429, "not even the right one, until the wait is over"
    assert house.client().post("/api/v1/sign-in", json=right).status_code == 200, "from another address"
    house.clock.pass_s(float(answers[-1].headers["Retry-After"]))
    assert eve.post("/api/v1/sign-in", json=right).status_code == 200


def test_a_loop_fills_no_audit_log(house: House) -> None:
    client = house.client()
    for n in range(40):
        client.post("/api/v1/sign-in", json={"name": "admin", "password": f"guess {n} guess"})
        client.get("/api/v1/status", headers=bearer(str(new_token())))
    told = [e for e in house.accounts.audit_log(limit=500) if e.outcome in ("wrong", "too soon", "401")]
    assert [(e.who, e.action, e.outcome) for e in told] == [
        ("admin", "sign-in", "too soon"), ("(unknown)", "token", "401"), ("admin", "sign-in", "wrong"),
    ]  # fmt: skip


def test_a_program_that_asks_for_the_wrong_thing_fills_no_audit_log_either(house: House) -> None:
    client, token = house.client(), house.token(areas=("metrics",))
    for _ in range(30):
        assert client.get("/api/v1/status", headers=bearer(token)).status_code == 403
    told = [(e.who, e.action) for e in house.accounts.audit_log() if e.outcome == "403"]
    assert told == [("admin/prog", "GET /api/v1/status")]
    house.clock.pass_s(book.QUIET_S)
    client.get("/api/v1/status", headers=bearer(token))
    assert len([e for e in house.accounts.audit_log() if e.outcome == "403"]) == 2


def test_whether_an_account_exists_is_not_told(house: House) -> None:
    answers = [
        house.client().post("/api/v1/sign-in", json={"name": n, "password": "wrong wrong 1"}) for n in ("admin", "nobody")
    ]
    assert answers[0].status_code == answers[1].status_code == 401
    assert answers[0].content == answers[1].content
    assert "(no such account)" in {e.who for e in house.accounts.audit_log()}


# --- audit log --------------------------------------------------------------------------------------------------------


def test_the_audit_log_tells_who_did_what_from_where(house: House) -> None:
    admin = house.signed_in(services=Services(labels=FakeLabels()))
    admin.post("/api/v1/accounts/users", json={"name": "bo", "password": PASSWORD})
    admin.put("/api/v1/labels/gate/1/0", json={"boxes": []})
    admin.put("/api/v1/labels/gate/9/9", json={"boxes": []})
    house.signed_in(Role.VIEWER).put("/api/v1/labels/gate/1/0", json={"boxes": []})
    entries = admin.get("/api/v1/accounts/audit", params={"limit": 6}).json()["entries"]
    assert [(e["who"], e["address"], e["action"], e["outcome"], e["detail"]) for e in entries] == [
        ("viewer", AWAY[0], "PUT /api/v1/labels/gate/1/0", "403", ""),
        ("viewer", AWAY[0], "sign-in", "ok", ""),
        ("admin", AWAY[0], "PUT /api/v1/labels/gate/9/9", "404", ""),
        ("admin", AWAY[0], "PUT /api/v1/labels/gate/1/0", "200", ""),
        ("admin", AWAY[0], "user.add", "ok", "bo as viewer"),
        ("admin", AWAY[0], "sign-in", "ok", ""),
    ]


def test_the_audit_log_comes_in_pages(house: House) -> None:
    for n in range(10):
        house.accounts.audit("kim", "", f"step {n}", "ok")
    admin, seen, before = house.signed_in(), [], None
    while True:
        page = admin.get(
            "/api/v1/accounts/audit", params={"limit": 3, "who": "kim"} | ({"before": before} if before else {})
        ).json()
        seen += [entry["action"] for entry in page["entries"]]
        before = page["next"]
        if before is None:
            break
    assert seen == [f"step {n}" for n in reversed(range(10))]


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_lets_the_admin_in(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **more: Any) -> None:
        raise StorageError("no space left", code="full")

    for method in ("add_session", "add_audit", "touch_session", "end_sessions_before"):
        monkeypatch.setattr(house.kept, method, full)
    page = house.signed_in()
    assert page.get("/api/v1/status").status_code == 200
    assert len(page.get("/api/v1/accounts/sessions").json()) == 1
    house.kept.set_role("operator", Role.ADMIN)
    house.accounts.remove_user("admin", by="operator", address="")
    assert page.get("/api/v1/status").status_code == 401, "the account is gone, and so is the session in memory"


def test_a_database_that_cannot_be_read_lets_nobody_in(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    page = house.signed_in()
    house.clock.pass_s(10)

    def broken(*args: Any) -> None:
        raise StorageError("damaged", code="corrupt")

    monkeypatch.setattr(house.kept, "session", broken)
    assert page.get("/api/v1/status").status_code == 401


def test_a_mistake_of_ours_is_told_without_details(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> None:
        raise RuntimeError("zzCANARYzz")

    client = TestClient(house.app(), base_url="http://box.local", raise_server_exceptions=False)
    monkeypatch.setattr(house.accounts, "sign_in", wrong)
    answer = client.post("/api/v1/sign-in", json={"name": "a", "password": "b"})
    assert (answer.status_code, answer.json()["code"]) == (500, "unexpected")
    assert "CANARY" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("length", ["1073741824", "300000", "9" * 30])
def test_a_body_that_is_announced_as_too_long_is_refused_unread(house: House, length: str) -> None:
    answer = house.client().post(
        "/api/v1/sign-in", content=b"{}", headers={"Content-Type": "application/json", "Content-Length": length}
    )
    assert answer.status_code == 413


def test_page_header_is_what_the_pages_send() -> None:
    from edge.api import STATIC

    assert '"X-Driftbox"' in (STATIC / "ui.js").read_text(encoding="utf-8")
    assert list(PAGE) == ["X-Driftbox"]
