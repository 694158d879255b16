"""One camera whose first retraining has just ended, after a profile that promised more: what stands at the gate."""

from __future__ import annotations

from scheduler.commands import StartGate, StartLabelling, StartProfiling, StartRetraining
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, LabelDone, ProfileDone, RetrainDone
from scheduler.types import KnobProfile, ProfileTrial, RetrainConfig
from tests.support.learning_world import of

CONFIG = RetrainConfig(name="full", epochs=3)
KNOBS = (KnobProfile(name="every", demand_pct=20, quality_frac=1.0),)


def at_the_gate(config: EngineConfig, *, curve: tuple[float, ...] = (0.44, 0.6, 0.65, 0.67)) -> tuple[BoxEngine, StartGate]:
    """config: with one retraining. curve: quality per epoch as the profile saw it, from what the serving model `a-1` is worth; the
    candidate is `a-2`."""
    quality = curve[0]
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=quality))
    (label,) = of(StartLabelling, engine.handle(BoxStarted(at_s=0, window=1)))
    told = engine.handle(
        LabelDone(at_s=2, job=label.job, stream="a", train=24, holdout=16, quality=quality, gpu_s=1.0, golden_gpu_s=0.05)
    )
    (profile,) = of(StartProfiling, told)
    trial = ProfileTrial(
        config=config.retrain[0], quality=curve, init_gpu_s=0.1, gpu_s_per_epoch=0.5, n_profiled=24, n_total=24
    )
    told = engine.handle(ProfileDone(at_s=4, job=profile.job, stream="a", trials=(trial,), n_train=24, gpu_s=1.0))
    (training,) = of(StartRetraining, told)
    (gate,) = of(StartGate, engine.handle(RetrainDone(at_s=20, job=training.job, stream="a", candidate="a-2", gpu_s=1.6)))
    return engine, gate
