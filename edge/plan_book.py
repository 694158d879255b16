"""What a running box has planned: every plan with its reasons in the database, the newest ones whole, so that they can be explained.

The book listens to the runtime (`edge.runtime.Parts.listeners`), in its loop: it takes what the engine keeps of its newest decision
(`scheduler.engine_state.Decided`) and writes one row. A disk that is full costs the row and nothing else.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from configs.errors import StorageError
from edge.store.plans import PlanStore
from scheduler.commands import ReportPlan
from scheduler.engine_state import Decided

log = logging.getLogger("driftbox")

#: Newest plans that can still be explained: their snapshots are kept in memory, some tens of KiB each with many cameras.
EXPLAINABLE = 30


@dataclass(frozen=True, kw_only=True)
class Made:
    """A plan and what it was made from. number: as in the database, rises with time."""

    number: int
    at_utc: float
    decided: Decided


class PlanBook:
    """newest: what the engine has decided last; policy: what plans are made by, as configured. Thread-safe: one writes, others read."""

    def __init__(
        self, plans: PlanStore, *, newest: Callable[[], Decided | None], policy: Callable[[], str], utc: Callable[[], float]
    ) -> None:
        self.plans = plans
        self._newest, self._policy, self._utc = newest, policy, utc
        self._made: deque[Made] = deque(maxlen=EXPLAINABLE)
        self._number = max((p.number for p in plans.newest(1)), default=0)
        self._failed = False

    @property
    def policy(self) -> str:
        """What plans are made by."""
        return self._policy()

    def heard(self, thing: object) -> None:
        """Listener of the runtime."""
        decided = self._newest()
        if not isinstance(thing, ReportPlan) or decided is None or decided.plan is not thing.plan:
            return
        at_utc, plan = self._utc(), thing.plan
        try:
            self._number = self.plans.add(
                window=thing.window, at_utc=at_utc, policy=self._policy(), expected_quality=plan.expected_quality,
                spare_pct=plan.spare_pct, reasons=thing.reasons,
            )  # fmt: skip
            self._failed = False
        except StorageError as error:
            self._number += 1
            if not self._failed:
                log.warning("plans are not recorded: %s", error)
            self._failed = True
        self._made.append(Made(number=self._number, at_utc=at_utc, decided=decided))

    def made(self) -> tuple[Made, ...]:
        """Those that can be explained, oldest first."""
        return tuple(self._made)

    def find(self, number: int | None) -> Made | None:
        """The plan of this number, None: the newest; None: it can no longer be explained."""
        made = self.made()
        if number is None:
            return made[-1] if made else None
        return next((m for m in made if m.number == number), None)
