"""What one stream could do under any shares: knobs and options for the share, with all the memory they like or with less.

Every quality is that of `StreamEstimator`; with less memory it is that of a view with fewer entries. The parts of a job's share that
are worth trying are few: inference gains only where better knobs fit, training moves in quanta.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler.ekya.estimate import Choice, SpeedCurve, StreamEstimator, best_knobs
from scheduler.ekya.pack import option_of
from scheduler.types import Snapshot, StreamPlan, StreamView

Kind = Literal["infer", "train"]


@dataclass(frozen=True, kw_only=True)
class Latitude:
    """How a plan may be changed to fit. grow: a job may get more than planned; swap: another option may be trained than planned."""

    grow: bool = True
    swap: bool = True


@dataclass(frozen=True)
class Setting:
    """What one stream does: shares, the memory that each job holds on every device it touches, and what comes of it."""

    infer_pct: int
    train_pct: int
    infer_mib: float
    train_mib: float
    choice: Choice

    def worth(self) -> tuple[int, float]:
        """Rank: smaller is better."""
        return int(self.choice.below_floor), -self.choice.quality


@dataclass
class Menu:
    """Everything that one stream could do, by the estimator of its view; with less memory by that of a view with fewer entries."""

    view: StreamView
    planned: StreamPlan
    snapshot: Snapshot
    speed: SpeedCurve
    latitude: Latitude
    memory_counts: bool
    _estimators: dict[tuple[float, float], StreamEstimator] = field(default_factory=dict)
    _settings: dict[tuple[int, int], tuple[Setting, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.running = self.view.running is not None
        self.step = self.snapshot.quantum_pct if self.latitude.grow else 1
        held = option_of(self.view, self.planned)
        self._held_mib = held.memory_mib if held is not None else 0.0
        self._options = self.view.retrain
        if not self.latitude.swap or self.planned.source != "box":
            self._options = tuple(o for o in self.view.retrain if o is held and self.planned.retrain == o.name)
        counted = self.memory_counts
        self._knob_caps = sorted({k.memory_mib for k in self.view.knobs}) if counted else [math.inf]
        self._option_caps = sorted({o.memory_mib for o in self._options}) if counted and not self.running else [math.inf]
        self._stops = self._knob_stops()
        alone = self._estimator(math.inf, math.inf).with_option(None, self.planned.infer_pct, 0)
        elsewhere = self.planned.source != "box" and alone is not None and alone.quality > 0
        #: What a model from elsewhere multiplies the serving model's average by.
        self._from_elsewhere = self.planned.expected_quality / alone.quality if elsewhere and alone else 1.0

    def _knob_stops(self) -> list[int]:
        """Inference shares worth having: those at which better knobs fit, for any limit on memory. More is never worse, so a
        stop serves as well as all shares up to the next."""
        stops = {0}
        for knobs in self.view.knobs:
            stops.add(max(self.step, self.step * math.ceil(round(knobs.demand_pct, 9) / self.step)))
        if not self.latitude.grow:
            stops = {stop for stop in stops if stop <= self.planned.infer_pct} | {self.planned.infer_pct}
        return sorted(stops)

    def stop_at(self, infer_pct: int) -> int:
        """The largest inference share up to this one that is worth having."""
        return max(stop for stop in self._stops if stop <= infer_pct)

    def most_pct(self, kind: Kind) -> float:
        """No larger share is of use."""
        if kind == "infer":
            return self._stops[-1]
        return 0 if not self._options else math.inf if self.latitude.grow else self.planned.train_pct

    def shares(self, kind: Kind, base_pct: int, room_pct: int) -> list[int]:
        """Shares worth trying when `base_pct` are whole devices and up to `room_pct` may be part of another."""
        if kind == "infer":
            found = {stop for stop in self._stops if base_pct <= stop <= base_pct + room_pct}
        elif not self._options:
            found = {0}
        else:
            most = base_pct + room_pct if self.latitude.grow else min(base_pct + room_pct, self.planned.train_pct)
            found = set(range(base_pct, most + 1, self.snapshot.quantum_pct))
            found |= {self.planned.train_pct} if base_pct <= self.planned.train_pct <= most else set()
        # a share below 100 lies on one device only
        return sorted({s for s in found if base_pct == 0 or s >= 100 or s == base_pct} | {base_pct})

    def settings(self, infer_pct: int, train_pct: int) -> tuple[Setting, ...]:
        """What these shares may be used for: the best first, then what gives less for less memory."""
        key = (infer_pct, train_pct)
        if key not in self._settings:
            self._settings[key] = _undominated(self._all_settings(infer_pct, train_pct))
        return self._settings[key]

    def _all_settings(self, infer_pct: int, train_pct: int) -> Iterator[Setting]:
        best = best_knobs(self.view.knobs, infer_pct)
        for cap in self._knob_caps:
            knobs = best_knobs([k for k in self.view.knobs if k.memory_mib <= cap], infer_pct)
            limit = math.inf if knobs is best else cap
            for option_cap in self._option_caps or [math.inf]:
                choice = self._choice(self._estimator(limit, option_cap), infer_pct, train_pct)
                option = choice.retrain
                yield Setting(
                    infer_pct=infer_pct,
                    train_pct=train_pct if option is not None else 0,
                    infer_mib=knobs.memory_mib if knobs is not None and infer_pct > 0 else 0.0,
                    train_mib=self._held_mib if self.running else option.memory_mib if option is not None else 0.0,
                    choice=choice,
                )

    def _estimator(self, knob_cap: float, option_cap: float) -> StreamEstimator:
        found = self._estimators.get((knob_cap, option_cap))
        if found is None:
            knobs = tuple(k for k in self.view.knobs if k.memory_mib <= knob_cap)
            options = tuple(o for o in self._options if o.memory_mib <= option_cap)
            view = replace(self.view, knobs=knobs, retrain=options)
            found = StreamEstimator.of(view, self.snapshot, self.speed, only_useful=self.latitude.swap)
            self._estimators[knob_cap, option_cap] = found
        return found

    def _choice(self, estimator: StreamEstimator, infer_pct: int, train_pct: int) -> Choice:
        if self.latitude.swap and self.planned.source == "box":
            return estimator.best(infer_pct, train_pct)
        option = estimator.view.retrain[0] if estimator.view.retrain and train_pct > 0 else None
        choice = estimator.with_option(option, infer_pct, train_pct) or estimator.with_option(None, infer_pct, train_pct)
        assert choice is not None  # doing nothing always fits
        return replace(choice, quality=choice.quality * self._from_elsewhere)


def _undominated(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    kept: list[Setting] = []
    for one in sorted(settings, key=lambda s: (*s.worth(), s.infer_mib, s.train_mib)):
        if not any(k.infer_mib <= one.infer_mib and k.train_mib <= one.train_mib for k in kept):
            kept.append(one)
    return tuple(kept)
