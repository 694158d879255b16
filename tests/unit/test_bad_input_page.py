"""docs/bad-input.md names tests; they exist, and every row has some."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_named_test_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert missing == []


def test_every_row_has_a_test() -> None:
    lines = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| what goes wrong", "|---"))]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row)] == []
