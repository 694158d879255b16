"""What a member of a fleet is tested with: a clock that is set by hand, handlers and an engine that remember, and a controller of a few
lines over the real certificate authority (the real controller is tested with real boxes in tests/integration)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from cluster.controller.authority import Authority
from configs.errors import DriftboxError
from edge.fleet.member import Handlers, Shares
from scheduler.fleet.codec import encode
from scheduler.fleet.types import BoxReport, CameraKey, CameraOrder, CameraWord, Desired, ModelOffer, OfferWord, ShareOrder

#: When the tests' days begin, by the controller's clock.
NOW_S = 1_800_000_000.0


def at(seconds: float) -> str:
    """The controller's time so many seconds after NOW_S."""
    return datetime.fromtimestamp(NOW_S + seconds, UTC).isoformat()


def wish(term: int = 1, version: int = 1, *, box: str = "hall", expires_s: float = 60.0, **more: Any) -> Desired:
    """A wish of the controller; `shares` may be a dict."""
    if isinstance(more.get("shares"), dict):
        more["shares"] = tuple(ShareOrder(customer=name, share_pct=pct) for name, pct in sorted(more["shares"].items()))
    return Desired(box=box, term=term, version=version, made_utc=at(0), expires_utc=at(expires_s), **more)


def order(camera: str, role: Any = "own", term: int = 1, home: str = "hall") -> CameraOrder:
    return CameraOrder(camera=CameraKey(home=home, camera=camera), role=role, term=term)


class HandClock:
    """`edge.clock.Clock` as far as a member looks at it. wrong_s: how far the box's wall clock is ahead."""

    def __init__(self, *, wrong_s: float = 0.0) -> None:
        self.elapsed_s, self.wrong_s = 0.0, wrong_s

    def monotonic_s(self) -> float:
        return 100.0 + self.elapsed_s

    def utc_s(self) -> float:
        return NOW_S + self.elapsed_s + self.wrong_s


class Remembers:
    """All three handlers and the engine. log: what was asked of them, in order; fails: by handler, what it raises."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.fails: dict[str, Exception] = {}
        self.in_force: Shares = ()
        self.deaf = False  # the engine does not hear: the box starts
        self.camera_words: tuple[CameraWord, ...] = ()
        self.offer_words: tuple[OfferWord, ...] = ()

    def handlers(self) -> Handlers:
        return Handlers(cameras=_Cameras(self), offers=_Offers(self), samples=_Samples(self))

    def asked(self, name: str, what: Any) -> None:
        self.log.append((name, what))
        if name in self.fails:
            raise self.fails[name]

    def names(self) -> list[str]:
        return [name for name, _ in self.log]

    def shares(self) -> Shares:
        return self.in_force

    def order_shares(self, shares: Shares) -> None:
        self.log.append(("shares", shares))
        if not self.deaf:
            self.in_force = shares


@dataclass
class _Cameras:
    to: Remembers

    def apply(self, orders: Sequence[CameraOrder]) -> None:
        self.to.asked("cameras", tuple(orders))

    def words(self) -> tuple[CameraWord, ...]:
        return self.to.camera_words

    def guests(self) -> Mapping[str, CameraKey]:
        return {}


@dataclass
class _Offers:
    to: Remembers

    def take(self, offers: Sequence[ModelOffer]) -> None:
        self.to.asked("offers", tuple(offers))

    def words(self) -> tuple[OfferWord, ...]:
        return self.to.offer_words


@dataclass
class _Samples:
    to: Remembers

    def collect(self, request: str) -> None:
        self.to.asked("samples", request)


@dataclass
class Told:
    """`edge.fleet.member.Teller` that keeps what it is told, as it would travel."""

    reports: list[BoxReport] = field(default_factory=list)

    def report(self, report: BoxReport) -> None:
        assert encode(report)
        self.reports.append(report)


class FakeController:
    """Answers `/fleet/v1` of docs/fleet/controller.md as far as joining goes. codes: secret -> (box, digest of its request) once used;
    refuses: (status, code) for every request but that of the authority; asked: paths, in order."""

    def __init__(self, folder: Path, *, now_utc_s: float = NOW_S) -> None:
        self.authority = Authority(folder, now_utc_s=now_utc_s)
        self.now_utc_s, self.members, self.asked = now_utc_s, dict[str, str](), list[str]()
        self.refuses: tuple[int, str] | None = None
        self.broker: dict[str, Any] = {"host": "127.0.0.1", "port": 8883, "tls": True}
        self.secret = "AAAA-BBBB-CCCC-DDDD"
        self.other_key = False

    @property
    def code(self) -> str:
        return f"{self.secret}.{self.authority.fingerprint[:32]}"

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="https://fleet.example:8470", transport=self.transport())

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if path == "/fleet/v1/ca":
            return httpx.Response(200, text=self.authority.pem)
        if self.refuses is not None:
            status, code = self.refuses
            return httpx.Response(
                status, json={"error": {"code": code, "message": f"no: {code}", "subject": "x", "remedy": "do y"}}
            )
        body = json.loads(request.content)
        if path == "/fleet/v1/leave":
            return httpx.Response(200, json={})
        box = body.get("box", "hall")
        if path == "/fleet/v1/join" and body["code"].partition(".")[0] != self.secret:
            return httpx.Response(403, json={"error": {"code": "code_unknown", "message": "this code is not known"}})
        csr = self._stranger() if self.other_key else body["csr"]
        certificate = self.authority.sign(csr, box, now_utc_s=self.now_utc_s)
        self.members[box] = certificate.pem
        answer = {
            "schema": 1, "box": box, "site": body.get("site", "site"), "prefix": "driftbox", "certificate": certificate.pem,
            "ca": self.authority.pem, "expires_utc": at(90 * 86_400), "broker": self.broker, "url": "https://fleet.example:8470",
            "report_every_s": 5.0,
        }  # fmt: skip
        return httpx.Response(200, json=answer)

    def _stranger(self) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        made = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()


def no_storage() -> DriftboxError:
    from configs.errors import StorageError

    return StorageError("no space left", code="full")
