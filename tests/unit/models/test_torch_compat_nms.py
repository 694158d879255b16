"""The nms stand-in: same answers as the definition, torchvision usable afterwards, inactive when not needed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import torch_compat
from models.evaluate import iou_matrix


def reference_nms(boxes: np.ndarray, scores: np.ndarray, iou_max: float) -> list[int]:
    overlap = iou_matrix(boxes, boxes)
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(overlap[i, k] <= iou_max for k in kept):
            kept.append(i)
    return kept


box = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 15), st.integers(1, 15))


@given(st.lists(st.tuples(box, st.integers(1, 1000)), max_size=25), st.sampled_from([0.31, 0.52, 0.71]))
def test_equals_the_definition(rows: list[tuple[tuple[int, int, int, int], int]], iou_max: float) -> None:
    boxes = np.array([(x, y, x + w, y + h) for (x, y, w, h), _ in rows], np.float32).reshape(-1, 4)
    scores = np.array([s / 1000 for _, s in rows], np.float32)
    kept = torch_compat.nms(torch.from_numpy(boxes), torch.from_numpy(scores), iou_max)
    assert kept.dtype == torch.int64
    assert kept.tolist() == reference_nms(boxes, scores, iou_max)


def test_torchvision_nms_works_in_this_process() -> None:
    from torchvision.ops import batched_nms, nms

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]])
    scores = torch.tensor([0.5, 0.9, 0.1])
    assert nms(boxes, scores, 0.5).tolist() == [1, 2]
    assert batched_nms(boxes, scores, torch.tensor([0, 1, 0]), 0.5).tolist() == [1, 0, 2]


def test_second_call_changes_nothing() -> None:
    assert torch_compat.ensure_torchvision() is torch_compat.mended


@pytest.mark.skipif(not torch_compat.mended, reason="this torchvision brings its own operators")
def test_without_the_module_the_import_fails_and_with_it_it_works() -> None:
    bare = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True)
    assert "torchvision::nms" in bare.stderr
    mended = subprocess.run(
        [sys.executable, "-c", "import models.torch_compat, torchvision.models"], capture_output=True, text=True
    )
    assert mended.returncode == 0, mended.stderr


def test_an_unrelated_import_failure_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("no such driver")

    monkeypatch.setattr(torch_compat, "_library", None)
    monkeypatch.setattr(torch_compat.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="no such driver"):
        torch_compat.ensure_torchvision()


def test_inactive_when_the_operators_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "_library", None)
    monkeypatch.setattr(torch_compat.importlib, "import_module", lambda name: None)
    assert torch_compat.ensure_torchvision() is False
    assert torch_compat._library is None
