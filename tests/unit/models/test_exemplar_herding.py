"""Exemplars of earlier windows: iCaRL's herding, turns of the classes, and what it costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.exemplars import POOL, POOL_MAX, exemplars, herded, herding, n_candidates, unit_rows
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, Pooled
from scheduler.types import Detections

FEATURES = arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.floats(-5, 5, width=32))


def chosen(samples: Sequence[LabelledImage], detector: object, limit: int, **options: int) -> tuple[tuple[int, ...], int]:
    steps, n = exemplars(samples, detector, limit=limit, **options), 0  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, n
        n += 1


def scripted(n: int) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=found) for image, found in (scripted_image(i, n_objects=3) for i in range(n))]


def test_worked_example() -> None:
    """Mean (0.5, 0.2): of (1,0) (0,1) (0,0) (1,0) (0.5,0) the last is nearest; then (0,1) would pull to (.25,.5), (1,0) to (.75,0);
    (0.25,.5) is .39 away, (.75,0) .32, (.25,0) .32 -> the lower index of the two at .32, which is 0."""
    phi = np.array([[1, 0], [0, 1], [0, 0], [1, 0], [0.5, 0]], float)
    order = herding(phi)
    assert order[:2] == (4, 0)
    assert sorted(order) == [0, 1, 2, 3, 4]


@given(FEATURES)
def test_every_prefix_is_the_greedy_choice(phi: np.ndarray) -> None:
    """Against the algorithm as the paper writes it: plain loops over what is left."""
    mean = phi.mean(axis=0, dtype=np.float64)
    order = herding(phi)
    assert sorted(order) == list(range(len(phi)))
    for k in range(1, len(order) + 1):
        left = set(range(len(phi))) - set(order[: k - 1])
        distances = {i: np.linalg.norm(mean - phi[[*order[: k - 1], i]].astype(np.float64).sum(axis=0) / k) for i in left}
        assert distances[order[k - 1]] <= min(distances.values()) + 1e-9


def test_herding_beats_the_first_ones_on_average() -> None:
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(20):
        phi = unit_rows(rng.normal(size=(60, 8)) + rng.normal(size=8))
        mean = phi.mean(axis=0)
        gap = [np.linalg.norm(phi[list(pick)].mean(axis=0) - mean) for pick in (herding(phi)[:6], range(6))]
        gaps.append(gap)
    herd, first = np.mean(gaps, axis=0)
    assert herd < 0.5 * first


@given(FEATURES, st.integers(0, 2**32 - 1))
def test_classes_take_turns_and_the_rarest_comes_first(features: np.ndarray, seed: int) -> None:
    presence = np.random.default_rng(seed).random((len(features), 3)) < 0.4
    order = herded(features, presence)
    assert sorted(order) == list(range(len(features)))
    groups = [set(np.flatnonzero(c)) for c in presence.T] + [set(np.flatnonzero(~presence.any(axis=1)))]
    groups = [g for g in groups if g]
    assert all(g & set(order[: len(groups)]) for g in groups), "after one turn every class is there"
    assert any(order[0] in g for g in groups if len(g) == min(map(len, groups)))


@given(FEATURES, st.integers(0, 12))
def test_fewer_exemplars_are_the_first_of_more(features: np.ndarray, limit: int) -> None:
    samples = scripted(len(features))

    class Embeds(FakeDetector):
        def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
            keys = [sample.image.tobytes() for sample in samples]
            return np.stack([features[keys.index(image.tobytes())] for image in images])

    more, _ = chosen(samples, Embeds(), limit, pool=len(features))
    fewer, _ = chosen(samples, Embeds(), max(0, limit - 1), pool=len(features))
    assert len(more) == min(limit, len(features))
    if limit <= len(features) - 1:
        assert more[: len(fewer)] == fewer


def test_all_are_kept_without_looking_when_there_are_few() -> None:
    assert chosen(scripted(5), FakeDetector(), 5) == ((0, 1, 2, 3, 4), 0)
    assert chosen(scripted(5), FakeDetector(), 0) == ((), 0)
    assert chosen([], FakeDetector(), 3) == ((), 0)
    with pytest.raises(ValueError, match="at least 0"):
        chosen(scripted(5), FakeDetector(), -1)


def test_only_candidates_are_embedded_one_an_iteration() -> None:
    picks, iterations = chosen(scripted(60), FakeDetector(), 6)
    assert iterations == 6 * POOL
    assert len(set(picks)) == 6
    assert chosen(scripted(60), FakeDetector(), 6) == (picks, iterations), "the same again"
    assert chosen(scripted(60), FakeDetector(), 6, batch=4)[0] == picks, "however they are batched"


def test_a_large_choice_looks_at_no_more_than_it_can_compare() -> None:
    picks, iterations = chosen(Endless(5000), FakeDetector(), 300)
    assert (len(set(picks)), iterations) == (300, POOL_MAX)
    picks, iterations = chosen(Endless(5000), FakeDetector(), POOL_MAX + 88)
    assert (len(set(picks)), iterations) == (POOL_MAX + 88, 0), "then time alone spreads them"
    assert [n_candidates(limit) for limit in (0, 1, 170, 171, 512, 513)] == [0, 3, 510, 512, 512, 513]


def test_a_model_without_embedding_takes_them_spread_evenly() -> None:
    assert chosen(scripted(60), object(), 6) == ((5, 15, 25, 35, 45, 55), 0)


def test_numbers_that_are_none_do_no_harm() -> None:
    class Nan(FakeDetector):
        def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
            return np.full((len(images), 4), np.nan, np.float32)

    picks, _ = chosen(scripted(30), Nan(), 6)
    assert len(set(picks)) == 6


class Endless(Sequence[LabelledImage]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        box = Detections(xyxy=np.array([[1, 1, 6, 6]], np.float32), score=np.ones(1, np.float32), class_id=np.array([i % 7]))
        return LabelledImage(image=np.full((96, 128, 3), i % 251, np.uint8), labels=box)


def test_memory_does_not_grow_with_the_number_of_old_pictures() -> None:
    peaks = []
    for n in (500, 50_000):
        tracemalloc.start()
        picks, iterations = chosen(Endless(n), FakeDetector(), 64)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (len(picks), iterations) == (64, 64 * POOL)
        assert max(np.diff(sorted(picks))) < n / 2, "from all of the time"
    assert peaks[1] < peaks[0] + 2**20


# --- several cameras --------------------------------------------------------------------------------------------------


def numbered(n: int, first: int) -> list[LabelledImage]:
    return [LabelledImage(image=np.full((2, 2, 3), first + i, np.uint8), labels=Detections.empty()) for i in range(n)]


def values(samples: Sequence[LabelledImage]) -> list[int]:
    return [int(samples[i].image[0, 0, 0]) for i in range(len(samples))]


def test_cameras_take_turns_in_a_pool() -> None:
    assert values(Pooled([numbered(3, 0), numbered(3, 100)])) == [0, 100, 1, 101, 2, 102]
    assert values(Pooled([numbered(3, 0), [], numbered(2, 100)])) == [0, 100, 1, 101, 2]
    assert values(Pooled([[], []])) == []
    assert values(Pooled([numbered(3, 0), numbered(3, 100)])[1:3]) == [100, 1]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_no_camera_has_more_than_twice_the_say_of_another(counts: list[int]) -> None:
    pool = Pooled([numbered(n, 50 * i) for i, n in enumerate(counts)])
    said = [sum(1 for v in values(pool) if v // 50 == i) for i in range(len(counts))]
    brought = [s for s, n in zip(said, counts, strict=True) if n]
    assert all((s == 0) == (n == 0) for s, n in zip(said, counts, strict=True))
    assert not brought or max(brought) <= 2 * min(brought)
    first = values(pool)[: len(brought)]
    assert len({v // 50 for v in first}) == len(first), "each camera once before any comes twice"
    assert len(set(values(pool))) == len(pool)
