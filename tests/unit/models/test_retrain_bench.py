"""`bench retrain`: which frames it takes, that rows are measured once, and that a row says what happened."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge.footage import footage_of_videos
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_retrain


def sets() -> bench_retrain.Sets:
    def pictures(first: int, n: int) -> list[LabelledImage]:
        return [LabelledImage(image=image, labels=found) for image, found in (scripted_image(first + i) for i in range(n))]

    return {"older": pictures(0, 6), "new": pictures(100, 8), "later": pictures(200, 12), "earlier": pictures(300, 12)}


def test_every_row_changes_one_thing_and_gets_a_better_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_retrain, "KNOBS", {"base": replace(bench_retrain.BASE, lr=0.02), "bfloat16": bench_retrain.BASE})
    edge, kept = FakeDetector(skill=0.3), {}
    before, base, half = bench_retrain.rows("street", edge, sets(), ("base", "bfloat16"), kept)
    assert (before.knob, before.gpu_s) == ("before", 0.0)
    assert base.later > before.later + 0.2
    assert base.earlier > before.earlier + 0.2
    assert base.gpu_s > 0
    assert edge.skill == pytest.approx(0.3), "a copy was trained"
    assert "bfloat16" in bench_retrain.line(half)
    again = list(bench_retrain.rows("street", FakeDetector(skill=0.9), sets(), ("base", "bfloat16"), kept))
    assert again == [before, base, half], "kept rows are not measured again"


def test_one_knob_at_a_time() -> None:
    from dataclasses import asdict

    base = asdict(bench_retrain.BASE)
    for knob, config in bench_retrain.KNOBS.items():
        changed = [name for name, value in asdict(config).items() if value != base[name]]
        assert len(changed) == (0 if knob in ("base", "bfloat16") else len(knob.split(","))), knob


def test_sets_lie_where_they_are_said_to(tmp_path: Path) -> None:
    from tests.support.scripted_video import write_scripted_video

    path = tmp_path / "clip.mp4"
    write_scripted_video(path, frames=200)
    [footage] = footage_of_videos([path])
    found = bench_retrain.labelled_sets(footage, FakeDetector(skill=1.0))
    assert {name: len(pictures) for name, pictures in found.items()} == {"older": 24, "new": 40, "later": 30, "earlier": 16}
