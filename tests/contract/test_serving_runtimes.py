"""One contract, run over every runtime that a model can serve in. TensorRT runs against a stand-in for its library."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from configs.errors import DriftboxError, JobError, StorageError, UsageError
from models.detector import Detector, ServedBody, encoded_px
from models.serving import cache as cache_module
from models.serving import served as served_module
from models.serving.base import Files, Runtime, ShapePx
from models.serving.cache import FormCache, form_key
from models.serving.onnx_form import to_onnx
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime
from models.serving.registry import RUNTIMES, runtime_of
from models.serving.served import Deferred, ServedDetector, Twin, form_of, open_form
from models.serving.tensorrt_runtime import TensorRtRuntime
from models.serving.torch_runtime import CompiledRuntime, GraphRuntime, TorchRuntime
from models.torch_support import torch_threads
from models.zoo import load_detector
from streams.rendered import RenderedScene, Schedule
from tests.support.fake_tensorrt import FakeTensorRt


def captured(launch: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Stands in for CUDA graphs: does the work again, and leaves its results where the first ones lay."""
    places = launch()

    def replay() -> None:
        for place, output in zip(places, launch(), strict=True):
            place.copy_(output)

    return places, replay


MAKERS: dict[str, Callable[[], Runtime]] = {
    "torch": TorchRuntime,
    "torch-compiled": lambda: CompiledRuntime(backend="eager"),
    "torch-graph-fp16": lambda: GraphRuntime(device="cpu", capture=captured),
    "onnxruntime": OnnxRuntime,
    "onnxruntime-int8": lambda: OnnxRuntime(int8=True),
    "openvino": OpenVinoRuntime,
    "openvino-bf16": lambda: OpenVinoRuntime(bf16=True),
    "openvino-int8": lambda: OpenVinoRuntime(int8=True),
    "tensorrt": lambda: TensorRtRuntime(device="cpu"),
    "tensorrt-fp16": lambda: TensorRtRuntime(fp16=True, device="cpu"),
}
SLOW = {"onnxruntime-int8", "openvino-int8"}  # calibration, and the import of nncf


@pytest.fixture(scope="module")
def detector() -> Detector:
    return load_detector("tinydet-edge")


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    street = RenderedScene("street", 7, 320, 180, Schedule.always("day"))
    return [street.render(9.0 * k)[0] for k in range(8)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> FormCache:
    """What conversions left: each is made once for the tests that only run a form."""
    return FormCache(tmp_path_factory.mktemp("forms"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads():
        yield


@pytest.fixture(params=[pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MAKERS])
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    if request.param.startswith("tensorrt"):
        monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt())
    return MAKERS[request.param]()


def shape_of(body: ServedBody, picture: np.ndarray) -> ShapePx:
    return encoded_px(body.encode(picture)[0])


def tolerance(runtime: Runtime) -> float:
    """Allowed mean difference of raw outputs, as a part of their spread."""
    return {"fp32": 1e-4, "fp16": 1e-2, "bf16": 0.05, "int8": 0.15}[runtime.precision]


def test_the_table_and_this_contract_name_the_same_runtimes() -> None:
    assert set(MAKERS) == set(RUNTIMES)
    for name in RUNTIMES:
        assert runtime_of(name).name == name
    with pytest.raises(UsageError, match="openvino"):
        runtime_of("tvm")


def test_a_form_says_what_the_network_says(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], converted: FormCache
) -> None:
    body = detector.body()
    form = open_form(runtime, body, shape_of(body, pictures[0]), pictures, cache=converted)
    assert form.memory_mib > 0.05
    for picture in pictures[:3]:
        array, context = body.encode(picture)
        with torch.inference_mode():
            expected = [output.numpy() for output in body.network(torch.from_numpy(array))]
        got = form.run(array)
        assert [g.shape for g in got] == [e.shape for e in expected]
        for g, e in zip(got, expected, strict=True):
            assert g.dtype == np.float32
            assert np.isfinite(g).all()
            assert np.abs(g - e).mean() <= tolerance(runtime) * e.std()
        assert len(body.decode(got, context, 0.25)) >= 1
    form.close()


def test_served_predictions_match_the_trained_ones(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], converted: FormCache
) -> None:
    served = ServedDetector(
        detector, runtime, lambda body, shape, shown: open_form(runtime, body, shape, pictures, cache=converted)
    )
    served.prepare(pictures[0])
    trained = detector.predict(pictures)
    found = served.predict(pictures)
    assert served.last_error == ""
    same = sum(abs(len(a) - len(b)) <= (1 if runtime.precision == "int8" else 0) for a, b in zip(found, trained, strict=True))
    assert same == len(pictures)
    assert sum(len(d) for d in trained) > 0
    served.close()


def test_running_a_form_leaves_its_input_alone_and_repeats_itself(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], converted: FormCache
) -> None:
    body = detector.body()
    form = open_form(runtime, body, shape_of(body, pictures[0]), pictures, cache=converted)
    array, _ = body.encode(pictures[0])
    before = array.copy()
    first = [output.copy() for output in form.run(array)]
    form.run(body.encode(pictures[1])[0])
    assert all(np.array_equal(a, b) for a, b in zip(first, form.run(array), strict=True))
    assert np.array_equal(before, array)


def test_a_widened_form_is_run_by_several_threads_or_says_that_it_cannot_be(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], converted: FormCache
) -> None:
    body = detector.body()
    form = open_form(runtime, body, shape_of(body, pictures[0]), pictures, cache=converted)
    arrays = [body.encode(picture)[0] for picture in pictures[:3]]
    wanted = [[output.copy() for output in form.run(array)] for array in arrays]
    if runtime.name in ("torch-graph-fp16", "tensorrt", "tensorrt-fp16"):
        with pytest.raises(UsageError, match="one thread at a time"):
            form.widen()
        return
    for _ in arrays[1:]:
        form.widen()
    start, wrong = threading.Barrier(len(arrays)), list[int]()

    def body_of(n: int) -> None:
        start.wait()
        for _ in range(10):
            found = form.run(arrays[n])
            if not all(np.array_equal(a, b) for a, b in zip(found, wanted[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=body_of, args=(n,)) for n in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    form.close()


def test_a_form_takes_pixels_that_nobody_may_write_to(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], converted: FormCache
) -> None:
    """A frame that has the network's size already is handed over as it is, and others look at it, too."""
    body = detector.body()
    form = open_form(runtime, body, shape_of(body, pictures[0]), pictures, cache=converted)
    array, _ = body.encode(pictures[0])
    assert array.dtype == np.uint8
    expected = [output.copy() for output in form.run(array)]
    array.setflags(write=False)
    assert all(np.array_equal(a, b) for a, b in zip(expected, form.run(array), strict=True))


def test_files_survive_the_cache_and_need_no_second_conversion(
    runtime: Runtime, detector: Detector, pictures: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runtime.portable:
        pytest.skip("it has no files")
    body, cache, convert, made = detector.body(), FormCache(tmp_path), runtime.convert, []

    def counted(onnx: bytes, arrays: list[np.ndarray]) -> Files:
        made.append(runtime.name)
        return convert(onnx, arrays)

    monkeypatch.setattr(runtime, "convert", counted)
    shape_px = shape_of(body, pictures[0])
    first = open_form(runtime, body, shape_px, pictures, cache=cache)
    again = open_form(runtime, body, shape_px, [], cache=cache)
    assert made == [runtime.name]
    array, _ = body.encode(pictures[0])
    assert all(np.array_equal(a, b) for a, b in zip(first.run(array), again.run(array), strict=True))


@pytest.mark.parametrize("arrays", [[], [np.full((1, 32, 32, 3), 99, np.uint8)]], ids=["none", "one grey"])
@pytest.mark.parametrize("name", ["onnxruntime-int8", "openvino-int8"])
def test_nothing_to_calibrate_on_is_refused_plainly(name: str, arrays: list[np.ndarray], detector: Detector) -> None:
    onnx = to_onnx(detector.body(), (32, 32))
    with pytest.raises(JobError, match="pictures to calibrate") as caught:
        runtime_of(name).convert(onnx, arrays)
    assert caught.value.code == "no_data"


def test_pictures_of_another_shape_do_not_calibrate(detector: Detector, pictures: list[np.ndarray]) -> None:
    body = detector.body()
    tall = [np.ascontiguousarray(picture.transpose(1, 0, 2)) for picture in pictures]
    with pytest.raises(JobError, match="0 given"):
        open_form(OpenVinoRuntime(int8=True), body, shape_of(body, pictures[0]), tall)


class Strange(torch.nn.Module):
    """A network whose path depends on a value nobody knows before: it cannot be exported."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.linalg.lstsq(x[0, 0], x[0, 1]).solution,)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_network_that_cannot_be_exported_is_refused_plainly(name: str, detector: Detector) -> None:
    real = detector.body()
    body = ServedBody(network=Strange(), encode=real.encode, decode=real.decode, example_px=(32, 32))
    with pytest.raises(UsageError, match="cannot be written as ONNX"):
        open_form(runtime_of(name), body, (32, 32))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tensorrt"])
def test_files_that_are_no_model_are_refused_plainly(name: str, detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt())
    files = {"model.onnx": b"nonsense", "model.xml": b"<net/>", "model.bin": b"", "model.engine": b"nonsense"}
    with pytest.raises(DriftboxError, match="cannot load"):
        MAKERS[name]().start(files, detector.body(), (32, 32))


def test_tensorrt_says_what_its_parser_complains_of(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt())
    with pytest.raises(DriftboxError, match="cannot read this network: not an ONNX file"):
        TensorRtRuntime().convert(b"nonsense", [])


def test_tensorrt_that_is_not_installed_says_so() -> None:
    if TensorRtRuntime().missing() == "":
        pytest.skip("it is installed here")
    with pytest.raises(DriftboxError, match="tensorrt is not installed"):
        TensorRtRuntime().convert(b"", [])


# --- kept forms -------------------------------------------------------------------------------------------------------


#: A form in a cache of its own: the cache, of what body, for which pictures, and under which key.
Kept = tuple[FormCache, ServedBody, ShapePx, str]


@pytest.fixture
def kept(detector: Detector, pictures: list[np.ndarray], converted: FormCache, tmp_path: Path) -> Kept:
    body, cache = detector.body(), FormCache(tmp_path)
    shape_px = shape_of(body, pictures[0])
    open_form(OpenVinoRuntime(), body, shape_px, cache=converted)
    key = form_key(body.network, OpenVinoRuntime(), shape_px)
    files = converted.load(key)
    assert files is not None
    cache.store(key, files)
    return cache, body, shape_px, key


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "no list", "list is nonsense", "list is a list"])
def test_a_damaged_kept_form_is_made_again(
    harm: str, kept: Kept, pictures: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, body, shape_px, key = kept
    weights, about = tmp_path / key / "model.bin", tmp_path / key / "form.json"
    if harm == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif harm == "changed":
        weights.write_bytes(bytes(len(weights.read_bytes())))
    elif harm == "gone":
        weights.unlink()
    elif harm == "no list":
        about.unlink()
    else:
        about.write_text("[]" if harm == "list is a list" else "{{", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        form = open_form(OpenVinoRuntime(), body, shape_px, cache=cache)
    assert "made again" in caplog.text
    assert np.isfinite(form.run(body.encode(pictures[0])[0])[0]).all()
    assert cache.load(key) is not None, "the new one is kept"


def test_a_kept_form_that_is_whole_but_does_not_load_is_made_again(kept: Kept, pictures: list[np.ndarray]) -> None:
    cache, body, shape_px, key = kept
    cache.store(key, {"model.xml": b"<net/>", "model.bin": b""})
    form = open_form(OpenVinoRuntime(), body, shape_px, cache=cache)
    assert len(form.run(body.encode(pictures[0])[0])) == 2
    found = cache.load(key)
    assert found is not None
    assert len(found["model.bin"]) > 1000


def test_a_form_written_another_way_is_another_form(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    network = detector.body().network
    before = form_key(network, OpenVinoRuntime(), (64, 64))
    monkeypatch.setattr(cache_module, "FORM_FORMAT", cache_module.FORM_FORMAT - 1)
    assert form_key(network, OpenVinoRuntime(), (64, 64)) != before


def test_an_engine_of_another_gpu_is_another_form(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box into which another GPU was put, or whose data folder was moved to another one, makes its engines anew."""
    network, runtime = detector.body().network, TensorRtRuntime()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    keys = set()
    for name, capability in (("NVIDIA L4", (8, 9)), ("NVIDIA A2", (8, 6)), ("NVIDIA A2", (8, 9))):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        keys.add(form_key(network, runtime, (64, 64)))
    assert len(keys) == 3


def test_other_weights_are_another_form(detector: Detector) -> None:
    other = detector.clone()
    with torch.no_grad():
        next(other.trainable_layers()[0].parameters()).mul_(1.01)
    runtime = OpenVinoRuntime()
    keys = {form_key(d.body().network, r, (64, 64)) for d in (detector, other) for r in (runtime, OnnxRuntime())}
    assert len(keys) == 4
    assert form_key(detector.clone().body().network, runtime, (64, 64)) in keys


def test_a_full_disk_does_not_stop_serving(
    detector: Detector, pictures: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(FormCache):
        def store(self, key: str, files: Files) -> None:
            raise StorageError("no room", code="full")

    body = detector.body()
    with caplog.at_level(logging.WARNING):
        form = open_form(OpenVinoRuntime(), body, shape_of(body, pictures[0]), cache=Full(tmp_path))
    assert "no room" in caplog.text
    assert len(form.run(body.encode(pictures[0])[0])) == 2


def test_a_cache_that_cannot_be_written_says_full_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FormCache(tmp_path)
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if self.name == "second":
            raise OSError(28, "No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        cache.store("key", {"first": b"1", "second": b"2"})
    assert caught.value.code == "full"
    assert list(tmp_path.iterdir()) == []
    assert cache.load("key") is None


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    import os

    cache = FormCache(tmp_path, max_mib=3)
    for number, name in enumerate("abc"):
        cache.store(name, {"f": bytes(2**20 - 2000)})
        os.utime(tmp_path / name, (number, number))
    assert cache.load("a") is not None  # used just now
    cache.store("d", {"f": bytes(2**20 - 2000)})
    assert [name for name in "abcd" if cache.load(name)] == ["a", "c", "d"]


def test_parts_of_a_killed_writer_go_with_the_next_form(tmp_path: Path) -> None:
    (tmp_path / ".part-killed").mkdir(parents=True)
    (tmp_path / ".part-killed" / "model.bin").write_bytes(b"half")
    FormCache(tmp_path).store("a", {"f": b"1"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


# --- the served detector ----------------------------------------------------------------------------------------------


def opener(runtime: Runtime) -> served_module.Opener:
    return lambda body, shape, shown: open_form(runtime, body, shape)


def test_a_shape_never_seen_is_answered_by_the_trained_model_and_gets_its_form(
    detector: Detector, pictures: list[np.ndarray]
) -> None:
    waiting: list[Callable[[], None]] = []
    served = ServedDetector(detector, OnnxRuntime(), opener(OnnxRuntime()), aside=waiting.append)
    served.prepare(pictures[0])
    tall = np.ascontiguousarray(pictures[0].transpose(1, 0, 2))
    expected = detector.predict([tall], score_min=0.05)[0]
    assert np.array_equal(served.predict([tall], score_min=0.05)[0].xyxy, expected.xyxy)
    served.predict([tall])
    assert len(waiting) == 1, "asked for once"
    waiting.pop()()
    before = served.memory_mib
    assert np.allclose(served.predict([tall], score_min=0.05)[0].xyxy, expected.xyxy, atol=0.1)
    assert served.memory_mib == before > 0


def test_forms_are_bounded_however_many_shapes_come(detector: Detector, pictures: list[np.ndarray]) -> None:
    made: list[ShapePx] = []

    def make(body: ServedBody, shape_px: ShapePx, shown: object) -> served_module.Form:
        made.append(shape_px)
        return TorchRuntime().start({}, body, shape_px)

    served = ServedDetector(detector, TorchRuntime(), make, aside=lambda work: work(), max_forms=2)
    for _ in range(3):
        for height in (60, 90, 120, 150, 180):
            assert len(served.predict([np.ascontiguousarray(pictures[0][:height])])) == 1
    assert len(made) == 2


class Calibrated(TorchRuntime):
    calibrated = True


def test_shapes_whose_pictures_are_collected_are_bounded_too(detector: Detector, pictures: list[np.ndarray]) -> None:
    made: list[tuple[ShapePx, int]] = []

    def make(body: ServedBody, shape_px: ShapePx, shown: Sequence[np.ndarray]) -> served_module.Form:
        made.append((shape_px, len(shown)))
        return TorchRuntime().start({}, body, shape_px)

    served = ServedDetector(detector, Calibrated(), make, aside=lambda work: work(), max_forms=2)
    for n in range(Deferred.EVERY * Deferred.COLLECTED):
        for height in (60, 90, 120, 150, 180):
            assert len(served.predict([np.ascontiguousarray(pictures[n % len(pictures)][:height])])) == 1
    assert [count for _, count in made] == [Deferred.COLLECTED] * 2
    assert len(served._met) == 0


class Faulty:
    """Runs once as it should (when it is prepared), then `fault`."""

    memory_mib = 1.0

    def __init__(self, inner: served_module.Form, fault: str) -> None:
        self._inner, self._fault, self.runs = inner, fault, 0

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        self.runs += 1
        if self._fault == "nan":
            return [np.full_like(output, np.nan) for output in self._inner.run(array)]
        if self.runs > 1:
            raise RuntimeError("kernel fault")
        return self._inner.run(array)

    def widen(self) -> None: ...

    def close(self) -> None: ...


def faulty(fault: str) -> served_module.Opener:
    return lambda body, shape, shown: Faulty(TorchRuntime().start({}, body, shape), fault)


def test_a_form_that_fails_hands_back_to_the_trained_model(detector: Detector, pictures: list[np.ndarray]) -> None:
    served = ServedDetector(detector, OnnxRuntime(), faulty("throws"), aside=lambda work: work())
    served.prepare(pictures[0])
    for _ in range(2):
        assert np.array_equal(served.predict(pictures[:1])[0].xyxy, detector.predict(pictures[:1])[0].xyxy)
    assert "kernel fault" in served.last_error
    assert served.memory_mib == 0


def test_a_form_that_gives_nan_is_not_taken(detector: Detector, pictures: list[np.ndarray]) -> None:
    served = ServedDetector(detector, OnnxRuntime(), faulty("nan"))
    with pytest.raises(DriftboxError, match="NaN"):
        served.prepare(pictures[0])
    aside = ServedDetector(detector, OnnxRuntime(), faulty("nan"), aside=lambda work: work())
    for one in (served, aside, aside):
        assert np.array_equal(one.predict(pictures[:1])[0].xyxy, detector.predict(pictures[:1])[0].xyxy)
    assert "NaN" in aside.last_error


def test_a_form_that_cannot_be_made_aside_leaves_the_trained_model(detector: Detector, pictures: list[np.ndarray]) -> None:
    def fail(body: ServedBody, shape_px: ShapePx, shown: object) -> served_module.Form:
        raise MemoryError

    served = ServedDetector(detector, OnnxRuntime(), fail, aside=lambda work: work())
    assert np.array_equal(served.predict(pictures[:1])[0].xyxy, detector.predict(pictures[:1])[0].xyxy)
    assert "MemoryError" in served.last_error
    with pytest.raises(MemoryError):
        served.prepare(np.ascontiguousarray(pictures[0][:90]))


class Widened:
    """Counts."""

    memory_mib = 1.0

    def __init__(self, inner: served_module.Form) -> None:
        self._inner, self.widened, self.runs = inner, 0, 0

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        self.runs += 1
        return self._inner.run(array)

    def widen(self) -> None:
        self.widened += 1

    def close(self) -> None: ...


def counted(made: list[Widened]) -> served_module.Opener:
    def make(body: ServedBody, shape_px: ShapePx, shown: object) -> served_module.Form:
        made.append(Widened(TorchRuntime().start({}, body, shape_px)))
        return made[-1]

    return make


@pytest.mark.parametrize("threads", [1, 3])
def test_every_form_is_made_for_as_many_threads_as_run_it(detector: Detector, pictures: list[np.ndarray], threads: int) -> None:
    made: list[Widened] = []
    served = ServedDetector(detector, TorchRuntime(), counted(made), aside=lambda work: work(), threads=threads)
    served.prepare(pictures[0])
    served.predict([np.ascontiguousarray(pictures[0][:90])])
    assert [form.widened for form in made] == [threads - 1] * 2


def test_a_twin_answers_by_the_same_forms(detector: Detector, pictures: list[np.ndarray]) -> None:
    made: list[Widened] = []
    served = ServedDetector(detector, TorchRuntime(), counted(made), threads=2)
    twin, wanted = Twin(served), detector.predict(pictures[:2], score_min=0.3)
    served.prepare(pictures[0])
    before = made[0].runs
    found = twin.predict(pictures[:2], score_min=0.3)
    assert made[0].runs == before + 2
    assert all(np.array_equal(a.xyxy, b.xyxy) for a, b in zip(found, wanted, strict=True))
    tall = np.ascontiguousarray(pictures[0].transpose(1, 0, 2))
    served.prepare(tall)
    twin.predict([tall])
    assert made[1].runs == 2, "one that came later, too"


def test_a_twin_follows_when_a_better_form_takes_over(detector: Detector, pictures: list[np.ndarray]) -> None:
    made, waiting = list[Widened](), list[Callable[[], None]]()

    def better(shown: list[np.ndarray]) -> Detector:
        served = ServedDetector(detector, TorchRuntime(), counted(made), threads=2)
        served.prepare(shown[0])
        return served

    deferred = Deferred(detector, better, waiting.append)
    twin = Twin(deferred)
    assert twin.spec == detector.spec
    wanted = detector.predict(pictures[:1])[0].xyxy
    assert np.array_equal(twin.predict(pictures[:1])[0].xyxy, wanted)
    assert form_of(deferred) is detector
    for _ in range(Deferred.EVERY * Deferred.COLLECTED):
        deferred.predict(pictures[:1])
    waiting.pop()()
    assert form_of(deferred) is not detector
    before = made[0].runs
    assert np.array_equal(twin.predict(pictures[:1])[0].xyxy, wanted)
    assert made[0].runs == before + 1


def test_a_twin_never_runs_the_network_that_it_is_a_twin_of(
    detector: Detector, pictures: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network as trained is for one thread: also where a shape has no form, or the form fails."""
    mine = detector.clone()
    wanted = detector.predict(pictures[:1])[0].xyxy
    twins = [Twin(mine), Twin(ServedDetector(mine, OnnxRuntime(), faulty("throws"), aside=lambda work: work(), threads=2))]

    whole = type(mine).predict

    def predict(self: Any, *args: Any, **words: Any) -> Any:
        assert self is not mine, "somebody else's network"
        return whole(self, *args, **words)

    monkeypatch.setattr(type(mine), "predict", predict)
    for twin in twins:
        for _ in range(3):
            assert np.array_equal(twin.predict(pictures[:1])[0].xyxy, wanted)


def test_training_a_served_form_is_refused_and_its_clone_trains(detector: Detector, pictures: list[np.ndarray]) -> None:
    served = ServedDetector(detector, TorchRuntime(), opener(TorchRuntime()))
    labels = detector.predict(pictures[:1])
    for attempt in (
        lambda: served.loss(pictures[:1], labels),
        lambda: served.distill_loss(pictures[:1], detector),
        lambda: served.load_state(detector.state()),
        served.trainable_layers,
    ):
        with pytest.raises(UsageError, match="clone"):
            attempt()
    twin = served.clone()
    twin.loss(pictures[:1], labels).backward()
    assert served.spec == detector.spec
    assert np.array_equal(served.embed(pictures[:2]), detector.embed(pictures[:2]))
    assert all(torch.equal(t, detector.state()[name]) for name, t in served.state().items())


def test_pictures_yield_one_by_one(detector: Detector, pictures: list[np.ndarray]) -> None:
    calls: list[int] = []
    served = ServedDetector(detector, TorchRuntime(), opener(TorchRuntime()))
    served.prepare(pictures[0])
    served.predict(pictures[:3], yield_point=lambda: calls.append(1))
    assert len(calls) == 3


@pytest.mark.slow
def test_the_real_compiler_compiles(detector: Detector) -> None:
    runtime = CompiledRuntime()
    if runtime.missing():
        pytest.skip(runtime.missing())
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    real = detector.body()

    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (network(x),)

    form = runtime.start({}, ServedBody(network=Pair(), encode=real.encode, decode=real.decode, example_px=(32, 32)), (32, 32))
    array = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
    with torch.inference_mode():
        assert np.allclose(form.run(array)[0], network(torch.from_numpy(array)).numpy(), atol=1e-4)


def test_onnxruntime_keeps_off_the_gpu_of_a_box_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    both = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("models.serving.onnxruntime_runtime.library", lambda: both)

    def providers(name: str, device: str) -> list[str]:
        made = runtime_of(name, device=device)
        assert isinstance(made, OnnxRuntime)
        return made.providers()

    assert providers("onnxruntime", "cpu") == ["CPUExecutionProvider"]
    assert providers("onnxruntime", "cuda") == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert providers("onnxruntime-int8", "cuda") == ["CPUExecutionProvider"]


def test_onnxruntime_without_cuda_is_no_form_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = SimpleNamespace(get_available_providers=lambda: ["AzureExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("models.serving.onnxruntime_runtime.library", lambda: cores)
    assert "onnxruntime-gpu" in runtime_of("onnxruntime", device="cuda").missing()
    assert runtime_of("onnxruntime", device="cpu").missing() == ""


def test_onnxruntime_that_falls_back_to_cores_is_refused(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the provider, and cannot load what that needs: the library logs it and takes the next one."""
    onnx = to_onnx(detector.body(), (32, 32))
    monkeypatch.setattr(OnnxRuntime, "providers", lambda self: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(DriftboxError, match="no CUDAExecutionProvider that works here"):
        OnnxRuntime(device="cuda").start({"model.onnx": onnx}, detector.body(), (32, 32))


class Stream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream, self.waited_for = handle, list[Stream]()
        self.synchronized = 0

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)

    def synchronize(self) -> None:
        self.synchronized += 1


@pytest.mark.parametrize("in_lane", [True, False], ids=["in a lane", "on the default stream"])
def test_tensorrt_computes_on_the_stream_of_its_lane(
    in_lane: bool, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it has the lane's urgency, and the part of the GPU of a green context."""
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRt())
    runtime, body = TensorRtRuntime(device="cpu"), detector.body()
    form = runtime.start(runtime.convert(to_onnx(body, (32, 32)), []), body, (32, 32))
    default, own = Stream(0), Stream(7)
    current = Stream(3) if in_lane else default
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: default)
    form._stream = own
    used: list[int] = []
    execute = form._context.execute_async_v3

    def noted(handle: int) -> bool:
        used.append(handle)
        return bool(execute(handle))

    form._context.execute_async_v3 = noted
    assert len(form.run(body.blank((32, 32)))) == 2
    assert used == [3 if in_lane else 7]
    assert (current.synchronized, own.synchronized) == ((1, 0) if in_lane else (0, 1))
    assert own.waited_for == ([] if in_lane else [default])
