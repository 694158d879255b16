"""What perfect knowledge would have made of recorded lessons: small cases by hand, and bounds on random ones."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from scheduler.ekya.hindsight import Device, Lesson, Pupil, foreseen, given, joined, pupils_of
from scheduler.types import KnobProfile

DEVICE = Device(window_s=100.0, capacity_pct=100, quantum_pct=10)
#: Half of the frames at a third of the cost keeps 80 %.
KNOBS = (
    KnobProfile(name="every", demand_pct=60.0, quality_frac=1.0, fps=10.0),
    KnobProfile(name="1/2", demand_pct=20.0, quality_frac=0.8, fps=5.0),
)


def pupil(
    id: str = "a",
    quality: Sequence[float] = (0.4, 0.4, 0.4),
    lessons: Sequence[Lesson] = (),
    knobs: tuple[KnobProfile, ...] = KNOBS,
) -> Pupil:
    return Pupil(id=id, base="base", quality=tuple(quality), knobs=knobs, lessons=tuple(lessons))


def lesson(
    version: str = "v1",
    *,
    window: int = 1,
    gpu_s: float = 10.0,
    quality: Sequence[float] = (0.0, 0.8, 0.8),
    parent: str = "base",
) -> Lesson:
    return Lesson(version=version, parent=parent, window=window, gpu_s=gpu_s, quality=tuple(quality))


class TestGiven:
    def test_nothing_to_learn_is_the_model_as_delivered(self) -> None:
        assert given([pupil()], DEVICE) == pytest.approx(0.4)

    def test_the_best_model_of_each_window_serves_from_its_start(self) -> None:
        taught = pupil(lessons=[lesson(), lesson("v2", window=2, quality=(0.0, 0.0, 0.9))])
        assert given([taught], DEVICE) == pytest.approx((0.8 + 0.9) / 2)

    def test_a_model_is_of_no_use_before_its_window(self) -> None:
        assert given([pupil(lessons=[lesson(window=2, quality=(0.9, 0.9, 0.4))])], DEVICE) == pytest.approx(0.4)

    def test_an_older_model_may_fit_better_again(self) -> None:
        taught = pupil(
            quality=(0.4,) * 4, lessons=[lesson(quality=(0, 0.7, 0.3, 0.7)), lesson("v2", window=2, quality=(0, 0, 0.6, 0.5))]
        )
        assert given([taught], DEVICE) == pytest.approx((0.7 + 0.6 + 0.7) / 3)

    def test_inference_has_what_fits_together(self) -> None:
        both = [pupil("a"), pupil("b")]  # 60 % and 20 % fit, 60 % twice do not
        assert given(both, DEVICE) == pytest.approx((0.4 * 1.0 + 0.4 * 0.8) / 2)


class TestForeseen:
    def test_a_lesson_takes_its_time_and_its_share(self) -> None:
        """10 GPU-seconds on 80 % take 12.5 s, in which inference has the cheap knobs; on 40 % they would take 25 s beside all frames."""
        found = foreseen([pupil(quality=(0.4, 0.4), lessons=[lesson(quality=(0, 0.8))])], DEVICE)
        assert found.quality == pytest.approx(0.125 * 0.8 * 0.4 + 0.875 * 0.8)
        assert found.lessons == (("a", 1, "v1"),)
        assert found.gpu_s == pytest.approx(10.0)

    def test_it_serves_in_later_windows_too(self) -> None:
        found = foreseen([pupil(lessons=[lesson()])], DEVICE)
        assert found.windows == pytest.approx((0.74, 0.8))

    def test_a_lesson_that_wins_nothing_is_left_out(self) -> None:
        assert foreseen([pupil(lessons=[lesson(quality=(0, 0.39, 0.4))])], DEVICE).lessons == ()

    def test_a_lesson_that_does_not_end_in_its_window_is_left_out(self) -> None:
        assert foreseen([pupil(lessons=[lesson(gpu_s=95.0)])], DEVICE).lessons == ()

    def test_a_lesson_may_be_worth_its_cost_for_the_next_window_alone(self) -> None:
        """At the window's very end it serves nobody in it, and costs inference all the while."""
        late = pupil(quality=(0.4, 0.4, 0.1), lessons=[lesson(gpu_s=90.0, quality=(0, 0.4, 0.9))])
        found = foreseen([late], DEVICE)
        assert found.lessons
        assert found.windows[0] < 0.4
        assert found.windows[1] == pytest.approx(0.9)

    @pytest.mark.parametrize(("gpu_s", "shown"), [(10.0, 0.8), (95.0, 0.4)])
    def test_what_is_learned_in_the_first_window_ends_in_it_and_serves_in_those_that_count(
        self, gpu_s: float, shown: float
    ) -> None:
        found = foreseen([pupil(lessons=[lesson(window=0, gpu_s=gpu_s, quality=(0.8, 0.8, 0.8))])], DEVICE)
        assert found.windows == pytest.approx((shown, shown))
        assert bool(found.lessons) == (shown == 0.8)

    def test_what_it_costs_beside_is_paid_for_each_lesson(self) -> None:
        taught = [pupil(lessons=[lesson()])]
        dear = foreseen(taught, DEVICE, beside_gpu_s=10.0)
        assert dear.gpu_s == pytest.approx(20.0)
        assert dear.quality < foreseen(taught, DEVICE).quality

    def test_a_lesson_needs_its_parent(self) -> None:
        child = lesson("v2", parent="v1", window=2, quality=(0, 0, 0.9))
        assert foreseen([pupil(lessons=[child])], DEVICE).lessons == ()
        useless_parent = lesson(quality=(0, 0.4, 0.4))
        found = foreseen([pupil(lessons=[useless_parent, child])], DEVICE)
        assert [version for _, _, version in found.lessons] == ["v1", "v2"]

    def test_the_one_that_wins_most_per_second_goes_first(self) -> None:
        """Both fit, one after the other on one share: swapping them would delay the larger gain."""
        small = pupil("a", quality=(0.4, 0.4), lessons=[lesson(quality=(0, 0.5))])
        large = pupil("b", quality=(0.1, 0.1), lessons=[lesson(quality=(0, 0.9))])
        found = foreseen([small, large], DEVICE)
        by_hand = max(
            (t * (0.8 * 0.4 + 0.8 * 0.1) + t * (0.8 * 0.4 + 0.8 * 0.9) + (100 - 2 * t) * (0.8 * 0.5 + 0.9)) / 200
            for t in [10.0 / 0.6]  # two cheap inferences leave 60 %
        )
        assert found.quality >= by_hand - 1e-9

    def test_more_compute_is_never_worse(self) -> None:
        taught = [pupil(id, lessons=[lesson(gpu_s=40.0)]) for id in "abc"]
        values = [foreseen([p.at_speed(speed) for p in taught], DEVICE).quality for speed in (0.25, 0.5, 1.0, 2.0, 4.0)]
        assert values == sorted(values)
        assert values[-1] > values[0]


def random_pupils(seed: int) -> list[Pupil]:
    rng = random.Random(seed)

    def one(id: str) -> Pupil:
        def drawn(name: object, window: int, qualities: Sequence[float], parent: str = "base") -> Lesson:
            return lesson(f"{id}{name}", window=window, gpu_s=rng.uniform(3, 40), quality=qualities, parent=parent)

        quality = [rng.uniform(0.1, 0.6) for _ in range(3)]
        lessons = [drawn(w, w, [rng.uniform(0.2, 0.9) for _ in range(3)]) for w in (1, 2)]
        return pupil(id, quality, [*lessons, drawn("child", 2, [rng.uniform(0.2, 0.9)] * 3, parent=f"{id}1")])

    return [one(id) for id in "abc"]


@pytest.mark.parametrize("seed", range(8))
class TestBounds:
    def test_knowing_is_no_better_than_being_given_and_no_worse_than_not_learning(self, seed: int) -> None:
        pupils = random_pupils(seed)
        untaught = given([pupil(p.id, p.quality) for p in pupils], DEVICE)
        assert untaught - 1e-9 <= foreseen(pupils, DEVICE).quality <= given(pupils, DEVICE) + 1e-9

    def test_no_single_lesson_alone_is_better(self, seed: int) -> None:
        pupils = random_pupils(seed)
        whole = foreseen(pupils, DEVICE).quality
        for number, one in itertools.product(range(3), range(2)):
            alone = [pupil(p.id, p.quality, p.lessons[one : one + 1] if n == number else ()) for n, p in enumerate(pupils)]
            assert foreseen(alone, DEVICE).quality <= whole + 1e-9

    def test_the_same_question_has_the_same_answer(self, seed: int) -> None:
        assert foreseen(random_pupils(seed), DEVICE) == foreseen(random_pupils(seed), DEVICE)


class TestPupilsOf:
    ENTRY: ClassVar[dict[str, Any]] = {
        "id": "a", "base": "base", "quality": [0.4, 0.5],
        "knobs": [{"name": "every", "demand_pct": 60.0, "quality_frac": 1.0, "fps": 10.0}],
        "lessons": [{"version": "v1", "parent": "base", "window": 1, "gpu_s": 5.0, "quality": [0.0, 0.7]}],
    }  # fmt: skip

    def test_an_answer_is_read(self) -> None:
        (found,) = pupils_of([self.ENTRY])
        assert found.knobs[0].demand_pct == 60.0
        assert found.quality == (0.4, 0.5)
        assert found.lessons[0].quality == (0.0, 0.7)

    def test_lessons_of_several_answers_are_joined_each_once(self) -> None:
        other = {**self.ENTRY, "lessons": [*self.ENTRY["lessons"], {**self.ENTRY["lessons"][0], "version": "v2"}]}
        (found,) = joined([pupils_of([self.ENTRY]), pupils_of([other])])
        assert [n.version for n in found.lessons] == ["v1", "v2"]

    def test_other_cameras_are_refused(self) -> None:
        with pytest.raises(ValueError, match="different cameras"):
            joined([pupils_of([self.ENTRY]), pupils_of([{**self.ENTRY, "id": "b"}])])

    def test_of_no_answer_there_is_nobody(self) -> None:
        assert joined([]) == ()
