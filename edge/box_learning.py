"""What a running box tells of its learning: `edge.learning.LearningSource` over the runtime, its database and its plan book.

Read from web threads while the loop runs: it looks at what is replaced at once, and copies lists before it walks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import UsageError
from edge.before_after import Comparer
from edge.box_status import quality_point
from edge.learning import (
    BandCount,
    BeforeAfter,
    CameraLearning,
    DriftSignal,
    DriftView,
    LearnedView,
    LearningLine,
    LearningList,
    LearningNow,
    NearVersion,
    PredictionError,
    RunningView,
    SceneNumber,
    WindowLearning,
)
from edge.plan_book import PlanBook
from edge.runtime import BoxRuntime, Watched
from edge.status import NoteView
from edge.store.plans import StoredPlan
from edge.store.store import ModelState, StoredModel, StoredWindow
from scheduler.drift import distance
from scheduler.drift.tests import CLASS_MIX, CONFIDENCE, EMBEDDING, IMAGE
from scheduler.ekya.bands import COVERS_FRAC, Band, bands
from scheduler.ekya.calibration import summary
from scheduler.engine_state import Running, StreamState
from scheduler.types import Drift, Look, Observation, StreamOutcome

QUALITY_POINTS = 400
NOTES = 40
NEAR = 5
#: Windows that the list of cameras counts over.
LIST_WINDOWS = 50
#: What each drift detector compares, for people (docs/drift.md).
SIGNALS: dict[str, str] = {
    CLASS_MIX: "how many objects of which class",
    CONFIDENCE: "how sure the model is of what it sees",
    EMBEDDING: "what the picture looks like to the model",
    IMAGE: "brightness, contrast, sharpness and tint of the picture",
}


@dataclass(frozen=True, kw_only=True)
class _Past:
    """What the database knows of one camera, windows oldest first."""

    windows: Sequence[tuple[StoredWindow, StreamOutcome]]
    models: Sequence[StoredModel]
    plans: Sequence[StoredPlan]


class BoxLearning:
    """See the module."""

    def __init__(self, runtime: BoxRuntime, book: PlanBook, comparer: Comparer) -> None:
        self._runtime, self._book, self._comparer = runtime, book, comparer

    # --- the list -----------------------------------------------------------------------------------------------------

    def cameras(self) -> LearningList:
        windows = self._runtime.parts.store.windows(LIST_WINDOWS)
        return LearningList(
            cameras=tuple(self._line(id, entry, windows) for id, entry in sorted(dict(self._runtime.watched).items()))
        )

    def _line(self, camera: str, entry: Watched, windows: Sequence[StoredWindow]) -> LearningLine:
        stream = self._runtime.parts.engine.state.streams.get(camera)
        job = next((j for j in list(self._runtime.jobs.values()) if j.stream == camera), None)
        own = [s for w in windows for s in w.outcome.streams if s.id == camera]
        drift = (stream.drift if stream else None) or next((s.drift for s in reversed(own) if s.drift is not None), None)
        return LearningLine(
            camera=camera, title=entry.title, quality=stream.quality if stream else None, quality_name=entry.task.quality_name,
            version=entry.worker.version(), drifted=drift.drifted if drift else None, activity=job.kind if job else "",
            retrainings=sum(s.retrained is not None for s in own), admitted=sum(s.admitted for s in own),
        )  # fmt: skip

    # --- one camera ---------------------------------------------------------------------------------------------------

    def camera(self, camera: str, windows: int) -> CameraLearning:
        entry, store = self._watched(camera), self._runtime.parts.store
        stream = self._runtime.parts.engine.state.streams.get(camera)
        past = self._past(camera, windows)
        told = self._windows(camera, past, stream)
        drift = (stream.drift if stream else None) or next(
            (outcome.drift for _, outcome in reversed(past.windows) if outcome.drift is not None), None
        )
        history = store.quality(camera, limit=QUALITY_POINTS)
        return CameraLearning(
            camera=camera, title=entry.title, task=entry.task.name, quality_name=entry.task.quality_name,
            version=entry.worker.version(), before=self._before(camera, past.models), quality=stream.quality if stream else None,
            held_out_frames=stream.held_out if stream else 0,
            history=tuple(quality_point(p) for p in history),
            windows=told, band=_count(told), errors=_errors([o.observation for _, o in past.windows if o.observation], camera),
            now=self._now(stream) if stream else None, drift=_drift_view(drift), scene=_scene(stream), near=_near(stream),
            notes=tuple(
                NoteView(at_utc=n.at_utc, text=n.text, camera=camera) for n in reversed(store.notes(NOTES, stream=camera))
            ),
        )  # fmt: skip

    def before_after(self, camera: str, before: str | None, after: str | None, pictures: int) -> BeforeAfter:
        self._watched(camera)
        models = self._runtime.parts.store.models(camera)
        newer = after or self._watched(camera).worker.version()
        older = before or self._before(camera, models)
        if older is None:
            raise UsageError(
                f"camera '{camera}' still has its first model", subject=camera, code="not_found",
                remedy="there is nothing to compare it with",
            )  # fmt: skip
        known = {m.version.id for m in models}
        for version in (older, newer):
            if version not in known:
                raise UsageError(
                    f"camera '{camera}' has no version {version}",
                    subject=version,
                    code="not_found",
                    remedy="see the Models page",
                )
        return self._comparer.compare(camera, older, newer, pictures)

    def _watched(self, camera: str) -> Watched:
        entry = self._runtime.watched.get(camera)
        if entry is None:
            raise UsageError(f"no camera has the id '{camera}'", subject=camera, code="not_found", remedy="see the Live page")
        return entry

    def _before(self, camera: str, models: Sequence[StoredModel]) -> str | None:
        """What served before the serving version: what it replaced, else what it was made from."""
        serving = next((m for m in models if m.state is ModelState.SERVING), None)
        if serving is None:
            return None
        known = {m.version.id for m in models if m.state is not ModelState.REJECTED}
        usual = (self._runtime.parts.store.replaced(camera), serving.version.parent)
        return next((id for id in usual if id in known and id != serving.version.id), None)

    def _past(self, camera: str, windows: int) -> _Past:
        store = self._runtime.parts.store
        stored = store.windows(windows)
        own = [(w, s) for w in stored for s in w.outcome.streams if s.id == camera]
        first = own[0][0].outcome.window if own else max(0, self._runtime.parts.engine.state.window)
        return _Past(windows=own, models=store.models(camera), plans=self._book.plans.since_window(first))

    def _windows(self, camera: str, past: _Past, stream: StreamState | None) -> tuple[WindowLearning, ...]:
        made = _made_in(past.models)
        why = _why(camera, past.plans)
        pairs = [(s.predicted_quality, s.realised_quality) for _, s in past.windows]
        current = stream is not None and stream.predicted is not None
        found = bands([*pairs, (stream.predicted, None)] if stream is not None and current else pairs)
        told = [_closed(w, s, band, made, why) for (w, s), band in zip(past.windows, found, strict=False)]
        if stream is not None:
            told.append(self._open(stream, found[-1] if current else None, made, why))
        return tuple(told)

    def _open(
        self, stream: StreamState, band: Band | None, made: dict[int, str], why: dict[int, list[str]]
    ) -> WindowLearning:  # fmt: skip
        window = max(0, self._runtime.parts.engine.state.window)
        return WindowLearning(
            window=window, opened_utc=self._runtime.window_opened_utc, start_quality=stream.start_quality,
            predicted=stream.predicted, **_ends(band), retrained=stream.retrained, admitted=stream.admitted, reused=stream.reused,
            version=made.get(window), note=stream.note, drift=_drift_view(stream.drift), learned=_learned(stream.observed),
            why=tuple(why.get(window, ())),
        )  # fmt: skip

    def _now(self, stream: StreamState) -> LearningNow:
        state = self._runtime.parts.engine.state
        return LearningNow(
            window=max(0, state.window), phase=state.phase, examined=stream.full, remark=stream.remark, knobs=stream.knob,
            infer_pct=stream.infer_pct, train_pct=stream.train_pct, options=len(stream.options),
            running=_running(stream.running) if stream.running is not None else None,
        )  # fmt: skip


# --- pieces -----------------------------------------------------------------------------------------------------------


def _closed(
    window: StoredWindow, seen: StreamOutcome, band: Band | None, made: dict[int, str], why: dict[int, list[str]]
) -> WindowLearning:  # fmt: skip
    number = window.outcome.window
    return WindowLearning(
        window=number, opened_utc=window.opened_utc, closed_utc=window.closed_utc, start_quality=seen.start_quality,
        end_quality=seen.end_quality, predicted=seen.predicted_quality, **_ends(band), realised=seen.realised_quality,
        retrained=seen.retrained, admitted=seen.admitted, reused=seen.reused, version=made.get(number), note=seen.note,
        drift=_drift_view(seen.drift), learned=_learned(seen.observation), why=tuple(why.get(number, ())),
    )  # fmt: skip


def _ends(band: Band | None) -> dict[str, float | None]:
    return {"predicted_low": band.low if band else None, "predicted_high": band.high if band else None}


def _made_in(models: Sequence[StoredModel]) -> dict[int, str]:
    """Window -> the version that its retraining made. A window learns from the one before it."""
    return {int(m.config["window"]) + 1: m.version.id for m in models if m.config.get("window") is not None}


def _why(camera: str, plans: Sequence[StoredPlan]) -> dict[int, list[str]]:
    """Window -> what its plans said of a camera, each thing once."""
    found: dict[int, list[str]] = {}
    for plan in plans:
        lines = found.setdefault(plan.window, [])
        about = (line.removeprefix(f"{camera}: ") for line in plan.reasons if line.startswith(f"{camera}: "))
        lines += [line for line in about if line not in lines]
    return found


def _drift_view(drift: Drift | None) -> DriftView | None:
    if drift is None:
        return None
    signals = (
        DriftSignal(name=t.name, words=SIGNALS.get(t.name, ""), statistic=t.statistic, threshold=t.threshold, fired=t.fired)
        for t in drift.tests
    )
    return DriftView(drifted=drift.drifted, magnitude=drift.magnitude, signals=tuple(signals), note=drift.note)


def _learned(seen: Observation | None) -> LearnedView | None:
    if seen is None:
        return None
    return LearnedView(
        option=seen.option, start_quality=seen.start_quality, promised_quality=seen.predicted_quality,
        realised_quality=seen.realised_quality, promised_gpu_s=seen.predicted_gpu_s, realised_gpu_s=seen.realised_gpu_s,
    )  # fmt: skip


def _count(windows: Sequence[WindowLearning]) -> BandCount:
    known = [
        (w.predicted_low, w.realised, w.predicted_high)
        for w in windows
        if w.predicted_low is not None and w.predicted_high is not None and w.realised is not None
    ]
    return BandCount(
        windows=len(known), inside=sum(low <= value <= high for low, value, high in known), expected_frac=COVERS_FRAC
    )


def _errors(history: Sequence[Observation], camera: str) -> PredictionError:
    told = summary(history, camera)
    return PredictionError(retrainings=told.n, bias=told.bias, sd=told.sd, cost_ratio=told.cost_ratio)


def _running(running: Running) -> RunningView:
    return RunningView(
        job=running.job, config=running.config.name, epochs=running.config.epochs, epoch=running.epoch,
        used_gpu_s=running.used_gpu_s, left_gpu_s=running.left_gpu_s(), start_quality=running.start_quality,
        expected_path=tuple(running.expected.path), measured=tuple(running.qualities), losses=tuple(running.losses),
        members=running.members,
    )  # fmt: skip


def _scene(stream: StreamState | None) -> tuple[SceneNumber, ...]:
    """How the newest window looked beside the one that the model learned from."""
    if stream is None or (stream.look is None and stream.reference is None):
        return ()
    now, then = _means(stream.look), _means(stream.reference)
    numbers = (
        ("brightness", "grey levels of 255", "mean of the picture"),
        ("contrast", "grey levels", "spread of the picture's grey levels"),
        ("sharpness", "log of variance", "of the picture's edges; fog and dirt make it fall"),
        ("objects", "per frame", "what the serving model sees"),
        ("confidence", "score 0-1", "how sure the serving model is, on average"),
    )
    return tuple(
        SceneNumber(name=name, unit=unit, words=words, now=now.get(name), then=then.get(name)) for name, unit, words in numbers
    )


def _means(look: Look | None) -> dict[str, float]:
    frames = look.frames if look is not None else ()
    if not frames:
        return {}
    names = ("brightness", "contrast", "sharpness", "objects", "confidence")
    return {name: sum(getattr(f, name) for f in frames) / len(frames) for name in names}


def _near(stream: StreamState | None) -> tuple[NearVersion, ...]:
    if stream is None or stream.signature is None:
        return ()
    signature = stream.signature
    apart = ((distance(signature, m.signature), m.name) for m in stream.cached if m.signature is not None)
    known = sorted((d, name) for d, name in apart if d < float("inf"))
    return tuple(NearVersion(version=name, distance=d) for d, name in known[:NEAR])
