"""Reading a certificate that a stranger may have written: it is one, whole, or a ValueError and nothing else.

`cryptography` parses late: a version, a name, a key or a time that is none is noticed where it is first asked for, by errors of several
families of which some are no ValueError (`InvalidVersion`). Here all of it is asked for once.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm


def read_certificate(data: bytes) -> x509.Certificate:
    """The first certificate in `data`, PEM or DER. ValueError: there is none whose name, key and time can be read."""
    read = x509.load_pem_x509_certificate if b"-----BEGIN" in data else x509.load_der_x509_certificate
    try:
        found = read(data)
        _ = found.subject, found.issuer, found.public_key(), found.not_valid_before_utc, found.not_valid_after_utc
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ValueError("no certificate that can be read") from error
    return found
