"""Labels that are looked at before they are trained on: what is dropped, what is noted, what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobError, StorageError
from configs.units import CLASSES, NOTHING
from models.labelled import N_PRESENCE, LabelledImage, Subset, presence_of
from models.sanity import MAX_PICTURES, MIN_PICTURES, MIN_SIDE_PX, CheckedSamples, LabelCounts, cleaned, looked_at
from scheduler.types import Detections

HEIGHT, WIDTH = 60, 80
GOOD = (10.0, 10.0, 30.0, 30.0)


def labels(*boxes: tuple[float, ...], classes: Sequence[int] | None = None) -> Detections:
    return Detections(
        xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        score=np.ones(len(boxes), np.float32),
        class_id=np.array([0] * len(boxes) if classes is None else classes, np.int64),
    )


def picture(found: Detections) -> LabelledImage:
    return LabelledImage(image=np.zeros((HEIGHT, WIDTH, 3), np.uint8), labels=found)


def looked(samples: Sequence[LabelledImage], *, refuse: bool = True, balance: bool = False) -> tuple[CheckedSamples, int]:
    """What came of looking, and how many iterations it took."""
    steps, n = looked_at(samples, subject="gate", refuse=refuse, balance=balance), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, n
        n += 1


def refused(samples: Sequence[LabelledImage]) -> JobError:
    with pytest.raises(JobError) as caught:
        looked(samples)
    assert caught.value.subject == "gate"
    assert caught.value.remedy, "says what to do"
    return caught.value


def clean(*boxes: tuple[float, ...], classes: Sequence[int] | None = None) -> tuple[Detections, LabelCounts]:
    return cleaned(labels(*boxes, classes=classes), height_px=HEIGHT, width_px=WIDTH)


@pytest.mark.parametrize(
    ("box", "counts"),
    [
        (GOOD, {"kept": 1}),
        ((0, 0, WIDTH, HEIGHT), {"kept": 1, "whole": 1}),
        ((-5, -5, WIDTH + 5, HEIGHT + 5), {"kept": 1, "whole": 1, "cut": 1}),
        ((-0.5, 10, 20, 30), {"kept": 1}),
        ((-10, 10, 20, 30), {"kept": 1, "cut": 1}),
        ((-30, 10, 10, 30), {"outside": 1}),
        ((100, 10, 120, 30), {"outside": 1}),
        ((-1e30, -1e30, 1e30, 1e30), {"outside": 1}),
        ((10, 10, 11, 30), {"tiny": 1}),
        ((10, 10, 11, 11), {"tiny": 1}),
        ((30, 10, 10, 30), {"broken": 1}),
        ((10, 30, 30, 10), {"broken": 1}),
        ((10, 10, 10, 30), {"broken": 1}),
        ((np.nan, 10, 30, 30), {"broken": 1}),
        ((10, 10, np.inf, 30), {"broken": 1}),
        ((-np.inf, -np.inf, np.inf, np.inf), {"broken": 1}),
    ],
)  # fmt: skip
def test_one_box_has_one_fate(box: tuple[float, ...], counts: dict[str, int]) -> None:
    kept, found = clean(box)
    assert found == LabelCounts(**counts)
    assert len(kept) == found.kept
    assert found.all == 1


def test_unknown_classes_are_dropped_and_nothing_is_a_known_one() -> None:
    kept, counts = clean(GOOD, GOOD, GOOD, GOOD, classes=[-1, NOTHING, NOTHING + 1, len(CLASSES) - 1])
    assert kept.class_id.tolist() == [NOTHING, len(CLASSES) - 1]
    assert counts == LabelCounts(kept=2, unknown=2)


@given(
    st.lists(st.tuples(*[st.floats(-200, 200) | st.sampled_from([np.nan, np.inf, -np.inf, 1e38])] * 4), max_size=8),
    st.integers(-2, 9),
)
def test_whatever_comes_what_is_kept_can_be_trained_on(boxes: list[tuple[float, ...]], class_id: int) -> None:
    found, counts = clean(*boxes, classes=[class_id] * len(boxes))
    assert counts.all == len(boxes)
    assert len(found) == counts.kept
    assert np.isfinite(found.xyxy).all()
    assert (found.xyxy >= 0).all()
    assert (found.xyxy <= (WIDTH, HEIGHT, WIDTH, HEIGHT)).all()
    assert (found.xyxy[:, 2:] - found.xyxy[:, :2] >= MIN_SIDE_PX - 1e-3).all()
    assert found.xyxy.dtype == np.float32
    again, counted = cleaned(found, height_px=HEIGHT, width_px=WIDTH)
    assert np.array_equal(again.xyxy, found.xyxy), "cleaning twice changes nothing"
    assert counted.dropped == 0


def test_good_labels_pass_unchanged_without_a_note() -> None:
    samples = [picture(labels(GOOD, (0, 0, 9, 9), classes=[0, 2])) for _ in range(20)]
    checked, iterations = looked(samples)
    assert iterations == len(checked) == 20, "one picture an iteration"
    assert checked.notes == ()
    assert checked[3].image is samples[3].image
    assert checked[3].labels.xyxy.tolist() == samples[3].labels.xyxy.tolist()
    assert np.flatnonzero(checked.presence[0]).tolist() == [0, 2]


def test_dropped_boxes_are_noted_by_kind_and_not_trained_on() -> None:
    bad = labels(
        GOOD, GOOD, (np.nan, 0, 9, 9), (100, 0, 120, 9), (5, 5, 6, 6), GOOD, (-10, 10, 20, 30), classes=[0, 2, 0, 0, 0, 99, 0]
    )
    checked, _ = looked([picture(bad)] + [picture(labels(GOOD, GOOD, classes=[0, 2]))] * 11)
    assert checked.notes == (
        "4 of 29 labelled boxes are not trained on: 1 of unknown classes, 1 broken, 1 outside the picture, 1 under 2 px",
        "1 labelled boxes reached over the picture's border and were cut",
    )
    assert len(checked[0].labels) == 3
    assert len(Subset(checked, [0])[0].labels) == 3, "also through what the loop reads them by"
    assert [len(s.labels) for s in checked[0:2]] == [3, 2]


def test_background_is_allowed_but_a_set_without_objects_is_refused() -> None:
    empty = picture(Detections.empty())
    checked, _ = looked([empty] * 15 + [picture(labels(GOOD))] * 3)
    assert any("15 of 18 labelled pictures show nothing" in note for note in checked.notes)
    assert refused([empty] * 20).code == "no_objects"
    only_tiny = picture(labels((5, 5, 6, 6)))
    assert refused([only_tiny] * 20).code == "no_objects", "what is dropped does not count"
    nothing = picture(labels(GOOD, classes=[NOTHING]))
    assert refused([nothing] * 20).code == "no_objects", "regions that hold no object are no object"


def test_one_class_only_is_noted_and_leaves_nothing_to_balance() -> None:
    from models.retrain import balance_weights

    samples = [picture(labels(GOOD, classes=[2]))] * 12
    assert looked(samples)[0].notes == ("only one class is labelled (car)",)
    checked, _ = looked(samples, balance=True)
    assert checked.notes == ("only one class is labelled (car): there is nothing to balance",)
    assert balance_weights(checked.presence).tolist() == [1.0] * 12


@pytest.mark.parametrize("n", range(MIN_PICTURES))
def test_too_few_pictures_are_refused(n: int) -> None:
    assert refused([picture(labels(GOOD))] * n).code == ("too_few" if n else "no_data")


def test_five_pictures_are_learned_from_and_said() -> None:
    checked, _ = looked([picture(labels(GOOD, GOOD, classes=[0, 1]))] * 5)
    assert len(checked) == 5
    assert checked.notes == ("only 5 labelled pictures: trials and gate can tell little",)


@pytest.mark.parametrize(
    ("boxes", "classes", "code"),
    [
        ([GOOD] * 3, [0, 90, 91], "unknown_classes"),
        ([GOOD, (np.nan, 0, 9, 9), (30, 10, 10, 30)], [0, 0, 0], "bad_labels"),
        ([GOOD, (200, 0, 220, 9), (-90, 0, -80, 9)], [0, 0, 0], "bad_labels"),
    ],
)  # fmt: skip
def test_labels_that_are_mostly_wrong_are_refused(boxes: list[tuple[float, ...]], classes: list[int], code: str) -> None:
    assert refused([picture(labels(*boxes, classes=classes))] * 20).code == code
    looked([picture(labels(*boxes[:2], classes=classes[:2]))] * 20)  # just half of them is only noted


class Many(Sequence[LabelledImage]):
    """As many pictures as asked, made when they are read."""

    def __init__(self, n: int) -> None:
        self.n, self.read = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        self.read += 1
        return LabelledImage(image=np.zeros((8, 8, 3), np.uint8), labels=labels((1, 1, 6, 6), classes=[i % 3]))


def test_fifty_thousand_pictures_are_thinned_out_evenly_and_said() -> None:
    samples = Many(50_000)
    tracemalloc.start()
    checked, iterations = looked(samples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert samples.read == iterations == len(checked) == MAX_PICTURES
    assert checked.notes == (f"50000 labelled pictures: {MAX_PICTURES} of them are used, spread evenly",)
    assert peak < 8 * 2**20
    picks = checked._samples._indices  # type: ignore[attr-defined]
    assert max(np.diff(picks)) <= 50_000 / MAX_PICTURES + 1


class Damaged(Many):
    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if i % 4 == 0:
            raise KeyError("pruned") if i % 8 else StorageError("damaged", code="corrupt")
        return super().__getitem__(i)


def test_pictures_that_cannot_be_read_are_left_out_and_said() -> None:
    checked, _ = looked(Damaged(40))
    assert len(checked) == 30
    assert checked.notes == ("10 labelled pictures could not be read and are left out",)
    assert all(len(checked[i].labels) == 1 for i in range(30))


def test_earlier_windows_are_only_cleaned() -> None:
    checked, _ = looked([], refuse=False)
    assert len(checked) == 0
    checked, _ = looked([picture(Detections.empty()), picture(labels((np.nan, 0, 9, 9)))], refuse=False)
    assert checked.notes == ("1 of 1 labelled boxes are not trained on: 1 broken",)
    assert not checked.presence.any()


def test_presence_is_known_without_reading_again() -> None:
    samples = Many(20)
    checked, _ = looked(samples)
    read = samples.read
    rows = presence_of(Subset(checked, [0, 1, 2, 3]))
    assert samples.read == read
    assert rows.shape == (4, N_PRESENCE)
    assert np.array_equal(rows, presence_of([samples[i] for i in range(4)]))
    with pytest.raises(ValueError, match="presence must be"):
        CheckedSamples(samples, rows, ())


def test_closing_half_way_leaves_nothing_behind() -> None:
    steps: Iterator[None] = looked_at(Many(50), subject="gate")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(steps)


#: What passes although it is odd: as large as the picture, just large enough, at every border, many on one spot, an animal.
ODD = [
    labels((0, 0, WIDTH, HEIGHT)),
    labels((0, 0, 2, 2), (WIDTH - 2, HEIGHT - 2, WIDTH, HEIGHT), (0, 20, 2, HEIGHT), classes=[6, 0, 4]),
    labels(*[GOOD] * 30, classes=[2] * 30),
    labels((-100, -100, WIDTH + 5, HEIGHT + 5), (-5, 10, 20, 30), classes=[1, 3]),
    Detections.empty(),
]


@pytest.mark.parametrize(
    "name",
    ["tinydet-edge", "mobilenetv2", pytest.param("yolov8n", marks=pytest.mark.slow), pytest.param("ssdlite320", marks=pytest.mark.slow)],
)  # fmt: skip
def test_odd_labels_that_pass_can_be_learned_from_by_every_kind_of_model(name: str) -> None:
    from models.retrain import retrain
    from models.tasks.classification import CLASSIFICATION
    from models.tasks.detection import DETECTION
    from models.zoo import is_classifier, new_detector, spec_of
    from scheduler.types import RetrainConfig

    rng = np.random.default_rng(0)
    samples = [LabelledImage(image=rng.integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8), labels=odd) for odd in ODD]
    checked, _ = looked(samples)
    assert len(checked) == len(ODD)
    model = new_detector(spec_of(name, None if name in ("tinydet-edge", "ssdlite320") else 64), seed=0)
    config = RetrainConfig(name="odd", epochs=1, batch=2, layers_frac=0.3, lr=1e-4, distill=0.5, balance=True)
    task = CLASSIFICATION if is_classifier(name) else DETECTION
    steps = list(retrain(model, checked, config, seed=0, replay=checked, task=task))
    assert all(np.isfinite(step.loss) for step in steps)
    assert all(bool(tensor.isfinite().all()) for tensor in model.state().values())
