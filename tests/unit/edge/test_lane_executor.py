"""The core of `lanes` on a CPU in virtual time: policies, giving way, neighbours of hung jobs, needs. The rest: the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled, JobError, UsageError
from edge.clock import FakeClock
from edge.gpu.base import Lane
from edge.gpu.executor import GIVE_WAY_S
from edge.gpu.lanes import LaneBackend
from edge.gpu.tenants import WAITS_MAX_S
from edge.needs import Needs
from scheduler.salus.types import MemoryNeed

#: Most of a device of 100 MiB: two such jobs share a lane.
LARGE = MemoryNeed(persistent_mib=1.0, ephemeral_mib=60.0)
SMALL = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)


class World:
    """A backend of 100 MiB and two cores, jobs that compute pieces of a fixed length, and who ran when."""

    def __init__(self, **options: object) -> None:
        self.clock = FakeClock()
        self.backend = LaneBackend(capacity_pct=200, memory_mib=100.0, clock=self.clock, **options)  # type: ignore[arg-type]
        self.runs: list[tuple[str, float]] = []
        self.errors: dict[str, JobError] = {}

    def job(self, name: str, piece_s: float, *, n: int | None = None, **options: object) -> Lane:
        lane = self.backend.open_lane(name, **options)  # type: ignore[arg-type]

        def body() -> None:
            try:
                done = 0
                while n is None or done < n:
                    with lane.iteration():
                        self.runs.append((name, self.clock.monotonic_s()))
                        self.clock.work(piece_s)
                    done += 1
                self.backend.close_lane(name)
            except JobCancelled:
                return
            except JobError as error:
                self.errors[name] = error

        self.clock.spawn(body)
        return lane

    def used_s(self, name: str) -> float:
        return self.backend.ledger(name).last().received_s

    def end(self) -> None:
        self.backend.check()
        self.backend.close()
        self.clock.advance_to(self.clock.monotonic_s() + 20.0)
        self.clock.join()


@contextmanager
def world(**options: object) -> Iterator[World]:
    made = World(**options)
    yield made
    made.end()


# --- policies ---------------------------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="fastest") as refused:
        LaneBackend(policy="fastest")
    assert "srtf" in refused.value.remedy


def test_fair_divides_a_lane_by_the_plans_shares_whatever_the_iterations_cost() -> None:
    with world(policy="fair", max_lanes=1) as w:
        w.backend.set_shares({"long": 30.0, "short": 60.0})
        w.job("long", 0.5, need=SMALL)
        w.job("short", 0.05, need=SMALL)
        w.clock.advance_to(60.0)
        assert w.used_s("long") + w.used_s("short") == pytest.approx(60.0, abs=0.6)  # one lane, never idle
        assert w.used_s("short") / w.used_s("long") == pytest.approx(2.0, rel=0.1)


def test_fair_lets_a_newcomer_start_at_the_least_service_of_its_lane() -> None:
    with world(policy="fair", max_lanes=1) as w:
        w.backend.set_shares({"old": 50.0, "new": 50.0})
        w.job("old", 0.1, need=SMALL)
        w.clock.advance_to(20.0)
        w.job("new", 0.1, need=SMALL)
        w.clock.advance_to(30.0)
        assert w.used_s("new") == pytest.approx(5.0, abs=0.5)  # and not all 10 s, to catch up


def test_a_share_of_nothing_waits_under_every_policy() -> None:
    for policy in ("fair", "rr", "pack", "fifo", "srtf", "plan"):
        with world(policy=policy) as w:
            w.backend.set_shares({"runs": 50.0})
            w.job("waits", 0.1, need=SMALL)
            w.job("runs", 0.1, need=SMALL)
            w.clock.advance_to(5.0)
            assert w.used_s("waits") == 0.0, policy
            assert w.used_s("runs") > 0.0, policy


def test_pack_gives_every_job_a_lane_of_its_own_while_memory_lasts() -> None:
    with world(policy="pack") as w:
        w.backend.set_shares({job: 10.0 for job in "abc"})  # noqa: C420
        for job in "abc":
            w.job(job, 0.1, need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=30.0))
        w.clock.advance_to(10.0)
        assert len({known.lane for known in w.backend.memory().values()}) == 3
        assert all(w.used_s(job) == pytest.approx(10.0, abs=0.2) for job in "abc")  # no shares are kept


def test_srtf_runs_the_job_with_least_to_do_first() -> None:
    with world(policy="srtf") as w:
        w.backend.set_shares({"long": 50.0, "short": 50.0})
        w.job("long", 0.5, n=20, need=SMALL)
        w.backend.expect("long", 10.0)
        w.clock.advance_to(2.2)
        w.job("short", 0.5, n=4, need=SMALL)
        w.backend.expect("short", 2.0)
        w.clock.advance_to(5.2)
        assert [name for name, at_s in w.runs if 2.5 <= at_s < 4.5] == ["short"] * 4
        assert {known.lane for known in w.backend.memory().values()} == {1}


@pytest.mark.parametrize("policy", ["srtf", "fifo"])
def test_learning_of_unknown_length_runs_between_the_frames_of_a_camera(policy: str) -> None:
    """The camera's lane is the oldest, and it rests most of the time: it is not what the others wait for."""
    with world(policy=policy) as w:
        w.backend.set_shares({"camera": 50.0, "first": 50.0, "second": 50.0})
        camera(w, 0.5, 0.05)
        w.job("first", 0.5, n=4, need=SMALL)
        w.job("second", 0.5, n=4, need=SMALL)
        w.clock.advance_to(12.0)
        assert [name for name, _ in w.runs if name != "camera"] == ["first"] * 4 + ["second"] * 4


def test_srtf_runs_the_shortest_between_the_frames_of_a_camera() -> None:
    with world(policy="srtf") as w:
        w.backend.set_shares({"camera": 50.0, "short": 50.0, "long": 50.0})
        camera(w, 0.5, 0.05)
        w.job("long", 0.5, n=8, need=SMALL)
        w.job("short", 0.5, n=2, need=SMALL)
        w.backend.expect("long", 4.0)
        w.backend.expect("short", 1.0)
        w.backend.expect("nobody", 1.0)  # has gone: nothing to say
        w.clock.advance_to(12.0)
        learned = [name for name, _ in w.runs if name != "camera"]
        assert sorted(learned) == ["long"] * 8 + ["short"] * 2
        assert learned[-7:] == ["long"] * 7  # one of it had begun before the other came, at most
        frames_s = [at_s for name, at_s in w.runs if name == "camera"]
        waited_s = [after - before - 0.5 for before, after in pairwise(frames_s)]
        assert max(waited_s) <= 0.5 + 0.01  # one iteration at most


# --- shares in a lane -------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(
    shares=st.lists(st.integers(5, 30), min_size=2, max_size=3),
    pieces=st.lists(st.sampled_from([0.02, 0.1, 0.3]), min_size=3, max_size=3),
)
def test_jobs_of_one_lane_get_their_shares_when_these_fit_one_core(shares: list[int], pieces: list[float]) -> None:
    with world() as w:
        promised = {f"j{i}": float(share) for i, share in enumerate(shares)}
        w.backend.set_shares(promised)
        for job, piece_s in zip(promised, pieces, strict=False):
            w.job(job, piece_s, need=LARGE)
        w.clock.advance_to(30.0)
        report = w.backend.report(20.0)
        for job, share in promised.items():
            assert report[job].received_pct == pytest.approx(share, abs=3.0)


def test_a_job_does_not_rest_in_a_lane_that_others_wait_for() -> None:
    """It runs into debt to the end of its iteration, and pays before the next."""
    with world() as w:
        w.backend.set_shares({"long": 10.0, "other": 50.0})
        lane = w.backend.open_lane("long", need=LARGE)
        ended_s: list[float] = []

        def body() -> None:
            with lane.iteration():
                for _ in range(20):
                    w.clock.work(0.1)
                    lane.checkpoint()
            ended_s.append(w.clock.monotonic_s())

        w.clock.spawn(body)
        w.clock.advance_to(0.01)
        w.job("other", 0.1, need=LARGE)
        w.clock.advance_to(30.0)
        assert ended_s == [pytest.approx(2.0, abs=0.01)]  # alone in its lane it would take 19 s
        assert w.used_s("other") == pytest.approx(14.0, abs=0.6)


# --- giving way -------------------------------------------------------------------------------------------------------


def camera(w: World, every_s: float, cost_s: float) -> None:
    lane = w.backend.open_lane("camera", role="infer", need=SMALL)

    def body() -> None:
        try:
            while True:
                with lane.iteration():
                    w.runs.append(("camera", w.clock.monotonic_s()))
                    w.clock.work(cost_s)
                w.clock.sleep(every_s - cost_s)
        except JobCancelled:
            return

    w.clock.spawn(body)


def test_training_begins_nothing_while_a_frame_is_in_work_and_still_gets_its_share() -> None:
    with world() as w:
        w.backend.set_shares({"camera": 100.0, "train": 50.0})
        camera(w, 0.2, 0.06)
        w.job("train", 0.02, need=SMALL)
        w.clock.advance_to(12.0)
        frames = [at_s for name, at_s in w.runs if name == "camera"]
        inside = [
            at_s
            for name, at_s in w.runs
            if name == "train" and at_s > 2.0 and any(f + 1e-6 < at_s < f + 0.06 - 1e-6 for f in frames)
        ]
        assert w.backend.report(10.0)["train"].received_pct == pytest.approx(50.0, abs=1.0)
        assert not inside


def test_training_that_cannot_catch_up_in_the_gaps_runs_beside_the_frames() -> None:
    with world() as w:
        w.backend.set_shares({"camera": 100.0, "train": 50.0})
        camera(w, 0.1, 0.095)
        w.job("train", 0.02, need=SMALL)
        w.clock.advance_to(12.0)
        assert w.backend.report(10.0)["train"].received_pct == pytest.approx(50.0, abs=1.0 + 100 * GIVE_WAY_S / 10.0)


def test_cameras_do_not_give_way_to_cameras() -> None:
    with world() as w:
        w.backend.set_shares({"camera": 100.0, "second": 50.0})
        camera(w, 0.1, 0.095)
        w.job("second", 0.01, role="infer", need=SMALL)
        w.clock.advance_to(2.0)
        assert w.used_s("second") == pytest.approx(1.0, abs=0.05)


# --- memory and faults ------------------------------------------------------------------------------------------------


def test_cameras_and_training_share_a_lane_only_where_memory_leaves_no_other_way() -> None:
    with world(max_lanes=3) as w:
        for name, role in (("a", "infer"), ("train", "learn"), ("b", "infer"), ("c", "infer"), ("gate", "learn")):
            w.backend.open_lane(name, role=role, need=SMALL)  # type: ignore[arg-type]
        lanes = {job: known.lane for job, known in w.backend.memory().items()}
        assert lanes["gate"] == lanes["train"]
        assert {lanes["a"], lanes["b"], lanes["c"]}.isdisjoint({lanes["train"]})


def test_neighbours_of_a_job_that_hangs_move_to_another_lane() -> None:
    with world(hung_s=30.0) as w:
        w.backend.set_shares({"hangs": 50.0, "neighbour": 50.0, "blocker": 10.0})
        blocker = w.backend.open_lane("blocker", need=MemoryNeed(persistent_mib=60.0, ephemeral_mib=5.0))
        lane = w.backend.open_lane("hangs", need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=20.0))
        w.job("neighbour", 0.1, need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=19.0))
        known = w.backend.memory()
        assert known["neighbour"].lane == known["hangs"].lane
        w.clock.spawn(lambda: hang(w, lane))
        w.clock.advance_to(1.0)
        w.backend.close_lane(blocker.job)  # room for a lane more
        before = w.used_s("neighbour")
        w.clock.advance_to(31.0)
        [fault] = w.backend.faults()
        assert (fault.job, fault.code, fault.removed) == ("hangs", "hung", True)
        assert "1 job" in fault.text
        w.clock.advance_to(36.0)
        assert w.used_s("neighbour") > before + 2.0


def hang(w: World, lane: Lane) -> None:
    with pytest.raises(JobError), lane.iteration():
        w.clock.sleep(50.0)
        lane.checkpoint()
        with lane.iteration():
            pass


def test_a_camera_that_hangs_is_told_and_goes_on_when_it_comes_back() -> None:
    with world(hung_s=30.0) as w:
        w.backend.set_shares({"camera": 50.0})
        lane = w.backend.open_lane("camera", role="infer", need=SMALL)
        frames: list[float] = []

        def body() -> None:
            for _ in range(2):
                with lane.iteration():
                    w.clock.sleep(40.0)
                frames.append(w.clock.monotonic_s())

        w.clock.spawn(body)
        for at_s in (35.0, 41.0, 75.0, 90.0):
            w.clock.advance_to(at_s)
            w.backend.faults()
        assert [(fault.code, fault.removed) for fault in w.backend.faults()] == [("hung", False)] * 2
        assert frames == [40.0, 80.0]


def test_learning_that_waits_for_memory_for_ever_is_removed_and_cameras_are_not() -> None:
    with world() as w:
        w.backend.set_shares({"camera": 50.0, "learn": 50.0, "late": 50.0})
        w.backend.open_lane("first", role="infer", need=MemoryNeed(persistent_mib=90.0, ephemeral_mib=5.0))
        w.job("learn", 0.1, need=MemoryNeed(persistent_mib=20.0, ephemeral_mib=1.0))
        w.job("late", 0.1, role="infer", need=MemoryNeed(persistent_mib=20.0, ephemeral_mib=1.0))
        w.clock.advance_to(WAITS_MAX_S - 1.0)
        assert w.backend.faults() == ()
        w.clock.advance_to(WAITS_MAX_S + 1.0)
        assert [fault.job for fault in w.backend.faults()] == ["learn"]
        w.clock.advance_to(WAITS_MAX_S + 2.0)
        assert set(w.errors) == {"learn"}
        assert "memory" in str(w.errors["learn"])


def test_a_camera_that_grows_beyond_what_is_free_waits_and_comes_back() -> None:
    held: list[torch.Tensor] = []
    with world() as w:
        w.backend.set_shares({"camera": 50.0})
        w.backend.open_lane("train", need=MemoryNeed(persistent_mib=80.0, ephemeral_mib=5.0))
        lane = w.backend.open_lane("camera", role="infer", need=SMALL)
        frames: list[float] = []

        def body() -> None:
            try:
                while True:
                    with lane.iteration():
                        if not held:
                            held.append(torch.empty(30 * 2**20, dtype=torch.uint8))
                        frames.append(w.clock.monotonic_s())
                        w.clock.work(0.1)
            except JobCancelled:
                return

        w.clock.spawn(body)
        w.clock.advance_to(5.0)
        assert len(frames) == 1
        [fault] = w.backend.faults()
        assert (fault.job, fault.code, fault.removed) == ("camera", "memory", False)
        w.backend.close_lane("train")
        w.clock.advance_to(10.0)
        assert len(frames) > 10


def test_a_lane_that_is_closed_inside_an_iteration_frees_its_memory_at_its_end() -> None:
    with world() as w:
        w.backend.set_shares({"a": 50.0, "b": 50.0})
        lane = w.backend.open_lane("a", need=MemoryNeed(persistent_mib=60.0, ephemeral_mib=10.0))

        def body() -> None:
            with lane.iteration():
                w.clock.work(2.0)

        w.clock.spawn(body)
        w.clock.advance_to(1.0)
        w.backend.close_lane("a")
        w.job("b", 0.1, need=MemoryNeed(persistent_mib=60.0, ephemeral_mib=10.0))
        again = w.backend.open_lane("a", need=SMALL)  # the same name, while the old one is still there
        w.clock.advance_to(1.9)
        assert w.backend.memory()["b"].lane is None
        assert w.backend.memory()["a"].lane is not None
        w.clock.advance_to(4.0)
        assert w.used_s("b") > 0.5
        assert again.job == "a"


# --- what jobs took, remembered ---------------------------------------------------------------------------------------


def run_once(w: World, needs: Needs, job: str, mib: int, n: int = 4) -> Callable[[], None]:
    lane = needs.open_lane(job, ("retraining", "net"))

    def body() -> None:
        for _ in range(n):
            with lane.iteration():
                taken = torch.empty(mib * 2**20, dtype=torch.uint8)
                w.clock.work(0.1)
                del taken
        needs.close_lane(job, ("retraining", "net"))

    return body


def test_the_second_job_of_a_sort_declares_what_the_first_took() -> None:
    with world() as w:
        needs = Needs(w.backend)
        w.backend.set_shares({"a/train/1": 50.0, "a/train/2": 50.0})
        w.clock.spawn(run_once(w, needs, "a/train/1", 20))
        assert w.backend.memory()["a/train/1"].need is None
        w.clock.advance_to(5.0)
        known = needs.known(("retraining", "net"))
        assert known is not None
        assert 20.0 <= known.peak_mib <= 22.0
        w.clock.spawn(run_once(w, needs, "a/train/2", 20))
        assert w.backend.memory()["a/train/2"].lane is not None  # at once
        w.clock.advance_to(10.0)
        assert needs.known(("retraining", "net")) == known
        assert needs.known(("gate", "net")) is None
        assert w.backend.faults() == ()


def test_the_second_job_of_a_sort_is_expected_to_take_what_the_first_took() -> None:
    with world(policy="srtf") as w:
        needs = Needs(w.backend)
        needs.open_lane("a/label/1", ("labelling", "net"))
        assert w.backend._lanes["a/label/1"]._account.total_s is None
        needs.close_lane("a/label/1", ("labelling", "net"), took_s=7.5)
        needs.open_lane("a/label/2", ("labelling", "net"))
        assert w.backend._lanes["a/label/2"]._account.total_s == 7.5
        needs.close_lane("a/label/2", ("labelling", "net"))  # failed: how long it would have taken is not known
        needs.open_lane("a/label/3", ("labelling", "net"))
        assert w.backend._lanes["a/label/3"]._account.total_s == 7.5
        needs.open_lane("a/gate/1", ("gate", "net"))
        assert w.backend._lanes["a/gate/1"]._account.total_s is None


def test_a_need_that_is_refused_is_forgotten() -> None:
    with world() as w:
        needs = Needs(w.backend)
        needs._known["retraining", "net"] = MemoryNeed(persistent_mib=200.0, ephemeral_mib=1.0)
        with pytest.raises(JobError):
            needs.open_lane("a/train/1", ("retraining", "net"))
        needs.open_lane("a/train/2", ("retraining", "net"))


def test_a_job_that_is_closed_while_it_waits_is_asked_nothing_more() -> None:
    """Its thread may still sleep when the next job asks whose turn it is; it has no memory and no place by then."""
    with world() as made:
        for name in ("a", "b", "c"):
            made.job(name, 1.0, need=LARGE)
        made.backend.set_shares({"a": 50.0, "b": 50.0, "c": 50.0})
        made.clock.advance_to(made.clock.monotonic_s() + 0.5)
        waiting = next(name for name in ("a", "b", "c") if name in made.backend._queue)
        made.backend.close_lane(waiting)
        assert waiting not in made.backend._queue
        made.backend.set_shares({name: 50.0 for name in ("a", "b", "c") if name != waiting})
        made.clock.advance_to(made.clock.monotonic_s() + 10.0)
        assert {name for name, at_s in made.runs if at_s > 5.0} == {"a", "b", "c"} - {waiting}
