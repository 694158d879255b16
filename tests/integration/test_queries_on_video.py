"""Queries on real pictures: people who cross lines on a campus path (PETS 2009 S2.L1), against the tracks that humans drew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edge.queries.base import QuerySpec, Scene, Tools, scene_of
from edge.queries.registry import query_spec
from edge.queries.runner import QueryRunner
from models.zoo import load_detector
from scheduler.types import Frame
from streams.video import read_frames
from tests.support.query_scenes import entries_of, free_meter

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
VIDEO = DATA / "videos" / "pets09_s2l1_view1.mp4"
TRUTH = DATA / "labels" / "pets09_s2l1_view1_groundtruth.xml"
WIDTH, HEIGHT, FPS = 768, 576, 10
#: Every second frame of the first 50 s: 5 a second.
FRAMES = range(0, 500, 2)
#: Upright lines across the path, where nobody hides behind the lamp post.
LINES = {"left": 0.35, "right": 0.65}

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not (VIDEO.is_file() and (DATA / "weights").is_dir()), reason="needs ../shared/data"),
]


def crossings_by_humans(x_frac: float) -> int:
    """How often somebody's feet pass an upright line, by the tracks that humans drew."""
    feet: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for frame in ElementTree.parse(TRUTH).getroot():
        for person in frame.iter("object"):
            box = person.find("box")
            assert box is not None
            if int(frame.attrib["number"]) in FRAMES:
                feet[person.attrib["id"]].append((int(frame.attrib["number"]), float(box.attrib["xc"])))
    sides = [[x > x_frac * WIDTH for _, x in sorted(path)] for path in feet.values()]
    return sum(a != b for path in sides for a, b in zip(path, path[1:], strict=False))


def spec() -> QuerySpec:
    lines = ", ".join(f"{name}: [[{x}, 0.0], [{x}, 1.0]]" for name, x in LINES.items())
    [entry] = entries_of(f"{{name: path, template: lines, classes: [person], lines: {{{lines}}}}}")
    return query_spec(entry, task="detection")


def crossings(scenes: Sequence[Scene]) -> dict[str, int]:
    runner = QueryRunner([spec()], Tools(camera_id="path", fps=FPS / 2), meter=free_meter, clock_s=lambda: 0.0)
    told = [outcome.told["lines"]["lines"] for scene in scenes for outcome in runner.step(scene)]
    assert len(told) == len(scenes)
    sums = [sum(line["in"] + line["out"] for line in frame.values()) for frame in told]
    assert sums == sorted(sums)  # what was counted stays counted
    return {name: line["in"] + line["out"] for name, line in told[-1].items()}


def test_people_who_cross_lines_are_counted_as_humans_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTBOX_WEIGHTS", str(DATA / "weights"))
    detector = load_detector("yolo26n@320")
    scenes = []
    for number, image in read_frames(VIDEO, stop=FRAMES.stop, only=set(FRAMES)):
        frame = Frame(stream="path", seq=number, captured_s=number / FPS, captured_utc=1.7e9 + number / FPS, image=image)
        scenes.append(scene_of(frame, shown=detector.predict([image])[0]))
    assert len(scenes) == len(FRAMES)
    found, true = crossings(scenes), {name: crossings_by_humans(x) for name, x in LINES.items()}
    print(f"crossings counted {found}, by humans {true}")
    assert sum(true.values()) > 20
    assert abs(sum(found.values()) - sum(true.values())) <= 0.15 * sum(true.values())
    assert crossings(scenes) == found  # the same pictures, the same number
