"""Holding jobs to shares of compute: token buckets and exact accounts, told the time, owning no clock and no thread.

A share is a rate: `share_pct / 100` seconds of compute per second. A job's bucket fills at that rate and is emptied by what the
job really used. A piece of work may *start* while the bucket is not in debt and may *run into* debt, which is paid back before
the next piece starts. So, with b(t) the balance in seconds of compute,

    received(t1, t2) = promised(t1, t2) - (b(t2) - b(t1))

as long as nothing is cut off at `burst_s`: the deviation over *any* span is at most the distance between the lowest and the
highest balance, which for a job that is always ready and gets the core when it may run is the cost of its largest unsplittable
piece (plus `slack_s`). Pieces of at most 0.45 s keep every 10 s span within 5 percentage points.

When the machine is too busy to deliver, the balance of a job rises above zero and is kept up to `burst_s`, so that it catches
up later; what goes beyond is lost for ever (a job that starved for a minute must not block the others for a minute). Then
spans may lie up to `burst_s` + one piece above the promise, and as far below as the machine was short.

The modes: `capped` gives each job its share and no more. `work-conserving` lends what nobody uses (shares of jobs that do not
want to run, and capacity promised to nobody) to jobs that do, in proportion to their shares, up to `job_max_pct` each; since
lending only ever *adds* to a job's rate, nobody gets less than promised.

Token buckets are textbook (ATM's leaky bucket); letting a job overdraw and pay back, instead of asking for a cost estimate
first, is what deficit round robin does, and means that nothing has to be predicted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

PacingMode = Literal["capped", "work-conserving"]

#: Balances are compared with this tolerance (seconds of compute): rounding must not cost a wait of nanoseconds.
EPSILON_S = 1e-9


@dataclass(kw_only=True)
class TokenBucket:
    """One job's balance in seconds of compute. rate_pct: how fast it fills now; burst_s: the highest balance it may keep."""

    rate_pct: float
    burst_s: float
    updated_s: float
    balance_s: float = 0.0

    def fill(self, now_s: float, *, cut: bool = True) -> None:
        """Adds what has accrued since the last call. cut=False while a piece runs whose cost is not charged yet: the
        balance passes the cap on paper only, and cutting it there would steal from the job."""
        self.balance_s += self.rate_pct / 100.0 * max(0.0, now_s - self.updated_s)
        self.updated_s = max(self.updated_s, now_s)
        if cut:
            self.balance_s = min(self.balance_s, self.burst_s)

    def charge(self, used_s: float, now_s: float, *, cut: bool = True) -> None:
        """Takes `used_s` seconds of compute, used up to `now_s`."""
        self.fill(now_s, cut=False)
        self.balance_s -= used_s
        if cut:
            self.balance_s = min(self.balance_s, self.burst_s)

    def wait_s(self) -> float:
        """Seconds from the last `fill` until the balance is no longer in debt; 0 now, inf never (at this rate)."""
        if self.rate_pct <= 0:
            return math.inf
        if self.balance_s >= -EPSILON_S:
            return 0.0
        return -self.balance_s / (self.rate_pct / 100.0)


class Account(NamedTuple):
    """Running totals of a job at `at_s`: seconds of compute promised and received, seconds it wanted to run, iterations. A tuple: some
    are made in every iteration, and a frozen dataclass takes four times as long to make."""

    at_s: float
    promised_s: float = 0.0
    received_s: float = 0.0
    backlogged_s: float = 0.0
    iterations: float = 0.0


class Ledger:
    """A bounded history of `Account`s: any span inside it can be asked for, linear between entries.

    keep_s: how far back spans may reach; resolution_s: entries closer than this are merged, which bounds memory to
    keep_s / resolution_s entries whatever the job does.
    """

    def __init__(self, opened_s: float, *, keep_s: float = 60.0, resolution_s: float = 0.01) -> None:
        self._keep_s = keep_s
        self._resolution_s = resolution_s
        self._entries: list[Account] = [Account(at_s=opened_s)]

    def last(self) -> Account:
        return self._entries[-1]

    def entries(self) -> tuple[Account, ...]:
        return tuple(self._entries)

    def add(self, account: Account) -> None:
        """Appends totals; `at_s` must not fall."""
        entries = self._entries
        if len(entries) > 1 and account.at_s - entries[-2].at_s < self._resolution_s:
            entries[-1] = account
            return
        entries.append(account)
        # One entry older than the horizon stays, to interpolate from. Dropped in batches: deleting at the front costs O(n).
        if entries[0].at_s < account.at_s - 2 * self._keep_s:
            del entries[: max(0, bisect_right(entries, account.at_s - self._keep_s, key=_at_s) - 1)]

    def at(self, at_s: float) -> Account:
        """Totals at `at_s`, before anything that happened at that very moment; held outside the history."""
        after = bisect_left(self._entries, at_s, key=_at_s)
        if after == 0:
            return self._entries[0]
        if after == len(self._entries):
            return self._entries[-1]
        return _between(self._entries[after - 1], self._entries[after], at_s)


def _at_s(account: Account) -> float:
    return account.at_s


def _between(a: Account, b: Account, at_s: float) -> Account:
    part = (at_s - a.at_s) / (b.at_s - a.at_s)
    return Account(
        at_s=at_s,
        promised_s=a.promised_s + part * (b.promised_s - a.promised_s),
        received_s=a.received_s + part * (b.received_s - a.received_s),
        backlogged_s=a.backlogged_s + part * (b.backlogged_s - a.backlogged_s),
        iterations=a.iterations + part * (b.iterations - a.iterations),
    )


def worst_deviation_pct(ledger: Ledger, span_s: float, *, from_s: float = -math.inf) -> tuple[float, float]:
    """(lowest, highest) of received minus promised, in percentage points, over *all* spans of `span_s` inside the history.

    Exact: between entries the totals are linear, so the extremes lie where a span begins or ends at an entry.
    (0, 0) when the history is shorter than the span.
    """
    entries = ledger.entries()
    first_s, last_s = max(entries[0].at_s, from_s), entries[-1].at_s
    times = {e.at_s for e in entries} | {e.at_s - span_s for e in entries}
    starts = sorted(t for t in times if first_s <= t and t + span_s <= last_s)
    low = high = 0.0
    for start_s in starts:
        a, b = ledger.at(start_s), ledger.at(start_s + span_s)
        deviation_pct = 100.0 * ((b.received_s - a.received_s) - (b.promised_s - a.promised_s)) / span_s
        low, high = min(low, deviation_pct), max(high, deviation_pct)
    return low, high


def check_shares(shares_pct: Mapping[str, float], capacity_pct: float) -> None:
    """Raises ValueError for a share that is negative or not finite, and for more than `capacity_pct` in all."""
    for job, share_pct in shares_pct.items():
        if not math.isfinite(share_pct) or share_pct < 0:
            raise ValueError(f"share of {job!r} must be 0 or more percent, got {share_pct}")
    total_pct = sum(shares_pct.values())
    if total_pct > capacity_pct + 1e-6:
        raise ValueError(f"shares sum to {total_pct:g} pct, the capacity is {capacity_pct:g} pct")


@dataclass(kw_only=True)
class _Job:
    bucket: TokenBucket
    ledger: Ledger
    share_pct: float = 0.0
    wants: bool = False  # backlogged: waiting for its turn or computing
    runs: bool = False  # inside a piece whose cost is not charged yet
    begun: int = 0  # iterations since `total`
    total: Account = field(default_factory=lambda: Account(at_s=0.0))


class Pacer:
    """Buckets and accounts of all jobs of one device. Every method takes the time; time must not run backwards.

    capacity_pct: what may be promised in total; burst_s: seconds of compute a job may save up; slack_s: debt that is
    overlooked when a piece wants to start (one sleep for many small pieces instead of one each); job_max_pct: what a
    single job can use at most (100: a thread cannot use more than one core).
    """

    def __init__(
        self,
        *,
        capacity_pct: float,
        mode: PacingMode = "capped",
        burst_s: float = 0.25,
        slack_s: float = 0.005,
        job_max_pct: float = 100.0,
        keep_s: float = 60.0,
    ) -> None:
        if mode not in ("capped", "work-conserving"):
            raise ValueError(f"unknown pacing mode {mode!r}; known: capped, work-conserving")
        self.capacity_pct = capacity_pct
        self.mode: PacingMode = mode
        self._burst_s = burst_s
        self._slack_s = slack_s
        self._job_max_pct = job_max_pct
        self._keep_s = keep_s
        self._jobs: dict[str, _Job] = {}
        self._shares: dict[str, float] = {}

    def jobs(self) -> tuple[str, ...]:
        return tuple(self._jobs)

    def open(self, job: str, now_s: float) -> None:
        """A job joins, with the share that the last `set_shares` gave its name (0 when it did not). ValueError: it is there."""
        if job in self._jobs:
            raise ValueError(f"job {job!r} has a lane already")
        bucket = TokenBucket(rate_pct=0.0, burst_s=self._burst_s, updated_s=now_s)
        ledger = Ledger(now_s, keep_s=self._keep_s)
        self._jobs[job] = _Job(bucket=bucket, ledger=ledger, share_pct=self._shares.get(job, 0.0), total=Account(at_s=now_s))
        self._change_rates(now_s)

    def close(self, job: str, now_s: float) -> None:
        if self._jobs.pop(job, None) is not None:
            self._change_rates(now_s)

    def set_shares(self, shares_pct: Mapping[str, float], now_s: float) -> None:
        """Replaces all shares; jobs not named get 0. ValueError (nothing changed): negative, not finite, or too much."""
        check_shares(shares_pct, self.capacity_pct)
        for state in self._jobs.values():
            self._book(state, now_s)
        self._shares = dict(shares_pct)
        for job, state in self._jobs.items():
            state.share_pct = self._shares.get(job, 0.0)
        self._change_rates(now_s)

    def want(self, job: str, now_s: float) -> None:
        """The job is ready to compute from now on."""
        self._set_wants(self._jobs[job], now_s, wants=True)

    def rest(self, job: str, now_s: float) -> None:
        """The job has nothing to compute from now on."""
        self._set_wants(self._jobs[job], now_s, wants=False)

    def wait_s(self, job: str, now_s: float, *, resumed: bool = False) -> float:
        """Seconds until the job's next piece may start if nothing changes: 0 now, inf not before its share changes.
        resumed: it has waited already, so that `slack_s` no longer applies (else it would be used up at every piece)."""
        state = self._jobs[job]
        state.bucket.fill(now_s, cut=not state.runs)
        if not resumed and state.bucket.rate_pct > 0 and state.bucket.balance_s >= -self._slack_s:
            return 0.0
        return state.bucket.wait_s()

    def start(self, job: str, now_s: float, *, iteration: bool = True) -> None:
        """A piece starts. iteration=False: it continues an iteration that was interrupted at a checkpoint."""
        state = self._jobs[job]
        state.runs = True
        state.begun += iteration
        self._book_until(state, now_s)

    def charge(self, job: str, used_s: float, now_s: float, *, done: bool) -> None:
        """`used_s` seconds of compute were used since the last charge. done: the piece has ended."""
        state = self._jobs[job]
        state.runs = not done
        state.bucket.charge(used_s, now_s, cut=True)
        self._book(state, now_s, received_s=used_s)

    def balance_s(self, job: str) -> float:
        """Seconds of compute saved (positive) or owed (negative), as of the job's last event."""
        return self._jobs[job].bucket.balance_s

    def share_pct(self, job: str) -> float:
        return self._jobs[job].share_pct

    def rate_pct(self, job: str) -> float:
        """How fast its bucket fills now: its share, and what is lent to it."""
        return self._jobs[job].bucket.rate_pct

    def ledger(self, job: str, now_s: float) -> Ledger:
        """The job's history up to `now_s`."""
        self._book(self._jobs[job], now_s)
        return self._jobs[job].ledger

    def check(self) -> None:
        """Invariants: promises fit, rates never below promises, no balance above the burst (unless a piece is running)."""
        promised_pct = sum(s.share_pct for s in self._jobs.values())
        assert promised_pct <= self.capacity_pct + 1e-6, f"{promised_pct} pct promised of {self.capacity_pct}"
        for job, state in self._jobs.items():
            assert state.bucket.rate_pct >= state.share_pct - 1e-9, f"{job} fills slower than promised"
            assert state.runs or state.bucket.balance_s <= self._burst_s + EPSILON_S, f"{job} saved more than the burst"

    def _book(self, state: _Job, now_s: float, *, received_s: float = 0.0) -> None:
        total = state.total
        span_s = max(0.0, now_s - total.at_s)
        state.total = Account(
            at_s=max(now_s, total.at_s),
            promised_s=total.promised_s + span_s * state.share_pct / 100.0,
            received_s=total.received_s + received_s,
            backlogged_s=total.backlogged_s + (span_s if state.wants else 0.0),
            iterations=total.iterations + state.begun,
        )
        state.begun = 0
        state.ledger.add(state.total)

    def _book_until(self, state: _Job, now_s: float) -> None:
        """As `_book`, where nothing but time has passed: mostly nothing has, for what wants to run does so at once."""
        if now_s > state.total.at_s:
            self._book(state, now_s)

    def _set_wants(self, state: _Job, now_s: float, *, wants: bool) -> None:
        if state.wants == wants:
            return
        self._book_until(state, now_s)
        state.wants = wants
        if self.mode == "work-conserving":
            self._change_rates(now_s)

    def _change_rates(self, now_s: float) -> None:
        rates = self._rates()
        for job, state in self._jobs.items():
            state.bucket.fill(now_s, cut=not state.runs)
            state.bucket.rate_pct = rates[job]

    def _rates(self) -> dict[str, float]:
        rates = {job: state.share_pct for job, state in self._jobs.items()}
        if self.mode == "capped":
            return rates
        takers = {job: s.share_pct for job, s in self._jobs.items() if s.wants and 0 < s.share_pct < self._job_max_pct}
        wanted_pct = sum(s.share_pct for s in self._jobs.values() if s.wants)
        rates.update(_fill_up(takers, max(0.0, self.capacity_pct - wanted_pct), self._job_max_pct))
        return rates


def _fill_up(shares: Mapping[str, float], left_pct: float, max_pct: float) -> dict[str, float]:
    """Shares plus `left_pct` in proportion to the shares; nobody above `max_pct`, what is cut off goes to the others."""
    rates = dict(shares)
    open_jobs = dict(shares)
    while open_jobs and left_pct > 1e-9:
        factor = left_pct / sum(open_jobs.values())
        full = {job for job, share_pct in open_jobs.items() if rates[job] + share_pct * factor >= max_pct}
        if not full:
            return rates | {job: rates[job] + share_pct * factor for job, share_pct in open_jobs.items()}
        for job in full:
            left_pct -= max_pct - rates[job]
            rates[job] = max_pct
            del open_jobs[job]
    return rates
