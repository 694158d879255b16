"""Fleets as values, for tests of what a controller decides: boxes with cameras, and what they said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from cluster.types import BoxView, Customer, FleetState
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation, Measured, OfferWord


def key(box: str, camera: str = "c0") -> CameraKey:
    return CameraKey(home=box, camera=camera)


def camera(box: str, name: str = "c0", *, customer: str = "city", quality: float | None = 0.8, **more: object) -> CameraReport:
    told: dict[str, object] = {"demand_pct": 20.0, "got_pct": 15.0, "fps": 5.0, "version": "v1"}
    return CameraReport(camera=key(box, name), customer=customer, quality=quality, **(told | more))  # type: ignore[arg-type]


def report(box: str, cameras: Iterable[CameraReport], *, alarms: tuple[str, ...] = (), site: str = "site") -> BoxReport:
    return BoxReport(
        box=box, site=site, boot="b", sequence=1, sent_utc="2026-11-22T00:00:00Z", software="1", capacity_pct=100.0, spare_pct=40.0,
        memory_mib=8000.0, networks=("lan",), cameras=tuple(cameras), confirmation=Confirmation(term=1, version=1), alarms=alarms,
    )  # fmt: skip


def box_view(box: str, cameras: Iterable[CameraReport] | None = None, *, online: bool = True, **more: object) -> BoxView:
    told = report(box, [camera(box)] if cameras is None else cameras)
    return BoxView(id=box, site="site", joined_utc_s=0.0, report=told, seen_utc_s=100.0, online=online, **more)  # type: ignore[arg-type]


def fleet(boxes: Iterable[BoxView], customers: Iterable[Customer] = (Customer(id="city"),)) -> FleetState:
    return FleetState(term=1, boxes={view.id: view for view in boxes}, customers={one.id: one for one in customers})


def fleet_of(count: int, cameras: int = 1) -> FleetState:
    """`count` boxes b000, b001, ... with `cameras` each."""
    names = [f"b{n:03}" for n in range(count)]
    return fleet(box_view(name, [camera(name, f"c{k}") for k in range(cameras)]) for name in names)


def saying(state: FleetState, words: Iterable[tuple[str, OfferWord]]) -> FleetState:
    """The same fleet, in which these boxes gave these answers beside those before."""
    boxes = dict(state.boxes)
    for box, word in words:
        view = boxes[box]
        assert view.report is not None
        known = {(one.rollout, one.camera): one for one in view.report.confirmation.offers} | {
            (word.rollout, word.camera): word
        }
        confirmation = replace(view.report.confirmation, offers=tuple(known.values()))
        boxes[box] = replace(view, report=replace(view.report, confirmation=confirmation))
    return replace(state, boxes=boxes)


def measured(state: FleetState, quality: Mapping[CameraKey, float]) -> FleetState:
    """The same fleet with other qualities, which boxes tell in one more report each."""
    return _told_anew(state, lambda one: replace(one, quality=quality.get(one.camera, one.quality)), set(quality))


def labelled(state: FleetState, found: Mapping[CameraKey, Measured]) -> FleetState:
    """The same fleet, whose cameras were measured once more on labels; numbers are given here."""

    def told(one: CameraReport) -> CameraReport:
        more = found.get(one.camera)
        number = one.measured[-1].number + 1 if one.measured else 1
        return one if more is None else replace(one, measured=(*one.measured, replace(more, number=number))[-3:])

    return _told_anew(state, told, set(found))


def _told_anew(state: FleetState, told: Callable[[CameraReport], CameraReport], about: set[CameraKey]) -> FleetState:
    boxes = {}
    for name, view in state.boxes.items():
        assert view.report is not None
        sequence = view.report.sequence + any(one.camera in about for one in view.cameras)
        boxes[name] = replace(view, report=replace(view.report, sequence=sequence, cameras=tuple(map(told, view.cameras))))
    return replace(state, boxes=boxes)


def alarmed(state: FleetState, box: str, *sentences: str) -> FleetState:
    view = state.boxes[box]
    assert view.report is not None
    return replace(state, boxes={**state.boxes, box: replace(view, report=replace(view.report, alarms=sentences))})
