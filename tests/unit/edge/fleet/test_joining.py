"""Joining, renewing, leaving: who is believed, what is kept, what a kill or a refusal leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from configs.errors import DriftboxError, EnvironmentLacking, StorageError, UsageError
from edge.fleet import joining
from edge.fleet.joining import Candidate, join, leave, renew, url_of
from edge.fleet.membership import MEMBER, MemberFolder, Membership, moved
from edge.fleet.wiring import renewal_is_due
from tests.support.fleet_box import NOW_S, FakeController

HALL = Candidate(box="hall", site="site", capacity_pct=100, software="1")


@pytest.fixture
def controller(tmp_path: Path) -> FakeController:
    return FakeController(tmp_path / "ca")


@pytest.fixture
def folder(tmp_path: Path) -> MemberFolder:
    return MemberFolder(tmp_path / "box")


def joined(folder: MemberFolder, controller: FakeController, code: str = "") -> Membership:
    return join(
        folder, "fleet.example", code or controller.code, HALL, now_utc_s=NOW_S, transport=controller.transport()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("fleet.example", "https://fleet.example:8470"),
        ("https://10.0.0.5:9000/", "https://10.0.0.5:9000"),
        ("https://[fd00::1]", "https://[fd00::1]:8470"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert url_of(text) == url


@pytest.mark.parametrize(
    "text", ["", "http://fleet.example", "https://u:p@fleet.example", "https://x/y", "https://h:99999", "ftp://x"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="no controller's address"):
        url_of(text)


def test_joining_keeps_all_that_is_needed_and_the_key_stays(folder: MemberFolder, controller: FakeController) -> None:
    member = joined(folder, controller)
    assert folder.read() == member
    assert (member.box, member.broker.port, member.report_every_s) == ("hall", 8883, 5.0)
    key = folder.path("box.key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert folder.root.stat().st_mode & 0o777 == 0o700
    certificate = x509.load_pem_x509_certificate(folder.path("box.pem").read_bytes())
    assert certificate.public_key() == folder.key().public_key()
    assert controller.asked == ["/fleet/v1/ca", "/fleet/v1/join"]
    assert folder.tls().get_ca_certs()
    assert "PRIVATE" not in json.dumps(controller.members)
    mqtt = folder.mqtt(member)
    assert (mqtt.tls, mqtt.discovery, mqtt.obeys, mqtt.client_id) == (True, False, False, "driftbox-fleet-hall")


def test_a_member_does_not_join_again(folder: MemberFolder, controller: FakeController) -> None:
    joined(folder, controller)
    with pytest.raises(UsageError, match="is a member"):
        joined(folder, controller)


def test_somebody_else_at_the_address_is_not_believed(folder: MemberFolder, controller: FakeController, tmp_path: Path) -> None:
    """The code is for another authority: the secret is never sent."""
    other = FakeController(tmp_path / "other")
    with pytest.raises(EnvironmentLacking, match="is not the controller that made this code"):
        joined(folder, other, code=controller.code)
    assert other.asked == ["/fleet/v1/ca"]
    assert folder.read() is None


@pytest.mark.parametrize("code", ["", "AAAA-BBBB-CCCC-DDDD", "AAAA-BBBB-CCCC-DDDD.0123", "AAAA-BBBB-CCCC-DDDD." + "g" * 32])
def test_a_code_without_its_second_part_is_refused_before_anybody_is_asked(
    folder: MemberFolder, controller: FakeController, code: str
) -> None:
    with pytest.raises(UsageError, match="no join code"):
        join(folder, "fleet.example", code, HALL, now_utc_s=NOW_S, transport=controller.transport())
    assert controller.asked == []


@pytest.mark.parametrize("refusal", ["code_expired", "code_used", "id_taken"])
def test_refusals_come_in_the_controllers_words_and_leave_no_membership(
    folder: MemberFolder, controller: FakeController, refusal: str
) -> None:
    controller.refuses = (403, refusal)
    with pytest.raises(UsageError) as caught:
        joined(folder, controller)
    assert (caught.value.code, caught.value.remedy) == (refusal, "do y")
    assert folder.read() is None


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_key(folder: MemberFolder, controller: FakeController) -> None:
    controller.refuses = (503, "not_in_charge")
    with pytest.raises(EnvironmentLacking) as caught:
        joined(folder, controller)
    assert caught.value.code == "away"
    before = folder.path("box.key").read_bytes()
    controller.refuses = None
    joined(folder, controller)
    assert folder.path("box.key").read_bytes() == before


def test_a_certificate_for_another_key_is_not_taken(folder: MemberFolder, controller: FakeController) -> None:
    controller.other_key = True
    with pytest.raises(EnvironmentLacking, match="not for this box's key"):
        joined(folder, controller)
    assert folder.read() is None


def test_killed_before_the_last_file_it_is_no_member_and_may_ask_again(
    folder: MemberFolder, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    real: Any = joining.MemberFolder.keep

    def dies(self: MemberFolder, *args: Any, **more: Any) -> None:
        from edge.fleet import membership

        def write(path: Path, *a: Any, **m: Any) -> None:
            if path.name == MEMBER:
                raise Killed
            path.write_bytes(a[0])

        monkeypatch.setattr(membership, "atomic_write", write)
        real(self, *args, **more)

    monkeypatch.setattr(joining.MemberFolder, "keep", dies)
    with pytest.raises(Killed):
        joined(folder, controller)
    assert folder.read() is None
    monkeypatch.undo()
    assert joined(folder, controller).box == "hall"


def test_a_renewed_certificate_is_for_the_same_key(folder: MemberFolder, controller: FakeController) -> None:
    member = joined(folder, controller)
    first = folder.expires_utc_s()
    controller.now_utc_s += 60 * 86_400
    renew(folder, member, client=controller.client())
    assert folder.expires_utc_s() == first + 60 * 86_400
    folder.tls()


def test_a_renewal_that_is_refused_leaves_the_certificate(folder: MemberFolder, controller: FakeController) -> None:
    member = joined(folder, controller)
    before = folder.path("box.pem").read_bytes()
    controller.refuses = (401, "certificate_expired")
    with pytest.raises(UsageError, match="certificate_expired"):
        renew(folder, member, client=controller.client())
    assert folder.path("box.pem").read_bytes() == before


def test_when_a_renewal_is_due() -> None:
    assert not renewal_is_due(0, 90, 59)
    assert renewal_is_due(0, 90, 61)
    assert renewal_is_due(0, 90, 100)


def test_leaving_tells_the_controller_and_forgets_all(folder: MemberFolder, controller: FakeController) -> None:
    joined(folder, controller)
    folder.path("wishes.json").write_text("x")
    assert leave(folder, client=controller.client()) == ""
    assert controller.asked[-1] == "/fleet/v1/leave"
    assert not folder.root.exists()
    with pytest.raises(UsageError, match="member of no fleet"):
        leave(folder)


def test_leaving_works_without_a_controller_and_says_so(folder: MemberFolder, controller: FakeController) -> None:
    joined(folder, controller)

    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    away = httpx.Client(base_url="https://fleet.example:8470", transport=httpx.MockTransport(nobody))
    assert "cannot be asked: no connection" in leave(folder, client=away)
    assert folder.read() is None


def test_a_damaged_membership_can_be_left(folder: MemberFolder) -> None:
    folder.root.mkdir(parents=True)
    folder.path(MEMBER).write_text('{"box": 1')
    with pytest.raises(StorageError, match="cannot be read"):
        folder.read()
    assert "cannot be read" in leave(folder)
    assert folder.read() is None


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"box": "hall"}', b'{"error": 5}'])
def test_what_answers_and_is_no_controller(folder: MemberFolder, controller: FakeController, body: bytes) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return (
            httpx.Response(200, text=controller.authority.pem)
            if request.url.path.endswith("/ca")
            else httpx.Response(200, content=body)
        )

    with pytest.raises(DriftboxError):
        join(folder, "fleet.example", controller.code, HALL, now_utc_s=NOW_S, transport=httpx.MockTransport(answer))
    assert folder.read() is None


def test_an_authority_that_is_none(folder: MemberFolder, controller: FakeController) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="welcome"))
    with pytest.raises(EnvironmentLacking, match="no controller"):
        join(folder, "fleet.example", controller.code, HALL, now_utc_s=NOW_S, transport=transport)


def test_another_controllers_address(folder: MemberFolder, controller: FakeController) -> None:
    member = joined(folder, controller)
    assert moved(member, "https://c2:8470/").url == "https://c2:8470"
    assert moved(member, "") is member
