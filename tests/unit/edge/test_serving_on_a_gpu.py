"""The choice of a serving form where models are on a GPU: timed until the device is done, compared in turns, remembered for that GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge import form_child
from edge.form_making import Made, Wanted, make_form, spent_on, times_ms
from edge.serving import AUTO, ON_CPU, ON_GPU, Serving, choice_key, runnable, tries_on
from models.detector import ServedBody
from models.fake import FakeDetector, scripted_image
from models.serving.base import Files, Form, Runtime, ShapePx
from models.serving.served import ServedDetector
from models.serving.torch_runtime import TorchRuntime
from models.tasks.base import Picture
from models.tasks.detection import DETECTION

PICTURES = [scripted_image(seed)[0] for seed in range(8)]


class Gpu:
    """A GPU whose work a thread only launches: it is done when somebody waits for it. name: what torch calls it. load: how much slower
    everything on it is, because of what others do there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "NVIDIA L4") -> None:
        self.name, self.load = name, 1.0
        self._now_s = self._queued_s = 0.0
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: self.name)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 9))
        monkeypatch.setattr("torch.cuda.synchronize", self._wait)
        clocks = SimpleNamespace(perf_counter=lambda: self._now_s, thread_time=lambda: 0.0)
        monkeypatch.setattr("edge.form_making.time", clocks)

    def launch(self, cost_s: float) -> None:
        self._queued_s += self.load * cost_s

    def _wait(self, device: str) -> None:
        assert device == "cuda"
        self._now_s, self._queued_s = self._now_s + self._queued_s, 0.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


class OnGpu(FakeDetector):
    """A trained model of which a picture costs the GPU 10 ms, or as much as is said."""

    gpu: Gpu
    cost_s = 0.010

    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        self.gpu.launch(self.cost_s * len(images))
        return super().predict(images, **options)


def model_on(gpu: Gpu, cost_s: float = 0.010, skill: float = 0.8) -> OnGpu:
    made = OnGpu(skill=skill)
    made.gpu, made.cost_s = gpu, cost_s
    return made


class Launched:
    """A runtime whose form costs the GPU `cost_s` a picture. fault: what is wrong with it; load: of the GPU while it is measured."""

    precision, portable, calibrated = "fp32", False, False
    libraries: tuple[str, ...] = ("torch",)

    def __init__(self, name: str, gpu: Gpu, cost_s: float, *, fault: str = "", load: float = 1.0) -> None:
        self.name, self.fault, self.load, self._gpu, self._cost_s = name, fault, load, gpu, cost_s
        self.checked = 0

    def missing(self) -> str:
        return "not installed" if self.fault == "missing" else ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        return {}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> Form:
        if self.fault == "memory":
            raise RuntimeError("CUDA out of memory")
        return LaunchedForm(TorchRuntime().start({}, body, shape_px), self._gpu, self._cost_s, self.fault)


class LaunchedForm:
    memory_mib = 1.0

    def __init__(self, inner: Form, gpu: Gpu, cost_s: float, fault: str) -> None:
        self._inner, self._gpu, self._cost_s, self._fault = inner, gpu, cost_s, fault

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        self._gpu.launch(self._cost_s)
        found = self._inner.run(array)
        if self._fault == "nan":
            return [np.full_like(output, np.nan) for output in found]
        return [np.zeros_like(found[0]), found[1]] if self._fault == "wrong" else found

    def widen(self) -> None: ...

    def close(self) -> None: ...


class Place:
    """A `Serving` of models on a GPU over scripted runtimes, which makes its forms in this process."""

    def __init__(self, folder: Path, gpu: Gpu, runtimes: Sequence[Launched], device: str = "cuda") -> None:
        self.gpu, self.runtimes, self.told = gpu, {runtime.name: runtime for runtime in runtimes}, list[str]()
        self.serving = Serving(
            AUTO, folder, newest=lambda camera: [Picture(image=image) for image in PICTURES], task_of=lambda camera: DETECTION,
            tell=lambda camera, text: self.told.append(text), build_s=5.0, device=device, make=self.made, runtimes=self.runtime,
            aside=lambda work: None,
        )  # fmt: skip
        self.device = device

    def runtime(self, name: str) -> Launched:
        return self.runtimes.get(name) or Launched(name, self.gpu, 0.0, fault="missing")

    def made(self, wanted: Wanted) -> Made:
        """What the child does, by the clock of its device."""
        runtime = self.runtime(wanted.runtime)
        runtime.checked += 1
        self.gpu.load = runtime.load
        try:
            return make_form(wanted, runtime, spent_s=spent_on(self.device))
        finally:
            self.gpu.load = 1.0

    def checked(self) -> dict[str, int]:
        return {name: runtime.checked for name, runtime in self.runtimes.items()}


def name_of(detector: object) -> str:
    return detector.runtime.name if isinstance(detector, ServedDetector) else "trained"


# --- time -------------------------------------------------------------------------------------------------------------


def test_on_cores_it_is_the_threads_time() -> None:
    assert spent_on("cpu") is time.thread_time


def test_on_a_gpu_a_prediction_takes_until_the_device_is_done(gpu: Gpu) -> None:
    slow, fast = model_on(gpu), model_on(gpu, 0.004)
    gpu.launch(5.0)  # what was begun before is not the first one's
    assert times_ms((slow, fast), PICTURES, spent_s=spent_on("cuda")) == pytest.approx([10.0, 4.0])


def test_the_child_takes_the_time_of_the_device_that_its_model_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []

    def make(wanted: Wanted, runtime: Runtime, **options: object) -> Made:
        used.append(options["spent_s"])
        return Made()

    monkeypatch.setattr(form_child, "make_form", make)
    monkeypatch.setattr(form_child, "spent_on", lambda device: f"clock of {device}")
    wanted = Wanted(runtime="torch-compiled", detector=FakeDetector())
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(form_child, "read_order", lambda folder, device=device: (wanted, tmp_path / "kept", device))
        assert form_child.main(tmp_path) == 0
    assert used == ["clock of cpu", "clock of cuda"]


# --- the choice -------------------------------------------------------------------------------------------------------


def test_each_device_has_forms_of_its_own() -> None:
    assert (tries_on("cpu"), tries_on("cuda")) == (ON_CPU, ON_GPU)
    assert set(ON_GPU) == {"tensorrt-fp16", "tensorrt", "torch-graph-fp16", "torch-compiled", "onnxruntime"}


def test_what_the_machine_cannot_run_is_passed_over(gpu: Gpu) -> None:
    faults = {
        "tensorrt-fp16": "missing",
        "tensorrt": "missing",
        "torch-graph-fp16": "",
        "torch-compiled": "",
        "onnxruntime": "",
    }
    names = runnable(ON_GPU, lambda name: Launched(name, gpu, 0.0, fault=faults[name]))
    assert names == ("torch-graph-fp16", "torch-compiled", "onnxruntime")


def test_auto_serves_the_form_that_the_gpu_runs_fastest_and_says_what_the_model_says(tmp_path: Path, gpu: Gpu) -> None:
    forms = [Launched("tensorrt", gpu, 0.004), Launched("torch-compiled", gpu, 0.003), Launched("openvino", gpu, 0.0)]
    place, model = Place(tmp_path, gpu, forms), model_on(gpu)
    served = place.serving.serve(model, "yard")
    assert name_of(served) == "torch-compiled"
    for image in PICTURES:
        assert np.array_equal(served.predict([image])[0].xyxy, model.predict([image])[0].xyxy)
    assert place.checked() == {"tensorrt": 1, "torch-compiled": 1, "openvino": 0}, "cores are promised nothing here"
    assert place.told == []
    [remembered] = json.loads((tmp_path / "choices.json").read_text()).values()
    assert remembered == {
        "order": ["torch-compiled", "tensorrt"],
        "ms": {"tensorrt": 4.0, "torch-compiled": 3.0, "trained": 10.0},
    }


def test_forms_are_compared_by_what_the_trained_model_took_beside_them(tmp_path: Path, gpu: Gpu) -> None:
    """They are made one after the other, and the cameras do not keep the GPU equally busy all the time."""
    busy, idle = Launched("tensorrt-fp16", gpu, 0.002, load=4.0), Launched("tensorrt", gpu, 0.005)
    place = Place(tmp_path, gpu, [busy, idle])
    assert name_of(place.serving.serve(model_on(gpu), "yard")) == "tensorrt-fp16"
    [remembered] = json.loads((tmp_path / "choices.json").read_text()).values()
    assert remembered["order"] == ["tensorrt-fp16", "tensorrt"]
    assert remembered["ms"]["tensorrt-fp16"] == pytest.approx(8.0), "by the clock it took longer than the other"


@pytest.mark.parametrize("fault", ["nan", "wrong", "memory", "missing"])
def test_a_fast_form_with_a_fault_does_not_serve(fault: str, tmp_path: Path, gpu: Gpu) -> None:
    place = Place(tmp_path, gpu, [Launched("tensorrt-fp16", gpu, 0.001, fault=fault), Launched("tensorrt", gpu, 0.002)])
    assert name_of(place.serving.serve(model_on(gpu), "yard")) == "tensorrt"


def test_a_form_that_keeps_the_gpu_longer_than_the_trained_model_does_not_serve(tmp_path: Path, gpu: Gpu) -> None:
    place, model = Place(tmp_path, gpu, [Launched("torch-compiled", gpu, 0.012)]), model_on(gpu)
    assert place.serving.serve(model, "yard") is model
    assert "serves as trained" in place.told[0]


# --- remembered -------------------------------------------------------------------------------------------------------


def test_the_same_gpu_is_not_measured_again_and_another_one_is(tmp_path: Path, gpu: Gpu) -> None:
    def serve() -> dict[str, int]:
        place = Place(tmp_path, gpu, [Launched("tensorrt", gpu, 0.002), Launched("torch-compiled", gpu, 0.003)])
        assert name_of(place.serving.serve(model_on(gpu), "yard")) == "tensorrt"
        return place.checked()

    assert serve() == {"tensorrt": 1, "torch-compiled": 1}
    assert serve() == {"tensorrt": 1, "torch-compiled": 0}, "the fastest alone is made"
    gpu.name = "NVIDIA A2"
    assert serve() == {"tensorrt": 1, "torch-compiled": 1}


def test_a_box_that_changes_to_its_gpu_measures_again(tmp_path: Path, gpu: Gpu) -> None:
    """onnxruntime is a form of both, and was the best on cores."""
    on_cores = Place(tmp_path, gpu, [Launched("onnxruntime", gpu, 0.0)], device="cpu")
    on_cores.serving.serve(FakeDetector(skill=0.8), "yard")
    assert on_cores.checked() == {"onnxruntime": 1}
    on_gpu = Place(tmp_path, gpu, [Launched("onnxruntime", gpu, 0.005), Launched("tensorrt", gpu, 0.002)])
    assert name_of(on_gpu.serving.serve(model_on(gpu), "yard")) == "tensorrt"
    assert on_gpu.checked() == {"onnxruntime": 1, "tensorrt": 1}
    again = Place(tmp_path, gpu, [Launched("onnxruntime", gpu, 0.0)], device="cpu")
    again.serving.serve(FakeDetector(skill=0.7), "yard")
    assert len(json.loads((tmp_path / "choices.json").read_text())) == 2, "and both are remembered"


def test_a_choice_is_remembered_under_the_gpu_and_what_was_tried(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FakeDetector().spec
    key = choice_key(spec, "cuda", ON_GPU)
    assert "NVIDIA L4, compute capability 8.9" in key
    assert choice_key(spec, "cuda", ON_GPU[:3]) != key, "under another backend another set is tried"
    gpu.name = "NVIDIA L4 MIG 1g.6gb"
    assert choice_key(spec, "cuda", ON_GPU) != key
    on_cores = choice_key(spec)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choice_key(spec) == on_cores, "cores do not care which GPU lies beside them"
    assert choice_key(spec, "cuda", ON_GPU) not in (key, on_cores)
