"""Which earlier models are measured, which of them serves again, and that two never take turns for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.units import CLASSES
from scheduler import reuse
from scheduler.events import Probed
from scheduler.reuse import COOLDOWN, Left, candidates, choose, distance, leave
from scheduler.types import CachedModel, Signature, Traits

LENGTH = 4 + len(CLASSES)


def at(place: float) -> Signature:
    """A window at a place on a line: distances are proportional to differences."""
    return Signature(values=(place, *(0.0,) * (LENGTH - 1)))


def kept(*places: tuple[str, float | None]) -> tuple[CachedModel, ...]:
    return tuple(CachedModel(name=n, traits=Traits(), signature=None if p is None else at(p)) for n, p in places)


def asked(**changes: object) -> tuple[str, ...]:
    told = {"serving": "now", "replaced": None, "kept": (), "signature": at(0), "drifted": True, "nearest": 3, "window": 10,
            "left": {}}  # fmt: skip
    return candidates(**{**told, **changes})  # type: ignore[arg-type]


def test_the_replaced_version_first_then_the_nearest() -> None:
    shelf = kept(("far", 5.0), ("near", 0.1), ("older", 1.0), ("now", 3.0), ("before", 9.0))
    assert asked(kept=shelf, replaced="before") == ("before", "near", "older", "far")
    assert asked(kept=shelf, replaced="before", nearest=1) == ("before", "near")
    assert asked(kept=shelf) == ("near", "older", "far")


def test_without_drift_only_what_was_replaced_is_asked() -> None:
    shelf = kept(("near", 0.1))
    assert asked(kept=shelf, drifted=False) == ()
    assert asked(kept=shelf, drifted=False, replaced="before") == ("before",)
    assert asked(replaced="now") == (), "the serving one is no candidate"


def test_windows_that_nobody_has_seen_are_near_to_nothing() -> None:
    assert asked(kept=kept(("unknown", None), ("near", 0.1))) == ("near",)
    assert asked(kept=kept(("near", 0.1)), signature=None) == ()
    assert asked(kept=kept(("near", 0.1)), signature=Signature()) == ()
    assert math.isinf(distance(None, at(0)))
    assert distance(at(2), at(2)) == 0


def test_of_two_equally_near_the_newer() -> None:
    assert asked(kept=kept(("new", 1.0), ("old", 1.0)), nearest=1) == ("new",)


def test_who_was_left_stays_out_unless_the_world_went_back() -> None:
    shelf = kept(("a", 1.0), ("now", 2.0))
    left = {"a": Left(window=9)}
    assert asked(kept=shelf, left=left, signature=at(0.0)) == ("a",), "nearer than what serves"
    assert asked(kept=shelf, left=left, signature=at(3.0)) == ()
    assert asked(kept=shelf, left=left, signature=at(3.0), window=9 + COOLDOWN) == ("a",)
    assert asked(kept=kept(("a", 1.0)), left=left) == ("a",), "nobody knows what the serving one learned from"


def test_each_time_it_is_left_again_it_stays_out_twice_as_long() -> None:
    left: dict[str, Left] = {}
    until = []
    for _ in range(4):
        left = leave(left, "a", 0)
        until.append(left["a"].out_until())
    assert until == [COOLDOWN, 2 * COOLDOWN, 4 * COOLDOWN, 8 * COOLDOWN]


def test_who_has_been_in_for_long_is_forgotten() -> None:
    left = leave({}, "a", 0)
    assert "a" in leave(left, "b", COOLDOWN)
    assert "a" not in leave(left, "b", 1000)


def probed(version: str, quality: float, sd: float | None = 0.02) -> Probed:
    return Probed(version=version, quality=quality, gain_sd=sd)


def chosen(*found: Probed, **changes: object) -> reuse.Chosen | None:
    told = {"serving_quality": 0.5, "frames": 16, "replaced": None, "margin": 0.0, "risk": 0.4}
    return choose(found, **{**told, **changes})  # type: ignore[arg-type]


def test_the_one_with_most_to_expect_serves() -> None:
    found = chosen(probed("lucky", 0.75, sd=0.4), probed("solid", 0.7), probed("small", 0.52))
    assert found is not None
    assert (found.version, found.quality, found.rollback) == ("solid", 0.7, False)
    assert 0 < found.expected_gain < found.gain == pytest.approx(0.2)


def test_nobody_serves_who_is_not_better() -> None:
    assert chosen() is None
    assert chosen(probed("equal", 0.5), probed("worse", 0.4)) is None
    assert chosen(probed("a", float("nan")), probed("b", 0.9), serving_quality=None) is None
    assert chosen(probed("a", 0.55, sd=0.3), risk=0.1) is None
    assert chosen(probed("a", 0.55), margin=0.1) is None


def test_the_replaced_one_coming_back_is_a_rollback() -> None:
    found = chosen(probed("before", 0.7), probed("other", 0.6), replaced="before")
    assert found is not None
    assert found.rollback


def test_equals_keep_their_order() -> None:
    found = chosen(probed("first", 0.7), probed("second", 0.7))
    assert found is not None
    assert found.version == "first"


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.floats(-3, 3)), max_size=8, unique_by=lambda x: x[0]),
    st.floats(-3, 3), st.sampled_from([None, *"abx"]), st.integers(0, 4), st.booleans(),
    st.dictionaries(st.sampled_from("abcdef"), st.builds(Left, window=st.integers(0, 12), times=st.integers(1, 99))),
)  # fmt: skip
def test_candidates_are_few_different_and_never_the_serving_one(
    shelf: list[tuple[str, float | None]],
    place: float,
    replaced: str | None,
    nearest: int,
    drifted: bool,
    left: dict[str, Left],
) -> None:
    found = asked(
        serving="b", kept=kept(*shelf), signature=at(place), replaced=replaced, nearest=nearest, drifted=drifted, left=left
    )
    assert "b" not in found
    assert len(set(found)) == len(found) <= nearest + 1
    for name in found:
        assert name == replaced or name in dict(shelf)
