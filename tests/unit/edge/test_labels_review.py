"""Review on a terminal: the unsure ones first, simple answers, nothing written that was not meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from edge.labels import LabelQuery, LabelsIn, SampleName
from edge.labels_admin import FolderLabels
from edge.labels_review import review, unsure_first
from scheduler.types import Detections
from tests.support.labelled_folder import labelled_folder

GOLDEN = LabelQuery(by="golden")
UNSURE = SampleName(camera="gate", window=1, seq=1)


@pytest.fixture
def labels(tmp_path: Path) -> FolderLabels:
    labelled_folder(tmp_path / "data")
    return FolderLabels(tmp_path / "data")


def answering(lines: Iterable[str]) -> Callable[[str], str]:
    waiting = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return ask


def run(labels: FolderLabels, tmp_path: Path, *lines: str, limit: int = 20) -> tuple[dict[str, int], str]:
    said: list[str] = []
    done = review(labels, GOLDEN, limit=limit, picture_dir=tmp_path / "seen", ask=answering(lines), tell=said.append)
    return done, "\n".join(said)


def test_the_unsure_ones_come_first_and_those_left_out_before_all(labels: FolderLabels) -> None:
    ref = labels.ref(SampleName(camera="yard", window=0, seq=2))
    labels.store.label(ref, Detections.empty(), "g", "train", left_out="unsure")
    order = [found.ref.name for found in unsure_first(labels.found(GOLDEN))]
    assert order[0] == "yard/000000/000000002"
    assert order[1:5] == [f"{c}/00000{w}/000000001" for w, c in ((1, "gate"), (1, "yard"), (0, "gate"), (0, "yard"))]
    assert len(order) == 16


def test_yes_confirms_and_the_picture_lies_there(labels: FolderLabels, tmp_path: Path) -> None:
    before = labels.get(UNSURE)
    done, said = run(labels, tmp_path, "y", "q")
    assert done == {"looked_at": 1, "confirmed": 1, "corrected": 0, "ignored": 0}
    after = labels.get(UNSURE)
    assert (after.state, [b.xyxy for b in after.boxes]) == ("person", [b.xyxy for b in before.boxes])
    picture = tmp_path / "seen/gate__000001__000000001.jpg"
    assert str(picture) in said
    assert picture.read_bytes().startswith(b"\xff\xd8")


def test_boxes_are_deleted_kept_renamed_and_added(labels: FolderLabels, tmp_path: Path) -> None:
    before = labels.get(UNSURE)
    done, said = run(labels, tmp_path, "d 1", "k 1", "c 1 animal", "a bus 1 2 30 40", "w")
    assert done["corrected"] == 1
    after = labels.get(UNSURE)
    assert len(after.boxes) == len(before.boxes) - 1 + 1 + 1
    assert after.boxes[0].class_name == "animal"
    assert after.boxes[0].xyxy == before.boxes[1].xyxy
    assert after.boxes[-2].xyxy == before.unsure_boxes[0].xyxy
    assert (after.boxes[-1].class_name, after.boxes[-1].xyxy) == ("bus", (1, 2, 30, 40))
    assert "unsure" in said


@pytest.mark.parametrize("line", ["", "x", "d", "d 99", "d x", "c 1 van", "a bus 1 2 3", "a bus 1 2 3 x", "k 7", "?"])
def test_an_answer_that_cannot_be_understood_changes_nothing(labels: FolderLabels, tmp_path: Path, line: str) -> None:
    done, said = run(labels, tmp_path, line, "q")
    assert done["looked_at"] == 0
    assert labels.get(UNSURE).state == "golden"
    assert said.count("y: right as it is") >= 2, "the help comes again"


def test_a_box_that_cannot_be_is_said_and_can_be_mended(labels: FolderLabels, tmp_path: Path) -> None:
    done, said = run(labels, tmp_path, "a bus 1 2 900 40", "w", "d 7", "w")
    assert "outside the picture" in said
    assert done["corrected"] == 1


def test_ignore_skip_and_the_end_of_input(labels: FolderLabels, tmp_path: Path) -> None:
    done, _ = run(labels, tmp_path, "i", "s")
    assert done == {"looked_at": 2, "confirmed": 0, "corrected": 0, "ignored": 1}
    assert labels.get(UNSURE).state == "ignored"
    assert labels.stats().by_person == 1


def test_the_limit_ends_a_review(labels: FolderLabels, tmp_path: Path) -> None:
    assert run(labels, tmp_path, *["s"] * 9, limit=3)[0]["looked_at"] == 3


def test_a_sample_that_somebody_else_corrected_meanwhile_is_passed_over(labels: FolderLabels, tmp_path: Path) -> None:
    lines = iter(["y", "q"])

    def ask(prompt: str) -> str:
        line = next(lines)
        if line == "y":
            labels.put(UNSURE, LabelsIn(ignored=True))
        return line

    said: list[str] = []
    done = review(labels, GOLDEN, limit=5, picture_dir=tmp_path / "seen", ask=ask, tell=said.append)
    assert done["looked_at"] == 0
    assert labels.get(UNSURE).state == "ignored", "the other one's answer stands"
    assert any("passed over" in text for text in said)


def test_a_sample_that_is_pruned_meanwhile_is_passed_over(labels: FolderLabels, tmp_path: Path) -> None:
    lines = iter(["y", "q"])

    def ask(prompt: str) -> str:
        line = next(lines)
        if line == "y":
            labels.store.remove(labels.ref(UNSURE))
        return line

    done = review(labels, GOLDEN, limit=5, picture_dir=tmp_path / "seen", ask=ask, tell=lambda text: None)
    assert done["looked_at"] == 0
