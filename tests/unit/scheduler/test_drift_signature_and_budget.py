"""Signatures of windows and their distance; labels that follow drift; looks and signatures as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from configs.units import CLASSES, NOTHING
from scheduler.codec import decode, encode
from scheduler.drift import Need, distance, drift, label_frames, settled, shared, signature
from scheduler.drift.budget import LEAST_DRIFTED
from scheduler.drift.signature import PARTS
from scheduler.events import LookDone
from scheduler.types import Drift, Look, Signature
from tests.support.looks import Scene, look

DAY = Scene()
NIGHT = replace(DAY, brightness=25.0, contrast=20.0, sharpness=3.0, objects=1.0)
#: Signatures with and without a layout, and the unknown one.
signatures = st.one_of(
    st.just(Signature()),
    *[st.lists(st.floats(-5, 5), min_size=n, max_size=n).map(lambda v: Signature(values=tuple(v))) for n in (11, 29)],
)


def moved(magnitude: float, *, drifted: bool = True) -> Drift:
    return Drift(drifted=drifted, magnitude=magnitude)


# --- signatures -------------------------------------------------------------------------------------------------------


def test_the_nearest_window_is_the_one_of_the_same_time_of_day() -> None:
    days = [signature(look(DAY, k)) for k in range(3)]
    nights = [signature(look(NIGHT, 10 + k)) for k in range(3)]
    assert max(distance(a, b) for a in days for b in days) < 0.1
    assert min(distance(a, b) for a in days for b in nights) > 0.8


def test_a_signature_does_not_depend_on_the_model_that_looked() -> None:
    seen = look(DAY, 1)
    other = Look(version="v9", frames=tuple(replace(f, embedding=(9.0, 9.0), confidence=0.1) for f in seen.frames))
    assert signature(other) == signature(seen)


@given(a=signatures, b=signatures, c=signatures)
@settings(max_examples=60, deadline=None)
def test_distance_is_one(a: Signature, b: Signature, c: Signature) -> None:
    assert distance(a, b) == distance(b, a)
    assert distance(a, b) >= 0
    if a.values:
        assert distance(a, a) == 0
    if len({len(x.values) for x in (a, b, c)}) == 1 and a.values:
        assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


def test_an_unknown_signature_is_near_nothing() -> None:
    known = signature(look(DAY, 1))
    assert signature(Look(version="v1", frames=())) == Signature()
    assert distance(Signature(), known) == math.inf
    assert distance(Signature(), Signature()) == math.inf


def test_a_missing_layout_leaves_the_other_parts_to_compare() -> None:
    whole = look(DAY, 1)
    bare = Look(version="v1", frames=tuple(replace(f, layout=()) for f in whole.frames))
    mixed = Look(version="v1", frames=(bare.frames[0], *whole.frames[1:]))
    assert len(signature(bare).values) == sum(PARTS)
    assert len(signature(whole).values) == sum(PARTS) + 18
    assert signature(mixed) == signature(bare)
    assert distance(signature(whole), signature(bare)) == 0
    assert distance(signature(bare), signature(look(NIGHT, 2))) > 0.5


def test_a_missing_tint_leaves_the_layout_out_too() -> None:
    whole = look(DAY, 1)
    grey = Look(version="v1", frames=tuple(replace(f, tint=()) for f in whole.frames))
    assert len(signature(grey).values) == sum(PARTS)
    assert distance(signature(whole), signature(grey)) == 0


def test_a_part_counts_alike_however_many_numbers_it_has() -> None:
    seen = look(DAY, 1)
    lighter = Look(
        version="v1",
        frames=tuple(
            replace(f, layout=tuple(v + 0.25 for v in f.layout), tint=tuple(v + 0.25 for v in f.tint)) for f in seen.frames
        ),
    )
    brighter = Look(
        version="v1",
        frames=tuple(
            replace(f, brightness=f.brightness + 64, contrast=f.contrast + 32, sharpness=f.sharpness + 1) for f in seen.frames
        ),
    )
    parts = len(PARTS) + 1
    assert distance(signature(seen), signature(lighter)) == pytest.approx(math.sqrt(1 / parts), abs=1e-5)
    assert distance(signature(seen), signature(brighter)) == pytest.approx(math.sqrt(1 / parts), abs=1e-5)


def test_disjoint_classes_are_one_part_apart_and_nothing_is_no_class() -> None:
    def only(share: tuple[float, ...]) -> Look:
        return Look(version="v1", frames=tuple(replace(f, class_frac=share, objects=4.0) for f in look(DAY, 1).frames))

    people, cars = only((1.0, *(0.0,) * (len(CLASSES) - 1))), only((0.0, 0.0, 1.0))
    assert distance(signature(people), signature(cars)) == pytest.approx(math.sqrt(1 / (len(PARTS) + 1)), abs=1e-5)
    background = only((*(0.0,) * NOTHING, 1.0))
    assert all(math.isfinite(v) for v in signature(background).values)
    assert signature(background).values[4 : 4 + len(CLASSES)] == (0.0,) * len(CLASSES)


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_looks_and_signatures_come_back_from_the_journal_as_they_were() -> None:
    seen = look(DAY, 7)
    event = LookDone(at_s=3.5, job="a/look/1", stream="a", look=seen, signature=signature(seen), gpu_s=0.25)
    again = decode(encode(event))
    assert again == event
    assert encode(again) == encode(event)
    assert drift(again.look, look(DAY, 8)) == drift(seen, look(DAY, 8))


def test_a_journal_line_whose_look_holds_no_number_is_refused() -> None:
    event = LookDone(at_s=0.0, job="j", stream="a", look=look(DAY, 7), signature=Signature(), gpu_s=0.0)
    body = json.loads(encode(event))
    body["look"]["frames"][3]["brightness"] = math.nan
    with pytest.raises(StorageError, match="cannot be read"):
        decode(json.dumps(body))


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_follow_drift() -> None:
    assert label_frames(moved(0.2, drifted=False), True, 40, 8) == 8
    assert label_frames(moved(0.0), True, 40, 8) == 8 + round(LEAST_DRIFTED * 32)
    assert label_frames(moved(1.0), True, 40, 8) == 40
    assert label_frames(moved(0.0, drifted=False), False, 40, 8) == 40, "a camera that still learns"
    assert label_frames(None, True, 40, 8) == 40, "nothing is known of it"
    assert label_frames(moved(0.0, drifted=False), True, 5, 8) == 5, "full is the most there is"


@given(
    a=st.floats(0, 1), b=st.floats(0, 1), full=st.integers(0, 200), minimum=st.integers(0, 50), known=st.booleans(),
    drifted=st.booleans(),
)  # fmt: skip
def test_labels_never_fall_when_drift_grows(a: float, b: float, full: int, minimum: int, known: bool, drifted: bool) -> None:
    less, more = sorted((a, b))
    budgets = [label_frames(moved(m, drifted=drifted), known, full, minimum) for m in (less, more)]
    assert budgets == sorted(budgets)
    assert all(min(minimum, full) <= n <= full for n in budgets)
    assert label_frames(moved(less, drifted=False), known, full, minimum) <= label_frames(moved(less), known, full, minimum)


def test_a_camera_is_settled_when_its_last_retrainings_won_nothing() -> None:
    assert not settled([]), "it has never learned"
    assert not settled([0.2])
    assert settled([0.2, 0.004])
    assert settled([-0.1]), "refused at the gate"
    assert not settled([0.0, 0.05])
    assert not settled([0.0], patience=2)
    assert not settled([0.05, 0.0], patience=2)
    assert settled([0.05, 0.0, 0.009], patience=2)
    assert not settled([0.02], min_gain=0.01)
    assert settled([0.02], min_gain=0.05)


def needs(*frames: int, waited: int = 0) -> list[Need]:
    return [Need(id=f"c{k}", frames=f, waited=waited) for k, f in enumerate(frames)]


def test_what_is_enough_is_given() -> None:
    assert shared(needs(40, 8, 24), 100, 8) == {"c0": 40, "c1": 8, "c2": 24}
    assert shared([], 100, 8) == {}
    assert shared(needs(0, 8), 100, 8) == {"c0": 0, "c1": 8}


def test_what_is_short_goes_where_more_is_wanted() -> None:
    assert shared(needs(40, 8, 24), 48, 8) == {"c0": 24, "c1": 8, "c2": 16}
    assert shared(needs(40, 40), 41, 8) == {"c0": 21, "c1": 20}, "equal wants, equal shares; the odd one goes by name"


def test_under_the_minimum_cameras_take_turns_and_the_drifted_come_first() -> None:
    first = shared(needs(8, 40, 8), 20, 8)
    assert first == {"c0": 8, "c1": 12, "c2": 0}
    assert shared(needs(8, 40, 8), 3, 8) == {"c0": 0, "c1": 8, "c2": 0}, "one camera always gets its minimum"


@given(frames=st.lists(st.integers(1, 60), min_size=1, max_size=8), total=st.integers(0, 300), minimum=st.integers(1, 10))
def test_sharing_keeps_the_sum_and_the_minimum(frames: list[int], total: int, minimum: int) -> None:
    wanted = needs(*frames)
    given_ = shared(wanted, total, minimum)
    least = {n.id: min(n.frames, minimum) for n in wanted}
    assert set(given_) == set(least)
    assert all(given_[n.id] <= n.frames for n in wanted)
    if sum(least.values()) <= total:
        assert sum(given_.values()) == min(total, sum(frames))
        assert all(given_[id] >= least[id] for id in least)
        order = sorted(wanted, key=lambda n: n.frames)
        assert all(given_[a.id] <= given_[b.id] + 1 for a, b in zip(order, order[1:], strict=False))
    else:
        assert all(n == 0 or n >= least[id] for id, n in given_.items())
        assert sum(given_.values()) <= max(total, minimum)


@given(frames=st.lists(st.integers(8, 60), min_size=2, max_size=8), total=st.integers(1, 40), more=st.integers(1, 40))
def test_a_camera_that_asks_for_more_gets_no_less(frames: list[int], total: int, more: int) -> None:
    before = shared(needs(*frames), total, 8)
    after = shared(needs(frames[0] + more, *frames[1:]), total, 8)
    assert after["c0"] >= before["c0"] - 1, "a rounded frame at most"


def test_no_camera_waits_for_ever_behind_one_that_always_drifts() -> None:
    waited = {"c0": 0, "c1": 0, "c2": 0}
    served: dict[str, int] = dict.fromkeys(waited, 0)
    for _ in range(12):
        now = shared([Need(id=id, frames=40 if id == "c0" else 8, waited=w) for id, w in waited.items()], 8, 8)
        for id, frames in now.items():
            waited[id] = 0 if frames else waited[id] + 1
            served[id] += bool(frames)
    assert served["c0"] >= served["c1"] >= 2
    assert served["c2"] >= 2
    assert sum(served.values()) == 12
