"""Served forms made by the real libraries in a real child process, as on the box."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.golden_form import AGREEMENT_MIN, PICTURES, TRIES, FormedGolden, GoldenForms
from edge.jobs.steps import HERE
from edge.serving import Serving
from models.evaluate import MatchCounts, match_counts
from models.serving.served import ServedDetector
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from models.zoo import load_detector
from streams.rendered import RenderedScene, Schedule

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

#: The child that makes a form, as important as the tests that run beside it: niced as on a box, it would take minutes.
NOT_NICED = """
import sys
from pathlib import Path
from edge import form_child
form_child.NICE = 0
form_child.stand_back()
sys.exit(form_child.main(Path(sys.argv[1])))
"""


def start_not_niced(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    assert command[1:3] == ["-m", "edge.form_child"]
    return subprocess.Popen([command[0], "-c", NOT_NICED, *command[3:]], **how)


def serving(
    folder: Path, pictures: list[np.ndarray], told: list[str], *, build_s: float = 1200.0, choice: str = "auto", **how: Any
) -> Serving:
    made = Serving(
        choice, folder, newest=lambda camera: [Picture(image=image) for image in pictures], task_of=lambda camera: DETECTION,
        tell=lambda camera, text: told.append(text), build_s=build_s, **how,
    )  # fmt: skip
    made._child._start = start_not_niced
    return made


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    street = RenderedScene("street", 11, 320, 180, Schedule.always("day"))
    return [street.render(9.0 * k)[0] for k in range(16)]


def test_the_box_finds_a_right_and_faster_form_and_remembers_it(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    torch.set_num_threads(1)
    told: list[str] = []
    trained = load_detector("tinydet-edge")
    started_s = time.perf_counter()
    form = serving(tmp_path, pictures, told).serve(trained, "yard")
    first_s = time.perf_counter() - started_s
    assert isinstance(form, ServedDetector), told
    [choice] = json.loads((tmp_path / "choices.json").read_text(encoding="utf-8")).values()
    assert choice["order"][0] == form.runtime.name
    assert choice["ms"][form.runtime.name] < choice["ms"]["trained"]
    agreement = MatchCounts.total(
        match_counts(a, b) for a, b in zip(form.predict(pictures), trained.predict(pictures), strict=True)
    )
    assert agreement.f1 > 0.9
    started_s = time.perf_counter()
    again = serving(tmp_path, pictures, told).serve(trained, "yard")
    print(f"chosen in {first_s:.1f} s, from kept files in {time.perf_counter() - started_s:.2f} s: {choice}")
    assert isinstance(again, ServedDetector)
    assert again.runtime.name == form.runtime.name


def test_no_time_to_build_means_as_trained_and_says_so(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    told: list[str] = []
    trained = load_detector("tinydet-edge")
    assert serving(tmp_path, pictures, told, build_s=0.05, choice="openvino-int8").serve(trained, "yard") is trained
    assert "took longer" in told[0]


def test_the_end_of_the_box_ends_what_is_being_made(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    told: list[str] = []
    trained = load_detector("tinydet-edge")
    maker = serving(tmp_path, pictures, told, choice="openvino-int8")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(maker.serve(trained, "yard")))
    thread.start()
    while maker._child._child is None and thread.is_alive():
        thread.join(0.05)
    maker.close()
    thread.join(60)
    assert found == [trained]
    assert "stopping" in told[0]


def test_a_golden_model_labels_in_a_form_that_says_the_same_and_costs_less(tmp_path: Path, pictures: list[np.ndarray]) -> None:
    torch.set_num_threads(1)
    told: list[str] = []
    golden = load_detector("tinydet-golden")
    forms = serving(tmp_path, pictures, told, tries=TRIES, agreement_min=AGREEMENT_MIN)
    goldens = GoldenForms(
        lambda camera: golden, lambda model, shown: forms.form_of(model, "golden model", shown), aside=lambda work: work()
    )
    as_trained = golden.predict(pictures, score_min=0.5)
    HERE.own(goldens("yard")).predict(pictures[:PICTURES], score_min=0.5)
    job = HERE.own(goldens("door"))
    assert isinstance(job, FormedGolden)
    labels = job.predict(pictures, score_min=0.5)
    assert isinstance(job._mine, ServedDetector), told
    assert job._mine.runtime.name in TRIES
    [choice] = json.loads((tmp_path / "choices.json").read_text(encoding="utf-8")).values()
    assert choice["ms"][job._mine.runtime.name] < choice["ms"]["trained"]
    agreement = MatchCounts.total(match_counts(a, b) for a, b in zip(labels, as_trained, strict=True))
    print(f"agreement {agreement.f1:.3f}: {choice}")
    assert agreement.f1 >= AGREEMENT_MIN
