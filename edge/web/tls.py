"""The certificate of the box: its own, or one that the operator gives.

The own one is made at the first start for all names and addresses of the machine, is good for a year, and is made anew a month before
that, or when the machine has got another name or IPv4 address (those of IPv6 change by themselves every day). Its key stays the same, so
that programs may pin it. A given one is looked at before it is used; a newer file is taken up without a restart. Who serves holds a
`Certificates` and lets it look from time to time.
"""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from configs.errors import EnvironmentLacking, StorageError
from configs.files import atomic_write, storage_errors
from configs.schema.box import WebSection
from edge.certificates import read_certificate
from edge.web.hosts import machine_names

DAY_S = 86_400.0
LIVES_S = 365 * DAY_S
#: The own certificate is made anew when less is left; a given one is told about.
RENEW_S, SOON_S = 30 * DAY_S, 21 * DAY_S
#: Clocks of those who look may be behind.
_SLACK_S = DAY_S
#: Between two looks.
LOOK_EVERY_S = 600.0
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What one must know of it. fingerprint: SHA-256, as browsers show it; names: DNS names and addresses it is good for."""

    from_utc: float
    until_utc: float
    names: frozenset[str]
    fingerprint: str

    def state(self, now_utc: float) -> str:
        """'good', 'soon' (three weeks are left), 'expired' or 'early'."""
        if now_utc < self.from_utc:
            return "early"
        if now_utc >= self.until_utc:
            return "expired"
        return "soon" if self.until_utc - now_utc < SOON_S else "good"

    def left_words(self, now_utc: float) -> str:
        """'expired 3 days ago', 'good for 40 days'."""
        days = (self.until_utc - now_utc) / DAY_S
        return f"expired {-days:.0f} days ago" if days < 0 else f"good for {days:.0f} days"


def own_paths(data_dir: Path) -> tuple[Path, Path]:
    """(certificate, key) of the box's own."""
    return data_dir / "web" / "own.crt", data_dir / "web" / "own.key"


# --- given ------------------------------------------------------------------------------------------------------------


def look_at(cert_file: Path, key_file: Path) -> Certificate:
    """What the pair is. Raises EnvironmentLacking 'certificate' naming the file: unreadable, no PEM, key of another certificate."""
    cert, key = _load_cert(cert_file), _load_key(key_file)
    if _public(cert.public_key()) != _public(key.public_key()):
        raise _lacking(key_file, f"is not the key of {cert_file}", "give the key that the certificate was made with")
    return _described(cert)


def _load_cert(path: Path) -> x509.Certificate:
    try:
        return read_certificate(_read(path))
    except ValueError:
        raise _lacking(path, "holds no certificate", "it must be PEM (-----BEGIN CERTIFICATE-----)") from None


def _load_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(_read(path), password=None)
    except TypeError:
        raise _lacking(
            path, "is locked by a password", "take it off: openssl pkey -in KEY -out PLAIN; chmod 600 PLAIN"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise _lacking(path, "holds no private key", "it must be PEM (-----BEGIN PRIVATE KEY-----)") from None


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise _lacking(path, f"cannot be read: {error.strerror}", "correct the path, or let this user read it") from None


def _lacking(path: Path, what: str, remedy: str) -> EnvironmentLacking:
    return EnvironmentLacking(f"web: {path} {what}", subject=str(path), remedy=remedy, code="certificate")


def _public(key: object) -> bytes:
    encode: Callable[..., bytes] = key.public_bytes  # type: ignore[attr-defined]
    return encode(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _described(cert: x509.Certificate) -> Certificate:
    try:
        found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset((*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))))
    except x509.ExtensionNotFound:
        names = frozenset()
    digest = hashlib.sha256(cert.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return Certificate(
        from_utc=cert.not_valid_before_utc.timestamp(), until_utc=cert.not_valid_after_utc.timestamp(), names=names,
        fingerprint=":".join(digest[at : at + 2] for at in range(0, len(digest), 2)),
    )  # fmt: skip


# --- own --------------------------------------------------------------------------------------------------------------


def own_names(web: WebSection) -> tuple[frozenset[str], frozenset[_Address]]:
    """(names, addresses) that the own certificate must be good for: this machine's, and those of the configuration."""
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    for found in (address.address for net in psutil.net_if_addrs().values() for address in net):
        _add_address(addresses, found)
    _add_address(addresses, web.host)
    names = {
        name
        for name in ("localhost", *machine_names(), *(n.lower().removesuffix(".") for n in web.hostnames))
        if _in_certificate(name)
    }
    return frozenset(names), frozenset(addresses)


def _add_address(addresses: set[_Address], text: str) -> None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # a MAC, a name, fe80::1%eth0
        return
    if not (address.is_unspecified or address.is_link_local or address.is_multicast):
        addresses.add(address)


def _in_certificate(name: str) -> bool:
    return 0 < len(name) < 64 and name.isascii() and all(c.isalnum() or c in "-." for c in name)


def make_own(
    names: Iterable[str], addresses: Iterable[_Address], *, now_utc: float, key_pem: bytes | None = None
) -> tuple[bytes, bytes]:
    """(certificate, key) as PEM. key_pem: the key to go on with; None, or one that cannot be read: a new one."""
    key = _own_key(key_pem)
    named, now = sorted(names), datetime.fromtimestamp(now_utc, UTC)
    who = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, named[0]), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Driftbox")]
    )
    good_for = [*map(x509.DNSName, named), *map(x509.IPAddress, sorted(addresses, key=lambda a: (a.version, int(a))))]
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    cert = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(seconds=_SLACK_S))
        .not_valid_after(now + timedelta(seconds=LIVES_S))
        .add_extension(x509.SubjectAlternativeName(good_for), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    return cert.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _own_key(key_pem: bytes | None) -> ec.EllipticCurvePrivateKey:
    try:
        kept = serialization.load_pem_private_key(key_pem, password=None) if key_pem else None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        kept = None
    return kept if isinstance(kept, ec.EllipticCurvePrivateKey) else ec.generate_private_key(ec.SECP256R1())


# --- serving ----------------------------------------------------------------------------------------------------------


class Certificates:
    """The TLS of one server. `look` when it is made, and from time to time.

    Raises EnvironmentLacking (a given certificate that cannot be used) and StorageError (the own one cannot be kept). A given one that
    has expired is no reason not to start: the own one stands in until a newer file is there.
    """

    def __init__(self, web: WebSection, data_dir: Path, *, now_utc: float) -> None:
        self._web, self._own = web, own_paths(data_dir)
        self._said = ""
        self._loaded: tuple[Path, str] | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])
        self.first_notes = self._look(now_utc)

    @property
    def certificate(self) -> Certificate:
        """The one in force."""
        assert self._loaded is not None
        return _described(_load_cert(self._loaded[0]))

    def look(self, now_utc: float) -> list[str]:
        """Renews or takes up what is to be; what people should know, each once. Trouble is told, and what is in force stays."""
        try:
            return self._look(now_utc)
        except (EnvironmentLacking, StorageError) as error:
            return self._told(f"the certificate stays as it is: {error.message}; {error.remedy}")

    def _look(self, now_utc: float) -> list[str]:
        if self._web.tls_kind != "given":
            self._load(*self._own, self._renewed(now_utc))
            return []
        assert self._web.cert_file is not None
        assert self._web.key_file is not None
        pair = self._web.cert_file.expanduser(), self._web.key_file.expanduser()
        found = look_at(*pair)
        if found.state(now_utc) == "expired":
            self._load(*self._own, self._renewed(now_utc))
            return self._told(
                f"{pair[0]} {found.left_words(now_utc)}; the box's own certificate stands in: put a newer one there"
            )
        self._load(*pair, found)
        if found.state(now_utc) == "soon":
            return self._told(
                f"{pair[0]} is {found.left_words(now_utc)}: put a newer one there, it is taken up without a restart"
            )
        if found.state(now_utc) == "early":
            return self._told(f"{pair[0]} is not good yet: is the clock right?")
        self._said = ""
        return []

    def _renewed(self, now_utc: float) -> Certificate:
        """The own certificate, made anew where it must be."""
        cert_file, key_file = self._own
        names, addresses = own_names(self._web)
        wanted = names | {str(address) for address in addresses if address.version == 4 or str(address) == self._web.host}
        try:
            found = look_at(cert_file, key_file)
            if found.state(now_utc) in ("good", "soon") and found.until_utc - now_utc > RENEW_S and wanted <= found.names:
                return found
        except EnvironmentLacking:
            pass
        kept = key_file.read_bytes() if key_file.is_file() else None
        cert_pem, key_pem = make_own(names, addresses, now_utc=now_utc, key_pem=kept)
        with storage_errors(key_file):
            key_file.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(key_file, key_pem, secret=True)
        atomic_write(cert_file, cert_pem)
        return look_at(cert_file, key_file)

    def _load(self, cert_file: Path, key_file: Path, found: Certificate) -> None:
        if self._loaded == (cert_file, found.fingerprint):
            return
        try:
            self.context.load_cert_chain(cert_file, key_file)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise _lacking(
                cert_file, f"cannot be served ({reason})", "make it anew: RSA of 2048 bits at least, or P-256"
            ) from None
        self._loaded = cert_file, found.fingerprint

    def _told(self, text: str) -> list[str]:
        """The same thing with other days counted is the same news: once a day."""
        if text == self._said:
            return []
        self._said = text
        return [text]


class CertificateWatch:
    """Lets certificates look every ten minutes, in a thread of its own."""

    def __init__(self, certificates: Certificates, now_utc: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._certificates, self._now_utc, self._tell = certificates, now_utc, tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificate", daemon=True)

    def __enter__(self) -> CertificateWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            for text in self._certificates.look(self._now_utc()):
                self._tell(text)
