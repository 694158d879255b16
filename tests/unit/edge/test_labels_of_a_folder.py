"""Labels of a data folder as people see and correct them, by function and by command."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import DriftboxError, StorageError, UsageError
from configs.units import CLASSES
from edge.cli import main
from edge.labels import CLASS_NAMES, MAX_BOXES, BoxIn, LabelQuery, LabelsIn, LabelStore, SampleName
from edge.labels_admin import FolderLabels, checked_boxes
from scheduler.types import Frame
from streams.samples import SampleRef, SampleStore
from tests.support.labelled_folder import COST_GPU_S, PER_WINDOW, labelled_folder

FIRST = SampleName(camera="gate", window=0, seq=0)
BARE = SampleName(camera="gate", window=0, seq=4)
CAR = BoxIn(class_name="car", xyxy=(10, 10, 40, 30))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    labelled_folder(tmp_path)
    return tmp_path


@pytest.fixture
def labels(folder: Path) -> FolderLabels:
    return FolderLabels(folder)


def ref(name: SampleName) -> SampleRef:
    return SampleRef(stream=name.camera, window=name.window, seq=name.seq)


# --- names --------------------------------------------------------------------------------------------------------------


def test_a_sample_is_named_with_or_without_zeros() -> None:
    assert SampleName.parse("gate-1/3/12") == SampleName.parse("gate-1/000003/000000012")
    assert str(SampleName.parse("gate-1/3/12")) == "gate-1/000003/000000012"


@pytest.mark.parametrize(
    "text", ["", "gate", "gate/1", "gate/1/2/3", "../../etc/1/2", "gate/-1/2", "gate/1/x", "Gate/1/2", "gate/1/2\n", "/1/2"]
)
def test_other_names_are_refused_before_any_file_is_touched(text: str) -> None:
    with pytest.raises(UsageError):
        SampleName.parse(text)


# --- lists --------------------------------------------------------------------------------------------------------------


def test_samples_are_listed_newest_window_first_and_page_by_page(labels: FolderLabels) -> None:
    everything = labels.list(LabelQuery(limit=500))
    assert everything.next is None
    assert len(everything.labels) == 2 * 2 * (PER_WINDOW - 1)
    assert [r.window for r in everything.labels] == [1] * 8 + [0] * 8
    rows, after = [], None
    while True:
        page = labels.list(LabelQuery(limit=3, after=after))
        assert len(page.labels) <= 3
        rows += page.labels
        after = page.next
        if after is None:
            break
    assert rows == list(everything.labels)


def test_lists_are_filtered(labels: FolderLabels) -> None:
    labels.put(FIRST, LabelsIn(boxes=(CAR,)))

    def names(**query: Any) -> list[str]:
        return [row.sample for row in labels.list(LabelQuery(limit=500, **query)).labels]

    assert names(by="person") == [str(FIRST)]
    assert len(names(by="golden")) == 15
    assert names(unsure=True, camera="gate") == ["gate/000001/000000001", "gate/000000/000000001"]
    assert len(names(unsure=False, camera="gate")) == 6
    assert len(names(camera="yard", window=1)) == 4
    assert len(names(camera="yard", window=1, unlabelled=True)) == 5
    assert names(camera="nobody") == []
    assert names(window=77) == []


def test_a_list_looks_at_so_many_files_and_goes_on(labels: FolderLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.labels_admin.SCAN_MAX", 6)
    page = labels.list(LabelQuery(by="person"))
    assert page.labels == ()
    assert page.next is not None, "nothing found yet, but not everything has been looked at"


def test_a_damaged_label_file_is_shown_counted_and_nobodys_problem(folder: Path, labels: FolderLabels) -> None:
    (folder / "samples/gate/000000/000000000.json").write_bytes(b'{"schema": 1, "xyxy"')
    page = labels.list(LabelQuery(camera="gate", window=0))
    assert page.damaged == 1
    assert [row.state for row in page.labels] == ["damaged", "golden", "golden", "golden"]
    assert labels.get(FIRST).state == "damaged"
    stats = labels.stats("gate")
    assert (stats.damaged, stats.labelled) == (1, 7)
    assert labels.put(FIRST, LabelsIn(boxes=(CAR,))).state == "person", "a person may label it anew"


# --- corrections --------------------------------------------------------------------------------------------------------


def test_a_correction_is_in_force_marked_and_can_be_taken_back(labels: FolderLabels) -> None:
    before = labels.get(FIRST)
    after = labels.put(FIRST, LabelsIn(boxes=(CAR,)))
    assert (after.state, after.counts, after.split) == ("person", {"car": 1}, "train")
    assert after.golden_boxes == before.boxes
    assert labels.get(FIRST) == after
    again = labels.undo(FIRST)
    assert again == before


def test_an_empty_picture_and_an_ignored_one_are_two_things(labels: FolderLabels) -> None:
    assert labels.put(FIRST, LabelsIn()).state == "person"
    assert labels.put(FIRST, LabelsIn(ignored=True)).state == "ignored"
    with pytest.raises(UsageError, match="ignored"):
        labels.put(FIRST, LabelsIn(boxes=(CAR,), ignored=True))


def test_who_looked_at_older_labels_does_not_overwrite_newer_ones(labels: FolderLabels) -> None:
    seen = labels.get(FIRST).etag
    assert labels.put(FIRST, LabelsIn(boxes=(CAR,)), etag=seen).state == "person"
    for change in (lambda: labels.put(FIRST, LabelsIn(), etag=seen), lambda: labels.undo(FIRST, etag=seen)):
        with pytest.raises(UsageError) as caught:
            change()
        assert caught.value.code == "changed"
    assert labels.get(FIRST).counts == {"car": 1}


def test_a_bare_sample_gets_the_split_the_box_would_have_given_it(folder: Path) -> None:
    store = SampleStore(folder / "samples")
    for seq in range(10):
        image = np.full((96, 128, 3), 90, np.uint8)
        store.add(Frame(stream="new", seq=seq, captured_s=0.0, captured_utc=0.0, image=image), 3)
    from edge.jobs import split_of

    labels = FolderLabels(folder, holdout_frac=0.3)
    for seq in range(10):
        view = labels.put(SampleName(camera="new", window=3, seq=seq), LabelsIn())
        assert view.split == split_of(seq, 0.3)


def test_a_sample_that_was_pruned_meanwhile_is_named(folder: Path, labels: FolderLabels) -> None:
    SampleStore(folder / "samples").remove(ref(FIRST))
    for change in (lambda: labels.put(FIRST, LabelsIn()), lambda: labels.undo(FIRST), lambda: labels.get(FIRST)):
        with pytest.raises(UsageError) as caught:
            change()
        assert caught.value.code == "not_found"
        assert str(FIRST) in caught.value.message


def test_a_sample_that_goes_between_look_and_answer_is_named(labels: FolderLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    image = labels.image(ref(FIRST))
    monkeypatch.setattr(labels, "image", lambda ref: image)
    labels.store.remove(ref(FIRST))
    with pytest.raises(UsageError) as caught:
        labels.put(FIRST, LabelsIn())
    assert caught.value.code == "not_found"
    assert not (labels.store._root / "gate/000000/000000000.json").exists()


SIZE = (128, 96)


@pytest.mark.parametrize(
    ("box", "says"),
    [
        (("van", (1, 1, 20, 20)), "unknown class"),
        (("nothing", (1, 1, 20, 20)), "leave the box out"),
        (("car", (20, 1, 1, 20)), "left < right"),
        (("car", (1, 1, 2, 20)), "2 px at least"),
        (("car", (1, 1, 200, 20)), "outside the picture of 128 x 96"),
        (("car", (-30, 1, 20, 20)), "30 px outside"),
    ],
)
def test_boxes_that_cannot_be_are_refused_by_their_number(labels: FolderLabels, box: tuple[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        labels.put(FIRST, LabelsIn(boxes=(CAR, BoxIn(class_name=box[0], xyxy=box[1]))))
    assert "box 2" in caught.value.message
    assert caught.value.code == "labels"
    assert labels.get(FIRST).state == "golden", "nothing was written"


def test_a_hand_may_slip_over_the_border_by_a_pixel(labels: FolderLabels) -> None:
    view = labels.put(FIRST, LabelsIn(boxes=(BoxIn(class_name="car", xyxy=(-1.5, -1, 129, 97)),)))
    assert view.boxes[0].xyxy == (0, 0, 128, 96)


def test_too_many_boxes_are_refused(labels: FolderLabels) -> None:
    with pytest.raises(UsageError, match="at most"):
        checked_boxes(FIRST, [CAR] * (MAX_BOXES + 1), width_px=128, height_px=96, nothing=False)
    with pytest.raises(ValueError, match="500"):
        LabelsIn(boxes=tuple([CAR] * (MAX_BOXES + 1)))


numbers = st.one_of(st.floats(-300, 300), st.integers(-300, 300))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from([*CLASS_NAMES, "van", ""]), st.tuples(numbers, numbers, numbers, numbers)), max_size=4)
)
def test_whatever_is_accepted_is_a_box_inside_the_picture(rows: list[Any]) -> None:
    boxes = [BoxIn(class_name=name, xyxy=xyxy) for name, xyxy in rows]
    try:
        found = checked_boxes("x", boxes, width_px=SIZE[0], height_px=SIZE[1], nothing=False)
    except UsageError:
        return
    assert len(found) == len(rows)
    assert (found.xyxy >= 0).all()
    assert (found.xyxy <= np.array([*SIZE, *SIZE])).all()
    assert (found.xyxy[:, 2:] > found.xyxy[:, :2]).all()
    assert set(found.class_id.tolist()) <= set(range(len(CLASSES)))


def test_regions_may_hold_nothing_where_regions_are_classified(folder: Path) -> None:
    store = SampleStore(folder / "samples")
    regions = np.array([[10, 10, 50, 50]], np.float32)
    image = np.full((96, 128, 3), 90, np.uint8)
    store.add(Frame(stream="door", seq=1, captured_s=0.0, captured_utc=0.0, image=image, regions=regions), 0)
    nothing = BoxIn(class_name="nothing", xyxy=(10, 10, 50, 50))
    view = FolderLabels(folder).put(SampleName(camera="door", window=0, seq=1), LabelsIn(boxes=(nothing,)))
    assert view.counts == {"nothing": 1}


# --- counts -------------------------------------------------------------------------------------------------------------


def test_stats_count_costs_corrections_and_the_golden_models_errors(labels: FolderLabels) -> None:
    assert labels.stats().corrected_frac == 0.0
    view = labels.get(FIRST)
    added = BoxIn(class_name="animal", xyxy=(113, 81, 128, 96))
    labels.put(FIRST, LabelsIn(boxes=(*view.boxes[1:], added)))
    labels.put(SampleName(camera="gate", window=0, seq=2), LabelsIn(ignored=True))
    stats = labels.stats()
    assert (stats.samples, stats.labelled, stats.by_person, stats.ignored) == (20, 16, 2, 1)
    assert stats.corrected_frac == pytest.approx(2 / 16)
    assert (stats.golden_samples, stats.golden_gpu_s, stats.golden_gpu_s_per_sample) == (16, 16 * COST_GPU_S, COST_GPU_S)
    errors = stats.golden_errors
    assert (errors.samples, errors.right, errors.wrong, errors.missed) == (1, 5, 1, 1)
    assert (errors.wrong_frac, errors.missed_frac) == (pytest.approx(1 / 6, abs=1e-3), pytest.approx(1 / 6, abs=1e-3))
    assert stats.with_unsure == 4
    assert sum(stats.counts.values()) == 15 * 6, "an ignored sample's objects do not count"


def test_statistics_are_by_camera_and_class_and_add_up_to_the_stats(labels: FolderLabels) -> None:
    view = labels.get(FIRST)
    other = "bus" if view.boxes[0].class_name != "bus" else "car"
    turned = BoxIn(class_name=other, xyxy=view.boxes[0].xyxy)
    labels.put(FIRST, LabelsIn(boxes=(turned, *(BoxIn(class_name=b.class_name, xyxy=b.xyxy) for b in view.boxes[1:]))))
    labels.put(SampleName(camera="gate", window=0, seq=2), LabelsIn(ignored=True))
    found = labels.statistics(LabelQuery())
    assert (found.pictures, found.complete) == (20, True)
    one = {camera.camera: camera for camera in found.cameras}[FIRST.camera]
    errors = one.golden_errors
    assert (errors.samples, errors.right, errors.wrong, errors.missed) == (1, 5, 1, 1), "another class is wrong and missed"
    by_class = {counts.class_name: counts for counts in one.classes}
    lost, came = by_class[view.boxes[0].class_name].golden_errors, by_class[other].golden_errors
    assert lost.wrong == 1
    assert came.missed == 1
    for name in ("right", "wrong", "missed"):
        assert sum(getattr(counts.golden_errors, name) for counts in one.classes) == getattr(errors, name)
    stats = labels.stats()
    cameras = found.cameras
    assert sum(c.golden for camera in cameras for c in camera.classes) == sum(stats.counts.values()) - 6
    assert sum(c.corrected for camera in cameras for c in camera.classes) == 6
    assert sum(c.ignored for camera in cameras for c in camera.classes) == 6, "what the golden model had said of it"
    assert sum(c.unsure for camera in cameras for c in camera.classes) == stats.with_unsure == 4
    assert [sum(getattr(camera, name) for camera in cameras) for name in ("golden", "corrected", "ignored", "unlabelled")] == [
        14,
        1,
        1,
        4,
    ]
    assert sum(camera.pictures for camera in cameras) == stats.samples


def test_statistics_are_of_the_newest_pictures_and_of_cameras_asked_for(
    labels: FolderLabels, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [camera.camera for camera in labels.statistics(LabelQuery()).cameras]
    assert len(every) == 2
    assert [one.camera for one in labels.statistics(LabelQuery(camera=every[0])).cameras] == every[:1]
    assert [one.camera for one in labels.statistics(LabelQuery(cameras=frozenset(every[1:]))).cameras] == every[1:]
    assert labels.statistics(LabelQuery(camera=every[0], cameras=frozenset(every[1:]))).pictures == 0
    monkeypatch.setattr("edge.labels_admin.SCAN_MAX", 12)
    few = labels.statistics(LabelQuery())
    assert (few.pictures, few.complete) == (12, False)
    newest = labels.statistics(LabelQuery(window=1))
    assert newest.pictures == 10
    assert all(one.pictures >= 5 for one in few.cameras), "the newest window of both is in it"


def test_a_folder_in_which_no_box_ran_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no box has run"):
        FolderLabels(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_answers_as_the_seam_asks(labels: FolderLabels) -> None:
    store: LabelStore = labels
    assert store.get(FIRST).width_px == 128


# --- commands -----------------------------------------------------------------------------------------------------------


def run(folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["labels", *words, "--data-dir", str(folder)])
    return int(end.value.code or 0)


def answer(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = run(folder, *words, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_commands_list_show_correct_and_undo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = answer(folder, capsys, "list", "--camera", "gate", "--limit", "2")
    assert (code, len(listed["labels"]), listed["more"]) == (0, 2, True)
    assert listed["labels"][0]["sample"] == "gate/000001/000000000"
    _, shown = answer(folder, capsys, "show", "gate/0/0")
    assert (shown["state"], len(shown["boxes"])) == ("golden", 6)
    assert set(shown["boxes"][0]) == {"class", "xyxy", "score"}
    code, after = answer(folder, capsys, "remove-box", "gate/0/0", "2")
    assert (code, after["state"]) == (0, "person")
    assert [b["xyxy"] for b in after["boxes"]] == [b["xyxy"] for n, b in enumerate(shown["boxes"]) if n != 1]
    assert answer(folder, capsys, "list", "--by", "person")[1]["labels"][0]["sample"] == "gate/000000/000000000"
    assert answer(folder, capsys, "ignore", "gate/0/0")[1]["state"] == "ignored"
    assert answer(folder, capsys, "undo", "gate/0/0")[1]["boxes"] == shown["boxes"]


def test_set_reads_a_file_or_standard_input(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "boxes.json"
    file.write_text(json.dumps({"boxes": [{"class": "bus", "xyxy": [1, 2, 30, 40]}]}))
    assert answer(folder, capsys, "set", "gate/0/0", "--boxes", str(file))[1]["counts"] == {"bus": 1}
    stdin = io.TextIOWrapper(io.BytesIO(b'[{"class": "car", "xyxy": [1, 2, 30, 40]}]'))
    monkeypatch.setattr("sys.stdin", stdin)
    assert answer(folder, capsys, "set", "gate/0/0", "--boxes", "-")[1]["counts"] == {"car": 1}
    file.write_text(json.dumps(answer(folder, capsys, "show", "gate/0/1")[1]["boxes"]))
    assert answer(folder, capsys, "set", "gate/0/1", "--boxes", str(file))[1]["state"] == "person", (
        "what show prints, set reads"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"), ('[{"class": "car"}]', "xyxy"), ('[{"class": "car", "xyxy": [1, 2, 3]}]', "xyxy"),
        ('[{"class": "car", "xyxy": [1, 2, NaN, 4]}]', "finite"), ('[{"class": "car", "xyxy": [1, 2, 30, 40], "extra": 1}]', "extra"),
        ('"car"', "boxes.json"), ("[" * 100_000, "not JSON"), ("[" + "1," * 200_000 + "1]", "larger"),
        (json.dumps([{"class": "car", "xyxy": [1, 2, 30, 40]}] * 501), "500"),
    ],
)  # fmt: skip
def test_a_file_of_boxes_that_is_none_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    file = tmp_path / "boxes.json"
    file.write_text(text)
    assert run(folder, "set", "gate/0/0", "--boxes", str(file)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_show_draws_a_picture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "seen.jpg"
    assert run(folder, "show", "gate/0/1", "--picture", str(picture)) == 0
    out = capsys.readouterr().out
    assert "?1" in out, "unsure boxes are listed with a question mark"
    drawn = cv2.imread(str(picture))
    plain = FolderLabels(folder).image(ref(SampleName(camera="gate", window=0, seq=1)))
    assert drawn is not None
    assert drawn.shape == plain.shape
    assert np.abs(drawn[:, :, ::-1].astype(int) - plain).max() > 100, "boxes are drawn in"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("show", "gate/9/9"), "there is no sample 'gate/000009/000000009'"),
        (("show", "gate"), "names no sample"),
        (("remove-box", "gate/0/0", "7"), "has no box 7"),
        (("list", "--by", "robot"), "golden, person"),
        (("review",), "terminal"),
        (("export", "out", "--format", "voc"), "yolo, coco"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_do(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(folder, *words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "what to do" in error


def test_stats_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "stats") == 0
    out = capsys.readouterr().out
    assert "20, 16 labelled" in out
    assert "8.0 GPU-seconds for 16 samples, 0.500 each" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_said(folder: Path) -> None:
    (folder / "samples/gate/000000").chmod(0o500)
    with pytest.raises(DriftboxError):
        FolderLabels(folder).put(FIRST, LabelsIn())
