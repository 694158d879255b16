"""Makes `import torchvision` work when its compiled operators do not load, as happens with a CPU torch beside the index's
torchvision (built for CUDA): "operator torchvision::nms does not exist".

Import this module before torchvision, in every process. It does nothing when the operators are there. When they are missing it
registers `torchvision::nms` with a CPU implementation; `roi_align` has a pure torch fallback in torchvision itself. Not
replaced: `torchvision.io` (decode pictures with OpenCV) and the quantised operators.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np
import torch

#: Operators that torchvision describes while it is imported, so they have to exist. Only nms gets a kernel.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

#: Keeps the registration alive: torch drops an operator together with its Library object.
_library: torch.library.Library | None = None


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_max: float) -> torch.Tensor:
    """Greedy non-maximum suppression with torchvision's meaning: indices kept, by falling score; a box goes when its IoU with a
    better kept one is above `iou_max`. boxes: (N, 4) xyxy, scores: (N,) -> int64 (K,) on the device of `boxes`."""
    xyxy = boxes.detach().to("cpu", torch.float32).numpy()
    order = np.argsort(-scores.detach().to("cpu", torch.float32).numpy(), kind="stable")
    area = (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])
    kept: list[int] = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        width = np.minimum(xyxy[best, 2], xyxy[rest, 2]) - np.maximum(xyxy[best, 0], xyxy[rest, 0])
        height = np.minimum(xyxy[best, 3], xyxy[rest, 3]) - np.maximum(xyxy[best, 1], xyxy[rest, 1])
        common = np.clip(width, 0, None) * np.clip(height, 0, None)
        # Compared without dividing, so that boxes without area are kept like the compiled operator keeps them.
        order = rest[~(common > iou_max * (area[best] + area[rest] - common))]
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)


def _forget_torchvision() -> None:
    """Removes the half-imported package, so that the next import starts afresh."""
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]


def _register_nms() -> None:
    global _library
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        _library.define(schema)
    # CompositeExplicitAutograd: one kernel for every device; suppression has no gradient.
    _library.impl("nms", nms, "CompositeExplicitAutograd")


def _skip_operator_check() -> None:
    """Lets `torchvision.ops.nms` reach our operator. Only there: elsewhere the check chooses pure torch fallbacks."""
    boxes = importlib.import_module("torchvision.ops.boxes")
    boxes._assert_has_ops = lambda: None  # type: ignore[attr-defined]


def ensure_torchvision() -> bool:
    """Imports torchvision, mending it when needed. True when it was mended. Safe to call again.
    Raises ImportError when torchvision is not installed; other import failures pass through."""
    if _library is not None:
        return True
    try:
        importlib.import_module("torchvision")
        return False
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _forget_torchvision()
    _register_nms()
    importlib.import_module("torchvision")
    _skip_operator_check()
    return True


mended = ensure_torchvision()
