"""What labels: the golden model as trained, then its form, shared by all jobs; each with a network of its own behind it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.load import parse_config
from configs.schema import BoxConfig
from edge.disk_use import DiskUse
from edge.form_making import make_form, refuse
from edge.golden_form import AGREEMENT_MIN, PICTURES, TRIES, FormedGolden, GoldenForms
from edge.jobs.steps import HERE
from edge.serving import Serving
from edge.wiring.settings import golden_form
from models.detector import Detector, ServedBody
from models.fake import FakeDetector, scripted_image
from models.serving.base import Form, ShapePx
from models.serving.registry import ON_CORES, runtime_of
from models.serving.served import ServedDetector
from models.serving.torch_runtime import TorchRuntime

IMAGES = [scripted_image(seed)[0] for seed in range(20)]


class Asked(FakeDetector):
    """Counts the pictures that its own network answers."""

    def __init__(self, skill: float = 1.0) -> None:
        super().__init__(skill=skill)
        self.asked = 0

    def predict(self, images, **how):  # type: ignore[no-untyped-def]
        self.asked += len(images)
        return super().predict(images, **how)

    def clone(self) -> Detector:
        made = copy.copy(self)
        made.asked = 0
        return made


class Bench:
    """Golden models of two cameras, which are one model, and a maker of forms that is told when to work."""

    def __init__(self, make: Callable[[Detector, list[np.ndarray]], Detector] | None = None) -> None:
        self.golden = Asked()
        self.made_of: list[list[np.ndarray]] = []
        self.waiting: list[Callable[[], None]] = []
        self.forms = GoldenForms(lambda camera: self.golden, make or self.make, self.waiting.append)

    def make(self, golden: Detector, pictures: list[np.ndarray]) -> Detector:
        self.made_of.append(pictures)
        form = ServedDetector(golden, TorchRuntime(), lambda body, shape, shown: TorchRuntime().start({}, body, shape))
        form.prepare(pictures[0])
        return form

    def job(self, camera: str = "yard") -> FormedGolden:
        """What a labelling job of the camera may use."""
        own = HERE.own(self.forms(camera))
        assert isinstance(own, FormedGolden)
        return own

    def make_it(self) -> None:
        for work in self.waiting:
            work()
        self.waiting.clear()


def test_the_first_pictures_of_all_cameras_make_one_form_which_then_labels_for_all() -> None:
    bench = Bench()
    yard, door = bench.job("yard"), bench.job("door")
    before = [yard.predict([image])[0] for image in IMAGES[:5]] + [door.predict([image])[0] for image in IMAGES[5:PICTURES]]
    assert len(bench.waiting) == 1
    assert (yard.trained.asked, door.trained.asked) == (5, PICTURES - 5)  # type: ignore[attr-defined]
    bench.make_it()
    [pictures] = bench.made_of
    assert [id(p) for p in pictures] == [id(i) for i in IMAGES[:PICTURES]]
    after = [job.predict([image])[0] for job, image in zip([yard] * 5 + [door] * 3, IMAGES, strict=False)]
    assert (yard.trained.asked, door.trained.asked) == (5, PICTURES - 5), "the form answered"  # type: ignore[attr-defined]
    for one, other in zip(before, after, strict=True):
        assert np.allclose(one.xyxy, other.xyxy, atol=1e-3)
    late = bench.job("door")
    late.predict(IMAGES)
    assert late.trained.asked == 0  # type: ignore[attr-defined]
    assert (len(bench.made_of), bench.waiting) == (1, [])


def test_no_picture_is_kept_once_the_form_is_being_made() -> None:
    bench = Bench()
    job = bench.job()
    job.predict(IMAGES)
    assert job._shared._kept is None
    job.predict(IMAGES)
    assert len(bench.waiting) == 1


def test_a_picture_for_which_there_is_no_form_is_answered_by_the_jobs_own_network() -> None:
    bench = Bench()
    bench.job().predict(IMAGES[:PICTURES])
    bench.make_it()
    one, other = bench.job("yard"), bench.job("door")
    low = np.zeros((64, 128, 3), np.uint8)
    one.predict([low, low])
    other.predict([low])
    assert (one.trained.asked, other.trained.asked) == (2, 1)  # type: ignore[attr-defined]
    assert one.trained is not other.trained, "a network as trained is for one thread"


def test_where_no_form_is_right_it_labels_as_trained_for_good() -> None:
    bench = Bench(make=lambda golden, pictures: golden)
    job = bench.job()
    job.predict(IMAGES)
    bench.make_it()
    again = bench.job()
    again.predict(IMAGES)
    assert again.trained.asked == len(IMAGES)  # type: ignore[attr-defined]
    assert bench.waiting == []


def test_a_form_that_breaks_later_leaves_the_labels_to_the_model_as_trained() -> None:
    class Breaking:
        memory_mib = 1.0

        def run(self, array: np.ndarray) -> Sequence[np.ndarray]:
            raise RuntimeError("illegal instruction")

        def close(self) -> None: ...

    bench = Bench()
    bench.job().predict(IMAGES[:PICTURES])
    bench.make_it()
    shared = bench.job()._shared
    assert shared.form is not None
    for shape in list(shared.form._forms):
        shared.form._forms[shape] = Breaking()  # type: ignore[assignment]
    job = bench.job()
    assert len(job.predict(IMAGES[:3])) == 3
    assert job.trained.asked == 3  # type: ignore[attr-defined]


def test_jobs_at_work_at_the_same_time_make_one_form() -> None:
    bench = Bench()
    begin = threading.Barrier(4)

    def work(camera: str) -> None:
        job = bench.job(camera)
        begin.wait(10.0)
        for image in IMAGES:
            job.predict([image])

    threads = [threading.Thread(target=work, args=(f"cam{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len(bench.waiting) == 1
    bench.make_it()
    assert len(bench.made_of[0]) == PICTURES


def test_other_uses_of_a_golden_model_get_the_model_as_trained() -> None:
    bench = Bench()
    job = bench.job()
    job.predict(IMAGES[:PICTURES])
    bench.make_it()
    assert all(np.array_equal(a, b) for a, b in zip(job.state().values(), bench.golden.state().values(), strict=True))
    assert job.embed(IMAGES[:2]).shape == bench.golden.embed(IMAGES[:2]).shape
    assert isinstance(job.body(), ServedBody)
    assert job.spec == bench.golden.spec


# --- made as served forms are -----------------------------------------------------------------------------------------


class Differing:
    """A runtime that leaves out what it is told to: every so many boxes."""

    name, precision, libraries, portable, calibrated = "openvino-bf16", "bf16", ("torch",), False, False

    def __init__(self, blind: bool) -> None:
        self._blind = blind

    def missing(self) -> str:
        return ""

    def tuned_for(self) -> str:
        return ""

    def start(self, files: object, body: ServedBody, shape_px: ShapePx) -> Form:
        form, blind = TorchRuntime().start({}, body, shape_px), self._blind

        class Blind:
            memory_mib = 1.0
            ran = 0

            def run(self, array: np.ndarray) -> list[np.ndarray]:
                found = list(form.run(array))
                self.ran += 1
                return [np.zeros_like(found[0]), found[1]] if blind and self.ran % 8 == 0 else found

            def close(self) -> None: ...

        return Blind()


@pytest.mark.parametrize("blind", [False, True])
def test_a_form_that_would_do_for_serving_may_be_too_different_to_label(blind: bool, tmp_path: Path) -> None:
    """One picture of eight without its objects: F1 0.93."""
    told: list[str] = []
    forms = Serving(
        "openvino-bf16", tmp_path, newest=lambda camera: (), task_of=lambda camera: None, build_s=10.0,  # type: ignore[arg-type,return-value]
        tell=lambda name, text: told.append(text), make=lambda wanted: make_form(wanted, Differing(blind), spent_s=lambda: 0.0),  # type: ignore[arg-type]
        runtimes=lambda name: Differing(blind), agreement_min=AGREEMENT_MIN,  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    golden = FakeDetector(skill=1.0)
    made = forms.form_of(golden, "golden model fake", IMAGES[:16])
    assert (made is golden) == blind
    assert bool(told) == blind
    assert all("it agrees with the trained model by F1 0." in text and "0.95 is asked" in text for text in told)


def test_the_bar_for_labels_is_above_that_for_serving() -> None:
    from edge.form_making import AGREEMENT_MIN as SERVING_MIN

    assert AGREEMENT_MIN > SERVING_MIN
    assert refuse.__kwdefaults__ == {"agreement_min": SERVING_MIN}


def test_only_forms_that_differ_by_rounding_are_tried() -> None:
    assert set(TRIES) <= ON_CORES
    for name in TRIES:
        assert not runtime_of(name).calibrated


# --- the box's settings -----------------------------------------------------------------------------------------------


def config(golden_serving: str = "auto") -> BoxConfig:
    return parse_config(f"gpus: {{device: cpu}}\nmodels: {{golden_serving: {golden_serving}}}\n")


@pytest.mark.parametrize("choice", ["auto", "trained", "openvino", "openvino-bf16"])
def test_the_choice_is_what_is_configured(choice: str) -> None:
    assert golden_form(config(golden_serving=choice)) == choice


def test_on_a_gpu_golden_models_label_as_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.wiring.settings.device_of_models", lambda config: "cuda")
    assert golden_form(config()) == "trained"


def test_its_files_are_counted_as_forms(tmp_path: Path) -> None:
    (tmp_path / "golden-forms").mkdir()
    (tmp_path / "golden-forms" / "model.bin").write_bytes(b"x" * 1000)
    found = DiskUse(tmp_path, lambda: 0.0).bytes()
    assert (found["forms"], found["other"]) == (1000, 0)
