"""Explains the plans of a running box with the code that made them: `scheduler.decide.ekya.answer_of`, `scheduler.registry`.

Explaining costs a few plans (docs/decide.md), so it is done once per plan, one at a time, in the thread that asks; never in the loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from configs.errors import ConfigError, UsageError
from edge.plan_book import Made, PlanBook
from edge.why import Alternative, PlanLine, PlanList, WhyView
from scheduler.decide.ekya import answer_of
from scheduler.registry import make_policy
from scheduler.types import Plan, Snapshot

#: Policies that a plan is compared with, and what people read of them.
ALTERNATIVES: dict[str, str] = {
    "optimal": "the best plan there is for one pool of GPUs, found exactly",
    "lookahead": "plans with what the ends of retrainings will free",
    "thief-repeat": "takes quanta from whoever loses least by it until nobody gains",
    "uniform(high,50)": "every camera retrains its best configuration on the same share, half of it for inference",
    "no-retrain": "everything to inference, no model learns",
}
#: Explained plans that are remembered.
REMEMBERED = 8


class BoxWhy:
    """See `edge.why.WhySource`. now_s: a monotonic clock."""

    def __init__(self, book: PlanBook, now_s: Callable[[], float]) -> None:
        self._book, self._now_s = book, now_s
        self._lock = threading.Lock()
        self._explained: OrderedDict[int, WhyView] = OrderedDict()

    def plans(self, limit: int) -> PlanList:
        known = {made.number for made in self._book.made()}
        lines = (
            PlanLine(
                number=p.number, window=p.window, at_utc=p.at_utc, policy=p.policy, expected_quality=p.expected_quality,
                spare_pct=p.spare_pct, reasons=p.reasons, explainable=p.number in known,
            )
            for p in self._book.plans.newest(limit)
        )  # fmt: skip
        return PlanList(plans=tuple(lines))

    def why(self, number: int | None) -> WhyView:
        made = self._book.find(number)
        if made is None:
            raise _unknown(number)
        with self._lock:  # one at a time: the others find the answer remembered
            view = self._explained.get(made.number) or self._explain(made)
            self._explained[made.number] = view
            while len(self._explained) > REMEMBERED:
                self._explained.popitem(last=False)
        newest = self._book.find(None)
        return view.model_copy(update={"in_force": newest is not None and newest.number == made.number})

    def _explain(self, made: Made) -> WhyView:
        started_s = self._now_s()
        decided, name = made.decided, made.policy
        snapshot = decided.snapshot
        answer = answer_of(snapshot, decided.plan, make_policy(name), name=name, explain=True)
        others = tuple(alternative(snapshot, other, words) for other, words in ALTERNATIVES.items() if other != name)
        return WhyView(
            number=made.number, window=decided.window, at_utc=made.at_utc, in_force=True, remaining_s=snapshot.remaining_s,
            capacity_pct=snapshot.capacity_pct, quantum_pct=snapshot.quantum_pct, min_quality=snapshot.min_quality,
            estimate=snapshot.estimate, reasons=decided.reasons, answer=answer, alternatives=others,
            took_ms=1000.0 * (self._now_s() - started_s),
        )  # fmt: skip


def alternative(snapshot: Snapshot, policy: str, words: str) -> Alternative:
    """What `policy` would have decided. One that cannot plan this snapshot (memory, a retraining in progress) says why."""
    try:
        plan: Plan = make_policy(policy)(snapshot)
    except (ConfigError, UsageError, ValueError) as error:
        return Alternative(policy=policy, words=words, problem=str(error))
    return Alternative(
        policy=policy, words=words, expected_quality=plan.expected_quality, below_floor=sum(s.below_floor for s in plan.streams),
        retrainings=sum(s.retrain is not None for s in plan.streams),
    )  # fmt: skip


def _unknown(number: int | None) -> UsageError:
    if number is None:
        return UsageError(
            "no plan was made since the box started", code="not_found", remedy="wait for the window's preparation"
        )
    return UsageError(
        f"plan {number} can no longer be explained", subject=str(number), code="not_found",
        remedy="only the newest plans can; see /api/v1/plans",
    )  # fmt: skip
