"""Two versions on the same held-out pictures: which pictures, what is counted, and how it keeps out of the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.errors import JobError, UsageError, WeightsError
from edge.before_after import REMEMBERED, SHARE_FRAC, Comparer, Sources
from edge.jobs import Scoring
from edge.samples import FileSamples
from models.detector import Detector
from models.fake import FakeDetector
from models.tasks.detection import DETECTION
from scheduler.types import Detections, Frame
from streams.samples import SampleRef, SampleStore
from tests.support.labelled_folder import labelled_folder

MODELS: dict[str, Callable[[], Detector]] = {
    "gate-1": lambda: FakeDetector(skill=0.0),
    "gate-2": lambda: FakeDetector(skill=1.0),
}


class Bench:
    """A comparer over the samples of a folder; loaded: versions that were loaded, rests: seconds it rested."""

    def __init__(self, store: SampleStore, *, most_s: float = 60.0) -> None:
        self.store, self.loaded, self.rests = store, [], []  # type: ignore[var-annotated]
        sources = Sources(
            detector=self.load,
            samples=FileSamples(store),
            windows=store.windows,
            task_of=lambda camera: DETECTION,
            scoring=Scoring(),
        )
        self.comparer = Comparer(sources, rest=self.rests.append, most_s=most_s)

    def load(self, version: str) -> Detector:
        self.loaded.append(version)
        if version == "damaged":
            raise WeightsError("its weights have changed", remedy="choose another version")
        return MODELS[version]()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(labelled_folder(tmp_path, windows=2))


def test_the_better_model_is_seen_to_be_better_on_held_out_pictures(bench: Bench) -> None:
    seen = bench.comparer.compare("gate", "gate-1", "gate-2", 3)
    assert (seen.window, seen.before, seen.after) == (1, "gate-1", "gate-2")
    [picture] = seen.pictures
    assert picture.sample == "gate/000001/000000003"  # the only held-out one of the newest window
    assert len(picture.labels) == picture.after.right == picture.before.missed == 6
    assert (picture.width_px, picture.height_px) == (128, 96)
    assert (seen.before_quality, seen.after_quality) == (0.0, 1.0)


def test_it_is_computed_once_until_a_label_changes(bench: Bench) -> None:
    first = bench.comparer.compare("gate", "gate-1", "gate-2", 3)
    assert bench.comparer.compare("gate", "gate-1", "gate-2", 3) is first
    assert bench.loaded == ["gate-1", "gate-2"]
    box = np.array([[1, 1, 20, 20]], np.float32)
    ref = SampleRef(stream="gate", window=1, seq=3)
    bench.store.correct(ref, Detections(xyxy=box, score=np.ones(1, np.float32), class_id=np.zeros(1, np.int64)))
    again = bench.comparer.compare("gate", "gate-1", "gate-2", 3)
    assert len(again.pictures[0].labels) == 1
    assert len(bench.loaded) == 4


def test_what_is_remembered_is_bounded(bench: Bench) -> None:
    for n in range(REMEMBERED + 3):
        MODELS[f"many-{n}"] = MODELS["gate-1"]
        bench.comparer.compare("gate", "gate-1", f"many-{n}", 1)
    assert len(bench.comparer._known) == REMEMBERED


def test_it_rests_after_every_prediction(bench: Bench) -> None:
    bench.comparer.compare("gate", "gate-1", "gate-2", 3)
    assert len(bench.rests) == 2
    assert all(seconds >= 0 for seconds in bench.rests)
    assert SHARE_FRAC <= 0.1


def test_only_one_at_a_time(bench: Bench) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow() -> Detector:
        began.set()
        may_end.wait(60)
        return FakeDetector()

    MODELS["slow"] = slow
    thread = threading.Thread(target=lambda: bench.comparer.compare("gate", "slow", "gate-2", 1))
    thread.start()
    assert began.wait(60)
    with pytest.raises(JobError) as refused:
        bench.comparer.compare("gate", "gate-1", "gate-2", 1)
    assert refused.value.code == "busy"
    may_end.set()
    thread.join(60)
    assert bench.comparer.compare("gate", "gate-1", "gate-2", 1).pictures


def test_one_that_takes_too_long_is_given_up_and_frees_the_place(tmp_path: Path) -> None:
    bench = Bench(labelled_folder(tmp_path, windows=1), most_s=0.0)
    may_end = threading.Event()
    MODELS["stuck"] = lambda: may_end.wait(60) and FakeDetector() or FakeDetector()
    with pytest.raises(JobError, match="took more than 0 s"):
        bench.comparer.compare("gate", "stuck", "gate-2", 1)
    may_end.set()
    free = bench.comparer._busy.acquire(timeout=60)
    assert free


def test_problems_are_told(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="have changed"):
        bench.comparer.compare("gate", "damaged", "gate-2", 1)
    with pytest.raises(UsageError) as gone:
        bench.comparer.compare("gate", "nobody", "gate-2", 1)
    assert gone.value.code == "not_found"
    with pytest.raises(UsageError, match="no held-out picture"):
        bench.comparer.compare("hall", "gate-1", "gate-2", 1)
    assert bench.comparer.compare("gate", "gate-1", "gate-2", 1).pictures


def test_pictures_without_objects_tell_nothing(tmp_path: Path) -> None:
    """An older window with objects is shown rather than a newer one without."""
    store = labelled_folder(tmp_path, windows=1)
    ref = store.add(Frame(stream="gate", seq=7, captured_s=0.0, captured_utc=0.0, image=np.zeros((96, 128, 3), np.uint8)), 5)
    store.label(ref, Detections.empty(), "golden", "holdout")
    assert Bench(store).comparer.compare("gate", "gate-1", "gate-2", 3).window == 0
