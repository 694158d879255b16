"""The fleet's own certificate authority: who is a box of this fleet, and that the controller is its controller.

Made at the first start, in `<data>/ca/`; its key is readable by this user only and never leaves. A box's certificate lives LIVES_S and
bears the box's id as its common name; whether it was revoked is the membership's to know. P-256 throughout: boxes seal parcels for each
other's keys.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from configs.errors import EnvironmentLacking, UsageError
from configs.files import atomic_write, storage_errors
from edge.certificates import read_certificate
from scheduler.fleet.types import checked

DAY_S = 86_400.0
#: Of a box's certificate, of the controller's, of the authority.
LIVES_S, SERVER_LIVES_S, CA_LIVES_S = 90 * DAY_S, 365 * DAY_S, 20 * 365 * DAY_S
#: The controller's own is made anew when less is left.
RENEW_S = 60 * DAY_S
#: Clocks of those who look may be behind.
_SLACK_S = DAY_S
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A certificate. fingerprint: hex SHA-256 of its DER."""

    pem: str
    fingerprint: str
    until_utc_s: float


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Whose certificate it is, as it says itself; whether it is good is asked with `Authority.problem`."""

    box: str
    fingerprint: str
    from_utc_s: float
    until_utc_s: float


class Authority:
    """Opens the authority in `folder`, making it when there is none. Raises StorageError, and EnvironmentLacking for one that cannot be
    used: it is never replaced by a new one, for then no box would be a member any more."""

    def __init__(self, folder: Path, *, now_utc_s: float) -> None:
        self.folder, self.cert_file, self._key_file = folder, folder / "ca.crt", folder / "ca.key"
        self.server_cert_file, self.server_key_file = folder / "server.crt", folder / "server.key"
        with storage_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._key_file.exists() and not self.cert_file.exists():
            self._make(now_utc_s)
        self._key, self._cert = self._load()

    # --- itself -------------------------------------------------------------------------------------------------------

    @property
    def pem(self) -> str:
        return self._cert.public_bytes(_PEM).decode()

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of its DER; join codes bear the first 32 digits."""
        return _fingerprint(self._cert)

    def _make(self, now_utc_s: float) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Driftbox fleet authority")
        cert = (
            _builder(name, name, key.public_key(), now_utc_s, CA_LIVES_S)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without its key could never be made good.
        atomic_write(self._key_file, _key_pem(key), secret=True)
        atomic_write(self.cert_file, cert.public_bytes(_PEM))

    def _load(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            key = serialization.load_pem_private_key(self._key_file.read_bytes(), password=None)
            if not self.cert_file.exists():  # killed between the two files of the first start
                self._key_file.unlink()
                self._make(datetime.now(UTC).timestamp())
                return self._load()
            cert = read_certificate(self.cert_file.read_bytes())
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise self._unusable(getattr(error, "strerror", None) or "it cannot be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or _public(key.public_key()) != _public(cert.public_key()):
            raise self._unusable("key and certificate do not belong together")
        return key, cert

    def _unusable(self, why: str) -> EnvironmentLacking:
        return EnvironmentLacking(
            f"the fleet's authority in {self.folder} cannot be used: {why}", subject=str(self.folder), code="certificate",
            remedy="put ca.crt and ca.key back from a back-up; a new authority would mean that every box joins anew",
        )  # fmt: skip

    # --- issuing ------------------------------------------------------------------------------------------------------

    def server(self, names: Iterable[str], *, now_utc_s: float) -> bool:
        """Makes the controller's own certificate, for these names and addresses, unless there is a good one. Whether it is new."""
        wanted = sorted({name.lower() for name in names})
        if self._server_is_good(wanted, now_utc_s):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        cert = (
            _builder(_name("fleet"), self._cert.subject, key.public_key(), now_utc_s, SERVER_LIVES_S)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in wanted]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        atomic_write(self.server_key_file, _key_pem(key), secret=True)
        atomic_write(self.server_cert_file, cert.public_bytes(_PEM))
        return True

    def client(self, *, now_utc_s: float) -> tuple[Path, Path]:
        """(certificate, key) with which the controller proves itself to a given broker, as the user `fleet`; made anew at every
        start."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = (
            _builder(_name("fleet"), self._cert.subject, key.public_key(), now_utc_s, SERVER_LIVES_S)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self.folder / "client.crt", self.folder / "client.key"
        atomic_write(files[1], _key_pem(key), secret=True)
        atomic_write(files[0], cert.public_bytes(_PEM))
        return files

    def _server_is_good(self, wanted: list[str], now_utc_s: float) -> bool:
        try:
            cert = read_certificate(self.server_cert_file.read_bytes())
            key = serialization.load_pem_private_key(self.server_key_file.read_bytes(), password=None)
            cert.verify_directly_issued_by(self._cert)
            names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.ExtensionNotFound):
            return False
        if _public(key.public_key()) != _public(cert.public_key()):  # killed between the two files
            return False
        held = {str(v).lower() for kind in (x509.DNSName, x509.IPAddress) for v in names.get_values_for_type(kind)}
        return set(wanted) <= held and cert.not_valid_after_utc.timestamp() - now_utc_s > RENEW_S

    def sign(self, csr_pem: str, box: str, *, now_utc_s: float, lives_s: float = LIVES_S) -> Issued:
        """A certificate for a box: for the request's key, and our words for the rest. UsageError 'csr' for a request that is none."""
        key = request_key(csr_pem)
        cert = (
            _builder(_name(checked(box, "a box")), self._cert.subject, key, now_utc_s, lives_s)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"driftbox:box:{box}")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(
            pem=cert.public_bytes(_PEM).decode(),
            fingerprint=_fingerprint(cert),
            until_utc_s=cert.not_valid_after_utc.timestamp(),
        )

    def peer(self, der: bytes) -> Peer | None:
        """Who brings this certificate; None: it is not one of ours."""
        try:
            cert = read_certificate(der)
            cert.verify_directly_issued_by(self._cert)
            names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            usage = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            box = checked(str(names[0].value), "a box")
        except (ValueError, TypeError, IndexError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
            return None
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            return None
        return Peer(
            box=box, fingerprint=_fingerprint(cert), from_utc_s=cert.not_valid_before_utc.timestamp(),
            until_utc_s=cert.not_valid_after_utc.timestamp(),
        )  # fmt: skip


def request_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """The key of a certificate request that proves to have it. UsageError 'csr' otherwise."""
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key = request.public_key()
        good = request.is_signature_valid and isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm, InvalidSignature):
        good = False
    if not good:
        raise UsageError(
            "the certificate request cannot be used", code="csr", remedy="it must be PEM, for a P-256 key, and signed by it"
        )
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def key_digest(csr_pem: str) -> str:
    """Hex SHA-256 of the request's public key."""
    return hashlib.sha256(_public(request_key(csr_pem))).hexdigest()


# --- inside -----------------------------------------------------------------------------------------------------------


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, common), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Driftbox fleet")]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_utc_s: float, lives_s: float
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(now_utc_s, UTC)
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(seconds=_SLACK_S))
        .not_valid_after(now + timedelta(seconds=lives_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )  # fmt: skip


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=not signs, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _public(key: object) -> bytes:
    found: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def _fingerprint(cert: x509.Certificate) -> str:
    return cert.fingerprint(hashes.SHA256()).hex()
