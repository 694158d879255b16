"""The truth of a simulated fleet: what cameras need, and what quality they have with what they get.

Load goes as the recorded arrivals do (Twitter's, 24.6 h, as in Cilantro's experiments) where the table is given, else as a seeded
day: two humps and noise that remembers (AR(1)). A camera's need follows its customer's load; with less than it needs its quality falls
as the square root of the part that it gets (concave: knobs give up first what costs least, VideoStorm card), frames in time linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.simulate.scenario import Scenario
from cluster.types import Customer
from configs.errors import UsageError
from scheduler.fleet.types import CameraKey

_Array = NDArray[np.float64]
FPS = 5.0
#: Load lies between these parts of its mean.
LOAD = (0.3, 2.0)


@dataclass(frozen=True, kw_only=True)
class TrueCamera:
    """need_pct: at mean load; full: quality with all that it needs; swing: of it over the day."""

    key: CameraKey
    customer: str
    network: str
    need_pct: float
    full: float
    swing: float
    phase: float


class World:
    """See the module."""

    def __init__(self, scenario: Scenario, loads: _Array) -> None:
        """loads: customers x steps, mean 1."""
        rng = np.random.default_rng([scenario.seed, 1])
        self._loads, self._scenario = loads, scenario
        self.boxes = [f"box-{n:04}" for n in range(scenario.boxes)]
        self.site_of = {box: f"site-{n // scenario.site_boxes:03}" for n, box in enumerate(self.boxes)}
        self.customers = [
            Customer(id=f"customer-{c:02}", goal=float(rng.choice([0.7, 0.75, 0.8])), weight=float(rng.choice([1.0, 1.0, 2.0])))
            for c in range(scenario.customers)
        ]
        self._at = {customer.id: c for c, customer in enumerate(self.customers)}
        mean_pct = scenario.load_frac * scenario.capacity_pct / scenario.cameras
        self.cameras: dict[str, list[TrueCamera]] = {}
        for n, box in enumerate(self.boxes):
            # A site has few customers, so that boxes are shared by some and not by all.
            site_customers = [(n // scenario.site_boxes * 3 + k) % scenario.customers for k in range(3)]
            self.cameras[box] = [
                TrueCamera(
                    key=CameraKey(home=box, camera=f"cam-{k}"), customer=f"customer-{int(rng.choice(site_customers)):02}",
                    network=self.site_of[box], need_pct=float(mean_pct * rng.uniform(0.5, 1.5)), full=float(rng.uniform(0.8, 0.95)),
                    swing=float(rng.uniform(0, 0.04)), phase=float(rng.uniform(0, 2 * np.pi)),
                )
                for k in range(scenario.cameras)
            ]  # fmt: skip
        self.by_key = {camera.key: camera for cameras in self.cameras.values() for camera in cameras}

    def load(self, customer: str, step: int) -> float:
        row = self._loads[self._at[customer]]
        return float(row[step % len(row)])

    def need_pct(self, camera: TrueCamera, step: int) -> float:
        return camera.need_pct * self.load(camera.customer, step)

    def quality(self, camera: TrueCamera, share_frac: float, now_s: float) -> float:
        """share_frac: received part of its need."""
        day = camera.swing * float(np.sin(2 * np.pi * now_s / 86_400 + camera.phase))
        return float(np.clip((camera.full + day) * min(1.0, share_frac) ** 0.5, 0.0, 1.0))


def divided(need_pct: Sequence[tuple[str, float]], capacity_pct: float, floors_pct: dict[str, float]) -> list[float]:
    """What each camera of a box gets, in short what `scheduler.fleet.grants` does with a plan: (customer, need) per camera; a customer
    has its floor where others want more than there is (floors are scaled down when they are more than that, customers without one share
    what they leave), what it leaves idle goes to others by their need, and within a customer cameras are served alike."""
    wanted: dict[str, float] = {}
    for customer, need in need_pct:
        wanted[customer] = wanted.get(customer, 0.0) + need
    total = sum(wanted.values())
    if total <= capacity_pct:
        return [need for _, need in need_pct]
    floors = {c: floors_pct.get(c, 0.0) for c in wanted}
    given = sum(floors.values())
    nameless = [c for c in wanted if floors[c] <= 0]
    if nameless:
        rest = max(0.0, capacity_pct - given) or capacity_pct / len(wanted) * len(nameless)
        floors |= {c: rest / len(nameless) for c in nameless}
        given = sum(floors.values())
    scale = min(1.0, capacity_pct / given)
    got = {c: min(wanted[c], floors[c] * scale) for c in wanted}
    left, short = capacity_pct - sum(got.values()), {c: wanted[c] - got[c] for c in wanted}
    lacking = sum(short.values())
    if lacking > 0:
        got = {c: got[c] + left * min(1.0, short[c] / lacking) for c in got}
    return [need * min(1.0, got[customer] / wanted[customer]) if wanted[customer] > 0 else 0.0 for customer, need in need_pct]


def loads_for(scenario: Scenario, arrivals: Path | None = None) -> _Array:
    """customers x steps, mean about 1. arrivals: Cilantro's table (timestamp, arrivals per second)."""
    rng = np.random.default_rng([scenario.seed, 2])
    steps = scenario.steps + 1
    if arrivals is None:
        return np.stack([_made_up_day(rng, steps, scenario.report_s) for _ in range(scenario.customers)])
    table = _recorded(arrivals)
    width = max(1, int(scenario.report_s))
    means = table[: len(table) // width * width].reshape(-1, width).mean(axis=1)
    means = np.clip(means / means.mean(), *LOAD)
    return np.stack([np.resize(np.roll(means, int(rng.integers(len(means)))), steps) for _ in range(scenario.customers)])


def _recorded(arrivals: Path) -> _Array:
    """Arrivals per second, in order; lines that are no numbers (a heading, one that was cut off) are left out. UsageError when nothing
    is left."""
    found = []
    for line in arrivals.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            _, value = line.split(",")
            found.append(float(value))
        except ValueError:
            continue
    table = np.array(found)
    if not len(table) or not np.all(np.isfinite(table)) or table.mean() <= 0:
        raise UsageError(f"{arrivals.name} holds no load", subject=arrivals.name, remedy="lines of timestamp,arrivals a second")
    return table


def _made_up_day(rng: np.random.Generator, steps: int, step_s: float) -> _Array:
    hours = np.arange(steps) * step_s / 3600 + rng.uniform(0, 24)
    day = 1 + 0.35 * np.sin(2 * np.pi * hours / 24) + 0.2 * np.sin(4 * np.pi * hours / 24)
    noise, wander = np.empty(steps), 0.0
    for k, shock in enumerate(rng.normal(0, 0.03, steps)):
        wander = 0.95 * wander + shock
        noise[k] = wander
    return np.clip(day + noise, *LOAD)
