"""A job's compute in a process of its own: `python -m edge.gpu.worker`, driven over a socket by `edge.gpu.remote`.

Frames go both ways: a JSON header, then the raw bytes of arrays; nothing is pickled. Pictures lie in memory that both processes see,
so a frame is copied once. One request is answered before the next is read, so what lies there does not change meanwhile.

The process is made before it is known what it will be: CUDA reads a client's percentage when it is first used, not when the process
starts, so a spare one with torch loaded becomes any job's in a fraction of the time (`load` and `job` bring the environment along).
What a learning job does in it: `edge.gpu.worker_jobs`.

It ends with the box, also when that is killed: a thread of it sees the socket hang up, gives the work in hand `GRACE_S`, and ends the
process. Should that thread be stuck as well (a library that holds Python's lock), an alarm that it keeps putting off goes off. The
kernel's own way (PR_SET_PDEATHSIG) will not do: it goes by the thread that made the process, and those come and go.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from configs.errors import DriftboxError, JobError, WeightsError, redact

if TYPE_CHECKING:
    from edge.gpu.worker_jobs import RunningJob
    from models.detector import Detector, DetectorSpec
    from scheduler.types import Detections

#: Bytes of a header and of arrays beside it; more is a fault of the other side, not a message.
HEADER_MAX, BODY_MAX = 1 << 20, 1 << 28
#: Room for pictures; the kernel gives memory only for what is used of it.
SHARED_BYTES = 1 << 26
#: Seconds that work in hand has to end when the box has gone; seconds without a sign of life from the watching thread.
GRACE_S, ALARM_S = 2.0, 120
#: How CUDA's libraries say that a context is beyond help. Being out of memory is not that.
POISONED = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR", "CUDNN_STATUS_EXECUTION_FAILED")
_LENGTHS = struct.Struct("<II")

Header = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A detector as plain data. path: safetensors; sha256: of that file, '': not checked. enlarges: as the detector's own, where it has
    that (`edge.resolution.at_own_size`). builder: 'module:function' that makes the detector of (spec, content of the file, device)."""

    arch: str
    input_px: int
    path: str
    sha256: str = ""
    pruned: bool = False
    enlarges: bool = True
    builder: str = "edge.gpu.worker:build"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a process becomes. env: set before CUDA is used; device: as torch names it; client: 'module:function' that stands in for
    the device ('': the device itself)."""

    env: dict[str, str]
    device: str = "cpu"
    client: str = ""


class ChannelClosed(Exception):
    """The other process has gone."""


class Channel:
    """Frames over a socket. shared: memory that both sides see; places: arrays that are sent are put there, as far as it has room (only
    one side may do so)."""

    def __init__(self, link: socket.socket, shared: mmap.mmap | None, *, places: bool = True) -> None:
        self._link, self._shared, self._places = link, shared, places and shared is not None

    def send(self, header: Header, arrays: Sequence[np.ndarray] = ()) -> None:
        """Raises ChannelClosed."""
        placed, inline, used = [], list[bytes](), 0
        for array in arrays:
            offset = -1
            if self._places and self._shared is not None and used + array.nbytes <= len(self._shared):
                room = np.frombuffer(self._shared, np.uint8, array.nbytes, used).view(array.dtype).reshape(array.shape)
                room[...] = array
                offset, used = used, used + -(-array.nbytes // 64) * 64
            else:
                inline.append(np.ascontiguousarray(array).tobytes())
            placed.append([array.dtype.str, list(array.shape), offset])
        text, body = json.dumps(header | {"arrays": placed}).encode(), b"".join(inline)
        try:
            self._link.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> tuple[Header, list[np.ndarray]]:
        """Raises ChannelClosed when the other side ended, TimeoutError as the socket is set, ValueError for what is no frame."""
        header_bytes, body_bytes = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        if header_bytes > HEADER_MAX or body_bytes > BODY_MAX:
            raise ValueError(f"a frame of {header_bytes} + {body_bytes} bytes")
        header = json.loads(self._exactly(header_bytes))
        body, at, arrays = self._exactly(body_bytes), 0, []
        for code, shape, offset in header.pop("arrays"):
            dtype, count = np.dtype(code), int(np.prod(shape))
            if offset >= 0 and self._shared is not None:
                arrays.append(np.frombuffer(self._shared, dtype, count, offset).reshape(shape))
            else:
                arrays.append(np.frombuffer(body, dtype, count, at).reshape(shape))
                at += arrays[-1].nbytes
        return header, arrays

    def _exactly(self, count: int) -> bytes:
        parts, left = [], count
        while left:
            try:
                part = self._link.recv(min(left, 1 << 20))
            except TimeoutError:
                raise
            except OSError as error:
                raise ChannelClosed from error
            if not part:
                raise ChannelClosed
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


#: What a process loads before it is known what it will be.
PRELOAD = ("torch", "models.zoo", "models.tasks.registry", "safetensors.torch", "edge.gpu.worker_jobs")


def shared_memory(fd: int, size: int = SHARED_BYTES) -> mmap.mmap:
    return mmap.mmap(fd, size)


# --- answers as arrays ------------------------------------------------------------------------------------------------


def pack(found: Sequence[Detections]) -> tuple[list[int], list[np.ndarray]]:
    """(objects of each picture, [xyxy float32 (N, 4), score float32 (N,), class_id int64 (N,)] of all of them)."""
    if not found:
        return [], [np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)]
    arrays = [np.concatenate([getattr(d, name) for d in found]) for name in ("xyxy", "score", "class_id")]
    return [len(d) for d in found], arrays


def unpack(counts: Sequence[int], arrays: Sequence[np.ndarray]) -> list[Detections]:
    """The way back. Raises ValueError when the numbers do not belong together."""
    from scheduler.types import Detections

    xyxy, score, class_id = arrays
    ends = np.cumsum(counts, dtype=np.int64)
    if len(xyxy) != (int(ends[-1]) if len(ends) else 0):
        raise ValueError(f"{len(xyxy)} boxes for {list(counts)}")
    parts = [slice(int(end) - n, int(end)) for end, n in zip(ends, counts, strict=True)]
    # Copies: the bytes of a frame are not ours to keep, and not to be written.
    return [Detections(xyxy=xyxy[p].copy(), score=score[p].copy(), class_id=class_id[p].copy()) for p in parts]


# --- the device -------------------------------------------------------------------------------------------------------


class Device(Protocol):
    """What a client of a device can say of its own use of it."""

    def begin(self) -> None:
        """Before work."""

    def end(self) -> float:
        """After it: the seconds for which the device was busy with it. May be asked more than once."""

    def held_mib(self) -> float: ...

    def let_go(self) -> None:
        """Gives back memory that nothing is in."""


class CpuDevice:
    """One core."""

    def begin(self) -> None:
        self._started_s = time.thread_time()

    def end(self) -> float:
        return time.thread_time() - self._started_s

    def held_mib(self) -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def let_go(self) -> None:
        """The allocator does."""


class CudaDevice:
    """A GPU, timed by events on the stream that the work goes to. What the host does between two kernels counts too."""

    def __init__(self, device: str) -> None:
        import torch

        self._cuda, self._device = torch.cuda, torch.device(device)
        self._cuda.set_device(self._device)

    def begin(self) -> None:
        self._started = self._cuda.Event(enable_timing=True)
        self._started.record()

    def end(self) -> float:
        ended = self._cuda.Event(enable_timing=True)
        ended.record()
        ended.synchronize()
        return float(self._started.elapsed_time(ended)) / 1000.0

    def held_mib(self) -> float:
        return float(self._cuda.memory_reserved(self._device)) / 2**20

    def let_go(self) -> None:
        self._cuda.empty_cache()


def is_poisoned(error: BaseException) -> bool:
    """Whether the process cannot use its device any more."""
    text = str(error)
    return any(sign in text for sign in POISONED) and "out of memory" not in text


# --- models -----------------------------------------------------------------------------------------------------------


def load_model(file: ModelFile, device: str) -> Detector:
    """Raises WeightsError when the file is missing, changed or of another model."""
    from models.detector import DetectorSpec

    try:
        data = Path(file.path).read_bytes()
    except OSError as error:
        raise WeightsError(f"{file.path} cannot be read", subject=file.path) from error
    if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
        raise WeightsError(f"{file.path} has changed since it was kept", subject=file.path)
    spec = DetectorSpec(arch=file.arch, input_px=file.input_px, pruned=file.pruned)
    try:
        made: Detector = _named(file.builder)(spec, data, device)
    except ValueError as error:  # safetensors' own error is one
        raise WeightsError(f"{file.path} holds no weights", subject=file.path) from error
    if hasattr(made, "enlarges"):
        made.enlarges = file.enlarges
    return made


def build(spec: DetectorSpec, data: bytes, device: str) -> Detector:
    """A detector of the model table, from the bytes of a safetensors file."""
    import safetensors
    import safetensors.torch

    from models.zoo import new_detector

    try:
        state = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    return new_detector(spec, state=state, device=device)


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    made: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return made


# --- the process ------------------------------------------------------------------------------------------------------


class Worker:
    """Answers requests until it is told to stop or the box has gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._device: Device = CpuDevice()
        self._detector: Detector | None = None
        self._job: RunningJob | None = None
        self._golden: tuple[ModelFile, Detector] | None = None
        self._where = "cpu"
        self._answers = {
            "ping": self._ping, "load": self._load, "predict": self._predict, "embed": self._embed, "job": self._begin_job,
            "step": self._step, "drop": self._drop,
        }  # fmt: skip

    def run(self) -> int:
        while True:
            try:
                header, arrays = self._channel.receive()
            except ChannelClosed:
                return 0
            op = header.pop("op")
            if op == "stop":
                return 0
            try:
                answer, out = self._answers[op](header, arrays)
                self._channel.send(answer | {"held_mib": self._device.held_mib()}, out)
            except ChannelClosed:
                return 0
            except Exception as error:  # told to the box, which knows what to do about it
                self._channel.send({"error": _described(error)})
                if is_poisoned(error):
                    return 4

    def _become(self, settings: Settings) -> None:
        os.environ.update(settings.env)
        self._where = settings.device
        if settings.client:
            self._device = _named(settings.client)()
        elif settings.device != "cpu":
            self._device = CudaDevice(settings.device)

    def _ping(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        return {"pid": os.getpid()}, []

    def _load(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        settings = Settings(**header["settings"])
        self._become(settings)
        self._device.begin()
        self._detector = load_model(ModelFile(**header["model"]), settings.device)
        return {"busy_s": self._device.end()}, []

    def _predict(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        assert self._detector is not None, "no model was loaded"
        self._device.begin()
        found = self._detector.predict(arrays, score_min=header["score_min"])
        busy_s = self._device.end()
        counts, out = pack(found)
        return {"busy_s": busy_s, "counts": counts}, out

    def _embed(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        assert self._detector is not None, "no model was loaded"
        self._device.begin()
        out = self._detector.embed(arrays)
        return {"busy_s": self._device.end()}, [out]

    def _begin_job(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        from edge.gpu.worker_jobs import RunningJob

        settings = header.pop("settings")
        if settings is not None:
            self._become(Settings(**settings))
        self._drop({}, [])
        self._job = RunningJob(self._device, self._loaded, **header)
        return {}, []

    def _step(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        assert self._job is not None, "no job was begun"
        return self._job.step()

    def _drop(self, header: Header, arrays: list[np.ndarray]) -> tuple[Header, list[np.ndarray]]:
        """The job's memory is free afterwards; the golden model stays."""
        job, self._job = self._job, None
        if job is not None:
            job.close()
            del job
            gc.collect()
            self._device.let_go()
        return {}, []

    def _loaded(self, file: ModelFile, stays: bool) -> Detector:
        if not stays:
            return load_model(file, self._where)
        if self._golden is None or self._golden[0] != file:
            self._golden = None  # both at once may be too much
            self._golden = (file, load_model(file, self._where))
        return self._golden[1]


def keep(detector: Detector, path: Path, *, builder: str = ModelFile.builder) -> ModelFile:
    """Writes a detector's weights for a process to load. Raises StorageError."""
    import safetensors.torch

    from configs.files import atomic_write

    data = safetensors.torch.save({name: tensor.contiguous().cpu() for name, tensor in detector.state().items()})
    atomic_write(path, data)
    spec = detector.spec
    sha256 = hashlib.sha256(data).hexdigest()
    return ModelFile(
        arch=spec.arch, input_px=spec.input_px, pruned=spec.pruned, path=str(path), sha256=sha256, builder=builder,
        enlarges=getattr(detector, "enlarges", True),
    )  # fmt: skip


def _described(error: Exception) -> Header:
    kind = "weights" if isinstance(error, WeightsError) else "job"
    code = "out_of_memory" if isinstance(error, MemoryError) or "out of memory" in str(error).lower() else "exception"
    if isinstance(error, DriftboxError):
        said = {"text": error.message, "subject": error.subject, "remedy": error.remedy}
        return said | {"kind": kind, "code": error.code if isinstance(error, JobError) else code, "poisoned": False}
    text = redact(f"{type(error).__name__}: {error}")[:2000]
    return {"text": text, "subject": "", "remedy": "", "kind": kind, "code": code, "poisoned": is_poisoned(error)}


def end_with_the_box(link: socket.socket, *, grace_s: float = GRACE_S) -> None:
    """Ends this process when the other side of the socket is gone, whatever its main thread is at."""

    def watch() -> None:
        poll = select.poll()
        poll.register(link, select.POLLRDHUP)
        while not poll.poll(5000):
            signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        time.sleep(grace_s)
        os._exit(3)

    signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    threading.Thread(target=watch, daemon=True, name="end-with-the-box").start()


def main(arguments: Sequence[str]) -> int:
    link = socket.socket(fileno=int(arguments[0]))
    end_with_the_box(link)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the box decides when we end
    for name in arguments[2:]:  # what takes long is done before anybody waits for it
        importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # Answers go inline: the shared memory is for what comes in.
    return Worker(Channel(link, shared_memory(int(arguments[1])), places=False)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
