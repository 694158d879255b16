"""A member and the real controller: joined by a code over HTTPS, heard at the fleet's own broker, told its customers' shares, alone
while the controller is away, in the next term when it is back, gone when it leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.controller.serve import RunningController, ServeOptions
from cluster.types import Customer
from configs.errors import UsageError
from configs.schema import CameraEntry
from edge.fleet.joining import Candidate, join, leave
from tests.integration.test_fleet_box_link import RealClock
from tests.support.mosquitto import eventually
from tests.support.ports import free_port
from tests.unit.edge.fleet.test_fleet_part import Hall

pytestmark = [pytest.mark.mqtt, pytest.mark.timeout(300)]

HALL = Candidate(box="hall", site="site", capacity_pct=100, software="1")


@pytest.fixture
def options(tmp_path: Path) -> ServeOptions:
    return ServeOptions(
        data_dir=tmp_path / "fleet", host="127.0.0.1", port=free_port(), names=("127.0.0.1",), broker_port=free_port(), round_s=1.0,
        report_every_s=1.0, login=False,
    )  # fmt: skip


def controller_of(options: ServeOptions) -> RunningController:
    made = RunningController(options, say=lambda text: None)
    made.start()
    eventually(lambda: made.services.status().in_charge, "the controller is in charge")
    return made


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path, now_utc_s=time.time(), clock=RealClock())
    shown = made.part._box.status.status()
    for camera in shown.cameras:  # all configured, for two customers
        customer = "shop" if camera.id == shown.cameras[0].id else "dock"
        entry = CameraEntry.model_validate({"id": camera.id, "url": "rtsp://192.0.2.1/x", "customer": customer, "fps": 5})
        made.runtime.watched[camera.id] = Camera(entry)
    yield made
    made.part.stop()


class Camera:
    """As much of `Watched` as a report looks at."""

    arch = "yolo11n"

    def __init__(self, entry: CameraEntry) -> None:
        self.entry = entry

    def offered(self) -> tuple[Any, ...]:
        from edge.runtime import knob_profiles

        return knob_profiles(5.0, 0.2)


def test_a_membership_from_its_code_to_its_end(options: ServeOptions, hall: Hall) -> None:
    controller = controller_of(options)
    try:
        for customer in (Customer(id="shop", goal=0.9), Customer(id="dock", goal=0.5)):
            controller.services.actions.put_customer(customer, by="test")
        code = controller.services.actions.invite(by="test").code
        with pytest.raises(UsageError, match="refuses"):
            join(hall.folder, controller.url, "AAAA-BBBB-CCCC-DDDD." + code.partition(".")[2], HALL, now_utc_s=time.time())
        member = join(hall.folder, controller.url, code, HALL, now_utc_s=time.time())
        assert (member.broker.port, member.report_every_s) == (options.broker_port, 1.0)
        hall.part.follow()
        box = eventually(
            lambda: (b := controller.services.state().boxes.get("hall")) and b.report and b, "the controller believes a report"
        )
        assert {camera.customer for camera in box.report.cameras} == {"shop", "dock"}
        assert box.doubts == ()
        view = eventually(lambda: (v := hall.part.fleet()) and v.version and v.shares and v, "a wish with shares is in force")
        assert {share.customer for share in view.shares} == {"shop", "dock"}
        eventually(  # shares may change with every round
            lambda: (
                dict(hall.runtime.parts.engine.state.shares_pct) == {s.customer: s.share_pct for s in hall.part.fleet().shares}
            ),
            "what is told is in force",
        )
        assert view.offset_s is not None
        assert abs(view.offset_s) < 60, "messages may be late, and its clock is right"
        said = eventually(
            lambda: (r := controller.services.state().boxes["hall"].report) and r.confirmation.version and r.confirmation,
            "the confirmation is back",
        )
        assert (said.term, said.refused) == (view.term, "")
    finally:
        controller.stop()
    eventually(lambda: not hall.part.fleet().connected, "the broker is gone with its controller")
    shares, joined = hall.runtime.parts.engine.state.shares_pct, hall.part._joined
    assert joined is not None
    for _ in range(3):
        joined.member.step()
    assert hall.part.fleet().version >= view.version
    assert hall.runtime.parts.engine.state.shares_pct == shares

    controller = controller_of(options)
    try:
        eventually(lambda: hall.part.fleet().connected, "the box is back at the broker")
        eventually(lambda: controller.services.state().boxes["hall"].online, "the controller knows it again")
        controller.services.actions.drain("hall", True, by="test")
        eventually(lambda: hall.part.fleet().draining, "a wish of the new term is in force")
        assert hall.part.fleet().term > view.term
        assert leave(hall.folder) == ""
        hall.part.follow()
        assert hall.part.fleet().joined is False
        assert hall.runtime.parts.engine.state.shares_pct == ()
    finally:
        controller.stop()
