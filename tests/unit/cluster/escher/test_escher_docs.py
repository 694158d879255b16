"""docs/fleet/escher.md: its program runs, and every policy and helper it names exists, as every one that exists is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cluster.escher import amounts, uses
from cluster.escher.policies import dag, fair_queue, gang, gang_desk, packing, placing, skyline, soft, turnstile
from cluster.escher.table import POLICIES

PAGE = (Path(__file__).parents[4] / "docs" / "fleet" / "escher.md").read_text("utf-8")


def test_the_program_on_the_page_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["held"].held
    assert names["held"].demands == tuple(names["engine"].gang_demands(names["gang"].id, n) for n in range(2))


def test_every_policy_is_named() -> None:
    assert [cls.__name__ for cls in POLICIES.values() if f"`{cls.__name__}`" not in PAGE] == []
    calls = [n for n, f in vars(placing).items() if callable(f) and getattr(f, "__module__", "") == placing.__name__]
    unnamed = [n for n in calls if f"`{n}`" not in PAGE and n not in ("Placing", "pairs")]
    assert unnamed == []


def test_every_helper_on_the_page_exists() -> None:
    modules = (amounts, uses, dag, fair_queue, gang, gang_desk, packing, placing, skyline, soft, turnstile)
    known = {name for module in modules for name in vars(module)} | {cls.__name__ for cls in POLICIES.values()}
    table = PAGE.split("## Policies")[1].split("## What it cannot do")[0]
    named = set(re.findall(r"`([a-z]+_[a-z_]+|[A-Z]\w+)(?:\([^`]*\))?`", table))
    assert len(named) > 15
    assert named - known - {"share_pct"} == set()
