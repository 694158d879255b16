"""Where a job's next process goes when partitions cannot be resized."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from scheduler.partition_moves import Move, Room, is_pressed, last_resort, next_move, wanted_for
from scheduler.partitions import Partition, plan_partitions

GROUPS = 16


def plan(**shares_pct: float) -> tuple[Partition, ...]:
    return plan_partitions(shares_pct, groups=GROUPS)


def room(name: str, groups: int, *jobs: str) -> Room:
    return Room(name=name, groups=groups, jobs=jobs)


def test_a_newcomer_gets_a_partition_of_its_share() -> None:
    assert next_move("a", plan(a=50, b=25), [], free=16, at={}) == Move(groups=8)


def test_who_is_where_it_should_be_stays() -> None:
    assert next_move("a", plan(a=50), [room("p", 8, "a")], free=8, at={"a": "p"}) is None


def test_what_a_job_has_too_much_it_keeps_until_somebody_lacks_it() -> None:
    rooms, at = [room("p", 8, "a"), room("q", 4, "b")], {"a": "p", "b": "q"}
    assert next_move("a", plan(a=37.5, b=25), rooms, free=4, at=at) is None
    assert next_move("a", plan(a=37.5, b=50), rooms, free=4, at=at) is None, "a's six do not fit beside its eight"
    assert next_move("b", plan(a=37.5, b=50), rooms, free=4, at=at) == Move(groups=8, beside="p"), "and b makes room"
    assert next_move("a", plan(a=25, b=50), rooms, free=4, at=at) == Move(groups=4)
    assert next_move("a", plan(a=25, b=25), rooms, free=4, at=at) is None, "nobody lacks anything"


def test_small_jobs_share_one_partition_and_nobody_else_is_in_it() -> None:
    shares = plan(a=3, b=3, c=50)
    assert wanted_for("a", shares, groups=GROUPS).jobs == ("a", "b")
    first = next_move("a", shares, [], free=16, at={})
    assert first == Move(groups=1)
    rooms = [room("p", 1, "a")]
    assert next_move("b", shares, rooms, free=15, at={"a": "p"}) == Move(groups=1, beside="p")
    assert next_move("c", shares, rooms, free=15, at={"a": "p"}) == Move(groups=8)
    rooms = [room("p", 1, "a", "b")]
    assert next_move("b", shares, rooms, free=15, at={"a": "p", "b": "p"}) is None


def test_a_partition_that_was_left_is_taken_again_before_another_is_made() -> None:
    assert next_move("a", plan(a=50), [room("old", 8)], free=8, at={}) == Move(groups=8, beside="old")


def test_nothing_is_promised_means_one_group() -> None:
    assert next_move("a", plan(b=50), [], free=16, at={}) == Move(groups=1)


def test_a_job_whose_next_partition_does_not_fit_beside_its_own_goes_a_detour() -> None:
    """a and b have all there is; c is to begin."""
    shares = plan(a=31.25, b=31.25, c=37.5)
    rooms, at = [room("p", 8, "a"), room("q", 8, "b")], {"a": "p", "b": "q"}
    assert next_move("c", shares, rooms, free=0, at=at) is None
    assert next_move("a", shares, rooms, free=0, at=at) is None, "nobody needs it"
    assert next_move("a", shares, rooms, free=0, at=at, waiting=["c"]) == Move(groups=8, beside="q")
    assert next_move("b", shares, rooms, free=0, at=at, waiting=["c"]) is None, "one room is enough"
    draining, at = [room("p", 8, "a"), room("q", 8, "b", "a")], {"a": "q", "b": "q"}
    assert next_move("b", shares, draining, free=0, at=at, waiting=["c"]) is None, "p drains: that is waited for"
    cleared = [room("q", 8, "b", "a")]
    assert next_move("a", shares, cleared, free=8, at=at, waiting=["c"]) == Move(groups=5)
    assert next_move("c", shares, cleared, free=8, at=at, waiting=["c"]) == Move(groups=6)
    begun = [*cleared, room("r", 6, "c")]
    assert next_move("a", shares, begun, free=2, at=at) == Move(groups=6, beside="r"), "q is nobody's: a leaves it first"


def test_who_cannot_move_is_left_where_it_is() -> None:
    """c learns: it ends where it began."""
    shares = plan(a=75, c=25)
    rooms, at = [room("p", 4, "a"), room("q", 12, "c")], {"a": "p"}
    assert next_move("a", shares, rooms, free=0, at=at) is None
    assert next_move("a", shares, rooms, free=0, at=at | {"c": "q"}) is None
    assert next_move("c", shares, rooms, free=0, at=at | {"c": "q"}) == Move(groups=4, beside="p")


def test_nobody_is_sent_away_for_a_room_that_would_not_be_enough() -> None:
    shares = plan(a=75, b=25)
    rooms, at = [room("p", 4, "a"), room("q", 4, "b"), room("r", 8, "c")], {"a": "p", "b": "q"}
    assert next_move("a", shares, rooms, free=0, at=at) is None
    rooms, at = [room("p", 4, "a"), room("q", 12, "b")], {"a": "p", "b": "q"}
    assert next_move("a", shares, rooms, free=0, at=at) is None
    assert next_move("b", shares, rooms, free=0, at=at) == Move(groups=4, beside="p")


def test_nobody_gets_all_there_is_because_nobody_could_leave_it() -> None:
    shares = plan(a=100)
    assert next_move("a", shares, [], free=16, at={}) == Move(groups=15)
    rooms, at = [room("p", 15, "a")], {"a": "p"}
    assert next_move("a", shares, rooms, free=1, at=at) is None
    shares = plan(a=50, b=50)
    assert next_move("a", shares, rooms, free=1, at=at, waiting=["b"]) == Move(groups=1), "its 15 are free after that"
    assert next_move("a", plan_partitions({"a": 100.0}, groups=1), [], free=1, at={}) == Move(groups=1)


def test_the_owner_stays_and_the_guest_leaves() -> None:
    shares = plan(a=50, b=25)
    rooms = [room("q", 8, "a", "b")]
    at = {"a": "q", "b": "q"}
    assert next_move("a", shares, rooms, free=8, at=at) is None
    assert next_move("b", shares, rooms, free=8, at=at) == Move(groups=4)
    assert next_move("b", shares, [*rooms, room("r", 4, "b")], free=4, at={"a": "q", "b": "r"}) is None, "it drains in q"


def test_somebody_lacks_room_when_what_it_wants_does_not_fit_beside_what_there_is() -> None:
    rooms, at = [room("p", 8, "a"), room("q", 4, "b")], {"a": "p"}
    assert not is_pressed(plan(a=50), rooms, free=4, at=at)
    assert not is_pressed(plan(a=50, c=25), rooms, free=4, at=at, waiting=["c"])
    assert is_pressed(plan(a=50, c=31.25), rooms, free=4, at=at, waiting=["c"])
    assert is_pressed(plan(a=90), rooms, free=4, at=at), "b, which is promised nothing, has what a lacks"


def test_the_last_resort_is_the_largest_there_is() -> None:
    assert last_resort([], free=0) is None
    assert last_resort([], free=3) == Move(groups=3)
    assert last_resort([room("p", 4, "a"), room("q", 4)], free=3) == Move(groups=4, beside="q")
    assert last_resort([room("p", 2, "a")], free=3) == Move(groups=3)


class World:
    """Jobs that do what they are told: a move is made, then the old process goes, then an empty partition is removed."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.at: dict[str, str] = {}
        self.made = 0

    @property
    def free(self) -> int:
        return GROUPS - sum(one.groups for one in self.rooms.values())

    def carry_out(self, job: str, move: Move) -> None:
        name = move.beside
        if not name:
            self.made += 1
            name = f"p{self.made:05d}"
            self.rooms[name] = room(name, move.groups)
        assert self.free >= 0, "more groups than there are, and the old partition is still there"
        old = self.at.get(job)
        assert old != name, "a move is to another place"
        self.at[job] = name
        self.rooms[name] = replace(self.rooms[name], jobs=(*self.rooms[name].jobs, job))
        if old is not None:
            self.leave(job, old)

    def leave(self, job: str, name: str) -> None:
        left = tuple(one for one in self.rooms[name].jobs if one != job)
        self.rooms[name] = replace(self.rooms[name], jobs=left)
        if not left:
            del self.rooms[name]

    def go_on(self, shares_pct: Mapping[str, float]) -> int:
        """Until nobody moves; how many moves it took."""
        shares = plan_partitions(shares_pct, groups=GROUPS)
        for gone in [job for job in self.at if job not in shares_pct]:
            self.leave(gone, self.at.pop(gone))
        moves = 0
        while True:
            waiting = [job for job in sorted(shares_pct) if job not in self.at]
            for job in sorted(shares_pct):
                move = next_move(job, shares, list(self.rooms.values()), free=self.free, at=self.at, waiting=waiting)
                if move is not None:
                    self.carry_out(job, move)
                    break
            else:
                return moves
            moves += 1
            assert moves <= 6 * len(shares_pct) + 6, f"they move for ever: {shares_pct} {self.rooms}"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_shares_were_and_become_everybody_comes_to_a_partition_of_its_own(seed: int) -> None:
    chance, world = random.Random(seed), World()
    for _ in range(12):
        jobs = chance.sample("abcdefgh", chance.randint(1, 8))
        parts = [chance.random() ** 3 + 0.01 for _ in jobs]
        whole_pct = chance.choice([60.0, 90.0, 100.0, 100.0])
        shares_pct = {job: whole_pct * part / sum(parts) for job, part in zip(jobs, parts, strict=True)}
        world.go_on(shares_pct)
        shares = plan_partitions(shares_pct, groups=GROUPS)
        assert set(world.at) == set(jobs), f"some wait for ever: {shares_pct} {world.rooms}"
        for job in jobs:
            here, wanted = world.rooms[world.at[job]], wanted_for(job, shares, groups=GROUPS)
            assert here.groups >= wanted.groups, f"{job}: {here} {wanted}"
            assert set(here.jobs) <= set(wanted.jobs), f"{job} shares with others: {here} {wanted}"
