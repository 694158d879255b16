"""A certificate authority for one test: certificates of servers and clients, good or expired."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    """folder: where its files lie."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Test authority {folder.name}")])
        certificate = (
            self._builder(self._name, self._key.public_key(), DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / "ca.pem"
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, left: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - 400 * DAY).not_valid_after(now + left)
        )  # fmt: skip

    def issue(self, name: str, *, left: timedelta = 365 * DAY, password: str = "") -> Pair:
        """A certificate for an address or a client's name. left: time it is still good for; negative: it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        certificate = (
            self._builder(subject, key.public_key(), left)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(cert=self.folder / f"{name}.pem", key=self.folder / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
        for file in (pair.cert, pair.key, self.cert):
            file.chmod(0o644)  # mosquitto reads them after it has given its rights away
        return pair
