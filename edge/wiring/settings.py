"""What the parts of a box are told of its configuration."""

from __future__ import annotations

from dataclasses import replace

from configs.catalog import retrain_of
from configs.queries import own_models
from configs.schema import BoxConfig
from configs.schema.crosscheck import AUTO, OWN
from edge.jobs import Scoring
from edge.shadow import ShadowRules
from edge.shelf import Retention
from models.golden import Labelling, class_table
from models.serving.registry import ON_CORES
from models.tasks.detection import DETECTION
from scheduler import pooled
from scheduler.admission import SEEING
from scheduler.drift import DriftConfig
from scheduler.engine import EngineConfig
from scheduler.types import RetrainConfig
from scheduler.videostorm.reprofile import ReprofileRules

#: Most that one job is promised on CPU lanes: a thread cannot use more than a core, and needs some slack to catch up from stalls.
JOB_MAX_PCT = 90.0


#: What a camera's model is worth at least, in plans: of the 8 to 24 labels that a window judges by, one object found is about as much.
LEAST_QUALITY = 0.05


def settled_serving(config: BoxConfig) -> tuple[BoxConfig, str]:
    """`scheduler.serving: auto` as what it is for these cameras, and why there is a queue (empty: nothing was settled, or there is
    none). A queue costs each frame more than its camera's own thread does, so it is there for those who need it."""
    if config.scheduler.serving != AUTO:
        return config, ""
    beside = [
        f"{camera.id}/{query['name']}"
        for camera in config.active_cameras
        for query in camera.model_dump()["queries"]
        if own_models(query, camera.task)
    ]
    # Under mps such queries are refused before.
    way = "orloj" if beside else OWN
    why = f"live frames go through one queue ({way}), because of what is asked beside a camera's own model: {', '.join(beside)}"
    return with_serving(config, way), why if beside else ""


def with_serving(config: BoxConfig, way: str) -> BoxConfig:
    """The same with another `scheduler.serving`."""
    return config.model_copy(update={"scheduler": config.scheduler.model_copy(update={"serving": way})})


def engine_config(config: BoxConfig, golden_cost_s: float) -> EngineConfig:
    """What the engine needs of the box's configuration; golden_cost_s: first guess, replaced by measurement."""
    return EngineConfig(
        window_s=config.window.seconds, first_window_s=config.window.first_seconds, capacity_pct=config.gpus.capacity_pct,
        quantum_pct=config.scheduler.quantum_pct, quantum_auto=config.scheduler.quantum_auto,
        quantum_fits=True, min_quality=config.scheduler.min_quality, policy=config.scheduler.policy,
        estimate=config.scheduler.estimate, prep_pct=config.window.prep_pct, prep_auto=config.window.prep_auto,
        prep_max_frac=config.window.prep_max_frac, overlap=config.window.overlap,
        label_frames=config.window.label_frames, holdout_frac=config.window.holdout_frac,
        gate_frames=config.window.gate_frames, gate_margin=config.window.gate_margin, min_gain=config.scheduler.min_gain,
        golden_gpu_s=golden_cost_s, profile_every=config.window.profile_every, profile_epochs=config.window.profile_epochs,
        profile_data_frac=config.window.profile_data_frac, profile_lend=config.window.profile_lend,
        retrain=retrain_configs(config), speed=speed_of(config.gpus.capacity_pct),
        job_max_pct=JOB_MAX_PCT, calibrate=config.scheduler.calibrate, prune_every=config.scheduler.prune_every,
        prune_frac=config.scheduler.prune_frac, react=config.scheduler.react, react_quality=config.scheduler.react_quality,
        react_fast=config.scheduler.react_fast, react_slow=config.scheduler.react_slow,
        react_dwell_s=config.scheduler.react_dwell_s, slaq=None if config.scheduler.slaq == "off" else config.scheduler.slaq,
        gate_risk=config.window.gate_risk, gate_seeing=SEEING, gate_known=True, profile_pool=pooled.ENOUGH, pool_layers=True,
        try_again=True, count_taught=True, left_of_missing=True, divide_prep=True, weigh_frames=True, look_again=True,
        least_quality=LEAST_QUALITY,
        try_little=True, ask_again=True,
        shadow=config.window.shadow, drift=config.scheduler.drift.enabled,
        look_frames=config.scheduler.drift.look_frames, drift_drop=config.scheduler.drift.drop,
        drift_config=DriftConfig(alpha=config.scheduler.drift.false_alarms), reuse=config.scheduler.reuse.enabled,
        reuse_nearest=config.scheduler.reuse.nearest, glance=config.scheduler.reuse.glance,
        learn_now=config.scheduler.reuse.glance, average=config.scheduler.reuse.glance,
        together=config.scheduler.reuse.together, group=config.scheduler.reuse.group,
        group_distance=config.scheduler.reuse.group_distance, group_max=config.scheduler.reuse.group_cameras,
        knob_loop=config.scheduler.knobs == "seconds",
        knob_rules=replace(EngineConfig.knob_rules, objective=config.scheduler.knob_objective), say_lag=True,
    )  # fmt: skip


def speed_of(capacity_pct: int) -> tuple[tuple[float, float], ...]:
    """How fast a job runs at a share, on CPU lanes: a job is one thread, so it gains nothing above one core."""
    return ((0.0, 0.0), (100.0, 1.0), (float(capacity_pct), 1.0)) if capacity_pct > 100 else ()


def trials_at_once(config: BoxConfig, backend: str) -> int:
    """Most profiling trials at once. Each has a lane of its own, which only `lanes` gives; and where the shortest job runs alone, a
    second lane of a job would wait for its first, and that one to be compared with it."""
    return config.window.profile_at_once if backend == "lanes" and config.gpus.policy != "srtf" else 1


def device_of_models(config: BoxConfig) -> str:
    """Where this process holds its models, as torch names it. Under MPS they are in the jobs' own processes."""
    return "cuda" if config.gpus.device == "cuda" and config.gpus.backend != "mps" else "cpu"


def models_of(config: BoxConfig) -> list[tuple[str, str, str]]:
    """(task, edge model, golden model) of the cameras, each once; of detection when there is no camera yet."""
    cameras = [(entry.task, entry.edge) for entry in config.active_cameras] or [(DETECTION.name, None)]
    usual = {task: config.models.for_task(task) for task, _ in cameras}
    return sorted({(task, edge or usual[task].edge, usual[task].golden) for task, edge in cameras})


def retrain_configs(config: BoxConfig, model: str | None = None) -> tuple[RetrainConfig, ...]:
    """How a model may be retrained (`configs.catalog`); None: the cameras' usual one."""
    return tuple(RetrainConfig(**entry.model_dump()) for entry in retrain_of(config.models, model or config.models.edge))


def scoring_of(config: BoxConfig) -> Scoring:
    models = config.models
    return Scoring(golden_score_min=models.golden_score_min, score_min=models.edge_score_min, iou_min=models.iou_min)


def labelling_of(config: BoxConfig, *, on_gpu: bool = False) -> Labelling:
    """How golden labels are made. A batch is one picture where no GPU makes more of them cheaper: an iteration lasts as long."""
    models = config.models
    return Labelling(
        batch=models.golden_batch if on_gpu else 1, classes=class_table(models.class_map), agreement=models.agreement,
        unsure_max_frac=models.unsure_max_frac,
    )  # fmt: skip


def retention_of(config: BoxConfig) -> Retention:
    return Retention(keep_versions=config.storage.keep_versions, keep_days=config.storage.keep_versions_days)


def shadow_of(config: BoxConfig) -> ShadowRules:
    window = config.window
    return ShadowRules(frames=window.shadow_frames, share_frac=window.shadow_frac, most_s=window.shadow_seconds)


def serving_form(config: BoxConfig) -> str:
    """`models.serving`. On a GPU a form that only cores can run is the trained model: shares are divided and measured on the GPU, and
    nobody would have promised it those. `auto` is so where a queue answers frames (`scheduler.serving`): it lets a GPU compute several
    pictures at once, a form answers them one by one, and what is compared is how long one takes."""
    asked = config.models.serving
    if device_of_models(config) != "cuda":
        return asked
    batched = asked == "auto" and settled_serving(config)[0].scheduler.serving != OWN
    return "trained" if batched or asked in ON_CORES else asked


def golden_form(config: BoxConfig) -> str:
    """`models.golden_serving`. On a GPU, and where jobs have processes of their own, golden models label as trained."""
    return config.models.golden_serving if device_of_models(config) == "cpu" else "trained"


def reprofile_of(config: BoxConfig) -> ReprofileRules | None:
    """When a profile is said to have grown old; None: never."""
    scheduler = config.scheduler
    if scheduler.reprofile == "off":
        return None
    return ReprofileRules(factor=scheduler.reprofile_factor, for_s=scheduler.reprofile_after_s)
