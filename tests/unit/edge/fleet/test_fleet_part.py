"""The fleet's part of a running box: it begins when the box joins and ends when it leaves, without a restart; commands, API, doctor."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from configs.errors import UsageError
from configs.schema import BoxConfig
from edge.api import make_app
from edge.cli import app
from edge.doctor import Level, check_fleet
from edge.fleet import joining
from edge.fleet.joining import Candidate, join, leave
from edge.fleet.member import Handlers
from edge.fleet.membership import MemberFolder
from edge.fleet.wiring import FleetBox, FleetPart, Seat
from edge.fleet.without import NoOffers, NoSamples, OwnCamerasOnly
from edge.telemetry.mqtt import MqttPublisher
from edge.web.fake import FakeSource
from edge.web.services import Services
from scheduler.events import SharesOrdered
from scheduler.fleet.codec import encode
from scheduler.fleet.types import CameraKey, ModelOffer
from tests.support.fleet_box import NOW_S, FakeController, HandClock, Remembers, order, wish
from tests.support.ports import free_port


class Runtime:
    """As much of `BoxRuntime` as shares need."""

    def __init__(self) -> None:
        self.watched: dict[str, Any] = {}
        self.parts = SimpleNamespace(
            engine=SimpleNamespace(state=SimpleNamespace(shares_pct=(), streams={})),
            store=SimpleNamespace(quality=lambda stream, *, kind, limit: []),
        )
        self.events: list[Any] = []

    def post(self, make: Any) -> None:
        event = make(1.0)
        assert isinstance(event, SharesOrdered)
        self.events.append(event)
        self.parts.engine.state.shares_pct = event.shares_pct


class Hall:
    """A box called hall, its fleet's part and its controller."""

    def __init__(self, tmp_path: Path, *, now_utc_s: float = NOW_S, clock: Any = None) -> None:
        self.controller = FakeController(tmp_path / "ca", now_utc_s=now_utc_s)
        self.controller.broker = {"host": "127.0.0.1", "port": free_port(), "tls": True}  # nobody listens there
        self.folder, self.clock, self.notes = MemberFolder(tmp_path / "data"), clock or HandClock(), list[str]()
        self.config = BoxConfig.model_validate({"box": {"id": "hall", "data_dir": str(tmp_path / "data")}})
        self.runtime, self.handlers = Runtime(), Remembers()
        box = FleetBox(
            runtime=self.runtime, status=FakeSource(), control=None, config=lambda: self.config, folder=self.folder,  # type: ignore[arg-type]
            clock=self.clock, tell=self.notes.append,
        )  # fmt: skip
        self.seats: list[Seat] = []
        self.part = FleetPart(box, handlers_of=self._handlers)

    def _handlers(self, seat: Seat) -> Handlers:
        self.seats.append(seat)
        return self.handlers.handlers()

    def joins(self) -> None:
        candidate = Candidate(box="hall", site="site", capacity_pct=100, software="1")
        join(
            self.folder,
            "fleet.example",
            self.controller.code,
            candidate,
            now_utc_s=NOW_S,
            transport=self.controller.transport(),
        )


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(MqttPublisher, "_open", lambda self: None)  # nobody is dialled
    made = Hall(tmp_path)
    yield made
    made.part.stop()


def test_it_begins_when_the_box_joins_and_ends_when_it_leaves(hall: Hall) -> None:
    hall.part.follow()
    assert hall.part.fleet().joined is False
    assert hall.part.sentence() == ""
    hall.joins()
    hall.part.follow()
    joined = hall.part._joined
    assert joined is not None
    joined.member.stop()  # its steps are made by hand here
    view = hall.part.fleet()
    assert (view.joined, view.box, view.controller, view.connected) == (True, "hall", "https://fleet.example:8470", False)
    assert view.certificate_until_utc == pytest.approx(NOW_S + 90 * 86_400)
    joined._hear(
        joined.link.heartbeat_topic,
        json.dumps({"utc": "2027-01-15T08:00:00Z", "url": "https://c2:8470"}).encode(),
        False,
        False,
    )
    joined._hear(joined.link.heartbeat_topic, b"{", False, False)
    joined._hear(joined.link.wish_topic, encode(wish(3, 1, shares={"shop": 40}, cameras=(order("gate"),))), True, False)
    joined.member.step()
    assert hall.runtime.events[-1].shares_pct == (("shop", 40.0),)
    assert hall.handlers.log[0] == ("cameras", (order("gate"),))
    view = hall.part.fleet()
    assert (view.term, view.controller, view.shares[0].share_pct, view.cameras[0].role) == (3, "https://c2:8470", 40, "own")
    assert hall.seats[0].controller_utc_s() == pytest.approx(NOW_S, abs=1)
    leave(hall.folder, client=hall.controller.client())
    hall.part.follow()
    assert hall.part.fleet().joined is False
    assert hall.runtime.events[-1].shares_pct == ()
    assert hall.handlers.log[-3] == ("cameras", ())
    assert not hall.folder.root.exists()
    assert any("has left its fleet" in text for text in hall.notes)


def test_a_report_is_made_of_the_running_box(hall: Hall) -> None:
    hall.joins()
    hall.part.follow()
    joined = hall.part._joined
    assert joined is not None
    report = joined._report(joined.member.confirmation())
    assert {camera.camera.camera for camera in report.cameras} == {camera.id for camera in FakeSource().status().cameras}
    assert (report.box, report.sequence >= 1, len(report.boot)) == ("hall", True, 16)


def test_the_box_ends_and_stays_a_member(hall: Hall) -> None:
    hall.joins()
    hall.part.follow()
    hall.part.stop()
    hall.part.follow()
    assert hall.part._joined is None
    assert hall.folder.read() is not None
    assert hall.part.is_alive()


def test_switched_off_it_does_nothing(hall: Hall) -> None:
    hall.config = hall.config.model_copy(update={"fleet": hall.config.fleet.model_copy(update={"enabled": False})})
    hall.joins()
    hall.part.follow()
    assert hall.part._joined is None
    assert "switched off" in hall.part.sentence()


def test_a_membership_that_cannot_be_used_is_said_once_and_tried_again(hall: Hall) -> None:
    hall.joins()
    good = hall.folder.path("box.pem").read_bytes()
    hall.folder.path("box.pem").write_text("nonsense")
    for _ in range(3):
        hall.part.follow()
    assert len(hall.notes) == 1
    assert hall.part.fleet().trouble
    hall.folder.path("box.pem").write_bytes(good)
    hall.part.follow()
    assert hall.part._joined is not None


def test_the_certificate_is_renewed_when_a_third_is_left(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.joins()
    hall.part.follow()
    joined = hall.part._joined
    assert joined is not None
    monkeypatch.setattr(joined, "client", hall.controller.client)
    hall.part.look_at_certificate()
    assert "/fleet/v1/renew" not in hall.controller.asked
    hall.clock.elapsed_s = hall.controller.now_utc_s - NOW_S + 61 * 86_400
    hall.controller.now_utc_s += 61 * 86_400
    hall.part.look_at_certificate()
    assert hall.controller.asked[-1] == "/fleet/v1/renew"
    assert hall.folder.expires_utc_s() == pytest.approx(NOW_S + 151 * 86_400)


def test_an_expired_certificate_is_said_and_asked_for_again(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    hall.joins()
    hall.part.follow()
    joined = hall.part._joined
    assert joined is not None
    monkeypatch.setattr(joined, "client", hall.controller.client)
    hall.controller.refuses = (401, "certificate_expired")
    hall.clock.elapsed_s = 200 * 86_400
    for _ in range(3):
        hall.part.look_at_certificate()
        hall.clock.elapsed_s += 61
    assert hall.controller.asked.count("/fleet/v1/renew") == 3
    assert sum("cannot be renewed" in text for text in hall.notes) == 1
    assert "has expired" in hall.part.fleet().trouble
    assert joined.member.is_alive()


def test_the_api_tells_it(hall: Hall) -> None:
    hall.joins()
    hall.part.follow()
    client = TestClient(make_app(FakeSource(), services=Services(fleet=hall.part)))
    told = client.get("/api/v1/fleet").json()
    assert (told["joined"], told["box"], told["term"]) == (True, "hall", 0)


# --- commands and doctor ----------------------------------------------------------------------------------------------


def driftbox(*words: str) -> tuple[int, Any]:
    found = CliRunner().invoke(app, ["fleet", *words, "--json"])
    return found.exit_code, json.loads(found.stdout) if found.stdout.strip() else None


def test_the_commands(hall: Hall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "box.yaml"
    config.write_text(f"box: {{id: hall, data_dir: {tmp_path / 'data'}}}\nweb: {{enabled: false}}\n")
    given = ("--config", str(config))
    assert driftbox("member", *given)[1]["joined"] is False
    real = joining.join
    monkeypatch.setattr(joining, "join", lambda *a, **m: real(*a, **m, transport=hall.controller.transport()))
    code, told = driftbox("join", "fleet.example", "--code", hall.controller.code, *given)
    assert (code, told["box"], told["broker"]["tls"]) == (0, "hall", True)
    told = driftbox("member", *given)[1]
    assert (told["joined"], told["box"], "does not run" in told["trouble"]) == (True, "hall", True)
    monkeypatch.setattr(MemberFolder, "client", lambda self, url: hall.controller.client())
    assert driftbox("leave", *given) == (0, {"left": True, "told": True, "why": ""})
    assert driftbox("leave", *given)[0] == 1


def test_doctor_looks_at_the_membership(hall: Hall) -> None:
    assert check_fleet(hall.config).text == "member of none"
    hall.joins()
    found = check_fleet(hall.config)
    assert (found.level, "cannot be reached" in found.text) == (Level.WARN, True)
    renamed = hall.config.model_copy(update={"box": hall.config.box.model_copy(update={"id": "barn"})})
    assert "joined as hall" in check_fleet(renamed).text
    switched_off = hall.config.model_copy(update={"fleet": hall.config.fleet.model_copy(update={"enabled": False})})
    assert check_fleet(switched_off).level is Level.OK


def test_doctor_names_a_certificate_that_has_expired(hall: Hall) -> None:
    hall.controller.now_utc_s = 1_600_000_000.0
    hall.joins()
    found = check_fleet(hall.config)
    assert (found.level, "has expired" in found.text, "new code" in found.remedy) == (Level.WARN, True, True)


# --- without handlers -------------------------------------------------------------------------------------------------


def test_a_box_without_handlers_says_so_and_watches_its_own() -> None:
    host = OwnCamerasOnly("hall")
    host.apply((order("gate", "own", 2), order("yard", "release", 3), order("dock", "own", 4, home="barn")))
    assert [(word.stage, word.term) for word in host.words()] == [("owning", 2), ("failed", 3), ("failed", 4)]
    assert host.guests() == {}
    desk = NoOffers()
    assert desk.words() == ()
    desk.take((ModelOffer(rollout="r", parcel="hall.x", cameras=(CameraKey(home="hall", camera="gate"),)),))
    assert [word.stage for word in desk.words()] == ["failed"]
    NoSamples().collect("")
    with pytest.raises(UsageError):
        NoSamples().collect("r1")
