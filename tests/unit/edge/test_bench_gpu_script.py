"""`bench gpu` must run where only torch, torchvision and numpy are installed, and say so where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edge.gpu.fake_nvml import FakeGpu, FakeNvml
from edge.gpu.nvml import DeviceReader
from tests.benchmarks.gpu_sections import Table, nvml_facts

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "benchmarks" / "bench_gpu.py"

#: Installed here, absent on the machine with the GPU.
ABSENT = (
    "ultralytics", "av", "cv2", "pydantic", "pydantic_core", "typer", "rich", "scipy", "psutil", "sqlite_utils", "fastapi", "yaml",
    "safetensors", "onnx", "onnxruntime", "openvino", "nncf", "paho", "pynvml", "matplotlib", "prometheus_client", "cryptography",
)  # fmt: skip

BLOCKED = f"""
import runpy, sys
from importlib.machinery import PathFinder

class Absent(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Absent
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_3() -> None:
    done = run()
    assert done.returncode == 3, done.stderr
    assert "needs a CUDA GPU" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_sections_run_where_only_torch_torchvision_and_numpy_are(tmp_path: Path) -> None:
    done = run("--rehearse", "--out", str(tmp_path), "--sections", "facts,change,memory,fluid,precision")
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("gpu-*.json")
    document = json.loads(written.read_text(encoding="utf-8"))
    assert document["problems"] == {}
    sections = {row["section"] for row in document["rows"]}
    assert sections == {"facts", "change", "memory", "fluid", "precision"}
    assert all(row["met"] is None for row in document["rows"])  # a rehearsal claims nothing
    assert "| section | what |" in next(tmp_path.glob("gpu-*.md")).read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_unknown_section_is_refused() -> None:
    done = run("--rehearse", "--sections", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_what_nvml_says_is_compared_with_what_torch_sees() -> None:
    fake = FakeNvml([FakeGpu(uuid="GPU-a", throttle=4, processes=[(7, None)]), FakeGpu(uuid="GPU-b", memory_mib=40_960)])
    fake.fail("nvmlDeviceGetPowerUsage", "NOT_SUPPORTED", device=1)
    survey = DeviceReader(fake).read()
    table = Table("facts", None, counts=True)
    nvml_facts(table, survey, uuid="GPU-b", total_mib=40_500.0)
    rows = {row.what: row for row in table.rows}
    assert "power limit" in rows["NVML, GPU 0"].value
    assert "1 processes" in rows["NVML, GPU 0"].value
    assert "45 degrees C; not said; clocks held down: no" in rows["NVML, GPU 1"].value
    assert rows["NVML: the card that torch uses"].met
    for uuid, total_mib in (("GPU-c", 40_500.0), ("GPU-b", 81_000.0)):
        nvml_facts(table, survey, uuid=uuid, total_mib=total_mib)
        assert table.rows[-1].met is False


def test_a_driver_that_does_not_answer_is_a_row_that_missed() -> None:
    fake = FakeNvml([FakeGpu()])
    fake.fail("nvmlInit", "DRIVER_NOT_LOADED")
    table = Table("facts", None, counts=True)
    nvml_facts(table, DeviceReader(fake).read(), uuid="GPU-a", total_mib=1.0)
    assert [(row.what, row.met) for row in table.rows] == [("NVML", False)]
