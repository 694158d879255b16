"""`driftbox run` with queries: short forms, a cascade whose crops go through the queue, and a package that does not import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.plug_ins import make_package
from tests.support.running_box import ROOT, RunningBox, eventually, write_classifier

PATIENCE_S = 400.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def queries(box: RunningBox) -> dict[str, Any]:
    status = box.status()
    return {query["name"]: query for camera in status["cameras"][:1] for query in camera["queries"]} if status else {}


def test_a_box_answers_what_it_is_asked(tmp_path: Path, boxes: list[RunningBox]) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    make_package(
        packages, "driftbox-broken", modules={"driftbox_broken": "import not_there"}, transforms={"odd": "driftbox_broken:Odd"}
    )
    weights = write_classifier(tmp_path / "small.safetensors")
    box = RunningBox(
        tmp_path,
        f"""
window: {{seconds: 600, first_seconds: 600}}
scheduler: {{policy: no-retrain, drift: {{enabled: false}}}}
models:
  serving: trained
  tasks: {{classification: {{edge: "{weights}"}}}}
cameras:
  - id: street
    url: "rendered:street?seed=101&fps=5"
    fps: 2
    queries:
      - {{name: crossed, template: lines, lines: {{mid: [[0.5, 0.0], [0.5, 1.0]]}}}}
      - {{name: seen, template: count}}
      - {{name: broken, nodes: [{{transform: decode}}, {{transform: odd}}]}}
      - name: cascade
        lag_goal_s: 60
        nodes: [{{transform: decode}}, {{transform: detect}}, {{transform: classify, knobs: {{crop_limit: [4]}}}}, {{transform: count}}]
""",
        environment={"PYTHONPATH": f"{packages}:{ROOT}"},
    )
    boxes.append(box)

    def answered() -> dict[str, Any] | None:
        found = queries(box)
        running = [q for q in ("crossed", "seen", "cascade") if found.get(q, {}).get("frames", 0) >= 5]
        cropped = found.get("cascade", {}).get("results", {}).get("classify", {}).get("crops", 0)
        return found if len(running) == 3 and cropped else None

    found = eventually(answered, "the queries answer", PATIENCE_S)
    assert {name: query["state"] for name, query in found.items()} == {
        "crossed": "running", "seen": "running", "broken": "unusable", "cascade": "running",
    }  # fmt: skip
    assert "not_there" in found["broken"]["reason"]
    assert set(found["crossed"]["results"]["lines"]["lines"]["mid"]) == {"in", "out", "classes"}
    assert {query["failed_frames"] for query in found.values()} == {0}
    assert found["cascade"]["results"]["classify"]["crops"] <= 4
    assert box.stop() == 0
    assert "the query broken cannot run" in box.output.read_text()
