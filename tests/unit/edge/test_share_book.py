"""The book of promised and received shares: exact over windows longer than a backend remembers, while jobs come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import ShareReport
from edge.gpu.lanes import LaneBackend
from edge.share_book import ShareBook, described, owed
from edge.store.store import Store


class Told:
    """A backend that was promised and received what `rates` says, since `opened_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rates: dict[str, tuple[float, float, float]] = {}  # job -> promised, received, opened at

    def report(self, span_s: float) -> dict[str, ShareReport]:
        return {
            job: ShareReport(
                job=job, promised_pct=promised, received_pct=received, backlogged_frac=0.5, iterations=round(10 * covered_s),
                span_s=covered_s,
            )
            for job, (promised, received, opened_s) in self.rates.items()
            if (covered_s := min(span_s, self.now_s - opened_s)) >= 0
        }  # fmt: skip


def test_a_window_is_the_mean_of_its_parts() -> None:
    told = Told()
    book = ShareBook(told.report, told.now_s)
    told.rates = {"a/infer": (20.0, 18.0, 100.0)}
    told.now_s = 130.0
    book.update(told.now_s)
    told.rates = {"a/infer": (50.0, 48.0, 100.0)}
    told.now_s = 140.0
    (job,) = book.close_window(told.now_s)
    assert job.span_s == pytest.approx(40.0)
    assert job.promised_pct == pytest.approx((20 * 30 + 50 * 10) / 40)
    assert job.received_pct == pytest.approx((18 * 30 + 48 * 10) / 40)
    assert (job.backlogged_frac, job.iterations) == (pytest.approx(0.5), 400)


def test_a_job_that_ended_in_the_window_is_in_it_and_not_in_the_next() -> None:
    told = Told()
    book = ShareBook(told.report, told.now_s)
    told.rates = {"a/train/1": (40.0, 39.0, 102.0), "a/infer": (20.0, 20.0, 90.0)}
    told.now_s = 112.0
    book.update(told.now_s)  # as before a lane closes
    del told.rates["a/train/1"]
    told.now_s = 120.0
    train, infer = (
        next(r for r in reports if r.job == job)
        for reports in [book.close_window(told.now_s)]
        for job in ("a/train/1", "a/infer")
    )
    assert (train.span_s, infer.span_s) == (pytest.approx(10.0), pytest.approx(20.0))
    assert train.received_pct == pytest.approx(39.0)
    told.now_s = 125.0
    assert [r.job for r in book.close_window(told.now_s)] == ["a/infer"]


def test_updates_in_quick_succession_and_from_the_past_count_nothing_twice() -> None:
    told = Told()
    book = ShareBook(told.report, told.now_s)
    told.rates = {"a": (100.0, 100.0, 100.0)}
    told.now_s = 104.0
    for now_s in (104.0, 104.0, 103.0, 104.0002):
        book.update(now_s)
    told.now_s = 106.0
    book.update(106.0, at_least_s=5.0)  # too early
    told.now_s = 110.0
    (job,) = book.close_window(110.0)
    assert job.span_s == pytest.approx(10.0)


def test_a_backend_that_cannot_report_is_said_once_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("edge.share_book.log.warning", lambda text, *args: said.append(text % args))
    told = Told()
    told.rates = {"a": (50.0, 40.0, 100.0)}
    broken = [True]

    def report(span_s: float) -> dict[str, ShareReport]:
        if broken[0]:
            raise RuntimeError("the GPU at rtsp://user:hunter2@host/ is lost")
        return told.report(span_s)

    book = ShareBook(report, told.now_s)
    for told.now_s in (106.0, 112.0):
        book.update(told.now_s)
    assert len(said) == 1
    assert "what jobs received is not known" in said[0]
    assert "hunter2" not in said[0]
    broken[0] = False
    told.now_s = 120.0
    (job,) = book.close_window(120.0)
    assert (job.span_s, job.received_pct) == (pytest.approx(20.0), pytest.approx(40.0))


def test_a_job_that_was_promised_and_took_nothing_is_not_listed() -> None:
    told = Told()
    book = ShareBook(told.report, told.now_s)
    told.rates = {"waits": (0.0, 0.0, 100.0), "starved": (30.0, 0.0, 100.0), "unpromised": (0.0, 3.0, 100.0)}
    told.now_s = 110.0
    assert [r.job for r in book.close_window(110.0)] == ["starved", "unpromised"]


@settings(max_examples=25, deadline=None)
@given(
    looks=st.lists(st.floats(0.3, 30.0), min_size=1, max_size=6),
    share_pct=st.sampled_from([10.0, 40.0, 90.0]),
)
def test_over_real_lanes_the_book_adds_up_to_the_account(looks: list[float], share_pct: float) -> None:
    """However often it is looked at, also when a window is longer than a backend remembers (60 s)."""
    clock = FakeClock()
    backend = LaneBackend(capacity_pct=100, clock=clock)
    lane = backend.open_lane("a")
    backend.set_shares({"a": share_pct})
    used: list[float] = []

    def body() -> None:
        try:
            while True:
                with lane.iteration():
                    clock.work(0.05)
                    used.append(0.05)
        except JobCancelled:
            return

    book = ShareBook(backend.report, clock.monotonic_s())
    clock.spawn(body)
    for span_s in looks:
        clock.advance_to(clock.monotonic_s() + span_s)
        book.update(clock.monotonic_s())
    window_s = clock.monotonic_s()
    clock.advance_to(window_s)
    (job,) = book.close_window(clock.monotonic_s())
    backend.cancel("a")
    clock.advance_to(clock.monotonic_s() + 1.0)
    clock.join()
    assert job.span_s == pytest.approx(window_s)
    assert job.promised_pct == pytest.approx(share_pct)
    assert job.received_pct / 100 * window_s == pytest.approx(sum(used), abs=0.06)
    assert abs(job.received_pct - share_pct) * window_s / 100 < 0.06, "one iteration at most"


def test_the_line_for_people_and_who_is_owed() -> None:
    report = ShareReport(
        job="a/train/3", promised_pct=45.0, received_pct=44.51, backlogged_frac=0.991, iterations=120, span_s=81.4
    )
    assert described(report) == "a/train/3: promised 45.0 %, received 44.5 %, wanted to run 99 % of 81 s, 120 iterations"
    idle = ShareReport(job="b/infer", promised_pct=20.0, received_pct=3.0, backlogged_frac=0.2, iterations=9, span_s=81.4)
    assert owed([report, idle], wanted_frac=0.9) == {"a/train/3": pytest.approx(-0.49)}


def test_shares_of_a_window_are_kept_in_the_database_and_pruned_with_it(tmp_path: Path) -> None:
    report = ShareReport(job="a/infer", promised_pct=20.5, received_pct=20.25, backlogged_frac=1.0, iterations=7, span_s=60.0)
    with Store(tmp_path / "driftbox.db") as store:
        store.add_shares(3, [report])
        store.add_shares(3, [report])
        store.add_shares(4, [report, replace(report, job="a/gate/4")])
        assert store.shares(3) == (report,)
        assert [s.job for s in store.shares(4)] == ["a/gate/4", "a/infer"]
        assert store.shares(9) == ()
        store.prune(windows=1)
        assert store.shares(3) == ()
        assert len(store.shares(4)) == 2
