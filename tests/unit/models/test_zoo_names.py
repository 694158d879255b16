"""Names, paths and sizes of detectors; what a wrong one is told; which library each needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from configs.errors import UsageError, WeightsError
from models.detector import DetectorSpec
from models.zoo import ZOO, entry_of, load_detector, new_detector, spec_of, split_size


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTBOX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DRIFTBOX_WEIGHTS", raising=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("yolov8n", ("yolov8n", None)),
        ("yolov8n@320", ("yolov8n", 320)),
        ("/a/b.pt@480", ("/a/b.pt", 480)),
        ("/srv/me@box/b.pt", ("/srv/me@box/b.pt", None)),
        ("/srv/me@12/b.pt", ("/srv/me@12/b.pt", None)),
    ],
)
def test_sizes_in_names(name: str, expected: tuple[str, int | None]) -> None:
    assert split_size(name) == expected


@pytest.mark.parametrize("name", ["yolov8n@0", "yolov8n@31", "yolov8n@99999"])
def test_impossible_sizes_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match="out of range"):
        load_detector(name)


def test_unknown_names_are_told_the_known_ones() -> None:
    for call in (entry_of, load_detector):
        with pytest.raises(UsageError) as caught:
            call("yolov99")
        assert "'yolov99'" in caught.value.message
        assert all(arch in caught.value.remedy for arch in ZOO)


def test_the_table_has_both_roles_and_the_promised_models() -> None:
    assert {"yolov8n", "yolo11n", "yolo26n", "yolo26s", "yolo26l", "ssdlite320", "tinydet-edge", "tinydet-golden"} <= set(ZOO)
    assert {entry.role for entry in ZOO.values()} == {"edge", "golden"}
    assert all(entry.arch == arch for arch, entry in ZOO.items())
    assert spec_of("yolov8n") == DetectorSpec(arch="yolov8n", input_px=320)
    assert spec_of("yolo26l") == DetectorSpec(arch="yolo26l", input_px=640)
    assert spec_of("yolov8n", 416).input_px == 416


def test_tinydet_has_one_size() -> None:
    with pytest.raises(UsageError, match="256 px only"):
        spec_of("tinydet-edge", 320)
    assert spec_of("tinydet-edge", 256).input_px == 256


def test_missing_weights_say_where_to_put_them(tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        load_detector("yolov8n", download=False)
    assert str(tmp_path / "cache" / "yolov8n.pt") in caught.value.remedy


def saved(path: Path, meta: dict[str, str]) -> Path:
    detector = new_detector(DetectorSpec(arch="ssdlite320", input_px=96), seed=5)
    safetensors.torch.save_file(detector.state(), str(path), metadata=meta)
    return path


def test_a_safetensors_file_that_names_its_arch_is_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.safetensors", {"arch": "ssdlite320"})
    detector = load_detector(f"{path}@128")
    assert detector.spec == DetectorSpec(arch="ssdlite320", input_px=128)
    expected = safetensors.torch.load_file(str(path))
    assert all(torch.equal(expected[name], tensor) for name, tensor in detector.state().items())


@pytest.mark.parametrize(("meta", "message"), [({}, "does not say"), ({"arch": "resnet"}, "'resnet' is not known")])
def test_a_file_of_unknown_arch_is_refused(meta: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        load_detector(str(saved(tmp_path / "x.safetensors", meta)))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", {"arch": "fcos_resnet50_fpn"})
    with pytest.raises(WeightsError, match="do not fit fcos_resnet50_fpn: tensor"):
        load_detector(str(path))


def test_classes_of_its_own_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", {"arch": "ssdlite320", "names": json.dumps(["cat", "dog"])})
    with pytest.raises(WeightsError, match="2 classes of its own"):
        load_detector(str(path))


BLOCKED = """
import sys
sys.modules["ultralytics"] = None  # any import of it fails
import numpy as np
from models.detector import DetectorSpec
from models.zoo import new_detector
from configs.errors import DriftboxError
image = np.zeros((48, 64, 3), np.uint8)
for arch, px in (("ssdlite320", 64), ("tinydet-edge", 256)):
    assert len(new_detector(DetectorSpec(arch=arch, input_px=px)).predict([image])) == 1
try:
    new_detector(DetectorSpec(arch="yolov8n", input_px=64))
except DriftboxError as error:
    print(error.code, error.exit_code, "ssdlite320" in error.remedy)
"""


def test_without_ultralytics_the_others_work_and_yolo_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["environment", "3", "True"]


def test_importing_the_table_imports_neither_library() -> None:
    script = "import sys, models.zoo, models.retrain; print([m for m in ('ultralytics', 'torchvision') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['torchvision']")
    assert "ultralytics" not in done.stdout


def test_only_one_file_imports_ultralytics() -> None:
    root = Path(__file__).resolve().parents[3]
    importing = {
        path.relative_to(root).as_posix()
        for package in ("edge", "models", "streams", "scheduler", "cluster", "configs")
        for path in (root / package).rglob("*.py")
        if any(line.strip().startswith(("import ultralytics", "from ultralytics")) for line in path.read_text().splitlines())
    }
    assert importing == {"models/ultralytics_detector.py"}
