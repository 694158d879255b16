"""Learning jobs that compute in processes of their own: the box's side of `edge.gpu.worker_jobs`.

A job's body, its lane and its events are what they are without (`edge.live_jobs`); only its iterations are done elsewhere, one per
request, so that the lane holds them to the job's share. What the process computed is charged to the thread that waits for it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from edge.gpu.remote import START_S, Answer, RemoteClock, WorkerLost, WorkerProcess
from edge.gpu.worker import Header, ModelFile, Settings, load_model
from edge.gpu.worker_jobs import GOLDEN, MODELS
from edge.jobs import HERE, GateResult, JobSteps, LabelResult, ProbeResult, Steps
from edge.samples import FileSamples
from models.detector import Detector
from scheduler.types import EpochReport, Look, ProfileTrial

#: What each kind's last iteration answers.
_RESULTS: dict[str, TypeAdapter[Any]] = {
    "look": TypeAdapter(Look),
    "probe": TypeAdapter(ProbeResult),
    "label": TypeAdapter(LabelResult),
    "profile": TypeAdapter(tuple[tuple[ProfileTrial, ...], int]),
    "retrain": TypeAdapter(ModelFile),
    "gate": TypeAdapter(GateResult),
}
#: Parameters that mean something in this process only: the process has its own, or hears of them by its answers.
_STAY = ("samples", "timer", "yield_point", "on_epoch", "on_note")


class Processes(Protocol):
    """Who has processes for learning jobs (`edge.gpu.mps.MpsBackend`)."""

    @property
    def remote_clock(self) -> RemoteClock: ...

    def keep_weights(self, detector: Detector, job: str) -> ModelFile:
        """A model's weights where the job's process reads them, until the job has ended. Raises StorageError."""

    def keep_golden(self, golden: Detector) -> ModelFile:
        """The same for a golden model, once for all jobs."""

    def take_process(self, job: str, golden: str) -> tuple[WorkerProcess, Settings | None]:
        """A process for the job, if possible one that has this golden model ('': none is needed) loaded. Settings: what it is to become;
        None: it has worked for another job of the kind. Raises EnvironmentLacking, JobError."""

    def starting(self, job: str) -> AbstractContextManager[None]:
        """While the job's process loads what it needs: it gives no sign of life, and does not hang."""

    def give_back_process(self, job: str, worker: WorkerProcess) -> None:
        """The job has ended; the process may be dead. Never raises."""

    def lost_process(self, job: str, error: WorkerLost) -> None:
        """The job's process ended, hangs, or cannot use the GPU any more."""


@dataclass(kw_only=True)
class _Sent:
    """A job's parameters as plain data, and the files that go when it has ended."""

    arguments: Header = field(default_factory=dict)
    golden: str = ""
    files: list[Path] = field(default_factory=list)


def job_steps(processes: Processes, job: str) -> JobSteps:
    """How the kinds of a job named `job` are done by `processes`. They must be given the box's own samples (`FileSamples`)."""
    made = {kind: partial(_steps, processes, job, kind) for kind in _RESULTS}
    return JobSteps(**made, own=_as_it_is)


def _as_it_is(shared: Detector) -> Detector:
    """Only its weights are read."""
    return shared


def _steps(processes: Processes, job: str, kind: str, /, *given: Any, **named: Any) -> Steps[Any]:
    """Raises what the kind raises here, as JobError or WeightsError; WorkerLost; EnvironmentLacking when no process can be had."""
    bound = inspect.signature(getattr(HERE, kind)).bind(*given, **named).arguments
    samples = bound["samples"]
    if not isinstance(samples, FileSamples):
        raise TypeError(f"a process reads samples from files, not from {type(samples).__name__}")
    with _sent(processes, job, bound) as sent:
        worker, settings = processes.take_process(job, sent.golden)
        try:
            answer = yield from _iterations(processes, job, kind, worker, settings, samples.root, sent, bound)
        except WorkerLost as error:
            error.remedy = "the job is given up; see what else is said about it"
            processes.lost_process(job, error)
            raise
        finally:
            processes.give_back_process(job, worker)
        return _result(kind, answer)


def _iterations(
    processes: Processes, job: str, kind: str, worker: WorkerProcess, settings: Settings | None, samples: Path, sent: _Sent,
    bound: Mapping[str, Any],
) -> Steps[Answer]:  # fmt: skip
    """The last iteration's answer."""
    with processes.starting(job):
        worker.ask(
            "job", kind=kind, samples=str(samples), arguments=sent.arguments, settings=asdict(settings) if settings else None,
            part=worker.thread_pct / 100.0, out=str(_out(sent.files[0])), timeout_s=START_S,
        )  # fmt: skip
    while True:
        with processes.remote_clock.elsewhere() as computed:
            answer = worker.ask("step", timeout_s=START_S)
            computed(answer.gpu_s)
        for name, told in (("on_note", answer.header["notes"]), ("on_epoch", map(_epoch, answer.header["epochs"]))):
            for one in told if name in bound else ():
                bound[name](one)
        if "done" in answer.header:
            return answer
        yield


def _epoch(told: Header) -> EpochReport:
    return EpochReport(**told)


def _result(kind: str, answer: Answer) -> Any:
    found = _RESULTS[kind].validate_python(json.loads(answer.arrays[0].tobytes()))
    return load_model(found, "cpu") if isinstance(found, ModelFile) else found


@contextmanager
def _sent(processes: Processes, job: str, bound: Mapping[str, Any]) -> Iterator[_Sent]:
    sent = _Sent()

    def kept(detector: Detector) -> Header:
        file = processes.keep_weights(detector, job)
        sent.files.append(Path(file.path))
        return asdict(file)

    try:
        for name, value in bound.items():
            if name in _STAY:
                continue
            if name == GOLDEN:
                golden = processes.keep_golden(value)
                sent.golden, sent.arguments[name] = golden.path, asdict(golden)
            elif name in MODELS:
                sent.arguments[name] = kept(value)
            elif name == "candidates":
                sent.arguments[name] = [(version, kept(detector)) for version, detector in value]
            else:
                sent.arguments[name] = _plain(value)
        yield sent
    finally:
        for path in sent.files:
            path.unlink(missing_ok=True)
            _out(path).unlink(missing_ok=True)


def _out(weights: Path) -> Path:
    """Where a job that was given these weights puts what it trained."""
    return weights.with_suffix(".out")


def _plain(value: Any) -> Any:
    if hasattr(value, "wants_regions"):  # a task
        return value.name
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
