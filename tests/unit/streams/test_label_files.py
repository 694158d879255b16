"""Who made a label, who wins, and how it is taken back."""

from __future__ import annotations

import json
import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import StorageError
from scheduler.types import Detections, Frame
from streams.label_file import (
    GoldenAnswer,
    SampleLabels,
    decode,
    encode,
    undone,
    with_golden,
    with_ignored,
    with_person,
)
from streams.samples import SampleRef, SampleStore


def boxes(n: int, seed: int = 0) -> Detections:
    rng = np.random.default_rng(seed)
    return Detections(
        xyxy=rng.uniform(0, 500, (n, 4)).astype(np.float32), score=rng.uniform(0, 1, n).astype(np.float32),
        class_id=rng.integers(0, 7, n),
    )  # fmt: skip


def answer(n: int, seed: int = 0, **fields: object) -> GoldenAnswer:
    return GoldenAnswer(detections=boxes(n, seed), golden="yolo26l", stored_utc=5.0, **fields)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path, utc=lambda: 100.0)


def add(store: SampleStore, seq: int = 1, window: int = 0) -> SampleRef:
    image = np.full((32, 48, 3), 90, np.uint8)
    return store.add(Frame(stream="yard", seq=seq, captured_s=0.0, captured_utc=0.0, image=image), window)


# --- pure -------------------------------------------------------------------------------------------------------------

answers = st.builds(
    answer, st.integers(0, 5), st.integers(0, 9), unsure=st.builds(boxes, st.integers(0, 3), st.integers(0, 9)),
    left_out=st.sampled_from(["", "unsure"]), gpu_s=st.sampled_from([None, 0.25]),
)  # fmt: skip
edits = st.lists(st.one_of(st.just("ignore"), st.integers(0, 4), answers), max_size=6)


@given(first=answers, split=st.sampled_from(["train", "holdout"]), edits=edits)
def test_undo_brings_back_what_the_golden_model_said_last(first: GoldenAnswer, split, edits) -> None:  # type: ignore[no-untyped-def]
    labels, said = with_golden(None, first, split), first
    for edit in edits:
        if isinstance(edit, GoldenAnswer):
            labels, said = with_golden(labels, edit, split), edit
        elif edit == "ignore":
            labels = with_ignored(labels, "train", at_utc=7.0)
        else:
            labels = with_person(labels, boxes(edit, 50), "train", at_utc=7.0)
    back = undone(labels)
    assert back is not None
    assert encode(back) == encode(with_golden(None, said, split))
    assert encode(undone(back)) == encode(back), "undoing twice is undoing once"


@given(answers, st.sampled_from(["", "person", "ignored"]))
def test_a_label_file_comes_back_as_it_was_written(first: GoldenAnswer, then: str) -> None:
    labels = with_golden(None, first, "holdout")
    if then == "person":
        labels = with_person(labels, boxes(2), "train", at_utc=9.0)
    elif then == "ignored":
        labels = with_ignored(labels, "train", at_utc=9.0)
    back = decode(encode(labels))
    assert encode(back) == encode(labels)
    assert (back.by, back.left_out, back.split, back.golden) == (labels.by, labels.left_out, labels.split, labels.golden)
    np.testing.assert_array_equal(back.detections.xyxy, labels.detections.xyxy)
    assert back.said is not None
    np.testing.assert_array_equal(back.said.unsure.xyxy, first.unsure.xyxy)


def test_a_person_who_comes_first_can_be_undone_to_nothing() -> None:
    labels = with_person(None, boxes(1), "holdout", at_utc=1.0)
    assert (labels.golden, labels.said, labels.split) == ("", None, "holdout")
    assert undone(labels) is None


def test_what_judged_is_never_trained_on_because_somebody_corrected_it() -> None:
    held = with_golden(None, answer(2), "holdout")
    assert with_person(held, boxes(1), "train", at_utc=1.0).split == "holdout"
    assert with_golden(with_person(held, boxes(1), "train", at_utc=1.0), answer(3), "train").split == "holdout"


def test_a_file_of_the_first_release_is_read() -> None:
    old = {
        "schema": 1,
        "golden": "g",
        "split": "train",
        "stored_utc": 3.0,
        "xyxy": [[1, 2, 3, 4]],
        "score": [0.5],
        "class_id": [2],
    }
    labels = decode(json.dumps(old).encode())
    assert (labels.by, labels.left_out, len(labels.unsure), labels.usable) == ("golden", "", 0, True)
    assert labels.said is not None
    assert labels.said.gpu_s is None


WHOLE = json.loads(encode(with_person(with_golden(None, answer(1), "train"), boxes(1), "train", at_utc=1.0)))


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"split": "test"}, {"by": "robot"}, {"left_out": "maybe"}, {"xyxy": [[1, 2, 3]]}, {"xyxy": "x"},
        {"score": [float("nan")]}, {"class_id": [-3]}, {"class_id": [10**30]}, {"stored_utc": None}, {"said": 5},
        {"unsure": {"xyxy": []}}, {"score": []},
    ],
)  # fmt: skip
def test_anything_else_is_no_label_file(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="."):
        decode(json.dumps(WHOLE | change).encode())


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        decode(data)


@given(st.integers(1, len(encode(with_golden(None, answer(2), "train"))) - 1))
def test_half_a_file_is_no_label_file(length: int) -> None:
    with pytest.raises(ValueError, match="."):
        decode(encode(with_golden(None, answer(2), "train"))[:length])


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_the_golden_model_never_replaces_a_persons_labels(store: SampleStore) -> None:
    ref = add(store)
    store.label(ref, boxes(2, 1), "g1", "holdout")
    store.correct(ref, boxes(1, 2))
    store.label(ref, boxes(3, 3), "g2", "train", gpu_s=0.5)
    labels = store.load_labels(ref)
    assert (labels.by, labels.split, len(labels.detections)) == ("person", "holdout", 1)
    assert labels.said is not None
    assert (labels.said.golden, len(labels.said.detections), labels.said.gpu_s) == ("g2", 3, 0.5)
    back = store.undo(ref)
    assert back is not None
    assert (back.by, back.golden, len(back.detections), back.split) == ("golden", "g2", 3, "holdout")


def test_an_ignored_sample_keeps_its_split_and_is_used_for_nothing(store: SampleStore) -> None:
    refs = [add(store, seq) for seq in range(3)]
    for ref in refs:
        store.label(ref, boxes(1), "g", "train")
    store.ignore(refs[0])
    store.label(refs[1], boxes(1), "g", "train", unsure=boxes(4), left_out="unsure")
    assert store.usable("yard", [0], "train") == [refs[2]]
    assert store.split(refs[0]) == "train"
    store.undo(refs[0])
    assert store.usable("yard", [0], "train") == [refs[0], refs[2]]


def test_undoing_what_nobody_labelled_leaves_no_file(store: SampleStore, tmp_path: Path) -> None:
    ref = add(store)
    store.correct(ref, boxes(1), "holdout")
    assert store.undo(ref) is None
    assert store.undo(ref) is None
    assert not list(tmp_path.rglob("*.json"))


def test_a_sample_that_was_pruned_meanwhile_cannot_be_corrected(store: SampleStore, tmp_path: Path) -> None:
    ref = add(store)
    store.remove(ref)
    for change in (lambda: store.correct(ref, boxes(1)), lambda: store.ignore(ref), lambda: store.undo(ref)):
        with pytest.raises(KeyError, match="yard/000000/000000001"):
            change()
    assert not list(tmp_path.rglob("*.json")), "no label without a picture is left behind"


def test_a_damaged_label_file_counts_as_none_and_recovery_removes_it(store: SampleStore, tmp_path: Path) -> None:
    good, bad = add(store, 1), add(store, 2)
    for ref in (good, bad):
        store.label(ref, boxes(1), "g", "train")
    file = tmp_path / "yard/000000/000000002.json"
    file.write_bytes(file.read_bytes()[:40])
    assert store.split(bad) is None
    assert store.usable("yard", [0], "train") == [good]
    with pytest.raises(StorageError) as caught:
        store.load_labels(bad)
    assert caught.value.code == "corrupt"
    assert store.recover() == ["samples: removed 1 damaged labels"]
    assert (file.exists(), store.split(good)) == (False, "train")


def test_a_damaged_label_file_can_be_labelled_anew(store: SampleStore, tmp_path: Path) -> None:
    ref = add(store)
    (tmp_path / "yard/000000/000000001.json").write_bytes(b"{")
    store.label(ref, boxes(1), "g", "holdout")
    assert store.split(ref) == "holdout"


def test_a_check_sees_what_is_in_force_and_may_stop_the_change(store: SampleStore) -> None:
    ref = add(store)
    store.label(ref, boxes(1), "g", "train")
    seen: list[SampleLabels | None] = []

    def check(labels: SampleLabels | None) -> None:
        seen.append(labels)
        raise RuntimeError("changed meanwhile")

    with pytest.raises(RuntimeError):
        store.correct(ref, boxes(2), check=check)
    assert seen[0] is not None
    assert (seen[0].by, store.load_labels(ref).by) == ("golden", "golden")


def test_restoring_brings_back_any_state(store: SampleStore) -> None:
    ref = add(store)
    store.correct(ref, boxes(2))
    before = store.load_labels(ref)
    store.ignore(ref)
    store.restore(ref, before)
    assert encode(store.load_labels(ref)) == encode(before)
    store.restore(ref, None)
    assert store.split(ref) is None


def _golden_for_ever(root: str, started, stop) -> None:  # type: ignore[no-untyped-def]
    """What a box does while somebody corrects."""
    store = SampleStore(Path(root))
    refs = store.list("yard")
    while not stop.is_set():
        for ref in refs:
            store.label(ref, boxes(3, 3), "g", "train")
        started.set()


def test_a_box_that_labels_while_somebody_corrects_loses_no_correction(store: SampleStore, tmp_path: Path) -> None:
    refs = [add(store, seq) for seq in range(4)]
    spawn = multiprocessing.get_context("spawn")
    started, stop = spawn.Event(), spawn.Event()
    box = spawn.Process(target=_golden_for_ever, args=(str(tmp_path), started, stop))
    box.start()
    try:
        assert started.wait(60)
        done = []

        def correct(ref: SampleRef) -> None:
            for n in range(25):
                store.correct(ref, boxes(1, n))
            done.append(ref)

        people = [threading.Thread(target=correct, args=(ref,)) for ref in refs]
        for person in people:
            person.start()
        for person in people:
            person.join()
    finally:
        stop.set()
        box.join(120.0)
    assert len(done) == len(refs)
    for ref in refs:
        labels = store.load_labels(ref)
        assert labels.by == "person"
        np.testing.assert_array_equal(labels.detections.xyxy, boxes(1, 24).xyxy)
        assert labels.said is not None, "and the golden model's answer stands beside it"


def test_labels_of_samples_are_frozen() -> None:
    labels = with_golden(None, answer(1), "train")
    assert replace(labels, split="holdout").split == "holdout"
    with pytest.raises(AttributeError):
        labels.split = "holdout"  # type: ignore[misc]
