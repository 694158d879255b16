"""`driftbox models prune` on the data folder of a box with a real little model and labels of a rendered scene."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge import cli
from edge.clock import SystemClock
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from models.fake import scripted_image
from models.versions import read_manifest
from scheduler.types import Frame
from streams.rendered.scene import RenderedScene
from streams.samples import SampleStore

PICTURES = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Camera gate has labels, yard has none."""
    root = tmp_path_factory.mktemp("made") / "data"
    with DataFolder(root) as folder, Store(folder.db_path) as store:
        shelf, samples = Shelf(folder, store, SystemClock()), SampleStore(folder.samples_dir)
        for camera in ("gate", "yard"):
            shelf.ensure(camera, "tinydet-edge")
        scene = RenderedScene("street", 101)
        for n in range(PICTURES):
            image, labels = scene.render(100.0 + 7.0 * n)
            ref = samples.add(Frame(stream="gate", seq=n, captured_s=float(n), captured_utc=float(n), image=image), 3)
            samples.label(ref, labels, "test", "holdout" if n % 4 == 3 else "train")
    return root


def run(root: Path, capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["models", "prune", *words, "--data-dir", str(root)])
    said = capsys.readouterr()
    assert (ended.value.code or 0) == code, said.err + said.out
    assert "Traceback" not in said.err + said.out
    return said.out + said.err


@pytest.fixture(scope="module")
def done(made: Path) -> dict[str, Any]:
    from edge.models_prune import prune_version

    told: list[str] = []
    found = prune_version(made, "gate-000001", ratio=0.2, epochs=15, told=told.append)
    return {"found": found, "told": told}


def test_it_is_smaller_was_taught_and_is_judged_on_what_it_has_not_seen(done: dict[str, Any]) -> None:
    found = done["found"]
    assert found.after.weights < 0.75 * found.before.weights
    assert found.before.ms > 0
    assert found.after.ms > 0
    assert (found.lessons, found.held_out) == (12, 4)
    assert found.before.quality is not None
    assert found.after.quality is not None
    assert found.before.quality > 0.5
    assert found.after.quality > 0.6, "untaught it finds nothing"
    assert [text.partition(":")[0] for text in done["told"] if text.startswith("epoch")][::14] == [
        "epoch 1 of 15",
        "epoch 15 of 15",
    ]


def test_it_waits_as_a_candidate_that_no_gate_takes_up_by_itself(made: Path, done: dict[str, Any]) -> None:
    version = done["found"].version
    with DataFolder(made, beside=True) as folder, Store(folder.db_path) as store:
        kept, shelf = store.model(version), Shelf(folder, store, SystemClock())
        assert (kept.state, kept.version.parent) == (ModelState.CANDIDATE, "gate-000001")
        assert version not in shelf.offered("gate")
        assert shelf.serving_version("gate").id == "gate-000001"
        detector = shelf.detector(version)
        assert detector.spec.pruned
        assert len(detector.predict([scripted_image(0)[0]])) == 1
        manifest = read_manifest(folder.version_dir("gate", version))
    assert dict(manifest.origin) == {"kind": "prune", "version": "gate-000001", "ratio": "0.2"}
    assert manifest.config is not None
    assert manifest.config.distill == 1.0


def test_the_command_says_what_it_saves_and_how_to_let_it_serve(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(made, capsys, 0, "gate-000001", "--ratio", "0.3", "--epochs", "1")
    assert "ms of CPU a picture as trained, F1 0." in said
    assert "learned from 12 labelled pictures, judged on 4 others" in said
    version = next(word.rstrip(":") for word in said.split() if word.startswith("gate-x"))
    assert f"`driftbox models promote {version} --force`" in " ".join(said.split())
    found = json.loads(run(made, capsys, 0, "gate-000001", "--epochs", "1", "--json"))
    assert set(found) == {"version", "camera", "before", "after", "lessons", "held_out"}


def test_what_cannot_be_pruned_is_refused_and_leaves_nothing(
    made: Path, done: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in (made / "models" / "gate").iterdir())
    assert "no labels to learn from" in run(made, capsys, 2, "yard-000001")
    assert "cannot be pruned" in run(made, capsys, 2, "gate-000001", "--ratio", "1.5")
    assert "is pruned already" in run(made, capsys, 2, done["found"].version)
    assert "teach nothing" in run(made, capsys, 2, "gate-000001", "--epochs", "0")
    assert "gate-000099" in run(made, capsys, 2, "gate-000099")
    assert sorted(path.name for path in (made / "models" / "gate").iterdir()) == before
    assert not list((made / "models" / "yard").glob("yard-x*"))
