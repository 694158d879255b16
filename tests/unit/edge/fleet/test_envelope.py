"""A sealed parcel is read by its addressee and by nobody else, and is known to come from a member."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from edge.fleet.envelope import Member, certificate_of, open_sealed, seal
from tests.support.authority import Authority

NOW_S = time.time()
SECRET = b"rtsp://watcher:s3cret@192.0.2.7/stream"


class Boxes:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)

    def member(self, name: str, **more: object) -> Member:
        pair = self.authority.issue(name, **more)  # type: ignore[arg-type]
        return Member.of_pem(
            key=pair.key.read_bytes(), certificate=pair.cert.read_bytes(), authority=self.authority.cert.read_bytes()
        )


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    return Boxes(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(boxes: Boxes) -> tuple[Member, Member]:
    return boxes.member("a"), boxes.member("b")


def sealed(a: Member, to: x509.Certificate, content: bytes = SECRET, parcel: str = "b.a.gate.1") -> bytes:
    return seal(content, parcel=parcel, sender=a, addressee=to, now_utc_s=NOW_S)


def test_the_addressee_reads_it_and_knows_who_sent_it(pair: tuple[Member, Member]) -> None:
    a, b = pair
    data = sealed(a, b.certificate)
    assert SECRET not in data
    opened = open_sealed(data, parcel="b.a.gate.1", member=b, now_utc_s=NOW_S, sender="a")
    assert (opened.content, opened.sender) == (SECRET, "a")
    assert sealed(a, b.certificate) != data, "equal contents do not look equal"


def test_another_box_cannot_read_it_nor_under_another_name(pair: tuple[Member, Member], boxes: Boxes) -> None:
    a, b = pair
    data = sealed(a, b.certificate)
    for member, name in ((a, "b.a.gate.1"), (b, "b.a.gate.2"), (boxes.member("b"), "b.a.gate.1")):
        with pytest.raises(UsageError):
            open_sealed(data, parcel=name, member=member, now_utc_s=NOW_S)
    with pytest.raises(UsageError, match="comes from a"):
        open_sealed(data, parcel="b.a.gate.1", member=b, now_utc_s=NOW_S, sender="c")


def test_a_changed_bit_anywhere_is_noticed(pair: tuple[Member, Member]) -> None:
    a, b = pair
    whole = sealed(a, b.certificate)
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
        with pytest.raises(UsageError):
            open_sealed(changed, parcel="b.a.gate.1", member=b, now_utc_s=NOW_S)


@given(data=st.binary(max_size=300), cut=st.integers(0, 2000))
@settings(max_examples=40, deadline=None)
def test_rubbish_and_halves_are_refused(pair: tuple[Member, Member], data: bytes, cut: int) -> None:
    a, b = pair
    whole = sealed(a, b.certificate)
    for bad in (data, whole[: cut % len(whole)], b"DRIFTBOX-PARCEL\x01" + data):
        with pytest.raises(UsageError):
            open_sealed(bad, parcel="b.a.gate.1", member=b, now_utc_s=NOW_S)


def test_who_is_not_of_the_fleet_or_has_expired_is_refused(pair: tuple[Member, Member], boxes: Boxes, tmp_path: Path) -> None:
    a, b = pair
    stranger = Boxes(tmp_path / "other").member("a")
    foreign = seal(SECRET, parcel="b.x", sender=stranger, addressee=stranger.certificate, to="a", now_utc_s=NOW_S)
    misled = Member(key=stranger.key, certificate=stranger.certificate, authority=b.authority)
    with pytest.raises(UsageError, match="not of this fleet"):
        open_sealed(foreign, parcel="b.x", member=misled, now_utc_s=NOW_S)
    with pytest.raises(UsageError, match="not of this fleet"):
        sealed(a, stranger.certificate)
    old = boxes.member("old", left=timedelta(days=-1))
    with pytest.raises(UsageError, match="holds until"):
        sealed(a, old.certificate)
    with pytest.raises(UsageError, match="holds until"):
        open_sealed(sealed(a, b.certificate), parcel="b.a.gate.1", member=b, now_utc_s=NOW_S + 400 * 86_400)
    with pytest.raises(UsageError, match="is of b, not of c"):
        seal(SECRET, parcel="p", sender=a, addressee=b.certificate, to="c", now_utc_s=NOW_S)


def test_what_is_no_key_or_certificate_is_refused() -> None:
    with pytest.raises(UsageError):
        certificate_of(b"-----BEGIN")
    with pytest.raises(UsageError):
        Member.of_pem(key=b"x", certificate=b"", authority=b"")
