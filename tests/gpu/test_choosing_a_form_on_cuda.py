"""`models.serving: auto` on a CUDA GPU: each form made and timed in a child process as on the box, on a model that comes with the
package. Needs the packages of a box (docs/gpu.md says which); tensorrt and onnxruntime-gpu take part where they are. `-s` prints what
was measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from edge.form_making import AGREEMENT_MIN, spent_on
from edge.serving import AUTO, ON_GPU, Serving, runnable
from models.evaluate import MatchCounts, match_counts
from models.serving.registry import runtime_of
from models.serving.served import ServedDetector
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from models.zoo import load_detector
from streams.rendered import RenderedScene, Schedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


def test_what_was_launched_is_counted_until_the_device_is_done() -> None:
    spent_s = spent_on("cuda")
    square = torch.randn(4096, 4096, device="cuda")
    _ = square @ square  # the library's first use is slow
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began_s = spent_s()
    began.record()
    for _ in range(20):
        _ = square @ square
    ended.record()
    took_s = spent_s() - began_s
    assert took_s >= 0.9 * began.elapsed_time(ended) / 1000 > 0


def test_auto_measures_the_forms_of_this_gpu_and_serves_the_fastest_right_one(tmp_path: Path) -> None:
    street = RenderedScene("street", 11, 320, 180, Schedule.always("day"))
    images = [street.render(9.0 * k)[0] for k in range(16)]
    told: list[str] = []
    serving = Serving(
        AUTO, tmp_path, newest=lambda camera: [Picture(image=image) for image in images], task_of=lambda camera: DETECTION,
        tell=lambda camera, text: told.append(text), build_s=200.0, device="cuda",
    )  # fmt: skip
    model = load_detector("tinydet-edge", device="cuda")
    served = serving.serve(model, "yard")
    [(key, remembered)] = json.loads((tmp_path / "choices.json").read_text()).items()
    print(f"{key}\nfastest first: {remembered['order']}; ms a picture: {remembered['ms']}; told: {told}")
    assert torch.cuda.get_device_name() in key
    assert set(remembered["order"]) <= set(runnable(ON_GPU, lambda name: runtime_of(name, device="cuda")))
    if not remembered["order"]:
        assert served is model
        assert "serves as trained" in told[0]
        return
    assert isinstance(served, ServedDetector)
    assert served.runtime.name == remembered["order"][0]
    pairs = zip(served.predict(images), model.predict(images), strict=True)
    assert MatchCounts.total(match_counts(found, label) for found, label in pairs).f1 >= AGREEMENT_MIN
    assert all(np.isfinite(found.score).all() for found in served.predict(images))
    assert served.last_error == ""
    served.close()
