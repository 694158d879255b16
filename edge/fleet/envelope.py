"""What one box seals for another so that nobody between them can read it: parcels with a camera's password and model, samples.

    magic, version | size of the head | head (JSON: who to, who from, ephemeral public key, nonce, the sender's certificate)
    | size of the signature | signature of everything before it and of what follows | AES-256-GCM(content), the head as associated data

The key: ECDH of an ephemeral key with that of the addressee's certificate, through HKDF-SHA256 that is bound to the head. The
signature is the sender's, by the key of its own certificate, which the addressee checks against the fleet's authority. So a parcel can
be read by its addressee alone and is known to come from a member. What this does not withstand is an authority that issues certificates
for keys of its own: who runs the controller could do that, and would be seen in the certificate's fingerprint.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from configs.errors import UsageError
from edge.certificates import read_certificate

_MAGIC = b"DRIFTBOX-PARCEL\x01"
#: Most bytes of a head (a certificate and some fields) and of what is sealed.
MOST_HEAD, MOST_BYTES = 64 * 1024, 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A box as it proves itself: its own key and certificate, and the fleet's authority. Errors: UsageError for what is none."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def box(self) -> str:
        """Its id: the common name of its certificate."""
        return common_name(self.certificate)

    @staticmethod
    def of_pem(*, key: bytes, certificate: bytes, authority: bytes) -> Member:
        """From PEM. UsageError (subject 'certificate') for anything that is not an elliptic-curve key or a certificate."""
        try:
            private = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _unusable("its key cannot be read") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise _unusable("its key is not of an elliptic curve")
        return Member(key=private, certificate=certificate_of(certificate), authority=certificate_of(authority))


@dataclass(frozen=True, kw_only=True)
class Opened:
    """content: what was sealed; sender: id of the box that did; parcel: the name under which it did."""

    content: bytes
    sender: str
    parcel: str


def certificate_of(pem: bytes) -> x509.Certificate:
    """UsageError for what is no certificate in PEM."""
    try:
        return read_certificate(pem)
    except ValueError as error:
        raise _unusable("it is no certificate in PEM") from error


def common_name(certificate: x509.Certificate) -> str:
    """Of its subject, '' none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def seal(
    content: bytes, *, parcel: str, sender: Member, addressee: x509.Certificate, to: str | None = None, now_utc_s: float
) -> bytes:
    """`content` for the box `to` (None: whoever it names), which has that certificate, under the name of the parcel. UsageError: the
    certificate is not one of this fleet's or not that box's, has expired, is of another kind of key; the content is too large."""
    if len(content) > MOST_BYTES:
        raise _unusable(f"it has {len(content)} bytes, a parcel holds {MOST_BYTES}", subject=parcel)
    _check_member(addressee, sender.authority, now_utc_s)
    to = common_name(addressee) if to is None else to
    if common_name(addressee) != to:
        raise _unusable(f"the certificate is of {common_name(addressee) or 'nobody'}, not of {to}", subject=parcel)
    public = _public(addressee)
    ephemeral, nonce = ec.generate_private_key(public.curve), os.urandom(12)
    point = ephemeral.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    own = sender.certificate.public_bytes(serialization.Encoding.PEM)
    fields = {"parcel": parcel, "to": to, "from": sender.box, "nonce": nonce.hex()}
    head = json.dumps(fields | {"point": point.decode(), "certificate": own.decode()}, sort_keys=True).encode()
    prefix = _MAGIC + struct.pack(">I", len(head)) + head
    sealed = AESGCM(_derived(ephemeral.exchange(ec.ECDH(), public), prefix)).encrypt(nonce, content, prefix)
    signature = sender.key.sign(prefix + sealed, ec.ECDSA(hashes.SHA256()))
    return prefix + struct.pack(">I", len(signature)) + signature + sealed


def open_sealed(data: bytes, *, parcel: str, member: Member, now_utc_s: float, sender: str | None = None) -> Opened:
    """What was sealed for this box. UsageError (subject: the parcel) for everything that is not exactly that: cut, changed, for another
    box, under another name, of a sender that is not in the fleet; sender: whom it must be from, None: any member."""
    try:
        prefix, head, signature, sealed = _parts(data)
        certificate = read_certificate(str(head["certificate"]).encode())
        point = serialization.load_pem_public_key(str(head["point"]).encode())
        nonce = bytes.fromhex(str(head["nonce"]))
    except (ValueError, KeyError, TypeError, struct.error, UnsupportedAlgorithm) as error:
        raise _unusable("it is damaged or no parcel", subject=parcel) from error
    if head.get("parcel") != parcel or head.get("to") != member.box:
        raise _unusable("it is another parcel, or for another box", subject=parcel)
    _check_member(certificate, member.authority, now_utc_s, subject=parcel)
    signer = common_name(certificate)
    if head.get("from") != signer or (sender is not None and signer != sender):
        raise _unusable(f"it comes from {signer or 'nobody'}", subject=parcel)
    try:
        _public(certificate).verify(signature, prefix + sealed, ec.ECDSA(hashes.SHA256()))
        if not isinstance(point, ec.EllipticCurvePublicKey) or point.curve.name != member.key.curve.name or len(nonce) != 12:
            raise InvalidTag
        content = AESGCM(_derived(member.key.exchange(ec.ECDH(), point), prefix)).decrypt(nonce, sealed, prefix)
    except (InvalidSignature, InvalidTag, ValueError) as error:
        raise _unusable("it was changed on its way, or is not for this box's key", subject=parcel) from error
    return Opened(content=content, sender=signer, parcel=parcel)


def _parts(data: bytes) -> tuple[bytes, dict[str, Any], bytes, bytes]:
    if len(data) > MOST_BYTES + 2 * MOST_HEAD or not data.startswith(_MAGIC):
        raise ValueError("not a parcel")
    begin = len(_MAGIC) + 4
    head_size = struct.unpack_from(">I", data, len(_MAGIC))[0]
    if head_size > MOST_HEAD:
        raise ValueError("its head is too long")
    prefix = data[: begin + head_size]
    signature_size = struct.unpack_from(">I", data, len(prefix))[0]
    if signature_size > 1024:
        raise ValueError("its signature is too long")
    at = len(prefix) + 4
    head = json.loads(prefix[begin:])
    if not isinstance(head, dict):
        raise ValueError("its head is no object")
    return prefix, head, data[at : at + signature_size], data[at + signature_size :]


def _derived(shared: bytes, prefix: bytes) -> bytes:
    """Bound to the head: a parcel with another head has another key."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(prefix)
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"driftbox parcel " + digest.finalize()).derive(shared)


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise _unusable("the certificate's key is not of an elliptic curve", subject=common_name(certificate))
    return public


def _check_member(certificate: x509.Certificate, authority: x509.Certificate, now_utc_s: float, subject: str = "") -> None:
    """That the authority has issued it and it holds now; an hour of wrong clock is forgiven at its beginning."""
    name = subject or common_name(certificate)
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _unusable("its certificate is not of this fleet", subject=name) from error
    now = datetime.fromtimestamp(now_utc_s, UTC)
    begins_s = certificate.not_valid_before_utc.timestamp() - 3600
    if now > certificate.not_valid_after_utc or now_utc_s < begins_s:
        raise _unusable(f"its certificate holds until {certificate.not_valid_after_utc:%Y-%m-%d} only", subject=name)


def _unusable(why: str, subject: str = "certificate") -> UsageError:
    return UsageError(
        f"parcel or certificate cannot be used: {why}", subject=subject, remedy="is the sender a member of this fleet?"
    )
