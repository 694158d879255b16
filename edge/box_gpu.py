"""What a running box tells of its compute: `edge.gpu_view.GpuSource` over its status, its history and its database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge.box_status import share_view
from edge.gpu.base import ChangeCost, DeviceFacts, ShareReport
from edge.gpu_history import EVERY_S, GpuHistory, Point
from edge.gpu_view import DeviceSeries, GpuView, JobSeries, LaneView, WindowShares
from edge.status import BoxStatus, JobMemoryView, StatusSource
from edge.store.store import Store


class BoxGpu:
    """change_cost: of the backend."""

    def __init__(self, status: StatusSource, history: GpuHistory, store: Store, change_cost: Callable[[], ChangeCost]) -> None:
        self._status, self._history, self._store, self._change_cost = status, history, store, change_cost

    def gpu(self, windows: int, camera: str | None = None) -> GpuView:
        now: BoxStatus = self._status.status()
        points, cost = self._history.points(), self._change_cost()
        return GpuView(
            backend=now.backend, capacity_pct=now.capacity_pct, spare_pct=now.spare_pct,
            unit="one GPU" if now.devices else "one core of the processor", every_s=EVERY_S, span_s=now.shares_span_s,
            shares=now.shares, memory=now.memory, lanes=lanes_of(now.memory), devices=now.devices, faults=now.faults,
            at_utc=tuple(p.at_utc for p in points), jobs=job_series(points, camera), device_history=device_series(points),
            windows=tuple(
                WindowShares(
                    window=w.outcome.window, closed_utc=w.closed_utc,
                    shares=tuple(share_view(report) for report in self._store.shares(w.outcome.window)),
                )
                for w in reversed(self._store.windows(windows))
            ),
            change_settle_s=cost.settle_s, change_gpu_s=cost.gpu_s, change_blind_s=cost.blind_s,
        )  # fmt: skip


def lanes_of(memory: Sequence[JobMemoryView]) -> tuple[LaneView, ...]:
    """The memory lanes, with who is in them."""
    found: dict[int, list[JobMemoryView]] = {}
    for about in memory:
        if about.lane is not None:
            found.setdefault(about.lane, []).append(about)
    return tuple(
        LaneView(lane=lane, size_mib=max(a.lane_mib for a in jobs), jobs=tuple(a.job for a in jobs))
        for lane, jobs in sorted(found.items())
    )


def series_name(job: str) -> str:
    """`gate/train/12`, `gate/train/12.1+2` -> `gate/train`: a camera's jobs of a kind, window after window, are one line."""
    return "/".join(job.split("+")[0].split("/")[:2])


def kind_of(job: str) -> str:
    """inference, retraining, ..."""
    return share_view(ShareReport(job=job, promised_pct=0, received_pct=0, backlogged_frac=0, iterations=0, span_s=0)).kind


def job_series(points: Sequence[Point], camera: str | None = None) -> tuple[JobSeries, ...]:
    """A camera's jobs over the points, None: those of all cameras, added up by kind. Two of one name that overlap (a window's end) are
    added up."""
    jobs = {job for point in points for job in (*point.shares, *point.memory)}
    name_of = {
        job: series_name(job) if camera else kind_of(job) for job in jobs if camera is None or job.partition("/")[0] == camera
    }
    seen = {name_of[job] for point in points for job in point.shares if job in name_of}
    return tuple(_job_series(name, points, name_of, camera) for name in sorted(seen))


def _job_series(name: str, points: Sequence[Point], name_of: Mapping[str, str], camera: str | None) -> JobSeries:
    seen = [[report for job, report in point.shares.items() if name_of.get(job) == name] for point in points]
    held = [
        [about.held_mib for job, about in point.memory.items() if name_of.get(job) == name and about.held_mib is not None]
        for point in points
    ]
    return JobSeries(
        job=name, camera=camera, kind=kind_of(name) if camera else name,
        promised_pct=tuple(_sum([r.promised_pct for r in reports]) for reports in seen),
        received_pct=tuple(_sum([r.received_pct for r in reports]) for reports in seen),
        wanted_frac=tuple(_most(reports) for reports in seen), held_mib=tuple(_sum(mib) for mib in held),
    )  # fmt: skip


def _sum(values: Sequence[float]) -> float | None:
    return round(sum(values), 3) if values else None


def _most(reports: Sequence[ShareReport]) -> float | None:
    return round(min(1.0, max(r.backlogged_frac for r in reports)), 4) if reports else None


def device_series(points: Sequence[Point]) -> tuple[DeviceSeries, ...]:
    """Every GPU that was there at any time."""
    names = {facts.index: facts.name for point in points for facts in point.devices}
    found = []
    for index, name in sorted(names.items()):
        seen = [next((f for f in point.devices if f.index == index), None) for point in points]
        found.append(
            DeviceSeries(
                index=index, name=name, memory_used_mib=_each(seen, lambda f: f.memory_used_mib),
                utilisation_pct=_each(seen, lambda f: f.utilisation_pct), temperature_c=_each(seen, lambda f: f.temperature_c),
                power_w=_each(seen, lambda f: f.power_w), throttled=tuple(bool(f and f.throttled) for f in seen),
            )
        )  # fmt: skip
    return tuple(found)


def _each(
    seen: Sequence[DeviceFacts | None], value: Callable[[DeviceFacts], float | None]
) -> tuple[float | None, ...]:  # fmt: skip
    return tuple(None if facts is None else value(facts) for facts in seen)
