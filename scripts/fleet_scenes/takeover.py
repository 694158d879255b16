"""A box is killed (SIGKILL): the standby, which has what it needs, watches its camera."""

from __future__ import annotations

import signal
import time

from fleet_scenes import reading
from fleet_scenes.demo import Demo, say

LANE = "south/lane"


def takeover(demo: Demo) -> str:
    demo.end_rush()
    demo.wait("lane has a standby", lambda state: reading.has_standby(state, LANE))
    time.sleep(10.0)  # settings and model reach the standby
    owner = reading.owner_of(demo.get("state"), LANE)
    demo.end(owner, signal.SIGKILL)
    began_s = time.monotonic()
    say(f"box {owner} was killed")
    heir = demo.wait("another box watches lane", lambda state: reading.moved_to(state, LANE, owner))
    demo.wait(f"lane is live on {heir}", lambda state: reading.is_live(state, heir, LANE))
    took_s = time.monotonic() - began_s
    demo.picture("takeover", "#/boxes", f"td:has-text('{heir}'), a:has-text('{heir}')")
    return f"{LANE} is watched by {heir} {took_s:.1f} s after {owner} was killed"
