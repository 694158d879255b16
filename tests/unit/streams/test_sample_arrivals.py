"""Labelled pictures from another box: each once, in windows of this one, and what both boxes say of one is merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import StorageError
from scheduler.fleet.types import CameraKey
from scheduler.types import Detections, Frame
from streams.block_file import MapAttempt
from streams.label_file import GoldenAnswer, SampleLabels, encode, merged, with_golden, with_ignored, with_person
from streams.sample_arrivals import SEQS, Arrived, Shift, take_in
from streams.sample_record import SampleRecord, carried, unpacked_samples, write_partitioned
from streams.samples import SampleRef, SampleStore, encode_jpeg

KEY = CameraKey(home="a", camera="gate")


def boxes(n: int) -> Detections:
    return Detections(
        xyxy=np.tile(np.array([[1, 2, 8, 9]], np.float32), (n, 1)), score=np.full(n, 0.5, np.float32),
        class_id=np.zeros(n, np.int64),
    )  # fmt: skip


def labelled(n: int = 1, split: str = "train", at_utc: float = 5.0, *, person: bool = False) -> SampleLabels:
    answer = GoldenAnswer(detections=boxes(n), golden="g", stored_utc=at_utc)
    found = with_golden(None, answer, split)  # type: ignore[arg-type]
    return with_person(found, boxes(n + 1), "train", at_utc=at_utc) if person else found


def record(level: int, *, window: int = 9, seq: int | None = None, labels: SampleLabels | None = None) -> SampleRecord:
    image = np.full((32, 48, 3), level, np.uint8)
    return SampleRecord(
        camera=KEY, window=window, seq=level if seq is None else seq, labels=labels or labelled(), jpeg=encode_jpeg(image)
    )


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    return SampleStore(tmp_path)


def names(store: SampleStore) -> list[tuple[int, int]]:
    return [(ref.window, ref.seq) for ref in store.list("gate")]


# --- which labels are in force --------------------------------------------------------------------------------------------

any_labels = st.one_of(
    st.builds(
        labelled, st.integers(0, 3), st.sampled_from(["train", "holdout"]), st.sampled_from([1.0, 2.0]), person=st.booleans()
    ),
    st.builds(lambda at_utc: with_ignored(None, "train", at_utc=at_utc), st.sampled_from([1.0, 2.0])),
)


@given(any_labels, any_labels)
def test_both_boxes_come_to_the_same_and_once_is_enough(one: SampleLabels, other: SampleLabels) -> None:
    both = merged(one, other)
    assert encode(both) == encode(merged(other, one))
    for again in (one, other, both):
        assert encode(merged(both, again)) == encode(both)


@given(any_labels, any_labels)
def test_a_persons_word_is_never_lost_and_a_judge_never_trains(one: SampleLabels, other: SampleLabels) -> None:
    both = merged(one, other)
    assert (both.by == "person") == ("person" in (one.by, other.by))
    assert (both.split == "holdout") == ("holdout" in (one.split, other.split))
    if both.by == "person":
        assert both.stored_utc == max(labels.stored_utc for labels in (one, other) if labels.by == "person")
    assert (both.said is None) == (one.said is None and other.said is None)


def test_where_nothing_was_said_here_the_other_counts() -> None:
    came = labelled()
    assert merged(None, came) is came


# --- where they lie -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "newest", "here", "window"), [(9, 9, 4, 4), (8, 9, 4, 3), (2, 9, 4, 0), (11, 9, 4, 4), (0, 0, 30, 30)]
)
def test_windows_keep_their_distance_as_far_as_there_are_any(there: int, newest: int, here: int, window: int) -> None:
    assert Shift(newest=newest, here=here).window(there) == window


def test_they_are_samples_like_others_and_come_once(store: SampleStore) -> None:
    came = [record(10), record(20, labels=labelled(person=True)), record(30, window=8, labels=labelled(split="holdout"))]
    shift = Shift(newest=9, here=4)
    assert take_in(store, "gate", came, shift) == Arrived(new=3, by_person=1)
    assert names(store) == [(3, 30), (4, 10), (4, 20)]
    assert take_in(store, "gate", came, Shift(newest=9, here=6)) == Arrived(known=3, by_person=1)
    assert names(store) == [(3, 30), (4, 10), (4, 20)], "not in another window either"
    assert [ref.seq for ref in store.usable("gate", [3, 4], "holdout")] == [30]
    assert store.recover() == []


def test_a_picture_that_a_kill_left_without_labels_gets_them(store: SampleStore) -> None:
    came = record(10)
    take_in(store, "gate", [came], Shift(newest=9, here=4))
    next(store.root.rglob("*.json")).unlink()
    assert take_in(store, "gate", [came], Shift(newest=9, here=5)) == Arrived(known=1)
    assert store.list("gate", labelled=True) == [SampleRef(stream="gate", window=4, seq=10)]


def test_other_pictures_of_the_same_number_or_size_are_others(store: SampleStore) -> None:
    first, second = record(10, seq=1), record(11, seq=1)
    assert len(first.jpeg) == len(second.jpeg)
    assert take_in(store, "gate", [first, second], Shift(newest=9, here=4)).new == 2
    assert names(store) == [(4, 1), (4, 2)]
    with pytest.raises(ValueError, match="another picture"):
        store.adopt(SampleRef(stream="gate", window=4, seq=1), second.jpeg, labelled())


def test_a_number_that_no_file_could_hold(store: SampleStore) -> None:
    take_in(store, "gate", [record(10, seq=10**40 + 3, window=10**40)], Shift(newest=9, here=4))
    assert names(store) == [(4, (10**40 + 3) % SEQS)]


@pytest.mark.parametrize("ref", [("../x", 1, 1), ("gate", -1, 1), ("gate", 1, -1)])
def test_what_is_no_sample_is_not_kept(store: SampleStore, ref: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match="not a sample"):
        store.adopt(SampleRef(stream=ref[0], window=ref[1], seq=ref[2]), b"x", labelled())
    with pytest.raises(ValueError, match="not a sample"):
        store.adopt(SampleRef(stream="gate", window=1, seq=1), b"", labelled())


def test_a_full_disk_is_said_and_leaves_what_lies_here(tmp_path: Path) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError) as caught:
        take_in(SampleStore(tmp_path, write=full), "gate", [record(10)], Shift(newest=9, here=4))
    assert caught.value.code == "full"
    assert SampleStore(tmp_path).list("gate") == []


def test_a_picture_that_is_pruned_meanwhile_is_new_again(store: SampleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    came = record(10)
    take_in(store, "gate", [came], Shift(newest=9, here=4))
    listed = store.list("gate")
    store.remove(listed[0])
    monkeypatch.setattr(store, "list", lambda camera: listed)
    monkeypatch.setattr(store, "size_bytes", lambda ref: len(came.jpeg))
    assert take_in(store, "gate", [came], Shift(newest=9, here=4)).new == 1


def test_sizes_are_of_what_is_there(store: SampleStore) -> None:
    image = np.full((32, 48, 3), 90, np.uint8)
    ref = store.add(Frame(stream="gate", seq=1, captured_s=0.0, captured_utc=0.0, image=image), 1)
    assert store.size_bytes(ref) == len(encode_jpeg(image))
    assert store.size_bytes(replace(ref, seq=2)) is None


# --- in a parcel ----------------------------------------------------------------------------------------------------------


def test_either_split_travels_and_only_of_the_box_that_sends(tmp_path: Path) -> None:
    came = [record(10), record(20, labels=labelled(split="holdout"))]
    attempts: list[MapAttempt] = [(0, 0)]
    write_partitioned(tmp_path, "part", came, partitions=1, covers=attempts)
    data = carried(tmp_path, "part")
    assert [(r.seq, r.labels.split) for r in unpacked_samples(data, "part", home="a")] == [(10, "train"), (20, "holdout")]
    with pytest.raises(StorageError, match="not a sample of box b"):
        unpacked_samples(data, "part", home="b")
    with pytest.raises(StorageError, match="cannot be used"):
        unpacked_samples(data[:-3], "part", home="a")
