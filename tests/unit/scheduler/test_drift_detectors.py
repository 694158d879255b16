"""The four detectors of drift: false alarms, planted shifts, edges; and how they are put together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scheduler.drift import NAMES, DriftConfig, drift, frames_needed, needs_new_look, reference_after, run_test
from scheduler.drift.blocks import MAX_MARGIN, Halves, fewest_blocks, threshold_of
from scheduler.drift.tests import CLASS_MIX, CONFIDENCE, EMBEDDING, FLOORS, IMAGE
from scheduler.types import FrameLook, Look
from tests.support.looks import Scene, look, wander

CALM = Scene()
#: A change that each detector must see, and what else may see it.
PLANTED = {
    CLASS_MIX: replace(CALM, cars=0.1),
    CONFIDENCE: replace(CALM, confidence=0.4),
    EMBEDDING: replace(CALM, turn=0.6),
    IMAGE: replace(CALM, brightness=80.0),
}


def swapped(a: Look, order: list[int]) -> Look:
    return Look(version=a.version, frames=tuple(a.frames[i] for i in order))


def frame(**changes: float | tuple[float, ...]) -> FrameLook:
    return replace(look(CALM, 0, frames=1).frames[0], **changes)  # type: ignore[arg-type]


# --- planted shifts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_shift_is_seen_by_its_detector_and_by_no_other(name: str) -> None:
    found = drift(look(CALM, 1), look(PLANTED[name], 2))
    assert found.drifted
    assert [t.name for t in found.tests if t.fired] == [name]
    assert found.magnitude > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_the_same_planted_shift_is_missed_seldom(name: str) -> None:
    answers = [run_test(name, look(CALM, s), look(PLANTED[name], 1000 + s), alpha=0.0125) for s in range(30)]
    assert sum(a is not None and a.fired for a in answers) >= 29


def test_a_camera_that_goes_infrared_is_seen_by_its_tint() -> None:
    grey = look(replace(CALM, tint=(0.5, 0.5)), 2)
    found = drift(look(CALM, 1), grey)
    assert [t.name for t in found.tests if t.fired] == [IMAGE]
    untold = Look(version="v1", frames=(replace(grey.frames[0], tint=()), *grey.frames[1:]))
    assert not drift(look(CALM, 1), untold).drifted, "unknown in one frame, compared in none"


def test_more_of_the_same_objects_is_a_drift_of_the_class_mix() -> None:
    found = run_test(CLASS_MIX, look(CALM, 1), look(replace(CALM, objects=20.0), 2), alpha=0.0125)
    assert found is not None
    assert found.fired


def test_a_drift_does_not_raise_its_own_threshold() -> None:
    thresholds = [
        run_test(IMAGE, look(CALM, 1), look(replace(CALM, brightness=120.0 - down), 2), alpha=0.0125).threshold  # type: ignore[union-attr]
        for down in (0.0, 20.0, 100.0)
    ]
    assert thresholds == pytest.approx([thresholds[0]] * 3)


@pytest.mark.parametrize("name", [IMAGE, CONFIDENCE, EMBEDDING])
def test_magnitude_grows_with_the_change(name: str) -> None:
    steps = np.linspace(0, 1, 6)
    change = {
        IMAGE: lambda k: replace(CALM, brightness=120 - 60 * k), CONFIDENCE: lambda k: replace(CALM, confidence=0.6 - 0.3 * k),
        EMBEDDING: lambda k: replace(CALM, turn=k),
    }[name]  # fmt: skip
    sizes = [drift(look(CALM, 1), look(change(k), 1), DriftConfig(tests=(name,))).magnitude for k in steps]
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[-2] > 0


# --- false alarms -----------------------------------------------------------------------------------------------------


#: Autocorrelation of neighbouring frames -> false alarms over alpha, as docs/drift.md states them. At 0.8 what happens in a frame
#: is still felt ten frames later: half of a look.
STATED = {0.0: 1.0, 0.5: 1.5, 0.8: 2.5}


@pytest.mark.parametrize("phi", STATED)
@pytest.mark.parametrize("frames", [12, 24, 40])
def test_ar1_sequences_alarm_no_more_often_than_stated(phi: float, frames: int) -> None:
    """A scalar that wanders, 400 pairs of looks; the bound is what a binomial of rate alpha exceeds once in 1,000 tries."""
    alpha, tries = 0.05, 400
    halves = Halves(n_reference=frames, n_current=frames, blocks=min(8, frames // 2))
    alarms = sum(alarm(halves, phi, alpha, seed) for seed in range(tries))
    assert alarms <= stats.binom.ppf(0.999, tries, STATED[phi] * alpha)


def alarm(halves: Halves, phi: float, alpha: float, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    values = np.concatenate([wander(rng, phi, halves.n_reference), wander(rng, phi, halves.n_current)])[:, None]
    reference, current = halves.weights
    dealt = np.abs((reference - current) @ halves.centred(values))[:, 0]
    true = abs(values[: halves.n_reference].mean() - values[halves.n_reference :].mean())
    return bool(true > threshold_of(dealt, alpha) * halves.margin(values, alpha))


def test_iid_thresholds_would_alarm_all_the_time() -> None:
    """Why there are blocks and a margin at all: Student's t on the same sequences."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        alarms += stats.ttest_ind(wander(rng, 0.8, 24), wander(rng, 0.8, 24)).pvalue < 0.05
    assert alarms > 4 * 0.05 * 200


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_all_detectors_together_keep_the_family_rate(phi: float) -> None:
    scene, tries = replace(CALM, phi=phi), 150
    alarms = sum(drift(look(scene, 2 * s), look(scene, 2 * s + 1), DriftConfig(splits=400)).drifted for s in range(tries))
    assert alarms <= stats.binom.ppf(0.999, tries, 0.05)


# --- properties -------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), frames=st.integers(0, 40), phi=st.floats(0, 0.95))
@settings(max_examples=40, deadline=None)
def test_a_look_has_not_drifted_from_itself(seed: int, frames: int, phi: float) -> None:
    same = look(replace(CALM, phi=phi), seed, frames=frames)
    found = drift(same, same)
    assert not found.drifted
    assert found.magnitude == 0


def shots() -> st.SearchStrategy[FrameLook]:
    unit = st.floats(0, 1)
    return st.builds(
        FrameLook, brightness=st.floats(0, 255), contrast=st.floats(0, 128), sharpness=st.floats(0, 12),
        objects=st.integers(0, 300).map(float), confidence=unit, class_frac=st.tuples(*[unit] * 7),
        embedding=st.tuples(*[st.floats(-1, 1)] * 4),
    )  # fmt: skip


def looks() -> st.SearchStrategy[Look]:
    return st.builds(Look, version=st.sampled_from(["a", "b"]), frames=st.lists(shots(), max_size=30).map(tuple))


@given(reference=looks(), current=looks())
@settings(max_examples=60, deadline=None)
def test_any_two_looks_have_an_answer(reference: Look, current: Look) -> None:
    config = DriftConfig(splits=100)
    found = drift(reference, current, config)
    assert 0 <= found.magnitude <= 1
    assert found.drifted == any(t.fired for t in found.tests) == (found.magnitude > 0)
    for test in found.tests:
        assert math.isfinite(test.statistic)
        assert test.statistic >= 0
        assert test.threshold >= FLOORS[test.name]
    assert drift(reference, current, config) == found, "the same looks, the same answer"


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_order_of_frames_moves_thresholds_but_no_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = look(CALM, seed), look(PLANTED[IMAGE], seed + 1)
    found = drift(a, b)
    mixed = drift(swapped(a, rng.permutation(24).tolist()), swapped(b, rng.permutation(24).tolist()))
    assert [t.statistic for t in mixed.tests] == pytest.approx([t.statistic for t in found.tests])


def test_whole_blocks_may_change_places() -> None:
    """A deal does not know which block came first, nor does the margin of the first-order kind count where nothing is correlated."""
    a, b = look(CALM, 3), look(PLANTED[CONFIDENCE], 4)
    halves = Halves(n_reference=24, n_current=24, blocks=8)
    values = np.array([f.brightness for f in (*a.frames, *b.frames)])[:, None]
    turned = np.concatenate([values[21:24], values[:21], values[24:]])
    before, after = (np.sort(np.abs((halves.weights[0] - halves.weights[1]) @ v)[:, 0]) for v in (values, turned))
    assert threshold_of(np.concatenate([[0], before]), 0.05) == pytest.approx(
        threshold_of(np.concatenate([[0], after]), 0.05), rel=0.1
    )


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [0, 1, 2, 5, 9])
def test_few_frames_never_fire_and_say_so(frames: int) -> None:
    found = drift(look(CALM, 1), look(replace(CALM, brightness=0.0, objects=0.0, turn=3.0), 2, frames=frames))
    assert not found.drifted
    assert found.tests == ()
    assert f"{frames} frames are too few" in found.note
    assert run_test(IMAGE, look(CALM, 1, frames=frames), look(CALM, 2), alpha=0.0125) is None


def test_the_fewest_frames_that_can_tell_do_tell() -> None:
    needed = frames_needed(0.05 / len(NAMES))
    found = drift(look(CALM, 1, frames=needed), look(PLANTED[IMAGE], 2, frames=needed))
    assert found.drifted
    assert needed == 10


def test_no_reference_is_no_drift() -> None:
    found = drift(None, look(CALM, 1))
    assert not found.drifted
    assert "no reference" in found.note


def test_another_version_is_compared_by_its_pictures_only() -> None:
    reference, dark = look(CALM, 1), look(PLANTED[IMAGE], 2, version="v2")
    found = drift(reference, dark)
    assert [t.name for t in found.tests] == [IMAGE]
    assert found.drifted
    assert "different versions" in found.note
    assert not drift(reference, look(PLANTED[EMBEDDING], 2, version="v2")).drifted
    assert needs_new_look(reference, "v2")
    assert not needs_new_look(reference, "v1")
    assert not needs_new_look(None, "v1")


def test_objects_that_vanish_are_a_drift_and_leave_no_confidence_to_ask() -> None:
    found = drift(look(CALM, 1), look(replace(CALM, objects=0.0), 2))
    fired = {t.name for t in found.tests if t.fired}
    assert CLASS_MIX in fired
    assert CONFIDENCE not in {t.name for t in found.tests}
    assert found.magnitude == 1.0


def test_a_scene_that_is_always_empty_has_not_drifted() -> None:
    empty = replace(CALM, objects=0.0)
    found = drift(look(empty, 1), look(empty, 2))
    assert not found.drifted
    assert next(t for t in found.tests if t.name == CLASS_MIX).statistic == 0


def test_constant_features_do_not_divide_by_nothing() -> None:
    still = Look(version="v1", frames=(frame(),) * 24)
    assert not drift(still, still).drifted
    darker = Look(version="v1", frames=(frame(brightness=60.0),) * 24)
    found = drift(still, darker)
    assert [t.name for t in found.tests if t.fired] == [IMAGE]
    hair = Look(version="v1", frames=(frame(brightness=frame().brightness + 1.0),) * 24)
    assert not drift(still, hair).drifted, "certain, and too small to matter"


def test_frames_without_an_embedding_leave_that_question_out() -> None:
    def blind(a: Look) -> Look:
        return Look(version=a.version, frames=(replace(a.frames[0], embedding=()), *a.frames[1:]))

    found = drift(blind(look(CALM, 1)), look(CALM, 2))
    assert EMBEDDING not in {t.name for t in found.tests}
    assert EMBEDDING in found.note


def test_frames_without_classes_leave_the_mix_out() -> None:
    bare = Look(version="v1", frames=tuple(replace(f, class_frac=()) for f in look(CALM, 1).frames))
    assert run_test(CLASS_MIX, bare, bare, alpha=0.0125) is None


@pytest.mark.parametrize("field", ["brightness", "contrast", "sharpness", "objects", "confidence"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused_at_birth(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        frame(**{field: bad})


@pytest.mark.parametrize("field", ["class_frac", "embedding", "tint", "layout"])
def test_vectors_with_nan_are_refused_at_birth(field: str) -> None:
    with pytest.raises(ValueError, match="finite"):
        frame(**{field: (0.5, math.nan)})


def test_an_unknown_detector_is_an_error() -> None:
    with pytest.raises(KeyError):
        run_test("weather", look(CALM, 1), look(CALM, 2), alpha=0.05)


# --- blocks -----------------------------------------------------------------------------------------------------------


@given(n=st.integers(5, 60), m=st.integers(5, 60), blocks=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_every_deal_is_two_averages(n: int, m: int, blocks: int) -> None:
    halves = Halves(n_reference=n, n_current=m, blocks=blocks, splits=50)
    for side in halves.weights:
        assert side.sum(axis=1) == pytest.approx(1.0)
        assert (side >= 0).all()
    assert halves.weights[0][0, :n] == pytest.approx(1 / n)
    assert halves.weights[1][0, n:] == pytest.approx(1 / m)
    assert ((halves.weights[0] > 0) != (halves.weights[1] > 0)).all(), "a frame is on one side"


def test_frames_of_a_block_stay_together() -> None:
    halves = Halves(n_reference=8, n_current=8, blocks=4)
    assert halves.block_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    taken = halves.weights[0] > 0
    assert (taken[:, 0::2] == taken[:, 1::2]).all()
    assert len(taken) == 1 + 70


def test_a_rare_alarm_is_asked_of_enough_deals() -> None:
    """At a rate of 1 in 4,000 the largest of 1,000 deals would be far too low a threshold."""
    a, b = look(CALM, 1), look(CALM, 2)
    strict, usual = (run_test(EMBEDDING, a, b, alpha=alpha) for alpha in (0.00025, 0.0125))
    assert strict is not None
    assert usual is not None
    assert strict.threshold > usual.threshold


@pytest.mark.parametrize(("n", "m", "blocks"), [(3, 9, 4), (9, 3, 4), (9, 9, 1)])
def test_looks_too_short_for_their_blocks_are_refused(n: int, m: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="blocks"):
        Halves(n_reference=n, n_current=m, blocks=blocks)


def test_a_threshold_is_passed_by_alpha_of_the_deals_at_most() -> None:
    distances = np.concatenate([[99.0], np.arange(100.0)])
    assert threshold_of(distances, 0.05) == 94.0  # five are larger
    assert threshold_of(distances, 0.0) == 99.0
    assert (distances[1:] > threshold_of(distances, 0.0125)).sum() == 1


def test_rare_alarms_need_many_blocks() -> None:
    assert [fewest_blocks(alpha) for alpha in (0.5, 0.1, 0.05, 0.0125, 0.001)] == [2, 3, 4, 5, 7]


def test_the_margin_grows_with_correlation_and_is_bounded() -> None:
    halves = Halves(n_reference=40, n_current=40, blocks=8)
    margins = []
    for phi in (0.0, 0.5, 0.9):
        rng = np.random.default_rng(5)
        pairs = [np.concatenate([wander(rng, phi, 40), wander(rng, phi, 40)])[:, None] for _ in range(50)]
        margins.append(float(np.mean([halves.margin(values, 0.05) for values in pairs])))
    assert margins == sorted(margins)
    assert 1 <= margins[0] < 2 < margins[-1] <= MAX_MARGIN
    assert halves.margin(np.zeros((80, 1)), 0.05) >= 1


# --- the reference ----------------------------------------------------------------------------------------------------


def test_a_slow_drift_is_seen_because_the_reference_stays() -> None:
    windows = [look(replace(CALM, brightness=120.0 - 3 * k), k) for k in range(12)]
    assert not any(drift(a, b).drifted for a, b in zip(windows, windows[1:], strict=False)), "no neighbours differ"
    reference: Look | None = None
    seen = []
    for now in windows:
        seen.append(drift(reference, now).drifted)
        reference = reference_after(reference, now, learned=False)
    assert reference is windows[0]
    assert not any(seen[:2])
    assert all(seen[7:])


def test_the_reference_is_what_the_model_learned_from() -> None:
    old, new = look(CALM, 1), look(PLANTED[IMAGE], 2)
    assert reference_after(None, old, learned=False) is old
    assert reference_after(old, new, learned=False) is old
    assert reference_after(old, new, learned=True) is new
    assert not drift(new, look(PLANTED[IMAGE], 3)).drifted, "what it has learned is no drift any more"
