"""What a frame costs does not depend on how many others wait: whose turn it is in a memory lane is asked of those who share it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobError
from edge.clock import FakeClock
from edge.gpu.base import Lane, Role
from edge.gpu.lanes import LaneBackend
from edge.gpu.tenants import ASIDE, FIRST_READINGS, Tenants
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)
JOBS = tuple("abcdef")

needs = st.builds(MemoryNeed, persistent_mib=st.sampled_from((1.0, 4.0, 20.0)), ephemeral_mib=st.sampled_from((1.0, 6.0, 30.0)))
#: (what happens, to whom, what it needs or was measured to take, its role)
happenings = st.tuples(
    st.sampled_from(("arrive", "arrive unknown", "iterate", "begin", "end", "read", "leave", "expel", "resettle")),
    st.sampled_from(JOBS),
    needs,
    st.sampled_from(("infer", "learn")),
)


class Book:
    """`Tenants` as the executor uses it: nothing is told of a job that is not there, and none leaves inside an iteration."""

    def __init__(self, max_lanes: int | None) -> None:
        self.tenants = Tenants(capacity_mib=60.0, max_lanes=max_lanes)
        self.inside: set[str] = set()
        self.now_s = 0.0

    def tell(self, what: str, job: str, need: MemoryNeed, role: Role) -> None:
        self.now_s += 1.0
        if what.startswith("arrive"):
            self._arrive(job, role, None if what.endswith("unknown") else need)
        elif not self.tenants.has(job):
            return
        elif what == "begin":
            self._begin(job)
        elif what == "end":
            self._end(job)
        elif what == "iterate":
            self._begin(job)
            self._end(job)
        elif what == "read" and job not in self.inside:
            self.tenants.read(job, need, self.now_s)
        elif what == "leave" and job not in self.inside:
            self.tenants.leave(job, self.now_s)
        elif what == "expel":
            self.tenants.expel(job, JobError("it hung", subject=job), self.now_s)
        elif what == "resettle" and (place := self.tenants.place(job)) is not None:
            self.tenants.resettle(place, self.now_s)

    def _arrive(self, job: str, role: Role, need: MemoryNeed | None) -> None:
        if self.tenants.has(job):
            return
        try:
            self.tenants.arrive(job, role, need, self.now_s)
        except JobError:
            assert not self.tenants.has(job)

    def _begin(self, job: str) -> None:
        place = self.tenants.place(job)
        if place is None or job in self.inside or any(self.tenants.place(other) == place for other in self.inside):
            return
        self.tenants.begin(job)
        self.inside.add(job)

    def _end(self, job: str) -> None:
        if job in self.inside:
            self.inside.remove(job)
            self.tenants.end(job, self.now_s)

    def check(self) -> None:
        """Against the long way: asking each job for its place."""
        places = {job: self.tenants.place(job) for job in JOBS if self.tenants.has(job)}
        for job, place in places.items():
            if place is not None:
                assert job in self.tenants.sharers(place), f"{job} may run in lane {place} and is not found there"
        found = Counter(job for lane in (ASIDE, *self.tenants.table.lanes) for job in self.tenants.sharers(lane))
        assert not found or max(found.values()) == 1, f"in two lanes: {found}"


@settings(max_examples=300, deadline=None)
@given(story=st.lists(happenings, max_size=40), max_lanes=st.sampled_from((None, 1, 2)))
def test_whoever_may_run_in_a_lane_is_found_among_its_sharers(
    story: list[tuple[str, str, MemoryNeed, Role]], max_lanes: int | None
) -> None:
    book = Book(max_lanes)
    for happening in story:
        book.tell(*happening)
        book.check()


def test_a_job_that_was_measured_is_found_in_its_lane_and_no_longer_aside() -> None:
    tenants = Tenants(capacity_mib=100.0, max_lanes=None)
    tenants.arrive("cam", "infer", None, 0.0)
    assert (tenants.place("cam"), tenants.sharers(ASIDE)) == (ASIDE, ["cam"])
    for n in range(FIRST_READINGS):
        tenants.begin("cam")
        tenants.end("cam", float(n))
        tenants.read("cam", NEED, float(n))
    place = tenants.place("cam")
    assert place not in (None, ASIDE)
    assert (tenants.sharers(ASIDE), tuple(tenants.sharers(place))) == ([], ("cam",))


def looks_per_piece(monkeypatch: pytest.MonkeyPatch, jobs: int, *, sharing: int, role: Role = "learn") -> float:
    """How often the beginning and end of an iteration ask whether some job could be next, while `jobs` ask for turns all the time.
    sharing: of one memory lane."""
    clock = FakeClock()
    backend = LaneBackend(
        capacity_pct=400, memory_mib=1000.0, clock=clock, infer_width=2, max_lanes=jobs // sharing
    )  # fmt: skip
    looks = [0]
    asked = backend._could_be_next

    def counted(lane: object, place: int) -> bool:
        looks[0] += 1
        return asked(lane, place)  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "_could_be_next", counted)
    pieces = [0]

    def body(lane: Lane) -> None:
        for _ in range(5):
            with lane.iteration():
                clock.work(0.01)
            pieces[0] += 1

    # Opened before the first begins and closed never: either wakes all who wait, who then ask.
    names = [f"job{n}" for n in range(jobs)]
    lanes = [backend.open_lane(name, role=role, need=NEED) for name in names]
    backend.set_shares(dict.fromkeys(names, 400.0 / jobs))
    for lane in lanes:
        clock.spawn(partial(body, lane))
    clock.advance_to(20.0)
    clock.join()
    backend.check()
    assert pieces[0] == 5 * jobs
    return looks[0] / pieces[0]


def test_a_job_looks_at_no_more_others_when_more_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # The median of three: who is looked at depends a little on which thread comes first.
    few, many = (median(looks_per_piece(monkeypatch, jobs, sharing=4) for _ in range(3)) for jobs in (8, 40))
    assert many <= few + 1.0


def test_a_job_looks_at_those_who_share_its_memory_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count can tell: with four to a lane there is somebody to look at."""
    alone, shared = looks_per_piece(monkeypatch, 24, sharing=1), looks_per_piece(monkeypatch, 24, sharing=4)
    assert shared > alone + 1.0


def test_frames_that_wait_outside_are_looked_at_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_per_piece(monkeypatch, 24, sharing=4, role="infer") <= 1.0


def test_nobody_stays_among_those_who_give_way() -> None:
    clock = FakeClock()
    backend = LaneBackend(capacity_pct=200, memory_mib=100.0, clock=clock)
    frame, lesson = backend.open_lane("cam", role="infer", need=NEED), backend.open_lane("train", need=NEED)
    backend.set_shares({"cam": 100.0, "train": 50.0})
    began_s: list[float] = []

    def camera() -> None:
        with frame.iteration():
            clock.work(0.1)

    def learner() -> None:
        clock.sleep(0.01)
        with lesson.iteration():
            began_s.append(round(clock.monotonic_s(), 6))
            clock.work(0.05)

    clock.spawn(camera)
    clock.spawn(learner)
    clock.advance_to(0.05)
    assert (list(backend._giving_way), began_s) == (["train"], [])
    clock.advance_to(1.0)
    assert (backend._giving_way, began_s) == ({}, [0.1])
    clock.join()
