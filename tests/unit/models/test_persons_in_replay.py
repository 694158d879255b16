"""What a person labelled is replayed before all else, and its mark survives on the way to the trainer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.exemplars import exemplars
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, Pooled, Subset, persons_of
from models.sanity import looked_at


def sample(seed: int, *, by_person: bool = False) -> LabelledImage:
    image, truth = scripted_image(seed)
    return LabelledImage(image=image, labels=truth, by_person=by_person)


class Embedding(FakeDetector):
    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([image.mean(axis=(0, 1)) for image in images]).astype(np.float32)


def run(steps):  # type: ignore[no-untyped-def]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Known(list[LabelledImage]):
    """Knows whose labels it holds, as the files' samples do."""

    @property
    def persons(self) -> list[int]:
        return [i for i, one in enumerate(self) if one.by_person]


@settings(max_examples=15, deadline=None)
@given(persons=st.sets(st.integers(0, 11)), limit=st.integers(1, 10))
def test_persons_come_first_among_exemplars(persons: set[int], limit: int) -> None:
    samples = Known(sample(i, by_person=i in persons) for i in range(12))
    chosen = run(exemplars(samples, Embedding(), limit=limit))
    assert len(chosen) == len(set(chosen)) == limit
    mine = [i for i in chosen if i in persons]
    assert list(chosen[: len(mine)]) == mine
    assert len(mine) == min(limit, len(persons))


def test_the_mark_survives_the_checks_before_training() -> None:
    checked = run(looked_at([sample(i, by_person=i == 2) for i in range(6)], subject="gate"))
    assert [checked[i].by_person for i in range(6)] == [i == 2 for i in range(6)]
    assert persons_of(checked) == [2]


def test_pooled_cameras_know_whose_labels_they_hold() -> None:
    gate = Known([sample(1), sample(2, by_person=True)])
    yard = Known([sample(3, by_person=True), sample(4)])
    pooled = Pooled([gate, yard])
    assert [pooled[i].by_person for i in persons_of(pooled)] == [True, True]
    assert len(persons_of(pooled)) == 2
    assert persons_of(Subset(gate, [0])) == []
