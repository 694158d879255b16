"""Who learns with whom: only cameras that are alike, each in one group, and against every way of grouping a few."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from configs.units import CLASSES
from scheduler.grouping import Candidate, Group, groups
from scheduler.reuse import distance
from scheduler.types import Signature

LENGTH = 4 + len(CLASSES)
#: Distance of two windows one step apart.
STEP = distance(Signature(values=(0.0,) * LENGTH), Signature(values=(1.0, *(0.0,) * (LENGTH - 1))))


def camera(id: str, place: float | None, quality: float | None = 0.5, kind: str = "net") -> Candidate:
    signature = None if place is None else Signature(values=(place, *(0.0,) * (LENGTH - 1)))
    return Candidate(id=id, kind=kind, signature=signature, quality=quality)


def grouped(*cameras: Candidate, most: int = 4, steps: float = 1.0) -> tuple[Group, ...]:
    return groups(cameras, distance_max=steps * STEP * 1.0001, members_max=most)


def test_the_neediest_leads_and_the_nearest_follow() -> None:
    found = grouped(camera("a", 0.0, 0.6), camera("b", 0.5, 0.3), camera("c", 0.4, 0.9), camera("d", 9.0, 0.1))
    assert found == (Group(leader="b", followers=("c", "a")),)
    assert found[0].members == ("b", "c", "a")


def test_a_chain_of_small_steps_does_not_join_day_with_night() -> None:
    found = grouped(*(camera(str(n), float(n), quality=0.1 * n) for n in range(4)))
    assert found == (Group(leader="0", followers=("1",)), Group(leader="2", followers=("3",)))


def test_cameras_of_different_kinds_or_unknown_windows_learn_alone() -> None:
    assert grouped(camera("a", 0.0), camera("b", 0.0, kind="other")) == ()
    assert grouped(camera("a", None), camera("b", None)) == ()
    assert grouped(camera("a", 0.0)) == grouped() == ()


def test_a_group_is_never_larger_than_allowed() -> None:
    cameras = [camera(f"c{n}", 0.0, quality=0.1 * n) for n in range(7)]
    assert [len(g.members) for g in grouped(*cameras, most=3)] == [3, 3]
    assert [len(g.members) for g in grouped(*cameras, most=4)] == [4, 3]


def test_a_camera_that_was_never_measured_is_in_most_need() -> None:
    (group,) = grouped(camera("a", 0.0, 0.1), camera("b", 0.0, None))
    assert group.leader == "b"


PLACES = st.lists(st.integers(0, 6), min_size=0, max_size=6)


def _alike(a: Candidate, b: Candidate) -> bool:
    return a.kind == b.kind and distance(a.signature, b.signature) <= STEP * 1.0001


def _best_partition(cameras: list[Candidate], most: int) -> int:
    """Fewest retrainings that every way of grouping alike cameras needs (each lone camera needs one of its own)."""
    if not cameras:
        return 0
    first, rest = cameras[0], cameras[1:]
    best = len(cameras)
    for size in range(min(most, len(cameras))):
        for others in combinations(rest, size):
            group = (first, *others)
            if all(_alike(a, b) for a, b in combinations(group, 2)):
                best = min(best, 1 + _best_partition([c for c in rest if c not in others], most))
    return best


@given(PLACES, st.integers(2, 4), st.data())
def test_against_every_way_of_grouping(places: list[int], most: int, data: st.DataObject) -> None:
    cameras = [
        camera(f"c{n}", float(place), quality=data.draw(st.floats(0, 1)), kind=data.draw(st.sampled_from(["x", "x", "y"])))
        for n, place in enumerate(places)
    ]
    by_id = {c.id: c for c in cameras}
    found = grouped(*cameras, most=most)
    members = [id for group in found for id in group.members]
    assert len(set(members)) == len(members), "no camera in two groups"
    for group in found:
        assert 2 <= len(group.members) <= most
        assert all(_alike(by_id[a], by_id[b]) for a, b in combinations(group.members, 2))
        assert by_id[group.leader].quality == min(by_id[m].quality or 0.0 for m in group.members)
    alone = [c for c in cameras if c.id not in members]
    assert not [pair for pair in combinations(alone, 2) if _alike(*pair)], "those who stay out are not alike"
    for group in found:
        if len(group.members) < most:
            assert not [c for c in alone if all(_alike(c, by_id[m]) for m in group.members)]
    best = _best_partition(cameras, most)
    assert best <= len(found) + len(alone) <= 2 * best, "greedy is within twice of the best"


@given(PLACES, st.randoms())
def test_the_order_of_cameras_does_not_matter(places: list[int], chance: object) -> None:
    cameras = [camera(f"c{n}", float(place), quality=0.1 * (n % 3)) for n, place in enumerate(places)]
    mixed = list(cameras)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert grouped(*cameras) == grouped(*mixed)


@given(st.lists(st.sampled_from([0, 10, 20]), max_size=6))
def test_clusters_far_apart_are_found_as_they_are(places: list[int]) -> None:
    cameras = [camera(f"c{n}", float(place)) for n, place in enumerate(places)]
    found = grouped(*cameras, most=6)
    wanted = {frozenset(c.id for c in cameras if c.signature and c.signature.values[0] == p) for p in set(places)}
    assert {frozenset(g.members) for g in found} == {w for w in wanted if len(w) > 1}
