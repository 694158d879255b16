"""Forms made of equal files share one compiled model, and nobody notices but the memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from configs.errors import DriftboxError
from configs.machine import usable_cores
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


def compiled_of(form: OpenVinoForm) -> openvino_runtime._Compiled:
    assert form._compiled is not None
    return form._compiled


def test_equal_files_are_compiled_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, bool]] = []
    compiled = openvino_runtime._Compiled

    class Counted(compiled):  # type: ignore[misc, valid-type]
        def __init__(self, files: Files, threads: int, bf16: bool) -> None:
            made.append((threads, bf16))
            super().__init__(files, threads, bf16)

    monkeypatch.setattr(openvino_runtime, "_Compiled", Counted)
    forms = [OpenVinoForm(dict(files), 1) for _ in range(5)]
    assert made == [(1, False)]
    others = [OpenVinoForm(files, 2), OpenVinoForm(files, 1, bf16=True)]
    assert made == [(1, False), (2, False), (1, True)]
    for form in (*forms, *others):
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
    assert compiled_of(forms[0]).copies == min(6, usable_cores())


@pytest.mark.parametrize(("cores", "users", "copies"), [(1, 3, 1), (2, 1, 1), (2, 2, 2), (2, 5, 2), (4, 3, 3)])
def test_as_many_copies_as_may_run_at_a_time(
    files: Files, monkeypatch: pytest.MonkeyPatch, cores: int, users: int, copies: int
) -> None:
    monkeypatch.setattr(openvino_runtime, "usable_cores", lambda: cores)
    forms = [OpenVinoForm(files, 1) for _ in range(users)]
    assert compiled_of(forms[0]).copies == copies
    for form in forms:
        form.close()


def test_cores_are_counted_by_the_threads_of_a_run(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_runtime, "usable_cores", lambda: 4)
    forms = [OpenVinoForm(files, 2) for _ in range(4)]
    assert compiled_of(forms[0]).copies == 2


class Stalled:
    """An infer request that runs until it is let go."""

    def __init__(self) -> None:
        self.running, self.go_on = threading.Event(), threading.Event()

    def infer(self) -> None:
        self.running.set()
        assert self.go_on.wait(60.0)


def test_two_cameras_run_one_model_at_the_same_time(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO itself would let the second wait for the first: a compiled model has one stream."""
    monkeypatch.setattr(openvino_runtime, "usable_cores", lambda: 2)
    a, b = OpenVinoForm(files, 1), OpenVinoForm(files, 1)
    first, second = compiled_of(a)._copies
    assert first._model is not second._model
    wanted = b.run(picture(4))
    stalled = Stalled()
    monkeypatch.setattr(first, "_request", stalled)
    thread = threading.Thread(target=a.run, args=(picture(5),))
    thread.start()
    assert stalled.running.wait(60.0)
    try:
        for output, was in zip(b.run(picture(4)), wanted, strict=True):
            np.testing.assert_array_equal(output, was)
    finally:
        stalled.go_on.set()
        thread.join(60.0)


def test_a_third_waits_for_a_copy_and_gets_its_answer(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_runtime, "usable_cores", lambda: 1)
    a, b = OpenVinoForm(files, 1), OpenVinoForm(files, 1)
    (only,) = compiled_of(a)._copies
    wanted = b.run(picture(6))
    found: list[list[np.ndarray]] = []
    thread = threading.Thread(target=lambda: found.append(b.run(picture(6))))
    with only.turn:
        thread.start()
        assert not found
    thread.join(60.0)
    for output, was in zip(found[0], wanted, strict=True):
        np.testing.assert_array_equal(output, was)


def test_a_copy_whose_run_threw_runs_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    form = OpenVinoForm(files, 1)
    (only,) = compiled_of(form)._copies
    wanted = form.run(picture(7))

    class Broken:
        def infer(self) -> None:
            raise RuntimeError("native trouble")

    monkeypatch.setattr(only, "_request", Broken())
    with pytest.raises(RuntimeError, match="native trouble"):
        form.run(picture(7))
    for output, was in zip(form.run(picture(7)), wanted, strict=True):
        np.testing.assert_array_equal(output, was)


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
