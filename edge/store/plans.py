"""The plans that a box has made, in words: what was decided, when and why. The newest `KEPT` stay; of the newest `KEPT_WHOLE` also what
they were made from."""

from __future__ import annotations

import json
from dataclasses import dataclass

from configs.errors import redact
from edge.store.store import Store

#: A plan every 20 s for more than half a day.
KEPT = 3000
#: Some tens of KiB each with many cameras.
KEPT_WHOLE = 30


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """reasons: one line per stream, what made the plan necessary first; number: rises with time."""

    number: int
    window: int
    at_utc: float
    policy: str
    expected_quality: float
    spare_pct: int
    reasons: tuple[str, ...]


class PlanStore:
    """Over the box's database. Raises StorageError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, *, window: int, at_utc: float, policy: str, expected_quality: float, spare_pct: int, reasons: tuple[str, ...],
        made_from: str = "",
    ) -> int:  # fmt: skip
        """Records a plan; its number. made_from: all that it was decided on, as `edge.plan_book` writes it."""
        values = (window, at_utc, policy, expected_quality, spare_pct, redact(json.dumps(reasons)))
        with self._store.transaction() as db:
            number = db.execute(
                "INSERT INTO plans (window, at_utc, policy, expected_quality, spare_pct, reasons) VALUES (?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            assert number is not None
            db.execute("DELETE FROM plans WHERE number <= ?", (number - KEPT,))
            if made_from:
                db.execute("INSERT INTO plans_made_from (number, body) VALUES (?, ?)", (number, made_from))
            db.execute("DELETE FROM plans_made_from WHERE number <= ?", (number - KEPT_WHOLE,))
        return int(number)

    def newest(self, limit: int = 50) -> list[StoredPlan]:
        """Newest first."""
        return self._plans("ORDER BY number DESC LIMIT ?", limit)

    def since_window(self, window: int) -> list[StoredPlan]:
        """Those of this window and later ones, oldest first."""
        return self._plans("WHERE window >= ? ORDER BY number", window)

    def made_from(self) -> dict[int, str]:
        """By number, what the newest plans were made from."""
        return {row["number"]: row["body"] for row in self._store.rows("SELECT * FROM plans_made_from ORDER BY number", ())}

    def _plans(self, rest: str, value: int) -> list[StoredPlan]:
        rows = self._store.rows(f"SELECT * FROM plans {rest}", (value,))
        return [
            StoredPlan(
                number=row["number"], window=row["window"], at_utc=row["at_utc"], policy=row["policy"],
                expected_quality=row["expected_quality"], spare_pct=row["spare_pct"], reasons=tuple(json.loads(row["reasons"])),
            )
            for row in rows
        ]  # fmt: skip
