"""A pooled training's order of steps: who is told when, who is waited for, and that nobody is asked on after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.riffle import campaign as campaign_module
from cluster.riffle.campaign import LOOK_S, Campaign, run
from cluster.riffle.plan import FixedCount
from cluster.riffle.train import Training
from configs.errors import JobError
from scheduler.fleet.pooling import Collected, CollectRequest
from scheduler.types import RetrainConfig

BOXES = ("north", "south")


class Scripted:
    """Boxes that answer at given times; everything after the gathering is noted and not done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, answer_at_s: dict[str, float]) -> None:
        self.now_s, self.told, self.words, self.folder = 0.0, list[tuple[str, str]](), dict[str, Collected](), folder
        self.requests = tuple(CollectRequest(id="r1", trainer="trainer", box=box, partitions=2) for box in BOXES)

        def answers(trainer: Any, requests: Any) -> dict[str, Collected]:
            return {
                box: Collected(request="r1", box=box, stage="given", left_out={})
                for box, at_s in answer_at_s.items()
                if at_s <= self.now_s
            }

        def shuffle(trainer: Any, requests: Any, words: dict[str, Collected], **_: Any) -> Any:
            self.words = words
            raise JobError("far enough", code="no_data")

        monkeypatch.setattr(campaign_module, "ask", lambda trainer, requests: self.told.append(("asked", "")))
        monkeypatch.setattr(campaign_module, "answers", answers)
        monkeypatch.setattr(campaign_module, "shuffle", shuffle)

    def run(self, gather_s: float) -> None:
        training = Training(config=RetrainConfig(name="c"), storage=self.folder)
        asked = Campaign(name="n", requests=self.requests, policy=FixedCount(files=2), training=training, gather_s=gather_s)

        def wait(seconds: float) -> None:
            self.now_s += seconds

        with pytest.raises(JobError, match="far enough"):
            run(
                asked, None, None, None, self.folder, tell=lambda *t: self.told.append(t), clock=lambda: self.now_s, wait=wait  # type: ignore[arg-type]
            )  # fmt: skip


def test_it_goes_on_as_soon_as_all_have_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted = Scripted(monkeypatch, tmp_path, {"north": 0.0, "south": 12.0})
    scripted.run(3600.0)
    assert scripted.now_s == 3 * LOOK_S
    assert sorted(scripted.words) == ["north", "south"]
    assert scripted.told == [("asked", ""), ("north", "r1"), ("south", "r1"), ("north", ""), ("south", "")]


def test_who_is_away_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted = Scripted(monkeypatch, tmp_path, {"north": 1.0})
    scripted.run(32.0)
    assert scripted.now_s == 32.0
    assert sorted(scripted.words) == ["north"]
    assert scripted.told[-2:] == [("north", ""), ("south", "")]
