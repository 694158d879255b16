"""`driftbox models export --format ...` writes files that other programs run and that say what the version says."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.models_exchange import _write_form
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime
from models.versions import Manifest, save_version
from models.zoo import load_detector


@pytest.fixture
def place(tmp_path: Path) -> Path:
    detector = load_detector("tinydet-edge")
    folder = tmp_path / "version"
    folder.mkdir()
    manifest = Manifest(id="yard-1", stream="yard", parent=None, spec=detector.spec, config=None, window=None, created_utc=1.0)
    save_version(folder, manifest, detector.state())
    return folder


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_exported_files_run_elsewhere(form: str, place: Path, tmp_path: Path) -> None:
    out = _write_form(place, tmp_path / "exported", form)
    body = load_detector("tinydet-edge").body()
    if form == "onnx":
        running = OnnxRuntime().start({"model.onnx": out.read_bytes()}, body, body.example_px)
    else:
        running = OpenVinoRuntime().start({file.name: file.read_bytes() for file in out.iterdir()}, body, body.example_px)
    found = running.run(body.blank(body.example_px))
    assert [output.shape[1] for output in found] == [7, 4]


def test_an_export_that_fails_its_check_leaves_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from configs.errors import JobError

    monkeypatch.setattr("models.compress.export.DIFFERENCE_MAX", -1.0)
    with pytest.raises(JobError, match="does not say"):
        _write_form(place, tmp_path / "exported", "openvino")
    assert not (tmp_path / "exported").exists()
