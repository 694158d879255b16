"""What a job's memory really is, from its first iterations, and what becomes of one that needs more than it was promised.

`edge/gpu` measures two numbers per iteration: what the job holds after it (P) and the most that it held inside it; the difference is E
(papers/salus.md section 10). The first iterations do not count: optimizer state, workspaces and library handles are made lazily then.

    need = pad(max P, max E) over the iterations after the warm-up,   pad: P' = 1.1 P;  P' + E' = 1.05 (P' + E), at most C

which is the released code's safety padding (section 7). It is *settled* when the last few iterations have not raised it.

`judge` compares with what was promised. The paper takes (P, E) for granted ("a wrong E breaks S1 for everyone", section 11); all of the
following is ours. Use above the promise makes the job *grow*: `LaneTable.resize` finds room in its lane or in another, lets it wait, or
tells it to leave. A job that holds more after each of many iterations *leaks*: as long as it stays within its promise people are told,
after that it gets nothing more and is removed, for any room it were given would only be eaten too. A promise that is far too large
is made smaller once the need is settled, so that others fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.salus.lanes import LaneTable, Step
from scheduler.salus.types import BYTE_MIB, MemoryNeed


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    """One iteration. persistent_mib: held after it; peak_mib: the most held inside it. Raises ValueError for numbers that are negative
    or not finite."""

    persistent_mib: float
    peak_mib: float

    def __post_init__(self) -> None:
        for name in ("persistent_mib", "peak_mib"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} must be a number of MiB, 0 or more, got {value}")

    @property
    def ephemeral_mib(self) -> float:
        return max(0.0, self.peak_mib - self.persistent_mib)


@dataclass(frozen=True, kw_only=True)
class MeasureRules:
    """warmup: first iterations that do not count. settle: iterations that must not have raised the need for it to be settled;
    steady_frac: a rise by less than this part is none. persistent_pad, total_pad: safety padding. leak: iterations in a row after each
    of which more must be held for it to be a leak, leak_frac: and by what part of P in all. shrink_frac: a promise is made smaller when
    the need is below this part of it. keep: samples that `remember` keeps. Raises ValueError."""

    warmup: int = 2
    settle: int = 3
    steady_frac: float = 0.02
    persistent_pad: float = 1.1
    total_pad: float = 1.05
    leak: int = 20
    leak_frac: float = 0.01
    shrink_frac: float = 0.9
    keep: int = 64

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.settle < 1 or self.leak < 2:
            raise ValueError(f"warmup {self.warmup} must be >= 0, settle {self.settle} >= 1, leak {self.leak} >= 2 iterations")
        if not (self.persistent_pad >= 1 and self.total_pad >= 1):
            raise ValueError(f"padding must be 1 or more, got {self.persistent_pad} and {self.total_pad}")
        if self.keep < self.wanted + self.leak + 2:
            raise ValueError(f"keep must be {self.wanted + self.leak + 2} samples or more, got {self.keep}")

    @property
    def wanted(self) -> int:
        """Samples needed before a need can be settled."""
        return self.warmup + self.settle


@dataclass(frozen=True, kw_only=True)
class Measured:
    """need: padded; raw: as seen; settled: the last iterations have not raised it. iterations: how many counted."""

    need: MemoryNeed
    raw: MemoryNeed
    settled: bool
    iterations: int


def remember(
    samples: Sequence[MemorySample], sample: MemorySample, rules: MeasureRules | None = None
) -> tuple[MemorySample, ...]:
    """The samples with a new one, bounded: the two oldest after the warm-up become one with the larger P and the larger E, so that
    nothing that a need depends on is forgotten."""
    rules = rules or MeasureRules()
    if len(samples) < rules.keep:
        return (*samples, sample)
    old = _raw(samples[rules.warmup : rules.warmup + 2])
    merged = MemorySample(persistent_mib=old.persistent_mib, peak_mib=old.peak_mib)
    return (*samples[: rules.warmup], merged, *samples[rules.warmup + 2 :], sample)


def pad(raw: MemoryNeed, capacity_mib: float, rules: MeasureRules | None = None) -> MemoryNeed:
    """The safety padding of the released code: P x 1.1, then (P + E) x 1.05, together at most the capacity. A need that is above the
    capacity stays as it is: it cannot be admitted, and must not look as if it could."""
    rules = rules or MeasureRules()
    if raw.peak_mib > capacity_mib:
        return raw
    persistent_mib = rules.persistent_pad * raw.persistent_mib
    total_mib = min(capacity_mib, rules.total_pad * (persistent_mib + raw.ephemeral_mib))
    # At the cap E keeps what was seen, and P gives way.
    persistent_mib = min(persistent_mib, total_mib - raw.ephemeral_mib)
    return MemoryNeed(persistent_mib=persistent_mib, ephemeral_mib=max(raw.ephemeral_mib, total_mib - persistent_mib))


def measure(samples: Sequence[MemorySample], capacity_mib: float, rules: MeasureRules | None = None) -> Measured | None:
    """The need that the samples show, oldest first; None while all of them are warm-up."""
    rules = rules or MeasureRules()
    counted = samples[rules.warmup :]
    if not counted:
        return None
    raw = _raw(counted)
    before = counted[: -rules.settle]
    return Measured(
        need=pad(raw, capacity_mib, rules),
        raw=raw,
        settled=len(counted) >= rules.settle and _steady(_raw(before or counted[:1]), raw, rules.steady_frac),
        iterations=len(counted),
    )


def _raw(samples: Sequence[MemorySample]) -> MemoryNeed:
    return MemoryNeed(
        persistent_mib=max(s.persistent_mib for s in samples), ephemeral_mib=max(s.ephemeral_mib for s in samples)
    )


def _steady(before: MemoryNeed, after: MemoryNeed, frac: float) -> bool:
    return (
        after.persistent_mib <= before.persistent_mib * (1 + frac) + BYTE_MIB
        and after.ephemeral_mib <= before.ephemeral_mib * (1 + frac) + BYTE_MIB
    )


def leak_mib(samples: Sequence[MemorySample], rules: MeasureRules | None = None) -> float:
    """MiB per iteration by which a job's persistent memory grows without end: each of its last `leak` iterations left more behind than
    the one before. 0: it does not."""
    rules = rules or MeasureRules()
    held = [s.persistent_mib for s in samples[rules.warmup :]][-(rules.leak + 1) :]
    if len(held) <= rules.leak or any(b <= a + BYTE_MIB for a, b in zip(held, held[1:], strict=False)):
        return 0.0
    grown_mib = held[-1] - held[0]
    return grown_mib / rules.leak if grown_mib > rules.leak_frac * held[0] else 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What should become of a job. keep: nothing; leaks: nothing yet, but people should know; grow, shrink: it needs `need`; remove:
    it has to go. least: of `grow`: what it needs by what has been seen, without what was promised and not used yet. why: a sentence for
    people; "" for keep."""

    kind: Literal["keep", "leaks", "grow", "shrink", "remove"]
    need: MemoryNeed
    least: MemoryNeed | None = None
    why: str = ""


def judge(
    samples: Sequence[MemorySample], promised: MemoryNeed, capacity_mib: float, rules: MeasureRules | None = None
) -> Verdict:
    """A job's samples (oldest first) against what it was promised. Use above the promise counts from the first iteration on, warm-up or
    not: it is memory that somebody else may have been promised."""
    rules = rules or MeasureRules()
    if not samples:
        return Verdict(kind="keep", need=promised)
    used = _raw(samples[-1:])
    over_mib = max(used.persistent_mib - promised.persistent_mib, used.ephemeral_mib - promised.ephemeral_mib)
    rate_mib = leak_mib(samples, rules)
    if over_mib > BYTE_MIB:
        return _over(samples, promised, capacity_mib, rules, rate_mib)
    if rate_mib > 0:
        left = (promised.persistent_mib - used.persistent_mib) / rate_mib
        why = f"it keeps {_mib(rate_mib)} more after every iteration (a leak) and is removed in about {left:.0f} iterations"
        return Verdict(kind="leaks", need=promised, why=why)
    found = measure(samples, capacity_mib, rules)
    if found is not None and found.settled and found.need.peak_mib < rules.shrink_frac * promised.peak_mib:
        why = f"it uses {_use(found.raw)}; of the {_mib(promised.peak_mib)} promised, {_mib(found.need.peak_mib)} are enough"
        return Verdict(kind="shrink", need=found.need, why=why)
    return Verdict(kind="keep", need=promised)


def _over(
    samples: Sequence[MemorySample], promised: MemoryNeed, capacity_mib: float, rules: MeasureRules, rate_mib: float
) -> Verdict:
    """Of a job that has used more than its promise."""
    seen = _raw(samples[rules.warmup :] or samples[-1:])
    last = samples[-1]
    raw = MemoryNeed(
        persistent_mib=max(seen.persistent_mib, last.persistent_mib), ephemeral_mib=max(seen.ephemeral_mib, last.ephemeral_mib)
    )
    more = f"it used {_use(raw)} and was promised {_use(promised)}"
    if rate_mib > 0:
        text = f"{more}; it keeps {_mib(rate_mib)} more after every iteration (a leak): look for what it holds on to"
        return Verdict(kind="remove", need=promised, why=text)
    if raw.peak_mib > capacity_mib:
        text = f"{more}; jobs may hold {_mib(capacity_mib)} in all: give it smaller batches or pictures"
        return Verdict(kind="remove", need=promised, why=text)
    least = pad(raw, capacity_mib, rules)
    return Verdict(kind="grow", need=_hoped(samples, promised, capacity_mib, rules, least), least=least, why=more)


def _hoped(
    samples: Sequence[MemorySample], promised: MemoryNeed, capacity_mib: float, rules: MeasureRules, least: MemoryNeed
) -> MemoryNeed:
    """Before the need is settled, what was promised and not used yet may still come: asked for too, if the device has room for both."""
    found = measure(samples, capacity_mib, rules)
    both = MemoryNeed(
        persistent_mib=max(least.persistent_mib, promised.persistent_mib),
        ephemeral_mib=max(least.ephemeral_mib, promised.ephemeral_mib),
    )
    settled = found is not None and found.settled
    return least if settled or both.peak_mib > capacity_mib else both


def enforce(table: LaneTable, job: str, verdict: Verdict, *, at_s: float = 0.0) -> Step:
    """Brings a verdict about: the job keeps its place, grows, moves, waits, or is told to leave; the step's decisions say which and why.
    Errors: ValueError for a job that is not in the table."""
    if verdict.kind in ("grow", "shrink"):
        step = table.resize(job, verdict.need, at_s=at_s)
        denied = any(d.job == job and d.kind in ("paused", "expelled") for d in step.decisions)
        return table.resize(job, verdict.least, at_s=at_s) if denied and verdict.least else step
    if verdict.kind == "remove":
        return table.expel(job, verdict.why, at_s=at_s)
    return Step(table=table)


def _use(need: MemoryNeed) -> str:
    return f"{_mib(need.persistent_mib)} + {_mib(need.ephemeral_mib)} in an iteration"


def _mib(mib: float) -> str:
    return f"{mib:.4g} MiB" if mib >= 1 else f"{mib:.3f} MiB"
