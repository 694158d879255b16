"""Joining a fleet, renewing the certificate, leaving (docs/fleet/controller.md, HTTPS).

Before it has joined, a box has nothing to check the controller by but the join code, whose second part is the beginning of the SHA-256
of the fleet's authority. So it asks for the authority without believing anybody, compares, and asks everything else with it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from cryptography.hazmat.primitives import serialization

from configs.errors import DriftboxError, EnvironmentLacking, UsageError
from edge.certificates import read_certificate
from edge.fleet.membership import TIMEOUT_S, Broker, MemberFolder, Membership

SCHEMA = 1
#: Hex digits of the authority's fingerprint in a code, at least.
DIGITS = 32
DEFAULT_PORT = 8470
#: Longest answer that is looked at.
MOST_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The box that wants to join."""

    box: str
    site: str
    capacity_pct: float
    software: str


def url_of(text: str) -> str:
    """A controller's address as people type it: `fleet.example`, `https://fleet.example:8470`. UsageError for anything else."""
    full = text.strip() if "://" in text else f"https://{text.strip()}"
    try:
        parts = urlsplit(full)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if parts.scheme != "https" or not parts.hostname or not plain:
        raise UsageError(
            f"'{text[:80]}' is no controller's address",
            subject="url",
            remedy=f"write it as https://fleet.example:{DEFAULT_PORT}",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port}"


def join(
    folder: MemberFolder,
    url: str,
    code: str,
    candidate: Candidate,
    *,
    now_utc_s: float,
    transport: httpx.BaseTransport | None = None,
) -> Membership:
    """The box is a member from now on. UsageError: it is one already, or the code is refused; EnvironmentLacking: no answer, or not from
    the controller that made the code; StorageError. Then it is none; asking again with the same code is allowed. transport: tests."""
    if folder.read() is not None:
        raise UsageError("this box is a member of a fleet", code="member", remedy="driftbox fleet leave comes first")
    address, fingerprint = url_of(url), _fingerprint_of(code)
    ca = _authority(address, fingerprint, transport)
    csr = folder.request(candidate.box)
    body = {
        "schema": SCHEMA, "code": code.strip(), "box": candidate.box, "site": candidate.site, "csr": csr,
        "capacity_pct": candidate.capacity_pct, "software": candidate.software,
    }  # fmt: skip
    with _trusting(address, ca, transport) as client:
        answer = ask(client, "POST", "/fleet/v1/join", body)
    member, certificate = _member(answer, address, now_utc_s)
    if member.box != candidate.box:
        raise UsageError(f"the controller takes this box for {member.box!r}", code="answer", remedy="is the code meant for it?")
    _check_certificate(folder, certificate, ca)
    folder.keep(member, ca=ca, certificate=certificate)
    return member


def renew(folder: MemberFolder, member: Membership, *, client: httpx.Client | None = None) -> None:
    """Another certificate for the same key. Raises as `join`."""
    with client or folder.client(member.url) as opened:
        answer = ask(opened, "POST", "/fleet/v1/renew", {"schema": SCHEMA, "csr": folder.request(member.box)})
    certificate = str(answer.get("certificate", ""))
    _check_certificate(folder, certificate, folder.path("ca.pem").read_text())
    folder.renewed(certificate)


def leave(folder: MemberFolder, *, client: httpx.Client | None = None) -> str:
    """The box is a member no more, whether the controller hears of it or not; returns why it did not, '' it did. UsageError: it was
    none."""
    told, member, damaged = "", None, False
    try:
        member = folder.read()
    except DriftboxError as error:  # what cannot be read can be left
        told, damaged = error.message, True
    if member is None and not damaged:
        raise UsageError("this box is a member of no fleet", code="no_member")
    try:
        if member is not None:
            with client or folder.client(member.url) as opened:
                ask(opened, "POST", "/fleet/v1/leave", {})
    except DriftboxError as error:
        told = error.message
    folder.forget()
    return told


def ask(client: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The answer (JSON). UsageError: the controller refuses, with its code and words; EnvironmentLacking (code 'away'): none answers, or
    not now, or not as one."""
    where = str(client.base_url).rstrip("/")
    try:
        answer = client.request(method, path, json=body)
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise _away(where, _why(error)) from None
    if answer.status_code >= 500:
        raise _away(where, _said(answer).get("message") or f"it answers {answer.status_code}")
    if answer.status_code >= 300:
        said = _said(answer)
        raise UsageError(
            f"the controller refuses: {said.get('message') or answer.status_code}", subject=str(said.get("subject") or where),
            code=str(said.get("code") or "refused"), remedy=str(said.get("remedy") or ""),
        )  # fmt: skip
    try:
        found = json.loads(answer.content[: MOST_BYTES + 1]) if answer.content else {}
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        raise _away(where, "what answers there is no controller") from None
    return found


# --- inside -----------------------------------------------------------------------------------------------------------


def _fingerprint_of(code: str) -> str:
    fingerprint = code.strip().partition(".")[2].lower()
    if len(fingerprint) < DIGITS or any(letter not in "0123456789abcdef" for letter in fingerprint):
        raise UsageError(
            "this is no join code", subject="code", code="code_unknown", remedy="copy all of it: XXXX-XXXX-XXXX-XXXX.0123..."
        )
    return fingerprint


def _authority(address: str, fingerprint: str, transport: httpx.BaseTransport | None) -> str:
    """The fleet's authority, PEM, once it is known to be the one of the code."""
    with httpx.Client(base_url=address, verify=False, timeout=TIMEOUT_S, trust_env=False, transport=transport) as client:
        try:
            answer = client.get("/fleet/v1/ca")
        except (httpx.HTTPError, OSError) as error:
            raise _away(address, _why(error)) from None
    try:
        certificate = read_certificate(answer.content[:MOST_BYTES])
    except ValueError:
        raise _away(address, "what answers there is no controller") from None
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    if not hmac.compare_digest(digest[: len(fingerprint)], fingerprint):
        raise EnvironmentLacking(
            f"{address} is not the controller that made this code: its authority is {digest[:DIGITS]}", subject=address,
            code="not_the_controller", remedy="check the address and the code; somebody may stand between the box and the controller",
        )  # fmt: skip
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _trusting(address: str, ca: str, transport: httpx.BaseTransport | None) -> httpx.Client:
    context = ssl.create_default_context(cadata=ca)
    return httpx.Client(base_url=address, verify=context, timeout=TIMEOUT_S, trust_env=False, transport=transport)


def _member(answer: dict[str, Any], address: str, now_utc_s: float) -> tuple[Membership, str]:
    try:
        broker = answer["broker"]
        member = Membership(
            id=secrets.token_hex(8), box=str(answer["box"]), site=str(answer["site"]), url=str(answer.get("url") or address).rstrip("/"),
            prefix=str(answer["prefix"]), broker=Broker(host=str(broker["host"]), port=int(broker["port"]), tls=bool(broker["tls"])),
            report_every_s=min(300.0, max(1.0, float(answer.get("report_every_s", 5.0)))), joined_utc_s=now_utc_s,
        )  # fmt: skip
        return member, str(answer["certificate"])
    except (KeyError, TypeError, ValueError):
        raise _away(address, "its answer is not that of a controller of this release") from None


def _check_certificate(folder: MemberFolder, certificate: str, ca: str) -> None:
    """It must be for our key and by the fleet's authority: with any other the box could speak to nobody."""
    try:
        made = read_certificate(certificate.encode())
        made.verify_directly_issued_by(read_certificate(ca.encode()))
        ours = made.public_key() == folder.key().public_key()
    except Exception:  # whatever cryptography makes of what a stranger sent
        ours = False
    if not ours:
        raise EnvironmentLacking(
            "the certificate that the controller sent is not for this box's key",
            code="answer",
            remedy="try again; is it the fleet's?",
        )


def _said(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.content[:MOST_BYTES])["error"]
        return found if isinstance(found, dict) else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _why(error: Exception) -> str:
    if isinstance(error.__cause__, ssl.SSLError) or "CERTIFICATE" in str(error):
        return "its certificate is not accepted, or it does not accept the box's"
    return "no answer in time" if isinstance(error, httpx.TimeoutException) else "no connection"


def _away(where: str, why: object) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the controller at {where} cannot be asked: {why}",
        subject=where,
        code="away",
        remedy="does it run, and is the address right?",
    )
