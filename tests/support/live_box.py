"""A whole box in this process: the real runtime, lanes, journal, database and sample store; scripted cameras and detectors.

Windows last a few seconds of real time. Tests wait for what must happen, however slow the machine, and judge no durations. On a slow
machine the whole box lives slower (`tests.support.pace`): longer windows, and as many fewer frames a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from configs.files import Write
from edge.box_status import RuntimeStatus
from edge.clock import Clock, SystemClock
from edge.gpu.base import ComputeBackend
from edge.gpu.lanes import LaneBackend
from edge.inference import InferenceWorker
from edge.jobs import Scoring, here
from edge.journal import Journal, read_segments
from edge.replay import ReplayResult, replay
from edge.runtime import BoxRuntime, Parts, Watched, infer_job, knob_profiles, trained_form
from edge.samples import FileSamples
from edge.sampling import Sampler
from edge.shadow import ShadowRules
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.wiring.compute import hand_over, processes_of, serve_in_process
from models.detector import Detector
from models.fake import FakeDetector
from models.tasks.base import Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from scheduler.codec import decode
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import Event
from scheduler.types import RetrainConfig
from streams.samples import SampleStore
from tests.support.fakes import TickingCamera
from tests.support.moving import ColourGolden
from tests.support.pace import slowness

T = TypeVar("T", bound=Event)
WAIT_S = 180.0
SHOWN = 25  # newest events in the message of a wait that failed

CONFIG = EngineConfig(
    window_s=2.0, first_window_s=0.8, capacity_pct=100, label_frames=20, gate_frames=10, min_quality=0.0, prep_max_frac=0.6,
    profile_epochs=2, profile_data_frac=1.0, golden_gpu_s=0.001,
    retrain=(RetrainConfig(name="quick", epochs=4, batch=4, lr=0.1),),
)  # fmt: skip


class SettableClock(SystemClock):
    """The machine's clock; a test may set the wall clock."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def utc_s(self) -> float:
        return super().utc_s() + self.offset_s


class LiveBox:
    """cameras: id -> name of its scripted detector (`tests.support.fakes`, put into the zoo by the test)."""

    def __init__(
        self,
        root: Path,
        cameras: dict[str, str],
        *,
        config: EngineConfig = CONFIG,
        golden: Detector | None = None,
        journal_write: Write | None = None,
        cost_s: float = 0.0,
        shelf: type[Shelf] = Shelf,
        classify: Mapping[str, TickingCamera] | None = None,
        backend: Callable[[Clock], ComputeBackend] | None = None,
    ) -> None:
        """config: as on a machine that is quick enough, and so are cost_s (what a prediction is said to cost, 0: as measured) and all
        else in seconds; `slower` tells how much longer it takes here. classify: cameras of the task classification, by id; they are
        labelled by `tests.support.moving.ColourGolden`. backend: makes another one than lanes; who makes it closes it."""
        self.root = root
        self.slower = slowness()
        config = self._slowed(config)
        self.clock: Clock = SettableClock()
        self.backend = backend(self.clock) if backend else LaneBackend(capacity_pct=config.capacity_pct, clock=self.clock)
        processes = processes_of(self.backend)
        if processes is not None:
            self.clock = processes.remote_clock
        self._serve = trained_form if processes is None else partial(serve_in_process, processes)
        self.folder = DataFolder(root)
        self.store = Store(self.folder.db_path)
        self.shelf = shelf(self.folder, self.store, self.clock)
        self.folder.recover(self.store, at_utc=self.clock.utc_s())
        self.samples = SampleStore(self.folder.samples_dir)
        options = {"write": journal_write} if journal_write else {}
        labels_by, colours = golden or FakeDetector(skill=1.0, arch="golden"), ColourGolden()
        self._classify = dict(classify or {})
        self.runtime = BoxRuntime(
            Parts(
                engine=BoxEngine(config), backend=self.backend, journal=Journal(self.folder.events_dir, **options),
                store=self.store, shelf=self.shelf, samples=FileSamples(self.samples),
                sampler=Sampler(self.samples, fps=10.0 / self.slower, clock=self.clock),
                golden_of=lambda id: colours if id in self._classify else labels_by, clock=self.clock, scoring=Scoring(),
                serve=self._serve, serve_later=self._serve, steps=here if processes is None else processes.steps,
            )
        )  # fmt: skip
        if processes is not None:
            processes.hand_over = partial(hand_over, self.runtime)
        self.cameras = {id: self._classify.get(id) or TickingCamera(id) for id in cameras}
        for camera in self.cameras.values():
            camera.slower = self.slower
        self.watched = {id: self._watch(id, arch, cost_s * self.slower) for id, arch in cameras.items()}
        self.events: list[Event] = []
        self.runtime.parts.listeners.append(lambda thing: self.events.append(thing) if isinstance(thing, Event) else None)
        self.status = RuntimeStatus(self.runtime, box="box", site="site")
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="box-loop")

    def _slowed(self, config: EngineConfig) -> EngineConfig:
        return replace(
            config, window_s=config.window_s * self.slower, first_window_s=config.first_window_s * self.slower,
            golden_gpu_s=config.golden_gpu_s * self.slower,
        )  # fmt: skip

    def shadow_by(self, rules: ShadowRules) -> None:
        """How a new model must prove itself; its seconds are longer on a slow machine."""
        self.runtime.swapper.rules = replace(rules, most_s=rules.most_s * self.slower)

    def _watch(self, id: str, arch: str, cost_s: float) -> Watched:
        task: Task = CLASSIFICATION if id in self._classify else DETECTION
        version = self.shelf.ensure(id, arch, task.load)
        lane = self.backend.open_lane(infer_job(id), role="infer")
        detector = self._serve(self.shelf.detector(version.id), id)
        worker = InferenceWorker(self.cameras[id], lane, detector, version.id, clock=self.clock, score_min=0.25, task=task)
        if cost_s:
            worker.cost_s = lambda: None  # type: ignore[method-assign]  # the said cost stays
        fps = 5.0 / self.slower
        return Watched(
            camera=self.cameras[id], worker=worker, fps=fps, height_px=0, title=id, arch=arch,
            knobs=knob_profiles(fps, cost_s or 0.001), profiled_cost_s=cost_s or 0.001, task=task,
        )  # fmt: skip

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            first = max(self.store.next_window(), self.samples.newest_window() + 1)
            asyncio.run(self.runtime.run(list(self.watched.values()), first))
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> LiveBox:
        self.threads_before = set(threading.enumerate())
        self._thread.start()
        self.wait(lambda: self.runtime._loop is not None, "the box starts")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.runtime.parts.journal.close()
        self.store.close()
        self.folder.close()

    def stop(self) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self._thread.is_alive() and time.monotonic() < deadline_s:
            self.runtime.stop()
            self._thread.join(1.0)
        assert not self._thread.is_alive(), "the box does not stop"
        if self._failure is not None:
            raise self._failure

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until it is so; fails after some minutes, naming `what` and what happened last."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert self._thread.is_alive(), f"the box ended while waiting until {what}: {self._failure!r}{self._story()}"
            assert time.monotonic() < deadline_s, f"not within {WAIT_S:.0f} s: {what}{self._story()}"
            time.sleep(0.02)

    def _story(self) -> str:
        """How slow the box lives, what it has noted, and its newest events with the seconds since it began."""
        events = list(self.events)
        begin_s = events[0].at_s if events else 0.0
        told = [f"{event.at_s - begin_s:8.3f} {event!r}"[:400] for event in events[-SHOWN:]]
        notes = [f"{note.code} {note.stream}: {note.text}" for _, note in list(self.runtime.notes)[-SHOWN:]]
        return "\n".join([f"; {self.slower:.1f} times slower than usual; notes:", *notes, f"of {len(events)} events:", *told])

    # --- what it did --------------------------------------------------------------------------------------------------

    def seen(self, kind: type[T], stream: str | None = None) -> list[T]:
        return [
            e for e in list(self.events) if isinstance(e, kind) and (stream is None or getattr(e, "stream", None) == stream)
        ]

    def wait_for(self, kind: type[T], stream: str | None = None, *, count: int = 1) -> T:
        self.wait(lambda: len(self.seen(kind, stream)) >= count, f"{count} {kind.__name__} of {stream or 'the box'}")
        return self.seen(kind, stream)[count - 1]

    def wait_windows(self, count: int) -> None:
        self.wait(lambda: len(self.runtime.outcomes) >= count, f"{count} windows have closed")

    def wait_frames(self, camera: str, count: int = 5) -> None:
        """Until `count` more frames were analysed."""
        worker = self.watched[camera].worker
        target = worker.frames + count
        self.wait(lambda: worker.frames >= target, f"{camera} analyses {count} more frames")

    def noted(self, code: str) -> list[str]:
        return [f"{note.stream}: {note.text}" for _, note in list(self.runtime.notes) if note.code == code]

    def replayed(self) -> ReplayResult:
        """Stops the box and replays everything it wrote."""
        self.stop()
        self.store.check()
        self.runtime.parts.journal.close()
        return replay(self.root)

    def journalled(self) -> list[Event]:
        return [e for s in read_segments(self.folder.events_dir) for e in map(decode, s.lines) if isinstance(e, Event)]
