"""A model takes over: the steps before the exchange, each of which may refuse it, and the ways back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import StorageError
from edge.clock import FakeClock
from edge.inference import InferenceWorker
from edge.shadow import ShadowRules, SwapRefused
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, QualityPoint, Store, StoredModel
from edge.swapping import Swapper
from models.detector import Detector
from models.fake import FakeDetector
from scheduler.commands import SwapModel
from scheduler.types import Detections, RetrainConfig
from tests.support.fakes import FreeLane, StillCamera, put_fakes_in_the_zoo


class CpuClock(FakeClock):
    """A clock whose CPU time a detector may spend."""

    cpu_s = 0.0

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        return self.cpu_s


class Costly(FakeDetector):
    """Needs `cost_s` of CPU time for a prediction."""

    def __init__(self, clock: CpuClock, cost_s: float, state: dict[str, Any]) -> None:
        super().__init__()
        self.load_state(state)
        self._clock, self._cost_s = clock, cost_s

    def predict(self, images: Sequence[np.ndarray], **options: Any) -> list[Detections]:
        self._clock.cpu_s += self._cost_s
        return super().predict(images, **options)


class Place:
    """Camera a, whose first model needs 20 ms a frame; further versions cost `cost_s` as they serve."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.store = Store(self.folder.db_path)
        self.clock, self.camera = CpuClock(), StillCamera("a")
        self.shelf = Shelf(self.folder, self.store, self.clock)
        first = self.shelf.ensure("a", "fake").id
        self.cost_s, self.built = 0.02, []  # type: tuple[float, list[str]]
        self.worker = InferenceWorker(
            self.camera, FreeLane(), self.form(self.shelf.detector(first), "a"), first, clock=self.clock, score_min=0.25
        )
        self.swapper = Swapper(
            shelf=self.shelf, store=self.store, clock=self.clock, serve=self.form, serve_later=self.later, rules=ShadowRules(frames=4)
        )  # fmt: skip
        for n in range(1, 8):
            self.frame(n)

    def form(self, model: Detector, camera: str) -> Detector:
        return Costly(self.clock, self.cost_s, model.state())

    def later(self, model: Detector, camera: str) -> Detector:
        self.built.append("later")
        return self.form(model, camera)

    def frame(self, seq: int) -> None:
        self.clock.advance_to(0.2 * seq)
        self.camera.show(seq, at_s=0.2 * seq)
        self.worker.step()

    def candidate(self) -> str:
        return self.shelf.keep_candidate(
            "a", parent="a-000001", detector=FakeDetector(skill=0.8), config=RetrainConfig(name="x"), window=0
        ).id

    def take_over(self, version: str, **options: Any) -> None:
        self.swapper.take_over(self.worker, SwapModel(stream="a", version=version, quality=None, **options))

    def serving(self) -> tuple[str, str]:
        self.store.check()
        return self.worker.version(), self.store.serving()["a"].id


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    put_fakes_in_the_zoo(monkeypatch)
    place = Place(tmp_path / "data")
    yield place
    place.store.close()
    place.folder.close()


def test_a_swap_is_recorded_with_its_reason_before_it_is_seen(place: Place) -> None:
    version = place.candidate()
    place.take_over(version, reason="chosen by a test")
    assert place.serving() == (version, version)
    assert place.store.model(version).reason == "chosen by a test"
    assert place.swapper.version_under_way("a") is None


def test_one_that_would_hold_up_the_camera_is_refused_before_its_first_live_frame(place: Place) -> None:
    place.cost_s = 0.5
    version = place.candidate()
    with pytest.raises(SwapRefused, match="needs 500 ms a frame, the present one 20 ms"):
        place.take_over(version)
    assert place.serving() == ("a-000001", "a-000001")
    assert place.store.model(version).state is ModelState.CANDIDATE, "whoever asked decides what becomes of it"


@pytest.mark.parametrize(("left_s", "built"), [(100.0, []), (79.0, ["later"]), (-1.0, ["later"])])
def test_a_form_that_takes_longer_than_half_of_what_is_left_follows_later(
    place: Place, left_s: float, built: list[str]
) -> None:
    place.swapper.form_s, place.swapper.left_s = (lambda detector: 40.0), (lambda: left_s)
    version = place.candidate()
    place.take_over(version)
    assert place.serving() == (version, version), "either way it serves at once"
    assert place.built == built


def test_damaged_weights_change_nothing(place: Place) -> None:
    version = place.candidate()
    (place.folder.version_dir("a", version) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(Exception, match="damaged"):
        place.take_over(version)
    assert place.serving() == ("a-000001", "a-000001")
    assert place.swapper.version_under_way("a") is None


def test_a_swap_that_was_given_up_meanwhile_does_not_happen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    version, form = place.candidate(), place.form

    def slow_form(model: Detector, camera: str) -> Detector:
        assert place.swapper.version_under_way("a") == version
        place.swapper.give_up("a", "of no interest", version="another")
        place.swapper.give_up("b", "of no interest")
        place.swapper.give_up("a", "not finished when the window ended", version=version)
        return form(model, camera)

    place.swapper.serve = slow_form
    with pytest.raises(SwapRefused, match="not finished when the window ended"):
        place.take_over(version)
    assert place.serving() == ("a-000001", "a-000001")


def test_a_later_swap_overtakes_an_earlier_one_and_not_the_other_way_round(place: Place) -> None:
    early, late, form = place.candidate(), place.candidate(), place.form

    def overtaken(model: Detector, camera: str) -> Detector:
        place.swapper.serve = form
        place.take_over(late)
        return form(model, camera)

    place.swapper.serve = overtaken
    with pytest.raises(SwapRefused, match="another model is to take over"):
        place.take_over(early)
    assert place.serving() == (late, late)


def test_the_way_back_is_warm_and_what_is_not_warm_waits_for_no_form(place: Place) -> None:
    version, third = place.candidate(), place.candidate()
    place.take_over(version)
    warm = place.worker.kept("a-000001")
    place.shelf.admit("a", "a-000001", None, "rolled back by the operator")
    place.swapper.go_back(place.worker, "a", "a-000001")
    assert place.serving() == ("a-000001", "a-000001")
    assert place.worker.kept("a-000001") is warm
    assert place.built == []
    place.shelf.admit("a", third, None, "promoted by the operator")
    place.swapper.go_back(place.worker, "a", third)
    assert place.serving() == (third, third)
    assert place.built == ["later"]


def test_the_quality_beside_which_a_shadow_is_judged_is_that_of_the_model_that_serves(place: Place) -> None:
    for value, version in ((0.3, "a-000001"), (0.5, "a-000001"), (0.9, "a-000009")):
        place.store.add_quality(QualityPoint(stream="a", at_utc=0.0, value=value, kind="f1", version=version))
    assert place.swapper._measured("a", "a-000001") == 0.5
    assert place.swapper._measured("a", "a-000002") is None


# --- the mean of several takes over -------------------------------------------------------------------------------------


def mean_of(place: Place, versions: tuple[str, ...], asked: str, **options: Any) -> str:
    command = SwapModel(stream="a", version=asked, quality=0.7, cause="reuse", reason="two days", mean_of=versions, **options)
    return place.swapper.take_over(place.worker, command)


def test_the_mean_of_two_takes_over_as_a_version_of_its_own_and_as_trained_at_once(place: Place) -> None:
    first, second = place.candidate(), place.candidate()
    version = mean_of(place, (first, second), first)
    assert version not in (first, second)
    assert place.serving() == (version, version)
    assert place.built == ["later"], "its form follows"
    assert place.store.model(version).version.quality is None, "what is believed of the scene was not measured of it"


def test_what_takes_over_by_itself_says_its_own_name(place: Place) -> None:
    version = place.candidate()
    assert mean_of(place, (), version) == version


def test_where_there_is_no_mean_the_version_that_was_asked_for_serves(place: Place) -> None:
    first = place.candidate()
    assert mean_of(place, (first, "a-000099"), first) == first
    assert place.serving() == (first, first)


def test_a_damaged_part_or_a_full_disk_leaves_the_version_that_was_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.candidate(), place.candidate()
    (place.folder.version_dir("a", second) / "model.safetensors").write_bytes(b"x")
    assert mean_of(place, (first, second), first) == first
    assert place.serving() == (first, first)

    def full(*_: object, **__: object) -> None:
        raise StorageError("the disk is full", code="full")

    third = place.candidate()
    monkeypatch.setattr(Shelf, "average", full)
    assert mean_of(place, (first, third), third) == third
    assert place.serving() == (third, third)


def means(place: Place) -> list[StoredModel]:
    return [m for m in place.store.models("a") if m.config.get("origin", {}).get("kind") == "average"]


def test_a_mean_that_does_not_take_over_is_rejected_and_the_version_that_was_asked_for_serves(place: Place) -> None:
    first, second = place.candidate(), place.candidate()
    later = place.swapper.serve_later

    def slow(model: Detector, camera: str) -> Detector:
        built = later(model, camera)
        built._cost_s = 0.5  # type: ignore[attr-defined]
        return built

    place.swapper.serve_later = slow
    assert mean_of(place, (first, second), first) == first
    assert place.serving() == (first, first)
    assert place.swapper.version_under_way("a") is None
    (mean,) = means(place)
    assert (mean.state, place.folder.version_dir("a", mean.version.id).exists()) == (ModelState.REJECTED, False)
    assert "needs 500 ms a frame" in mean.reason


def test_a_mean_that_was_given_up_meanwhile_does_not_serve_nor_does_another(place: Place) -> None:
    first, second = place.candidate(), place.candidate()
    later = place.swapper.serve_later

    def given_up(model: Detector, camera: str) -> Detector:
        place.swapper.give_up("a", "the operator chose another model")
        return later(model, camera)

    place.swapper.serve_later = given_up
    with pytest.raises(SwapRefused, match="the operator chose another"):
        mean_of(place, (first, second), first)
    assert place.serving() == ("a-000001", "a-000001")
    assert [m.state for m in means(place)] == [ModelState.REJECTED]
