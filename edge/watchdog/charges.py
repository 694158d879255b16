"""What the watchdog looks after in a box: the threads of every camera that is watched now, and the box's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge.runtime import BoxRuntime, Watched
from edge.watchdog.live import Charge, Watchdog
from edge.watchdog.rules import Rules, Seen
from edge.watchdog.systemd import ServiceManager
from scheduler.commands import Note
from streams.pulse import Threaded

#: Opening a camera and reading from it have time-outs of their own; beyond this much more, a thread hangs.
CAMERA = Rules(silent_s=60.0)
#: One prediction of an edge model; waiting for a share is no silence.
INFERENCE = Rules(silent_s=120.0)
#: Nothing of a camera depends on them.
BESIDE = Rules(silent_s=60.0)


class Worker(Protocol):
    """A thread of the box that can be replaced."""

    def is_alive(self) -> bool: ...

    def silent_s(self) -> float: ...

    def begin_anew(self) -> None: ...


def charge_of(name: str, worker: Worker, *, rules: Rules = BESIDE) -> Charge:
    """One of the box's own workers."""
    return Charge(
        name=name,
        look=partial(_look_alive_and_silent, worker),
        restart=worker.begin_anew,
        rules=rules,
    )


def _look_alive_and_silent(worker: Worker) -> Seen:
    return Seen(alive=worker.is_alive(), silent_s=worker.silent_s())


def camera_charges(runtime: BoxRuntime, entry: Watched) -> list[Charge]:
    """The workers of one camera. One that cannot be helped takes its camera into quarantine; the queries only rest."""
    camera, worker, queries, id = entry.camera, entry.worker, entry.queries, entry.camera.id
    give_up = partial(runtime.quarantine, id)

    def look_at_inference() -> Seen:
        return Seen(
            alive=worker.is_alive(),
            silent_s=worker.silent_s(),
            faults=worker.errors,
            done=worker.frames,
            fault=worker.last_error,
        )

    charges = [
        Charge(
            name=f"{id}/inference", camera=id, look=_unless_quarantined(entry, look_at_inference),
            restart=lambda: runtime.restart_inference(id), give_up=give_up, rules=INFERENCE,
        )
    ]  # fmt: skip
    if isinstance(camera, Threaded):
        charges += [
            Charge(
                name=f"{id}/{thread.name}", camera=id, look=_unless_quarantined(entry, partial(_look_at_thread, camera, thread.name)),
                restart=camera.restart, give_up=give_up, rules=CAMERA,
            )
            for thread in camera.threads()
        ]  # fmt: skip
    if queries is not None:
        look_at_queries = partial(_look_alive, queries.is_alive)
        charges.append(Charge(name=f"{id}/queries", camera=id, look=look_at_queries, restart=queries.begin_anew, rules=BESIDE))
    if entry.objects is not None:
        thread = entry.objects.thread
        look_at_objects = partial(_look_alive_and_silent, thread)
        charges.append(Charge(name=f"{id}/objects", camera=id, look=look_at_objects, restart=thread.begin_anew, rules=BESIDE))
    return charges


def follower(runtime: BoxRuntime, watchdog: Watchdog) -> Callable[[], None]:
    """Keeps the watchdog's list that of the cameras that are watched now; to be called before each look."""
    known: dict[str, Watched] = {}

    def follow() -> None:
        watched = dict(runtime.watched)
        for camera_id in [id for id, entry in known.items() if watched.get(id) is not entry]:
            del known[camera_id]
            watchdog.drop(camera_id)
        for camera_id in watched.keys() - known.keys():
            known[camera_id] = watched[camera_id]
            for charge in camera_charges(runtime, watched[camera_id]):
                watchdog.take(charge)

    return follow


def quarantined(runtime: BoxRuntime) -> tuple[str, ...]:
    """Why the box is degraded that is no worker's state: cameras that are left alone."""
    entries = sorted(dict(runtime.watched).items())
    return tuple(f"camera {id} is in quarantine: {entry.quarantined}" for id, entry in entries if entry.quarantined)


def watch_over(runtime: BoxRuntime, *, manager: ServiceManager) -> Watchdog:
    """A watchdog over a box's cameras and its sampler, not started. It ends before the box does."""

    def tell(camera: str, text: str) -> None:
        runtime.note_from_anywhere(Note(stream=camera, code="watchdog", text=text))

    watchdog = Watchdog(
        clock=runtime.parts.clock, loop_silent_s=runtime.pulse.silent_s, tell=tell, conditions=partial(quarantined, runtime),
        manager=manager,
    )  # fmt: skip
    watchdog.take(charge_of("sampler", runtime.parts.sampler))
    watchdog.before_look = follower(runtime, watchdog)
    runtime.before_end.append(watchdog.stop)
    return watchdog


def _look_alive(is_alive: Callable[[], bool]) -> Seen:
    return Seen(alive=is_alive())


def _look_at_thread(camera: Threaded, name: str) -> Seen:
    seen = next(thread for thread in camera.threads() if thread.name == name)
    return Seen(alive=seen.alive, silent_s=seen.silent_s, faults=seen.faults, done=seen.done, fault=seen.fault)


def _unless_quarantined(entry: Watched, look: Callable[[], Seen]) -> Callable[[], Seen]:
    """What is left alone on purpose is not in trouble."""
    return lambda: Seen(alive=True) if entry.quarantined else look()
