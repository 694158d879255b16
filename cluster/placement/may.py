"""Which boxes may watch a camera at all: ESCHER's part (card, sections 5 and 6), in the vectors of `cluster.escher.uses`. Pure.

A box that is fit (there, believed, not being emptied) has a unit of each network that it reaches, one of its own name, and one seat for
every camera. A camera demands (one of its networks OR its home) AND its seat. Owner, standby and a box that it is on its way to have
taken their seats, so two of them are never on one box. What of percent and memory is left is for the scores: they weigh it.
"""

from __future__ import annotations

from collections import defaultdict

from cluster.escher.uses import Ledger, box_resources, camera_demands, seat
from cluster.placement.sight import Patience, is_fit
from cluster.types import FleetState
from configs.units import is_camera_id
from scheduler.fleet.types import CameraKey, CameraReport


class Allowed:
    """Asked for one state, many times: 1,000 boxes are looked through once."""

    def __init__(self, state: FleetState, patience: Patience, now_utc_s: float) -> None:
        self.unfit = {box_id: is_fit(state, box_id, patience, now_utc_s) for box_id in state.boxes}
        self._has = {box_id: box_resources(state.boxes[box_id]) for box_id, why in sorted(self.unfit.items()) if not why}
        self._by_place: dict[str, list[str]] = defaultdict(list)
        for box_id, resources in self._has.items():
            for name in resources:
                self._by_place[name].append(box_id)

    def boxes_for(self, camera: CameraReport, taken: set[str]) -> tuple[str, ...]:
        """The boxes that may, those of the first network first. taken: boxes where its seat is not free."""
        demands = camera_demands(camera)
        near = {box_id for wanted in demands for name in wanted for box_id in self._by_place.get(name, ())}
        ledger = Ledger(
            free={box_id: {**self._has[box_id], **_seats(camera.camera, box_id in taken)} for box_id in sorted(near)}
        )
        return tuple(box_id for box_id in ledger.boxes_for(demands) if self._can_name(camera, box_id))

    def why_not(self, camera: CameraReport, box_id: str, taken: set[str]) -> str:
        """Why a box is not among them, in words; '': it is."""
        unfit = self.unfit.get(box_id, f"box {box_id} is not in the fleet")
        if unfit:
            return unfit
        if box_id in taken:
            return f"box {box_id} has it already"
        if not self._can_name(camera, box_id):
            return f"its name {camera.camera.guest_id} is too long for box {box_id}"
        if not Ledger(free={box_id: {**self._has[box_id], **_seats(camera.camera, False)}}).met(box_id, camera_demands(camera)):
            return f"box {box_id} does not reach its network ({', '.join(camera.networks) or 'only its home does'})"
        return ""

    def _can_name(self, camera: CameraReport, box_id: str) -> bool:
        return box_id == camera.camera.home or is_camera_id(camera.camera.guest_id)


def _seats(camera: CameraKey, taken: bool) -> dict[str, float]:
    return {} if taken else {seat(camera): 1.0}
