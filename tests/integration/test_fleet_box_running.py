"""Two real boxes and a real controller: they join while they work, are given shares, a camera moves from one to the other, the
controller is gone for good, they leave. Frames are analysed all the time, and in the end every box has its own cameras."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.controller.serve import RunningController, ServeOptions
from cluster.types import Customer
from edge.cli import app
from scheduler.fleet.types import CameraKey
from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess
from tests.support.ports import free_port
from tests.support.running_box import RunningBox, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
box: {{id: {box}, site: farm}}
window: {{seconds: 600, first_seconds: 600}}
scheduler: {{policy: no-retrain, drift: {{enabled: false}}}}
models: {{serving: trained}}
fleet: {{networks: [lan]}}
cameras:
  - {{id: {camera}, url: "{url}", customer: {customer}, networks: [lan]}}
"""
GUEST = "hall--street"


@pytest.fixture
def address() -> Iterator[str]:
    """A camera that both boxes can reach."""
    server = RtspServerProcess([CameraScript(id="street", kind="street", seed=101, fps=5.0).mount()])
    server.start()
    yield server.url("street")
    server.stop()


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    options = ServeOptions(
        data_dir=tmp_path / "fleet", host="127.0.0.1", port=free_port(), names=("127.0.0.1",), broker_port=free_port(), round_s=1.0,
        report_every_s=1.0, login=False,
    )  # fmt: skip
    made = RunningController(options, say=lambda text: None)
    made.start()
    yield made
    made.stop()


def box_of(folder: Path, **values: str) -> RunningBox:
    folder.mkdir()
    return RunningBox(folder, CONFIG.format(box=folder.name, **values))


def driftbox(box: RunningBox, *words: str) -> int:
    call = ["fleet", *words, "--data-dir", str(box.data_dir), "--config", str(box.folder / "box.yaml")]
    return CliRunner().invoke(app, call).exit_code


def fleet(box: RunningBox) -> dict[str, Any]:
    answer = box.get("/api/v1/fleet")
    return answer.json() if answer is not None and answer.status_code == 200 else {}


def analysed(box: RunningBox, camera: str) -> int:
    """Frames of a camera; -1: it is not watched here."""
    status = eventually(box.status, f"{box.folder.name} answers")  # no answer is no word about its cameras
    return next((int(c["frames_analysed"]) for c in status["cameras"] if c["id"] == camera), -1)


def goes_on(box: RunningBox, camera: str) -> None:
    before = analysed(box, camera)
    assert before >= 0
    eventually(lambda: analysed(box, camera) >= before + 8, f"frames of {camera} are analysed on {box.folder.name}")


def shares(box: RunningBox) -> dict[str, float | None]:
    status = box.status() or {"customers": []}
    return {c["customer"]: c["share_pct"] for c in status["customers"]}


def test_boxes_of_a_fleet(tmp_path: Path, boxes: list[RunningBox], controller: RunningController, address: str) -> None:
    hall = box_of(tmp_path / "hall", camera="street", url=address, customer="town")
    barn = box_of(tmp_path / "barn", camera="yard", url="rendered:yard?seed=7&fps=5", customer="shop")
    boxes.extend([hall, barn])
    eventually(lambda: controller.services.status().in_charge, "the controller is in charge")
    actions = controller.services.actions
    for name in ("town", "shop"):
        actions.put_customer(Customer(id=name), by="test")
    for box, camera in ((hall, "street"), (barn, "yard")):
        eventually(lambda box=box, camera=camera: analysed(box, camera) > 3, "the box works")
        assert eventually(lambda box=box: fleet(box), "it tells of its fleet")["joined"] is False
        assert driftbox(box, "join", controller.url, "--code", actions.invite(by="test").code) == 0
    eventually(lambda: sum(b.report is not None for b in controller.services.state().boxes.values()) == 2, "both report")
    eventually(lambda: shares(hall).get("town"), "the engine plans by shares")
    goes_on(hall, "street")

    actions.pin(CameraKey(home="hall", camera="street"), "barn", by="test")
    eventually(lambda: analysed(barn, GUEST) > 0 and analysed(hall, "street") < 0, "the camera has moved")
    eventually(lambda: set(shares(barn)) == {"town", "shop"} and all(shares(barn).values()), "its customer has a share there")
    goes_on(barn, "yard")
    controller.stop()
    eventually(lambda: fleet(barn).get("connected") is False, "the fleet is gone")
    goes_on(barn, GUEST)
    eventually(lambda: (s := barn.status()) and s["degraded"] == [], "all is well without it")

    assert driftbox(barn, "leave") == 0
    assert driftbox(hall, "leave") == 0
    eventually(lambda: analysed(barn, GUEST) < 0 and analysed(hall, "street") > 0, "the camera is home")
    eventually(lambda: set(shares(barn).values()) | set(shares(hall).values()) == {None}, "no shares any more")
    goes_on(barn, "yard")
