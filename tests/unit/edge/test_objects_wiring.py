"""What a camera's configuration makes of its objects and clips; masks before everything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from configs.schema import BoxConfig, CameraEntry
from edge.clock import SystemClock
from edge.live_control import LiveControl, Need, need_of
from edge.media.folder import MediaFolder
from edge.media.parts import Media, media_of, rules_of
from edge.store.store import Store
from edge.wiring.cameras import camera_of, clips_of, objects_of

MASK = [[0, 0], [0.5, 0], [0.5, 1]]
URL = "rtsp://192.0.2.1/sub"


def entry(**fields: Any) -> CameraEntry:
    return CameraEntry.model_validate({"id": "gate", "url": URL, **fields})


@pytest.fixture
def media(tmp_path: Path) -> Media:
    return media_of(BoxConfig().storage.media, MediaFolder(tmp_path / "media"), Store(tmp_path / "d.db"), [])


def test_clips_and_snapshots_are_on_unless_said_otherwise(media: Media) -> None:
    made = objects_of(entry(), media, SystemClock(), camera_of(entry(), {}))
    assert made is not None
    assert made._pictures is not None
    assert made._recorder is media.recorder
    without = entry(objects={"snapshots": False}, recording={"clips": False})
    bare = objects_of(without, media, SystemClock(), camera_of(without, {}))
    assert bare is not None
    assert (bare._pictures, bare._recorder, bare._beside) == (None, None, ())
    off = entry(objects={"enabled": False})
    assert objects_of(off, media, SystemClock(), camera_of(off, {})) is None


def test_a_camera_with_masks_has_masked_clips_or_none(media: Media) -> None:
    masked = entry(masks=[MASK])
    clips = clips_of(masked, media, camera_of(masked, {}))
    assert clips is not None
    assert [mask.points for mask in clips._rules.masks] == [((0, 0), (0.5, 0), (0.5, 1))]
    refused = entry(masks=[MASK], recording={"with_masks": "none"})
    assert clips_of(refused, media, camera_of(refused, {})) is None
    unmasked = entry(recording={"with_masks": "none"})
    assert clips_of(unmasked, media, camera_of(unmasked, {})) is not None


def test_a_stream_of_its_own_for_clips_is_not_opened_before_they_are_wanted(media: Media) -> None:
    both = entry(record_url="rtsp://192.0.2.1/main")
    clips = clips_of(both, media, camera_of(both, {}))
    assert clips is not None
    assert clips._main is not None
    off = entry(record_url="rtsp://192.0.2.1/main", recording={"clips": False})
    assert clips_of(off, media, camera_of(off, {})) is None


def test_who_reads_rtsp_is_taken_from_the_configuration_and_its_change_opens_the_stream_anew(media: Media) -> None:
    for chosen, ours in (("own", True), ("ffmpeg", False)):
        both = entry(record_url="rtsp://192.0.2.1/main", rtsp_by=chosen)
        camera = camera_of(both, {})
        clips = clips_of(both, media, camera)
        assert clips is not None
        assert (camera._ours, clips._main._ours) == (ours, ours)  # type: ignore[attr-defined,union-attr]
    assert need_of(entry(), entry(rtsp_by="ffmpeg")) is Need.STREAM
    assert not camera_of(entry(transport="udp"), {})._ours  # type: ignore[attr-defined]
    assert not camera_of(entry(url="rtsps://192.0.2.1/sub"), {})._ours  # type: ignore[attr-defined]
    assert not camera_of(entry(url="http://192.0.2.1/sub"), {})._ours  # type: ignore[attr-defined]


def test_a_file_that_may_lag_has_no_clips(media: Media, tmp_path: Path) -> None:
    lagging = entry(url=str(tmp_path / "a.mp4"), may_lag=True)
    assert clips_of(lagging, media, camera_of(lagging, {})) is None


def test_fewer_frames_leave_longer_between_two_sights(media: Media) -> None:
    slow = entry(fps=0.5)
    made = objects_of(slow, media, SystemClock(), camera_of(slow, {}))
    assert made is not None
    assert made._book.rules.lost_s == 6.0
    assert made._book.rules.silent_s >= 3 * made._book.rules.lost_s


@pytest.mark.parametrize(
    ("fields", "same"),
    [({"name": "Front"}, True), ({"learning": False}, True), ({"masks": [MASK]}, False), ({"zones": {"a": MASK}}, False),
     ({"classes": ["car"]}, False), ({"fps": 2}, False), ({"objects": {"lost_s": 9}}, False), ({"recording": {"clips": False}}, False),
     ({"record_url": "rtsp://192.0.2.1/main"}, False)],
)  # fmt: skip
def test_whoever_follows_objects_is_made_anew_when_something_of_it_changes(fields: dict[str, Any], same: bool) -> None:
    camera, before, made = object(), object(), object()
    running = SimpleNamespace(entry=entry(), camera=camera, objects=before)
    control = SimpleNamespace(_maker=SimpleNamespace(objects=lambda entry, camera: made))
    follows = LiveControl._followed(control, running, entry(**fields), camera)  # type: ignore[arg-type]
    assert follows is (before if same else made)
    assert LiveControl._followed(control, running, entry(), object()) is made  # type: ignore[arg-type]  # another stream


def test_retention_is_what_the_configuration_says() -> None:
    config = BoxConfig.model_validate(
        {"storage": {"media": {"max_gib": 2.0, "min_free_mib": 100, "class_days": {"person": 40.0}}}}
    )
    rules = rules_of(config.storage.media)
    assert (rules.max_bytes, rules.min_free_bytes, rules.class_days) == (2 * 2**30, 100 * 2**20, {"person": 40.0})


@pytest.mark.parametrize(
    "wrong",
    [{"objects": {"lines": {"a": [[0, 0]]}}}, {"objects": {"lines": {"a": [[0, 0], [0, 0]]}}}, {"objects": {"start_score": 1.5}},
     {"objects": {"start_frames": 0}}, {"recording": {"pre_s": -1}}, {"recording": {"with_masks": "store"}}, {"recording": {"max_s": 1}},
     {"objects": {"lines": {"A b": [[0, 0], [1, 1]]}}}, {"recording": {"clip": True}}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        entry(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"class_days": {"dragon": 3.0}}, {"class_days": {"car": 0.0}}, {"max_gib": 0}, {"event_days": -1}]
)
def test_retention_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BoxConfig.model_validate({"storage": {"media": wrong}})
