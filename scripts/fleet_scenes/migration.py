"""A box is emptied: its cameras are watched elsewhere before it lets them go."""

from __future__ import annotations

import time

from fleet_scenes import reading
from fleet_scenes.demo import Demo, Failed


def migration(demo: Demo) -> str:
    demo.end_rush()
    if reading.owner_of(demo.get("state"), "north/gate") != "north":
        raise Failed("gate is not watched by north, which is to be emptied")
    began_utc = time.time()
    for cam in demo.cameras.of("north"):
        demo.pin("north", cam.id, "")
    demo.fleet("drain", "north")
    owner = demo.wait("gate is watched elsewhere", lambda state: reading.moved_to(state, "north/gate", "north"))
    rows = demo.get("view/history?camera=north/gate")["placements"]
    at_utc_s = {row["phase"]: row["at_utc_s"] for row in reversed(rows) if row["at_utc_s"] >= began_utc}
    if not {"switch", "done"} <= at_utc_s.keys():
        raise Failed(f"the history does not tell how gate moved: {sorted(at_utc_s)}")
    demo.wait(f"gate is live on {owner}", lambda state: reading.is_live(state, owner, "north/gate"))
    demo.picture("history", "#/history", "h2:has-text('Rounds')")
    demo.fleet("drain", "north", "--off")
    done_s, switch_s = at_utc_s["done"] - began_utc, at_utc_s["done"] - at_utc_s["switch"]
    return f"north/gate is watched by {owner}: {done_s:.1f} s after the wish, {switch_s:.1f} s from the switch to its end"
