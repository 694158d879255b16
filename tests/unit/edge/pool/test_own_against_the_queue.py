"""The queue against one thread per camera, on a quiet machine in virtual time: as many frames by their deadline, and the same shares."""

from __future__ import annotations

import pytest

from tests.support.serving_race import Load, Raced, race

TIGHT = Load(share_pct=9.0)  # 36 % of a core for pictures that take 44 %
ENOUGH = Load(share_pct=15.0)


@pytest.fixture(scope="module")
def tight() -> dict[str, Raced]:
    return {way: race(way, TIGHT, seconds=40.0) for way in ("own", "orloj", "edf")}


def test_with_enough_compute_every_frame_is_in_time() -> None:
    assert race("orloj", ENOUGH, seconds=20.0).frac == 1.0


def test_under_a_share_that_is_too_small_no_fewer_frames_are_in_time_than_without_a_queue(tight: dict[str, Raced]) -> None:
    """The earliest deadline came to less than half before it knew that batches save nothing here: they only measured that in gaps."""
    assert tight["own"].frac < 0.95, "it is too small"
    assert tight["orloj"].frac >= tight["own"].frac - 0.02
    assert tight["orloj"].frac >= tight["edf"].frac
    assert tight["edf"].frac > 0.7


def test_nobody_is_promised_more_or_gets_less_than_without_a_queue(tight: dict[str, Raced]) -> None:
    for way, raced in tight.items():
        assert sum(s.received_pct for job, s in raced.shares.items() if "infer" in job) == pytest.approx(36.0, abs=1.0), way
        assert raced.shares["cam0/train"].received_pct == pytest.approx(40.0, abs=1.0), way
        for job, share in raced.shares.items():
            assert share.promised_pct == pytest.approx(40.0 if "train" in job else 9.0), (way, job)


def test_what_was_due_does_not_depend_on_who_answers(tight: dict[str, Raced]) -> None:
    due = {way: sum(f.due for f in raced.finished.values()) for way, raced in tight.items()}
    assert max(due.values()) - min(due.values()) <= 0.03 * 4 * 5 * 40.0


def test_on_two_cores_two_workers_are_as_good() -> None:
    load = Load(cameras=12, share_pct=9.0, cores=2)
    raced = {way: race(way, load, seconds=30.0) for way in ("own", "orloj")}
    assert raced["own"].frac < 0.95, "it is too small"
    assert raced["orloj"].frac >= raced["own"].frac - 0.03
    for way, one in raced.items():
        received_pct = sum(s.received_pct for job, s in one.shares.items() if "infer" in job)
        assert received_pct == pytest.approx(108.0, abs=2.0), f"{way}: more than a core"
        assert one.shares["cam0/train"].received_pct == pytest.approx(40.0, abs=1.0), way
