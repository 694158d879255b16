"""What happens in a simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass

from configs.errors import UsageError

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """boxes of cameras each, site_boxes to a network; hours in all, of which the first is learned in and not judged. cut_frac: part of
    the boxes that the fleet cannot reach from cut_at_h on for cut_h hours; deaths: boxes that stop altogether for dead_h hours, at times
    drawn; broker_away_min: from broker_at_h on nobody reaches anybody. report_s: virtual seconds between two reports of a box (live: 5;
    coarser is only cheaper to simulate, all of the controller's patience is stretched with it). load_frac: mean need of a box's cameras
    in parts of its capacity; events_per_h: QoS 1 messages of a camera at mean load."""

    boxes: int = 1000
    cameras: int = 4
    site_boxes: int = 5
    customers: int = 20
    hours: float = 26.0
    seed: int = 0
    report_s: float = 120.0
    cut_frac: float = 0.3
    cut_at_h: float = 1.5
    cut_h: float = 24.0
    deaths: int = 20
    dead_h: float = 2.0
    broker_at_h: float = 1.0
    broker_away_min: float = 10.0
    capacity_pct: float = 100.0
    load_frac: float = 0.9
    events_per_h: float = 6.0
    rollout: bool = True

    def __post_init__(self) -> None:
        whole = (self.boxes, self.cameras, self.site_boxes, self.customers)
        if min(whole) < 1 or self.deaths < 0 or self.deaths > self.boxes:
            raise UsageError("boxes, cameras, site boxes and customers must be 1 or more, deaths at most the boxes")
        positive = (self.hours, self.report_s, self.capacity_pct, self.load_frac, self.dead_h)
        if min(positive) <= 0 or min(self.cut_at_h, self.cut_h, self.broker_away_min, self.events_per_h) < 0:
            raise UsageError("hours, seconds and shares must be above 0")
        if not 0 <= self.cut_frac <= 1:
            raise UsageError("the part that is cut off must be 0 to 1", subject=str(self.cut_frac))

    @property
    def steps(self) -> int:
        return round(self.hours * HOUR_S / self.report_s)

    def is_cut(self, now_s: float) -> bool:
        """Whether the partition lasts (for the boxes that it concerns)."""
        return self.cut_at_h * HOUR_S <= now_s < (self.cut_at_h + self.cut_h) * HOUR_S

    def broker_is_away(self, now_s: float) -> bool:
        return self.broker_at_h * HOUR_S <= now_s < self.broker_at_h * HOUR_S + 60.0 * self.broker_away_min
