"""A version's network for other programs: ONNX, OpenVINO IR, a TensorRT engine; checked against the trained one first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from configs.errors import EnvironmentLacking, JobError, UsageError
from models.detector import ServedBody, encoded_px
from models.serving.base import Files, Runtime, ShapePx
from models.serving.onnx_form import to_onnx
from models.serving.registry import runtime_of

#: Format -> runtime whose files it is, and which checks it.
FORMATS: dict[str, str] = {"onnx": "onnxruntime", "openvino": "openvino", "tensorrt": "tensorrt"}
#: Largest mean difference of an output from the trained network's, as a part of that output's spread.
DIFFERENCE_MAX = 1e-3
SAMPLE_PICTURES = 4


@dataclass(frozen=True, kw_only=True)
class Exported:
    """files: name -> content; shape_px: (H, W) of its one input; difference: the largest found, see `DIFFERENCE_MAX`."""

    files: Files
    shape_px: ShapePx
    difference: float


def exported(
    body: ServedBody,
    form: str,
    pictures: Sequence[np.ndarray] = (),
    *,
    shape_px: ShapePx | None = None,
    runtime: Runtime | None = None,
) -> Exported:
    """The network for one picture shape (default: that of a 16:9 picture) in a format of `FORMATS`. pictures: uint8 (H, W, 3), to check
    on; without them, some that are made up. runtime: instead of the format's own (for tests).
    Raises UsageError for an unknown format or a network that cannot be written so, EnvironmentLacking when the format's library is
    missing (the check needs it), JobError when the files do not say what the network says."""
    if form not in FORMATS:
        raise UsageError(f"no format '{form}'", subject="format", remedy=f"known: {', '.join(FORMATS)}")
    maker = runtime or runtime_of(FORMATS[form])
    if missing := maker.missing():
        raise EnvironmentLacking(f"{form} cannot be made here: {missing}", subject=form, remedy="export it as onnx")
    wanted = shape_px or body.example_px
    files = maker.convert(to_onnx(body, wanted), [])
    return Exported(
        files=files, shape_px=wanted, difference=_checked(body, maker, files, wanted, pictures or made_up(body, wanted))
    )


def made_up(body: ServedBody, shape_px: ShapePx) -> list[np.ndarray]:
    """Blotchy pictures that `encode` makes into the shape; the same every time."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (SAMPLE_PICTURES, 6, 10, 3), np.uint8)
    return [cv2.resize(picture, (shape_px[1], shape_px[0]), interpolation=cv2.INTER_CUBIC) for picture in small]


def _checked(body: ServedBody, runtime: Runtime, files: Files, shape_px: ShapePx, pictures: Sequence[np.ndarray]) -> float:
    form = runtime.start(files, body, shape_px)
    worst, n_compared = 0.0, 0
    try:
        for picture in pictures:
            array, _ = body.encode(picture)
            if encoded_px(array) != tuple(shape_px):
                continue
            n_compared += 1
            worst = max(worst, _difference(form.run(array), body, array))
    finally:
        form.close()
    if not n_compared:
        raise JobError("no picture has the shape to check the exported network on", subject=runtime.name, code="no_data")
    if not worst <= DIFFERENCE_MAX:  # also NaN
        raise JobError(
            f"the exported network does not say what the trained one says (difference {worst:.2g}, allowed {DIFFERENCE_MAX:g})",
            subject=runtime.name,
        )
    return worst


def _difference(found: Sequence[np.ndarray], body: ServedBody, array: np.ndarray) -> float:
    with torch.inference_mode():
        expected = [output.numpy() for output in body.network(torch.from_numpy(array))]
    if [f.shape for f in found] != [e.shape for e in expected]:
        return float("inf")
    parts = [float(np.abs(f - e).mean() / (e.std() + 1e-6)) for f, e in zip(found, expected, strict=True)]
    return max(parts) if np.isfinite(parts).all() else float("inf")
