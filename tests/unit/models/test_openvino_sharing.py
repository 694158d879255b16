"""Forms made of equal files share one compiled model, and nobody notices but the memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from configs.errors import DriftboxError
from models.serving import openvino_runtime
from models.serving.base import Files
from models.serving.onnx_form import to_onnx
from models.serving.openvino_runtime import OpenVinoForm, OpenVinoRuntime
from models.zoo import load_detector

SHAPE = (48, 80)


@pytest.fixture(scope="module")
def files() -> Files:
    return OpenVinoRuntime().convert(to_onnx(load_detector("tinydet-edge").body(), SHAPE), [])


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (1, *SHAPE, 3), np.uint8)


def test_equal_files_are_compiled_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compiled = openvino_runtime._Compiled

    class Counted(compiled):  # type: ignore[misc, valid-type]
        def __init__(self, files: Files, threads: int) -> None:
            made.append(threads)
            super().__init__(files, threads)

    monkeypatch.setattr(openvino_runtime, "_Compiled", Counted)
    forms = [OpenVinoForm(dict(files), 1) for _ in range(5)]
    assert made == [1]
    other = OpenVinoForm(files, 2)
    assert made == [1, 2]
    for form in (*forms, other):
        form.close()


def test_the_model_goes_with_its_last_form(files: Files) -> None:
    a, b = OpenVinoForm(files, 1), OpenVinoForm(files, 1)
    before = len(openvino_runtime._COMPILED)
    a.close()
    gc.collect()
    assert len(openvino_runtime._COMPILED) == before
    assert b.run(picture(0))
    b.close()
    gc.collect()
    assert len(openvino_runtime._COMPILED) == before - 1


def test_an_answer_stays_when_another_form_runs(files: Files) -> None:
    a, b = OpenVinoForm(files, 1), OpenVinoForm(files, 1)
    first = a.run(picture(1))
    kept = [output.copy() for output in first]
    b.run(picture(2))
    for output, was in zip(first, kept, strict=True):
        np.testing.assert_array_equal(output, was)


def test_many_threads_get_their_own_answers(files: Files) -> None:
    forms = [OpenVinoForm(files, 1) for _ in range(6)]
    wanted = [forms[0].run(picture(n)) for n in range(6)]
    wrong: list[int] = []
    start = threading.Barrier(6)

    def body(n: int) -> None:
        start.wait()
        for _ in range(10):
            found = forms[n].run(picture(n))
            if not all(np.array_equal(a, b) for a, b in zip(found, wanted[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(forms[0]._compiled._idle) <= 6  # type: ignore[union-attr]


def test_a_run_that_throws_costs_one_answer(files: Files) -> None:
    a, b = OpenVinoForm(files, 1), OpenVinoForm(files, 1)
    with pytest.raises(Exception, match="."):
        a.run(np.zeros((1, *SHAPE, 5), np.uint8))
    assert np.isfinite(b.run(picture(3))[0]).all()
    assert np.isfinite(a.run(picture(3))[0]).all()


def test_a_closed_form_says_so(files: Files) -> None:
    form = OpenVinoForm(files, 1)
    form.close()
    with pytest.raises(DriftboxError, match="was closed"):
        form.run(picture(0))
