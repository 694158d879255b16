"""A customer misses its goal by measurement; what it needs is learned, shares move, it meets its goal by measurement.

Box north watches four places at rush hour and is too small for them: one camera of acme's and three of bolt's. bolt is promised much
and acme little; then it is the other way round. What is looked at is what boxes measured on labels, times what the knobs in force keep
of it by each camera's own profile; never what stands for it before there are labels.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from fleet_scenes import reading
from fleet_scenes.demo import Demo, Failed, say

#: Quality that customers are promised, at first and then.
GOALS = {"acme": (0.4, 0.7), "bolt": (0.95, 0.5)}
#: bolt pays for more: until something is learned, shares are parts by weight.
WEIGHTS = {"acme": 1.0, "bolt": 60.0}
#: Newest measurements whose middle counts, so that one that fell into a moment of labelling does not.
LOOKS = 5


def promise(demo: Demo, which: int) -> None:
    """Each customer's first goal, or its second."""
    for id, goals in GOALS.items():
        words = ("--goal", str(goals[which]), "--measure", "quality", "--weight", str(WEIGHTS[id]))
        demo.fleet("customers", "add", id, *words)


def shares(demo: Demo) -> str:
    goal = GOALS["acme"][1]
    first = demo.wait(f"acme's quality is measured {LOOKS} times", measured, of="view/customers/acme/course", how_far=how_often)
    before = demo.wait("shares", lambda state: reading.given(state, GOALS))
    say(f"{reading.told_numbers(before, ' pct', 1)}; acme's quality is {first:.2f}, and is to be {goal:g}")
    if first >= goal:
        raise Failed(f"acme has {first:.2f} already: nothing is to be moved here")
    promise(demo, 1)
    promised_utc = time.time()
    met = demo.wait(
        f"acme's quality is {goal:g}", lambda course: above(measured(course, since_utc_s=promised_utc), goal),
        of="view/customers/acme/course", how_far=newest_told,
    )  # fmt: skip
    grants = demo.get("state")["grants"]
    after = {g["customer"]: float(g["share_pct"]) for g in grants}
    say(f"{reading.told_numbers(after, ' pct', 1)}; {next(g['reason'] for g in grants if g['customer'] == 'acme')}")
    demo.picture("customer", "#/customers/acme", ".plot")
    told = (
        f"acme: quality {first:.2f} with {before['acme']:.1f} pct, {met:.2f} with {after['acme']:.1f} pct, goal {goal:g}; "
        f"bolt: {before['bolt']:.1f} pct, then {after['bolt']:.1f} pct"
    )
    if after["acme"] <= before["acme"]:
        raise Failed(f"the goal was not met by moved shares: {told}")
    return f"{told}; {time.time() - promised_utc:.0f} s after the promise"


def measured(course: dict[str, Any], *, since_utc_s: float = 0.0) -> float | None:
    """Middle of the newest measurements; None until there are enough."""
    found = reading.newest(course, "value", count=LOOKS, since_utc_s=since_utc_s)
    return statistics.median(found) if found else None


def above(value: float | None, least: float) -> float | None:
    return value if value is not None and value >= least else None


def how_often(course: dict[str, Any]) -> str:
    return f"{len(course['value'])} so far"


def newest_told(course: dict[str, Any]) -> str:
    found = reading.newest(course, "value", count=1)
    return f"{found[0]:.2f}" if found else ""
