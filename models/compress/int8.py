"""Post-training int8, calibrated on a camera's own pictures: NNCF (Apache-2.0) for OpenVINO, ONNX Runtime's own for ONNX Runtime.

What is quantised is the body of a detector as far as its raw head outputs; box decoding is not in it
(`models.detector.ServedBody`), so no further layer has to be left out: see the measurements in docs/compression.md.
Both are meant to run in a process of their own (`edge.form_child`): they take seconds and as many threads as the process may have.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import EnvironmentLacking, JobError
from models.serving.base import MAX_CALIBRATION

#: Fewer distinct pictures than this say nothing about the range of a layer's values.
MIN_CALIBRATION = 2
#: A picture whose values spread less than this (of 0-1; for pixels, of 0-255) is plain and says nothing.
_PLAIN_STD = 1e-3


def calibration(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """At most MAX_CALIBRATION of the arrays, spread evenly, plain ones (one grey) left out.
    Raises JobError 'no_data' when fewer than MIN_CALIBRATION remain."""
    telling = [array for array in arrays if np.isfinite(array).all() and float(array.std()) > _PLAIN_STD * _whole_range(array)]
    if len(telling) < MIN_CALIBRATION:
        raise JobError(
            f"int8 needs pictures to calibrate on: {len(arrays)} given, {len(telling)} of them not plain",
            subject="int8", remedy="it serves in fp32 until the camera has been sampled", code="no_data",
        )  # fmt: skip
    chosen = np.unique(np.linspace(0, len(telling) - 1, min(len(telling), MAX_CALIBRATION)).round().astype(int))
    return [telling[i] for i in chosen]


def _whole_range(array: np.ndarray) -> float:
    return 255.0 if array.dtype == np.uint8 else 1.0


def openvino_int8(model: Any, arrays: Sequence[np.ndarray]) -> Any:
    """An openvino model with int8 weights and activations. Weights per channel and symmetric; activations per tensor, asymmetric
    where they can be negative (preset mixed): the preset for speed loses F1 on activations that are not ReLU.
    Raises JobError 'no_data', EnvironmentLacking without nncf."""
    chosen = calibration(arrays)
    nncf = _nncf()
    return nncf.quantize(
        model, nncf.Dataset(chosen), subset_size=len(chosen), preset=nncf.QuantizationPreset.MIXED, fast_bias_correction=True
    )


def _nncf() -> Any:
    from models.serving.openvino_runtime import without_telemetry

    try:
        with without_telemetry():
            import nncf
    except ImportError as error:
        raise EnvironmentLacking("nncf is not installed", subject="nncf", remedy="pip install nncf") from error
    nncf.set_log_level(logging.ERROR)
    return nncf


def onnxruntime_int8(onnx: bytes, arrays: Sequence[np.ndarray]) -> bytes:
    """An ONNX file with quantise-dequantise pairs around convolutions: weights per channel, in 7 of the 8 bits. Without VNNI a processor
    adds pairs of products in 16 bits and cuts what does not fit: with 8 bits raw outputs were off by 15 to 18 % of their spread on one
    with AVX2 alone, with 7 by 5 to 6 %.
    Raises JobError 'no_data', EnvironmentLacking without onnxruntime; OSError when there is no room for its working files."""
    chosen = calibration(arrays)
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise EnvironmentLacking(
            "onnxruntime's quantisation does not import: onnx is missing", subject="onnx", remedy="pip install onnx"
        ) from error
    with tempfile.TemporaryDirectory(prefix="driftbox-int8-") as name:
        folder = Path(name)
        (folder / "fp32.onnx").write_bytes(onnx)
        quant_pre_process(folder / "fp32.onnx", folder / "folded.onnx", skip_symbolic_shape=True)
        quantization.quantize_static(
            folder / "folded.onnx", folder / "int8.onnx", _Reader(chosen, quantization.CalibrationDataReader),
            quant_format=quantization.QuantFormat.QDQ, per_channel=True, op_types_to_quantize=["Conv"],
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8, reduce_range=True,
        )  # fmt: skip
        return (folder / "int8.onnx").read_bytes()


def _Reader(arrays: Sequence[np.ndarray], base: type) -> Any:
    """A reader of the library's kind over arrays; its base class is only known once the library is imported."""
    from models.serving.onnx_form import INPUT

    rows: Iterator[dict[str, np.ndarray]] = iter([{INPUT: array} for array in arrays])
    return type("Reader", (base,), {"get_next": lambda self: next(rows, None)})()
