"""Letterboxing, suppression per class, checked states, yield points, threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.errors import WeightsError
from configs.units import CLASSES, COCO_TO_CLASSES
from models import torchvision_detector, ultralytics_detector
from models.torch_support import (
    BORDER,
    by_shape,
    check_images,
    letterbox,
    load_checked_state,
    sorted_detections,
    suppressed_per_class,
    to_tensor,
    torch_threads,
    train_with_frozen_batch_norm,
)
from models.yielding import yielding_between_layers


@given(st.integers(1, 900), st.integers(1, 900), st.sampled_from([64, 320, 640]))
def test_letterbox_sizes_and_inverse(height: int, width: int, input_px: int) -> None:
    boxed = letterbox(np.zeros((height, width, 3), np.uint8), input_px=input_px)
    assert boxed.image.shape[0] % 32 == boxed.image.shape[1] % 32 == 0
    assert input_px <= max(boxed.image.shape[:2]) < input_px + 32
    box = np.array([[width * 0.25, height * 0.25, width * 0.75, height]], np.float32)
    there = boxed.from_original(box)
    assert (there >= -0.6).all()
    assert (there[:, 2] <= boxed.image.shape[1] + 0.6).all()
    assert np.allclose(boxed.to_original(there), box, atol=0.01 + 1e-4 * max(width, height))


def test_letterbox_puts_the_picture_where_it_says() -> None:
    image = np.full((50, 100, 3), 255, np.uint8)
    boxed = letterbox(image, input_px=64)
    assert boxed.image.shape == (32, 64, 3)
    assert (boxed.image == 255).all()  # 64 x 32 needs no border
    boxed = letterbox(np.full((40, 100, 3), 255, np.uint8), input_px=100)
    assert boxed.image.shape == (64, 128, 3)
    assert (boxed.left_px, boxed.top_px) == (14, 12)
    assert (boxed.image[12:52, 14:114] == 255).all()
    assert (boxed.image[:12] == BORDER).all()
    assert (boxed.image[:, :14] == BORDER).all()


def test_boxes_are_cut_at_the_original_border() -> None:
    boxed = letterbox(np.zeros((100, 100, 3), np.uint8), input_px=64)
    assert boxed.to_original(np.array([[-20, -20, 200, 200]], np.float32)).tolist() == [[0, 0, 100, 100]]


def test_tensor_of_pictures() -> None:
    image = np.zeros((2, 3, 3), np.uint8)
    image[0, 1] = (255, 51, 0)
    tensor = to_tensor([image, image], torch.device("cpu"))
    assert tensor.shape == (2, 3, 2, 3)
    assert tensor[0, :, 0, 1].tolist() == pytest.approx([1.0, 0.2, 0.0])


def test_groups_keep_order() -> None:
    a, b = np.zeros((2, 2, 3)), np.zeros((3, 2, 3))
    assert by_shape([a, b, a, b, a]) == [[0, 2, 4], [1, 3]]


def test_suppression_stays_within_classes() -> None:
    xyxy = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [50, 50, 60, 60]], np.float32)
    kept = suppressed_per_class(xyxy, np.array([0.5, 0.9, 0.8, 0.1], np.float32), np.array([0, 0, 1, 0]), iou_max=0.5)
    assert kept.tolist() == [1, 2, 3]
    nothing = suppressed_per_class(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), iou_max=0.5)
    assert len(nothing) == 0


def test_sorting_drops_boxes_without_area() -> None:
    xyxy = np.array([[0, 0, 1, 1], [5, 5, 5, 9], [0, 0, 2, 2]], np.float64)
    found = sorted_detections(xyxy, np.array([0.2, 0.9, 0.6]), np.array([1, 2, 3], np.int32))
    assert found.class_id.tolist() == [3, 1]
    assert (found.xyxy.dtype, found.score.dtype, found.class_id.dtype) == (np.float32, np.float32, np.int64)


@pytest.mark.parametrize("wrong", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8)])
def test_pictures_of_another_form_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        check_images([wrong])


def test_the_first_difference_of_a_state_is_named() -> None:
    module = nn.Linear(2, 3)
    own = module.state_dict()
    cases = {
        "weight is missing": {"bias": own["bias"]},
        r"bias has shape \(2,\), expected \(3,\)": {"weight": own["weight"], "bias": torch.zeros(2)},
        "more is not part": {**own, "more": torch.zeros(1)},
    }
    for message, state in cases.items():
        with pytest.raises(WeightsError, match=message):
            load_checked_state(module, state, subject="linear")


def test_half_precision_states_are_converted() -> None:
    module = nn.Linear(2, 1)
    load_checked_state(module, {"weight": torch.ones(1, 2).half(), "bias": torch.ones(1).half()}, subject="linear")
    assert module.weight.dtype == torch.float32
    assert module(torch.ones(1, 2)).item() == 3.0


def test_frozen_batch_norm_in_training() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout())
    train_with_frozen_batch_norm(net)
    net(torch.rand(4, 1, 3, 3))
    assert net[1].running_mean.tolist() == [0.0, 0.0]
    assert net[2].training
    assert net[1].weight.requires_grad


def test_yield_points_between_layers() -> None:
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1))
    calls: list[int] = []
    with yielding_between_layers(net, lambda: calls.append(1)):
        net(torch.rand(1, 1, 2, 2))
    assert len(calls) == 2
    with yielding_between_layers(net, None):
        net(torch.rand(1, 1, 2, 2))
    assert len(calls) == 2


def test_threads_are_restored_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_class_mappings_of_both_libraries() -> None:
    from models.torchvision_detector import detection

    names = detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1.meta["categories"]
    animals = {"bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"}
    for category, name in enumerate(names):
        ours = torchvision_detector._TO_CLASSES[category]
        expected = "animal" if name in animals else name
        assert (CLASSES[ours] if ours >= 0 else None) == (expected if expected in CLASSES else None), name
    for k, name in enumerate(CLASSES):
        assert names[torchvision_detector._TO_CATEGORY[k]] == ("bird" if name == "animal" else name)
        assert COCO_TO_CLASSES[int(ultralytics_detector._TO_COCO[k])] == k
