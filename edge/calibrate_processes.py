"""What `driftbox calibrate` measures where jobs compute in processes of their own (backend `mps`): the same three kinds of job, each in
a client of the percentage that its share gets, as on the box that runs.

What a job does once (its process, its model, its look at the labels) is done in its first iteration, which no measurement counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from edge.calibrate import Subject
from edge.gpu.base import Lane
from edge.gpu.remote import RemoteDetector
from edge.jobs import JobSteps
from edge.samples import FileSamples
from models.detector import Detector
from models.labelled import LabelledImage
from models.tasks.base import Picture, Task
from scheduler.types import Detections, Frame, RetrainConfig
from streams.samples import SampleStore

#: Added to the longest time of a measurement: a process that has to be started first.
PROCESS_S = 60.0
_STREAM = "calibrate"


class Processes(Protocol):
    """Who gives jobs processes of their own (`edge.gpu.mps`)."""

    def serve(self, trained: Detector, job: str) -> RemoteDetector:
        """A model that answers in the job's process."""

    def steps(self, job: str) -> JobSteps:
        """How the job's work is done there."""


def kept_lessons(root: Path, lessons: Sequence[LabelledImage]) -> FileSamples:
    """Lessons where a process reads them. Raises StorageError."""
    store = SampleStore(root)
    for seq, lesson in enumerate(lessons):
        ref = store.add(Frame(stream=_STREAM, seq=seq, captured_s=0.0, captured_utc=0.0, image=lesson.image), 0)
        store.label(ref, lesson.labels, _STREAM, "train")
    return FileSamples(store)


def subjects(
    processes: Processes, task: Task, edge: Detector, golden: Detector, pictures: Sequence[Picture], samples: FileSamples, *,
    names: tuple[str, str], score_min: float,
) -> list[Subject]:  # fmt: skip
    """As `edge.calibrate.subjects`. samples: what training learns from (`kept_lessons`)."""
    looks = len(samples.sampled(_STREAM, 0))

    def served(model: Detector, ask: Callable[[Detector, Picture], list[Detections]]) -> Callable[[Lane], Iterator[None]]:
        def steps(lane: Lane) -> Iterator[None]:
            there = processes.serve(model, lane.job)
            try:
                while True:
                    for picture in pictures:
                        ask(there, picture)
                        yield
            finally:
                there.close()

        return steps

    def train(lane: Lane) -> Iterator[None]:
        config = RetrainConfig(name="calibrate", epochs=1_000_000, batch=4, lr=1e-6)
        steps = processes.steps(lane.job).retrain(
            samples, edge, job=lane.job, stream=_STREAM, window=0, replay_windows=0, config=config, seed=0, task=task,
            timer=lambda: 0.0, on_epoch=lambda report: None,
        )  # fmt: skip
        try:
            for _ in range(looks):
                next(steps)
            while True:
                next(steps)
                yield
        finally:
            steps.close()

    infer = served(edge, lambda model, picture: task.predict(model, [picture], score_min=score_min))
    label = served(golden, lambda model, picture: task.labels(model, [picture], score_min=0.5))
    return [
        Subject(kind="inference", model=names[0], steps=infer),
        Subject(kind="training", model=names[0], steps=train),
        Subject(kind="labelling", model=names[1], steps=label),
    ]
