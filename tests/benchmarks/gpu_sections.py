"""The sections of `bench gpu`: what each measures on a GPU, with torch, torchvision and numpy only. Run by `bench_gpu.py`.

Every section is a function `(Machine, Table)`. It adds rows as it goes, so that what was measured before a failure or a time limit
is not lost. With `--rehearse` the same code runs on a CPU at toy size: its figures mean nothing, but its mistakes show.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import models.torch_compat  # noqa: F401  (before torchvision, for the rehearsal beside a CPU torch)
from configs.errors import DriftboxError, JobCancelled, JobError
from edge.gpu.base import SWITCH_S, ComputeBackend, Lane, Role
from edge.gpu.nvml import DeviceReader, Survey
from models.yielding import yielding_in_training
from scheduler.salus.types import MemoryNeed
from tests.benchmarks.gpu_static_partitions import measure as measure_partitions

Step = Callable[[], object]


@dataclass(kw_only=True)
class Row:
    """One figure beside its anchor. met: None when there is nothing to reach, or when a rehearsal says nothing."""

    section: str
    what: str
    anchor: str
    target: str
    value: str
    met: bool | None = None


class Table:
    """Rows of a section, written out after each."""

    def __init__(self, section: str, path: Path | None, *, counts: bool) -> None:
        self.rows: list[Row] = []
        self._section, self._path, self._counts = section, path, counts

    def add(self, what: str, value: str, *, anchor: str = "-", target: str = "-", met: bool | None = None) -> None:
        self.rows.append(
            Row(section=self._section, what=what, anchor=anchor, target=target, value=value, met=met if self._counts else None)
        )
        print(f"  {what}: {value}" + ("" if met is None or not self._counts else "  ok" if met else "  MISSED"), flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps([asdict(row) for row in self.rows]), encoding="utf-8")


class Machine:
    """Where the sections run. rehearse: on a CPU, at toy size."""

    def __init__(self, *, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_S)  # as a box does
        if not rehearse:
            torch.backends.cudnn.benchmark = False
            torch.zeros(1, device="cuda")

    def seconds(self, wanted: float) -> float:
        return min(wanted, 0.3) if self.rehearse else wanted

    def sync(self) -> None:
        if not self.rehearse:
            torch.cuda.synchronize()

    def lanes(self, *, mode: Any = "capped", memory_mib: float | None = None, max_lanes: int | None = None) -> ComputeBackend:
        if self.rehearse:
            from edge.gpu.lanes import LaneBackend

            return LaneBackend(capacity_pct=100, mode=mode, memory_mib=memory_mib, max_lanes=max_lanes)
        from edge.gpu.cuda import TorchCudaDevice
        from edge.gpu.cuda_lanes import CudaLanes
        from edge.gpu.executor import Executor

        return Executor(CudaLanes(TorchCudaDevice(0), memory_mib=memory_mib), mode=mode, max_lanes=max_lanes)

    def green(self) -> ComputeBackend | None:
        """None in a rehearsal: a CPU has no SMs."""
        if self.rehearse:
            return None
        from edge.gpu.green import GreenBackend

        return GreenBackend()

    def trainer(self, target_ms: float) -> Callable[..., None]:
        """A training step, forward, backward and update of a convolutional net, of about `target_ms` alone on the device; few large
        kernels, so that the device works and not Python. It takes a checkpoint to call after each layer, forward and backward."""
        width, px = (8, 16) if self.rehearse else (256, 56)
        batch = 1
        step = conv_trainer(self.device, width, px, batch)
        while not self.rehearse and batch < 512 and milliseconds(self, step, 3) < target_ms:
            batch *= 2
            step = conv_trainer(self.device, width, px, batch)
        return step

    def network(self, name: str) -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(weights=None).eval().to(self.device)  # type: ignore[no-any-return]


def conv_trainer(device: str, width: int, px: int, batch: int) -> Callable[..., None]:
    torch.manual_seed(0)
    convs = [layer for _ in range(4) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )
    model = model.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = torch.rand(batch, 3, px, px, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)

    def step(checkpoint: Callable[[], None] | None = None) -> None:
        with yielding_in_training([model], checkpoint):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()

    return step


def milliseconds(machine: Machine, step: Step, times: int) -> float:
    """Median of single, synchronised runs after two to warm up."""
    taken = []
    for n in range(times + 2):
        machine.sync()
        started_s = time.perf_counter()
        step()
        machine.sync()
        if n >= 2:
            taken.append(1000 * (time.perf_counter() - started_s))
    return statistics.median(taken)


@dataclass(kw_only=True)
class Work:
    """A job of a backend. rate_hz: how often it wants to run, None: always. pauses: its step takes the lane's checkpoint, as a box's
    trainings do."""

    step: Callable[..., object]
    role: Role = "learn"
    pauses: bool = False
    rate_hz: float | None = None
    need: MemoryNeed | None = None


class Running:
    """Jobs that run on a backend, each in its thread, until `stop`."""

    def __init__(self, backend: ComputeBackend, works: Mapping[str, Work]) -> None:
        self.backend = backend
        self.latencies_ms: dict[str, list[float]] = {job: [] for job in works}
        self.failed: dict[str, BaseException] = {}
        self._threads = []
        for job, work in works.items():
            lane = backend.open_lane(job, role=work.role, need=work.need)
            thread = threading.Thread(target=self._run, args=(job, work, lane), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, job: str, work: Work, lane: Lane) -> None:
        try:
            next_s = time.perf_counter()
            while True:
                started_s = time.perf_counter()
                with lane.iteration():
                    work.step(lane.checkpoint) if work.pauses else work.step()
                self.latencies_ms[job].append(1000 * (time.perf_counter() - started_s))
                if work.rate_hz is not None:
                    next_s = max(next_s + 1.0 / work.rate_hz, time.perf_counter())
                    time.sleep(max(0.0, next_s - time.perf_counter()))
        except JobCancelled:
            return
        except Exception as error:  # shown in the table; the other jobs go on
            self.failed[job] = error

    def wait_until_warm(self, iterations: int = 5, timeout_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and any(
            len(taken) < iterations and job not in self.failed for job, taken in self.latencies_ms.items()
        ):
            time.sleep(0.05)

    def stop(self) -> None:
        for job in self.latencies_ms:
            self.backend.cancel(job)
        for thread in self._threads:
            thread.join(timeout=10.0)
        for job in self.latencies_ms:
            self.backend.close_lane(job)


@contextmanager
def running(backend: ComputeBackend, works: Mapping[str, Work]) -> Iterator[Running]:
    jobs = Running(backend, works)
    try:
        yield jobs
    finally:
        jobs.stop()
        backend.close()


def p99(values: list[float]) -> float:
    return float(np.percentile(values, 99)) if values else float("nan")


# --- sections ---------------------------------------------------------------------------------------------------------


def facts(machine: Machine, table: Table) -> None:
    table.add("torch / torchvision", f"{torch.__version__} / {_version('torchvision')}")
    if machine.rehearse:
        return
    found = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    table.add("card", f"{found.name}, {found.multi_processor_count} SMs, capability {found.major}.{found.minor}")
    table.add("memory free / total", f"{free / 2**20:.0f} / {total / 2**20:.0f} MiB")
    table.add("CUDA of torch", str(torch.version.cuda))
    try:
        import pynvml
    except ImportError:
        table.add("NVML", "not asked: the package nvidia-ml-py is not installed here")
        return
    with closing(DeviceReader(pynvml)) as reader:
        nvml_facts(table, reader.read(), uuid=f"GPU-{found.uuid}", total_mib=total / 2**20)


def nvml_facts(table: Table, survey: Survey, *, uuid: str, total_mib: float) -> None:
    """What the box reads through NVML, and whether torch's card is among it. uuid, total_mib: that card's, as torch says."""
    if survey.reason:
        table.add("NVML", survey.reason, met=False)
        return
    table.add("driver", survey.driver)
    for gpu in survey.devices:
        f = gpu.facts
        table.add(
            f"NVML, GPU {f.index}",
            f"{f.name}; {f.memory_used_mib:.0f} of {f.memory_total_mib:.0f} MiB used; utilisation {_said(f.utilisation_pct, '%')}; "
            f"{_said(f.temperature_c, 'degrees C')}; {_said(f.power_w, 'W')}; clocks held down: {', '.join(f.throttled) or 'no'}; "
            f"uncorrected ECC errors {_said(f.ecc_errors)}; MIG {'on' if f.mig else 'off'}; {len(gpu.processes)} processes; "
            f"problem: {f.problem or 'none'}",
        )
    same = [f for f in survey.facts if f.uuid == uuid]
    mib = f"{same[0].memory_total_mib:.0f} MiB" if same else "is not there"
    # The driver keeps some of the memory that it counts for itself.
    met = bool(same) and abs(same[0].memory_total_mib - total_mib) <= 0.05 * total_mib
    table.add("NVML: the card that torch uses", f"{mib}, torch: {total_mib:.0f} MiB", target="the same within 5 %", met=met)


def _said(value: float | None, unit: str = "") -> str:
    return "not said" if value is None else f"{value:g} {unit}".rstrip()


def _version(package: str) -> str:
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "absent"


SPLITS = {2: (70, 30), 4: (40, 30, 20, 10), 8: (25, 20, 15, 10, 10, 10, 5, 5)}


def shares(machine: Machine, table: Table) -> None:
    """Promised against received over 10 s, and the progress that was really made (iterations against those of the same job alone)."""
    step_ms = 10.0
    for backend_name in ("lanes", "green"):
        for count in (2, 4, 8) if backend_name == "lanes" else (2, 4):
            backend = machine.lanes() if backend_name == "lanes" else machine.green()
            if backend is None:
                continue
            _shares(machine, table, backend, backend_name, count, step_ms)


def _shares(machine: Machine, table: Table, backend: ComputeBackend, name: str, count: int, step_ms: float) -> None:
    promised = {f"job{n}": float(share) for n, share in enumerate(SPLITS[count])}
    works = {job: Work(step=machine.trainer(step_ms)) for job in promised}
    alone_ms = {job: milliseconds(machine, work.step, 5) for job, work in works.items()}
    backend.set_shares(promised)
    with running(backend, works) as jobs:
        jobs.wait_until_warm()
        span_s = machine.seconds(10.0)
        time.sleep(span_s + machine.seconds(0.5))
        report = backend.report(span_s)
    worst = max(abs(report[job].received_pct - share) for job, share in promised.items())
    progress = {job: report[job].iterations * alone_ms[job] / 10 / report[job].span_s for job in promised}
    table.add(
        f"{name}, {count} jobs: received against promised over 10 s, worst job",
        f"{worst:.2f} points ({', '.join(f'{report[j].received_pct:.1f}/{s:.0f}' for j, s in promised.items())})",
        anchor="MPS percentages are caps, not shares", target="<= 5 points", met=worst <= 5.0,
    )  # fmt: skip
    table.add(
        f"{name}, {count} jobs: iterations done, as pct of what each does alone",
        ", ".join(f"{progress[job]:.1f}/{share:.0f}" for job, share in promised.items())
        + f"; sum {sum(progress.values()):.0f}",
    )
    if jobs.failed:
        table.add(
            f"{name}, {count} jobs: failed", "; ".join(f"{job}: {error}" for job, error in jobs.failed.items()), met=False
        )


def overhead(machine: Machine, table: Table) -> None:
    """The executor's cost per iteration of about 10 ms, against the same loop without it."""
    step = machine.trainer(10.0)
    times = 5 if machine.rehearse else 160
    rounds: list[tuple[float, ...]] = []
    for _ in range(3):
        free_s = _loop_s(machine, step, times, sync_each=False)
        synced_s = _loop_s(machine, step, times, sync_each=True)
        rounds.append(tuple(taken_s / times for taken_s in (free_s, synced_s, *_executor_s(machine, step, times))))
    free_ms, synced_ms, first_ms, executor_ms = (1000 * statistics.median(column) for column in zip(*rounds, strict=True))
    gained = executor_ms / synced_ms - 1
    table.add("iteration alone: free-running / waited for", f"{free_ms:.3f} / {synced_ms:.3f} ms")
    table.add(
        "executor, against a loop that waits for each iteration", f"{100 * gained:+.2f} % ({executor_ms:.3f} ms)",
        anchor="Salus < 10 %", target="<= 2 % at 10 ms", met=gained <= 0.02,
    )  # fmt: skip
    table.add(
        f"the same, a job's first {times} iterations, which are measured more often",
        f"{100 * (first_ms / synced_ms - 1):+.2f} %",
    )
    table.add("executor, against a free-running loop", f"{100 * (executor_ms / free_ms - 1):+.2f} %")
    if not machine.rehearse:
        _waiting(machine, table, step)


def _waiting(machine: Machine, table: Table, step: Step) -> None:
    """What the parts of waiting for an iteration cost: a synchronisation that spins, an event that does, and one that sleeps."""
    taken_ms: dict[str, float] = {}
    for name, blocking in (("an event that spins", False), ("an event that sleeps", True)):

        def waited(blocking: bool = blocking) -> None:
            step()
            event = torch.cuda.Event(enable_timing=True, blocking=blocking)
            event.record()
            event.synchronize()

        taken_ms[name] = 1000 * _loop_s(machine, waited, 60, sync_each=False) / 60
    taken_ms["the whole device"] = 1000 * _loop_s(machine, step, 60, sync_each=True) / 60
    table.add("an iteration and waiting for it", ", ".join(f"{name} {ms:.3f} ms" for name, ms in taken_ms.items()))


def _loop_s(machine: Machine, step: Step, times: int, *, sync_each: bool) -> float:
    machine.sync()
    started_s = time.perf_counter()
    for _ in range(times):
        step()
        if sync_each:
            machine.sync()
    machine.sync()
    return time.perf_counter() - started_s


def _executor_s(machine: Machine, step: Step, times: int) -> tuple[float, float]:
    """Seconds of a job's first `times` iterations after its warm-up, and of as many later ones."""
    backend = machine.lanes(mode="work-conserving")
    backend.set_shares({"a": 100.0})
    lane = backend.open_lane("a", need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=1000.0))
    at_s = []
    for n in range(2 * times + 2):
        if n in (1, times + 1):
            at_s.append(time.perf_counter())
        with lane.iteration():
            step()
    at_s.append(time.perf_counter())
    backend.close()
    return at_s[1] - at_s[0], at_s[2] - at_s[1]


def switch(machine: Machine, table: Table) -> None:
    """From the end of one job's iteration to the first launch of another's that waits for the same memory lane."""
    backend = machine.lanes(mode="work-conserving", max_lanes=1)
    backend.set_shares({"a": 50.0, "b": 50.0})
    step = {job: machine.trainer(5.0) for job in "ab"}
    spans: list[tuple[str, float, float]] = []

    def recorded(job: str) -> Step:
        def run() -> None:
            started_s = time.perf_counter()
            step[job]()
            machine.sync()
            spans.append((job, started_s, time.perf_counter()))

        return run

    need = MemoryNeed(persistent_mib=10.0, ephemeral_mib=500.0 if not machine.rehearse else 5.0)
    with running(backend, {job: Work(step=recorded(job), need=need) for job in "ab"}) as jobs:
        jobs.wait_until_warm()
        spans.clear()
        time.sleep(machine.seconds(4.0))
    ordered = sorted(spans, key=lambda span: span[1])  # the jobs have stopped
    gaps_ms = [1000 * (b[1] - a[2]) for a, b in zip(ordered, ordered[1:], strict=False) if a[0] != b[0]]
    if not gaps_ms:
        table.add("job switch", "never happened", target="<= 1 ms beyond the iteration's end", met=False)
        return
    middle, late = statistics.median(gaps_ms), p99(gaps_ms)
    table.add(
        f"job switch in one memory lane, median / p99 of {len(gaps_ms)}", f"{middle:.3f} / {late:.3f} ms",
        anchor="Salus: within an iteration", target="median <= 1 ms beyond the iteration's end", met=middle <= 1.0,
    )  # fmt: skip


def latency(machine: Machine, table: Table) -> None:
    """A camera alone, and beside a retraining that has 50 % and always wants to run. 100 frames/s, so that p99 is of 600 frames: of 120
    to 180, three runs on one card differed by 40 %."""
    network = machine.network("resnet18")
    frame = torch.rand(1, 3, 224, 224, device=machine.device)

    def infer() -> None:
        with torch.inference_mode():
            network(frame).argmax().item()

    camera = Work(step=infer, role="infer", rate_hz=100.0)
    seconds = machine.seconds(6.0)
    alone_ms = _frames_beside(machine, machine.lanes(), {"camera": camera}, seconds)
    base_ms = p99(alone_ms)
    table.add("inference alone, in its lane: p50 / p99", f"{statistics.median(alone_ms):.3f} / {base_ms:.3f} ms")
    for name, make in (("lanes", machine.lanes), ("green", machine.green)):
        for pauses in (True, False):
            backend = make()
            if backend is None:
                continue
            train = Work(step=machine.trainer(10.0), pauses=pauses)
            taken_ms = _frames_beside(machine, backend, {"camera": camera, "train": train}, seconds)
            change, how = p99(taken_ms) / base_ms - 1, "" if pauses else ", which does not pause between its layers"
            table.add(
                f"{name}: inference p99 while a retraining runs at a 50 % share{how}",
                f"{100 * change:+.1f} % (p50 / p99 {statistics.median(taken_ms):.3f} / {p99(taken_ms):.3f} ms)",
                anchor="Tally: +7.2 %", target="<= +7 %" if pauses else "-", met=change <= 0.07 if pauses else None,
            )  # fmt: skip
    table.add("unmanaged (one default stream each, no shares): p99", f"{_unmanaged_p99(machine, infer, seconds):.3f} ms")


def _frames_beside(machine: Machine, backend: ComputeBackend, works: Mapping[str, Work], seconds: float) -> list[float]:
    backend.set_shares(dict.fromkeys(works, 50.0))
    with running(backend, works) as jobs:
        jobs.wait_until_warm(10)
        jobs.latencies_ms["camera"].clear()
        time.sleep(seconds)
        return list(jobs.latencies_ms["camera"])


def _unmanaged_p99(machine: Machine, infer: Step, seconds: float) -> float:
    stop, train, taken = threading.Event(), machine.trainer(10.0), []

    def loop() -> None:
        while not stop.is_set():
            train()
            machine.sync()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        started_s = time.perf_counter()
        infer()
        taken.append(1000 * (time.perf_counter() - started_s))
        time.sleep(1 / 30)
    stop.set()
    thread.join(timeout=10.0)
    return p99(taken)


def change(machine: Machine, table: Table) -> None:
    """A share change while both jobs run: how long the call takes, and frames missed (a frame that waits > 100 ms)."""
    for name, make in (("lanes", machine.lanes), ("green", machine.green)):
        backend = make()
        if backend is None:
            continue
        works = {
            "camera": Work(step=machine.trainer(2.0), role="infer", rate_hz=25.0),
            "train": Work(step=machine.trainer(10.0)),
        }
        backend.set_shares({"camera": 50.0, "train": 50.0})
        taken_ms = []
        with running(backend, works) as jobs:
            jobs.wait_until_warm()
            jobs.latencies_ms["camera"].clear()
            for n in range(20):
                camera_pct = 40.0 + 5.0 * (n % 5)
                started_s = time.perf_counter()
                backend.set_shares({"camera": camera_pct, "train": 100.0 - camera_pct})
                taken_ms.append(1000 * (time.perf_counter() - started_s))
                time.sleep(machine.seconds(0.2))
            missed = sum(taken > 100.0 for taken in jobs.latencies_ms["camera"])
        table.add(
            f"{name}: share change, median / worst of {len(taken_ms)}", f"{statistics.median(taken_ms):.3f} / {max(taken_ms):.3f} ms",
            anchor="a process restart", target="<= 10 ms", met=max(taken_ms) <= 10.0,
        )  # fmt: skip
        table.add(f"{name}: frames that waited more than 100 ms across 20 changes", str(missed), target="0", met=missed == 0)


def partitions(machine: Machine, table: Table) -> None:
    """Are our partitions disjoint, and are torch's? Two halves, each with a full load, against one half alone."""
    if machine.rehearse:
        return
    from edge.gpu.cuda import TorchCudaDevice
    from edge.gpu.green_driver import DriverSplitter

    cuda = TorchCudaDevice(0)
    splitter = DriverSplitter(cuda)
    count, group_sms = splitter.groups()
    table.add("groups of SMs the driver makes", f"{count} of {group_sms}, of {cuda.properties().sms} SMs")
    made_ms, halves = [], []
    for groups in (tuple(range(count // 2)), tuple(range(count // 2, count))):
        started_s = time.perf_counter()
        halves.append(splitter.make(groups, urgent=False))
        made_ms.append(1000 * (time.perf_counter() - started_s))
    table.add("a context and its stream are made in", f"{max(made_ms):.2f} ms", target="<= 10 ms", met=max(made_ms) <= 10.0)
    ratio = _slowdown([half.stream for half in halves])
    table.add("our halves at once against one alone", f"{ratio:.2f}x", target="<= 1.2x (disjoint)", met=ratio <= 1.2)
    from torch.cuda import green_contexts

    try:
        sms = count // 2 * group_sms
        contexts = [green_contexts.GreenContext.create(num_sms=sms, device_id=0) for _ in range(2)]
        ratio = _slowdown([context.Stream() for context in contexts])
        table.add("torch's GreenContext: two halves at once against one alone", f"{ratio:.2f}x (2x: the same SMs twice)")
    except (AttributeError, RuntimeError, TypeError) as error:
        table.add("torch's GreenContext", f"not usable here: {error}")


def _slowdown(streams: list[Any]) -> float:
    a = torch.rand(4096, 4096, device="cuda")

    def run(used: list[Any]) -> float:
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        for _ in range(10):
            for stream in used:
                with torch.cuda.stream(stream):
                    torch.mm(a, a)
        torch.cuda.synchronize()
        return time.perf_counter() - started_s

    run(streams)
    return statistics.median(run(streams) for _ in range(5)) / statistics.median(run(streams[:1]) for _ in range(5))


RESIDENT = (
    "resnet18", "resnet34", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0", "squeezenet1_1", "mnasnet0_5", "efficientnet_b0", "regnet_y_400mf", "densenet121", "googlenet",
)  # fmt: skip


def resident(machine: Machine, table: Table) -> None:
    """14 networks, three of each, one frame a second each, in 16 GiB (as in the paper), in as many lanes as the card advises."""
    names = [f"{name}#{n}" for n in range(3) for name in RESIDENT][: 3 if machine.rehearse else 42]
    memory_mib = 16_000.0
    backend = machine.lanes(memory_mib=memory_mib, max_lanes=12)
    frame = torch.rand(1, 3, 224, 224, device=machine.device)

    def infer(network: nn.Module) -> Step:
        def run() -> None:
            with torch.inference_mode():
                network(frame).sum().item()

        return run

    works = {name: Work(step=infer(_built(machine, name)), role="infer", rate_hz=1.0) for name in names}
    alone_ms = {name: milliseconds(machine, work.step, 3) for name, work in works.items()}
    backend.set_shares(
        {name: 100.0 * alone_ms[name] / sum(alone_ms.values()) for name in names}
    )  # as a plan does, by what each costs
    with running(backend, works) as jobs:
        jobs.wait_until_warm(3, timeout_s=machine.seconds(30.0))
        for taken in jobs.latencies_ms.values():
            taken.clear()
        time.sleep(machine.seconds(8.0))
        memory = backend.memory()
        admitted = [name for name, known in memory.items() if known.lane is not None]
        served = [name for name in names if jobs.latencies_ms[name]]
        extra = [statistics.median(jobs.latencies_ms[name]) - alone_ms[name] for name in served]
    held = sum(known.need.persistent_mib for known in memory.values() if known.need)
    lanes = len({known.lane for known in memory.values() if known.lane is not None})
    table.add(
        f"low-rate models resident on one device ({len(names)} asked for)",
        f"{len(admitted)} admitted, {len(served)} served, in {lanes} lanes; {held:.0f} MiB for good, of {memory_mib:.0f}",
        anchor="42 on 1 GPU with Salus, on 6 with MPS", target=">= 42", met=len(served) >= 42 and not jobs.failed,
    )  # fmt: skip
    table.add(
        "latency beyond that of the model alone, mean over models", f"{statistics.mean(extra):.2f} ms" if extra else "-",
        anchor="Salus < 5 ms", target="< 5 ms", met=bool(extra) and statistics.mean(extra) < 5.0,
    )  # fmt: skip


def _built(machine: Machine, name: str) -> nn.Module:
    kind = name.partition("#")[0]
    if kind != "googlenet":
        return machine.network(kind)
    import torchvision

    return torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=False).eval().to(machine.device)  # type: ignore[no-any-return]


def memory(machine: Machine, table: Table) -> None:
    """Random jobs, admitted by what their first iterations were measured to take, on a device that is capped for the whole process."""
    rng = random.Random(5)
    limit_mib = 200.0 if machine.rehearse else 6_000.0
    if not machine.rehearse:
        total = torch.cuda.get_device_properties(0).total_memory / 2**20
        torch.cuda.set_per_process_memory_fraction((limit_mib + 2_000.0) / total)
    backend = machine.lanes(memory_mib=limit_mib)
    out_of_memory = others = arrived = finished = 0
    deadline_s = time.monotonic() + machine.seconds(25.0)
    alive: dict[str, threading.Thread] = {}
    lock = threading.Lock()

    def job(name: str, persistent_mib: float, ephemeral_mib: float, iterations: int) -> None:
        nonlocal out_of_memory, others, finished
        lane = backend.open_lane(name)
        held: list[torch.Tensor] = []
        try:
            for _ in range(iterations):
                with lane.iteration():
                    if not held:
                        held.append(torch.empty(int(persistent_mib * 2**18), device=machine.device))
                    parts = [torch.empty(int(ephemeral_mib * 2**18 / 4), device=machine.device).fill_(1.0) for _ in range(4)]
                    sum(part[0] for part in parts)
                    held[0].add_(1.0)
                    del parts  # or they would be held until the next iteration has made its own
        except JobError as error:
            with lock:
                out_of_memory += error.code == "out_of_memory" and "asked for more" in error.message
                others += error.code != "out_of_memory" and not isinstance(error, JobCancelled)
        finally:
            held.clear()
            backend.close_lane(name)
            with lock:
                finished += 1

    while time.monotonic() < deadline_s:
        alive = {name: thread for name, thread in alive.items() if thread.is_alive()}
        if len(alive) < 12:
            arrived += 1
            name = f"job{arrived}"
            size = rng.uniform(0.005, 0.05) * limit_mib, rng.uniform(0.01, 0.25) * limit_mib
            alive[name] = threading.Thread(target=job, args=(name, *size, rng.randint(3, 30)), daemon=True)
            alive[name].start()
            backend.set_shares({name: 100.0 / len(alive) for name in alive})
        time.sleep(0.01)
    for name in alive:
        backend.cancel(name)
    for thread in alive.values():
        thread.join(timeout=5.0)
    backend.close()
    table.add(
        f"out of memory, {arrived} random jobs, 12 at a time, {limit_mib:.0f} MiB",
        f"{out_of_memory} ({finished} ended, {others} other failures)",
        target="0 in the GPU run", met=out_of_memory == 0 and others == 0,
    )  # fmt: skip


def fluid(machine: Machine, table: Table) -> None:
    """Packing overhead alpha with the real number of co-residents."""
    from scheduler.fluid.packing import alpha_of, share_max

    for label, target_ms in (("launch-bound", 1.0), ("device-bound", 20.0)):
        per_iteration_s = []
        for together in range(1, 3 if machine.rehearse else 5):
            backend = machine.lanes(mode="work-conserving")
            backend.set_shares({f"t{n}": 100.0 / together for n in range(together)})
            works = {f"t{n}": Work(step=machine.trainer(target_ms)) for n in range(together)}
            with running(backend, works) as jobs:
                jobs.wait_until_warm(8)
                before = {job: len(taken) for job, taken in jobs.latencies_ms.items()}
                span_s = machine.seconds(2.0)
                time.sleep(span_s)
                done = [len(taken) - before[job] for job, taken in jobs.latencies_ms.items()]
            per_iteration_s.append(span_s / max(1e-9, statistics.mean(done)) if any(done) else float("inf"))
        if not np.isfinite(per_iteration_s).all():
            table.add(f"{label}: packing", "an iteration took longer than the span", met=False)
            continue
        table.add(
            f"{label} trials: seconds per iteration with 1..{len(per_iteration_s)} at once",
            ", ".join(f"{1000 * taken:.2f} ms" for taken in per_iteration_s),
        )
        table.add(
            f"{label} trials: alpha, and how many to pack",
            f"{alpha_of(per_iteration_s):.3f}, c = {share_max(per_iteration_s)}", anchor="Fluid: alpha < c/(c-1) pays",
        )  # fmt: skip
    # Trials on several GPUs train as the box's do, which needs more than torch, torchvision and numpy.
    table.add(
        "beta (data-parallel over GPUs)", "not measured here: python -m pytest -m gpu -s tests/gpu/test_wide_trials_on_gpus.py"
    )


def precision(machine: Machine, table: Table) -> None:
    """`models.precision` as training uses it: speed, and that it learns the same."""
    from models.precision import FLOAT32, Precision, precision_of

    chosen = precision_of(machine.device, "bench")
    results: dict[str, tuple[float, float]] = {}
    for used in (FLOAT32, chosen, Precision(device=machine.device, dtype=torch.bfloat16)):
        results[used.name] = _train_in(machine, used)
    table.add("chosen for this device", chosen.name)
    whole_ms, whole_loss = results["float32"]
    for name, (step_ms, loss) in results.items():
        if name != "float32":
            table.add(f"{name} against float32, a training step", f"{whole_ms / step_ms:.2f}x as fast ({step_ms:.2f} ms)")
            close = abs(loss - whole_loss) <= 0.1 * max(0.05, whole_loss)
            table.add(
                f"{name}: loss after the same steps", f"{loss:.4f} (float32 {whole_loss:.4f})", target="within 10 %", met=close
            )


def _train_in(machine: Machine, used: Any) -> tuple[float, float]:
    torch.manual_seed(0)
    width = 8 if machine.rehearse else 64
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 4),
    ).to(machine.device)  # fmt: skip
    labels = torch.randint(4, (64,), generator=torch.Generator().manual_seed(1)).to(machine.device)
    images = torch.rand(64, 3, 64, 64, generator=torch.Generator().manual_seed(2)).to(machine.device)
    images[:, 0] += labels[:, None, None] * 0.5  # something to learn
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    updates = used.updates(optimiser, max_norm=10.0)

    def step() -> torch.Tensor:
        with used.forward():
            loss = nn.functional.cross_entropy(model(images), labels)
        updates.backward(loss)
        updates.step()
        return loss

    step_ms = milliseconds(machine, step, 5)
    for _ in range(3 if machine.rehearse else 60):
        loss = step()
    return step_ms, float(loss.detach())


def serving(machine: Machine, table: Table) -> None:
    """One picture through torchvision networks: as trained, half precision, compiled, and as a captured graph."""
    for name in ("resnet18",) if machine.rehearse else ("resnet18", "resnet50", "mobilenet_v3_large"):
        network = machine.network(name)
        frame = torch.rand(1, 3, 224, 224, device=machine.device)
        with torch.inference_mode():
            expected = network(frame).float().cpu()
            eager_ms = _served_ms(machine, network, frame)
            table.add(f"{name}: fp32, eager", f"{eager_ms:.3f} ms")
            for label, make in _forms(machine, network, frame).items():
                try:
                    form, given = make()
                    off = float((form(given).float().cpu() - expected).abs().max() / expected.abs().max())
                    form_ms = _served_ms(machine, form, given)
                except Exception as error:  # a form that this machine lacks says so; the others go on
                    table.add(
                        f"{name}: {label}", f"not usable: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                    )
                    continue
                table.add(
                    f"{name}: {label}", f"{form_ms:.3f} ms, {eager_ms / form_ms:.2f}x; largest difference {100 * off:.2f} %"
                )


def _forms(
    machine: Machine, network: nn.Module, frame: torch.Tensor
) -> dict[str, Callable[[], tuple[Callable[..., Any], Any]]]:
    import copy

    half = torch.bfloat16 if machine.rehearse else torch.float16
    last = torch.channels_last
    forms: dict[str, Callable[[], tuple[Callable[..., Any], Any]]] = {
        "fp32, channels last": lambda: (copy.deepcopy(network).to(memory_format=last), frame.contiguous(memory_format=last)),
        "half, channels last": lambda: (
            copy.deepcopy(network).to(half).to(memory_format=last), frame.to(half).contiguous(memory_format=last),
        ),
    }  # fmt: skip
    if not machine.rehearse:
        forms["fp32, compiled"] = lambda: (torch.compile(copy.deepcopy(network), dynamic=False), frame)
        forms["half, compiled"] = lambda: (torch.compile(copy.deepcopy(network).to(half), dynamic=False), frame.to(half))
        forms["half, captured graph"] = lambda: _captured(copy.deepcopy(network).to(half), frame.to(half))
    return forms


def _captured(network: nn.Module, frame: torch.Tensor) -> tuple[Callable[..., Any], Any]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network(frame)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = network(frame)

    def run(given: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return output

    return run, frame


def _served_ms(machine: Machine, form: Callable[..., Any], given: torch.Tensor) -> float:
    return milliseconds(machine, lambda: form(given), 3 if machine.rehearse else 100)


#: A spare process of the box: it has loaded everything, and is given its percentage before it first uses CUDA.
CLIENT = """
import os, sys, time
started = time.perf_counter()
import torch, torchvision
print(time.perf_counter() - started, flush=True)
os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = sys.stdin.readline().strip()
network = torchvision.models.resnet18(weights=None).eval().cuda()
with torch.inference_mode():
    for _ in range(3):
        network(torch.rand(1, 3, 224, 224, device="cuda")).sum().item()
print(torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
sys.stdin.read()
"""


def mps(machine: Machine, table: Table) -> None:
    """A standby with another percentage, from nothing to warm, under a daemon of our own in a private folder; one of others is left."""
    if machine.rehearse:
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        pipe, log = Path(folder, "pipe"), Path(folder, "log")
        pipe.mkdir()
        log.mkdir()
        env = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        try:
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=True, timeout=15, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", b"") or b""
            table.add("MPS daemon", f"cannot be started here: {error} {said.decode(errors='replace').strip()}", met=False)
            return
        try:
            _standby(table, env)
        finally:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    ["nvidia-cuda-mps-control"], input=b"quit\n", env=env, timeout=15, check=False, capture_output=True
                )


def _standby(table: Table, env: Mapping[str, str]) -> None:
    for share in (50, 30):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stdin is not None
        loaded = client.stdout.readline().strip()
        started_s = time.perf_counter()
        with suppress(BrokenPipeError):
            client.stdin.write(f"{share}\n")
            client.stdin.flush()
        sms = client.stdout.readline().strip()
        warm_s = time.perf_counter() - started_s
        _, complaint = client.communicate("", timeout=20)
        if not sms:
            last = complaint.strip().splitlines()
            table.add(f"MPS standby at {share} %", f"failed: {last[-1] if last else 'no word'}", met=False)
            continue
        table.add(
            f"MPS standby at {share} %: a spare process, from its percentage to its third frame",
            f"{warm_s:.2f} s, sees {sms} SMs (importing torch before: {float(loaded):.2f} s)",
            anchor="a process restart", target="<= 5 s", met=warm_s <= 5.0,
        )  # fmt: skip


def mps_static(machine: Machine, table: Table) -> None:
    """Static partitions, where the driver has them."""
    if machine.rehearse:
        return
    measure_partitions(table.add, f"GPU-{torch.cuda.get_device_properties(0).uuid}")


#: name -> (section, seconds it may take)
SECTIONS: dict[str, tuple[Callable[[Machine, Table], None], float]] = {
    "facts": (facts, 40),
    "shares": (shares, 110),
    "overhead": (overhead, 45),
    "switch": (switch, 30),
    "latency": (latency, 60),
    "change": (change, 45),
    "partitions": (partitions, 30),
    "memory": (memory, 60),
    "resident": (resident, 80),
    "mps": (mps, 45),
    "mps_static": (mps_static, 60),
    "fluid": (fluid, 60),
    "precision": (precision, 40),
    "serving": (serving, 90),
}


def run_section(name: str, *, rehearse: bool, path: Path | None) -> list[Row]:
    """Runs one here. A failure is its last row."""
    section, _ = SECTIONS[name]
    table = Table(name, path, counts=not rehearse)
    try:
        section(Machine(rehearse=rehearse), table)
    except DriftboxError as error:
        table.add("stopped", str(error), met=False)
    except Exception as error:
        table.add("stopped", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", met=False)
        raise
    return table.rows
