"""The demo detector: targets and boxes agree, it learns, its copies are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import WeightsError
from configs.units import CLASSES
from models import tinydet
from models.evaluate import f1
from models.tinydet import SIZES, TinyDetector, make_targets
from models.torch_support import torch_threads
from scheduler.types import Detections

CLASS_ID = st.integers(0, len(CLASSES) - 1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with torch_threads():
        yield


def labels(*boxes: tuple[float, float, float, float, int]) -> Detections:
    table = np.array(boxes, np.float32).reshape(-1, 5)
    return Detections(xyxy=table[:, :4], score=np.ones(len(table), np.float32), class_id=table[:, 4].astype(np.int64))


def painted(truth: Detections, size: tuple[int, int] = (180, 320)) -> np.ndarray:
    """A grey picture with a block of its own colour per label."""
    image = np.full((*size, 3), 120, np.uint8)
    for (x0, y0, x1, y1), class_id in zip(truth.xyxy.astype(int), truth.class_id, strict=True):
        image[y0:y1, x0:x1] = ((200, 40, 40), (40, 200, 40), (40, 40, 200))[class_id % 3]
    return image


TWO = (
    labels((20, 30, 50, 110, 0), (180, 90, 270, 140, 2)),
    labels((120, 60, 150, 140, 0), (30, 20, 110, 60, 2), (250, 100, 280, 170, 0)),
)


def learn(detector: TinyDetector, steps: int, lr: float = 1e-3) -> list[float]:
    images = [painted(truth) for truth in TWO]
    optimiser = torch.optim.Adam(detector.net.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = detector.loss(images, TWO)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


# --- targets and decoding ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    corner=st.tuples(st.floats(0, 280), st.floats(0, 140)),
    extent=st.tuples(st.floats(6, 200), st.floats(6, 150)),
    class_id=CLASS_ID,
)
def test_a_perfect_net_gives_the_label_back(corner: tuple[float, float], extent: tuple[float, float], class_id: int) -> None:
    """Targets, written as net output, decode to the box they came from."""
    (x0, y0), (width, height) = corner, extent
    truth = labels((x0, y0, min(320.0, x0 + width), min(180.0, y0 + height), class_id))
    target = make_targets(truth, 1.0, 1.0, (48, 80))
    heat = torch.logit(target.heat.clamp(1e-4, 1 - 1e-4))
    sides = torch.zeros(4, 48, 80)
    centres = torch.stack([target.cells % 80, torch.div(target.cells, 80, rounding_mode="floor")], 1).float() * 4 + 2
    reach = torch.cat([centres - target.boxes[:, :2], target.boxes[:, 2:] - centres], dim=1).clamp(min=0.02)
    sides.flatten(1)[:, target.cells] = (reach / 8).log().T
    boxes, scores, classes = tinydet._decode(heat.numpy(), sides.numpy(), 0.5)
    assert list(classes) == [class_id]
    assert scores[0] > 0.99
    np.testing.assert_allclose(boxes[0], truth.xyxy[0], atol=0.1)


def test_every_object_has_its_peak_even_among_neighbours() -> None:
    truth = labels((10, 10, 30, 60, 0), (26, 12, 48, 62, 0), (10, 10, 200, 170, 2))
    target = make_targets(truth, 1.0, 1.0, (48, 80))
    assert int((target.heat > 0.999).sum()) == 3
    assert target.heat.max() == 1.0
    assert target.heat.min() >= 0
    owned = {tuple(np.round(box.numpy())) for box in target.boxes}
    assert owned == {tuple(np.round(box)) for box in truth.xyxy}


def test_no_objects_no_targets() -> None:
    target = make_targets(Detections.empty(), 1.0, 1.0, (48, 80))
    assert target.count == len(target.cells) == 0
    assert float(target.heat.max()) == 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), score_min=st.sampled_from([0.0, 0.02, 0.25, 0.5, 0.9, 1.0]))
def test_peaks_are_all_sure_cells_that_no_neighbour_beats(seed: int, score_min: float) -> None:
    drawn = np.random.default_rng(seed)
    heat = np.round(drawn.normal(-2, 2, (2, 5, 7)), 1).astype(np.float32)  # rounded: ties
    sides = drawn.normal(-3, 0.1, (4, 5, 7)).astype(np.float32)  # boxes too small to suppress one another, even side by side
    _, scores, classes = tinydet._decode(heat, sides, score_min)
    sure = 1 / (1 + np.exp(-heat)) >= score_min
    wanted = [
        (c, heat[c, y, x])
        for c, y, x in zip(*np.nonzero(sure), strict=True)
        if heat[c, y, x] == heat[c, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max()
    ]
    # One cell under two classes is one thing under two names, so only the better of them stays.
    assert len(scores) <= len(wanted)
    assert all(score >= score_min for score in scores)
    assert list(scores) == sorted(scores, reverse=True)
    assert set(np.round(scores, 4)) <= {np.round(1 / (1 + np.exp(-logit)), 4) for _, logit in wanted}
    if wanted:
        assert scores[0] == pytest.approx(max(1 / (1 + np.exp(-logit)) for _, logit in wanted))


def test_cells_that_are_no_number_are_no_objects() -> None:
    heat, sides = np.full((2, 6, 6), np.nan, np.float32), np.zeros((4, 6, 6), np.float32)
    assert len(tinydet._decode(heat, sides, 0.25)[1]) == 0


def test_boxes_of_cells_are_those_that_the_net_learns() -> None:
    sides = np.random.default_rng(3).normal(0, 3, (4, 6, 9)).astype(np.float32)
    rows, columns = np.array([0, 2, 5, 5]), np.array([0, 4, 8, 0])
    learnt = tinydet._cell_boxes(torch.from_numpy(sides), torch.from_numpy(rows * 9 + columns))
    np.testing.assert_allclose(tinydet._boxes_of(sides, rows, columns), learnt.numpy(), rtol=1e-5)


def test_suppression_keeps_the_best_of_one_class_and_near_boxes_of_others() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 2, 10, 13], [50, 50, 60, 60]], np.float32)
    assert tinydet._suppress(boxes, np.array([0, 0, 1, 0])) == [0, 2, 3]
    assert tinydet._suppress(boxes[:2], np.array([0, 1])) == [0]  # one thing under two names


# --- learning ---------------------------------------------------------------------------------------------------------


def test_overfits_two_pictures() -> None:
    detector = TinyDetector("tinydet-edge", seed=3)
    losses = learn(detector, 45, lr=1e-3)
    assert losses[-1] < 0.35 * losses[0]
    found = detector.predict([painted(truth) for truth in TWO])
    assert f1(zip(found, TWO, strict=True)) > 0.75


def test_the_larger_one_learns_too() -> None:
    losses = learn(TinyDetector("tinydet-golden", seed=3), 16, lr=3e-4)
    assert losses[-1] < 0.5 * losses[0]


def test_a_batch_may_be_split_into_micro_batches() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    images = [painted(truth) for truth in TWO]
    whole = detector.loss(images, TWO)
    parts = [detector.loss([image], [truth]) for image, truth in zip(images, TWO, strict=True)]
    assert float(whole.detach()) == pytest.approx(float(torch.stack(parts).mean().detach()), rel=1e-5)
    whole.backward()
    grads = [p.grad.clone() for p in detector.net.parameters() if p.grad is not None]
    detector.net.zero_grad()
    (torch.stack(parts).mean()).backward()
    for kept, split in zip(grads, [p.grad for p in detector.net.parameters()], strict=True):
        torch.testing.assert_close(kept, split, rtol=1e-3, atol=1e-5)


def test_loss_leaves_batch_norm_statistics_alone() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    before = {name: t for name, t in detector.state().items() if "running" in name}
    detector.net.train()
    detector.loss([painted(TWO[0])], [TWO[0]]).backward()
    assert before
    for name, tensor in before.items():
        assert torch.equal(tensor, detector.state()[name])


def test_pictures_of_different_size_in_one_loss_and_one_predict() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    small, tall = labels((5, 5, 40, 60, 0)), labels((50, 100, 150, 400, 0))
    images = [painted(small, (90, 160)), painted(tall, (480, 270))]
    both = detector.loss(images, [small, tall])
    alone = [detector.loss([i], [t]) for i, t in zip(images, [small, tall], strict=True)]
    assert float(both.detach()) == pytest.approx(float(torch.stack(alone).mean().detach()), rel=1e-5)
    found = detector.predict(images, score_min=0.0)
    for image, detections in zip(images, found, strict=True):
        assert (detections.xyxy[:, 2] <= image.shape[1]).all()
        assert (detections.xyxy[:, 3] <= image.shape[0]).all()


def test_loss_without_objects_is_finite_and_has_gradients() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    loss = detector.loss([painted(TWO[0])], [Detections.empty()])
    loss.backward()
    assert torch.isfinite(loss)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in detector.net.parameters())


def test_loss_refuses_uneven_lists() -> None:
    detector = TinyDetector("tinydet-edge")
    for images, targets in (([painted(TWO[0])], []), ([], [])):
        with pytest.raises(ValueError, match="as many targets as images"):
            detector.loss(images, targets)


# --- predicting -------------------------------------------------------------------------------------------------------


def test_predictions_come_sorted_and_above_the_threshold() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    learn(detector, 15)
    (found,) = detector.predict([painted(TWO[0])], score_min=0.05)
    assert len(found) > 1
    assert (np.diff(found.score) <= 0).all()
    assert found.score.min() >= 0.05
    assert detector.predict([]) == []


def test_predicting_in_company_gives_what_predicting_alone_gives() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    learn(detector, 10)
    images = [painted(TWO[i % 2], (180, 320) if i % 3 else (360, 640)) for i in range(7)]
    together = detector.predict(images, score_min=0.1)
    for image, seen in zip(images, together, strict=True):
        (alone,) = detector.predict([image], score_min=0.1)
        np.testing.assert_allclose(alone.xyxy, seen.xyxy, atol=0.05)
        np.testing.assert_allclose(alone.score, seen.score, atol=1e-4)


def test_yields_between_layers_and_what_it_raises_comes_through() -> None:
    detector = TinyDetector("tinydet-edge")
    calls = []
    detector.predict([painted(TWO[0])], yield_point=lambda: calls.append(1))
    assert len(calls) >= 5

    def cancelled() -> None:
        raise RuntimeError("told to stop")

    with pytest.raises(RuntimeError, match="told to stop"):
        detector.predict([painted(TWO[0])], yield_point=cancelled)


# --- state ------------------------------------------------------------------------------------------------------------


def test_clone_is_independent_and_equal() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    twin = detector.clone()
    before = detector.state()
    learn(twin, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in detector.state().items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in twin.state().items())
    assert twin.spec == detector.spec


def test_state_is_a_copy_and_round_trips() -> None:
    detector, other = TinyDetector("tinydet-edge", seed=1), TinyDetector("tinydet-edge", seed=2)
    state = detector.state()
    other.load_state({name: tensor.half() for name, tensor in state.items()})
    for name, tensor in other.state().items():
        torch.testing.assert_close(tensor, state[name].half().float())
        assert tensor.dtype == torch.float32
    state["stem.0.weight"].zero_()
    assert detector.state()["stem.0.weight"].abs().sum() > 0


def test_load_state_names_the_first_misfit_and_changes_nothing() -> None:
    detector = TinyDetector("tinydet-edge", seed=1)
    before = detector.state()
    good = TinyDetector("tinydet-edge", seed=2).state()
    missing = {name: tensor for name, tensor in good.items() if name != "head.heat.weight"}
    cases = (
        (missing, "head.heat.weight.*missing"),
        (good | {"extra": torch.zeros(1)}, "extra"),
        (good | {"head.heat.bias": torch.zeros(3)}, "head.heat.bias.*shape"),
        (TinyDetector("tinydet-golden").state(), "stem"),
    )
    for state, message in cases:
        with pytest.raises(WeightsError, match=message):
            detector.load_state(state)
    assert all(torch.equal(before[name], tensor) for name, tensor in detector.state().items())


def test_layers_go_from_input_to_output_and_hold_every_parameter() -> None:
    detector = TinyDetector("tinydet-edge")
    layers = detector.trainable_layers()
    assert layers[0] is detector.net.stem
    assert layers[-1] is detector.net.head
    held = {id(p) for layer in layers for p in layer.parameters()}
    assert held == {id(p) for p in detector.net.parameters()}


def test_same_seed_same_weights_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two = (TinyDetector("tinydet-edge", seed=9).state() for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_unknown_arch_lists_the_known() -> None:
    with pytest.raises(ValueError, match="tinydet-edge"):
        TinyDetector("tinydet-huge")


def test_sizes_are_as_documented() -> None:
    parameters = {arch: sum(p.numel() for p in TinyDetector(arch).net.parameters()) for arch in SIZES}
    assert parameters["tinydet-edge"] < 100_000
    assert 300_000 < parameters["tinydet-golden"] < 750_000


def test_damaged_package_weights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tinydet, "ASSETS", tmp_path)
    with pytest.raises(WeightsError, match="tinydet-edge"):
        tinydet.load_bundled("tinydet-edge")
    (tmp_path / "tinydet-edge.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(WeightsError, match="tinydet-edge"):
        tinydet.load_bundled("tinydet-edge")
