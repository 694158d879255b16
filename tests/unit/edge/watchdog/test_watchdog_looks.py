"""The live part without a box: scripted workers, time that a test sets; and what systemd hears, over a real socket."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from edge.clock import FakeClock
from edge.watchdog.live import LOOP_SILENT_S, Charge, Watchdog
from edge.watchdog.rules import Mode, Rules, Seen
from edge.watchdog.systemd import ServiceManager
from streams.pulse import Pulse

RULES = Rules(restarts=2, pause_s=2.0, grace_s=1.0, faults=3)


class Worker:
    def __init__(self) -> None:
        self.seen = Seen(alive=True)
        self.restarts = 0
        self.heals = True
        self.given_up: list[str] = []
        self.fails_with: Exception | None = None

    def charge(self, name: str, camera: str = "") -> Charge:
        return Charge(
            name=name, camera=camera, look=self.look, restart=self.restart, give_up=self.given_up.append, rules=RULES
        )  # fmt: skip

    def look(self) -> Seen:
        return self.seen

    def restart(self) -> None:
        self.restarts += 1
        if self.fails_with is not None:
            raise self.fails_with
        if self.heals:
            self.seen = Seen(alive=True)


class Place:
    def __init__(self, **options: object) -> None:
        self.clock = FakeClock()
        self.told: list[tuple[str, str]] = []
        self.watchdog = Watchdog(clock=self.clock, tell=lambda camera, text: self.told.append((camera, text)), **options)  # type: ignore[arg-type]

    def looks(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance_to(self.clock.monotonic_s() + 1.0)
            self.watchdog.look()


def test_a_dead_worker_is_started_anew_and_the_others_are_left_alone() -> None:
    place, dead, well = Place(), Worker(), Worker()
    place.watchdog.take(dead.charge("gate/inference", "gate"))
    place.watchdog.take(well.charge("sampler"))
    dead.seen = Seen(alive=False, fault="ValueError: no")
    place.looks(3)
    assert (dead.restarts, well.restarts) == (1, 0)
    assert place.told == [("gate", "gate/inference is started anew: its thread has ended: ValueError: no")]
    assert place.watchdog.degraded() == ()
    assert {r.name: (r.mode, r.restarts) for r in place.watchdog.reports()} == {
        "gate/inference": (Mode.WELL, 1), "sampler": (Mode.WELL, 0),
    }  # fmt: skip


def test_what_does_not_help_ends_in_quarantine_with_the_reason_told_once() -> None:
    place, poison = Place(), Worker()
    poison.heals = False
    place.watchdog.take(poison.charge("gate/decoder", "gate"))
    poison.seen = Seen(alive=False, fault="RuntimeError: rtsp://me:secret@cam/1")
    place.looks(30)
    assert poison.restarts == 2
    assert len(poison.given_up) == 1
    assert "2 restarts within 60 min did not help" in poison.given_up[0]
    assert [text for text in place.watchdog.degraded() if text.startswith("gate/decoder is given up")]
    assert "secret" not in str([*place.told, poison.given_up, place.watchdog.degraded(), place.watchdog.reports()])
    assert place.watchdog.lift("gate")
    poison.seen, poison.heals = Seen(alive=True), True
    place.looks(1)
    assert place.watchdog.degraded() == ()
    assert not place.watchdog.lift("gate"), "nothing was given up any more"
    assert not place.watchdog.lift("nobody")


def test_a_restart_that_throws_counts_and_does_not_stop_the_watchdog() -> None:
    place, stubborn, well = Place(), Worker(), Worker()
    stubborn.fails_with = RuntimeError("no more threads")
    place.watchdog.take(stubborn.charge("a"))
    place.watchdog.take(well.charge("b"))
    stubborn.seen = well.seen = Seen(alive=False)
    place.looks(20)
    assert stubborn.restarts == 2
    assert well.restarts == 1
    assert any("a is given up" in text for text in place.watchdog.degraded())


def test_a_look_that_throws_is_trouble_of_that_worker_only() -> None:
    place, well = Place(), Worker()

    def broken() -> Seen:
        raise KeyError("gone")

    place.watchdog.take(Charge(name="odd", look=broken, rules=RULES))
    place.watchdog.take(well.charge("well"))
    place.looks(15)
    assert any("odd is given up" in text and "KeyError" in text for text in place.watchdog.degraded())
    assert well.restarts == 0


def test_a_camera_that_is_watched_no_more_is_forgotten() -> None:
    place, worker = Place(), Worker()
    place.watchdog.take(worker.charge("gate/inference", "gate"))
    place.watchdog.drop("gate")
    worker.seen = Seen(alive=False)
    place.looks(3)
    assert (worker.restarts, place.watchdog.reports()) == (0, ())


def test_one_that_is_dropped_while_it_is_looked_at_is_not_started_anew() -> None:
    place, worker = Place(), Worker()

    def look() -> Seen:
        place.watchdog.drop("gate")
        return Seen(alive=False)

    place.watchdog.take(Charge(name="gate/inference", camera="gate", look=look, restart=worker.restart))
    place.looks(2)
    assert worker.restarts == 0


def test_it_lives_on_in_its_own_thread_whatever_happens_before_a_look() -> None:
    clock = FakeClock()
    looked = threading.Event()
    watchdog = Watchdog(clock=clock, look_s=0.001)
    rounds: list[int] = []

    def before_look() -> None:
        rounds.append(1)
        if len(rounds) > 3:
            looked.set()
        raise RuntimeError("made up")

    watchdog.before_look = before_look
    watchdog.start()
    assert looked.wait(60)
    watchdog.stop()


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def heard(tmp_path: Path) -> tuple[ServiceManager, socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.setblocking(False)
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    return ServiceManager(environment), sock


def received(sock: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode())
        except BlockingIOError:
            return found


def test_systemd_hears_that_we_live_only_while_the_loop_comes_round(heard: tuple[ServiceManager, socket.socket]) -> None:
    manager, sock = heard
    assert manager.within_s == 60.0
    silent_s = [0.0]
    place = Place(manager=manager, loop_silent_s=lambda: silent_s[0])
    place.looks(2)
    assert received(sock) == ["WATCHDOG=1", "STATUS=all is well", "WATCHDOG=1"]
    silent_s[0] = LOOP_SILENT_S + 1
    place.looks(2)
    assert received(sock) == ["STATUS=degraded: the box's loop has not come round for more than 30 s"]
    assert place.watchdog.degraded() == ("the box's loop has not come round for more than 30 s",)
    manager.ready()
    manager.stopping()
    manager.status("two\nlines " + "x" * 1000)
    ready, stopping, status = received(sock)
    assert (ready, stopping) == ("READY=1", "STOPPING=1")
    assert "\n" not in status
    assert len(status) < 500


@pytest.mark.parametrize(
    "environment",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/nobody/there"}, {"NOTIFY_SOCKET": "@nobody-here"},
     {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}],
)  # fmt: skip
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment)
    manager.ready()
    manager.alive()
    assert manager.within_s is None


def test_an_abstract_socket_is_found(tmp_path: Path) -> None:
    name = f"driftbox-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert sock.recv(100) == b"READY=1"


# --- pulses -----------------------------------------------------------------------------------------------------------


def test_a_pulse_is_silent_only_when_something_was_due() -> None:
    now = [0.0]
    pulse = Pulse(lambda: now[0])
    now[0] = 1000.0
    assert pulse.silent_s() == 0.0, "it has not begun"
    pulse.beat()
    now[0] += 5
    assert pulse.silent_s() == 5.0
    pulse.rest(for_s=10)
    now[0] += 12
    assert pulse.silent_s() == 2.0
    pulse.rest()
    now[0] += 10**6
    assert pulse.silent_s() == 0.0
