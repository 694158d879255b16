"""What a running box has planned: every plan with its reasons in the database, the newest ones whole, so that they can be explained,
those from before a restart too.

The book listens to the runtime (`edge.runtime.Parts.listeners`), in its loop: it takes what the engine keeps of its newest decision
(`scheduler.engine_state.Decided`) and writes one row. A disk that is full costs the row and nothing else.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from configs.errors import StorageError
from edge.store.plans import KEPT_WHOLE, PlanStore
from scheduler.commands import ReportPlan
from scheduler.engine_state import Decided

log = logging.getLogger("driftbox")

#: Newest plans that can still be explained: their snapshots are kept in memory, and in the database.
EXPLAINABLE = KEPT_WHOLE
_DECIDED = TypeAdapter(Decided)


@dataclass(frozen=True, kw_only=True)
class Made:
    """A plan and what it was made from. number: as in the database, rises with time; policy: what it was made by."""

    number: int
    at_utc: float
    policy: str
    decided: Decided


class PlanBook:
    """newest: what the engine has decided last; policy: what plans are made by, as configured. Thread-safe: one writes, others read."""

    def __init__(
        self, plans: PlanStore, *, newest: Callable[[], Decided | None], policy: Callable[[], str], utc: Callable[[], float]
    ) -> None:
        self.plans = plans
        self._newest, self._policy, self._utc = newest, policy, utc
        self._made: deque[Made] = deque(maxlen=EXPLAINABLE)
        self._before: tuple[Made, ...] | None = None  # those of before the start, read when somebody asks
        self._number = self._began_after = max((p.number for p in plans.newest(1)), default=0)
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
        at_utc, plan, policy = self._utc(), thing.plan, self._policy()
        try:
            self._number = self.plans.add(
                window=thing.window, at_utc=at_utc, policy=policy, expected_quality=plan.expected_quality, spare_pct=plan.spare_pct,
                reasons=thing.reasons, made_from=_written(decided),
            )  # fmt: skip
            self._failed = False
        except StorageError as error:
            self._number += 1
            if not self._failed:
                log.warning("plans are not recorded: %s", error)
            self._failed = True
        self._made.append(Made(number=self._number, at_utc=at_utc, policy=policy, decided=decided))

    def made(self) -> tuple[Made, ...]:
        """Those that can be explained, oldest first."""
        return (*self._of_before(), *self._made)[-EXPLAINABLE:]

    def find(self, number: int | None) -> Made | None:
        """The plan of this number, None: the newest since the box started; None: it can no longer be explained."""
        if number is None:
            return self._made[-1] if self._made else None
        return next((m for m in self.made() if m.number == number), None)

    def _of_before(self) -> tuple[Made, ...]:
        """Whose body is of another release, or damaged, can be read and not explained."""
        if self._before is None:
            bodies = {number: body for number, body in self.plans.made_from().items() if number <= self._began_after}
            rows = [row for row in reversed(self.plans.newest(EXPLAINABLE)) if row.number in bodies]
            found = ((row, _read(bodies[row.number], row.reasons)) for row in rows)
            self._before = tuple(
                Made(number=row.number, at_utc=row.at_utc, policy=row.policy, decided=decided)
                for row, decided in found if decided is not None
            )  # fmt: skip
        return self._before


def _written(decided: Decided) -> str:
    """Without its reasons: they have their own column, in which no credential stands."""
    return json.dumps(_DECIDED.dump_python(replace(decided, reasons=()), mode="json"), separators=(",", ":"))


def _read(body: str, reasons: tuple[str, ...]) -> Decided | None:
    try:
        return replace(_DECIDED.validate_python(json.loads(body)), reasons=reasons)
    except ValueError as error:
        log.info("a plan cannot be explained any more: %s", str(error)[:200])
        return None
