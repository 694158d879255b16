"""Mixed precision behind its seam: what is chosen for which device, and what a scaler does to an update. No GPU is needed (and what
one does with it is not verified here)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from configs.errors import JobError
from models.fake import FakeDetector
from models.labelled import LabelledImage
from models.precision import FLOAT32, Precision, device_of, forget_measurements, measure_cpu, precision_of
from models.retrain import MAX_SKIPPED, retrain, settle_precision
from models.tinydet import TinyDetector
from scheduler.types import Detections, RetrainConfig
from tests.unit.models.test_retrain_loop import Linear, pictures


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    forget_measurements()


def picture() -> LabelledImage:
    image = np.full((96, 128, 3), 90, np.uint8)
    image[30:60, 40:90] = (220, 30, 30)
    box = Detections(xyxy=np.array([[40, 30, 90, 60]], np.float32), score=np.ones(1, np.float32), class_id=np.array([2]))
    return LabelledImage(image=image, labels=box)


def test_a_cpu_trains_in_float32_unless_it_was_measured() -> None:
    assert precision_of("cpu", "yolov8n") == FLOAT32
    assert precision_of("meta", "yolov8n") == FLOAT32, "what we do not know is left alone"


@pytest.mark.parametrize(("half_s", "expected"), [(0.5, "bfloat16"), (0.76, "bfloat16"), (0.8, "float32"), (3.0, "float32")])
def test_half_precision_on_a_cpu_only_where_it_is_clearly_faster(half_s: float, expected: str) -> None:
    chosen = measure_cpu("yolov8n", lambda how: 1.0 if how == FLOAT32 else half_s)
    assert chosen.name == expected
    assert precision_of("cpu", "yolov8n") == chosen
    assert precision_of("cpu", "tinydet-edge") == FLOAT32, "what pays for one network costs another"


def test_the_real_measurement_gives_an_answer_and_changes_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    detector = TinyDetector("tinydet-edge")
    before = detector.state()
    assert settle_precision(detector, [picture()]).name in ("float32", "bfloat16")
    assert all(torch.equal(tensor, before[name]) for name, tensor in detector.state().items())
    assert torch.equal(torch.rand(1), expected)


def test_a_model_that_cannot_be_measured_trains_in_float32() -> None:
    assert settle_precision(FakeDetector(nan_loss=True), [picture()]) == FLOAT32
    steps = []
    assert measure_cpu("half-nan", lambda how: steps.append(how) or (1.0 if how == FLOAT32 else math.inf)) == FLOAT32
    assert len(steps) == 2


def test_each_architecture_is_measured_once() -> None:
    class Counts(Linear):
        def clone(self) -> Counts:
            copies.append(1)
            return Counts()

    copies: list[int] = []
    for _ in range(3):
        settle_precision(Counts(), pictures(1))  # type: ignore[arg-type]
    assert len(copies) == 2, "one copy per precision"


def test_a_training_computes_in_what_was_measured() -> None:
    inside: list[torch.dtype] = []

    class Watches(Linear):
        def loss(self, images, targets):  # type: ignore[no-untyped-def]
            inside.append(self.layers[0](torch.ones(1, 1)).dtype)
            return super().loss(images, targets).float()

    for half_s, dtype in ((0.5, torch.bfloat16), (2.0, torch.float32)):
        measure_cpu("linear", lambda how, half_s=half_s: 1.0 if how == FLOAT32 else half_s)  # type: ignore[misc]
        list(retrain(Watches(), pictures(4), CONFIG, seed=0))  # type: ignore[arg-type]
        assert set(inside) == {dtype}
        inside.clear()


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_what_a_gpu_trains_in(monkeypatch: pytest.MonkeyPatch, supported: bool, dtype: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    assert precision_of("cuda:1", "any") == Precision(device="cuda", dtype=dtype)


def test_the_device_is_that_of_the_weights() -> None:
    assert device_of([nn.ReLU(), nn.Linear(1, 1, device="meta")]).type == "meta"
    assert device_of([nn.ReLU()]).type == "cpu"


def test_weights_and_gradients_stay_float32_in_half_precision() -> None:
    layer = nn.Linear(4, 4)
    how = Precision(dtype=torch.bfloat16)
    with how.forward():
        out = layer(torch.ones(2, 4))
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.float32  # type: ignore[union-attr]
    with FLOAT32.forward():
        assert layer(torch.ones(2, 4)).dtype is torch.float32


class Scaler:
    """A gradient scaler as torch's, without a device: scales by 4, skips updates with infinities and halves its scale then."""

    def __init__(self) -> None:
        self.factor, self.found_inf, self.optimiser = 4.0, False, None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor

    def unscale_(self, optimiser: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.factor)
        self.found_inf = any(not bool(g.isfinite().all()) for g in gradients)

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        if not self.found_inf:
            optimiser.step()

    def update(self) -> None:
        if self.found_inf:
            self.factor /= 2


def scaled(monkeypatch: pytest.MonkeyPatch) -> list[Scaler]:
    made: list[Scaler] = []

    def make(device: str) -> Scaler:
        made.append(Scaler())
        return made[-1]

    monkeypatch.setattr(torch.amp, "GradScaler", make)
    monkeypatch.setattr(torch, "autocast", lambda device, dtype: _Nothing())
    return made


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


FLOAT16 = Precision(device="cuda", dtype=torch.float16)
CONFIG = RetrainConfig(name="test", epochs=2, batch=4, lr=0.05)


def test_a_scaled_training_ends_with_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = Linear(), Linear()
    list(retrain(plain, pictures(6), CONFIG, seed=0, precision=FLOAT32))  # type: ignore[arg-type]
    [scaler] = _run(other, monkeypatch)
    assert torch.allclose(plain.weights(), other.weights(), atol=1e-7)
    assert scaler.factor == 4.0


def _run(detector: Linear, monkeypatch: pytest.MonkeyPatch, n: int = 6) -> list[Scaler]:
    made = scaled(monkeypatch)
    list(retrain(detector, pictures(n), CONFIG, seed=0, precision=FLOAT16))  # type: ignore[arg-type]
    return made


class Overflows(Linear):
    """Its gradients are infinite in the first `bad` losses."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad = bad

    def loss(self, images, targets):  # type: ignore[no-untyped-def]
        self.bad -= 1
        weight = self.layers[0].weight
        bad = weight.sub(weight.detach()).sqrt().sum() if self.bad >= 0 else 0.0  # value 0, slope infinite
        return super().loss(images, targets) + bad


def test_an_update_that_overflows_is_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Overflows(bad=1)
    before = detector.weights()
    [scaler] = _run(detector, monkeypatch)
    assert scaler.factor == 2.0
    assert not torch.equal(before, detector.weights())
    assert bool(detector.weights().isfinite().all())


def test_updates_that_never_stop_overflowing_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Overflows(bad=10**6)
    before = detector.weights()
    with pytest.raises(JobError) as caught:
        _run(detector, monkeypatch, n=4 * (MAX_SKIPPED + 2))
    assert caught.value.code == "nan"
    assert torch.equal(before, detector.weights())
    assert [math.isfinite(p.sum().item()) for layer in detector.layers for p in layer.parameters()]


def test_a_real_detector_learns_in_half_precision_on_a_cpu() -> None:
    losses = {}
    for how in (FLOAT32, Precision(dtype=torch.bfloat16)):
        detector = TinyDetector("tinydet-edge", seed=1)
        config = RetrainConfig(name="half", epochs=6, batch=2, lr=5e-3)
        steps = list(retrain(detector, [picture()] * 4, config, seed=0, precision=how))
        epochs = [s.epoch_loss for s in steps if s.epoch_loss is not None]
        assert epochs[-1] < 0.6 * epochs[0]
        assert all(t.dtype is torch.float32 for t in detector.state().values() if t.is_floating_point())
        losses[how.name] = epochs[-1]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.3)
