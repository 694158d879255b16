"""The box on itself: reports, the controller's clock, what a fleet is told and what not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import CameraEntry, FleetSection
from edge.fleet.controller_clock import JUMP_S, ControllerClock
from edge.fleet.link import NUMBERS, Numbers, is_wanted
from edge.fleet.report import CameraFacts, Looked, Stamp, demand_pct, measured_of, report_of, seen_quality, travels
from edge.fleet.view import FleetView, sentence
from edge.status import BoxStatus, CameraView, DeviceView, JobMemoryView, ShareView
from edge.store.outbox import Outbox
from edge.store.store import QualityPoint, Store
from edge.telemetry.topics import BOX_KINDS, CAMERA_KINDS, Topics
from scheduler.fleet.codec import as_dict, decode, encode
from scheduler.fleet.types import BoxReport, CameraKey, Confirmation, Measured, OfferWord
from scheduler.types import KnobProfile

STAMP = Stamp(box="hall", site="site", boot="b1", sequence=7)
SAID = Confirmation(term=2, version=3)


def status(*cameras: CameraView, **more: object) -> BoxStatus:
    return BoxStatus(
        box="hall", now_utc=1.8e9, started_utc=1.7e9, software="1", capacity_pct=200, spare_pct=30, cameras=cameras, **more
    )  # type: ignore[arg-type]


def entry(id: str, **more: object) -> CameraEntry:
    return CameraEntry(id=id, url="rtsp://192.0.2.1/x", **more)  # type: ignore[arg-type]


def report(looked: Looked, fleet: FleetSection | None = None) -> BoxReport:
    found = report_of(STAMP, looked, fleet or FleetSection(), SAID)
    assert decode(BoxReport, encode(found)) == found  # it travels
    return found


def test_a_camera_in_a_report() -> None:
    gate = CameraView(
        id="gate", name="Gate", state="live", quality=0.7, finish_frac=0.9, deadline_ms=400, camera_fps=25, model="gate-3",
        knobs="half",
    )  # fmt: skip
    seen = status(
        gate,
        shares=(
            ShareView(job="gate/infer", camera="gate", kind="inference", promised_pct=30, received_pct=20),
            ShareView(job="gate/train/3", camera="gate", kind="retraining", promised_pct=30, received_pct=15),
            ShareView(job="yard/infer", camera="yard", kind="inference", promised_pct=30, received_pct=99),
        ),
        memory=(JobMemoryView(job="gate/infer", persistent_mib=100, ephemeral_mib=20),),
        degraded=("the disk is nearly full",),
    )
    facts = CameraFacts(
        knobs=(KnobProfile(name="every", demand_pct=24, quality_frac=1.0), KnobProfile(name="half", demand_pct=12, quality_frac=0.8)),
        arch="yolo11n", drift=(0.1, 0.2),
    )  # fmt: skip
    found = report(
        Looked(status=seen, entries={"gate": entry("gate", customer="shop", networks=("hall",), fps=5)}, facts={"gate": facts})
    )
    (camera,) = found.cameras
    assert camera.camera == CameraKey(home="hall", camera="gate")
    assert (camera.customer, camera.networks, camera.demand_pct, camera.got_pct) == ("shop", ("hall",), 24, 35)
    assert (camera.quality, camera.finish_frac) == (pytest.approx(0.7 * 0.8), 0.9), "what people see with the knobs in force"
    assert (camera.fps, camera.lag_goal_s) == (5, 0.4)
    assert (camera.memory_mib, camera.version, camera.arch, camera.drift) == (120, "gate-3", "yolo11n", (0.1, 0.2))
    assert (found.capacity_pct, found.spare_pct, found.alarms, found.sequence) == (200, 30, ("the disk is nearly full",), 7)


KNOBS = (KnobProfile(name="every", demand_pct=24, quality_frac=1.0), KnobProfile(name="half", demand_pct=12, quality_frac=0.5))


@pytest.mark.parametrize(
    ("quality", "state", "knobs", "seen"),
    [(0.8, "live", "every", 0.8), (0.8, "live", "half", 0.4), (0.8, "live", None, 0.0), (None, "live", "half", None),
     (0.8, "live", "gone", 0.8), (0.8, "stalled", None, 0.8)],
)  # fmt: skip
def test_quality_is_what_people_see(quality: float | None, state: str, knobs: str | None, seen: float | None) -> None:
    camera = CameraView(id="gate", state=state, quality=quality, knobs=knobs)
    assert seen_quality(camera, KNOBS) == seen
    assert seen_quality(camera, ()) == quality, "nothing is known of knobs yet"


@pytest.mark.parametrize(
    ("url", "may"), [("rtsp://192.0.2.1/a", True), ("https://192.0.2.1/a", True), ("rendered:street?seed=1", False)]
)
def test_only_network_cameras_are_reached_from_elsewhere(url: str, may: bool) -> None:
    assert travels(CameraEntry.model_validate({"id": "gate", "url": url, "networks": ["hall"]})) is may


@pytest.mark.parametrize(
    ("box_wide", "own", "may"), [(False, None, False), (True, None, True), (True, False, False), (False, True, True)]
)
def test_consent_is_the_cameras_own_where_it_says_something(box_wide: bool, own: bool | None, may: bool) -> None:
    looked = Looked(status=status(CameraView(id="gate", state="live")), entries={"gate": entry("gate", consent=own)})
    assert report(looked, FleetSection(consent=box_wide)).cameras[0].consent is may


def test_a_camera_that_nobody_configured_gives_nothing_away() -> None:
    found = report(Looked(status=status(CameraView(id="gate", state="live", camera_fps=12))), FleetSection())
    assert (found.cameras[0].consent, found.cameras[0].customer, found.cameras[0].fps) == (False, "house", 12)


def test_measurements_travel_with_what_is_behind_them() -> None:
    points = [
        QualityPoint(stream="gate", at_utc=1.0, value=0.6, kind="f1", version="gate-1", number=4),
        QualityPoint(stream="gate", at_utc=2.0, value=0.7, kind="f1", version="gate-2", number=5, frames=8, error=0.1),
        QualityPoint(
            stream="gate", at_utc=3.0, value=0.7, kind="f1", version="gate-2", number=6, frames=8, error=0.1, over="gate-1", gain=0.2,
            gain_error=0.15,
        ),
    ]  # fmt: skip
    facts = {"gate": CameraFacts(measured=measured_of(points))}
    (told,) = report(Looked(status=status(CameraView(id="gate", state="live")), facts=facts)).cameras
    assert told.measured == (
        Measured(number=5, version="gate-2", quality=0.7, frames=8, error=0.1),
        Measured(number=6, version="gate-2", quality=0.7, frames=8, error=0.1, over="gate-1", gain=0.2, gain_error=0.15),
    ), "of the first nobody knows how many pictures are behind it"


def test_boxes_and_controllers_of_two_releases_understand_each_other() -> None:
    """An older box tells no measurements; an older controller leaves out what it does not know."""
    found = as_dict(report(Looked(status=status(CameraView(id="gate", state="live", quality=0.5)))))
    del found["cameras"][0]["measured"]
    found["cameras"][0]["of_a_later_release"] = 1
    (told,) = decode(BoxReport, found).cameras
    assert (told.measured, told.quality) == ((), 0.5)
    word = {"rollout": "r", "camera": {"home": "hall", "camera": "gate"}, "stage": "serving"}
    assert decode(OfferWord, word).version == ""


def test_a_guest_is_told_under_its_home() -> None:
    home = CameraKey(home="barn", camera="gate")
    found = report(Looked(status=status(CameraView(id=home.guest_id, state="live")), guests={home.guest_id: home}))
    assert found.cameras[0].camera == home


def test_a_box_that_takes_no_guests_reaches_no_network() -> None:
    assert report(Looked(status=status()), FleetSection(networks=("hall",))).networks == ("hall",)
    assert report(Looked(status=status()), FleetSection(networks=("hall",), accept_guests=False)).networks == ()


def test_memory_is_that_of_the_devices_that_work() -> None:
    def device(index: int, problem: str = "") -> DeviceView:
        return DeviceView(index=index, name="x", memory_total_mib=1000, memory_used_mib=0, problem=problem)

    assert report(Looked(status=status())).memory_mib is None
    assert report(Looked(status=status(devices=(device(0), device(1, "lost"))))).memory_mib == 1000


def test_demand_is_the_cheapest_of_the_best() -> None:
    assert demand_pct(()) == 0
    knobs = [KnobProfile(name=n, demand_pct=d, quality_frac=q) for n, d, q in (("a", 40, 1.0), ("b", 30, 1.0), ("c", 5, 0.9))]
    assert demand_pct(knobs) == 30


# --- the controller's clock -------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40), st.floats(-1e6, 1e6))
def test_the_heartbeat_that_came_fastest_counts(delays_s: list[float], ahead_s: float) -> None:
    """What is believed is never later than the truth, and as late as the least delay of the newest heartbeats."""
    clock = ControllerClock()
    for number, delay_s in enumerate(delays_s):
        sent_s = 5.0 * number
        clock.heard(1e9 + ahead_s + sent_s, sent_s + delay_s)
    newest = delays_s[-12:]
    now_s = 5.0 * len(delays_s) + 100
    error_s = 1e9 + ahead_s + now_s - (clock.now_utc_s(now_s) or 0)
    assert min(delays_s) - 1e-3 <= error_s <= min(newest) + 1e-3


def test_a_clock_that_was_set_counts_at_once() -> None:
    clock = ControllerClock()
    assert clock.now_utc_s(5) is None
    assert clock.silent_s(5) is None
    for n in range(5):
        clock.heard(1000.0 + n, n)
    clock.heard(1005.0 - 3600, 5)
    assert clock.now_utc_s(6) == 1006 - 3600
    clock.heard(1006.0 - 3600 + 2 * JUMP_S, 6)
    assert clock.now_utc_s(6) == 1006 - 3600 + 2 * JUMP_S
    assert clock.silent_s(9) == 3


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_fleet_is_told_how_the_box_works_and_never_who_is_in_the_picture() -> None:
    topics = Topics(prefix="driftbox", site="site", box="hall")
    wanted = is_wanted(topics)
    told = {kind for kind in BOX_KINDS if wanted(topics.of_box(kind))}
    of_cameras = {kind for kind in CAMERA_KINDS if wanted(topics.of_camera("gate", kind))}
    assert (told, of_cameras) == ({"state", "window", "stats"}, {"status", "quality", "model"})
    assert not wanted("driftbox/site/hall/camera/gate/counts")
    assert not wanted("driftbox/site/barn/state")


def test_numbers_rise_over_restarts(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as store:
        first = Numbers(Outbox(store))
        seen = [first() for _ in range(3)]
        again = Numbers(Outbox(store))
        seen += [again() for _ in range(NUMBERS + 2)]
    assert seen == sorted(set(seen))
    assert seen[0] == 1


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (FleetView(joined=False), ""),
        (FleetView(joined=True, enabled=False), "switched off"),
        (FleetView(joined=True, connected=True, silent_s=3, term=2, version=7, controller="c"), "wish 2.7 in force"),
        (FleetView(joined=True, connected=True, silent_s=90, term=2, version=7, controller="c"), "alone just now"),
        (FleetView(joined=True, connected=False, trouble="the broker is gone", controller="c"), "the broker is gone"),
        (FleetView(joined=True, connected=True, refused="it expired", problems=("cameras: x",)), "cameras: x"),
    ],
)
def test_a_line_for_the_health_page(view: FleetView, words: str) -> None:
    assert words in sentence(view)
    assert bool(sentence(view)) == view.joined
