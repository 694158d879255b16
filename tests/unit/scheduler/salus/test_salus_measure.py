"""A job's memory as measured: warm-up, padding, settled or not, liars, leaks, and what becomes of them in the table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.salus import LaneRules, LaneTable, MemoryNeed
from scheduler.salus.measure import (
    MeasureRules,
    MemorySample,
    Verdict,
    enforce,
    judge,
    leak_mib,
    measure,
    pad,
    remember,
)

C = 16_000.0


def need(persistent_mib: float, ephemeral_mib: float) -> MemoryNeed:
    return MemoryNeed(persistent_mib=persistent_mib, ephemeral_mib=ephemeral_mib)


def samples(*pairs: tuple[float, float]) -> list[MemorySample]:
    """(persistent, ephemeral) of each iteration."""
    return [MemorySample(persistent_mib=p, peak_mib=p + e) for p, e in pairs]


def steady(p: float, e: float, n: int = 8) -> list[MemorySample]:
    return samples(*[(p, e)] * n)


# --- the need ---------------------------------------------------------------------------------------------------------


def test_padding_is_that_of_the_released_code() -> None:
    """P x 1.1 = 110; (110 + 400) x 1.05 = 535.5 in all."""
    padded = pad(need(100, 400), C)
    assert padded.persistent_mib == pytest.approx(110.0)
    assert padded.ephemeral_mib == pytest.approx(425.5)
    assert padded.peak_mib == pytest.approx(535.5)


def test_padding_ends_at_the_capacity() -> None:
    padded = pad(need(100, 400), 520.0)
    assert padded.peak_mib == pytest.approx(520.0)
    assert padded.persistent_mib == pytest.approx(110.0)
    tight = pad(need(100, 400), 504.0)
    assert tight == need(104.0, 400.0)  # never less than was seen
    assert pad(need(100, 400), 499.0) == need(100, 400)  # cannot be admitted, and does not look as if it could


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 2e5))
def test_padding_covers_what_was_seen_and_no_more_than_the_device(p: float, e: float, capacity_mib: float) -> None:
    padded = pad(need(p, e), capacity_mib)
    assert padded.persistent_mib >= p - 1e-6
    assert padded.ephemeral_mib >= e - 1e-6
    if p + e <= capacity_mib:
        assert padded.peak_mib <= capacity_mib + 1e-6
    assert padded.peak_mib <= (p * 1.1 + e) * 1.05 + 1e-6


def test_the_warm_up_does_not_count() -> None:
    """The first iteration searches for kernels (a large workspace), the second makes the optimizer's state."""
    seen = samples((100, 900), (200, 300), (200, 250), (200, 260), (200, 255))
    assert measure(seen[:2], C) is None
    found = measure(seen, C)
    assert found is not None
    assert found.raw == need(200, 260)
    assert found.iterations == 3


def test_a_need_is_settled_when_it_has_stopped_rising() -> None:
    rising = samples((0, 0), (0, 0), *[(100 + 10 * i, 100) for i in range(6)])
    found = measure(rising, C)
    assert found is not None
    assert not found.settled
    settled = [measure([*rising, *steady(150, 100, n)], C) for n in range(4)]
    assert [m.settled for m in settled if m] == [False, False, False, True]
    early = measure(steady(100, 100, 4), C)
    assert early is not None
    assert not early.settled  # two after the warm-up are not three


def test_small_changes_are_none() -> None:
    wobbly = samples(*[(100, 100 + (i % 3) * 0.5) for i in range(8)])
    found = measure(wobbly, C)
    assert found is not None
    assert found.settled
    assert found.raw == need(100, 101)


def test_samples_are_bounded_and_forget_no_maximum() -> None:
    rules = MeasureRules(keep=32)
    kept: tuple[MemorySample, ...] = ()
    everything = [(500.0, 900.0), (100.0, 100.0)] + [
        (100.0 + (7 * i) % 13, 100.0 + (300.0 if i == 20 else 0.0)) for i in range(300)
    ]
    for sample in samples(*everything):
        kept = remember(kept, sample, rules)
        assert len(kept) <= 32
    assert kept[:2] == tuple(samples(*everything[:2]))  # the warm-up keeps its place
    found, true = measure(kept, C, rules), measure(samples(*everything), C, rules)
    assert found is not None
    assert true is not None
    assert found.raw == true.raw == need(112, 400)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_job_within_its_promise_is_left_alone() -> None:
    assert judge([], need(100, 100), C) == Verdict(kind="keep", need=need(100, 100))
    assert judge(steady(100, 100), need(110, 110), C).kind == "keep"
    assert judge(steady(110, 110), need(110, 110), C).kind == "keep"  # exactly


def test_a_liar_grows_by_what_was_seen() -> None:
    verdict = judge(steady(100, 300), need(100, 200), C)
    assert verdict.kind == "grow"
    assert verdict.need == pad(need(100, 300), C)
    assert verdict.why == "it used 100 MiB + 300 MiB in an iteration and was promised 100 MiB + 200 MiB in an iteration"


def test_use_above_the_promise_counts_in_the_warm_up_too() -> None:
    """Somebody else was promised that memory. What was promised and is not used yet may still come (lazy optimizer state)."""
    verdict = judge(samples((100, 900)), need(500, 300), C)
    assert verdict.kind == "grow"
    assert verdict.least == pad(need(100, 900), C)
    assert verdict.need.persistent_mib == 500
    assert verdict.need.ephemeral_mib == pytest.approx(verdict.least.ephemeral_mib if verdict.least else -1)


def test_what_can_never_fit_has_to_go_and_is_told_what_to_do() -> None:
    verdict = judge(steady(9000, 8000), need(100, 100), C)
    assert verdict.kind == "remove"
    assert "smaller batches" in verdict.why
    assert "1.7e+04" not in verdict.why


def test_far_too_large_a_promise_is_made_smaller_once_settled() -> None:
    assert judge(steady(100, 100, 4), need(1000, 1000), C).kind == "keep"
    verdict = judge(steady(100, 100), need(1000, 1000), C)
    assert (verdict.kind, verdict.need) == ("shrink", pad(need(100, 100), C))
    assert "of the 2000 MiB promised" in verdict.why
    # and not again and again
    assert judge(steady(100, 100), verdict.need, C).kind == "keep"


LEAKING = samples((100, 100), (100, 100), *[(100.0 + i, 100.0) for i in range(30)])


def test_a_leak_is_told_while_it_stays_within_the_promise() -> None:
    assert leak_mib(LEAKING) == pytest.approx(1.0)
    verdict = judge(LEAKING, need(200, 100), C)
    assert (verdict.kind, verdict.need) == ("leaks", need(200, 100))
    assert verdict.why == "it keeps 1 MiB more after every iteration (a leak) and is removed in about 71 iterations"


def test_a_leak_beyond_the_promise_is_removed_and_not_fed() -> None:
    verdict = judge(LEAKING, need(120, 100), C)
    assert verdict.kind == "remove"
    assert "a leak" in verdict.why
    # the same overrun without the history of a leak: it grows
    assert judge(steady(129, 100), need(120, 100), C).kind == "grow"


def test_what_is_no_leak() -> None:
    assert leak_mib(LEAKING[:22]) == 0.0  # twenty rises are needed: 2 + 21 iterations
    assert leak_mib(LEAKING[:23]) > 0.0
    assert leak_mib([*LEAKING[:20], LEAKING[19], *LEAKING[20:30]]) == 0.0  # it stood still once
    crawling = samples(*[(1000.0 + 0.01 * i, 100.0) for i in range(40)])
    assert leak_mib(crawling) == 0.0  # 0.02 percent in 20 iterations: a cache that fills
    assert leak_mib([]) == 0.0


def test_a_leak_is_found_whatever_is_forgotten() -> None:
    kept: tuple[MemorySample, ...] = ()
    for i in range(500):
        kept = remember(kept, MemorySample(persistent_mib=100.0 + i, peak_mib=300.0 + i))
    assert leak_mib(kept) == pytest.approx(1.0)
    assert all(b.persistent_mib > a.persistent_mib for a, b in pairwise(kept[-21:]))


@pytest.mark.parametrize(
    "wrong", [{"persistent_mib": -1.0, "peak_mib": 0.0}, {"persistent_mib": 0.0, "peak_mib": float("nan")}]
)
def test_samples_that_are_no_memory_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        MemorySample(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"warmup": -1}, {"settle": 0}, {"leak": 1}, {"persistent_pad": 0.9}, {"total_pad": float("nan")}, {"keep": 10}]
)
def test_rules_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        MeasureRules(**wrong)  # type: ignore[arg-type]


# --- in the table -----------------------------------------------------------------------------------------------------


def full_house() -> LaneTable:
    t = LaneTable(rules=LaneRules(capacity_mib=C))
    for job, p, e in (("A", 1000, 6000), ("B", 1000, 4000)):
        t = t.admit(job, need(p, e)).table
    return t


def outcome(verdict: Verdict, job: str = "B") -> list[tuple[str, str]]:
    step = enforce(full_house(), job, verdict)
    step.table.check()
    return [(d.job, d.kind) for d in step.decisions]


def test_a_verdict_makes_a_job_grow_move_wait_or_leave() -> None:
    def grown(p: float, e: float) -> list[tuple[str, str]]:
        return outcome(judge(steady(p, e), need(1000, 4000), C))

    assert grown(1000, 5000) == [("B", "resized")]
    assert grown(1000, 9000) == [("B", "moved")]  # 10,560 beside A's 6000 is too much; A's lane grows instead
    assert grown(3000, 12_000) == [("B", "paused")]
    assert grown(9500, 5000) == [("B", "expelled")]
    assert grown(1000, 15_500) == [("B", "expelled")]
    assert outcome(judge(steady(1000, 4000), need(1000, 4000), C)) == []


def test_growth_asks_for_less_before_it_is_denied() -> None:
    """Promised 9000 for good of which it uses 500 so far, and more per iteration than was said: both together do not fit beside A, what
    was seen does."""
    t = LaneTable(rules=LaneRules(capacity_mib=C)).admit("A", need(1000, 5000)).table.admit("B", need(9000, 1000)).table
    verdict = judge(samples((500, 7000)), need(9000, 1000), C)
    step = enforce(t, "B", verdict)
    assert [(d.job, d.kind) for d in step.decisions] == [("B", "resized")]
    assert step.table.residents["B"].need == verdict.least


def test_a_removal_tells_people_why() -> None:
    verdict = judge(LEAKING, need(120, 100), C)
    step = enforce(full_house(), "B", verdict)
    assert step.decisions[0].kind == "expelled"
    assert "look for what it holds on to" in step.decisions[0].why
    assert step.table.hindrance("B").startswith("has to leave: ")
