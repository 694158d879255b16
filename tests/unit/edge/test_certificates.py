"""What a stranger sends as a certificate is one or a ValueError: no other error of the library gets out."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from edge.certificates import read_certificate
from tests.support.authority import Authority


@pytest.fixture(scope="module")
def der(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pem = Authority(tmp_path_factory.mktemp("ca")).issue("a").cert.read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)


def test_pem_and_der_are_read_and_text_before_pem_is_passed_over(der: bytes) -> None:
    found = read_certificate(der)
    pem = found.public_bytes(serialization.Encoding.PEM)
    assert read_certificate(pem) == read_certificate(b"Certificate:\n    Data:\n" + pem) == found


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_any_changed_bit_gives_a_certificate_or_a_value_error(der: bytes) -> None:
    refused = 0
    for at in range(len(der) * 8):
        changed = bytearray(der)
        changed[at // 8] ^= 1 << at % 8
        try:
            read_certificate(bytes(changed)).fingerprint  # noqa: B018
        except ValueError:
            refused += 1
    assert 0 < refused < len(der) * 8


def test_a_version_that_does_not_exist_is_a_value_error(der: bytes) -> None:
    version = der.index(b"\xa0\x03\x02\x01\x02") + 4
    with pytest.raises(ValueError, match="no certificate"):
        read_certificate(der[:version] + b"\x01" + der[version + 1 :])


@given(data=st.binary(max_size=400))
def test_rubbish_is_a_value_error(data: bytes) -> None:
    for bad in (data, b"-----BEGIN CERTIFICATE-----\n" + data):
        with pytest.raises(ValueError, match="no certificate"):
            read_certificate(bad)
