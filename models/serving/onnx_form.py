"""ONNX as the common language: every runtime that is not torch starts from it."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from configs.errors import UsageError

if TYPE_CHECKING:
    from models.detector import ServedBody
    from models.serving.base import ShapePx

INPUT = "picture"
OPSET = 17


def to_onnx(body: ServedBody, shape_px: ShapePx) -> bytes:
    """The network for one picture shape, as an ONNX file. Costs 0.2 to 0.6 CPU seconds for the nano detectors.
    Raises UsageError for a network that cannot be written so."""
    import torch

    example = torch.from_numpy(body.blank(shape_px))
    out: Any = io.BytesIO()
    try:
        with torch.no_grad():
            names = [f"output{i}" for i in range(len(body.network(example)))]
            with warnings.catch_warnings():  # the tracing exporter is deprecated; the new one needs a further library and 20 s
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    body.network, (example,), out, dynamo=False, opset_version=OPSET, input_names=[INPUT], output_names=names
                )
    except Exception as error:  # the exporter raises whatever an operator's writer raises
        raise UsageError(
            f"this network cannot be written as ONNX: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            subject=type(body.network).__name__, remedy="it serves as it was trained",
        ) from error  # fmt: skip
    content: bytes = out.getvalue()
    return content
