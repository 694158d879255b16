"""What a live box keeps of every measurement of its serving model: how many pictures are behind it, how sure it is, and what the version
that was replaced does on the same pictures. The fleet judges rollouts by it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge import jobs
from edge.clock import SystemClock
from edge.fleet.report import measured_of
from edge.gpu.lanes import LaneBackend
from edge.live_jobs import LiveJobs
from edge.store.store import QualityPoint, Store
from models.fake import FakeDetector
from models.tasks.detection import DETECTION
from scheduler.commands import StartGate, StartLabelling, StartLook, StartProbe, StartRetraining
from scheduler.types import RetrainConfig
from tests.support.memory_samples import MemorySamples

SKILL = {"old": 0.9, "new": 0.4, "other": 0.6}


class Box:
    """A box that serves `new`, which has replaced `old`."""

    def __init__(self, path: Path) -> None:
        self.store, self.replaced = Store(path), "old"
        shelf = SimpleNamespace(
            detector=lambda version: FakeDetector(skill=SKILL[version]), replaced=lambda camera: self.replaced
        )
        parts = SimpleNamespace(
            samples=MemorySamples({("a", 0): 60, ("a", 1): 30}), shelf=shelf, scoring=jobs.Scoring(golden_score_min=0.4), seed=1,
            steps=jobs.here, golden_of=lambda camera: FakeDetector(skill=1.0, arch="golden"), clock=SystemClock(), store=self.store,
            labelling=jobs.label.PLAIN,
        )  # fmt: skip
        self.live: Any = LiveJobs(parts, on_epoch=lambda *_: None, task_of=lambda _: DETECTION)  # type: ignore[arg-type]
        self.backend = LaneBackend(capacity_pct=100)

    def does(self, command: Any) -> Any:
        lane = self.backend.open_lane(command.job)
        self.backend.set_shares({command.job: 100.0})
        began_s = time.thread_time()
        event = self.live.body(command)(lane, lambda: time.thread_time() - began_s)(5.0)
        self.backend.close_lane(command.job)
        return event

    def labels(self) -> None:
        self.does(StartLabelling(job="l", stream="a", window=0, frames=30, holdout_frac=0.4, version="new"))

    def probes(self, *candidates: str) -> None:
        self.does(StartProbe(job="p", stream="a", window=0, version="new", candidates=candidates))

    def kept(self) -> list[QualityPoint]:
        return self.store.quality("a")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path / "driftbox.db")
    yield made
    made.backend.close()
    made.store.close()


def test_labels_say_how_many_pictures_judged_and_how_sure_that_is(box: Box) -> None:
    box.labels()
    (point,) = box.kept()
    assert (point.version, point.frames, point.over, point.gain) == ("new", 12, "", None)
    assert point.error is not None
    assert 0 < point.error < 0.3


def test_a_probe_of_what_was_replaced_says_what_the_version_gained_on_the_same_pictures(box: Box) -> None:
    box.labels()
    box.probes("other", "old")
    labelled, proved = box.kept()
    assert (proved.version, proved.over, proved.frames, proved.number) == ("new", "old", 12, labelled.number + 1)
    assert proved.value == labelled.value, "the same pictures"
    assert proved.gain is not None
    assert proved.gain_error is not None
    assert proved.gain < -2 * proved.gain_error < 0, "it was worse than what it replaced, and that is sure"
    assert len(measured_of(box.kept())) == 2


def test_a_probe_of_other_versions_proves_nothing(box: Box) -> None:
    box.labels()
    box.probes("other")
    box.replaced = ""
    box.probes("old")
    assert len(box.kept()) == 1


def test_a_gate_measures_the_serving_model_too(box: Box) -> None:
    box.labels()
    box.does(StartGate(job="g", stream="a", window=1, version="new", candidate="other", frames=10))
    point = box.kept()[-1]
    assert (point.version, point.frames) == ("new", 10), "older pictures that judge the gain are not among them"
    assert point.error is not None
    assert point.error > 0


def test_what_was_measured_before_this_was_kept_is_not_told(box: Box) -> None:
    box.store.add_quality(QualityPoint(stream="a", at_utc=1.0, value=0.5, kind="f1", version="old"))
    assert measured_of(box.kept()) == ()


def test_a_glance_at_the_window_in_progress_takes_nothing_from_what_is_known_of_the_last_one(box: Box) -> None:
    """A model that is made later in the window is of the last one, and a restart finds it again by what that was like."""
    told: dict[str, Any] = {}
    box.live._parts.shelf.keep_candidate = lambda camera, **about: told.update(about) or SimpleNamespace(id="made")
    box.labels()
    seen = box.does(StartLook(job="s", stream="a", window=0, frames=8, version="new")).signature
    box.does(StartLook(job="i", stream="a", window=1, frames=8, version="new"))
    judged = box.does(StartLabelling(job="c", stream="a", window=1, frames=8, holdout_frac=1.0, version="new"))
    assert (judged.train, judged.holdout) == (0, 8), "what chooses a model is never trained on"
    config = RetrainConfig(name="full", epochs=1)
    command = StartRetraining(job="t", stream="a", window=0, version="new", config=config)
    assert box.live._keep(command, "a", FakeDetector(skill=0.5), 1.0) == "made"
    assert told["signature"] == seen
    assert told["traits"] is not None
