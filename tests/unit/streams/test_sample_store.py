"""Samples on files: what is listed is whole, order is fixed, limits hold."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from scheduler.types import Detections, Frame
from streams.samples import SampleRef, SampleStore


def frame(seq: int, stream: str = "yard", value: int = 100, size: tuple[int, int] = (32, 48)) -> Frame:
    image = np.full((*size, 3), value, np.uint8)
    return Frame(stream=stream, seq=seq, captured_s=float(seq), captured_utc=1e9 + seq, image=image)


def boxes(n: int, seed: int = 0) -> Detections:
    rng = np.random.default_rng(seed)
    return Detections(
        xyxy=rng.uniform(0, 500, (n, 4)).astype(np.float32),
        score=rng.uniform(0, 1, n).astype(np.float32),
        class_id=rng.integers(0, 7, n),
    )


def fail_with(code: int):  # type: ignore[no-untyped-def]
    def write(fd: int, data: bytes) -> int:
        os.write(fd, data[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    return write


def test_a_picture_comes_back_nearly_as_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    smooth = np.kron(rng.integers(0, 255, (4, 6, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    store = SampleStore(tmp_path)
    ref = store.add(Frame(stream="yard", seq=3, captured_s=0, captured_utc=0, image=smooth), window=2)
    assert ref == SampleRef(stream="yard", window=2, seq=3)
    back = store.load_image(ref)
    assert (back.shape, back.dtype) == (smooth.shape, np.uint8)
    assert np.abs(back.astype(int) - smooth).mean() < 6  # RGB and BGR mixed up would be far off


@settings(max_examples=20, deadline=None)
@given(n=st.integers(0, 30), seed=st.integers(0, 99), split=st.sampled_from(["train", "holdout"]))
def test_labels_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, n: int, seed: int, split: str) -> None:
    store = SampleStore(tmp_path_factory.mktemp("s"), utc=lambda: 123.5)
    ref = store.add(frame(1), 0)
    store.label(ref, boxes(n, seed), golden="yolo26l", split=split)
    labels = store.load_labels(ref)
    for name in ("xyxy", "score", "class_id"):
        expected, got = getattr(boxes(n, seed), name), getattr(labels.detections, name)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert (labels.golden, labels.split, labels.stored_utc) == ("yolo26l", split, 123.5)


def test_list_is_ordered_and_filters(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    refs = {}
    for window, seq in [(10, 100), (2, 1000), (2, 999), (10, 99), (2, 7)]:
        refs[window, seq] = store.add(frame(seq), window)
    store.add(frame(1, stream="street"), 2)
    store.label(refs[2, 7], boxes(1), "g", "train")
    store.label(refs[10, 99], boxes(0), "g", "holdout")

    def names(**kwargs: object) -> list[tuple[int, int]]:
        return [(r.window, r.seq) for r in store.list("yard", **kwargs)]  # type: ignore[arg-type]

    assert names() == [(2, 7), (2, 999), (2, 1000), (10, 99), (10, 100)]
    assert names(windows=[10]) == [(10, 99), (10, 100)]
    assert names(windows=[]) == []
    assert names(labelled=True) == [(2, 7), (10, 99)]
    assert names(labelled=False, windows=[2]) == [(2, 999), (2, 1000)]
    assert names(split="holdout") == [(10, 99)]
    assert names(split="train", labelled=False) == []
    assert store.windows("yard") == [2, 10]
    assert store.newest_window() == 10
    assert store.split(refs[2, 7]) == "train"
    assert store.split(refs[2, 999]) is None
    assert store.list("nobody") == []
    assert store.sampled("street", 2) == [SampleRef(stream="street", window=2, seq=1)]


def test_an_empty_store_has_no_window(tmp_path: Path) -> None:
    assert SampleStore(tmp_path / "new").newest_window() == -1


def test_a_new_picture_under_an_old_name_loses_the_old_labels(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(frame(1, value=10), 0)
    store.label(ref, boxes(3), "g", "holdout")
    assert store.add(frame(1, value=200), 0) == ref
    assert store.list("yard", labelled=True) == []
    assert store.load_image(ref).mean() > 150


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_lists_nothing_half(tmp_path: Path, code: int) -> None:
    SampleStore(tmp_path).add(frame(1), 0)
    store = SampleStore(tmp_path, write=fail_with(code))
    with pytest.raises(StorageError) as caught:
        store.add(frame(2), 0)
    assert caught.value.code == "full"
    first = SampleRef(stream="yard", window=0, seq=1)
    with pytest.raises(StorageError):
        store.label(first, boxes(1), "g", "train")
    assert store.list("yard") == [first]
    assert store.list("yard", labelled=True) == []
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["000000001.jpg"]


def test_missing_and_damaged_samples_are_told_apart(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(frame(1), 0)
    with pytest.raises(KeyError):
        store.load_labels(ref)
    with pytest.raises(KeyError):
        store.load_image(SampleRef(stream="yard", window=0, seq=2))
    with pytest.raises(KeyError):
        store.label(SampleRef(stream="yard", window=0, seq=2), boxes(1), "g", "train")
    picture = tmp_path / "yard" / "000000" / "000000001.jpg"
    for content in (b"", b"no picture"):
        picture.write_bytes(content)
        with pytest.raises(StorageError) as caught:
            store.load_image(ref)
        assert caught.value.code == "corrupt"
    for content in (b"", b"{}", b"[1", b'{"schema": 1, "split": "test"}', b"null"):
        picture.with_suffix(".json").write_bytes(content)
        with pytest.raises(StorageError):
            store.load_labels(ref)


def test_recover_removes_what_is_not_whole_and_nothing_else(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    good, cut, empty = (store.add(frame(i), 0) for i in (1, 2, 3))
    store.label(good, boxes(1), "g", "train")
    folder = tmp_path / "yard" / "000000"
    (folder / "000000002.jpg").write_bytes((folder / "000000002.jpg").read_bytes()[:-10])
    (folder / "000000003.jpg").write_bytes(b"")
    (folder / ".tmp-77-000000004.jpg").write_bytes(b"\xff\xd8")
    (folder / "000000005.json").write_text("{}")
    assert store.recover() == [
        "samples: removed 2 damaged pictures",
        "samples: removed 1 labels without a picture",
        "samples: removed 1 unfinished files",
    ]
    assert store.list("yard") == [good]
    assert store.list("yard", split="train") == [good]
    assert store.recover() == []


def test_limits_remove_the_oldest(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, max_windows=2, max_samples=5)
    for window in range(4):
        for i in range(4):
            ref = store.add(frame(10 * window + i), window)
            store.label(ref, boxes(1), "g", "train")
    store.add(frame(1, stream="street"), 0)
    assert store.prune() == 8 + 3
    assert [(r.window, r.seq) for r in store.list("yard")] == [(2, 23), (3, 30), (3, 31), (3, 32), (3, 33)]
    assert len(store.list("street")) == 1
    assert sorted(p.name for p in (tmp_path / "yard").iterdir()) == ["000002", "000003"]
    assert store.prune() == 0


def test_the_byte_limit_holds_over_all_cameras(tmp_path: Path) -> None:
    unlimited = SampleStore(tmp_path)
    for window in range(3):
        for stream in ("a", "b"):
            ref = unlimited.add(frame(window, stream=stream), window)
            unlimited.label(ref, boxes(2), "g", "train")
    one = sum(p.stat().st_size for p in (tmp_path / "a" / "000000").iterdir())
    store = SampleStore(tmp_path, max_bytes=3 * one + one // 2)
    assert store.prune() == 3
    left = [(r.window, r.stream) for s in ("a", "b") for r in store.list(s)]
    assert sorted(left) == [(1, "b"), (2, "a"), (2, "b")]


def test_a_store_that_is_not_full_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at all the time, and may hold tens of thousands of samples: memory must not grow with them."""
    store = SampleStore(tmp_path, max_windows=5, max_bytes=10**6)
    for seq in range(300):
        (tmp_path / "yard" / "000000").mkdir(parents=True, exist_ok=True)
        (tmp_path / "yard" / "000000" / f"{seq:09d}.jpg").write_bytes(b"picture")
    monkeypatch.setattr("streams.samples._seqs", lambda folder: pytest.fail("listed"))
    assert store.prune() == 0


def test_adding_applies_the_limits_now_and_then(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, max_samples=10, prune_every=5)
    for seq in range(40):
        store.add(frame(seq), 0)
    assert [r.seq for r in store.list("yard")] == list(range(30, 40))


def test_remove_stream_removes_only_it(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    store.add(frame(1, stream="a"), 0)
    store.add(frame(1, stream="b"), 0)
    store.remove_stream("a")
    store.remove_stream("a")
    assert store.list("a") == []
    assert len(store.list("b")) == 1
    with pytest.raises(ValueError, match="camera"):
        store.remove_stream("../b")


@pytest.mark.parametrize(("stream", "window", "seq"), [("../x", 0, 1), ("yard", -1, 1), ("yard", 0, -1), ("", 0, 0)])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, stream: str, window: int, seq: int) -> None:
    with pytest.raises(ValueError, match="not a sample"):
        SampleStore(tmp_path).add(frame(seq, stream=stream), window)


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    with pytest.raises(ValueError, match="holdout"):
        store.label(store.add(frame(1), 0), boxes(1), "g", "test")
