"""What `driftbox profile CAMERA` runs: a clip of the camera, its model and alternatives, a search, the profile in the data folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import UsageError
from configs.schema import BoxConfig, CameraEntry
from edge.memo import Memo
from edge.profiler import chain, clips
from edge.profiler.clips import CLIP_S, Footage, Truth
from edge.profiler.graph import Graph, Ledger
from edge.profiler.measure import LabelJudge, Measurer, Where
from edge.profiler.models import ReadyModels
from edge.profiler.profile import USUAL_FPS, CameraProfile, MeasuredOption, ProfilingCost, read_profile
from edge.profiler.profiler import BETA, Found, Plan, Told, exhaustive, greedy, silent
from edge.queries.base import Cost, Meter, Tools
from edge.serving import form_in_use
from edge.store.folder import DataFolder
from edge.store.store import Store
from models.detector import Detector
from models.serving.cache import FormCache, machine
from models.tasks.base import Picture, Scoring, Task
from models.tasks.registry import task_of
from models.zoo import spec_of, split_size
from streams.camera import open_camera
from streams.masks import masks_from
from streams.samples import SampleStore
from streams.stretch import recorded
from streams.url import SourceKind, SourceUrl

#: Every how-many-th sample stands for, and what it leaves of the quality, where rates cannot be measured: `scheduler.ekya.usual_knobs`.
Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """video: profile on this recording instead of the camera's own; live: on what a live camera sends now, not on its samples;
    all_settings: measure every setting; models, forms: alternatives to what serves,
    beside it; budget_s: seconds of compute for the search, None: no limit; seed: of the search."""

    video: Path | None = None
    live: bool = False
    start_s: float = 0.0
    clip_s: float = CLIP_S
    all_settings: bool = False
    beta: float = BETA
    budget_s: float | None = None
    models: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    seed: int = 0
    keep: bool = True
    query: str | None = None

    @property
    def plan(self) -> Plan:
        return Plan(beta=self.beta, seed=self.seed, budget_s=self.budget_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A camera to be profiled, with everything loaded. load: a model by name, as trained; model: that serves; form: it serves
    in."""

    camera: str
    task: Task
    model: str
    form: str
    load: Callable[[str], Detector]
    golden_name: str
    golden: Callable[[], Detector]
    scoring: Scoring
    footage: Footage
    watched_fps: float = 5.0
    on_gpu: bool = False
    input_px: int = 320
    curve: Curve = ((1, 1.0),)
    memo: Memo = field(default_factory=Memo)
    forms_cache: FormCache | None = None


def camera_of(config: BoxConfig, camera: str) -> CameraEntry:
    """Raises UsageError naming the cameras there are."""
    found = next((entry for entry in config.cameras if entry.id == camera), None)
    if found is None:
        known = ", ".join(entry.id for entry in config.cameras) or "none"
        raise UsageError(f"there is no camera '{camera}'", subject=camera, remedy=f"cameras of this box: {known}")
    return found


def footage_of(
    config: BoxConfig, entry: CameraEntry, options: ProfileOptions, task: Task, *, told: Told = silent
) -> Footage:  # fmt: skip
    """The recording that was named, else the camera's own when it is one, else what it sends now (`options.live`) or its newest samples.
    told: called while a stretch of a live camera comes in. Raises StreamError, UsageError, StorageError, JobError 'no_data'."""
    url = None if entry.url.scheme == "rendered" else SourceUrl(entry.url.resolve())  # what the box draws has no address
    path = options.video or (Path(url.path) if url is not None and url.kind is SourceKind.FILE else None)
    if path is not None:
        return _of_video(path, entry, options, task, start_s=options.start_s)
    if options.live and url is not None:
        camera = open_camera(entry.id, url, transport=entry.transport, rtsp_by=entry.rtsp_by)
        at_utc = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

        def wait(seconds: float) -> None:
            told("a stretch of the camera", 0, 1)
            time.sleep(seconds)

        with recorded(camera, options.clip_s, sleep=wait) as stretch:
            return _of_video(stretch, entry, options, task, name=f"{entry.id} at {at_utc}")
    folder = config.box.data_dir / "samples"
    if not folder.is_dir():
        raise UsageError(
            f"{entry.id} has no samples in {config.box.data_dir}", subject=entry.id,
            remedy="let the box run for a while, or give a recording with --video",
        )  # fmt: skip
    return clips.of_samples(SampleStore(folder), entry.id, fps=entry.fps or USUAL_FPS)


def _of_video(
    path: Path, entry: CameraEntry, options: ProfileOptions, task: Task, *, start_s: float = 0.0, name: str = ""
) -> Footage:
    return clips.of_video(
        path, camera=entry.id, fps=entry.fps or USUAL_FPS, start_s=start_s, seconds=options.clip_s, masks=masks_from(entry.masks),
        regions=task.wants_regions, height_px=entry.height_px, name=name,
    )  # fmt: skip


def profile_subject(subject: Subject, options: ProfileOptions, *, told: Told = silent) -> CameraProfile:
    """Measures a camera's profile. Raises JobError when the golden model fails; settings that fail are left out."""
    began_s = time.monotonic()
    truth = clips.truth_of(
        subject.footage, subject.task, subject.golden(), score_min=subject.scoring.golden_score_min, memo=subject.memo,
        name=subject.golden_name, used_s=_spent_clock(subject.on_gpu),
        told=lambda done, of: told(f"golden labels, {subject.golden_name}", 0, 1),
    )  # fmt: skip
    space = _space(subject, options)
    pictures = [Picture(image=scene.image, regions=scene.regions) for scene in subject.footage.clip.scenes]
    ready = ReadyModels(
        subject.task, subject.load, pictures, own_size=len(space.heights_px) > 1, cache=subject.forms_cache
    )  # fmt: skip
    measuring = _Measuring(subject=subject, truth=truth, space=space, ready=ready)
    if options.all_settings:
        found = exhaustive(measuring.measurer(), told=told)
    else:
        found = greedy(measuring.measurer(), options.plan, told=told)
    return _profile(subject, options, found, truth, took_s=time.monotonic() - began_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measuring:
    subject: Subject
    truth: Truth
    space: chain.Space
    ready: ReadyModels

    def measurer(self) -> Measurer:
        subject, truth, footage = self.subject, self.truth, self.subject.footage
        tools = Tools(camera_id=subject.camera, fps=footage.fps, score_min=subject.scoring.score_min)
        graph = Graph(
            self.space.spec(subject.camera), footage.clip, chain.make_with(subject.task, tools, self.ready.ready),
            meter=meter_of(subject.on_gpu), memo=subject.memo, dear=(chain.ANSWER,),
        )  # fmt: skip
        return Measurer(
            graph=graph, ledger=Ledger(),
            judge=LabelJudge(sink=chain.ANSWER, task=subject.task, labels=truth.labels, scoring=subject.scoring),
            where=Where(device_nodes=(chain.ANSWER,), on_gpu=subject.on_gpu),
            memory_mib=lambda setting: self.ready.memory_mib(str(setting[chain.MODEL])),
            height_px=lambda setting: int(setting[chain.HEIGHT]),
            fps=lambda setting: footage.fps / int(setting[chain.STRIDE]),
        )  # fmt: skip


def _space(subject: Subject, options: ProfileOptions) -> chain.Space:
    width_px, height_px = subject.footage.size_px
    resizable = not subject.task.wants_regions
    models = tuple(dict.fromkeys((subject.model, *options.models)))
    return chain.Space(
        strides=chain.STRIDES if subject.footage.rates else (1,),
        heights_px=chain.heights_for(height_px, width_px, subject.input_px) if resizable else (0,), models=models,
        forms=tuple(dict.fromkeys((subject.form, *options.forms))), crops=chain.CROP_LIMITS if subject.task.wants_regions else (),
    )  # fmt: skip


def _profile(subject: Subject, options: ProfileOptions, found: Found, truth: Truth, *, took_s: float) -> CameraProfile:
    footage = subject.footage
    if not found.options:
        reasons = "; ".join(left.reason for left in found.left_out[:3])
        raise UsageError(f"{subject.camera}: no setting could be measured: {reasons}", subject=subject.camera)
    measured, assumed = found.options, ""
    if not footage.rates:
        measured = tuple(slower for option in measured for slower in at_rates(option, subject.curve))
        assumed = "frame rates: the usual curve, because samples are too far apart (live, or with --video, they are measured)"
    cost = ProfilingCost(
        search_s=found.spent_s, truth_s=truth.cost_s, settings=found.tried, of_settings=found.of, took_s=took_s,
        every_s=found.every_s, every_measured=options.all_settings,
    )  # fmt: skip
    return CameraProfile(
        camera=subject.camera, task=subject.task.name, model=subject.model, golden=subject.golden_name,
        quality_name=subject.task.quality_name, source=footage.source, clip_s=footage.clip.seconds, frames=len(truth.labels),
        fps=footage.fps, watched_fps=subject.watched_fps, machine=machine(), device="cuda" if subject.on_gpu else "cpu",
        measured_utc=time.time(), beta=options.beta,
        options=tuple(sorted(measured, key=lambda o: -o.demand)), cost=cost, left_out=found.left_out, assumed=assumed,
        serving={chain.MODEL: subject.model, chain.FORM: subject.form},
    )  # fmt: skip


def at_rates(option: MeasuredOption, curve: Curve) -> list[MeasuredOption]:
    """An option measured at the full rate, at every rate of a curve of (every how-many-th frame, part of the quality that is
    left)."""
    return [
        option.model_copy(
            update={
                "name": option.name.replace(f"{chain.STRIDE.rpartition('.')[2]}=1", f"stride={stride}"),
                "setting": {**option.setting, chain.STRIDE: stride}, "quality": option.quality * left,
                "device_s": option.device_s / stride, "fps": option.fps / stride,
                "cpu_s": option.decode_s + (option.cpu_s - option.decode_s) / stride,
            }
        )
        for stride, left in curve
    ]  # fmt: skip


# --- meters -----------------------------------------------------------------------------------------------------------


def meter_of(on_gpu: bool) -> Meter:
    """What the calling thread has used. On a GPU, which nobody else may use meanwhile, its seconds are those that pass until it
    is done."""
    if not on_gpu:
        return lambda: Cost(cpu_s=time.thread_time())
    import torch

    def both() -> Cost:
        torch.cuda.synchronize()
        return Cost(cpu_s=time.thread_time(), gpu_s=time.perf_counter())

    return both


def _spent_clock(on_gpu: bool) -> Callable[[], float]:
    meter = meter_of(on_gpu)
    return lambda: meter().gpu_s if on_gpu else meter().cpu_s


# --- kept -------------------------------------------------------------------------------------------------------------


def keep_profile(data_dir: Path, profile: CameraProfile) -> int:
    """Writes a profile into a data folder, also while its box runs, which takes it up at once; its version. Raises StorageError."""
    folder = DataFolder(data_dir, beside=True) if data_dir.is_dir() else DataFolder(data_dir)
    try:
        with Store(folder.db_path) as store:
            return store.add_profile(profile.camera, profile.model_dump_json(), profile.measured_utc)
    finally:
        folder.close()


def stored_profile(store: Store, camera: str) -> tuple[int, CameraProfile] | None:
    """(version, profile) of a camera, None: it has none. Raises StorageError."""
    found = store.profile(camera)
    return None if found is None else (found[0], read_profile(found[1], subject=camera))


# --- the command ------------------------------------------------------------------------------------------------------


def subject_of(
    config: BoxConfig, camera: str, options: ProfileOptions, *, device: str, curve: Curve, told: Told = silent
) -> Subject:  # fmt: skip
    """Everything that profiling a configured camera needs. device: of its models. Raises what loading raises."""
    from edge.shelf import serving_detector

    entry = camera_of(config, camera)
    task = task_of(entry.task)
    model = entry.edge or config.models.for_task(entry.task).edge
    golden = config.models.for_task(entry.task).golden

    def load(name: str) -> Detector:
        trained = serving_detector(config.box.data_dir, camera, device=device) if name == model else None
        return trained if trained is not None else task.load(name, device=device)

    scoring = Scoring(
        golden_score_min=config.models.golden_score_min, score_min=config.models.edge_score_min, iou_min=config.models.iou_min
    )
    base, size_px = split_size(model)
    forms = config.box.data_dir / "forms"
    form = chain.TRAINED if device == "cuda" else form_in_use(config.models.serving, forms, load(model).spec)
    return Subject(
        camera=camera, task=task, model=model, form=form, load=load, golden_name=golden,
        golden=lambda: task.load_golden(golden, device=device), scoring=scoring,
        footage=footage_of(config, entry, options, task, told=told), watched_fps=entry.fps or USUAL_FPS,
        on_gpu=device == "cuda", input_px=size_px or _default_px(base), curve=curve,
        forms_cache=FormCache(forms) if forms.is_dir() else None,
    )  # fmt: skip


def _default_px(arch: str) -> int:
    try:
        return spec_of(arch).input_px
    except UsageError:  # a weights file: it says itself which model it is, and that is 320 for all small ones
        return 320


def profile_command(
    config: BoxConfig, camera: str, options: ProfileOptions, *, device: str, curve: Curve, told: Told = silent
) -> tuple[CameraProfile, int | None]:
    """(the profile, its version in the data folder; None: it was not to be kept)."""
    import torch

    torch.set_num_threads(1)
    if options.query is not None:
        profile = _of_query(config, camera, options.query, options, device=device, told=told)
    else:
        profile = profile_subject(
            subject_of(config, camera, options, device=device, curve=curve, told=told), options, told=told
        )
    if not options.keep:
        return profile, None
    return profile, keep_profile(config.box.data_dir, profile)


def _of_query(
    config: BoxConfig, camera: str, query: str, options: ProfileOptions, *, device: str, told: Told
) -> CameraProfile:  # fmt: skip
    from edge.profiler.of_query import profile_query, spec_of_query

    spec = spec_of_query(config, camera, query)
    subject = subject_of(config, camera, options, device=device, curve=(), told=told)
    return profile_query(
        spec, subject.footage, lambda model: subject.load(model or subject.model), camera=camera, task=subject.task.name,
        model=subject.model, scoring=subject.scoring, meter=meter_of(subject.on_gpu), on_gpu=subject.on_gpu,
        watched_fps=subject.watched_fps, plan=None if options.all_settings else options.plan, told=told,
    )  # fmt: skip
