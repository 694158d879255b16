"""A job's further lanes: its share is divided among those that run, everyone else's is left alone, nothing stays behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from configs.errors import JobError
from edge.gpu.base import JobMemory, ShareReport
from edge.gpu.lanes import LaneBackend
from edge.gpu.members import Members
from scheduler.salus.types import MemoryNeed

NEED = MemoryNeed(persistent_mib=10.0, ephemeral_mib=5.0)


class Recording:
    """What a backend is told."""

    def __init__(self, refuses: str = "", no_memory_for: str = "") -> None:
        self.no_memory_for = no_memory_for
        self.open: list[str] = []
        self.shares: list[dict[str, float]] = []
        self.cancelled: list[str] = []
        self.refuses = refuses
        self.needs: dict[str, Any] = {}

    def open_lane(self, job: str, *, role: str = "learn", need: Any = None) -> Any:
        if job == self.refuses:
            raise JobError("its memory can never fit", subject=job, remedy="-", code="out_of_memory")
        self.open.append(job)
        self.needs[job] = need
        return type("Lane", (), {"job": job})()

    def memory(self) -> dict[str, JobMemory]:
        return {
            job: JobMemory(job=job, need=NEED, measured=True, lane=None if job == self.no_memory_for else 1, lane_mib=5.0)
            for job in self.open
        }

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        return {
            job: ShareReport(
                job=job,
                promised_pct=40.0,
                received_pct=30.0,
                backlogged_frac=0.5,
                iterations=7,
                span_s=5.0 if "+" in job else 10.0,
            )
            for job in self.open
        }

    def close_lane(self, job: str) -> None:
        self.open.remove(job)

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        if sum(shares_pct.values()) > 200:
            raise ValueError("above capacity")
        self.shares.append(dict(shares_pct))

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)


def made(**how: Any) -> tuple[Recording, Members, Any]:
    backend = Recording(**how)
    members = Members(backend)  # type: ignore[arg-type]
    return backend, members, backend.open_lane("p")


def test_the_share_goes_to_the_lanes_that_run() -> None:
    backend, members, own = made()
    members.set_shares({"p": 90.0, "cam/infer": 20.0})
    assert backend.shares[-1] == {"p": 90.0, "cam/infer": 20.0}
    with members.lanes("p", own, 3) as lanes:
        assert [lane.job for lane in lanes] == ["p", "p+1", "p+2"]
        members.divide("p", (0, 1, 2))
        assert backend.shares[-1] == {"p": 30.0, "p+1": 30.0, "p+2": 30.0, "cam/infer": 20.0}
        members.divide("p", (1,))
        assert backend.shares[-1] == {"p": 0.0, "p+1": 90.0, "p+2": 0.0, "cam/infer": 20.0}
        members.set_shares({"p": 40.0, "cam/infer": 60.0})
        assert backend.shares[-1] == {"p": 0.0, "p+1": 40.0, "p+2": 0.0, "cam/infer": 60.0}
        members.divide("other", (0, 1))
    assert backend.shares[-1] == {"p": 40.0, "cam/infer": 60.0}
    assert backend.open == ["p"]


def test_shares_that_the_backend_refuses_change_nothing() -> None:
    backend, members, own = made()
    members.set_shares({"p": 50.0})
    with pytest.raises(ValueError, match="capacity"):
        members.set_shares({"p": 500.0})
    with members.lanes("p", own, 2):
        members.divide("p", (0, 1))
    assert backend.shares[-1] == {"p": 50.0}


def test_cancelling_a_job_cancels_all_its_lanes() -> None:
    backend, members, own = made()
    with members.lanes("p", own, 3):
        members.cancel("p")
    members.cancel("p")
    assert backend.cancelled == ["p", "p+1", "p+2", "p"]


def test_a_lane_that_cannot_be_opened_leaves_none_behind() -> None:
    backend, members, own = made(refuses="p+2")
    members.set_shares({"p": 50.0})
    with pytest.raises(JobError), members.lanes("p", own, 3):
        pass
    assert backend.open == ["p"]
    assert backend.shares[-1] == {"p": 50.0}


def test_a_lane_that_would_wait_for_memory_is_not_used() -> None:
    backend, members, own = made(no_memory_for="p+2")
    members.set_shares({"p": 60.0})
    with members.lanes("p", own, 4) as lanes:
        assert [lane.job for lane in lanes] == ["p", "p+1"]
        assert backend.open == ["p", "p+1"]
        assert backend.needs["p+1"] is None, "what the job's own takes so far is no promise of a further one"
        members.divide("p", (0, 1))
        assert backend.shares[-1] == {"p": 30.0, "p+1": 30.0}


def test_a_jobs_lanes_are_reported_as_one() -> None:
    backend, members, own = made()
    backend.open_lane("cam/infer")
    with members.lanes("p", own, 2):
        told = members.report()
    assert set(told) == {"p", "cam/infer"}
    assert (told["p"].promised_pct, told["p"].received_pct, told["p"].iterations) == (60.0, 45.0, 14), "half of the span"
    assert told["cam/infer"].received_pct == 30.0
    assert members.report()["p"].promised_pct == 40.0


def test_on_a_real_backend_shares_still_add_up() -> None:
    backend = LaneBackend(capacity_pct=200)
    members = Members(backend)
    own = backend.open_lane("p")
    members.set_shares({"p": 200.0})
    with members.lanes("p", own, 2) as lanes:
        members.divide("p", (0, 1))
        with lanes[1].iteration():
            pass
        assert set(backend.report()) == {"p", "p+1"}
    assert set(backend.report()) == {"p"}
    backend.close()
