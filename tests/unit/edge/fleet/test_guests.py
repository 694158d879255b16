"""Camera orders on a box whose cameras are played: parcels, words, restarts, what goes wrong."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import EnvironmentLacking, JobError, UsageError
from edge.fleet.camera_state import CameraState
from edge.fleet.envelope import Member, certificate_of, seal
from edge.fleet.guests import RETRY_S, STATE_S, FleetCameras, State
from edge.fleet.handoff_book import HandoffBook
from edge.fleet.parcels import CameraParcel
from edge.inference import Shown
from edge.queries.carried import QueryStates
from scheduler.fleet.types import CameraKey, CameraOrder, CameraWord
from scheduler.types import Detections, Frame
from tests.support.authority import Authority

OWN = CameraKey(home="a", camera="gate")
GUEST = CameraKey(home="b", camera="yard")


class Cameras:
    """`edge.fleet.guests.BoxCameras` of a box that has the camera `gate`."""

    def __init__(self) -> None:
        self.watched, self.brought = {"gate"}, dict[str, tuple[CameraParcel | None, str]]()
        self.own, self.fails = {"gate"}, list[Exception]()
        self.calls: list[str] = []
        self.sent_as: list[tuple[str, str]] = []
        self.nothing = self.strange = False
        self.queries: QueryStates | None = None
        self.taken, self.said = list[tuple[str, CameraState, float]](), list[str]()

    def state(self, camera: str) -> State:
        return "watched" if camera in self.watched else "absent"

    def known(self, camera: str) -> bool:
        return camera in self.own or camera in self.brought

    def guests(self) -> Sequence[str]:
        return list(self.brought)

    def bring_in(self, camera: str, parcel: CameraParcel | None, sender: str) -> None:
        self.calls.append(f"in {camera}")
        if self.fails:
            raise self.fails.pop(0)
        if camera not in self.own:
            self.brought[camera] = (parcel, sender)
        self.watched.add(camera)

    def take_out(self, camera: str, why: str) -> None:
        self.calls.append(f"out {camera}")
        self.watched.discard(camera)
        self.brought.pop(camera, None)

    def sent(self, camera: str, parcel: str) -> None:
        self.sent_as.append((camera, parcel))

    def pack(self, camera: str, key: CameraKey, parcel: str) -> CameraParcel:
        return CameraParcel(camera=key, document={"url": f"rtsp://user:s3cret@h/{camera}"}, model=b"weights")

    # --- its state

    def leave(self, camera: str, key: CameraKey, to: str, after_s: float) -> CameraState | None:
        self.calls.append(f"leave {camera} to {to}")
        return None if self.nothing else CameraState.of(key, after_s, None, self.queries)

    def check_state(self, camera: str, state: CameraState) -> None:
        if self.strange:
            raise UsageError("the state speaks of objects of other cameras")

    def take_on(self, camera: str, state: CameraState, base_s: float) -> None:
        self.taken.append((camera, state, base_s))

    def say(self, camera: str, text: str) -> None:
        self.said.append(f"{camera}: {text}")


class Post:
    def __init__(self, authority: Authority) -> None:
        self.authority, self.lying, self.away, self.asked = authority, dict[str, bytes](), False, 0

    def certificate_of(self, box: str) -> bytes:
        return (self.authority.folder / f"{box}.pem").read_bytes()

    def put(self, parcel: str, data: bytes) -> None:
        self._ask()
        self.lying[parcel] = data

    def get(self, parcel: str) -> bytes:
        self._ask()
        if parcel not in self.lying:
            raise EnvironmentLacking("not there yet")
        return self.lying[parcel]

    def _ask(self) -> None:
        self.asked += 1
        if self.away:
            raise EnvironmentLacking("the controller does not answer")


class Box:
    def __init__(self, folder: Path, name: str, authority: Authority, post: Post) -> None:
        self.folder, self.name, self.post, self.cameras, self.now_s = folder, name, post, Cameras(), 0.0
        pair = authority.issue(name)
        self.member = Member.of_pem(
            key=pair.key.read_bytes(), certificate=pair.cert.read_bytes(), authority=authority.cert.read_bytes()
        )
        self.changes = 0
        self.start()

    def start(self) -> None:
        """As after a restart: the cameras of its book are there, what it was told stands in the file."""
        self.host = FleetCameras(
            self.name, self.cameras, HandoffBook(self.folder / self.name), member=lambda: self.member, post=self.post, utc_s=time.time,
            now_s=lambda: self.now_s, changed=self._changed,
        )  # fmt: skip

    def _changed(self) -> None:
        self.changes += 1

    def told(self, *orders: CameraOrder) -> tuple[CameraWord, ...]:
        self.host.apply(orders)
        self.host.look()
        return self.host.words()

    def stage(self, camera: CameraKey) -> str:
        return next((word.stage for word in self.host.words() if word.camera == camera), "")


class Two:
    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "ca")
        self.post = Post(authority)
        self.a, self.b = Box(folder, "a", authority, self.post), Box(folder, "b", authority, self.post)
        self.b.cameras.watched, self.b.cameras.own = {"yard"}, {"yard"}

    def packed(self, term: int = 1) -> str:
        """Box b has packed its camera for a."""
        name = f"a.b.yard.{term}"
        self.b.told(order(GUEST, "own", term=0, parcel=name))
        return name


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def order(camera: CameraKey, role: Any, term: int = 1, **more: Any) -> CameraOrder:
    return CameraOrder(camera=camera, role=role, term=term, **more)


def test_a_guest_comes_in_a_parcel_that_only_its_box_can_read(two: Two) -> None:
    name = two.packed()
    assert b"s3cret" not in two.post.lying[name]
    assert two.a.told(order(GUEST, "warm", parcel=name))[0].stage == "warming"
    parcel, sender = two.a.cameras.brought["b--yard"]
    assert sender == "b"
    assert parcel is not None
    assert (parcel.document["url"], parcel.model) == ("rtsp://user:s3cret@h/yard", b"weights")
    assert two.a.host.guests() == {"b--yard": GUEST}
    assert two.a.told(order(GUEST, "own", parcel=name, after_s=None))[0].stage == "owning"
    assert two.a.cameras.calls == ["in b--yard"], "what is watched already is not brought in again"


def test_packing_happens_once(two: Two) -> None:
    two.packed()
    asked = two.post.asked
    two.b.host.look()
    two.packed()
    assert two.post.asked == asked
    assert two.b.cameras.sent_as == [("yard", "a.b.yard.1")], "said when it lies there, and once"


def test_an_own_camera_is_let_go_and_taken_back_when_the_order_goes(two: Two) -> None:
    assert two.b.told(order(GUEST, "release"))[0].stage == "released"
    assert two.b.cameras.watched == set()
    assert two.b.told() == ()
    assert two.b.cameras.watched == {"yard"}
    assert two.b.told() == ()


def test_a_guest_goes_with_its_order_and_its_parcel_too(two: Two) -> None:
    name = two.packed()
    two.a.told(order(GUEST, "own", parcel=name))
    kept = two.a.folder / "a" / "fleet" / "parcels" / name
    assert kept.is_file()
    assert two.a.told() == ()
    assert two.a.cameras.brought == {}
    two.a.host.look()
    assert not kept.exists()
    assert two.a.host.guests() == {}


def test_a_standby_has_all_at_hand_and_takes_over_without_a_controller(two: Two) -> None:
    name = two.packed()
    assert two.a.told(order(GUEST, "standby", parcel=name)) == (CameraWord(camera=GUEST, term=1, stage="standby", parcel=name),)
    assert two.a.cameras.brought == {}
    two.post.away = True
    assert two.a.told(order(GUEST, "own", term=2, parcel=name))[0].stage == "owning"
    assert "b--yard" in two.a.cameras.brought


def test_a_restarted_box_goes_on_as_it_was_told(two: Two) -> None:
    name = two.packed()
    two.a.told(order(GUEST, "own", parcel=name), order(OWN, "release", term=7))
    two.post.away = True
    two.a.cameras.watched |= {"gate"}  # a box opens all cameras of its configuration first
    two.a.start()
    assert two.a.host._gate("gate").voice == "silent", "before anything runs"
    two.a.host.look()
    assert two.a.cameras.watched == {"b--yard"}
    assert {(w.camera, w.term, w.stage) for w in two.a.host.words()} == {(GUEST, 1, "owning"), (OWN, 7, "released")}


@pytest.mark.parametrize("text", ["", "{", '{"orders": 3}', '{"orders": [{"camera": 1}]}'])
def test_a_damaged_book_is_an_empty_one(two: Two, text: str) -> None:
    two.a.told(order(OWN, "release"))
    (two.a.folder / "a" / "fleet" / "cameras.json").write_text(text)
    two.a.start()
    assert two.a.host.words() == ()


def test_a_parcel_that_is_not_there_yet_is_asked_for_again(two: Two) -> None:
    word = two.a.told(order(GUEST, "warm", parcel="a.b.yard.1"))[0]
    assert (word.stage, "not there yet" in word.problem) == ("warming", True)
    two.packed()
    two.a.host.look()
    assert two.a.cameras.brought == {}, "not at once"
    two.a.now_s += RETRY_S
    two.a.host.look()
    assert "b--yard" in two.a.cameras.brought


def test_a_parcel_of_somebody_else_fails_for_good(two: Two) -> None:
    name = two.packed()
    two.post.lying["a.b.yard.9"] = two.post.lying[name]
    word = two.a.told(order(GUEST, "warm", parcel="a.b.yard.9"))[0]
    assert word.stage == "failed"
    assert two.a.cameras.brought == {}


@pytest.mark.parametrize(
    ("error", "stage"),
    [(JobError("busy", code="busy"), "warming"), (UsageError("no such model"), "failed"), (JobError("broken"), "failed")],
)
def test_what_the_box_cannot_do_is_said_and_tried_again(two: Two, error: Exception, stage: str) -> None:
    name = two.packed()
    two.a.cameras.fails = [error]
    assert two.a.told(order(GUEST, "warm", parcel=name))[0].stage == stage
    two.a.now_s += RETRY_S
    two.a.host.look()
    assert two.a.cameras.watched == {"gate", "b--yard"}


def test_a_guest_without_a_parcel_and_a_camera_that_is_not_there(two: Two) -> None:
    assert "nothing to begin from" in two.a.told(order(GUEST, "own"))[0].problem
    lost = CameraKey(home="a", camera="lost")
    word = two.a.told(order(lost, "own"))[0]
    assert (word.stage, "no camera lost" in word.problem) == ("failed", True)


def test_a_name_of_a_parcel_that_is_a_path_is_refused(two: Two) -> None:
    two.post.lying["a.b/../../x"] = b""
    assert two.a.told(order(GUEST, "standby", parcel="a.b/../../x"))[0].stage == "failed"


def test_an_order_of_a_lower_term_is_of_the_past(two: Two) -> None:
    two.a.told(order(OWN, "release", term=5))
    two.a.told(order(OWN, "own", term=4))
    assert two.a.stage(OWN) == "released"


def test_guests_that_a_kill_has_left_go(two: Two) -> None:
    two.a.cameras.brought["b--yard"] = (None, "")
    two.a.cameras.watched.add("b--yard")
    two.a.host.look()
    assert two.a.cameras.watched == {"gate"}


def test_the_controller_is_told_when_a_word_changes_and_not_all_the_time(two: Two) -> None:
    name = two.packed()
    two.a.told(order(GUEST, "standby", parcel=name))
    before = two.a.changes
    two.a.host.look()
    assert two.a.changes == before
    two.a.told(order(GUEST, "own", term=2, parcel=name))
    assert two.a.changes == before + 1


# --- the state of a camera's objects and counts -----------------------------------------------------------------------

CLOCK_S = 1_800_000_000.0
STATE = "a.b.yard.1.state"


class Moving:
    """Camera `yard` of box b on its way to a: both have analysed ten frames, b has told them, a has kept them."""

    def __init__(self, two: Two) -> None:
        self.two, self.parcel, self.told = two, two.packed(), list[int]()
        two.b.told(order(GUEST, "own", term=0))
        two.a.told(order(GUEST, "warm", parcel=self.parcel))
        two.a.told(order(GUEST, "own", parcel=self.parcel, after_s=None))
        source = two.b.host.through("yard", lambda s: None, lambda: False)
        self.look = two.a.host.through("b--yard", lambda s: self.told.append(s.frame.seq), lambda: False)
        for number in range(1, 11):
            source(frame(number))
            self.look(frame(number))

    def released(self) -> CameraWord:
        self.two.b.host.apply([order(GUEST, "release", state=STATE)])
        return self.two.b.host.words()[0]

    def owned(self, after_s: float = CLOCK_S + 1.0) -> list[str]:
        """What is said when the target has heard of the state, and its thread has looked."""
        a = self.two.a
        a.host.apply([order(GUEST, "own", parcel=self.parcel, after_s=after_s, state=STATE)])
        a.host.look_at_states()
        return a.cameras.said


def frame(number: int) -> Shown:
    none = Detections(xyxy=np.zeros((0, 4), np.float32), score=np.zeros(0, np.float32), class_id=np.zeros(0, np.int64))
    made = Frame(
        stream="yard", seq=number, captured_s=50 + number / 10, captured_utc=CLOCK_S, image=np.zeros((4, 4, 3), np.uint8),
        camera_s=CLOCK_S + number / 10,
    )  # fmt: skip
    return Shown(frame=made, detections=none, version="v", cost_s=0.0, lag_s=0.0)


@pytest.fixture
def moving(two: Two) -> Moving:
    return Moving(two)


def test_the_state_is_sent_before_the_source_is_released_and_taken_on_before_a_frame_is_told(moving: Moving) -> None:
    source, target = moving.two.b, moving.two.a
    word = moving.released()
    assert (word.stage, word.last_s) == ("leaving", CLOCK_S + 1.0)
    source.host.look()
    assert "yard" in source.cameras.watched, "it is not closed before its state was made"
    source.host.look_at_states()
    assert source.stage(GUEST) == "released"
    assert source.changes > 0
    source.host.look()
    assert source.cameras.calls == ["leave yard to a", "out yard"]
    moving.look(frame(11))
    assert moving.owned() == []
    moving.look(frame(12))
    wait_until(lambda: moving.told == [11, 12])
    ((camera, state, base_s),) = target.cameras.taken
    assert (camera, state.camera, state.after_s) == ("b--yard", "b/yard", CLOCK_S + 1.0)
    assert base_s == pytest.approx(51.0)
    target.host.look_at_states()
    assert len(target.cameras.taken) == 1


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_a_state_that_cannot_be_sent_is_given_up_and_the_source_is_released(moving: Moving) -> None:
    source = moving.two.b
    moving.two.post.away = True
    assert moving.released().stage == "leaving"
    source.host.look_at_states()
    assert source.stage(GUEST) == "leaving"
    source.now_s += STATE_S
    source.host.look_at_states()
    assert source.stage(GUEST) == "released"
    assert source.cameras.calls == ["leave yard to a"], "made once"
    assert "begin anew on box a: the controller does not answer" in source.cameras.said[0]


def test_a_source_that_has_nothing_to_hand_over_says_nothing_and_is_released(moving: Moving) -> None:
    moving.two.b.cameras.nothing = True
    moving.released()
    moving.two.b.host.look_at_states()
    assert moving.two.b.stage(GUEST) == "released"
    assert STATE not in moving.two.post.lying
    assert moving.two.b.cameras.said == []


def test_a_state_that_does_not_come_begins_anew(moving: Moving) -> None:
    assert moving.owned() == []
    moving.two.a.now_s += STATE_S
    moving.look(frame(11))
    wait_until(lambda: moving.told == [11])
    moving.two.a.host.look_at_states()
    assert "b--yard: its objects and counts begin anew" in moving.two.a.cameras.said[0]
    assert moving.two.a.cameras.taken == []


@pytest.mark.parametrize(
    "hostile", ["other camera", "other release", "nan", "large", "text", "other sender", "later frame", "objects"]
)
def test_a_hostile_state_is_refused_and_the_migration_goes_on(moving: Moving, hostile: str) -> None:
    post, sender, after_s = moving.two.post, moving.two.b.member, CLOCK_S + 1.0
    good = {"release": 1, "camera": "b/yard", "after_s": after_s, "objects": None, "queries": None}
    contents = {
        "other camera": good | {"camera": "b/gate"}, "other release": good | {"release": 2}, "nan": good | {"after_s": math.nan},
        "later frame": good | {"after_s": after_s + 3600},
    }  # fmt: skip
    content = json.dumps(contents.get(hostile, good)).encode()
    content = {"large": b" " * (9 * 2**20) + content, "text": b"no state at all"}.get(hostile, content)
    if hostile == "other sender":
        pair = post.authority.issue("c")
        sender = Member.of_pem(
            key=pair.key.read_bytes(), certificate=pair.cert.read_bytes(), authority=post.authority.cert.read_bytes()
        )
    moving.two.a.cameras.strange = hostile == "objects"
    post.lying[STATE] = seal(
        content, parcel=STATE, sender=sender, addressee=certificate_of(post.certificate_of("a")), to="a", now_utc_s=time.time()
    )
    (said,) = moving.owned()
    assert said.startswith("b--yard: its objects and counts begin anew: ")
    moving.look(frame(11))
    wait_until(lambda: moving.told == [11])
    assert moving.two.a.cameras.taken == []
    assert moving.two.a.stage(GUEST) == "owning"


def test_a_source_that_gets_the_camera_back_goes_on_with_what_nobody_took(moving: Moving) -> None:
    source, heard = moving.two.b, list[int]()
    moving.released()
    source.host.look_at_states()
    source.host.look()
    look = source.host.through("yard", lambda s: heard.append(s.frame.seq), lambda: False)
    source.host.apply([order(GUEST, "own", term=2)])
    look(frame(14))
    assert heard == [14]
    assert [(camera, state.after_s) for camera, state, _ in source.cameras.taken] == [("yard", CLOCK_S + 1.0)]
    assert source.cameras.said == []


def test_a_restarted_box_does_not_take_on_an_old_state(moving: Moving) -> None:
    moving.released()
    moving.two.b.host.look_at_states()
    moving.owned()
    moving.two.a.cameras.taken.clear()
    moving.two.a.start()
    moving.two.a.host.look_at_states()
    look = moving.two.a.host.through("b--yard", lambda s: moving.told.append(s.frame.seq), lambda: False)
    look(frame(20))
    wait_until(lambda: 20 in moving.told)
    assert moving.two.a.cameras.taken == []
    assert moving.two.a.cameras.said == []
