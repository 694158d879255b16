"""What a running box shows: `edge.status.StatusSource` over a `BoxRuntime`.

Read from web and telemetry threads while the loop runs: it only looks, takes copies of what may change under it, and returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs.errors import redact
from edge.gpu.base import ComputeBackend, DeviceFacts, Fault, ShareReport
from edge.live_pictures import LivePictures
from edge.queries.live import NodeReport, QueryReport
from edge.queries.runner import HUNG, NONSENSE, RAISED
from edge.runtime import BoxRuntime, Watched
from edge.software import software_version
from edge.status import (
    BoxStatus,
    CameraView,
    CustomerView,
    DeviceView,
    FaultView,
    JobMemoryView,
    ModelView,
    NoteView,
    OutcomeView,
    PlanView,
    QualityPoint,
    QueryNodeView,
    QueryView,
    ShareView,
    StreamOutcomeView,
    StreamPlanView,
    WindowView,
)
from edge.store.store import QualityPoint as StoredQuality
from scheduler.commands import ReportPlan
from scheduler.engine_state import BoxState
from scheduler.types import WindowOutcome

#: Seconds over which received shares are measured.
SHARES_SPAN_S = 10.0
QUALITY_POINTS = 200
MODELS_SHOWN = 50

_PREPARATION = dict.fromkeys(("reference", "look", "label", "relabel", "probe", "profile"), "preparation")
_KINDS = {"infer": "inference", "train": "retraining", "gate": "gate", **_PREPARATION}


class RuntimeStatus:
    """See `edge.status.StatusSource`. devices: the machine's GPUs, must answer at once; None: those behind the backend."""

    def __init__(
        self, runtime: BoxRuntime, *, box: str, site: str, devices: Callable[[], tuple[DeviceFacts, ...]] | None = None
    ) -> None:
        self._runtime, self._box, self._site = runtime, box, site
        self._devices = devices or runtime.parts.backend.facts
        #: Who knows why the box is not as it should be; must answer at once.
        self.degraded: Callable[[], tuple[str, ...]] = tuple
        self._pictures = LivePictures()

    def status(self) -> BoxStatus:
        runtime = self._runtime
        clock = runtime.parts.clock
        now_s, now_utc = clock.monotonic_s(), clock.utc_s()
        state, shares = runtime.parts.engine.state, self._shares()
        return BoxStatus(
            box=self._box, site=self._site, software=software_version(), now_utc=now_utc, started_utc=runtime.started_utc,
            ready=runtime.ready, degraded=self.degraded(), capacity_pct=runtime.parts.backend.capacity_pct, spare_pct=runtime.spare_pct,
            cameras=tuple(self._camera(i, w, now_s) for i, w in sorted(dict(runtime.watched).items())),
            shares=shares, customers=customer_views(state, shares), shares_span_s=SHARES_SPAN_S, backend=runtime.parts.backend.name,
            memory=_memory_views(runtime.parts.backend), devices=tuple(_device_view(facts) for facts in self._devices()),
            faults=tuple(
                _fault_view(fault, now_utc - (now_s - fault.at_s)) for fault in reversed(runtime.parts.backend.faults())
            ),
            window=WindowView(
                number=max(0, state.window), phase=state.phase, opened_utc=runtime.window_opened_utc,
                length_s=max(0.0, state.ends_s - state.opened_s), elapsed_s=max(0.0, now_s - state.opened_s),
            ),
            plan=_plan_view(runtime.plan), outcomes=self._outcomes(),
            models=self._models(),
            notes=tuple(
                NoteView(at_utc=at_utc, text=note.text, camera=note.stream or None)
                for at_utc, note in reversed(list(runtime.notes))
            ),
        )  # fmt: skip

    def picture(self, camera_id: str, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        watched = self._runtime.watched.get(camera_id)
        if watched is None:
            self._pictures.forget(set(self._runtime.watched))
            return None
        shown = watched.worker.shown()
        return self._pictures.jpeg(camera_id, shown, width_px=width_px, boxes=boxes) if shown else None

    def _camera(self, camera_id: str, watched: Watched, now_s: float) -> CameraView:
        status = watched.camera.status()
        stream = self._runtime.parts.engine.state.streams.get(camera_id)
        shown = watched.worker.shown()
        knobs = next((k for k in watched.offered() if stream and k.name == stream.knob), None)
        job = next((j for j in list(self._runtime.jobs.values()) if j.stream == camera_id), None)
        history = self._runtime.parts.store.quality(camera_id, limit=QUALITY_POINTS)
        return CameraView(
            id=camera_id, name=watched.title, state="quarantined" if watched.quarantined else status.state.value,
            code=status.code.value if status.code else None,
            error=watched.quarantined or status.error or watched.worker.last_error, since_s=max(0.0, now_s - status.since_s),
            width_px=status.width_px, height_px=status.height_px, camera_fps=status.fps,
            analysed_fps=watched.worker.rate_fps(), wanted_fps=knobs.fps if knobs else 0.0,
            knobs=knobs.name if knobs else None, objects=len(shown.detections) if shown else 0,
            frames_analysed=watched.worker.frames, frames_dropped=status.packets_dropped, reconnects=status.reconnects,
            deadline_ms=1000.0 * watched.worker.finish.goal_s, finish_frac=watched.worker.finish.window().frac,
            frames_given_up=watched.worker.finish.total().dropped, lag_s=status.lag_s if watched.camera.may_lag else None,
            task=watched.task.name, quality=stream.quality if stream else None, quality_name=watched.task.quality_name,
            quality_history=tuple(quality_point(p) for p in history),
            queries=tuple(query_view(report) for report in watched.queries.reports()) if watched.queries else (),
            frames_skipped=watched.queries.skipped if watched.queries else 0,
            present=watched.objects.present() if watched.objects else {}, zones=watched.objects.in_zones() if watched.objects else {},
            crossed=watched.objects.crossings() if watched.objects else {},
            learning=watched.learns if watched.entry is None else watched.entry.learning,
            model=watched.worker.version(), activity=job.kind if job else "", activity_frac=job.done_frac if job else None,
        )  # fmt: skip

    def _outcomes(self) -> tuple[OutcomeView, ...]:
        shares = dict(list(self._runtime.window_shares))
        return tuple(
            _outcome_view(outcome, opened_utc, closed_utc, shares.get(outcome.window, ()))
            for outcome, opened_utc, closed_utc in reversed(list(self._runtime.outcomes))
        )

    def _shares(self) -> tuple[ShareView, ...]:
        reports = self._runtime.parts.backend.report(SHARES_SPAN_S)
        return tuple(share_view(report) for _, report in sorted(reports.items()))

    def _models(self) -> tuple[ModelView, ...]:
        return tuple(self._runtime.parts.shelf.views(limit=MODELS_SHOWN))


def quality_point(found: StoredQuality) -> QualityPoint:
    """A measurement as people see it."""
    return QualityPoint(at_utc=found.at_utc, f1=found.value, version=found.version, frames=found.frames, error=found.error)


def customer_views(state: BoxState, shares: Sequence[ShareView]) -> tuple[CustomerView, ...]:
    """What customers were promised and received, over their cameras' jobs."""
    ordered = dict(state.shares_pct)
    of = {stream.id: stream.customer for stream in list(state.streams.values())}
    return tuple(
        CustomerView(
            customer=name, share_pct=ordered.get(name),
            promised_pct=sum(s.promised_pct for s in shares if of.get(s.camera or "") == name),
            received_pct=sum(s.received_pct for s in shares if of.get(s.camera or "") == name),
        )
        for name in sorted({*of.values(), *ordered} - {""})
    )  # fmt: skip


def query_view(report: QueryReport) -> QueryView:
    """A query as people see it."""
    return QueryView(
        name=report.name, state=report.state, reason=report.reason, again_s=report.again_s, results=_plain(report.told),
        at_utc=report.at_utc, lag_s=report.lag_s, frames=report.frames, failed_frames=report.failed_frames, knobs=dict(report.setting),
        nodes=tuple(node_view(node) for node in report.nodes),
    )  # fmt: skip


def _plain(told: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A copy, since others may read what a query tells while it is written out."""
    return {id: dict(values) for id, values in told.items()}


def node_view(node: NodeReport) -> QueryNodeView:
    """A step of a query as people see it; times are means of a frame."""
    return QueryNodeView(
        id=node.id, transform=node.transform, runs=node.runs, cpu_ms=round(1e3 * node.cpu_s, 3), gpu_ms=round(1e3 * node.gpu_s, 3),
        raised=node.faults.get(RAISED, 0), hung=node.faults.get(HUNG, 0), nonsense=node.faults.get(NONSENSE, 0), late=node.late,
        boxes_left_out=node.boxes_left_out, error=node.last_error,
    )  # fmt: skip


def _memory_views(backend: ComputeBackend) -> tuple[JobMemoryView, ...]:
    return tuple(
        JobMemoryView(
            job=job, persistent_mib=about.need.persistent_mib if about.need else None,
            ephemeral_mib=about.need.ephemeral_mib if about.need else None, measured=about.measured, lane=about.lane,
            lane_mib=about.lane_mib, held_mib=about.held_mib,
        )
        for job, about in sorted(backend.memory().items())
    )  # fmt: skip


def _device_view(facts: DeviceFacts) -> DeviceView:
    return DeviceView(
        index=facts.index, name=facts.name, memory_total_mib=facts.memory_total_mib, memory_used_mib=facts.memory_used_mib,
        utilisation_pct=facts.utilisation_pct, temperature_c=facts.temperature_c, power_w=facts.power_w, throttled=facts.throttled,
        ecc_errors=facts.ecc_errors, mig=facts.mig, problem=facts.problem,
    )  # fmt: skip


def _fault_view(fault: Fault, at_utc: float) -> FaultView:
    return FaultView(
        at_utc=at_utc,
        job=fault.job,
        code=fault.code,
        text=redact(fault.text),
        remedy=redact(fault.remedy),
        removed=fault.removed,
    )


def _plan_view(made: tuple[ReportPlan, float] | None) -> PlanView | None:
    if made is None:
        return None
    command, at_utc = made
    streams = tuple(
        StreamPlanView(
            camera=s.id, knobs=s.knobs, infer_pct=s.infer_pct, retrain=s.retrain, train_pct=s.train_pct,
            expected_quality=s.expected_quality, below_floor=s.below_floor,
        )
        for s in command.plan.streams
    )  # fmt: skip
    return PlanView(
        window=command.window, policy=command.plan.policy, at_utc=at_utc, reason="; ".join(command.reasons),
        spare_pct=command.plan.spare_pct, expected_quality=command.plan.expected_quality, streams=streams,
    )  # fmt: skip


def share_view(report: ShareReport) -> ShareView:
    """A job's share as people see it: for which camera it works, and what it does."""
    camera, _, rest = report.job.partition("/")
    kind = _KINDS.get(rest.split("/")[0], "other")
    return ShareView(
        job=report.job, camera=camera, kind=kind, promised_pct=report.promised_pct,  # type: ignore[arg-type]
        received_pct=report.received_pct, wanted_frac=min(1.0, max(0.0, report.backlogged_frac)),
    )  # fmt: skip


def _outcome_view(
    outcome: WindowOutcome, opened_utc: float, closed_utc: float, shares: Sequence[ShareReport] = ()
) -> OutcomeView:
    streams = tuple(
        StreamOutcomeView(
            camera=s.id, start_quality=s.start_quality, end_quality=s.end_quality, predicted_quality=s.predicted_quality,
            realised_quality=s.realised_quality, retrained=s.retrained, admitted=s.admitted, note=s.note,
        )
        for s in outcome.streams
    )  # fmt: skip
    return OutcomeView(
        window=outcome.window, opened_utc=opened_utc, closed_utc=closed_utc, predicted_quality=outcome.predicted_quality,
        realised_quality=outcome.realised_quality, streams=streams, notes=outcome.notes,
        shares=tuple(share_view(report) for report in shares),
    )  # fmt: skip
