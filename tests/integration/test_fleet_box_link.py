"""A member at a real broker that takes nobody without a certificate of the fleet: reports, wishes, a broker that goes and comes back, a
certificate that has expired."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.controller.authority import Authority
from edge.fleet.membership import MemberFolder
from edge.telemetry.topics import iso_utc
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.types import BoxReport, Desired
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto
from tests.unit.edge.fleet.test_fleet_part import Hall

pytestmark = pytest.mark.mqtt

BASE = "driftbox/site/hall"


def mutual_tls(authority: Authority) -> tuple[str, ...]:
    """mosquitto's settings: TLS only, and a certificate of the fleet from everybody."""
    authority.server(["127.0.0.1"], now_utc_s=time.time())
    return (
        f"cafile {authority.cert_file}", f"certfile {authority.server_cert_file}", f"keyfile {authority.server_key_file}",
        "require_certificate true", "use_identity_as_username true",
    )  # fmt: skip


class RealClock:
    def __init__(self, *, wrong_s: float = 0.0) -> None:
        self.wrong_s = wrong_s

    def monotonic_s(self) -> float:
        return time.monotonic()

    def utc_s(self) -> float:
        return time.time() + self.wrong_s


class Site:
    """A box, its fleet's broker, and somebody at the broker in the controller's place."""

    def __init__(self, tmp_path: Path, *, wrong_s: float = 0.0) -> None:
        self.hall = Hall(tmp_path, now_utc_s=time.time(), clock=RealClock(wrong_s=wrong_s))
        controller = self.hall.controller
        self.broker = Broker(tmp_path, lines=mutual_tls(controller.authority))
        controller.broker = {"host": "127.0.0.1", "port": self.broker.port, "tls": True}
        self.hall.joins()
        self.broker.start()
        self.tls = self._as("controller", tmp_path)
        self.listener = Listener(self.broker.port, tls=self.tls)

    def _as(self, name: str, tmp_path: Path) -> ssl.SSLContext:
        """A certificate of its own for the one who plays the controller."""
        folder, authority = MemberFolder(tmp_path / name), self.hall.controller.authority
        made = authority.sign(folder.request(name), name, now_utc_s=time.time())
        (folder.root / "box.pem").write_text(made.pem)
        context = ssl.create_default_context(cafile=str(authority.cert_file))
        context.load_cert_chain(folder.root / "box.pem", folder.root / "box.key")
        return context

    def wishes(self, version: int, *, expires_in_s: float = 60.0, term: int = 1, retain: bool = True, **more: Any) -> None:
        wish = Desired(
            box="hall",
            term=term,
            version=version,
            made_utc=iso_utc(time.time()),
            expires_utc=iso_utc(time.time() + expires_in_s),
            **more,
        )
        self.listener.publish(f"{BASE}/desired", encode(wish), retain=retain)

    def beats(self) -> None:
        body = {"schema": 1, "controller": "c1", "term": 1, "utc": iso_utc(time.time()), "url": "https://127.0.0.1:8470"}
        self.listener.publish("driftbox/fleet/controller", json.dumps(body), retain=True)

    def reports(self) -> list[BoxReport]:
        return [decode(BoxReport, payload) for payload in self.listener.of("/hall/report")]

    def in_force(self) -> tuple[int, int]:
        found = self.reports()
        return (found[-1].confirmation.term, found[-1].confirmation.version) if found else (0, 0)

    def close(self) -> None:
        self.listener.close()
        self.hall.part.stop()
        self.broker.stop()


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    require_mosquitto()
    made = Site(tmp_path, wrong_s=getattr(request, "param", 0.0))
    yield made
    made.close()


@pytest.mark.parametrize("site", [-3600.0], indirect=True)
def test_a_box_whose_clock_is_an_hour_slow_is_told_heard_and_believed(site: Site) -> None:
    site.hall.part.follow()
    eventually(lambda: site.listener.of("/hall/availability") == [b"online"], "the birth")
    eventually(site.reports, "a report")
    site.wishes(1, shares=())
    eventually(lambda: "not known yet" in site.reports()[-1].confirmation.refused, "it waits for the time")
    site.beats()
    eventually(lambda: site.in_force() == (1, 1), "the wish is in force")
    told = site.listener.json_of("/hall/state")[-1]
    eventually(lambda: site.listener.json_of("/hall/state")[-1]["fleet"]["version"] == 1, "the retained state says so")
    assert {"capacity_pct", "cameras", "fleet"} <= told.keys()
    site.wishes(2, expires_in_s=-5)
    eventually(lambda: "expired" in site.reports()[-1].confirmation.refused, "an expired one is refused")
    site.wishes(1)
    numbers = [report.sequence for report in site.reports()]
    assert numbers == sorted(set(numbers))
    assert len({report.boot for report in site.reports()}) == 1
    kinds = {topic.removeprefix(f"{BASE}/").split("/")[-1] for topic, _, _ in site.listener.seen if topic.startswith(BASE)}
    assert kinds <= {"availability", "state", "window", "stats", "report", "desired", "status", "quality", "model"}
    assert {"window", "stats", "quality"} <= kinds


def test_a_broker_that_goes_and_comes_back_and_a_box_that_is_started_anew(site: Site) -> None:
    """The broker forgets everything; the wish in force stays in force, what is retained is told again, only the newest report waited."""
    site.hall.part.follow()
    eventually(site.reports, "it is there to hear the time")
    site.beats()
    site.wishes(4)
    eventually(lambda: site.in_force() == (1, 4), "the wish is in force")
    site.broker.stop()
    eventually(lambda: not site.hall.part.fleet().connected, "the box notices")
    before = len(site.reports())
    joined = site.hall.part._joined
    assert joined is not None
    assert joined.member.confirmation().version == 4
    for _ in range(20):
        joined.link.report(joined._report(joined.member.confirmation()))
    site.broker.start()
    eventually(lambda: len(site.reports()) > before, "a report after the outage")
    assert len(site.reports()) - before < 10
    eventually(lambda: site.in_force() == (1, 4), "still in force")
    site.hall.part.stop()
    eventually(lambda: site.listener.of("/hall/availability")[-1] == b"offline", "it says farewell")
    again = type(site.hall.part)(site.hall.part._box, handlers_of=site.hall._handlers)
    site.hall.part = again
    again.follow()
    eventually(
        lambda: len({r.boot for r in site.reports()}) == 2 and site.in_force() == (1, 4), "it comes up with the last one"
    )
    numbers = [report.sequence for report in site.reports()]
    assert numbers == sorted(set(numbers))


def test_whose_certificate_has_expired_is_alone_and_says_so(site: Site) -> None:
    folder, authority = site.hall.folder, site.hall.controller.authority
    old = authority.sign(folder.request("hall"), "hall", now_utc_s=time.time() - 91 * 86_400)
    folder.renewed(old.pem)
    site.hall.part.follow()
    eventually(lambda: site.hall.part.fleet().trouble, "why it is not connected")
    site.hall.part.look_at_certificate()
    assert "expired" in site.hall.part.fleet().trouble
    assert not site.hall.part.fleet().connected
    assert site.reports() == []
    assert site.hall.part.is_alive()
