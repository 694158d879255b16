"""Labels to other tools and back: marked, all or nothing, refused with counts."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import StorageError, UsageError
from edge.cli import main
from edge.labels import CLASS_NAMES, BoxIn, LabelQuery, LabelsIn, SampleName
from edge.labels_admin import FolderLabels
from edge.labels_exchange import Format, export_labels, flat_name, import_labels, sample_of
from streams.samples import SampleRef, SampleStore
from tests.support.labelled_folder import labelled_folder

ALL = LabelQuery()
FIRST = SampleName(camera="gate", window=0, seq=0)
FLAT = "gate__000000__000000000"
BOTH = pytest.mark.parametrize("form", ["yolo", "coco"])


@pytest.fixture
def labels(tmp_path: Path) -> FolderLabels:
    labelled_folder(tmp_path / "data")
    return FolderLabels(tmp_path / "data")


def everything(labels: FolderLabels) -> dict[str, Any]:
    rows = labels.list(LabelQuery(limit=500, unlabelled=True)).labels
    return {row.sample: labels.get(SampleName.parse(row.sample)) for row in rows}


# --- there and back -----------------------------------------------------------------------------------------------------


@BOTH
def test_what_goes_out_comes_back_as_a_persons_confirmation(labels: FolderLabels, tmp_path: Path, form: Format) -> None:
    before = everything(labels)
    out = export_labels(labels, tmp_path / "out", form, ALL)
    assert (out.samples, out.boxes, out.by_person, out.damaged) == (16, 16 * 6, 0, 0)
    done = import_labels(labels, tmp_path / "out", form)
    assert (done.samples, done.confirmed, done.skipped) == (16, 16, 0)
    for name, view in everything(labels).items():
        was = before[name]
        assert view.state == ("person" if was.state == "golden" else was.state)
        assert view.split == was.split
        assert [b.class_name for b in view.boxes] == [b.class_name for b in was.boxes]
        for new, old in zip(view.boxes, was.boxes, strict=True):
            assert np.abs(np.subtract(new.xyxy, old.xyxy)).max() < 0.01
    assert labels.stats().golden_errors.wrong == 0


@BOTH
def test_changed_only_leaves_alone_what_nobody_touched(labels: FolderLabels, tmp_path: Path, form: Format) -> None:
    export_labels(labels, tmp_path / "out", form, ALL)
    remove_first_box(tmp_path / "out", form)
    done = import_labels(labels, tmp_path / "out", form, changed_only=True)
    assert (done.samples, done.skipped) == (1, 15)
    people = labels.list(LabelQuery(by="person")).labels
    assert [row.sample for row in people] == [str(FIRST)]
    assert len(labels.get(FIRST).boxes) == 5


def remove_first_box(out: Path, form: Format) -> None:
    if form == "yolo":
        file = out / "labels" / f"{FLAT}.txt"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
        return
    body = json.loads((out / "annotations.json").read_text())
    number = next(image["id"] for image in body["images"] if image["file_name"] == f"{FLAT}.jpg")
    body["annotations"].remove(next(a for a in body["annotations"] if a["image_id"] == number))
    (out / "annotations.json").write_text(json.dumps(body))


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True), st.integers(0, 10**9 - 1), st.integers(0, 10**15 - 1))
def test_a_flat_name_names_its_sample_whatever_the_camera(camera: str, window: int, seq: int) -> None:
    assert sample_of(flat_name(SampleRef(stream=camera, window=window, seq=seq))) == SampleName(
        camera=camera, window=window, seq=seq
    )


# --- what an export holds -----------------------------------------------------------------------------------------------


def test_a_yolo_folder_is_what_trainers_expect_and_says_who_labelled(labels: FolderLabels, tmp_path: Path) -> None:
    labels.put(FIRST, LabelsIn(boxes=(BoxIn(class_name="car", xyxy=(10, 10, 74, 58)),)))
    labels.put(SampleName(camera="gate", window=0, seq=1), LabelsIn(ignored=True))
    out = tmp_path / "out"
    assert export_labels(labels, out, "yolo", ALL).samples == 15, "ignored samples stay here"
    data = yaml.safe_load((out / "data.yaml").read_text())
    assert [data["names"][k] for k in range(len(CLASS_NAMES))] == list(CLASS_NAMES)
    train, val = ((out / data[key]).read_text().split() for key in ("train", "val"))
    assert (len(train), len(val)) == (11, 4)
    assert not set(train) & set(val)
    assert all((out / name).is_file() for name in [*train, *val])
    assert (out / "labels" / f"{FLAT}.txt").read_text() == "2 0.328125 0.354167 0.500000 0.500000\n"
    with (out / "marks.csv").open() as file:
        marks = {row["sample"]: row for row in csv.DictReader(file)}
    assert (marks[str(FIRST)]["by"], marks[str(FIRST)]["state"], marks[str(FIRST)]["labels"]) == ("person", "person", "1")
    assert marks["yard/000000/000000001"]["unsure"] == "1"
    original = (tmp_path / "data/samples/gate/000000/000000000.jpg").read_bytes()
    assert (out / "images" / f"{FLAT}.jpg").read_bytes() == original, "not coded a second time"


def test_a_coco_file_says_who_labelled_and_what_is_unsure(labels: FolderLabels, tmp_path: Path) -> None:
    labels.put(FIRST, LabelsIn(boxes=(BoxIn(class_name="car", xyxy=(10, 10, 74, 58)),)))
    export_labels(labels, tmp_path / "out", "coco", LabelQuery(camera="gate", window=0))
    body = json.loads((tmp_path / "out/annotations.json").read_text())
    images = {image["driftbox"]["sample"]: image for image in body["images"]}
    assert len(images) == 4
    assert images[str(FIRST)]["driftbox"]["by"] == "person"
    assert (images[str(FIRST)]["width"], images[str(FIRST)]["height"]) == (128, 96)
    assert len(images["gate/000000/000000001"]["driftbox"]["unsure"]) == 1
    mine = [a for a in body["annotations"] if a["image_id"] == images[str(FIRST)]["id"]]
    assert [(a["category_id"], a["bbox"], a["area"]) for a in mine] == [(3, [10, 10, 64, 48], 64 * 48)]
    assert len({a["id"] for a in body["annotations"]}) == len(body["annotations"])


def test_an_export_is_filtered_and_skips_what_is_damaged(labels: FolderLabels, tmp_path: Path) -> None:
    (tmp_path / "data/samples/gate/000000/000000000.jpg").write_bytes(b"\xff\xd8 no picture")
    (tmp_path / "data/samples/gate/000000/000000002.json").write_bytes(b"{")
    out = export_labels(labels, tmp_path / "out", "yolo", LabelQuery(camera="gate", window=0))
    assert (out.samples, out.damaged) == (2, 2)
    assert export_labels(labels, tmp_path / "unsure", "yolo", LabelQuery(unsure=True)).samples == 4


def test_a_folder_that_is_not_empty_is_left_as_it_is(labels: FolderLabels, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        export_labels(labels, tmp_path / "out", "yolo", ALL)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    export_labels(labels, tmp_path / "empty", "yolo", ALL)


def test_an_export_that_fails_half_way_leaves_nothing(
    labels: FolderLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, samples: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edge.labels_exchange._write_yolo", full)
    with pytest.raises(StorageError):
        export_labels(labels, tmp_path / "out", "yolo", ALL)
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


# --- refused ------------------------------------------------------------------------------------------------------------


def yolo(tmp_path: Path, text: str, *, stem: str = FLAT, names: str = "person\nbicycle\ncar\n") -> Path:
    folder = tmp_path / "in"
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    (folder / "labels" / f"{stem}.txt").write_text(text)
    (folder / "classes.txt").write_text(names)
    return folder


@pytest.mark.parametrize(
    ("text", "stem", "says"),
    [
        ("7 0.5 0.5 0.1 0.1\n", FLAT, "1 x unknown class"),
        ("2 0.5 0.5 0.1\n2 0.5 0.5 0.1 0.1 9\n", FLAT, "2 x line that is not"),
        ("2 nan 0.5 0.1 0.1\n", FLAT, "impossible box"),
        ("2 1.5 0.5 0.1 0.1\n", FLAT, "outside the picture"),
        ("2 0.5 0.5 0.0 0.1\n", FLAT, "impossible box"),
        ("2 0.5 0.5 0.1 0.1\n", "gate__000009__000000000", "1 x unknown sample"),
        ("2 0.5 0.5 0.1 0.1\n", "IMG_0042", "names no sample"),
        ("2 0.5 0.5 1e300 0.1\n", FLAT, "impossible box"),
    ],
)
def test_what_cannot_be_is_refused_with_counts_and_nothing_is_written(
    labels: FolderLabels, tmp_path: Path, text: str, stem: str, says: str
) -> None:
    folder = yolo(tmp_path, text, stem=stem)
    (folder / "labels/gate__000000__000000002.txt").write_text("2 0.5 0.5 0.5 0.5\n")
    before = everything(labels)
    with pytest.raises(UsageError, match="nothing imported") as caught:
        import_labels(labels, folder, "yolo")
    assert says in caught.value.message
    assert everything(labels) == before, "also not the file that was right"


def test_all_kinds_of_problems_are_counted_at_once(labels: FolderLabels, tmp_path: Path) -> None:
    folder = yolo(tmp_path, "9 0.5 0.5 0.1 0.1\n9 0.5 0.5 0.1 0.1\nrubbish\n")
    with pytest.raises(UsageError) as caught:
        import_labels(labels, folder, "yolo")
    assert "2 x unknown class" in caught.value.message
    assert "1 x line that is not" in caught.value.message


def test_a_picture_of_another_size_is_refused(labels: FolderLabels, tmp_path: Path) -> None:
    folder = yolo(tmp_path, "2 0.5 0.5 0.5 0.5\n")
    (folder / "images").mkdir()
    cv2.imwrite(str(folder / "images" / f"{FLAT}.jpg"), np.zeros((480, 640, 3), np.uint8))
    with pytest.raises(UsageError, match="640 x 480, the sample has 128 x 96"):
        import_labels(labels, folder, "yolo")
    (folder / "images" / f"{FLAT}.jpg").unlink()
    assert import_labels(labels, folder, "yolo").boxes == 1, "pictures may be left out"


def test_numbers_without_names_are_refused(labels: FolderLabels, tmp_path: Path) -> None:
    folder = yolo(tmp_path, "2 0.5 0.5 0.5 0.5\n")
    (folder / "classes.txt").unlink()
    with pytest.raises(UsageError, match="which class"):
        import_labels(labels, folder, "yolo")
    for text in ("names: [car", "names: 5", "nothing: here", "names: {a: car}"):
        (folder / "data.yaml").write_text(text)
        with pytest.raises(UsageError, match="class names"):
            import_labels(labels, folder, "yolo")
    (folder / "data.yaml").write_text("names: [bus, animal, truck]")
    import_labels(labels, folder, "yolo")
    assert labels.get(FIRST).counts == {"truck": 1}, "the file's own names count"


def test_an_empty_text_file_is_an_empty_picture_and_a_folder_without_any_is_refused(
    labels: FolderLabels, tmp_path: Path
) -> None:
    assert import_labels(labels, yolo(tmp_path, ""), "yolo").boxes == 0
    assert (labels.get(FIRST).state, labels.get(FIRST).boxes) == ("person", ())
    shutil.rmtree(tmp_path / "in/labels")
    with pytest.raises(UsageError, match="no yolo labels"):
        import_labels(labels, tmp_path / "in", "yolo")
    with pytest.raises(UsageError, match="no folder"):
        import_labels(labels, tmp_path / "nowhere", "yolo")


def coco(tmp_path: Path, **change: Any) -> Path:
    body: dict[str, Any] = {
        "images": [{"id": 1, "file_name": f"{FLAT}.jpg", "width": 128, "height": 96}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 5, "bbox": [10, 10, 20, 20]}],
        "categories": [{"id": 5, "name": "car"}],
    }
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in/annotations.json").write_text(json.dumps(body | change))
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"categories": [{"id": 5, "name": "tram"}]}, "unknown class"),
        ({"images": [{"id": 1, "file_name": f"{FLAT}.jpg", "width": 640, "height": 96}]}, "wrong picture size"),
        ({"images": [{"id": 2, "file_name": f"{FLAT}.jpg", "width": 128, "height": 96}]}, "not listed"),
        ({"images": [{"id": k, "file_name": f"{FLAT}.jpg", "width": 128, "height": 96} for k in (1, 2)]}, "there twice"),
        ({"annotations": [{"image_id": 1, "category_id": 5, "bbox": [10, 10, 20]}]}, "annotations.0.bbox"),
        ({"annotations": [{"image_id": 1, "category_id": 5, "bbox": [10, 10, 2000, 20]}]}, "outside"),
        ({"images": "none"}, "no COCO file"),
    ],
)
def test_a_coco_file_that_cannot_be_is_refused(labels: FolderLabels, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    before = everything(labels)
    with pytest.raises(UsageError, match=says):
        import_labels(labels, coco(tmp_path, **change), "coco")
    assert everything(labels) == before


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\x00", b"[" * 50_000, b"null", b'{"images": [NaN]}'])
def test_rubbish_is_no_coco_file(labels: FolderLabels, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/annotations.json").write_bytes(data)
    with pytest.raises(UsageError):
        import_labels(labels, tmp_path / "in", "coco")


def test_a_coco_picture_without_boxes_is_empty(labels: FolderLabels, tmp_path: Path) -> None:
    import_labels(labels, coco(tmp_path, annotations=[]), "coco")
    assert (labels.get(FIRST).state, labels.get(FIRST).boxes) == ("person", ())


def test_a_disk_that_fills_half_way_takes_everything_back(labels: FolderLabels, tmp_path: Path) -> None:
    export_labels(labels, tmp_path / "out", "yolo", ALL)
    before = everything(labels)
    written = 0

    def filling(fd: int, data: bytes) -> int:
        nonlocal written
        written += 1
        if written == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)

    labels.store = SampleStore(tmp_path / "data/samples", write=filling)
    with pytest.raises(StorageError) as caught:
        import_labels(labels, tmp_path / "out", "yolo")
    assert caught.value.code == "full"
    labels.store = SampleStore(tmp_path / "data/samples")
    assert written > 6, "what had been written was put back"
    assert everything(labels) == before


def test_export_and_import_by_command(labels: FolderLabels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    for words in (("export", out), ("import", out)):
        with pytest.raises(SystemExit) as end:
            main(["labels", *words, "--format", "coco", "--data-dir", data, "--json"])
        assert not end.value.code
        assert json.loads(capsys.readouterr().out)["samples"] == 16
    with pytest.raises(SystemExit) as end:
        main(["labels", "import", out, "--format", "coco", "--changed-only", "--data-dir", data])
    assert "16 unchanged ones" in capsys.readouterr().out
