"""Who is let in: the authority, the rules of the own broker; and the planner beside the steps."""

from __future__ import annotations

import contextlib
import ssl
import stat
import threading
from pathlib import Path

import pytest
from amqtt.contexts import Action
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cluster.controller.authority import DAY_S, LIVES_S, Authority, key_digest
from cluster.controller.broker_rules import CONTROLLER_USER, box_of, may
from cluster.controller.core import PlannerBeside, PlannerHere
from cluster.controller.round import RoundRules
from cluster.types import FleetState
from configs.errors import EnvironmentLacking, UsageError
from edge.telemetry.embedded_broker import _Served
from tests.support.mosquitto import eventually

NOW_S = 1_800_000_000.0


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> str:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "boss")])
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def der(pem: str) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(serialization.Encoding.DER)


def test_the_authority_is_made_once_and_its_key_is_for_its_user_only(tmp_path: Path) -> None:
    first = Authority(tmp_path / "ca", now_utc_s=NOW_S)
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert Authority(tmp_path / "ca", now_utc_s=NOW_S).fingerprint == first.fingerprint


def test_killed_between_its_two_files_it_is_made_anew_nobody_has_joined_yet(tmp_path: Path) -> None:
    Authority(tmp_path, now_utc_s=NOW_S).cert_file.unlink()
    assert Authority(tmp_path, now_utc_s=NOW_S).pem.startswith("-----BEGIN")


@pytest.mark.parametrize("spoiled", ["ca.key", "ca.crt"])
def test_an_authority_that_cannot_be_used_is_never_replaced(tmp_path: Path, spoiled: str) -> None:
    Authority(tmp_path, now_utc_s=NOW_S)
    (tmp_path / spoiled).write_text("nonsense")
    with pytest.raises(EnvironmentLacking, match="back-up"):
        Authority(tmp_path, now_utc_s=NOW_S)
    assert (tmp_path / spoiled).read_text() == "nonsense"


def test_a_box_is_called_what_the_controller_says_for_ninety_days(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "one", now_utc_s=NOW_S)
    issued = authority.sign(request(), "gate", now_utc_s=NOW_S)
    peer = authority.peer(der(issued.pem))
    assert peer is not None
    assert (peer.box, peer.fingerprint) == ("gate", issued.fingerprint)
    assert issued.until_utc_s == pytest.approx(NOW_S + LIVES_S, abs=1.0)
    other = Authority(tmp_path / "two", now_utc_s=NOW_S)
    assert other.peer(der(issued.pem)) is None
    assert authority.peer(b"nonsense") is None
    authority.server(["127.0.0.1", "fleet.example"], now_utc_s=NOW_S)
    assert authority.peer(der(authority.server_cert_file.read_text())) is None, "the controller's own is no box's"


def test_requests_that_are_none_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now_utc_s=NOW_S)
    for wrong in (
        "",
        "nonsense",
        request(rsa.generate_private_key(65537, 2048)),
        request(ec.generate_private_key(ec.SECP384R1())),
    ):  # type: ignore[arg-type]
        with pytest.raises(UsageError) as error:
            authority.sign(wrong, "gate", now_utc_s=NOW_S)
        assert error.value.code == "csr"
    key = ec.generate_private_key(ec.SECP256R1())
    assert key_digest(request(key)) == key_digest(request(key)) != key_digest(request())


def test_the_controllers_certificate_is_made_anew_in_time_and_for_new_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now_utc_s=NOW_S)
    assert authority.server(["127.0.0.1"], now_utc_s=NOW_S)
    assert not authority.server(["127.0.0.1"], now_utc_s=NOW_S)
    assert authority.server(["127.0.0.1", "fleet.example"], now_utc_s=NOW_S)
    assert not authority.server(["fleet.example"], now_utc_s=NOW_S + 200 * DAY_S)
    assert authority.server(["fleet.example"], now_utc_s=NOW_S + 320 * DAY_S)
    authority.server_key_file.write_text("nonsense")
    assert authority.server(["fleet.example"], now_utc_s=NOW_S + 320 * DAY_S)


@pytest.mark.parametrize(
    ("user", "topic", "action", "allowed"),
    [
        ("gate", "driftbox/here/gate/report", Action.PUBLISH, True),
        ("gate", "driftbox/here/gate/desired", Action.SUBSCRIBE, True),
        ("gate", "driftbox/here/gate/#", Action.SUBSCRIBE, True),
        ("gate", "driftbox/fleet/controller", Action.SUBSCRIBE, True),
        ("gate", "driftbox/fleet/controller", Action.PUBLISH, False),
        ("gate", "driftbox/here/hall/report", Action.PUBLISH, False),
        ("gate", "driftbox/here/hall/desired", Action.RECEIVE, False),
        ("gate", "driftbox/+/gate/report", Action.SUBSCRIBE, False),
        ("gate", "driftbox/here/+/desired", Action.SUBSCRIBE, False),
        ("gate", "driftbox/here/#", Action.SUBSCRIBE, False),
        ("gate", "#", Action.SUBSCRIBE, False),
        ("gate", "driftbox/here/gate", Action.PUBLISH, False),
        ("gate", "elsewhere/here/gate/report", Action.PUBLISH, False),
        ("nobody", "driftbox/here/gate/report", Action.PUBLISH, False),
        (CONTROLLER_USER, "driftbox/+/+/report", Action.SUBSCRIBE, True),
    ],
)
def test_whose_topics_are_whose(user: str, topic: str, action: Action, allowed: bool) -> None:
    assert may(user, topic, action, "driftbox") is allowed


def test_certificates_out_of_time_or_revoked_open_nothing_at_the_broker(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now_utc_s=NOW_S)
    issued = authority.sign(request(), "gate", now_utc_s=NOW_S)
    assert box_of(der(issued.pem), frozenset(), NOW_S) == "gate"
    assert box_of(der(issued.pem), frozenset({issued.fingerprint}), NOW_S) is None
    assert box_of(der(issued.pem), frozenset(), NOW_S + LIVES_S + 1) is None
    assert box_of(der(issued.pem), frozenset(), NOW_S - 2 * DAY_S) is None
    assert box_of(b"nonsense", frozenset(), NOW_S) is None


def test_a_planner_here_has_found_it_and_tells_it_once() -> None:
    planner = PlannerHere()
    planner.begin(FleetState(), RoundRules(), NOW_S)
    assert planner.take() == ()


def test_a_planner_beside_works_on_one_state_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go, asked = threading.Event(), list[float]()

    def slow(state: FleetState, rules: object, now_utc_s: float) -> tuple[str, ...]:
        asked.append(now_utc_s)
        go.wait(120.0)
        return (f"at {now_utc_s}",)

    monkeypatch.setattr("cluster.controller.core.plan_placement", slow)
    planner = PlannerBeside()
    planner.begin(FleetState(), RoundRules(), 1.0)
    planner.begin(FleetState(), RoundRules(), 2.0)
    assert planner.take() == ()
    go.set()
    assert eventually(planner.take, "it has found it") == ("at 1.0",)
    assert (planner.take(), asked) == ((), [1.0])
    planner.close()


def test_a_certificate_is_taken_up_when_both_of_its_files_are_new(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now_utc_s=NOW_S)
    authority.server(["one.example"], now_utc_s=NOW_S)
    files = authority.server_cert_file, authority.server_key_file
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    served = _Served(context, *files)
    old_key = files[1].read_bytes()
    authority.server(["two.example"], now_utc_s=NOW_S)
    new_key = files[1].read_bytes()
    files[1].write_bytes(old_key)
    assert shown_by(context) == ["one.example"]
    for _ in range(2):
        with pytest.raises(OSError, match="KEY_VALUES_MISMATCH"):
            served.look()
        assert shown_by(context) == ["one.example"], "half of a change is none"
    files[1].write_bytes(new_key)
    served.look()
    assert shown_by(context) == ["two.example"]


def shown_by(context: ssl.SSLContext) -> list[str]:
    """The names in the certificate that a server with this context shows; in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = context.wrap_bio(there, back, server_side=True), client.wrap_bio(back, there)
    for _ in range(3):
        for end in reversed(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    certificate = x509.load_der_x509_certificate(ends[1].getpeercert(binary_form=True) or b"")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names.get_values_for_type(x509.DNSName))
