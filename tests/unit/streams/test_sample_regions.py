"""Regions beside a sample: whole or not there, gone with their picture, none in samples of before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from edge.samples import FileSamples
from scheduler.types import Detections, Frame
from streams.samples import SampleRef, SampleStore


def frame(seq: int = 1, regions: np.ndarray | None = None) -> Frame:
    image = np.full((32, 48, 3), 90, np.uint8)
    return Frame(stream="yard", seq=seq, captured_s=0.0, captured_utc=0.0, image=image, regions=regions)


def some(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 40, (n, 4)).astype(np.float32)


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@settings(max_examples=25, deadline=None)
@given(n=st.integers(0, 30), seed=st.integers(0, 99))
def test_regions_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, n: int, seed: int) -> None:
    store = SampleStore(tmp_path_factory.mktemp("s"))
    ref = store.add(frame(regions=some(n, seed)), 0)
    back = store.load_regions(ref)
    assert back is not None
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, some(n, seed))


def test_a_job_sees_the_regions_of_its_picture(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(frame(regions=some(3)), 0)
    picture = FileSamples(store).picture(ref)
    assert picture.regions is not None
    np.testing.assert_array_equal(picture.regions, some(3))


def test_nobody_looked_is_not_nothing_moves(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    unseen, still = store.add(frame(1), 0), store.add(frame(2, some(0)), 0)
    assert store.load_regions(unseen) is None
    assert FileSamples(store).picture(unseen).regions is None
    found = store.load_regions(still)
    assert found is not None
    assert found.shape == (0, 4)
    assert files(tmp_path) == ["000000001.jpg", "000000002.jpg", "000000002.regions"]


def test_a_replaced_sample_has_its_own_regions_or_none(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(frame(regions=some(3)), 0)
    store.label(ref, Detections.empty(), "g", "train")
    store.add(frame(regions=some(2, seed=9)), 0)
    np.testing.assert_array_equal(store.load_regions(ref), some(2, seed=9))
    store.add(frame(), 0)
    assert store.load_regions(ref) is None
    assert files(tmp_path) == ["000000001.jpg"]


def test_removal_and_limits_take_the_regions_along(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, max_samples=2)
    refs = [store.add(frame(seq, some(4)), 0) for seq in range(5)]
    assert store.prune() == 3
    assert files(tmp_path) == ["000000003.jpg", "000000003.regions", "000000004.jpg", "000000004.regions"]
    store.remove(refs[3])
    store.remove(refs[4])
    assert files(tmp_path) == []


def test_the_limit_in_bytes_counts_them(tmp_path: Path) -> None:
    bare = SampleStore(tmp_path / "a")
    bare.add(frame(), 0)
    size = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*.jpg"))
    store = SampleStore(tmp_path / "b", max_bytes=2 * size + 4500)
    for seq in range(2):
        store.add(frame(seq, some(40)), 0)
    assert store.prune() == 1


class Killed(BaseException):
    """As kill -9 looks from inside: nothing after it runs."""


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_killed_between_two_writes_leaves_whole_samples(tmp_path: Path, writes: int) -> None:
    """Killed before the regions, between regions and picture, and after both."""
    left = [writes]

    def write(fd: int, data: bytes) -> int:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return os.write(fd, data)

    SampleStore(tmp_path).add(frame(1, some(2)), 0)
    dying = SampleStore(tmp_path, write=write)
    try:
        dying.add(frame(1, some(5, seed=4)), 0)  # replaces one: the old picture must not be seen with the new regions
        dying.add(frame(2, some(6)), 0)
    except Killed:
        pass
    store = SampleStore(tmp_path)
    notes = store.recover()
    kept = store.list("yard")
    assert [ref.seq for ref in kept] == ([1] if writes == 2 else [])
    for ref in kept:
        np.testing.assert_array_equal(store.load_regions(ref), some(5, seed=4))
    assert len(files(tmp_path)) == 2 * len(kept), notes


def test_recover_removes_regions_that_are_damaged_or_alone(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    whole, cut, alone = (store.add(frame(seq, some(3)), 0) for seq in (1, 2, 3))
    folder = tmp_path / "yard" / "000000"
    (folder / "000000002.regions").write_bytes(b'{"schema": 1, "xyxy": [[1, 2')
    (folder / "000000003.jpg").unlink()
    with pytest.raises(StorageError, match="damaged") as caught:
        store.load_regions(cut)
    assert caught.value.code == "corrupt"
    assert store.recover() == ["samples: removed 1 damaged regions", "samples: removed 1 regions without a picture"]
    assert store.load_regions(whole) is not None
    assert store.load_regions(cut) is None
    assert store.load_image(cut).shape == (32, 48, 3)
    assert store.load_regions(alone) is None
    assert store.recover() == []


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b'{"schema": 2, "xyxy": []}', b'{"schema": 1}', b'{"schema": 1, "xyxy": [[1, 2, 3]]}', b"\xff\x00"],
)
def test_whatever_lies_there_instead_is_said_plainly(tmp_path: Path, data: bytes) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(frame(regions=some(1)), 0)
    (tmp_path / "yard" / "000000" / "000000001.regions").write_bytes(data)
    with pytest.raises(StorageError, match="damaged"):
        store.load_regions(ref)


def test_another_task_begins_without_the_samples_of_the_one_before(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    store.add(frame(), 0)
    assert not store.begin("yard", "detection"), "samples of before tasks had names are of detection"
    assert len(store.list("yard")) == 1
    assert store.begin("yard", "classification")
    assert store.list("yard") == []
    ref = store.add(frame(regions=some(2)), 1)
    assert not SampleStore(tmp_path).begin("yard", "classification"), "known after a restart"
    assert store.list("yard") == [ref]
    assert store.recover() == []
    assert store.begin("yard", "detection")
    assert store.list("yard") == []
    assert store.begin("new", "classification"), "no samples, and a model of detection may be there"
    assert not store.begin("new", "classification")
    assert store.windows("new") == []
    assert store.prune() == 0


def test_a_sample_that_is_gone_has_no_regions(tmp_path: Path) -> None:
    store = SampleStore(tmp_path)
    ref = store.add(replace(frame(), regions=some(1)), 0)
    store.remove(ref)
    assert store.load_regions(ref) is None
    assert store.load_regions(SampleRef(stream="other", window=3, seq=1)) is None
