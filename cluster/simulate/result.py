"""What came of a simulated fleet, and the numbers that it was asked to reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from cluster.simulate.scenario import Scenario
from cluster.types import Customer

#: A live box reports every 5 s and the live controller steps every second.
LIVE_REPORT_S, LIVE_STEP_S, LIVE_ROUND_S, LIVE_FEEDBACK_S = 5.0, 1.0, 120.0, 10.0


@dataclass
class Seen:
    """Sums over a run. camera_s: camera-seconds; unwatched_alive_s: of those that nobody watched, the ones whose home box was alive;
    changed_alone: times that a cut-off box did anything else than before; values: (customer, quality, quality when every box is divided
    by weight, utility, the same of the latter) per step; lost_or_twice: events that came out of turn."""

    camera_s: float = 0.0
    unwatched_s: float = 0.0
    unwatched_alive_s: float = 0.0
    changed_alone: int = 0
    cut_box_s: float = 0.0
    cut_frames_due: float = 0.0
    cut_unwatched_s: float = 0.0
    produced: int = 0
    received: int = 0
    waiting: int = 0
    dropped: int = 0
    lost_or_twice: int = 0
    rounds: int = 0
    broker_away: bool = False
    values: list[tuple[str, float, float, float, float]] = field(default_factory=list)


@dataclass
class ViewTimes:
    """every_s: the page's period; made_s: CPU time of a view with its patch; bytes: of the patches."""

    every_s: float
    made_s: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Target:
    """ok: None where nothing is promised."""

    what: str
    to_reach: str
    measured: str
    ok: bool | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """cores: CPU seconds of the controller per second, reports every 5 s and a step every second as live, from the CPU time of each
    part; cores_here: as it was simulated. behind_s: oldest that a shown number can be. met_frac: part of (customer, step) at or above
    the goal; met_even_frac: the same when every box is divided by weight; social, egalitarian, fairness: W_S, W_E, F_NJC as Cilantro
    defines them, means over steps; jain: Jain's index of utilities."""

    scenario: Mapping[str, Any]
    recorded: bool
    wall_s: float
    cores: float
    cores_here: float
    cpu_ms: Mapping[str, float]
    behind_s: float
    patch_kib: float
    changed_alone: int
    cut_box_h: float
    cut_frames_due: int
    cut_unwatched_s: float
    events: int
    events_lost: int
    events_waiting: int
    watched_frac: float
    unwatched_alive_frac: float
    met_frac: float
    met_even_frac: float
    social: float
    egalitarian: float
    fairness: float
    jain: float
    rollout: str

    @staticmethod
    def made(
        scenario: Scenario, seen: Seen, views: ViewTimes, cpu_s: Mapping[str, float], calls: Mapping[str, int],
        customers: Sequence[Customer], *, rollout: str, wall_s: float, recorded: bool,
    ) -> Result:  # fmt: skip
        span_s = scenario.steps * scenario.report_s
        per_call = {part: cpu_s[part] / calls[part] for part in cpu_s}
        lost = seen.produced - seen.received - seen.waiting + seen.lost_or_twice
        return Result(
            scenario=asdict(scenario), recorded=recorded, wall_s=wall_s, cores=_live_cores(scenario, per_call),
            cores_here=sum(cpu_s.values()) / span_s, cpu_ms={part: 1000 * s for part, s in sorted(per_call.items())},
            behind_s=views.every_s + max(views.made_s, default=0.0), patch_kib=float(np.mean(views.bytes or [0])) / 1024,
            changed_alone=seen.changed_alone, cut_box_h=seen.cut_box_s / 3600, cut_frames_due=round(seen.cut_frames_due),
            cut_unwatched_s=seen.cut_unwatched_s, events=seen.produced, events_lost=lost, events_waiting=seen.waiting,
            watched_frac=1 - seen.unwatched_s / max(1.0, seen.camera_s),
            unwatched_alive_frac=seen.unwatched_alive_s / max(1.0, seen.camera_s), rollout=rollout, **_fair(seen, customers),
        )  # fmt: skip

    def targets(self) -> list[Target]:
        s = self.scenario
        return [
            Target(
                what="inference of boxes that are cut off", to_reach="unchanged",
                measured=f"{self.changed_alone} changes of shares or cameras in {self.cut_box_h:,.0f} box-hours "
                f"({self.cut_frames_due:,} frames due), {self.cut_unwatched_s:.0f} camera-seconds unwatched",
                ok=self.changed_alone == 0 and self.cut_unwatched_s == 0 if self.cut_box_h else None,
            ),
            Target(
                what="QoS 1 events", to_reach="none lost", ok=self.events_lost == 0,
                measured=f"{self.events_lost} lost or twice of {self.events:,}; {self.events_waiting:,} still wait",
            ),
            Target(
                what=f"controller, {s['boxes']} boxes, a report every 5 s each", to_reach="1 core", ok=self.cores <= 1.0,
                measured=f"{self.cores:.2f} CPU seconds a second",
            ),
            Target(
                what="fleet view", to_reach="1 s behind", ok=self.behind_s <= 1.0,
                measured=f"{self.behind_s:.2f} s at most, a patch is {self.patch_kib:.0f} KiB",
            ),
            Target(
                what="goals met, part of customers and time", to_reach="-", ok=None,
                measured=f"{self.met_frac:.3f}; {self.met_even_frac:.3f} when every box is divided by weight",
            ),
            Target(
                what="W_S, W_E, F_NJC, Jain's index of utilities", to_reach="-", ok=None,
                measured=f"{self.social:.3f}, {self.egalitarian:.3f}, {self.fairness:.3f}, {self.jain:.3f}",
            ),
            Target(
                what="cameras watched by somebody, part of the time", to_reach="-", ok=None,
                measured=f"{self.watched_frac:.5f}; unwatched though their home lived: {self.unwatched_alive_frac:.5f}",
            ),
        ]  # fmt: skip


def _live_cores(scenario: Scenario, per_call_s: Mapping[str, float]) -> float:
    """Every part at the pace at which a live controller calls it."""
    pace_hz = {
        "reports": scenario.boxes / LIVE_REPORT_S, "events": 0.0, "settle": 1 / LIVE_STEP_S, "wishes": 1 / LIVE_STEP_S,
        "urgent": 1 / LIVE_STEP_S, "feedback": 1 / LIVE_FEEDBACK_S, "shares": 1 / LIVE_ROUND_S, "places": 1 / LIVE_ROUND_S,
    }  # fmt: skip
    return sum(cost_s * pace_hz.get(part, 0.0) for part, cost_s in per_call_s.items())


def _fair(seen: Seen, customers: Sequence[Customer]) -> dict[str, float]:
    goal = {customer.id: customer.goal for customer in customers}
    if not seen.values:
        return dict.fromkeys(("met_frac", "met_even_frac", "social", "egalitarian", "fairness", "jain"), float("nan"))
    met = [value >= goal[customer] for customer, value, _, _, _ in seen.values]
    even = [equal >= goal[customer] for customer, _, equal, _, _ in seen.values]
    steps: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    count = max(1, len(seen.values) // max(1, seen.rounds))
    for n, (_, _, _, ours, entitled) in enumerate(seen.values):
        steps[n // count].append((ours, entitled))
    tables = [np.array(rows) for rows in steps.values()]
    return {
        "met_frac": float(np.mean(met)),
        "met_even_frac": float(np.mean(even)),
        "social": float(np.mean([t[:, 0].mean() for t in tables])),
        "egalitarian": float(np.mean([t[:, 0].min() for t in tables])),
        "fairness": float(np.mean([min(1.0, (t[:, 0] / np.maximum(t[:, 1], 1e-9)).min()) for t in tables])),
        "jain": float(np.mean([t[:, 0].sum() ** 2 / (len(t) * (t[:, 0] ** 2).sum()) for t in tables])),
    }
