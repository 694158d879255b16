"""Salus's lanes under random events: S1 to S4 hold after each, nothing that fits is turned away, and holes always close in the end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.salus import LaneRules, LaneTable, MemoryNeed, best_cap, find_lane
from scheduler.salus.types import BYTE_MIB

#: Tenths, thirds and whole numbers: sums that do not come out even.
UNITS = (0.1, 0.25, 1 / 3, 1.0)


@st.composite
def needs(draw: st.DrawFn, most: int = 20) -> MemoryNeed:
    unit = draw(st.sampled_from(UNITS))
    return MemoryNeed(persistent_mib=unit * draw(st.integers(0, most)), ephemeral_mib=unit * draw(st.integers(0, 2 * most)))


RULES = st.builds(
    LaneRules,
    capacity_mib=st.integers(4, 24).map(float),
    max_lanes=st.none() | st.integers(1, 4),
    age_limit_s=st.none() | st.integers(0, 20).map(float),
    apart=st.booleans(),
)
KINDS = st.sampled_from(["admit"] * 4 + ["finish", "resize", "resize", "expel"] + ["begin"] * 5 + ["end"] * 5 + ["stuck"])
EVENTS = st.lists(st.tuples(KINDS, st.integers(0, 1000), needs()), max_size=50)


class Oracle:
    """S1 to S4 in the card's own words, kept apart from the table's books: who is where, as the decisions say."""

    def __init__(self, rules: LaneRules) -> None:
        self.table = LaneTable(rules=rules)

    def apply(self, at: int, kind: str, pick: int, need: MemoryNeed) -> None:
        t, at_s = self.table, float(at)
        inside = [x.running for x in t.lanes.values() if x.running and not x.stuck_mib]
        known = list(dict.fromkeys([*t.residents, *(w.job for w in t.waiting)]))
        if kind == "admit":
            step = t.admit(f"job {at}", need, at_s=at_s, role="infer" if pick % 3 == 0 else "learn")
        elif kind == "begin":
            able = [job for job in t.residents if t.may_start(job)]
            if not able:
                return
            step = t.begin(able[pick % len(able)])
        elif kind in ("end", "stuck"):
            if not inside:
                return
            step = t.end(inside[pick % len(inside)], at_s=at_s, live_mib=0.5 if kind == "stuck" else 0.0)
        elif kind == "expel":
            if not t.residents:
                return
            step = t.expel(list(t.residents)[pick % len(t.residents)], "told to", at_s=at_s)
        elif not known:
            return
        elif kind == "finish":
            step = t.finish(known[pick % len(known)], at_s=at_s)
        else:
            step = t.resize(known[pick % len(known)], need, at_s=at_s)
        self.table = step.table
        self.check()

    def check(self) -> None:
        t = self.table
        by_lane: dict[int, list[float]] = {}
        for r in t.residents.values():
            if r.lane is not None:
                by_lane.setdefault(r.lane, []).append(r.need.ephemeral_mib)
        total_mib = sum(r.need.persistent_mib for r in t.residents.values()) + sum(map(max, by_lane.values()))
        assert total_mib <= t.rules.capacity_mib + 2 * BYTE_MIB  # S1
        assert {x.id: x.size_mib for x in t.lanes.values()} == {lane: max(es) for lane, es in by_lane.items()}  # S2
        inside = [x.running for x in t.lanes.values() if x.running]
        assert len(inside) == len(set(inside))  # S3
        assert all(x.stuck_mib == 0 for x in t.lanes.values() if x.running is None)  # S4
        physical_disjoint(t)


def physical_disjoint(t: LaneTable) -> None:
    """No two ranges of memory overlap: lanes from one end, what jobs have loaded from the other."""
    placed = [(x.base_mib, x.end_mib) for x in t.lanes.values() if x.base_mib is not None and x.held_mib > 0]
    ranges = sorted([*placed, (t.rules.capacity_mib - sum(r.loaded_mib for r in t.residents.values()), float("inf"))])
    assert all(a[1] <= b[0] + 4 * BYTE_MIB for a, b in zip(ranges, ranges[1:], strict=False)), ranges


@settings(max_examples=80, deadline=None)
@given(RULES, EVENTS)
def test_the_invariants_hold_after_every_event(rules: LaneRules, events: list[tuple[str, int, MemoryNeed]]) -> None:
    world = Oracle(rules)
    for at, event in enumerate(events):
        world.apply(at, *event)


@settings(max_examples=40, deadline=None)
@given(RULES, EVENTS)
def test_one_boundary_of_every_lane_closes_all_holes(rules: LaneRules, events: list[tuple[str, int, MemoryNeed]]) -> None:
    world = Oracle(rules)
    for at, event in enumerate(events):
        world.apply(at, *event)
    t = world.table
    for lane in list(t.lanes):
        inside = t.lanes[lane].running if lane in t.lanes else None
        if inside is not None:
            t = (t.finish(inside) if t.lanes[lane].stuck_mib else t.end(inside)).table
    assert t.holes() == ()
    assert all(r.loaded_mib == r.need.persistent_mib for r in t.residents.values())
    assert all(x.held_mib == x.size_mib for x in t.lanes.values())
    for job, resident in t.residents.items():
        assert t.may_start(job) == (resident.lane is not None and not resident.leaving)


@settings(max_examples=40, deadline=None)
@given(RULES, EVENTS, st.integers(0, 10_000))
def test_holes_close_although_the_lanes_are_never_all_empty_at_once(
    rules: LaneRules, events: list[tuple[str, int, MemoryNeed]], seed: int
) -> None:
    """Every lane starts its next iteration the moment that the last one has ended, lanes end in any order: after three rounds per lane
    the layout has no hole, and every job may run in its turn."""
    world = Oracle(rules)
    for at, event in enumerate(events):
        world.apply(at, *event)
    t, rng = world.table, np.random.default_rng(seed)
    for job in [x.running for x in t.lanes.values() if x.stuck_mib and x.running]:
        t = t.finish(job).table
    for _ in range(3 * len(t.lanes) + 3):
        for lane in rng.permutation(sorted(t.lanes)):
            t = boundary(t, int(lane), rng)
    assert t.holes() == ()
    assert all(x.base_mib is not None and x.held_mib >= x.size_mib for x in t.lanes.values())
    assert all(r.loaded_mib == r.need.persistent_mib for r in t.residents.values())


def boundary(t: LaneTable, lane: int, rng: np.random.Generator) -> LaneTable:
    """The lane's iteration ends and its next one begins at once."""
    if lane in t.lanes and t.lanes[lane].running:
        t = t.end(t.lanes[lane].running or "").table
    able = [job for job in t.members(lane) if t.may_start(job)]
    return t.begin(able[int(rng.integers(len(able)))]).table if able else t


@settings(max_examples=80, deadline=None)
@given(RULES, st.lists(needs(), min_size=1, max_size=12))
def test_sliding_never_moves_a_lane_up_unless_one_below_it_grows(rules: LaneRules, jobs: list[MemoryNeed]) -> None:
    t = LaneTable(rules=rules)
    for i, need in enumerate(jobs):
        t = t.admit(f"job {i}", need).table
    before = {x.id: x.base_mib for x in t.lanes.values()}
    for i in range(0, len(jobs), 2):
        if f"job {i}" in t.residents and not t.waiting:
            t = t.finish(f"job {i}").table
            for lane in t.lanes.values():
                assert lane.base_mib is not None
                assert lane.base_mib <= (before[lane.id] or 0.0) + BYTE_MIB


# --- what the search claims, against plain words ----------------------------------------------------------------------


def every_placement(need: MemoryNeed, sp_mib: float, lanes: Mapping[int, float], rules: LaneRules) -> list[int | None]:
    """All ways to give the newcomer a lane that keep S1, a new one (None) among them."""
    ways: list[int | None] = []
    if rules.max_lanes is None or len(lanes) < rules.max_lanes:
        ways.append(None)
    ways += list(lanes)

    def total(way: int | None) -> float:
        grown = {**lanes, way: max(lanes.get(way, 0.0), need.ephemeral_mib) if way is not None else need.ephemeral_mib}
        return sp_mib + need.persistent_mib + sum(grown.values())

    return [way for way in ways if total(way) <= rules.capacity_mib]


SIZES = (0.0, 1.0, 2.0, 4.0)


@pytest.mark.parametrize("capacity_mib", [5.0, 8.0])
@pytest.mark.parametrize("max_lanes", [None, 2])
def test_a_job_waits_only_if_no_lane_at_all_can_take_it(capacity_mib: float, max_lanes: int | None) -> None:
    """Brute force over every combination of lanes and newcomers of a few sizes: the order of the steps costs nobody its place, the
    chosen lane is the one that the steps name, and best fit and ties are as written."""
    rules = LaneRules(capacity_mib=capacity_mib, max_lanes=max_lanes)
    asked = 0
    for sp, p, e, *sizes in product((0.0, 1.0, 3.0), (0.0, 1.0, 2.0), SIZES, SIZES, SIZES):
        lanes = dict(enumerate(sizes, start=1))
        if sp + sum(sizes) > capacity_mib:
            continue
        asked += 1
        need = MemoryNeed(persistent_mib=p, ephemeral_mib=e)
        ways = every_placement(need, sp, lanes, rules)
        found = find_lane(need, persistent_mib=sp, lanes=lanes, capacity_mib=capacity_mib, max_lanes=max_lanes)
        assert (found is None) == (not ways)
        if found is None:
            continue
        assert found.lane in ways
        if None in ways:
            assert found.step == "A"
            continue
        large = sorted((size, lane) for lane, size in lanes.items() if size >= e and lane in ways)
        if large:
            assert (found.step, found.lane) == ("B", large[0][1])
        else:
            smallest = min((size, lane) for lane, size in lanes.items() if lane in ways)
            assert (found.step, found.lane, found.size_mib) == ("C", smallest[1], e)
    assert asked > 100


def test_after_every_event_nobody_waits_who_would_fit() -> None:
    """Without an age limit, the queue holds only jobs that no lane can take (back-fill leaves nothing lying)."""
    rng = np.random.default_rng(5)
    waited = 0
    for _ in range(60):
        t = LaneTable(rules=LaneRules(capacity_mib=16.0, max_lanes=int(rng.integers(1, 5))))
        for i in range(40):
            if rng.random() < 0.6 or not t.residents:
                p, e = rng.integers(0, 16, 2) / 4
                t = t.admit(f"job {i}", MemoryNeed(persistent_mib=float(p), ephemeral_mib=float(e) * 4)).table
            else:
                t = t.finish(list(t.residents)[int(rng.integers(len(t.residents)))]).table
            sp = t.sums().persistent_mib
            for w in t.waiting:
                waited += 1
                assert every_placement(w.need, sp, dict(t.sums().lanes), t.rules) == []
    assert waited > 100


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 20), st.lists(needs(8), min_size=1, max_size=8))
def test_the_best_cap_is_what_the_table_admits_with_it(capacity: int, jobs: list[MemoryNeed]) -> None:
    found = best_cap(jobs, float(capacity))
    for cap, admitted in found.tried:
        t = LaneTable(rules=LaneRules(capacity_mib=float(capacity), max_lanes=cap))
        for i, need in enumerate(jobs):
            t = t.admit(f"job {i}", need).table
        assert len(t.residents) == admitted
    assert found.admitted == max(admitted for _, admitted in found.tried)
    assert found.max_lanes == max(cap for cap, admitted in found.tried if admitted == found.admitted)


def test_a_job_that_grew_never_loses_what_the_others_were_promised() -> None:
    """Whatever one job's need becomes, no other resident's reservation changes."""
    rng = np.random.default_rng(7)
    outcomes = set()
    for _ in range(200):
        t = LaneTable(rules=LaneRules(capacity_mib=16.0))
        for i in range(5):
            p, e = rng.integers(1, 8, 2) / 2
            t = t.admit(f"job {i}", MemoryNeed(persistent_mib=float(p), ephemeral_mib=float(e))).table
        if "job 0" not in t.residents:
            continue
        p, e = rng.integers(0, 30, 2) / 2
        step = t.resize("job 0", MemoryNeed(persistent_mib=float(p), ephemeral_mib=float(e)))
        outcomes |= {d.kind for d in step.decisions if d.job == "job 0"}
        for job in t.residents:
            if job != "job 0":
                assert step.table.residents[job].need == t.residents[job].need
                assert step.table.residents[job].lane == t.residents[job].lane
    assert outcomes == {"resized", "moved", "paused", "expelled"}
