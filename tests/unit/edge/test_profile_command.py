"""`driftbox profile` from the configuration to the data folder, on a scripted video with scripted models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import JobCancelled, JobError, StreamError, UsageError
from configs.load import parse_config
from configs.schema import BoxConfig
from edge.cli import main
from edge.profiler import chain, clips
from edge.profiler.command import ProfileOptions, keep_profile, profile_command, stored_profile, subject_of
from edge.profiler.graph import Graph
from edge.profiler.live import Profiles
from edge.profiler.models import model_mib
from edge.profiler.of_query import asked_models, spec_of_query
from edge.profiler.profile import CameraProfile, MeasuredOption, menu_of
from edge.queries.live import specs_of
from edge.store.store import Store
from edge.wiring.cameras import reprofiling_of, watching_of
from models.detector import DetectorSpec
from models.fake import FakeDetector, scripted_image
from scheduler.ekya.usual_knobs import STRIDES
from scheduler.types import Detections, Frame
from streams.samples import SampleStore
from tests.support import fakes
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.scripted_video import write_scripted_video


@pytest.fixture(autouse=True)
def scripted_models(monkeypatch: pytest.MonkeyPatch) -> None:
    put_fakes_in_the_zoo(monkeypatch)


def config_text(folder: Path, video: Path | str, *, edge: str = "fake", fps: float = 10.0) -> str:
    return (
        f"box: {{data_dir: {folder / 'data'}}}\nmodels: {{edge: {edge}, golden: fake-other, golden_score_min: 0.25}}\n"
        f"cameras: [{{id: gate, url: {video}, fps: {fps}}}]\n"
    )


def config_of(folder: Path, video: Path | str, **changes: object) -> BoxConfig:
    return parse_config(config_text(folder, video, **changes))  # type: ignore[arg-type]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_scripted_video(tmp_path / "street.mp4", frames=24, change_every=3)


#: Rates times heights that a scripted picture (128 x 96 px, a model of 128 px) is tried at.
SETTINGS = 6 * 3


def whole(found: CameraProfile) -> dict[object, MeasuredOption]:
    """By stride, those whose model sees the whole picture: scripted models know no other."""
    return {o.setting[chain.STRIDE]: o for o in found.options if not o.height_px}


def measured(config: BoxConfig, **options: object) -> CameraProfile:
    given = ProfileOptions(**{"clip_s": 2.4, **options})  # type: ignore[arg-type]
    found, _ = profile_command(config, "gate", given, device="cpu", curve=STRIDES)
    return found


def test_a_camera_that_is_a_recording_is_profiled_on_it(tmp_path: Path, video: Path) -> None:
    found = measured(config_of(tmp_path, video), all_settings=True)
    assert (found.source, found.frames, found.fps, found.cost.settings) == ("street.mp4", 24, 10.0, SETTINGS)
    by_stride = whole(found)
    assert by_stride[1].quality == 1.0  # the same scripted model labels
    assert by_stride[3].quality == 1.0  # the scene changes every third frame
    assert by_stride[8].quality < 0.6
    assert by_stride[1].fps == pytest.approx(10.0)
    assert by_stride[2].device_s == pytest.approx(by_stride[1].device_s / 2, rel=0.5)
    assert all(o.decode_s > 0 and o.cpu_s >= o.decode_s for o in found.options)
    assert found.cost.every_measured
    assert found.serving == {chain.MODEL: "fake", chain.FORM: "trained"}


def test_a_search_finds_what_measuring_everything_finds(tmp_path: Path, video: Path) -> None:
    config = config_of(tmp_path, video)
    every, searched = measured(config, all_settings=True), measured(config)
    assert searched.cost.settings < every.cost.settings
    best = {o.name: o.quality for o in every.options}
    assert all(o.quality == best[o.name] for o in searched.options)
    assert max(o.quality for o in searched.options) == 1.0


def test_the_profile_is_kept_and_read_back(tmp_path: Path, video: Path) -> None:
    config = config_of(tmp_path, video)
    found, version = profile_command(config, "gate", ProfileOptions(clip_s=1.0), device="cpu", curve=STRIDES)
    assert version == 1
    with Store(config.box.data_dir / "driftbox.db") as store:
        assert stored_profile(store, "gate") == (1, found)
        assert stored_profile(store, "yard") is None
    assert keep_profile(config.box.data_dir, found) == 2


def test_a_clip_that_ends_in_the_middle_of_a_low_rate_still_gives_that_rate(tmp_path: Path, video: Path) -> None:
    found = measured(config_of(tmp_path, video), clip_s=1.0, all_settings=True)  # 10 frames: two of every eighth
    by_stride = whole(found)
    assert {stride: round(o.fps, 9) for stride, o in by_stride.items()} == {s: round(10.0 / s, 9) for s in chain.STRIDES}
    menu = menu_of(found)
    assert menu is not None
    assert {k.name for k in menu.knobs} <= {"every", *(f"1/{s}{at}" for s in chain.STRIDES for at in ("", "@72p", "@48p"))} | {
        "every@72p", "every@48p"
    }  # fmt: skip


def test_nothing_is_kept_that_was_not_to_be(tmp_path: Path, video: Path) -> None:
    config = config_of(tmp_path, video)
    _, version = profile_command(config, "gate", ProfileOptions(clip_s=1.0, keep=False), device="cpu", curve=STRIDES)
    assert version is None
    assert not (config.box.data_dir / "driftbox.db").exists()


def test_samples_stand_for_frames_and_rates_are_assumed(tmp_path: Path) -> None:
    config = config_of(tmp_path, "rtsp://192.0.2.1/x", fps=4.0)
    samples = SampleStore(config.box.data_dir / "samples")
    for seq in range(8):
        image = scripted_image(seq)[0]
        samples.add(Frame(stream="gate", seq=seq, captured_s=float(seq), captured_utc=float(seq), image=image), 0)
    found = measured(config)
    assert found.source == "8 samples"
    assert "usual curve" in found.assumed
    full = whole(found)[1]
    assert {(stride, round(o.quality / full.quality, 6)) for stride, o in whole(found).items()} == set(STRIDES)
    assert len({o.name for o in found.options}) == len(found.options)
    assert full.fps == 4.0


def test_too_few_samples_are_said(tmp_path: Path) -> None:
    config = config_of(tmp_path, "rtsp://192.0.2.1/x")
    with pytest.raises(UsageError, match="no samples"):
        measured(config)
    SampleStore(config.box.data_dir / "samples")
    with pytest.raises(JobError, match="too few") as raised:
        measured(config)
    assert "--video" in raised.value.remedy


def test_a_video_of_one_frame(tmp_path: Path) -> None:
    one = write_scripted_video(tmp_path / "one.mp4", frames=1)
    found = measured(config_of(tmp_path, one), all_settings=True)
    assert found.frames == 1
    assert {o.quality for o in whole(found).values()} == {1.0}  # every rate has analysed it


def test_a_stretch_behind_the_end_is_the_callers_mistake(tmp_path: Path, video: Path) -> None:
    with pytest.raises(UsageError, match=r"lasts 2\.4 s"):
        measured(config_of(tmp_path, video), start_s=60.0)


def test_what_is_no_video_is_said(tmp_path: Path) -> None:
    text = tmp_path / "x.mp4"
    text.write_text("not a video")
    with pytest.raises(StreamError):
        measured(config_of(tmp_path, text))


def test_a_clip_that_does_not_fit_into_memory_is_refused(tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "CLIP_MIB", 0.1)
    with pytest.raises(UsageError, match="memory"):
        measured(config_of(tmp_path, video))


def test_an_unknown_camera_is_said_with_those_there_are(tmp_path: Path, video: Path) -> None:
    with pytest.raises(UsageError, match="no camera 'door'") as raised:
        profile_command(config_of(tmp_path, video), "door", ProfileOptions(), device="cpu", curve=STRIDES)
    assert "gate" in raised.value.remedy


class Broken(FakeDetector):
    """Throws, or gives boxes that are no numbers."""

    def __init__(self, how: str) -> None:
        super().__init__(skill=1.0, arch=f"fake-{how}")
        self._how = how

    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        if self._how == "throws":
            raise RuntimeError("a made-up fault")
        nan = np.full((1, 4), np.nan, np.float32)
        return [Detections(xyxy=nan, score=np.ones(1, np.float32), class_id=np.zeros(1, np.int64)) for _ in images]


@pytest.mark.parametrize(("how", "said"), [("throws", "made-up fault"), ("nan", "NaN")])
def test_a_model_that_fails_is_left_out_and_the_other_measured(
    how: str, said: str, tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fakes.FAKE_ARCHS, f"fake-{how}", lambda: Broken(how))
    found = measured(config_of(tmp_path, video), models=(f"fake-{how}",), all_settings=True)
    assert {o.setting[chain.MODEL] for o in found.options} == {"fake"}
    assert len(found.left_out) == SETTINGS
    assert said in found.left_out[0].reason


def test_a_camera_whose_own_model_fails_gets_no_profile(tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fakes.FAKE_ARCHS, "fake-throws", lambda: Broken("throws"))
    config = config_of(tmp_path, video, edge="fake-throws")
    with pytest.raises(UsageError, match="no setting could be measured"):
        measured(config)
    assert not (config.box.data_dir / "driftbox.db").exists()


def test_a_form_that_this_machine_has_not_is_left_out(tmp_path: Path, video: Path) -> None:
    found = measured(config_of(tmp_path, video), forms=("tensorrt",), all_settings=True)
    assert {o.setting[chain.FORM] for o in found.options} == {"trained"}
    assert len(found.left_out) == SETTINGS


def test_the_model_that_serves_is_profiled_not_the_first_one(tmp_path: Path, video: Path) -> None:
    from edge.clock import SystemClock
    from edge.shelf import Shelf
    from edge.store.folder import DataFolder

    config = config_of(tmp_path, video)
    with DataFolder(config.box.data_dir) as folder, Store(folder.db_path) as store:
        shelf = Shelf(folder, store, SystemClock())
        shelf.ensure("gate", "fake", lambda name: FakeDetector(skill=0.77, arch="fake"))
    subject = subject_of(config, "gate", ProfileOptions(clip_s=1.0), device="cpu", curve=STRIDES)
    assert subject.load("fake").skill == pytest.approx(0.77)  # type: ignore[attr-defined]
    assert subject.load("fake-other").spec == DetectorSpec(arch="fake-other", input_px=128)


def test_the_command_prints_a_table_and_json(tmp_path: Path, video: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(config_text(tmp_path, video))
    with pytest.raises(SystemExit) as ended:
        main(["profile", "gate", str(path), "--clip-s", "1", "--exhaustive", "--json"])
    assert ended.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == 1
    assert set(answer["front"]) <= {o["name"] for o in answer["options"]}
    assert answer["cost"]["settings"] == answer["cost"]["of_settings"] == SETTINGS
    with pytest.raises(SystemExit) as ended:
        main(["profile", "gate", str(path), "--clip-s", "1", "--no-keep"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "not kept" in said
    assert "golden labels took" in said


def test_a_clip_says_what_moves_when_a_task_asks(tmp_path: Path) -> None:
    still = write_scripted_video(tmp_path / "still.mp4", frames=12, change_every=12)
    footage = clips.of_video(still, camera="gate", fps=10.0, regions=True)
    assert all(scene.regions is not None and not len(scene.regions) for scene in footage.clip.scenes)
    assert clips.of_video(still, camera="gate", fps=10.0).clip.scenes[0].regions is None


@pytest.mark.parametrize(
    ("fps", "frames", "rate"), [(10.0, 12, 10.0), (5.0, 6, 5.0), (50.0, 12, 10.0), (0.0, 12, 10.0), (3.0, 3, 3.0)]
)
def test_a_clip_has_the_frames_of_its_rate(fps: float, frames: int, rate: float, tmp_path: Path) -> None:
    footage = clips.of_video(write_scripted_video(tmp_path / "a.mp4", frames=12), camera="gate", fps=fps)
    assert (len(footage.clip.scenes), footage.fps) == (frames, rate)
    assert footage.clip.seconds == pytest.approx(frames / rate)


# --- declared queries -------------------------------------------------------------------------------------------------

QUERY = """queries:
      - {name: crowd, template: count, zones: {left: [[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [0.0, 1.0]]}, knobs: {decode.fps: [0, 5, 2]}}
      - {name: still, template: count, knobs: {decode.fps: [0], decode.height_px: [0], detect.height_px: [0],
         detect.model: [""]}}
"""


def with_queries(folder: Path, video: Path, queries: str = QUERY) -> BoxConfig:
    text = config_text(folder, video).replace("cameras: [{", "cameras:\n  - {").replace("}]\n", "}\n")
    camera, _, rest = text.partition("  - {")
    fields_of = rest.rstrip().removesuffix("}").split(", ")
    return parse_config(camera + "  - " + "\n    ".join(fields_of) + "\n    " + queries)


def test_a_declared_query_is_profiled_against_its_golden_setting(tmp_path: Path, video: Path) -> None:
    config = with_queries(tmp_path, video)
    found = measured(config, query="crowd", all_settings=True)
    assert found.camera == "gate/crowd"
    golden = next(o for o in found.options if o.setting["decode.fps"] == 0 and o.quality == 1.0)
    assert golden.fps == pytest.approx(10.0)
    whole = {o.setting["decode.fps"]: o for o in found.options if o.name.replace(f"fps={o.setting['decode.fps']}", "") ==
             golden.name.replace("fps=0", "")}  # fmt: skip
    assert whole[0].quality == 1.0 > whole[2].quality
    assert whole[0].device_s > whole[5].device_s > whole[2].device_s > 0
    searched = measured(config, query="crowd")
    assert searched.cost.settings <= found.cost.settings
    with Store(config.box.data_dir / "driftbox.db") as store:
        kept = stored_profile(store, "gate/crowd")
        assert kept is not None
        assert kept[1] == searched
        assert store.profile("gate") is None


def test_a_box_profiles_a_query_on_its_samples_and_may_plan_with_what_it_finds(tmp_path: Path) -> None:
    config = with_queries(tmp_path, "rendered:yard", QUERY + "scheduler: {reprofile: auto}\n")  # type: ignore[arg-type]
    samples = SampleStore(config.box.data_dir / "samples")
    for seq in range(16):
        image = scripted_image(seq // 3)[0]
        samples.add(Frame(stream="gate", seq=seq, captured_s=float(seq), captured_utc=float(seq), image=image), 0)
    again, looks, told = reprofiling_of(config), list[None](), list[str]()
    assert again is not None
    again("gate", "crowd", 60.0, lambda: looks.append(None))
    assert looks
    [entry] = config.cameras
    with Store(config.box.data_dir / "driftbox.db") as store:
        profiles = Profiles(store, lambda camera: watching_of(entry, config), lambda camera, text: told.append(text))
        asked = profiles.asked("gate", {spec.name: spec for spec in specs_of(entry.queries, task="detection")[0]})
    assert told == []
    assert asked is not None
    assert asked.menus["crowd"].options[0].setting["decode.fps"] == 0
    assert asked.by_itself == {"crowd"}


def test_a_query_whose_job_is_to_end_is_not_begun(tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its golden setting alone may take longer than a window has."""

    def ends(what: str, done: int, of: int) -> None:
        raise JobCancelled("the window ends")

    monkeypatch.setattr(Graph, "run", lambda self, setting: pytest.fail("it ran"))
    with pytest.raises(JobCancelled):
        profile_command(
            with_queries(tmp_path, video), "gate", ProfileOptions(query="crowd"), device="cpu", curve=STRIDES, told=ends
        )


class Large(FakeDetector):
    """Holds a mebibyte more."""

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), "more": torch.zeros(2**18)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state({"skill": state["skill"]})


def test_a_query_needs_the_memory_of_the_models_that_its_setting_asks(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fakes.FAKE_ARCHS, "fake-other", lambda: Large(skill=1.0, arch="fake-other"))
    query = "{name: crowd, template: count, knobs: {decode.fps: [0, 2], detect.model: ['', fake-other]}}"
    config = with_queries(tmp_path, video, f"queries: [{query}]\nscheduler: {{serving: orloj}}\n")
    found = measured(config, query="crowd", all_settings=True)
    own_mib = model_mib(FakeDetector(skill=1.0))
    assert own_mib > 0
    held_mib = {(o.setting["detect.model"], o.memory_mib) for o in found.options}
    assert held_mib == {("", own_mib), ("fake-other", own_mib + 1.0)}
    assert {o.memory_mib for o in measured(config, all_settings=True).options} == {own_mib}


def test_a_query_that_asks_two_models_needs_both(tmp_path: Path, video: Path) -> None:
    cascade = (
        "queries: [{name: kinds, nodes: [{transform: decode}, {transform: detect}, {transform: classify, knobs: "
        "{model: [fake-other, '']}}, {transform: count}]}]\nscheduler: {serving: orloj}\n"
    )
    spec = spec_of_query(with_queries(tmp_path, video, cascade), "gate", "kinds")
    assert asked_models(spec, {"detect.model": "", "classify.model": "fake-other"}) == {"", "fake-other"}
    assert asked_models(spec, {"detect.model": "fake-other", "classify.model": "fake-other"}) == {"fake-other"}
    assert asked_models(spec, {}) == {""}


def test_a_query_that_is_not_there_or_has_no_knobs_is_said(tmp_path: Path, video: Path) -> None:
    config = with_queries(tmp_path, video)
    with pytest.raises(UsageError, match="no query 'queue'") as raised:
        measured(config, query="queue")
    assert "crowd" in raised.value.remedy
    with pytest.raises(UsageError, match="no knob"):
        measured(config, query="still")


def test_a_query_whose_golden_setting_throws_gets_no_profile(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge.queries.seen import Detect

    def throws(self: object, scene: object, others: object) -> None:
        raise RuntimeError("a made-up fault")

    monkeypatch.setattr(Detect, "process", throws)
    with pytest.raises(JobError, match="golden setting"):
        measured(with_queries(tmp_path, video), query="crowd")
