"""A learning job that hangs inside an iteration of a live box: it is given up, the window goes on, the operator is told what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from models.fake import FakeDetector
from scheduler import events as ev
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import LiveBox

pytestmark = pytest.mark.slow


@dataclass
class Stuck:
    """The first picture that the golden model is shown is never done, until `over` is set."""

    entered: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class StuckGolden(FakeDetector):
    def __init__(self, stuck: Stuck) -> None:
        super().__init__(skill=1.0, arch="golden")
        self.stuck = stuck

    def predict(self, images: Any, **options: Any) -> Any:
        if not self.stuck.entered.is_set():
            self.stuck.entered.set()
            self.stuck.over.wait()
        return super().predict(images, **options)

    def clone(self) -> StuckGolden:
        return StuckGolden(self.stuck)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    put_fakes_in_the_zoo(monkeypatch)
    made = Stuck()
    yield made
    made.over.set()


def test_it_is_given_up_and_the_next_windows_label_and_learn(tmp_path: Path, stuck: Stuck) -> None:
    with LiveBox(tmp_path / "data", {"a": "fake"}, golden=StuckGolden(stuck)) as box:
        box.wait(stuck.entered.is_set, "the labelling is stuck")
        (hung,) = [job for job in box.runtime.jobs if "/label/" in job]
        thread = box.runtime.jobs[hung].thread
        box.backend._hung_s = 0.3  # instead of a minute; nothing else learns meanwhile
        box.wait(lambda: bool([n for n in box.noted("compute-hung") if hung in n]), "the operator is told")
        box.backend._hung_s = 1e9
        (told,) = [n for n in box.noted("compute-hung") if hung in n]
        box.wait(lambda: hung not in box.runtime.jobs, "it is given up")
        box.wait(lambda: bool([e for e in box.seen(ev.JobFailed) if e.job == hung]), "the engine is told")
        failed = next(e for e in box.seen(ev.JobFailed) if e.job == hung)
        assert thread.is_alive(), "it cannot be taken away"
        labelled = box.wait_for(ev.LabelDone, "a")
        box.wait_for(ev.SwapDone, "a")
        box.wait_frames("a")
        assert labelled.job != hung
        assert "restart the box if it goes on" in told
        assert failed.code == "hung"
        stuck.over.set()
        thread.join(60.0)
        assert not thread.is_alive()
        box.wait_frames("a")
        assert hung not in box.backend.report(), "its lane goes with its thread"
        assert box.replayed().exact
    assert not [e for e in box.seen(ev.LabelDone) if e.job == hung], "what it found too late counts for nothing"
