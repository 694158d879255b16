"""One policy or many over the same footage, and what is printed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge import jobs
from edge.costs import CostProfile
from edge.evaluate.studio import EvaluateOptions, Studio
from edge.evaluate.world import EvaluateWorld, Record, profiling_gpu_s
from scheduler.commands import ReportPlan
from scheduler.ekya import microprofile
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, Event, ProfileDone
from scheduler.registry import needs
from scheduler.sim.driver import VirtualDriver
from scheduler.types import Drift, KnobProfile, RetrainConfig, RetrainOption, WindowOutcome


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """mean_f1: over windows 1.. and streams (in window 0 most policies have nothing to learn from); videos: the same per stream; f1:
    [stream][window], all windows. retrainings: started; finished and admitted of them. gpu_s: compute of labelling, profiling,
    retraining and gates, jobs that were cut by a window's end included; gpu_s_by_kind: the same per kind. predicted: (stream, window,
    configuration) -> what the micro-profiler said of it; exhaustive_gpu_s: what carrying out all that was profiled would have cost
    instead."""

    policy: str
    mean_f1: float
    retrainings: int
    finished: int
    admitted: int
    gpu_s: float
    gpu_s_by_kind: dict[str, float]
    videos: dict[str, float]
    f1: dict[str, list[float]]
    record: Record
    plans: list[dict[str, Any]]
    profiled: dict[tuple[str, int], ProfileDone]
    predicted: dict[tuple[str, int, str], float]
    exhaustive_gpu_s: float

    def as_dict(self) -> dict[str, Any]:
        """What is printed for this policy (design 3.1), with what it did beside it."""
        return {
            "policy": self.policy, "mean_f1": round(self.mean_f1, 4), "retrainings": self.retrainings,
            "finished": self.finished, "admitted": self.admitted, "gpu_s": round(self.gpu_s, 1),
            "gpu_s_by_kind": {k: round(v, 1) for k, v in self.gpu_s_by_kind.items()},
            "videos": {k: round(v, 4) for k, v in self.videos.items()},
            "f1_per_window": {k: [round(x, 4) for x in v] for k, v in self.f1.items()},
            "trainings": [
                {
                    "video": t.stream, "window": t.window, "config": t.config, "f1": round(t.quality, 4),
                    "predicted_f1": _rounded(self.predicted.get((t.stream, t.window, t.config))),
                    "held_out_f1": _rounded(t.held_out), "labels": t.labels, "gpu_s": round(t.gpu_s, 3),
                }
                for t in self.record.trainings
            ],
            "profiles": len(self.profiled), "exhaustive_gpu_s": round(self.exhaustive_gpu_s, 1),
            "gates": [{k: round(v, 4) if isinstance(v, float) else v for k, v in gate.items()} for gate in self.record.gates],
            "swaps": self.record.swaps,
            "probes": self.record.probes,
            "plans": self.plans,
            "windows": [_outcome(outcome) for outcome in self.record.outcomes],
        }  # fmt: skip


def _outcome(outcome: WindowOutcome) -> dict[str, Any]:
    """Predicted against realised, as the box itself believes them."""
    return {
        "window": outcome.window, "predicted": _rounded(outcome.predicted_quality),
        "realised": _rounded(outcome.realised_quality), "notes": list(outcome.notes),
        "videos": {
            s.id: {
                "start": _rounded(s.start_quality), "predicted": _rounded(s.predicted_quality),
                "realised": _rounded(s.realised_quality), "retrained": s.retrained, "admitted": s.admitted, "note": s.note,
                "reused": s.reused and s.reused[:12], "drift": _drift(s.drift),
            }
            for s in outcome.streams
        },
    }  # fmt: skip


def _drift(drift: Drift | None) -> dict[str, Any] | None:
    """What the looks said, None when nobody looked or there was nothing to compare with."""
    if drift is None:
        return None
    return {
        "drifted": drift.drifted, "magnitude": round(drift.magnitude, 4), "note": drift.note,
        "tests": {t.name: [round(t.statistic, 4), round(t.threshold, 4)] for t in drift.tests},
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def run_policy(
    studio: Studio, policy: str, shown_as: str, progress: Callable[[float], None] = lambda done_frac: None
) -> PolicyResult:
    """One run of the box over the footage under `policy` (the registry's name). progress: told the part that is done, 0-1."""
    options = studio.options
    end_s = options.windows * options.window_s
    engine = BoxEngine(replace(options.engine, policy=policy))
    knobs = {stream: studio.knobs(stream) for stream in sorted(studio.footage)}
    world = EvaluateWorld(studio, knobs, progress=lambda at_s: progress(min(1.0, at_s / end_s)))
    driver = VirtualDriver(engine, world, options.engine.speed)
    driver.run([*_cameras(studio, knobs), BoxStarted(at_s=0.0, window=0)], until_s=end_s)
    f1 = world.shown_f1()
    videos = {stream: float(np.mean(values[1:] or values)) for stream, values in f1.items()}
    profiled = _profiled(driver, options)
    return PolicyResult(
        policy=shown_as, mean_f1=float(np.mean(list(videos.values()))), retrainings=world.record.retrainings,
        finished=len(world.record.trainings), admitted=world.record.admitted, gpu_s=sum(driver.used_gpu_s.values()),
        gpu_s_by_kind=dict(driver.used_gpu_s), videos=videos, f1=f1, record=world.record, plans=_plans(driver),
        profiled=profiled, predicted=_predicted(profiled, options.engine),
        exhaustive_gpu_s=sum(_exhaustive_gpu_s(studio, done) for done in profiled.values()),
    )  # fmt: skip


def _cameras(studio: Studio, knobs: dict[str, tuple[KnobProfile, ...]]) -> list[Event]:
    return [
        CameraAdded(
            at_s=0.0,
            stream=s,
            knobs=knobs[s],
            version=studio.base_version,
            delivered=studio.base_version,
            quality=studio.first_quality(s),
            arch=studio.detector(studio.base_version).spec.arch,
        )
        for s in sorted(studio.footage)
    ]


def _plans(driver: VirtualDriver) -> list[dict[str, Any]]:
    """Every plan but that of a window which opens as the run ends."""
    return [
        {"at_s": round(event.at_s, 3), "window": command.window, "reasons": list(command.reasons)}
        for event, commands in driver.log
        for command in commands
        if isinstance(command, ReportPlan) and event.at_s < driver.now_s
    ]


def _profiled(driver: VirtualDriver, options: EvaluateOptions) -> dict[tuple[str, int], ProfileDone]:
    """(stream, window) -> what the micro-profiler found."""
    answers = [event for event, _ in driver.log if isinstance(event, ProfileDone)]
    return {(event.stream, int(event.at_s // options.window_s)): event for event in answers}


def _predicted(profiled: dict[tuple[str, int], ProfileDone], engine: EngineConfig) -> dict[tuple[str, int, str], float]:
    return {
        (stream, window, option.name): option.end_quality
        for (stream, window), done in profiled.items()
        for option in microprofile.options(done.trials, engine.retrain, n_train=done.n_train, lend=done.lend)
    }


def _exhaustive_gpu_s(studio: Studio, done: ProfileDone) -> float:
    """What retraining every configuration that the profile speaks of would have cost: profiling without a micro-profiler."""
    engine = studio.options.engine
    told = microprofile.speaking(done.trials, engine.retrain, lend=done.lend)
    return sum(studio.costs.retrain_gpu_s(config, max(1, done.n_train)) for config in engine.retrain if config.name in told)


def engine_config(options: EvaluateOptions, costs: CostProfile, retrain: Iterable[RetrainConfig]) -> EngineConfig:
    """The engine's configuration for a virtual box of `gpus` GPUs with these costs.

    Preparation is divided between labelling and profiling as their full costs demand, since both are known beforehand here."""
    configs, engine = tuple(retrain), options.engine
    train, holdout = jobs.label_split(options.candidates, engine.holdout_frac)
    reference = tuple(RetrainOption(name=c.name, end_quality=0.0, cost_gpu_s=costs.retrain_gpu_s(c, train)) for c in configs)
    label_gpu_s = options.candidates * costs.golden_gpu_s + holdout * costs.infer_gpu_s
    profile_gpu_s = profiling_gpu_s(
        configs, costs, train, holdout, epochs=engine.profile_epochs, data_frac=engine.profile_data_frac
    )
    return replace(
        engine, window_s=options.window_s, first_window_s=options.window_s, capacity_pct=round(100 * options.gpus),
        golden_gpu_s=costs.golden_gpu_s, retrain=configs, reference=reference, label_frames=options.candidates,
        gate_frames=max(1, min(engine.gate_frames, holdout)), leave_models=True, plain_splits=True,
        label_part_frac=min(0.9, max(0.3, label_gpu_s / (label_gpu_s + profile_gpu_s))),
    )  # fmt: skip


def fixed_configs(config: EngineConfig) -> dict[str, str]:
    """The paper's Cfg 1 and Cfg 2 for `uniform`: the dearest and the cheapest configuration by reference cost."""
    by_cost = sorted(config.reference, key=lambda o: (o.cost_gpu_s, o.name))
    return {"high": by_cost[-1].name, "low": by_cost[0].name} if by_cost else {}


def result_json(results: Sequence[PolicyResult], studio: Studio) -> dict[str, Any]:
    options = studio.options
    return {
        "policies": [r.as_dict() for r in results],
        "costs": studio.costs.as_dict(),
        "options": {
            "windows": options.windows, "window_s": options.window_s, "gpus": options.gpus, "fps": options.fps,
            "gpu_speed": options.gpu_speed, "label_frames": options.candidates, "judged_frames": options.judged,
            "seed": options.seed, "iou_min": options.scoring.iou_min, "score_min": options.scoring.score_min,
            "golden_score_min": options.scoring.golden_score_min, "drift": options.engine.drift,
            "reuse": options.engine.reuse, "group": options.engine.group, "together": options.engine.together,
        },
        "undisturbed": {
            s: round(float(np.mean([studio.window_f1(s, w, studio.base_version) for w in range(1, options.windows)])), 4)
            for s in sorted(studio.footage)
            if options.windows > 1
        },
        "full_rate_pct": round(sum(map(studio.full_pct, studio.footage)), 1),
        "knobs": {s: {k.name: k.quality_frac for k in studio.knobs(s)} for s in sorted(studio.footage)},
        "pupils": pupils(results, studio),
    }  # fmt: skip


def pupils(results: Sequence[PolicyResult], studio: Studio) -> list[dict[str, Any]]:
    """Every camera with all that these runs taught it, as `scheduler.ekya.hindsight` reads it: each model's worth in each window."""

    def quality(stream: str, version: str, since: int = 0) -> list[float]:
        windows = range(studio.options.windows)
        return [round(studio.window_f1(stream, w, version), 4) if w >= since else 0.0 for w in windows]

    lessons: dict[str, dict[str, dict[str, Any]]] = {stream: {} for stream in sorted(studio.footage)}
    for training in (t for result in results for t in result.record.trainings if t.version not in lessons[t.stream]):
        lessons[training.stream][training.version] = {
            "version": training.version, "parent": training.parent, "window": training.window,
            "gpu_s": round(training.labels * studio.costs.golden_gpu_s + training.gpu_s, 3),
            "quality": quality(training.stream, training.version, since=training.window),
        }  # fmt: skip
    return [
        {
            "id": stream, "base": studio.base_version, "quality": quality(stream, studio.base_version),
            "knobs": [
                {"name": k.name, "demand_pct": k.demand_pct, "quality_frac": k.quality_frac, "fps": k.fps}
                for k in studio.knobs(stream)
            ],
            "lessons": list(found.values()),
        }
        for stream, found in lessons.items()
    ]  # fmt: skip


def needs_profiles(policy: str) -> bool:
    return needs(policy).profiles
