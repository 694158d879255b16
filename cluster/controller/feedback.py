"""What boxes reported, as Cilantro's feedback: per customer what it received, its load, and what came of it. Pure.

Cilantro's client (card section 3) sends (load, alloc, reward, sigma) per window. Here a job is a customer's cameras on all boxes:
load = sum of frames due per second; alloc = sum of what they received; value = mean over cameras, each counting alike for the goal
`quality` (a customer looks at cameras, not at frames) and by its frames for `deadline` (the part of all frames that was in time).

A window in which the allocation changed tells nothing (card section 3), so reports before the box has confirmed the wish in force are
left out. A camera counts where its lease says that it is watched, and only if all its numbers are believed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.placement.sight import lease_of
from cluster.types import Customer, FleetState, Measure, Performance
from scheduler.fleet.types import CameraReport, checked

#: Whose cameras they are where a box names nobody, or somebody who cannot be.
HOUSE = "house"
#: Standard deviation of one camera's measured quality (F1 over some dozens of golden frames), and of what stands for it.
SIGMA_QUALITY, SIGMA_PROXY = 0.05, 0.15
#: Least sigma: never certain.
SIGMA_LEAST = 0.005


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A camera as it counts. share_frac: received part of what full quality needs."""

    camera: CameraReport
    box: str

    @property
    def share_frac(self) -> float:
        """1 where nothing is needed."""
        return min(1.0, self.camera.got_pct / self.camera.demand_pct) if self.camera.demand_pct > 0 else 1.0


def cameras_by_customer(state: FleetState) -> dict[str, tuple[Seen, ...]]:
    """Cameras with the box that owns them, by customer, in the order of their names."""
    found: defaultdict[str, list[Seen]] = defaultdict(list)
    for box_id, view in sorted(state.boxes.items()):
        for camera in view.cameras:
            if lease_of(state, camera.camera).box == box_id:
                found[_id_of(camera.customer)].append(Seen(camera=camera, box=box_id))
    return {customer: tuple(sorted(seen, key=lambda s: s.camera.camera)) for customer, seen in sorted(found.items())}


def _id_of(customer: str) -> str:
    try:
        return checked(customer, "a customer")
    except ValueError:
        return HOUSE


def performances(
    state: FleetState, *, wished: Mapping[str, tuple[int, int]], now_utc_s: float, fresh_s: float
) -> tuple[Performance, ...]:
    """What each customer got since the last round. fresh_s: a box not heard for longer tells nothing. A customer one of whose boxes has
    not settled tells nothing either: its sum would be of two allocations."""
    unsettled = {box for box in state.boxes if not settled(state, box, wished.get(box), now_utc_s, fresh_s)}
    found = []
    for customer_id, seen in cameras_by_customer(state).items():
        told = [one for one in seen if one.box not in unsettled]
        if not told or any(one.box in unsettled and state.boxes[one.box].online for one in seen):
            continue
        performance = _performance(state.customers.get(customer_id, Customer(id=customer_id)), told, now_utc_s)
        if performance is not None:
            found.append(performance)
    return tuple(found)


def settled(state: FleetState, box: str, wished: tuple[int, int] | None, now_utc_s: float, fresh_s: float) -> bool:
    """Whether what a box reported belongs to the wish in force."""
    view = state.boxes[box]
    if view.report is None or now_utc_s - view.seen_utc_s > fresh_s:
        return False
    confirmation = view.report.confirmation
    return wished is None or (confirmation.term, confirmation.version) == wished


def _performance(customer: Customer, seen: list[Seen], now_utc_s: float) -> Performance | None:
    usable = [one for one in seen if one.camera.got_pct > 0 and one.camera.fps > 0]
    if not usable:
        return None
    measured = [one for one in usable if _measured(customer.measure, one.camera) is not None]
    proxy = len(measured) * 2 < len(usable)
    # Where most are measured those stand for the rest; else all are judged by what they received of what they need.
    value, sigma = _proxy(usable) if proxy else _measure(customer.measure, measured)
    return Performance(
        customer=customer.id, alloc_pct=sum(one.camera.got_pct for one in usable), load=sum(one.camera.fps for one in usable),
        value=value, sigma=max(SIGMA_LEAST, sigma), end_utc_s=now_utc_s, proxy=proxy,
    )  # fmt: skip


def _measured(measure: Measure, camera: CameraReport) -> float | None:
    return camera.quality if measure == "quality" else camera.finish_frac


def _measure(measure: Measure, seen: list[Seen]) -> tuple[float, float]:
    values = [(_measured(measure, one.camera) or 0.0, one.camera.fps if measure == "deadline" else 1.0) for one in seen]
    weight = sum(w for _, w in values)
    mean = sum(value * w for value, w in values) / weight
    if measure == "quality":
        return mean, SIGMA_QUALITY / math.sqrt(len(values))
    # Card section 3: of N frames that are in time or not, sigma = 1 / sqrt(2 N); N: those of a minute.
    return mean, min(0.5, 1.0 / math.sqrt(2 * 60.0 * weight))


def _proxy(seen: list[Seen]) -> tuple[float, float]:
    """Received part of what full quality needs, per camera: rises with the share as quality does, and is 1 where quality is full."""
    return sum(one.share_frac for one in seen) / len(seen), SIGMA_PROXY / math.sqrt(len(seen))
