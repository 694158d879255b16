"""What an order means for a box, and what the box says of it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.fleet.handoff import NO_CLOCK_S, Goal, Here, goal_of, word_for
from scheduler.fleet.types import CameraKey, CameraOrder

OWN = CameraKey(home="a", camera="gate")
GUEST = CameraKey(home="b", camera="yard")


def order(camera: CameraKey, role: Any, **more: Any) -> CameraOrder:
    return CameraOrder(camera=camera, role=role, term=4, **more)


@pytest.mark.parametrize(
    ("given", "camera", "goal"),
    [
        (None, OWN, Goal(watch=True, voice="tell")),
        (None, GUEST, Goal(watch=False, voice="silent")),
        (order(OWN, "release"), OWN, Goal(watch=False, voice="silent")),
        (order(GUEST, "release"), GUEST, Goal(watch=False, voice="silent")),
        (order(GUEST, "warm", parcel="a.b.yard.4"), GUEST, Goal(watch=True, voice="hold", begin="a.b.yard.4")),
        (order(GUEST, "own", parcel="a.b.yard.4", after_s=None), GUEST, Goal(watch=True, voice="hold", begin="a.b.yard.4")),
        (order(GUEST, "own", parcel="a.b.yard.4", after_s=9.5), GUEST, Goal(watch=True, voice="tell", after_s=9.5, begin="a.b.yard.4")),
        (order(GUEST, "standby", parcel="a.b.yard.4"), GUEST, Goal(watch=False, voice="silent", keep="a.b.yard.4")),
        (order(OWN, "own", parcel="b.a.gate.5"), OWN, Goal(watch=True, voice="tell", pack="b.a.gate.5")),
    ],
)  # fmt: skip
def test_what_an_order_asks_of_box_a(given: CameraOrder | None, camera: CameraKey, goal: Goal) -> None:
    assert goal_of(given, "a", camera) == goal


@pytest.mark.parametrize(
    ("role", "here", "stage"),
    [
        ("own", Here(state="watched"), "owning"),
        ("own", Here(state="idle"), "owning"),
        ("own", Here(state="absent"), "warming"),
        ("own", Here(state="absent", problem="away"), "warming"),
        ("own", Here(state="absent", problem="no model", final=True), "failed"),
        ("warm", Here(state="watched"), "warming"),
        ("warm", Here(state="watched", frames=3), "warming"),
        ("warm", Here(state="watched", frames=3, clock=True), "warm"),
        ("warm", Here(state="watched", frames=3, for_s=NO_CLOCK_S), "warm"),
        ("warm", Here(state="idle"), "warm"),
        ("warm", Here(state="absent", final=True), "failed"),
        ("standby", Here(state="absent"), "warming"),
        ("standby", Here(state="absent", kept="a.b.yard.4"), "standby"),
        ("standby", Here(state="absent", kept="a.b.yard.3"), "warming"),
        ("standby", Here(state="absent", final=True), "failed"),
        ("release", Here(state="watched"), "released"),
        ("release", Here(state="absent"), "released"),
    ],
)
def test_what_a_box_says(role: Any, here: Here, stage: str) -> None:
    word = word_for(order(GUEST, role, parcel="a.b.yard.4"), here)
    assert (word.stage, word.term, word.problem) == (stage, 4, here.problem)
    assert word.parcel == ("a.b.yard.4" if stage in ("standby", "owning") else "")


def test_times_travel_in_the_word() -> None:
    word = word_for(order(GUEST, "release"), Here(state="absent", first_s=1.0, last_s=2.5))
    assert (word.first_s, word.last_s) == (1.0, 2.5)
