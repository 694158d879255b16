"""What the learning pages ask, without a box: two cameras, a few windows, versions that may be rolled back, a query with knobs.
For tests and for a look; see `edge.web.fake`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from tempfile import mkdtemp

from configs.errors import UsageError
from edge.box_models import common_ancestor, differences
from edge.box_why import ALTERNATIVES, alternative
from edge.gpu_view import DeviceSeries, GpuView, JobSeries, LaneView, WindowShares
from edge.labels_fake import CAR, DOUBT, HEIGHT_PX, WIDTH_PX
from edge.learning import (
    BandCount,
    BeforeAfter,
    CameraLearning,
    ComparedPicture,
    DriftSignal,
    DriftView,
    LearnedView,
    LearningLine,
    LearningList,
    LearningNow,
    ModelBoxes,
    NearVersion,
    PredictionError,
    RunningView,
    SceneNumber,
    WindowLearning,
)
from edge.models_view import (
    ImportedView,
    LiveQuality,
    ModelComparison,
    ModelList,
    ModelRow,
    ModelShown,
    ServedView,
)
from edge.queries_view import (
    CameraQueriesView,
    GraphNode,
    KnobValue,
    KnobView,
    PlanSetting,
    ProfilePoint,
    ProfileView,
    QueriesView,
    QueryGraph,
)
from edge.status import DeviceView, JobMemoryView, NoteView, QualityPoint, ShareView
from edge.web.fake import EPOCH_UTC
from edge.why import PlanLine, PlanList, WhyView
from scheduler.decide.ekya import answer_of
from scheduler.registry import make_policy
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

CAMERAS = ("gate", "yard")
WINDOWS = 8
SNAPSHOT = Snapshot(
    remaining_s=160.0, capacity_pct=100, quantum_pct=5, min_quality=0.4, estimate="hand-back",
    streams=tuple(
        StreamView(
            id=id, quality=quality,
            knobs=(
                KnobProfile(name="every", demand_pct=30, quality_frac=1.0, fps=5),
                KnobProfile(name="1/2", demand_pct=15, quality_frac=0.78, fps=2.5),
            ),
            retrain=(RetrainOption(name="head", end_quality=quality + 0.2, cost_gpu_s=18.0, quality_sd=0.05),),
        )
        for id, quality in (("gate", 0.55), ("yard", 0.62))
    ),
)  # fmt: skip


def _unknown(camera: str) -> UsageError:
    return UsageError(f"no camera has the id '{camera}'", subject=camera, code="not_found", remedy="see the Live page")


class FakeLearning:
    """See `edge.learning.LearningSource`. compared: how often somebody asked for pictures."""

    def __init__(self) -> None:
        self.compared = 0

    def cameras(self) -> LearningList:
        return LearningList(
            cameras=tuple(
                LearningLine(
                    camera=id, title=f"Camera {n} ({id})", quality=0.6 + 0.1 * n, version=f"{id}-000002", drifted=n == 0,
                    activity="retraining" if n == 0 else "", retrainings=4, admitted=3,
                )
                for n, id in enumerate(CAMERAS)
            )
        )  # fmt: skip

    def camera(self, camera: str, windows: int) -> CameraLearning:
        if camera not in CAMERAS:
            raise _unknown(camera)
        told = tuple(_window(n) for n in range(WINDOWS))[-windows:]
        history = tuple(
            QualityPoint(at_utc=EPOCH_UTC + 200 * n, f1=0.5 + 0.03 * n, version=f"{camera}-{n // 3:06d}")
            for n in range(WINDOWS)
        )
        return CameraLearning(
            camera=camera, title=f"Camera ({camera})", task="detection", quality_name="F1", version=f"{camera}-000002",
            before=f"{camera}-000001", quality=0.7, held_out_frames=16, history=history, windows=told,
            band=BandCount(windows=WINDOWS - 1, inside=6, expected_frac=0.8),
            errors=PredictionError(retrainings=4, bias=0.012, sd=0.041, cost_ratio=1.08),
            now=LearningNow(
                window=WINDOWS - 1, phase="planned", examined=True, remark="", knobs="every", infer_pct=30, train_pct=40,
                options=6, running=_running(camera),
            ),
            drift=_drift(), scene=_scene(), near=(NearVersion(version=f"{camera}-000000", distance=0.21),),
            notes=(NoteView(at_utc=EPOCH_UTC, camera=camera, text="labelled 12 of 40 frames: the golden model is too slow"),),
        )  # fmt: skip

    def before_after(self, camera: str, before: str | None, after: str | None, pictures: int) -> BeforeAfter:
        self.compared += 1
        older, newer = before or f"{camera}-000001", after or f"{camera}-000002"
        missed = ModelBoxes(version=older, boxes=(), right=0, wrong=0, missed=1)
        found = ModelBoxes(version=newer, boxes=(CAR, DOUBT), right=1, wrong=1, missed=0)
        return BeforeAfter(
            camera=camera, before=older, after=newer, window=1, before_quality=0.0, after_quality=0.67, took_s=0.4,
            pictures=tuple(
                ComparedPicture(
                    sample=f"gate/000001/{n:09d}", width_px=WIDTH_PX, height_px=HEIGHT_PX, labels=(CAR,), before=missed, after=found
                )
                for n in range(min(pictures, 2))
            ),
        )  # fmt: skip


def _window(number: int) -> WindowLearning:
    predicted = 0.55 + 0.02 * number
    is_open = number == WINDOWS - 1
    return WindowLearning(
        window=number, opened_utc=EPOCH_UTC + 200 * number, closed_utc=None if is_open else EPOCH_UTC + 200 * (number + 1),
        start_quality=predicted - 0.05, end_quality=None if is_open else predicted + 0.03, predicted=predicted,
        predicted_low=predicted - 0.09, predicted_high=predicted + 0.09,
        realised=None if is_open else predicted + 0.03 * math.sin(number), retrained="head" if number % 2 else None,
        admitted=number % 4 == 1, version=f"gate-{number // 2:06d}" if number % 2 else None,
        note="not better on 16 labels" if number % 4 == 3 else "", drift=_drift() if number == 3 else None,
        learned=LearnedView(
            option="head", start_quality=0.5, promised_quality=0.66, realised_quality=0.63, promised_gpu_s=18.0, realised_gpu_s=19.4
        ) if number % 2 else None,
        why=(f"retrain 'head' on 40 % (18.0 GPU-s), {predicted:.3f} -> 0.700; inference 'every' on 30 %",),
    )  # fmt: skip


def _drift() -> DriftView:
    return DriftView(
        drifted=True, magnitude=0.4,
        signals=(
            DriftSignal(name="image", words="brightness, contrast, sharpness and tint of the picture", statistic=1.2, threshold=0.31,
                        fired=True),
            DriftSignal(name="class-mix", words="how many objects of which class", statistic=0.12, threshold=0.2, fired=False),
        ),
    )  # fmt: skip


def _scene() -> tuple[SceneNumber, ...]:
    return (
        SceneNumber(name="brightness", unit="grey levels of 255", words="mean of the picture", now=61.0, then=118.5),
        SceneNumber(name="objects", unit="per frame", words="what the serving model sees", now=1.4, then=3.1),
    )


def _running(camera: str) -> RunningView:
    return RunningView(
        job=f"{camera}/train/7", config="head", epochs=12, epoch=5, used_gpu_s=7.6, left_gpu_s=11.2, start_quality=0.55,
        expected_path=(0.55, 0.62, 0.66, 0.68), measured=((6, 0.66),), losses=(1.9, 1.2, 0.9, 0.8, 0.7),
    )  # fmt: skip


class FakeWhy:
    """See `edge.why.WhySource`: plans of a snapshot that never changes, explained by the real code."""

    def plans(self, limit: int) -> PlanList:
        line = PlanLine(
            number=7, window=3, at_utc=EPOCH_UTC, policy="thief-repeat", expected_quality=0.66, spare_pct=0, explainable=True,
            reasons=("planned anew: gate: it costs more than was promised", "gate: retrain 'head' on 40 %"),
        )  # fmt: skip
        old = line.model_copy(update={"number": 6, "explainable": False, "at_utc": EPOCH_UTC - 60})
        return PlanList(plans=(line, old)[:limit])

    def why(self, number: int | None) -> WhyView:
        if number not in (None, 7):
            raise UsageError(f"plan {number} can no longer be explained", code="not_found", remedy="see /api/v1/plans")
        policy = make_policy("thief-repeat")
        answer = answer_of(SNAPSHOT, policy(SNAPSHOT), policy, name="thief-repeat", explain=True)
        others = tuple(alternative(SNAPSHOT, name, words) for name, words in ALTERNATIVES.items() if name != "thief-repeat")
        return WhyView(
            number=7, window=3, at_utc=EPOCH_UTC, in_force=True, remaining_s=SNAPSHOT.remaining_s, capacity_pct=100, quantum_pct=5,
            min_quality=0.4, estimate="hand-back", reasons=self.plans(1).plans[0].reasons, answer=answer, alternatives=others,
            took_ms=3.0,
        )  # fmt: skip


class FakeGpu:
    """See `edge.gpu_view.GpuSource`."""

    def gpu(self, windows: int, camera: str | None = None) -> GpuView:
        times = tuple(EPOCH_UTC + 10.0 * n for n in range(30))
        return GpuView(
            backend="lanes", capacity_pct=100, spare_pct=5, unit="one GPU", every_s=10.0, span_s=10.0,
            shares=(_share("gate/infer", "inference", 35, 34.2), _share("gate/train/7", "retraining", 40, 33.0)),
            memory=(
                JobMemoryView(job="gate/infer", persistent_mib=12, ephemeral_mib=80, measured=True, lane=0, lane_mib=80, held_mib=12),
                JobMemoryView(job="gate/train/7", persistent_mib=40, ephemeral_mib=300, lane=1, lane_mib=300),
            ),
            lanes=(LaneView(lane=0, size_mib=80, jobs=("gate/infer",)), LaneView(lane=1, size_mib=300, jobs=("gate/train/7",))),
            devices=(
                DeviceView(index=0, name="NVIDIA Fake 80GB", memory_total_mib=81_920, memory_used_mib=2_048, utilisation_pct=71,
                           temperature_c=83, power_w=297.4, throttled=("power limit",), ecc_errors=0),
            ),
            at_utc=times,
            jobs=(
                _series("gate/infer" if camera else "inference", "inference", camera, times, 35.0),
                _series("gate/train" if camera else "retraining", "retraining", camera, times, 40.0, until=20),
            ),
            device_history=(
                DeviceSeries(
                    index=0, name="NVIDIA Fake 80GB", memory_used_mib=(2_048.0,) * 30, utilisation_pct=(71.0,) * 30,
                    temperature_c=tuple(60.0 + n for n in range(30)), power_w=(297.4,) * 30, throttled=(False,) * 25 + (True,) * 5,
                ),
            ),
            windows=tuple(
                WindowShares(
                    window=w, closed_utc=EPOCH_UTC + 200 * w, shares=(_share("gate/infer", "inference", 35, 34.0),)
                )
                for w in (2, 1)
            )[:windows],
            change_settle_s=0.0, change_gpu_s=0.0, change_blind_s=0.0,
        )  # fmt: skip


def _share(job: str, kind: str, promised_pct: float, received_pct: float) -> ShareView:
    return ShareView(job=job, camera="gate", kind=kind, promised_pct=promised_pct, received_pct=received_pct)  # type: ignore[arg-type]


def _series(
    job: str, kind: str, camera: str | None, times: tuple[float, ...], promised_pct: float, until: int = 30
) -> JobSeries:  # fmt: skip
    there = [n < until for n in range(len(times))]
    return JobSeries(
        job=job, camera=camera, kind=kind, promised_pct=tuple(promised_pct if t else None for t in there),
        received_pct=tuple(promised_pct - 2 + math.sin(n) if t else None for n, t in enumerate(there)),
        wanted_frac=tuple(1.0 if t else None for t in there), held_mib=tuple(12.0 if t else None for t in there),
    )  # fmt: skip


class FakeModels:
    """See `edge.models_view.ModelShelf`: three versions of each camera; promoting and rolling back changes which serves."""

    def __init__(self) -> None:
        self.serving = {camera: f"{camera}-000002" for camera in CAMERAS}
        self.replaced = {camera: f"{camera}-000001" for camera in CAMERAS}
        self.pinned: set[str] = set()
        self.taken_bytes = 0

    def list(self, camera: str | None) -> ModelList:
        rows = [self._row(c, n) for c in CAMERAS for n in (0, 1, 3, 2) if camera in (None, c)]
        if not rows:
            raise _unknown(camera or "")
        return ModelList(models=tuple(rows))

    def show(self, version: str) -> ModelShown:
        row = next((r for r in self.list(None).models if r.id == version), None)
        if row is None:
            raise UsageError(f"no model version '{version}'", subject=version, code="not_found", remedy="see the list")
        number = int(version[-6:])
        line = tuple(f"{row.camera}-{n:06d}" for n in ([3, 1, 0] if number == 3 else range(number, -1, -1)))
        return ModelShown(
            **row.model_dump(), replaced=None, lineage=line, sha256="ab" * 32, window=number or None, samples=24 * number,
            config={"name": "head", "epochs": 4 * number, "lr": 0.001} if number else {},
            quality_on="held-out labels of the window in which it was made",
            files={"model.safetensors": "411200 bytes", "manifest.json": "1902 bytes"},
            live=LiveQuality(points=3, mean=0.6, worst=0.52, first_utc=EPOCH_UTC, last_utc=EPOCH_UTC + 600),
        )  # fmt: skip

    def compare(self, first: str, second: str) -> ModelComparison:
        one, other = self.show(first), self.show(second)
        ancestor, steps = common_ancestor(one.lineage, other.lineage)
        return ModelComparison(
            first=one, second=other, same_camera=one.camera == other.camera, ancestor=ancestor, steps=steps,
            differences=differences(one, other), remark="Each quality was measured on the labels of its own time.",
        )  # fmt: skip

    def promote(self, version: str, *, force: bool, by: str) -> ServedView:
        row = self.show(version)
        if row.state == "candidate" and not force:
            raise UsageError(f"{version} was never admitted", subject=version, remedy="force serves it all the same")
        return self._serve(row.camera, version)

    def rollback(self, camera: str, version: str | None, *, by: str) -> ServedView:
        if camera not in CAMERAS:
            raise _unknown(camera)
        return self._serve(camera, version or self.replaced[camera])

    def pin(self, version: str, *, pinned: bool) -> ModelRow:
        self.show(version)
        (self.pinned.add if pinned else self.pinned.discard)(version)
        return self.show(version)

    def bundle(self, version: str) -> Path:
        self.show(version)
        file = self.upload()
        file.write_bytes(b"a bundle of " + version.encode())
        return file

    def upload(self) -> Path:
        return Path(mkdtemp(prefix="driftbox-fake-")) / "upload.driftbox"

    def take_in(self, file: Path, camera: str | None) -> ImportedView:
        self.taken_bytes = file.stat().st_size
        return ImportedView(version="gate-x000001", camera=camera or "gate", signed_by="1234-abcd", state="candidate")

    def _serve(self, camera: str, version: str) -> ServedView:
        before = self.serving[camera]
        self.serving[camera], self.replaced[camera] = version, before
        return ServedView(camera=camera, before=before, after=version)

    def _row(self, camera: str, number: int) -> ModelRow:
        id = f"{camera}-{number:06d}"
        state = "serving" if self.serving[camera] == id else "candidate" if number == 3 else "retired"
        parents = {0: None, 1: f"{camera}-000000", 2: f"{camera}-000001", 3: f"{camera}-000001"}
        return ModelRow(
            camera=camera, id=id, state=state, quality=None if number == 3 else 0.5 + 0.05 * number, gpu_s=18.0 * number or None,
            parent=parents[number], pinned=id in self.pinned, arch="tinydet-edge",
            created=f"2026-09-21T12:0{number}:00+00:00", reason="better on labels of its window" if number == 2 else "",
            depth=int(number == 3),
        )  # fmt: skip


class FakeQueries:
    """See `edge.queries_view.QueriesSource`; by: who turned a knob last."""

    def __init__(self) -> None:
        self.fps: KnobValue = 5
        self.by = ""

    def cameras(self) -> QueriesView:
        return QueriesView(cameras=tuple(self.camera(id) for id in CAMERAS))

    def camera(self, camera: str) -> CameraQueriesView:
        if camera not in CAMERAS:
            raise _unknown(camera)
        return CameraQueriesView(
            camera=camera, title=f"Camera ({camera})", quality=0.7, share_pct=30,
            settings=tuple(
                PlanSetting(name=name, demand_pct=30 / n, quality_frac=frac, fps=5 / n, in_force=n == 1)
                for n, (name, frac) in enumerate((("every", 1.0), ("1/2", 0.78), ("1/3", 0.64)), start=1)
            ),
            measured=True, profile=_profile(), queries=(self._query(),) if camera == "gate" else (),
        )  # fmt: skip

    def set_knobs(self, camera: str, query: str, setting: dict[str, KnobValue], *, by: str) -> CameraQueriesView:
        if camera != "gate" or query != "entrance":
            raise UsageError(f"camera {camera} has no query '{query}'", code="not_found", remedy="its queries: entrance")
        if set(setting) != {"decode.fps"} or setting["decode.fps"] not in (5, 2):
            raise UsageError("query entrance: that cannot be", remedy="decode.fps can be 5, 2")
        self.fps, self.by = setting["decode.fps"], by
        return self.camera(camera)

    def _query(self) -> QueryGraph:
        knob = KnobView(
            name="decode.fps", value=self.fps, values=(5, 2), golden=5, unit="frames/s", help="How many frames are looked at."
        )
        return QueryGraph(
            name="entrance", state="running", results={"lines": {"lines": {"door": {"in": 3, "out": 1}}}}, at_utc=time.time(),
            lag_s=0.12, frames=80, knobs={"decode.fps": self.fps}, quality_goal=0.6, lag_goal_s=1.0, profile=_profile(),
            graph=(
                GraphNode(id="decode", transform="decode", runs=80, cpu_ms=1.2, knobs=(knob,)),
                GraphNode(id="track", transform="track", inputs=("decode",), runs=80, cpu_ms=0.6),
                GraphNode(id="lines", transform="lines", inputs=("track",), runs=80, cpu_ms=0.1, answers=True,
                          params={"classes": ["person"]}),
            ),
        )  # fmt: skip


def _profile() -> ProfileView:
    shapes = ((0.92, 34.0, True), (0.9, 41.0, False), (0.78, 17.0, True), (0.6, 9.0, True))
    return ProfileView(
        version=2, measured_utc=EPOCH_UTC, source="samples of the last day", clip_s=60, quality_name="F1", took_s=210, tried=9,
        of_settings=18,
        points=tuple(
            ProfilePoint(name=f"setting {n}", setting={"decode.fps": 5 if n < 2 else 2}, quality=quality, demand_pct=demand,
                         device_pct=demand / 2, fps=5, on_front=front, in_force=n == 2)
            for n, (quality, demand, front) in enumerate(shapes)
        ),
    )  # fmt: skip
