"""Salus's lanes: the card's worked examples T1 to T3, each line of them, and the events that the paper only names."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from scheduler.salus import LaneEvent, LaneRules, LaneTable, MemoryNeed, Step, best_cap, find_lane, replay
from scheduler.salus.types import BYTE_MIB


def need(persistent_mib: float, ephemeral_mib: float) -> MemoryNeed:
    return MemoryNeed(persistent_mib=persistent_mib, ephemeral_mib=ephemeral_mib)


def table(capacity_mib: float = 16.0, **rules: object) -> LaneTable:
    return LaneTable(rules=LaneRules(capacity_mib=capacity_mib, **rules))  # type: ignore[arg-type]


def admitted(start: LaneTable, *jobs: tuple[str, float, float]) -> LaneTable:
    for job, p, e in jobs:
        start = start.admit(job, need(p, e)).table
    return start


def told(step: Step) -> list[tuple[str, str, str, int | None]]:
    return [(d.job, d.kind, d.step, d.lane) for d in step.decisions]


def state(t: LaneTable) -> tuple[float, dict[int, float], float]:
    sums = t.sums()
    return sums.persistent_mib, dict(sums.lanes), sums.total_mib


def bases(t: LaneTable) -> dict[int, tuple[float | None, float]]:
    return {lane.id: (lane.base_mib, lane.held_mib) for lane in t.lanes.values()}


# --- the card's examples ----------------------------------------------------------------------------------------------


def test_t1_line_by_line() -> None:
    t = table()
    arrivals = [
        ("A", 1.0, 6.0, ("A", "placed", "A", 1), (1.0, {1: 6.0}, 7.0)),
        ("B", 1.0, 4.0, ("B", "placed", "A", 2), (2.0, {1: 6.0, 2: 4.0}, 12.0)),
        ("G", 1.0, 5.0, ("G", "placed", "B", 1), (3.0, {1: 6.0, 2: 4.0}, 13.0)),
        ("H", 1.0, 7.0, ("H", "placed", "C", 1), (4.0, {1: 7.0, 2: 4.0}, 15.0)),
        ("I", 1.5, 2.0, ("I", "queued", "", None), (4.0, {1: 7.0, 2: 4.0}, 15.0)),
    ]
    for job, p, e, decision, after in arrivals:
        step = t.admit(job, need(p, e))
        t = step.table
        assert told(step) == [decision]
        assert state(t) == after
    assert [w.job for w in t.waiting] == ["I"]

    step = t.finish("H")
    assert told(step) == [("H", "finished", "", 1), ("I", "placed", "B", 2)]
    assert [dict(d.sums.lanes) for d in step.decisions] == [{1: 6.0, 2: 4.0}, {1: 6.0, 2: 4.0}]
    assert state(step.table) == (4.5, {1: 6.0, 2: 4.0}, 14.5)

    step = step.table.finish("A")
    assert state(step.table) == (3.5, {1: 5.0, 2: 4.0}, 12.5)


def test_the_printed_algorithm_would_break_s1_on_job_i() -> None:
    """Step B as printed shares lane 2 with I without counting I's own P: 16.5 of 16."""
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4), ("G", 1, 5), ("H", 1, 7))
    assert t.sums().total_mib + 1.5 == 16.5
    lanes = dict(t.sums().lanes)
    assert find_lane(need(1.5, 2), persistent_mib=4.0, lanes=lanes, capacity_mib=16.0) is None
    assert find_lane(need(1.5, 2), persistent_mib=4.0, lanes=lanes, capacity_mib=16.5) is not None


def test_step_c_never_shrinks_a_lane_under_its_residents() -> None:
    """Repair 2: as printed, a newcomer of 0.5 that reaches C would make the lane of 4 one of 0.5 (4.5 of 5), while B needs 4."""
    found = find_lane(need(1.5, 0.5), persistent_mib=0.0, lanes={1: 4.0}, capacity_mib=5.0)
    assert found is None


def test_t2_equality_admits_and_back_fill() -> None:
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4), ("C", 0.5, 3))
    assert state(t) == (2.5, {1: 6.0, 2: 4.0, 3: 3.0}, 15.5)
    step = t.admit("D", need(0.5, 2.5))
    assert told(step) == [("D", "placed", "B", 3)]
    assert step.table.sums().total_mib == 16.0
    step = step.table.admit("E", need(0.25, 1))
    assert told(step) == [("E", "queued", "", None)]
    step = step.table.finish("C")
    assert told(step) == [("C", "finished", "", 3), ("E", "placed", "B", 3)]
    assert state(step.table) == (2.75, {1: 6.0, 2: 4.0, 3: 2.5}, 15.25)


@pytest.mark.parametrize(("cap", "models"), [(None, 25), (14, 41), (13, 43), (4, 57), (2, 60), (1, 62)])
def test_t3_greedy_lanes_starve_resident_models(cap: int | None, models: int) -> None:
    t = table(max_lanes=cap)
    for i in range(70):
        t = t.admit(f"model {i}", need(0.25, 0.4)).table
    assert len(t.residents) == models
    assert len(t.waiting) == 70 - models
    if cap is None:
        assert len(t.lanes) == 24
        assert t.sums().total_mib == pytest.approx(15.85)


def test_t3_the_best_cap_is_found() -> None:
    """62 models fit with one lane only; 42 (the paper's) with 13 at most, which is then the best: most lanes at once."""
    all_in = best_cap([need(0.25, 0.4)] * 62, 16.0)
    assert (all_in.max_lanes, all_in.admitted) == (1, 62)
    paper = best_cap([need(0.25, 0.4)] * 42, 16.0)
    assert (paper.max_lanes, paper.admitted) == (13, 42)
    assert dict(paper.tried)[14] == 41
    # what is left of C for P when m lanes of 0.4 are open
    assert all(jobs == min(42, int((16.0 - 0.4 * lanes + BYTE_MIB) / 0.25)) for lanes, jobs in paper.tried if lanes <= 24)


def test_the_best_cap_of_jobs_that_differ_need_not_be_an_end_of_the_range() -> None:
    needs = [need(1, 3), need(1, 3), need(4, 1), need(2, 1)]
    found = best_cap(needs, 14.0)
    assert (found.max_lanes, found.admitted) == (2, 4)
    assert dict(found.tried) == {1: 4, 2: 4, 3: 3, 4: 3}
    with pytest.raises(ValueError, match="no jobs"):
        best_cap([], 16.0)


# --- who waits --------------------------------------------------------------------------------------------------------


def test_a_job_that_can_never_fit_is_refused_and_not_kept() -> None:
    step = table().admit("huge", need(8, 8.5))
    assert told(step) == [("huge", "refused", "", None)]
    assert "16.5" not in step.decisions[0].why
    assert "16 MiB" in step.decisions[0].why
    assert step.table == table()


def test_back_fill_overtakes_until_the_age_limit() -> None:
    t = admitted(table(age_limit_s=10.0), ("A", 4, 8))
    t = t.admit("big", need(2, 12), at_s=0.0).table
    assert [w.job for w in t.waiting] == ["big"]
    assert told(t.admit("small", need(1, 1), at_s=9.0)) == [("small", "placed", "A", 2)]
    late = t.admit("small", need(1, 1), at_s=10.0)
    assert told(late) == [("small", "queued", "", None)]
    assert "'big'" in late.decisions[0].why
    # nor is it overtaken when something becomes free that is not enough for it
    late = late.table.admit("other", need(0, 1), at_s=11.0)
    done = late.table.finish("A", at_s=12.0)
    assert told(done) == [
        ("A", "finished", "", 1),
        ("big", "placed", "A", 2),
        ("small", "placed", "A", 3),
        ("other", "placed", "B", 3),
    ]


def test_a_skipped_job_stops_the_queue_once_it_is_too_old() -> None:
    t = admitted(table(age_limit_s=10.0), ("A", 4, 6), ("B", 5, 1))
    t = t.admit("big", need(8, 8), at_s=0.0).table
    t = t.admit("small", need(1, 1), at_s=20.0).table  # queued behind it, though there is room for neither
    done = t.finish("B", at_s=21.0)
    assert told(done) == [("B", "finished", "", 2)]
    assert [w.job for w in done.table.waiting] == ["big", "small"]
    without = replace(t, rules=replace(t.rules, age_limit_s=None)).finish("B", at_s=21.0)
    assert ("small", "placed", "A", 3) in told(without)


def test_a_job_for_which_only_cameras_could_make_room_stops_nobody() -> None:
    """Cameras do not end: behind a job that waits for one, all learning would stop for good."""
    t = table(age_limit_s=10.0).admit("camera", need(4, 4), role="infer").table
    t = t.admit("big", need(2, 12), at_s=0.0).table
    assert told(t.admit("small", need(1, 1), at_s=99.0)) == [("small", "placed", "A", 2)]
    # it does where the end of a training makes room: 4 + 3 and one lane of 7 are left then
    t = table(age_limit_s=10.0).admit("camera", need(4, 4), role="infer").table.admit("T", need(3, 1)).table
    t = t.admit("big", need(3, 7), at_s=0.0).table
    assert [w.job for w in t.waiting] == ["big"]
    step = t.admit("small", need(1, 1), at_s=99.0)
    assert told(step) == [("small", "queued", "", None)]
    done = step.table.finish("T", at_s=100.0)
    assert told(done)[1:] == [("big", "placed", "C", 1), ("small", "placed", "A", 3)]


def test_giving_up_lets_the_others_past() -> None:
    t = admitted(table(age_limit_s=0.0), ("A", 4, 8))
    t = t.admit("big", need(2, 12)).table.admit("small", need(1, 1)).table
    assert told(t.finish("big")) == [("big", "finished", "", None), ("small", "placed", "A", 2)]


def test_a_job_that_declares_nothing_is_charged_the_whole_device() -> None:
    t = table().admit("silent", None).table
    assert t.sums().total_mib == 16.0
    assert told(t.admit("A", need(0.1, 0.1))) == [("A", "queued", "", None)]
    assert told(t.admit("also silent", None)) == [("also silent", "queued", "", None)]
    guess = table(unknown=need(1, 2)).admit("silent", None).table
    assert state(guess) == (1.0, {1: 2.0}, 3.0)


def test_inference_and_learning_share_a_lane_only_where_they_have_to() -> None:
    def lane_of_infer(apart: bool, capacity_mib: float = 12.0) -> int | None:
        t = table(capacity_mib, apart=apart, max_lanes=2)
        t = t.admit("camera", need(1, 4), role="infer").table
        t = t.admit("training", need(1, 3), role="learn").table
        return t.admit("camera 2", need(1, 2), role="infer").decisions[0].lane

    assert lane_of_infer(apart=False) == 2  # best fit
    assert lane_of_infer(apart=True) == 1
    t = table(12.0, apart=True, max_lanes=1).admit("camera", need(1, 4), role="infer").table
    assert told(t.admit("training", need(1, 3))) == [("training", "placed", "B", 1)]


# --- iterations -------------------------------------------------------------------------------------------------------


def test_one_iteration_at_a_time_per_lane() -> None:
    t = admitted(table(max_lanes=1), ("A", 1, 6), ("B", 1, 4)).begin("A").table
    assert not t.may_start("B")
    assert "'A'" in t.hindrance("B")
    with pytest.raises(RuntimeError, match="'B' may not start"):
        t.begin("B")
    with pytest.raises(RuntimeError, match="no iteration of job 'B'"):
        t.end("B")
    assert t.end("A").table.may_start("B")


def test_a_job_that_ends_inside_its_iteration_holds_its_memory_to_the_boundary() -> None:
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4)).begin("A").table
    step = t.finish("A")
    assert told(step) == [("A", "noted", "", 1)]
    assert state(step.table) == state(t)
    assert step.table.hindrance("A") == "has ended"
    step = step.table.end("A")
    assert told(step) == [("A", "finished", "", 1)]
    assert state(step.table) == (1.0, {2: 4.0}, 5.0)


def test_memory_left_behind_stops_the_lane_until_its_owner_is_gone() -> None:
    """S4: the lane is not empty at the boundary."""
    t = admitted(table(max_lanes=1), ("A", 1, 6), ("B", 1, 4)).begin("A").table
    step = t.end("A", live_mib=0.5)
    assert told(step) == [("A", "expelled", "", 1)]
    assert "0.5 MiB" in step.decisions[0].why
    assert step.table.hindrance("B") == "'A' left memory behind in lane 1"
    assert told(step.table.admit("C", need(1, 1))) == [("C", "queued", "", None)]  # not into that lane
    step = step.table.finish("A")
    assert step.table.may_start("B")
    assert state(step.table) == (1.0, {1: 4.0}, 5.0)


def test_an_expelled_job_runs_no_more_and_its_lane_is_free_of_it_at_the_boundary() -> None:
    t = admitted(table(max_lanes=1), ("A", 1, 6), ("B", 1, 4)).begin("A").table
    t = t.expel("A", "it hangs").table
    assert state(t) == (2.0, {1: 6.0}, 8.0)
    t = t.end("A").table
    assert state(t) == (2.0, {1: 4.0}, 6.0)  # its persistent memory is held until it has let go
    assert t.hindrance("A") == "has to leave: it hangs"
    assert told(t.resize("A", need(2, 2))) == [("A", "noted", "", None)]
    t = t.finish("A").table
    assert state(t) == (1.0, {1: 4.0}, 5.0)
    with pytest.raises(ValueError, match="holds no memory"):
        t.expel("A", "again")


def test_events_of_jobs_that_are_not_there() -> None:
    t = admitted(table(), ("A", 1, 6))
    with pytest.raises(ValueError, match="in the table already"):
        t.admit("A", need(1, 1))
    for event in (t.finish, lambda job: t.resize(job, need(1, 1))):
        with pytest.raises(ValueError, match="'X' is not in the table"):
            event("X")
    with pytest.raises(RuntimeError, match="is not in the table"):
        t.begin("X")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"capacity_mib": -1.0}, "capacity_mib"),
        ({"capacity_mib": float("nan")}, "capacity_mib"),
        ({"max_lanes": 0}, "max_lanes"),
        ({"age_limit_s": -1.0}, "age_limit_s"),
    ],
)
def test_rules_that_mean_nothing_are_refused(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaneRules(**{"capacity_mib": 16.0} | changed)  # type: ignore[arg-type]


# --- needs that change ------------------------------------------------------------------------------------------------


def test_a_job_grows_in_its_lane() -> None:
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4))
    step = t.resize("B", need(1.5, 5))
    assert told(step) == [("B", "resized", "", 2)]
    assert state(step.table) == (2.5, {1: 6.0, 2: 5.0}, 13.5)


def test_growth_waits_for_the_end_of_the_iteration() -> None:
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4)).begin("B").table
    step = t.resize("B", need(1.5, 5))
    assert told(step) == [("B", "noted", "", 2)]
    assert state(step.table) == state(t)
    step = step.table.end("B")
    assert told(step) == [("B", "resized", "", 2)]
    assert state(step.table) == (2.5, {1: 6.0, 2: 5.0}, 13.5)


def test_a_job_that_cannot_grow_in_its_lane_moves_to_another() -> None:
    """B's lane would have to grow from 4 to 6; A's is that large already."""
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4), ("C", 1, 3))
    assert t.sums().total_mib == 16.0
    step = t.resize("B", need(1, 5.5))
    assert told(step) == [("B", "moved", "B", 1)]
    assert state(step.table) == (3.0, {1: 6.0, 3: 3.0}, 12.0)


def test_a_job_that_fits_nowhere_now_is_paused_and_comes_back() -> None:
    t = admitted(table(), ("A", 3, 6), ("B", 1, 4))
    step = t.resize("B", need(2, 12))
    assert told(step) == [("B", "paused", "", None)]
    assert state(step.table) == (5.0, {1: 6.0}, 11.0)
    assert step.table.hindrance("B") == "is paused until its memory fits"
    # it comes before those that have waited longer but hold nothing
    t = t.admit("W", need(1, 11)).table.resize("B", need(2, 12)).table
    assert [w.job for w in t.waiting] == ["B", "W"]
    step = t.finish("A")
    assert told(step)[:2] == [("A", "finished", "", 1), ("B", "placed", "A", 3)]
    assert step.table.may_start("B")


def test_a_paused_job_that_needs_less_after_all_goes_on_at_once() -> None:
    t = admitted(table(), ("A", 3, 6), ("B", 1, 4)).resize("B", need(2, 12)).table
    step = t.resize("B", need(2, 4))
    assert told(step) == [("B", "moved", "A", 3)]
    assert not step.table.waiting


def test_a_job_that_holds_more_than_is_left_has_to_leave() -> None:
    t = admitted(table(), ("A", 3, 9), ("B", 1, 2))
    step = t.resize("B", need(5, 2))
    assert told(step) == [("B", "expelled", "", None)]
    assert step.decisions[0].why == "it holds 5 MiB instead of 1 MiB, and only 3 MiB are free"
    step = t.resize("B", need(10, 7))
    assert told(step) == [("B", "expelled", "", 2)]
    assert "more than the 16 MiB that jobs may hold; it was promised 3 MiB" in step.decisions[0].why


def test_two_paused_jobs_do_not_wait_for_each_other_for_ever() -> None:
    t = admitted(table(), ("A", 1, 7), ("B", 1, 7))
    t = t.resize("A", need(6, 9.5), at_s=1.0).table  # paused: 6 + 9.5 and B's 8 are too much
    assert [w.job for w in t.waiting] == ["A"]
    step = t.resize("B", need(7, 9), at_s=2.0)
    assert told(step) == [("B", "paused", "", None), ("B", "expelled", "", None)]
    assert "wait for memory hold too much" in step.decisions[1].why
    assert told(step.table.finish("B")) == [("B", "finished", "", None), ("A", "placed", "A", 3)]


def test_less_is_always_granted_and_helps_those_who_wait() -> None:
    t = admitted(table(), ("A", 4, 8))
    t = t.admit("B", need(2, 12)).table
    step = t.resize("A", need(2, 8))
    assert told(step) == [("A", "resized", "", 1), ("B", "placed", "C", 1)]
    assert state(step.table) == (4.0, {1: 12.0}, 16.0)


def test_the_request_of_a_waiting_job_may_change() -> None:
    t = admitted(table(), ("A", 4, 8)).admit("B", need(2, 12)).table
    assert told(t.resize("B", need(2, 2))) == [("B", "placed", "A", 2)]
    refused = t.resize("B", need(12, 12))
    assert told(refused) == [("B", "refused", "", None)]
    assert not refused.table.waiting


# --- layout -----------------------------------------------------------------------------------------------------------


def test_the_lane_above_a_hole_slides_into_it_at_its_own_boundary() -> None:
    """Figure 2.6b: C leaves; B, above it, closes the hole when its iteration has ended. Nothing is copied: it is empty then."""
    t = admitted(table(), ("A", 1, 3), ("C", 1, 4), ("B", 1, 2))
    assert bases(t) == {1: (0.0, 3.0), 2: (3.0, 4.0), 3: (7.0, 2.0)}
    t = t.begin("A").table.begin("B").table.finish("C").table
    assert t.holes() == ((3.0, 7.0),)
    assert bases(t) == {1: (0.0, 3.0), 3: (7.0, 2.0)}
    step = t.end("B")
    assert [(s.lane, s.from_mib, s.to_mib) for s in step.slides] == [(3, 7.0, 3.0)]
    assert step.table.holes() == ()
    assert not t.end("A").slides  # the lane below a hole stays


def test_memory_that_is_free_by_the_sums_but_lies_in_a_hole_is_waited_for() -> None:
    t = admitted(table(), ("A", 0, 4), ("C", 0, 4), ("B", 0, 4))
    t = t.begin("A").table.begin("B").table.finish("C").table
    step = t.admit("D", need(0, 8))  # 8 are free, 4 below B and 4 above
    assert told(step) == [("D", "placed", "A", 4)]
    assert not step.table.may_start("D")
    assert "other lanes" in step.table.hindrance("D")
    t = step.table.end("B").table
    assert t.may_start("D")
    assert bases(t) == {1: (0.0, 4.0), 3: (4.0, 4.0), 4: (8.0, 8.0)}


def test_persistent_memory_waits_for_a_lane_in_its_way() -> None:
    t = admitted(table(), ("A", 0, 10), ("B", 0, 2))
    t = t.begin("A").table.begin("B").table.finish("A").table.end("A").table
    assert t.holes() == ((0.0, 10.0),)  # B still runs at 10
    t = t.admit("D", need(10, 2)).table
    assert not t.may_start("D")
    assert t.residents["D"].loaded_mib == 0.0
    t = t.end("B").table
    assert t.residents["D"].loaded_mib == 10.0
    assert t.may_start("D")


def test_a_new_lane_may_lie_in_a_hole() -> None:
    t = admitted(table(), ("A", 0, 4), ("C", 0, 4), ("B", 0, 8))
    t = t.begin("A").table.begin("B").table.finish("C").table.admit("D", need(0, 3)).table
    assert bases(t)[4] == (4.0, 3.0)
    assert t.holes() == ((7.0, 8.0),)
    assert t.may_start("D")


def test_a_lane_that_grows_pushes_those_above_it_up() -> None:
    t = admitted(table(), ("A", 0, 4), ("B", 0, 4))
    t = t.begin("A").table.begin("B").table
    t = t.resize("A", need(0, 9)).table.end("A").table
    assert t.sums().total_mib == 13.0
    assert not t.may_start("A")  # B is in the way, and the gap above B is 8
    t = t.end("B").table
    assert bases(t) == {1: (0.0, 9.0), 2: (9.0, 4.0)}
    assert t.may_start("A")


# --- replay -----------------------------------------------------------------------------------------------------------


def test_recorded_events_replay_exactly() -> None:
    events = [
        LaneEvent(kind="admit", job="A", need=need(1, 6)),
        LaneEvent(kind="admit", job="B", need=need(1, 4), role="infer"),
        LaneEvent(kind="begin", job="A"),
        LaneEvent(kind="resize", job="A", need=need(1, 7)),
        LaneEvent(kind="end", job="A", at_s=1.0),
        LaneEvent(kind="expel", job="B", why="leaks", at_s=2.0),
        LaneEvent(kind="finish", job="B", at_s=3.0),
    ]
    rules = LaneRules(capacity_mib=16.0)
    steps = replay(rules, events)
    assert steps == replay(rules, events)
    by_hand = LaneTable(rules=rules).admit("A", need(1, 6)).table.admit("B", need(1, 4), role="infer").table.begin("A").table
    by_hand = by_hand.resize("A", need(1, 7)).table.end("A", at_s=1.0).table.expel("B", "leaks", at_s=2.0).table
    assert steps[-1] == by_hand.finish("B", at_s=3.0)
    with pytest.raises(ValueError, match="says no need"):
        replay(rules, [events[0], LaneEvent(kind="resize", job="A")])


def test_an_event_leaves_the_table_before_it_alone() -> None:
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4))
    before = (state(t), bases(t), t.residents.copy() if isinstance(t.residents, dict) else t.residents)
    t.finish("A")
    t.resize("B", need(3, 9))
    t.begin("A")
    assert (state(t), bases(t), t.residents) == before


def test_the_check_finds_what_is_broken() -> None:
    """Each invariant by its name, on a table that was damaged by hand."""
    t = admitted(table(), ("A", 1, 6), ("B", 1, 4))
    t.check()
    fat = replace(t.residents["A"], need=need(9, 6))
    wrong_lane = replace(t.lanes[1], running="B")
    broken = {
        "S1": replace(t, residents={**t.residents, "A": fat}),
        "S2": replace(t, lanes={**t.lanes, 1: replace(t.lanes[1], size_mib=5.0)}),
        "S3": replace(t, lanes={**t.lanes, 1: wrong_lane}),
        "S4": replace(t, lanes={**t.lanes, 1: replace(t.lanes[1], stuck_mib=1.0)}),
        "overlap": replace(t, lanes={**t.lanes, 2: replace(t.lanes[2], base_mib=5.0)}),
        "does not wait": replace(t, residents={**t.residents, "C": replace(t.residents["A"], job="C", lane=None)}),
        "lanes of 1": replace(t, rules=replace(t.rules, max_lanes=1)),
    }
    for what, damaged in broken.items():
        with pytest.raises(AssertionError, match=what):
            damaged.check()


# --- spread -----------------------------------------------------------------------------------------------------------


def test_equal_jobs_crowd_into_the_first_lane_unless_they_are_spread() -> None:
    """Sixty equal cameras, four lanes: by size alone 57 of them share one."""
    jobs = [(f"cam{n}", 1.0, 5.0) for n in range(60)]
    by_size, spread = (
        Counter(r.lane for r in admitted(table(1000.0, max_lanes=4, spread=spread), *jobs).residents.values())
        for spread in (False, True)
    )
    assert sorted(by_size.values()) == [1, 1, 1, 57]
    assert sorted(spread.values()) == [15, 15, 15, 15]


def test_spread_takes_no_lane_that_would_have_to_grow() -> None:
    crowded = admitted(table(100.0, max_lanes=2, spread=True), ("a", 1, 5), ("b", 1, 9), ("c", 1, 9), ("d", 1, 8))
    assert crowded.residents["c"].lane == 2
    assert crowded.residents["d"].lane == 2  # lane 1 is emptier, and too small
    assert crowded.admit("e", need(1, 5)).table.residents["e"].lane == 1


def test_spread_leaves_lanes_of_the_other_role_alone() -> None:
    mixed = table(100.0, max_lanes=2, apart=True, spread=True)
    mixed = mixed.admit("train", need(1, 5), role="learn").table
    for n in range(3):
        mixed = mixed.admit(f"cam{n}", need(1, 5), role="infer").table
    assert [mixed.residents[f"cam{n}"].lane for n in range(3)] == [2, 2, 2]
