"""The box's own certificate and a given one: made, kept, renewed, refused with a clear word. Time is a number; no network."""

from __future__ import annotations

import ipaddress
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from configs.errors import DriftboxError, EnvironmentLacking
from configs.load import parse_config
from configs.schema import BoxConfig
from edge import doctor
from edge.doctor import Level
from edge.web import tls
from edge.web.tls import DAY_S, Certificates, CertificateWatch, look_at, make_own, own_paths
from tests.support.ports import free_port

NOW = 1_790_000_000.0
LOCAL = ipaddress.ip_address("127.0.0.1")


@pytest.fixture(autouse=True)
def _a_machine_of_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "machine_names", lambda: ("box", "box.local"))
    monkeypatch.setattr(tls.psutil, "net_if_addrs", dict)


def config(tmp_path: Path, web: str = "tls: own") -> BoxConfig:
    return parse_config(f"box: {{data_dir: {tmp_path}}}\nweb: {{{web}}}")


def certificates(tmp_path: Path, web: str = "tls: own", *, now_utc: float = NOW) -> Certificates:
    return Certificates(config(tmp_path, web).web, tmp_path, now_utc=now_utc)


def given(folder: Path, *, now_utc: float = NOW, name: str = "given.example") -> str:
    """A pair of files, and the configuration that names them."""
    cert, key = make_own({name}, {LOCAL}, now_utc=now_utc)
    (folder / "given.crt").write_bytes(cert)
    (folder / "given.key").write_bytes(key)
    return f"tls: given, cert_file: {folder}/given.crt, key_file: {folder}/given.key"


# --- own --------------------------------------------------------------------------------------------------------------


def test_the_own_certificate_is_made_once_and_its_key_is_nobodys_business(tmp_path: Path) -> None:
    first = certificates(tmp_path, "tls: own, host: 192.0.2.5, hostnames: [cam.example]")
    cert_file, key_file = own_paths(tmp_path)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    found = first.certificate
    assert found.names == {"localhost", "box", "box.local", "cam.example", "127.0.0.1", "::1", "192.0.2.5"}
    assert found.until_utc == NOW + 365 * DAY_S
    assert found.from_utc < NOW
    assert len(found.fingerprint) == 95
    before = cert_file.read_bytes()
    assert certificates(tmp_path, "tls: own, host: 192.0.2.5, hostnames: [cam.example]").certificate == found
    assert cert_file.read_bytes() == before


@pytest.mark.parametrize(("later_days", "is_new"), [(300, False), (334, False), (336, True), (400, True), (-10, True)])
def test_it_is_renewed_in_time_with_the_same_key(tmp_path: Path, later_days: float, is_new: bool) -> None:
    served = certificates(tmp_path)
    cert_file, key_file = own_paths(tmp_path)
    cert, key = cert_file.read_bytes(), key_file.read_bytes()
    assert served.look(NOW + later_days * DAY_S) == []
    assert (cert_file.read_bytes() != cert) is is_new
    assert key_file.read_bytes() == key, "a pin of the key holds"
    if is_new:
        assert served.certificate.until_utc == NOW + (later_days + 365) * DAY_S


def test_another_name_needs_another_certificate(tmp_path: Path) -> None:
    first = certificates(tmp_path).certificate
    second = certificates(tmp_path, "tls: own, hostnames: [New.Example]").certificate
    assert "new.example" in second.names - first.names


def test_addresses_of_ipv6_that_come_and_go_renew_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Address:
        address = "2001:db8::77"

    first = certificates(tmp_path).certificate
    monkeypatch.setattr(tls.psutil, "net_if_addrs", lambda: {"eth0": [Address()]})
    assert certificates(tmp_path).certificate == first
    Address.address = "198.51.100.9"
    assert "198.51.100.9" in certificates(tmp_path).certificate.names


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_own_one_is_made_anew(tmp_path: Path, damage: bytes, which: int) -> None:
    certificates(tmp_path)
    own_paths(tmp_path)[which].write_bytes(damage)
    assert certificates(tmp_path).certificate.state(NOW) == "good"


def test_names_that_no_certificate_can_hold_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "machine_names", lambda: ("bücher", "a" * 64, "under_score", "fine"))
    assert certificates(tmp_path).certificate.names == {"localhost", "fine", "127.0.0.1", "::1"}


def test_the_key_is_not_readable_by_others_even_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from configs import files

    modes: list[int] = []
    monkeypatch.setattr(
        files.os, "replace", lambda a, b, r=os.replace: (modes.append(stat.S_IMODE(os.stat(a).st_mode)), r(a, b))
    )
    old = os.umask(0)
    try:
        files.atomic_write(tmp_path / "secret", b"x", secret=True)
    finally:
        os.umask(old)
    assert modes == [0o600]


# --- given ------------------------------------------------------------------------------------------------------------


def test_a_given_one_is_served(tmp_path: Path) -> None:
    served = certificates(tmp_path, given(tmp_path))
    assert served.first_notes == []
    assert "given.example" in served.certificate.names
    assert not own_paths(tmp_path)[0].exists(), "no own one is needed"


def wrong_key(folder: Path) -> None:
    (folder / "given.key").write_bytes(make_own({"x"}, {LOCAL}, now_utc=NOW)[1])


def locked_key(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "given.key").read_bytes(), None)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"zzCANARYzz")
    )
    (folder / "given.key").write_bytes(text)


def swapped(folder: Path) -> None:
    cert, key = (folder / "given.crt").read_bytes(), (folder / "given.key").read_bytes()
    (folder / "given.crt").write_bytes(key)
    (folder / "given.key").write_bytes(cert)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (wrong_key, "is not the key of"),
        (locked_key, "locked by a password"),
        (swapped, "holds no certificate"),
        (lambda f: (f / "given.crt").unlink(), "cannot be read"),
        (lambda f: (f / "given.key").unlink(), "cannot be read"),
        (lambda f: (f / "given.crt").write_bytes(b"\x30\x82"), "holds no certificate"),
        (lambda f: (f / "given.key").write_text("hello"), "holds no private key"),
    ],
)
def test_one_that_cannot_be_used_refuses_the_start_by_name(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    web = given(tmp_path)
    spoil(tmp_path)
    with pytest.raises(EnvironmentLacking, match=words) as caught:
        certificates(tmp_path, web)
    assert caught.value.code == "certificate"
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    assert "given." in caught.value.message
    finding = doctor.guarded("certificate", doctor.check_certificate, config(tmp_path, web))
    assert (finding.level, words in finding.text) == (Level.BAD, True)


def test_one_that_has_expired_stops_no_box(tmp_path: Path) -> None:
    served = certificates(tmp_path, given(tmp_path, now_utc=NOW - 400 * DAY_S))
    assert "expired 35 days ago" in served.first_notes[0]
    assert "localhost" in served.certificate.names, "the own one stands in"
    assert served.look(NOW + 600) == [], "told once a day"
    assert "36 days ago" in served.look(NOW + DAY_S)[0]
    given(tmp_path, now_utc=NOW)
    assert served.look(NOW + DAY_S + 600) == []
    assert "given.example" in served.certificate.names, "a newer file is taken up"


@pytest.mark.parametrize(("left_days", "told"), [(100, False), (22, False), (20, True), (1, True)])
def test_the_end_is_told_three_weeks_before(tmp_path: Path, left_days: float, told: bool) -> None:
    served = certificates(tmp_path, given(tmp_path, now_utc=NOW - (365 - left_days) * DAY_S))
    assert bool(served.first_notes) is told
    assert "given.example" in served.certificate.names


def test_a_clock_that_is_behind_is_asked_about(tmp_path: Path) -> None:
    served = certificates(tmp_path, given(tmp_path), now_utc=1000.0)
    assert "clock" in served.first_notes[0]


def test_trouble_while_it_runs_leaves_what_is_in_force(tmp_path: Path) -> None:
    served = certificates(tmp_path, given(tmp_path))
    before = served.certificate
    kept = (tmp_path / "given.crt").read_bytes()
    (tmp_path / "given.crt").write_bytes(b"half a fi")
    assert "stays as it is" in served.look(NOW + 1)[0]
    assert served.look(NOW + 2) == []
    (tmp_path / "given.crt").write_bytes(kept)
    assert served.look(NOW + 3) == []
    assert served.certificate == before


def test_the_watch_looks_and_tells_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.001)
    served, heard = certificates(tmp_path, given(tmp_path)), threading.Event()
    (tmp_path / "given.crt").unlink()
    with CertificateWatch(served, lambda: NOW, lambda text: heard.set()):
        assert heard.wait(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "certificate"]


# --- configuration and doctor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("web", "kind"),
    [("port: 80", "off"), ("host: 127.0.0.9", "off"), ('host: "::1"', "off"), ("host: localhost", "off"), ("host: 0.0.0.0", "own"),
     ('host: "::"', "own"), ("host: 192.0.2.1", "own"), ("host: 0.0.0.0, tls: 'off'", "off"), ("tls: own", "own")],
)  # fmt: skip
def test_when_the_page_is_served_with_tls(web: str, kind: str) -> None:
    assert parse_config(f"web: {{{web}}}").web.tls_kind == kind


@pytest.mark.parametrize(
    "web", ["tls: given", "tls: given, cert_file: a", "tls: own, cert_file: a, key_file: b", "key_file: b", "tls: maybe",
            "hostnames: [https://x]", "hostnames: [a b]", "hostnames: ['']", "hostnames: [x:80]", "hostnames: box", "login: 1"],
)  # fmt: skip
def test_what_cannot_be_configured(web: str) -> None:
    with pytest.raises(DriftboxError):
        parse_config(f"web: {{{web}}}")


def test_doctor_tells_how_the_page_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.time, "time", lambda: NOW)

    def level(web: str) -> tuple[Level, str]:
        found = doctor.check_certificate(config(tmp_path, web))
        return found.level, found.text

    assert level("port: 80")[0] is Level.OK
    assert level("enabled: false")[0] is Level.OK
    assert level("host: 0.0.0.0, tls: 'off'") == (Level.WARN, level("host: 0.0.0.0, tls: 'off'")[1])
    assert "at the first start" in level("host: 0.0.0.0")[1]
    certificates(tmp_path)
    assert "renews it by itself" in level("host: 0.0.0.0")[1]
    assert level(given(tmp_path))[0] is Level.OK
    assert level(given(tmp_path, now_utc=NOW - 350 * DAY_S))[0] is Level.WARN
    assert level(given(tmp_path, now_utc=NOW - 400 * DAY_S))[0] is Level.BAD
    assert level(given(tmp_path, now_utc=NOW + 10 * DAY_S))[0] is Level.WARN


def test_doctor_warns_of_an_open_page_without_login() -> None:
    port = free_port()
    found = doctor.check_port(parse_config(f"web: {{host: 0.0.0.0, port: {port}, login: false}}"))
    assert (found.level, "without login" in found.text) == (Level.WARN, True)
    assert doctor.check_port(parse_config(f"web: {{host: 0.0.0.0, port: {port}}}")).level is Level.OK


def test_the_context_speaks_no_old_tls(tmp_path: Path) -> None:
    context = certificates(tmp_path).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION


def test_what_is_made_can_be_read_again(tmp_path: Path) -> None:
    given(tmp_path, name="a.example")
    found = look_at(tmp_path / "given.crt", tmp_path / "given.key")
    assert found.names == {"a.example", "127.0.0.1"}
    assert found.left_words(NOW) == "good for 365 days"
