"""A `StatusSource` without a box: four cameras in four states, moving on with every call. For tests and for a look.

Try it: `python -m edge.web.fake` and open the address it prints.
"""

from __future__ import annotations

import math
import time

import cv2
import numpy as np

from edge.status import (
    BoxStatus,
    CameraView,
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

EPOCH_UTC = 1_790_000_000.0
STATES: dict[str, tuple[str, str | None, str]] = {
    "gate": ("live", None, ""),
    "yard": ("live", None, ""),
    "dock": ("stalled", "timeout", "no frames for 6 s from rtsp://***@192.0.2.11/stream1"),
    "hall": ("waiting", "auth", "the camera refused the password (rtsp://***@192.0.2.12/stream1)"),
}


class FakeSource:
    """`ticks` counts the calls of `status`; everything shown follows from it, so a test may set it."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ticks = 0
        self.ready = ready
        self.degraded: tuple[str, ...] = ()

    def status(self) -> BoxStatus:
        self.ticks += 1
        elapsed_s = float(self.ticks % 200)
        cameras = tuple(self._camera(number, id) for number, id in enumerate(STATES))
        return BoxStatus(
            box="demo",
            site="home",
            software="0.1.0",
            now_utc=EPOCH_UTC + self.ticks,
            started_utc=EPOCH_UTC,
            ready=self.ready,
            degraded=self.degraded,
            capacity_pct=100,
            spare_pct=5,
            cameras=cameras,
            shares=(
                ShareView(job="infer:gate", camera="gate", kind="inference", promised_pct=35, received_pct=34.2),
                ShareView(
                    job="infer:yard", camera="yard", kind="inference", promised_pct=20, received_pct=12.5, wanted_frac=0.6
                ),
                ShareView(job="retrain:gate", camera="gate", kind="retraining", promised_pct=40, received_pct=40.4),
            ),
            backend="lanes",
            memory=(
                JobMemoryView(
                    job="infer:gate", persistent_mib=12, ephemeral_mib=80, measured=True, lane=0, lane_mib=80, held_mib=12
                ),
                JobMemoryView(job="retrain:gate", persistent_mib=40, ephemeral_mib=300, lane=1, lane_mib=300),
            ),
            devices=(
                DeviceView(
                    index=0,
                    name="NVIDIA Fake 80GB",
                    memory_total_mib=81_920,
                    memory_used_mib=2_048,
                    utilisation_pct=71,
                    temperature_c=83,
                    power_w=297.4,
                    throttled=("power limit",),
                    ecc_errors=0,
                ),
                DeviceView(
                    index=1,
                    name="NVIDIA Fake 80GB",
                    memory_total_mib=81_920,
                    memory_used_mib=0,
                    problem="the GPU is lost: it no longer answers on its bus",
                ),
            ),
            faults=(
                FaultView(
                    at_utc=EPOCH_UTC,
                    job="retrain:yard",
                    code="leak",
                    text="retrain:yard holds more with every iteration; it was removed",
                    remedy="report it with the job's log",
                    removed=True,
                ),
            ),
            window=WindowView(number=3, phase="planned", opened_utc=EPOCH_UTC, length_s=200, elapsed_s=elapsed_s),
            plan=_plan(),
            outcomes=(_outcome(2, 0.61), _outcome(1, 0.55)),
            models=_models(),
            notes=(NoteView(at_utc=EPOCH_UTC, camera="dock", text="labelled 12 of 40 frames: the golden model is too slow"),),
        )

    def _camera(self, number: int, id: str) -> CameraView:
        state, code, error = STATES[id]
        live = state == "live"
        points = tuple(
            QualityPoint(at_utc=EPOCH_UTC + 60 * k, f1=0.5 + 0.2 * math.sin(k + number) ** 2, version=f"{id}-{k // 3}")
            for k in range(8 if live else 0)
        )
        return CameraView(
            id=id,
            name=f"Camera {number + 1} ({id})",
            state=state,
            code=code,
            error=error,
            since_s=self.ticks,
            width_px=640,
            height_px=360,
            queries=_queries(self.ticks) if id == "gate" else (),
            camera_fps=15 if live else 0,
            analysed_fps=4.8 if live else 0,
            wanted_fps=5,
            knobs="full",
            objects=2 if live else 0,
            frames_analysed=self.ticks if live else 0,
            frames_dropped=3,
            task="classification" if id == "yard" else "detection",
            quality=points[-1].f1 if points else None,
            quality_name="accuracy" if id == "yard" else "F1",
            quality_history=points,
            model=f"{id}-2",
            activity="retraining" if number == 0 else "",
            activity_frac=0.4 if number == 0 else None,
        )

    def picture(self, camera_id: str, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        if STATES.get(camera_id, ("",))[0] != "live":
            return None
        image = np.full((360, 640, 3), (90, 110, 80), np.uint8)
        left = 20 + 8 * (self.ticks % 60)
        if boxes:
            cv2.rectangle(image, (left, 150), (left + 60, 290), (60, 220, 250), 3)
            cv2.putText(image, "person 0.87", (left, 140), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (60, 220, 250), 2)
        if 0 < width_px < 640:
            image = cv2.resize(image, (width_px, width_px * 360 // 640))
        return cv2.imencode(".jpg", image)[1].tobytes()


def _queries(ticks: int) -> tuple[QueryView, ...]:
    crossed = {"in": ticks // 2, "out": ticks // 5, "classes": {"in": {"person": ticks // 2}, "out": {"person": ticks // 5}}}
    return (
        QueryView(
            name="entrance",
            state="running",
            results={"track": {"tracks": 2}, "lines": {"lines": {"door": crossed}}},
            at_utc=EPOCH_UTC,
            lag_s=0.12,
            frames=ticks,
            knobs={"decode.fps": 5, "track.association": "bytetrack"},
            nodes=(QueryNodeView(id="lines", transform="lines", runs=ticks, cpu_ms=0.4),),
        ),
        QueryView(name="plates", state="resting", reason="read: MemoryError: no room", again_s=12.0, failed_frames=5),
    )


def _plan() -> PlanView:
    streams = (
        StreamPlanView(camera="gate", knobs="full", infer_pct=35, retrain="head", train_pct=40, expected_quality=0.66),
        StreamPlanView(
            camera="yard", knobs="half", infer_pct=20, retrain=None, train_pct=0, expected_quality=0.38, below_floor=True
        ),
    )
    return PlanView(
        window=3, policy="thief-repeat", at_utc=EPOCH_UTC, reason="window", spare_pct=5, expected_quality=0.52, streams=streams
    )


def _outcome(window: int, realised: float) -> OutcomeView:
    streams = (
        StreamOutcomeView(
            camera="gate",
            start_quality=0.5,
            end_quality=0.66,
            predicted_quality=0.6,
            realised_quality=realised,
            retrained="head",
            admitted=True,
        ),
        StreamOutcomeView(camera="yard", start_quality=0.4, end_quality=0.4, realised_quality=0.4, note="nothing was worth it"),
    )
    return OutcomeView(
        window=window,
        opened_utc=EPOCH_UTC + 200 * window,
        closed_utc=EPOCH_UTC + 200 * (window + 1),
        predicted_quality=0.6,
        realised_quality=realised,
        streams=streams,
        notes=("labelling took 31 GPU-seconds",),
    )


def _models() -> tuple[ModelView, ...]:
    return tuple(
        ModelView(
            id=f"gate-{k}",
            camera="gate",
            parent=f"gate-{k - 1}" if k else None,
            arch="tinydet-edge",
            created_utc=EPOCH_UTC + 200 * k,
            quality=0.5 + 0.05 * k,
            serving=k == 2,
            admitted=k != 1,
        )
        for k in (2, 1, 0)
    )


def main() -> None:
    from edge.web.serve import WebServer

    with WebServer(FakeSource(), host="127.0.0.1", port=8089) as server:
        print(f"the page with invented numbers: {server.url} (stop with Ctrl-C)")
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
