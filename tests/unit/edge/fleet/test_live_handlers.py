"""A member's handlers, put together: whose samples may leave, who seals, what is left when a box is in no fleet; shares by customer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.errors import EnvironmentLacking, JobError
from configs.schema import BoxConfig, CameraEntry
from edge.box_status import customer_views
from edge.fleet import live
from edge.fleet.live import Samples, SeatPost, alone, givings, member_of
from edge.fleet.membership import MemberFolder
from edge.fleet.wiring import FleetBox
from edge.runtime import customer_of
from edge.status import ShareView
from edge.telemetry.topics import stats
from edge.web.fake import FakeSource
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import CameraAdded
from scheduler.fleet.types import CameraKey
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.fleet_box import NOW_S, FakeController, HandClock
from tests.support.live_box import LiveBox
from tests.unit.edge.fleet.test_joining import joined

CAMERAS = (
    {"id": "gate", "url": "rtsp://192.0.2.1/x", "customer": "shop", "masks": [[[0, 0], [1, 0], [1, 1]]]},
    {"id": "yard", "url": "rtsp://192.0.2.2/x", "consent": False},
    {"id": "barn--dock", "url": "rtsp://192.0.2.3/x", "consent": True},
)


class Control:
    """As much of `LiveControl` as the fleet uses. away: cameras that are withheld."""

    def __init__(self, config: BoxConfig) -> None:
        self.config, self.away, self.busy = config, set[str](), False
        self.given_back: list[str] = []

    def cameras(self) -> Any:
        return SimpleNamespace(cameras=[SimpleNamespace(entry=entry) for entry in self.config.cameras])

    def state(self, kept: Any) -> tuple[str, str]:
        return ("elsewhere", "") if kept.entry.id in self.away else ("live", "")

    def give_back(self, camera: str) -> None:
        if self.busy:
            raise JobError("the box starts", code="not_running")
        self.given_back.append(camera)
        self.away.discard(camera)


class Running:
    """As much of `RunningCameras`."""

    def __init__(self, guests: list[str]) -> None:
        self.there, self.busy = guests, False

    def guests(self) -> list[str]:
        return list(self.there)

    def take_out(self, camera: str, why: str) -> None:
        if self.busy:
            raise JobError("the box starts", code="not_running")
        self.there.remove(camera)


def seen_of(tmp_path: Path, *, consent: bool) -> FleetBox:
    config = BoxConfig.model_validate({"cameras": CAMERAS, "fleet": {"consent": consent}})
    runtime = SimpleNamespace(watched={"gate": SimpleNamespace(arch="yolo11n")})
    return FleetBox(
        runtime=runtime, status=FakeSource(), control=Control(config), config=lambda: config, folder=MemberFolder(tmp_path),  # type: ignore[arg-type]
        clock=HandClock(),
    )  # fmt: skip


@pytest.mark.parametrize("consent", [False, True])
def test_samples_are_the_operators_to_give_and_a_guests_are_its_homes(tmp_path: Path, consent: bool) -> None:
    found = givings(seen_of(tmp_path, consent=consent), guests={"barn--dock": CameraKey(home="barn", camera="dock")})
    assert found.keys() == {"gate", "yard"}
    assert (found["gate"].consent, found["yard"].consent) == (consent, False)
    assert (len(found["gate"].masks), found["gate"].arch, found["yard"].arch) == (1, "yolo11n", "")


def test_in_no_fleet_guests_go_and_own_cameras_come_home_as_soon_as_the_box_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, running = seen_of(tmp_path, consent=False), Running(["barn--dock"])
    control: Any = seen.control
    control.away.add("yard")
    monkeypatch.setattr(live, "_cameras", lambda *_: running)
    running.busy = True
    assert not alone(seen, None)
    running.busy, control.busy = False, True
    assert not alone(seen, None)
    control.busy = False
    assert alone(seen, None)
    assert (running.there, control.given_back) == ([], ["yard"])
    assert alone(seen, None)


def test_it_seals_as_the_member_that_it_is_now(tmp_path: Path) -> None:
    """Samples are sealed with another certificate once that was renewed; parcels already begun are ended first."""
    controller, folder = FakeController(tmp_path / "ca"), MemberFolder(tmp_path / "box")
    with pytest.raises(EnvironmentLacking, match="cannot be read"):
        member_of(folder)
    joined(folder, controller)
    made: list[Any] = []

    class Giver:
        def __init__(self, member: Any) -> None:
            self.member, self.asked, self.closed = member, list[str](), False
            made.append(self)

        def collect(self, request: str) -> None:
            self.asked.append(request)

        def close(self) -> None:
            self.closed = True

    samples = Samples(Giver, lambda: member_of(folder))  # type: ignore[arg-type]
    samples.close()
    samples.collect("r1")
    samples.collect("")
    folder.renewed(controller.authority.sign(folder.request("hall"), "hall", now_utc_s=NOW_S).pem)
    samples.collect("r2")
    samples.close()
    assert [(giver.asked, giver.closed, giver.member.box) for giver in made] == [
        (["r1", ""], True, "hall"),
        (["r2"], True, "hall"),
    ]


def test_every_parcel_goes_over_a_connection_of_its_own(tmp_path: Path) -> None:
    import httpx

    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        return httpx.Response(200, content=b"x")

    class Seat:
        def client(self, timeout_s: float) -> httpx.Client:
            return httpx.Client(base_url="https://c:1", transport=httpx.MockTransport(answer), timeout=timeout_s)

    post = SeatPost(Seat())  # type: ignore[arg-type]
    post.put("hall.x", b"x")
    assert (post.get("hall.x"), post.certificate_of("barn")) == (b"x", b"x")
    assert asked == ["PUT /fleet/v1/parcels/hall.x", "GET /fleet/v1/parcels/hall.x", "GET /fleet/v1/boxes/barn/certificate"]


# --- shares by customer -----------------------------------------------------------------------------------------------


def share(camera: str, job: str, promised: float, received: float) -> ShareView:
    return ShareView(job=f"{camera}/{job}", camera=camera, promised_pct=promised, received_pct=received)


def test_what_customers_were_promised_and_received() -> None:
    state = BoxState(shares_pct=(("dock", 20.0), ("shop", 60.0)))
    for id, customer in (("gate", "shop"), ("yard", "shop"), ("pier", "house"), ("old", "")):
        state.streams[id] = StreamState(id=id, knobs=(), version="v", customer=customer)
    shares = (
        share("gate", "infer", 30, 25),
        share("yard", "train/3", 20, 20),
        share("pier", "infer", 10, 9),
        share("old", "infer", 5, 5),
    )
    found = {view.customer: (view.share_pct, view.promised_pct, view.received_pct) for view in customer_views(state, shares)}
    assert found == {"shop": (60.0, 50, 45), "house": (None, 10, 9), "dock": (20.0, 0, 0)}
    status = FakeSource().status().model_copy(update={"customers": customer_views(state, shares)})
    assert stats(status)["customers"]["shop"] == {"share_pct": 60.0, "promised_pct": 50, "received_pct": 45}


def test_whose_a_camera_is() -> None:
    config = BoxConfig.model_validate({"cameras": CAMERAS})
    entries = {entry.id: entry for entry in config.cameras}
    assert customer_of(SimpleNamespace(entry=entries["gate"])) == "shop"  # type: ignore[arg-type]
    assert customer_of(SimpleNamespace(entry=entries["yard"])) == "house"  # type: ignore[arg-type]
    assert customer_of(SimpleNamespace(entry=None)) == "house"  # type: ignore[arg-type]


def test_a_camera_that_is_changed_while_it_runs_changes_customers_for_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    box = LiveBox(tmp_path / "data", {"gate": "fake"})
    try:
        box.runtime.watched = dict(box.watched)
        box.runtime.parts.journal.start_segment("{}")
        before, streams = box.watched["gate"], box.runtime.parts.engine.state.streams
        box.runtime.parts.engine.handle(
            CameraAdded(at_s=0.0, stream="gate", knobs=before.knobs, version="gate-1", customer="house")
        )
        entry = CameraEntry.model_validate({"id": "gate", "url": "rtsp://192.0.2.1/x", "customer": "shop"})
        box.runtime.change_camera(replace(before, entry=entry))
        assert streams["gate"].customer == "shop"
        assert [view.customer for view in box.status.status().customers] == ["shop"]
    finally:
        box.store.close()
        box.folder.close()
