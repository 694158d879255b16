"""The choice of a serving form: measured once, checked every time, and never a reason for a camera to go without a model."""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.errors import DriftboxError, JobCancelled, JobError
from configs.schema.models import ModelsSection
from edge.form_making import AGREEMENT_MIN, Checked, Made, Wanted, check, make_form, refuse
from edge.serving import AUTO, Choice, Choices, Serving
from models.detector import ServedBody
from models.fake import FakeDetector, scripted_image
from models.serving.base import Files, Form, Runtime, ShapePx
from models.serving.cache import FormCache
from models.serving.registry import RUNTIMES
from models.serving.served import Deferred, ServedDetector
from models.serving.torch_runtime import TorchRuntime
from models.tasks.base import Picture
from models.tasks.detection import DETECTION

PICTURES = [scripted_image(seed)[0] for seed in range(12)]


class Scripted:
    """A runtime with a scripted cost and fault around torch's. fault: what its form gets wrong."""

    precision, libraries = "fp32", ("torch",)
    portable, calibrated = True, True

    def __init__(self, name: str, clock: Clock, *, cost_s: float = 0.001, fault: str = "") -> None:
        self.name, self._clock, self._cost_s, self.fault = name, clock, cost_s, fault
        self.converted: list[int] = []
        self.in_child, self.loaded_here = False, 0
        self.forms: list[ScriptedForm] = []  # opened in the box

    def missing(self) -> str:
        return "not installed" if self.fault == "missing" else ""

    def tuned_for(self) -> str:
        return ""

    def convert(self, onnx: bytes, arrays: Sequence[np.ndarray]) -> Files:
        self.converted.append(len(arrays))
        if self.fault == "convert":
            raise JobError("quantising failed")
        if self.fault == "disk":
            raise OSError(28, "No space left on device")
        return {"model": onnx}

    def start(self, files: Files, body: ServedBody, shape_px: ShapePx) -> Form:
        if not self.in_child:
            self.loaded_here += 1
            if self.fault == "load":
                raise DriftboxError("it does not load here")
        form = ScriptedForm(TorchRuntime().start({}, body, shape_px), self._clock, self._cost_s, self.fault)
        if not self.in_child:
            self.forms.append(form)
        return form


class ScriptedForm:
    memory_mib = 1.0

    def __init__(self, inner: Form, clock: Clock, cost_s: float, fault: str) -> None:
        self._inner, self._clock, self._cost_s, self._fault = inner, clock, cost_s, fault
        self.closed, self.widened = False, 0

    def run(self, array: np.ndarray) -> list[np.ndarray]:
        self._clock.now_s += self._cost_s
        if self._fault == "run":
            raise RuntimeError("illegal instruction")
        found = self._inner.run(array)
        if self._fault == "nan":
            return [np.full_like(output, np.nan) for output in found]
        return [np.zeros_like(found[0]), found[1]] if self._fault == "wrong" else found

    def widen(self) -> None:
        self.widened += 1

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Slow(FakeDetector):
    """The trained model: 10 ms of CPU per picture on the scripted clock."""

    clock: Clock

    def predict(self, images, **options):  # type: ignore[no-untyped-def]
        self.clock.now_s += 0.010 * len(images)
        return super().predict(images, **options)


class Place:
    """A `Serving` over scripted runtimes."""

    def __init__(self, folder: Path, choice: str = AUTO, pictures: int = 12, **runtimes: tuple[float, str]) -> None:
        self.clock = Clock()
        named = runtimes or {"openvino_int8": (0.001, ""), "openvino": (0.002, ""), "onnxruntime": (0.003, "")}
        self.runtimes = {
            name.replace("_", "-"): Scripted(name.replace("_", "-"), self.clock, cost_s=cost_s, fault=fault)
            for name, (cost_s, fault) in named.items()
        }
        self.told: list[tuple[str, str]] = []
        self.waiting: list[Callable[[], None]] = []
        self.folder, self.choice = folder, choice
        self.pictures = [Picture(image=image) for image in PICTURES[:pictures]]
        self.serving = self.again()

    def again(self, *, threads: int = 1) -> Serving:
        def runtime(name: str) -> Runtime:
            return self.runtimes.get(name) or Scripted(name, self.clock, fault="missing")

        return Serving(
            self.choice, self.folder, newest=lambda camera: self.pictures, task_of=lambda camera: DETECTION,
            tell=lambda camera, text: self.told.append((camera, text)), build_s=5.0, runtimes=runtime,
            aside=self.waiting.append, make=lambda wanted: self.made(wanted, runtime(wanted.runtime)), threads=threads,
        )  # fmt: skip

    def made(self, wanted: Wanted, runtime: Runtime) -> Made:
        """What the child does, in this process."""
        assert isinstance(runtime, Scripted)
        runtime.in_child = True
        try:
            return make_form(wanted, runtime, cache=FormCache(self.folder), spent_s=self.clock)
        finally:
            runtime.in_child = False

    def detector(self, skill: float = 0.8) -> Slow:
        made = Slow(skill=skill)
        made.clock = self.clock
        return made

    def converted(self) -> dict[str, int]:
        return {name: len(runtime.converted) for name, runtime in self.runtimes.items() if runtime.converted}


def name_of(detector: object) -> str:
    return detector.runtime.name if isinstance(detector, ServedDetector) else "trained"


def test_the_configuration_offers_what_the_table_of_runtimes_has() -> None:
    hint = typing.get_type_hints(ModelsSection, include_extras=False)["serving"]
    assert set(typing.get_args(hint)) == {"auto", "trained", *RUNTIMES} - {"torch"}


def test_the_fastest_right_form_serves_and_says_what_the_model_says(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = place.detector()
    served = place.serving.serve(model, "yard")
    assert name_of(served) == "openvino-int8"
    for image in PICTURES:
        assert np.array_equal(served.predict([image])[0].xyxy, model.predict([image])[0].xyxy)
    assert place.told == []


@pytest.mark.parametrize("threads", [1, 3])
def test_a_form_is_made_for_all_who_will_run_it(tmp_path: Path, threads: int) -> None:
    place = Place(tmp_path)
    place.again(threads=threads).serve(place.detector(), "yard")
    forms = place.runtimes["openvino-int8"].forms
    assert forms
    assert {form.widened for form in forms} == {threads - 1}


def test_the_measurement_is_made_once_and_remembered_over_restarts(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.serving.serve(place.detector(0.7), "yard")
    assert place.converted() == {"openvino-int8": 1, "openvino": 1, "onnxruntime": 1}
    place.serving.serve(place.detector(0.8), "street")
    assert place.converted() == {"openvino-int8": 2, "openvino": 1, "onnxruntime": 1}
    assert name_of(place.again().serve(place.detector(0.9), "yard")) == "openvino-int8"
    assert place.converted() == {"openvino-int8": 3, "openvino": 1, "onnxruntime": 1}


def test_how_long_a_form_takes_is_known_from_those_before(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = place.detector()
    assert place.serving.form_s(model) == 5.0, "nothing is known: all the time there is"
    place.serving._now_s = iter([100.0, 108.0, 200.0, 201.0, 300.0, 301.0]).__next__
    place.serving.serve(model, "yard")
    assert place.serving.form_s(model) == 8.0
    place.serving.serve(model, "yard")
    assert place.serving.form_s(model) == 4.0, "one that was kept says little of the next"
    place.serving._asked = 2
    assert place.serving.form_s(model) == 12.0, "those before it come first"
    place.serving._asked = 0
    place.serving.serve(model, "yard")
    assert place.serving.form_s(model) == 2.0
    assert Place(tmp_path / "b", choice="trained").serving.form_s(model) == 0.0


def test_a_version_that_was_served_before_needs_no_new_form(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for _ in range(3):
        place.again().serve(place.detector(0.7), "yard")
    assert place.converted() == {"openvino-int8": 1, "openvino": 1, "onnxruntime": 1}


def test_another_input_size_or_architecture_is_measured_by_itself(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.serving.serve(place.detector(), "yard")
    other = place.detector(0.6)
    other.spec = type(other.spec)(arch="other", input_px=64)
    place.serving.serve(other, "yard")
    assert place.converted() == {"openvino-int8": 2, "openvino": 2, "onnxruntime": 2}


@pytest.mark.parametrize("fault", ["convert", "disk", "nan", "wrong", "run", "missing"])
def test_a_form_with_a_fault_is_passed_over_while_measuring(fault: str, tmp_path: Path) -> None:
    place = Place(tmp_path, openvino_int8=(0.001, fault), openvino=(0.002, ""))
    assert name_of(place.serving.serve(place.detector(), "yard")) == "openvino"


@pytest.mark.parametrize("fault", ["convert", "disk", "nan", "wrong", "run"])
def test_a_remembered_form_that_fails_for_a_new_model_hands_over_and_says_why(fault: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.serving.serve(place.detector(), "yard")
    place.runtimes["openvino-int8"].fault = fault
    assert name_of(place.serving.serve(place.detector(0.7), "yard")) == "openvino"
    [(camera, text)] = place.told
    assert camera == "yard"
    assert text.startswith("not served by openvino-int8: ")


@pytest.mark.parametrize(
    ("fault", "word"),
    [("convert", "quantising failed"), ("disk", "No space left"), ("nan", "NaN"), ("wrong", "agrees"), ("run", "illegal")],
)
def test_the_trained_form_serves_when_the_wanted_one_fails(fault: str, word: str, tmp_path: Path) -> None:
    place = Place(tmp_path, "openvino", openvino=(0.001, fault))
    model = place.detector()
    assert place.serving.serve(model, "yard") is model
    assert word in place.told[0][1]


def test_a_form_slower_than_the_trained_one_does_not_serve(tmp_path: Path) -> None:
    place = Place(tmp_path, openvino_int8=(0.012, ""), openvino=(0.5, ""))
    model = place.detector()
    assert place.serving.serve(model, "yard") is model
    assert "serves as trained" in place.told[0][1]
    assert Choices(tmp_path).get("nothing") is None


def test_trained_means_trained(tmp_path: Path) -> None:
    place = Place(tmp_path, "trained")
    model = place.detector()
    assert place.serving.serve(model, "yard") is model
    assert place.serving.serve_later(model, "yard") is model
    assert place.converted() == {}


def test_without_samples_the_form_comes_when_frames_have_been_seen(tmp_path: Path) -> None:
    place = Place(tmp_path, pictures=0)
    served = place.serving.serve(place.detector(), "yard")
    assert isinstance(served, Deferred)
    for number in range(Deferred.EVERY * Deferred.COLLECTED):
        assert len(served.predict([PICTURES[number % 12]])) == 1
    [work] = place.waiting
    assert name_of(served.current) == "trained"
    work()
    assert name_of(served.current) == "openvino-int8"
    assert place.runtimes["openvino-int8"].converted == [Deferred.COLLECTED]
    assert len(served.predict(PICTURES[:3])) == 3
    assert len(place.waiting) == 1, "made once"


def test_samples_that_cannot_be_read_leave_the_trained_form(tmp_path: Path) -> None:
    place = Place(tmp_path)

    def broken(camera: str) -> list[Picture]:
        raise DriftboxError("picture 3 is damaged")

    place.serving._newest = broken
    model = place.detector()
    assert place.serving.serve(model, "yard") is model
    assert "picture 3 is damaged" in place.told[0][1]


def test_the_form_is_calibrated_on_what_the_task_shows_its_model(tmp_path: Path) -> None:
    class Halves:
        """A task that shows the upper half of each picture only."""

        def predict(self, model, pictures, **options):  # type: ignore[no-untyped-def]
            return model.predict([np.ascontiguousarray(p.image[:48]) for p in pictures])

    place = Place(tmp_path, "openvino", openvino=(0.001, ""))
    place.serving._task_of = lambda camera: Halves()  # type: ignore[assignment,return-value]
    served = place.serving.serve(place.detector(), "yard")
    assert isinstance(served, ServedDetector)
    assert list(served._forms) == [(48, 128)]


def test_forms_are_made_one_at_a_time_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.serving._build_s = 0.01
    model = place.detector()
    with place.serving._turn:
        assert place.serving.serve(model, "yard") is model
    assert "too long" in place.told[0][1]


def test_a_form_that_nobody_waits_for_takes_its_turn_however_long_that_is(tmp_path: Path) -> None:
    place = Place(tmp_path, pictures=0)
    place.serving._build_s = 0.01
    served = place.serving.serve(place.detector(), "yard")
    assert isinstance(served, Deferred)
    for number in range(Deferred.EVERY * Deferred.COLLECTED):
        served.predict([PICTURES[number % 12]])
    place.serving._turn.acquire()
    thread = threading.Thread(target=place.waiting[0])
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert place.told == []
    assert place.serving.form_s(place.detector()) == 2 * place.serving._build_s, "who comes now waits for it"
    place.serving._turn.release()
    thread.join(120.0)
    assert place.serving._asked == 0
    assert name_of(served.current) == "openvino-int8"


def test_a_form_that_this_process_cannot_load_hands_over_to_the_next(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.runtimes["openvino-int8"].fault = "load"
    assert name_of(place.serving.serve(place.detector(), "yard")) == "openvino"
    assert place.told == [("yard", "not served by openvino-int8: it does not load here")]
    assert name_of(place.serving.serve(place.detector(0.7), "yard")) == "openvino"


def test_only_the_form_that_serves_is_loaded(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.serving.serve(place.detector(), "yard")
    assert {name: runtime.loaded_here for name, runtime in place.runtimes.items()} == {
        "openvino-int8": 1,
        "openvino": 0,
        "onnxruntime": 0,
    }


@pytest.mark.parametrize("choice", ["auto", "openvino"])
def test_a_box_that_stops_remembers_nothing_and_complains_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, choice: str
) -> None:
    place = Place(tmp_path, choice=choice)

    def stopping(wanted: Wanted) -> Made:
        raise JobCancelled("the box is stopping")

    place.serving._make = stopping
    model = place.detector()
    assert place.serving.serve(model, "yard") is model
    assert [text for _, text in place.told] == ["serves as trained: the box is stopping"]
    assert not any(record.exc_info for record in caplog.records)
    assert not tmp_path.joinpath("choices.json").exists()


def test_pictures_of_which_the_model_is_shown_nothing_put_the_form_off(tmp_path: Path) -> None:
    class Blind:
        """A task in whose pictures nothing moved."""

        def predict(self, model, pictures, **options):  # type: ignore[no-untyped-def]
            return []

    place = Place(tmp_path)
    place.serving._task_of = lambda camera: Blind()  # type: ignore[assignment,return-value]
    served = place.serving.serve(place.detector(), "yard")
    assert isinstance(served, Deferred)
    assert place.serving._turn.acquire(blocking=False), "the turn was given back"


HALVES = [np.ascontiguousarray(picture[:48]) for picture in PICTURES]


class LaterShape:
    """A camera that is served, and a shape that its form was not made for. asked: (shape, pictures it is made on) of every form."""

    def __init__(self, folder: Path, fault: str = "") -> None:
        self.place = Place(folder, "openvino-int8", openvino_int8=(0.001, ""))
        self.asked: list[tuple[tuple[int, int] | None, int]] = []
        make = self.place.serving._make

        def counted(wanted: Wanted) -> Made:
            self.asked.append((wanted.shape_px, len(wanted.pictures)))
            return make(wanted)

        self.place.serving._make = counted
        self.served = self.place.serving.serve(self.place.detector(), "yard")
        self.runtime = self.place.runtimes["openvino-int8"]
        self.runtime.fault = fault

    def show(self, count: int, *, among: int = 1) -> None:
        """So many pictures of the other shape, each behind `among` - 1 of the usual one."""
        for n in range(count):
            for other in range(among - 1):
                self.served.predict([PICTURES[other % len(PICTURES)]])
            self.served.predict([HALVES[n % len(HALVES)]])


@pytest.mark.parametrize("among", [1, 2, 5, Deferred.EVERY])
def test_a_shape_that_is_met_later_is_made_on_pictures_of_it_where_forms_are_made(among: int, tmp_path: Path) -> None:
    later, enough = LaterShape(tmp_path), Deferred.EVERY * (Deferred.COLLECTED - 1) + 1
    later.show(enough - 1, among=among)
    assert later.place.waiting == []
    later.show(1)
    [work] = later.place.waiting
    later.show(20)
    assert len(later.place.waiting) == 1, "asked for once"
    work()
    assert later.asked == [(None, 12), ((48, 128), Deferred.COLLECTED)]
    assert later.runtime.converted == [12, Deferred.COLLECTED], "calibrated on all of them"
    assert isinstance(later.served, ServedDetector)
    assert list(later.served._forms) == [(96, 128), (48, 128)]
    assert later.served.last_error == ""


def test_a_later_shape_whose_form_is_wrong_is_served_as_trained(tmp_path: Path) -> None:
    later = LaterShape(tmp_path, fault="wrong")
    later.show(Deferred.EVERY * Deferred.COLLECTED)
    [work] = later.place.waiting
    work()
    assert isinstance(later.served, ServedDetector)
    assert "agrees with the trained model" in later.served.last_error
    assert list(later.served._forms) == [(96, 128)]
    trained = FakeDetector(skill=0.8)
    assert np.array_equal(later.served.predict(HALVES[:1])[0].xyxy, trained.predict(HALVES[:1])[0].xyxy)
    later.show(Deferred.EVERY * Deferred.COLLECTED)
    assert len(later.place.waiting) == 1, "not tried again and again"


def test_two_cameras_that_begin_with_one_model_get_a_form_each(tmp_path: Path) -> None:
    """Their pictures come in turns, so every so many of them is always the same camera's."""
    place = Place(tmp_path, "openvino-int8", openvino_int8=(0.001, ""))
    served = place.serving.serve_later(place.detector(), "yard")
    for n in range(Deferred.EVERY * Deferred.COLLECTED * 2):
        served.predict([PICTURES[n % 12], HALVES[n % 12]])
        while place.waiting:
            place.waiting.pop()()
    assert isinstance(served, Deferred)
    assert isinstance(served.current, ServedDetector)
    assert sorted(served.current._forms) == [(48, 128), (96, 128)]
    assert served.current.last_error == ""


def test_calls_from_several_threads_all_get_a_model(tmp_path: Path) -> None:
    place = Place(tmp_path, openvino=(0.001, ""))
    found: list[str] = []

    def run(number: int) -> None:
        found.append(name_of(place.serving.serve(place.detector(0.5 + number / 100), f"camera{number}")))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert found == ["openvino"] * 4


@pytest.mark.parametrize("content", ["", "{", "[]", '{"k": 1}', '{"k": {"order": 3, "ms": {}}}'])
def test_remembered_choices_that_cannot_be_read_are_measured_again(content: str, tmp_path: Path) -> None:
    tmp_path.joinpath("choices.json").write_text(content, encoding="utf-8")
    assert Choices(tmp_path).get("k") is None
    place = Place(tmp_path)
    assert name_of(place.serving.serve(place.detector(), "yard")) == "openvino-int8"
    assert place.again()._choices.get(next(iter(place.serving._choices._seen))) is not None


def test_choices_survive_and_a_full_disk_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = Choices(tmp_path)
    choices.keep("k", Choice(order=("openvino",), ms={"openvino": 1.5, "trained": 4.0}))
    assert Choices(tmp_path).get("k") == Choice(order=("openvino",), ms={"openvino": 1.5, "trained": 4.0})
    monkeypatch.setattr("edge.serving.atomic_write", lambda *a: (_ for _ in ()).throw(OSError(28, "full")))
    choices.keep("l", Choice(order=()))
    assert choices.get("l") == Choice(order=())
    assert Choices(tmp_path).get("l") is None


def test_a_box_that_keeps_off_the_gpu_tries_no_form_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    place = Place(tmp_path, tensorrt=(0.001, ""), torch_compiled=(0.001, ""), openvino=(0.002, ""))
    assert name_of(place.serving.serve(place.detector(), "yard")) == "openvino"
    assert place.converted() == {"openvino": 1}


def test_the_check_measures_agreement_and_both_speeds() -> None:
    place_clock = Clock()
    model, other = Slow(skill=1.0), FakeDetector(skill=0.6)
    model.clock = place_clock
    found = check(other, model, PICTURES, model.predict(PICTURES), spent_s=place_clock)
    assert 0.4 < found.agreement < 0.8
    assert (found.ms, found.trained_ms) == (0.0, pytest.approx(10.0))
    refuse(Checked(agreement=AGREEMENT_MIN, ms=10.9, trained_ms=10.0))
    with pytest.raises(JobError, match="agrees"):
        refuse(Checked(agreement=AGREEMENT_MIN - 0.01, ms=1.0, trained_ms=10.0))
    with pytest.raises(JobError, match="slower"):
        refuse(Checked(agreement=1.0, ms=11.1, trained_ms=10.0))
