"""That the box is a member of a fleet, in the data folder under `fleet/`:

    member.json   who it is there, the controller's address, the broker   (written last: with it the box has joined)
    ca.pem        the fleet's authority: who the controller and the other boxes are
    box.pem       the box's certificate, renewed while it runs
    box.key       its key, made here, readable by this user only; it never leaves

Not in the configuration: an operator copies that from box to box, and none of this may be copied.
"""

from __future__ import annotations

import json
import shutil
import ssl
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import TypeAdapter, ValidationError

from configs.errors import EnvironmentLacking, StorageError
from configs.files import atomic_write, storage_errors
from configs.schema import MqttSection
from edge.certificates import read_certificate

FOLDER = "fleet"
MEMBER, CA, CERTIFICATE, KEY, WISHES, OUTBOX = "member.json", "ca.pem", "box.pem", "box.key", "wishes.json", "outbox.db"
#: Longest that the controller may take to answer; what moves parcels has its own.
TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Broker:
    """The fleet's broker. tls: with the certificates of the fleet, both ways."""

    host: str
    port: int
    tls: bool = True


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What joining gave. id: of this membership, another one each time a box joins; url: of the controller, no slash at its end."""

    id: str
    box: str
    site: str
    url: str
    prefix: str
    broker: Broker
    report_every_s: float
    joined_utc_s: float


_ADAPTER = TypeAdapter(Membership)


class MemberFolder:
    """`fleet/` of a data folder. Raises StorageError from every method that reads or writes."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / FOLDER

    def path(self, name: str) -> Path:
        return self.root / name

    def read(self) -> Membership | None:
        """None: the box has joined no fleet. StorageError 'corrupt' for a file that cannot be read."""
        path = self.path(MEMBER)
        try:
            with storage_errors(path):
                text = path.read_text() if path.exists() else None
            return _ADAPTER.validate_python(json.loads(text), strict=False) if text is not None else None
        except (ValueError, ValidationError):
            raise StorageError(
                f"{path} cannot be read", subject=str(path), code="corrupt", remedy="driftbox fleet leave, then join again"
            ) from None

    def key(self) -> ec.EllipticCurvePrivateKey:
        """The box's key; made at the first call, and kept over joins that were not answered: asking again must be with the same one."""
        path = self.path(KEY)
        with storage_errors(path):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
            if path.exists():
                try:
                    found = serialization.load_pem_private_key(path.read_bytes(), None)
                except (ValueError, TypeError):
                    found = None
                if isinstance(found, ec.EllipticCurvePrivateKey):
                    return found
        key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.PrivateFormat.PKCS8
        atomic_write(path, key.private_bytes(serialization.Encoding.PEM, pem, serialization.NoEncryption()), secret=True)
        return key

    def request(self, box: str) -> str:
        """A certificate request (PEM) for the box's key."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, box)])
        made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key(), hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def keep(self, member: Membership, *, ca: str, certificate: str) -> None:
        """From now on the box is a member. Killed in between, it is none, and may ask again with the same code."""
        atomic_write(self.path(CA), ca.encode())
        atomic_write(self.path(CERTIFICATE), certificate.encode())
        atomic_write(self.path(MEMBER), json.dumps(asdict(member), indent=1).encode())

    def renewed(self, certificate: str) -> None:
        """Another certificate for the same key."""
        atomic_write(self.path(CERTIFICATE), certificate.encode())

    def forget(self) -> None:
        """The box is a member no more, first of all; then everything of the fleet goes."""
        with storage_errors(self.root):
            self.path(MEMBER).unlink(missing_ok=True)
            if self.root.is_dir():
                shutil.rmtree(self.root)

    def expires_utc_s(self) -> float:
        """When the box's certificate ends. EnvironmentLacking: it cannot be read."""
        path = self.path(CERTIFICATE)
        try:
            return read_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
        except (OSError, ValueError):
            raise _unusable(path) from None

    def began_utc_s(self) -> float:
        """From when on the box's certificate is good. EnvironmentLacking: it cannot be read."""
        path = self.path(CERTIFICATE)
        try:
            return read_certificate(path.read_bytes()).not_valid_before_utc.timestamp()
        except (OSError, ValueError):
            raise _unusable(path) from None

    def tls(self) -> ssl.SSLContext:
        """Trusts the fleet's authority and nobody else, and shows the box's certificate. EnvironmentLacking: a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=str(self.path(CA)))
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(self.path(CERTIFICATE), self.path(KEY), password=lambda: "")
        except (OSError, ValueError):
            raise _unusable(self.root) from None
        return context

    def client(self, url: str, *, timeout_s: float = TIMEOUT_S) -> httpx.Client:
        """Speaks to the controller as this box."""
        limits = httpx.Timeout(timeout_s, connect=min(timeout_s, TIMEOUT_S))
        return httpx.Client(base_url=url, verify=self.tls(), timeout=limits, trust_env=False)

    def mqtt(self, member: Membership) -> MqttSection:
        """How the fleet's broker is reached. No announcements and no commands: those are the house's."""
        section = MqttSection(
            enabled=True, host=member.broker.host, port=member.broker.port, prefix=member.prefix, tls=False, discovery=False,
            commands="never", client_id=f"driftbox-fleet-{member.box}"[:120],
        )  # fmt: skip
        if not member.broker.tls:
            return section
        files = {"ca_file": self.path(CA), "cert_file": self.path(CERTIFICATE), "key_file": self.path(KEY)}
        return section.model_copy(update={"tls": True, **files})


def moved(member: Membership, url: str) -> Membership:
    """With another controller's address."""
    return replace(member, url=url.rstrip("/")) if url else member


def _unusable(path: Path) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the box's membership of its fleet cannot be used: {path}", subject=str(path), code="membership",
        remedy="driftbox fleet leave, then join again with a new code",
    )  # fmt: skip
