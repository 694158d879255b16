"""Jobs' view of the sample store: pictures come from the disk one at a time, when a job wants them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.samples import FileSamples, LazyImages
from models.fake import scripted_image
from streams.samples import SampleRef, SampleStore
from tests.support.fakes import scripted_frame


class CountingStore(SampleStore):
    loads = 0

    def load_image(self, ref: SampleRef) -> np.ndarray:
        self.loads += 1
        return super().load_image(ref)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    """Six samples of camera a in window 2 and one in window 3, none labelled."""
    store = CountingStore(tmp_path)
    for seq in range(6):
        store.add(scripted_frame("a", seq), 2)
    store.add(scripted_frame("a", 9), 3)
    return store


def label(samples: FileSamples, window: int, splits: str) -> None:
    """splits: one letter per frame, t(rain), h(oldout) or -."""
    for ref, letter in zip(samples.sampled("a", window), splits, strict=True):
        if letter != "-":
            samples.label(ref, scripted_image(ref.seq)[1], golden="g", split={"t": "train", "h": "holdout"}[letter])


def test_labels_are_none_until_they_are_there(store: CountingStore) -> None:
    samples = FileSamples(store)
    first, second, *_ = samples.sampled("a", 2)
    assert samples.labels(first) is None
    assert samples.split(first) is None
    label(samples, 2, "th----")
    labels = samples.labels(first)
    assert labels is not None
    assert np.array_equal(labels.xyxy, scripted_image(0)[1].xyxy)
    assert (samples.split(first), samples.split(second)) == ("train", "holdout")


def test_only_the_asked_split_and_windows_are_given(store: CountingStore) -> None:
    samples = FileSamples(store)
    label(samples, 2, "tht-th")
    label(samples, 3, "t")
    assert len(samples.labelled("a", [2], "train")) == 3
    assert len(samples.labelled("a", [2], "holdout")) == 2
    assert len(samples.labelled("a", [2, 3], "train")) == 4
    assert len(samples.labelled("a", [], "train")) == 0
    assert len(samples.labelled("nobody", [2], "train")) == 0


def test_pictures_are_read_when_they_are_wanted_and_never_kept(store: CountingStore) -> None:
    samples = FileSamples(store)
    label(samples, 2, "tttttt")
    images = samples.labelled("a", [2], "train")
    assert store.loads == 0
    assert images[0].image.shape == (96, 128, 3)
    _ = images[0]
    assert store.loads == 2
    part = images[2:5]
    assert isinstance(part, LazyImages)
    assert (len(part), store.loads) == (3, 2)
    assert np.abs(part[0].image.astype(int) - scripted_image(2)[0].astype(int)).mean() < 3, "as JPEG keeps it"
    assert np.array_equal(part[-1].labels.class_id, scripted_image(4)[1].class_id)
    assert [len(i.labels) for i in images] == [6] * 6
    with pytest.raises(IndexError):
        images[6]


def test_a_sample_that_was_deleted_meanwhile_is_named(store: CountingStore) -> None:
    samples = FileSamples(store)
    label(samples, 2, "tttttt")
    images = samples.labelled("a", [2], "train")
    store.remove(samples.sampled("a", 2)[0])
    with pytest.raises(KeyError, match="a/000002/000000000"):
        images[0]
