"""Sampled frames and their golden labels as files: `samples/<camera>/<window>/<seq>.jpg` and `<seq>.json`.

What moved in a frame (`Frame.regions`), where somebody looked, lies beside them in `<seq>.regions`; `<camera>/task` says what the
labels are about.

A sample is listed when its picture has its final name; it is labelled when its label file has. Both get it by a rename, so a
process killed at any moment leaves whole samples only. Nothing is kept in memory: memory does not grow with the store.

The pictures are JPEG (quality 92, 4:2:0): masks are burnt in before they get here, see `streams.masks`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from configs.errors import StorageError
from configs.files import TEMP_PREFIX, Write, atomic_write, storage_errors
from configs.tasks import DETECTION
from configs.units import is_camera_id
from scheduler.types import Detections, Frame
from streams.label_file import (
    SPLITS,
    GoldenAnswer,
    LeftOut,
    SampleLabels,
    Split,
    decode,
    encode,
    merged,
    undone,
    with_golden,
    with_ignored,
    with_person,
)  # fmt: skip

__all__ = ["JPEG_QUALITY", "SampleLabels", "SampleRef", "SampleStore", "Split", "encode_jpeg"]

#: Sees the labels in force (None: none) before a person's replace them, and may raise.
Check = Callable[[SampleLabels | None], None]

JPEG_QUALITY = 92
_REGIONS_SCHEMA = 1
#: Names the task of a camera's samples, in its folder.
_TASK_FILE = "task"


@dataclass(frozen=True, kw_only=True, order=True)
class SampleRef:
    """Names one sample; ordered by stream, window, seq. seq is the frame's, so it rises with time."""

    stream: str
    window: int
    seq: int

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.window:06d}/{self.seq:09d}"


# Inside SampleStore `list` is a method, so return types that are lists need names of their own.
Refs = list[SampleRef]
Numbers = list[int]
Texts = list[str]
Folders = list[tuple[int, Path]]


class SampleStore:
    """The samples of all cameras. Thread-safe for different samples; one process writes (the data folder's lock).

    Limits, 0 = none: max_windows per camera, max_samples per camera, max_bytes in all. `prune` applies them, oldest window
    first; `add` calls it every `prune_every` samples.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_windows: int = 0,
        max_samples: int = 0,
        max_bytes: int = 0,
        prune_every: int = 64,
        utc: Callable[[], float] = time.time,
        write: Write = os.write,
    ) -> None:
        self._root = root
        self._max_windows = max_windows
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._prune_every = prune_every
        self._utc = utc
        self._write = write
        self._adds = 0
        self._lock = threading.Lock()
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)

    @property
    def root(self) -> Path:
        return self._root

    def begin(self, stream: str, task: str) -> bool:
        """Says what a camera's samples are labelled for from now on; whether that is something else than before. Then its samples go,
        because their labels answer another question. Raises StorageError."""
        path = self._root / stream / _TASK_FILE
        with storage_errors(path):
            known = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
        changed = task != (known or DETECTION)  # before tasks had names there was one
        if changed:
            self.remove_stream(stream)
        if task != known:
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, f"{task}\n".encode(), write=self._write)
        return changed

    def add(self, frame: Frame, window: int) -> SampleRef:
        """Stores a frame and its regions; one that has the same name is replaced, and its labels with it. Raises StorageError."""
        if not is_camera_id(frame.stream) or window < 0 or frame.seq < 0:
            raise ValueError(f"not a sample: stream {frame.stream!r}, window {window}, seq {frame.seq}")
        ref = SampleRef(stream=frame.stream, window=window, seq=frame.seq)
        path = self._picture(ref)
        data = encode_jpeg(frame.image)
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in self._files(ref):  # the picture first: old labels and regions must never meet a new one
                old.unlink(missing_ok=True)
        if frame.regions is not None:
            atomic_write(self._regions(ref), _encoded_regions(frame.regions), durable=False, write=self._write)
        # Not durable: a power cut may cost the newest samples (`recover` removes what is left of them), never the disk's time.
        atomic_write(path, data, durable=False, write=self._write)
        self._prune_now_and_then()
        return ref

    def label(
        self, ref: SampleRef, detections: Detections, golden: str, split: str, *, unsure: Detections | None = None,
        left_out: LeftOut = "", gpu_s: float | None = None,
    ) -> None:  # fmt: skip
        """Gives a sample its golden labels, or new ones; a person's labels stay in force (`streams.label_file`).
        Raises StorageError; KeyError: the sample is not there (any more)."""
        answer = GoldenAnswer(
            detections=detections, golden=golden, stored_utc=self._utc(), left_out=left_out, gpu_s=gpu_s,
            unsure=unsure if unsure is not None else Detections.empty(),
        )  # fmt: skip
        self._change(ref, lambda old: with_golden(old, answer, _split(split)), None, durable=False)

    def correct(
        self, ref: SampleRef, detections: Detections, split: str = "train", *, check: Check | None = None
    ) -> SampleLabels:
        """Gives a sample a person's labels; `split` counts when it had none. Durable: nobody draws a box twice. check: sees what is in
        force before it is replaced, and may raise. Returns what is in force. Raises as `label`."""
        labels = self._change(ref, lambda old: with_person(old, detections, _split(split), at_utc=self._utc()), check)
        assert labels is not None
        return labels

    def ignore(self, ref: SampleRef, split: str = "train", *, check: Check | None = None) -> SampleLabels:
        """A person takes a sample out of training and judging. As `correct`."""
        labels = self._change(ref, lambda old: with_ignored(old, _split(split), at_utc=self._utc()), check)
        assert labels is not None
        return labels

    def undo(self, ref: SampleRef, *, check: Check | None = None) -> SampleLabels | None:
        """Takes a person's labels back: the golden model's own are in force again; None: there are none. As `correct`."""
        return self._change(ref, lambda old: undone(old) if old is not None else None, check)

    def restore(self, ref: SampleRef, labels: SampleLabels | None) -> None:
        """Puts back what `load_labels` once said (None: no labels), for whoever writes many samples or none. As `correct`."""
        self._change(ref, lambda old: labels, None)

    def adopt(self, ref: SampleRef, jpeg: bytes, labels: SampleLabels) -> SampleLabels:
        """Keeps a labelled picture that was made elsewhere; where the very picture lies under that name, what both say of it is merged
        (`streams.label_file.merged`). Durable. Returns what is in force. ValueError: another picture has that name, or it is no
        sample's. Raises StorageError."""
        if not is_camera_id(ref.stream) or ref.window < 0 or ref.seq < 0 or not jpeg:
            raise ValueError(f"not a sample: {ref.name}")
        path = self._picture(ref)
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lies = path.read_bytes() if path.is_file() else None
        if lies is not None and lies != jpeg:
            raise ValueError(f"another picture is called {ref.name}")
        if lies is None:
            atomic_write(path, jpeg, write=self._write)
        kept = self._change(ref, lambda old: merged(old, labels), None)
        assert kept is not None
        return kept

    def size_bytes(self, ref: SampleRef) -> int | None:
        """Of the picture's file; None: it is not there (any more)."""
        try:
            return self._picture(ref).stat().st_size
        except OSError:
            return None

    def _change(
        self, ref: SampleRef, change: Callable[[SampleLabels | None], SampleLabels | None], check: Check | None, *,
        durable: bool = True,
    ) -> SampleLabels | None:  # fmt: skip
        """Reads, changes and replaces a label file while nobody else does: a box labels while its operator corrects."""
        with self._exclusive():
            if not self._picture(ref).is_file():
                raise KeyError(ref.name)
            old = self.labels_or_none(ref)
            if check is not None:
                check(old)
            new = change(old)
            path = self._labels(ref)
            if new is None:
                with storage_errors(path):
                    path.unlink(missing_ok=True)
            else:
                atomic_write(path, encode(new), durable=durable, write=self._write)
        return new

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One writer of labels at a time, over all threads and processes. The lock is the folder itself: nothing is left behind."""
        with storage_errors(self._root):
            fd = os.open(self._root, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def list(
        self, stream: str, windows: Sequence[int] | None = None, labelled: bool | None = None, split: str | None = None
    ) -> Refs:
        """Samples in order of window and seq. None means: all windows, labelled or not, any split."""
        wanted = None if windows is None else set(windows)
        folders = [(w, f) for w, f in self._window_folders(stream) if wanted is None or w in wanted]
        refs = [SampleRef(stream=stream, window=w, seq=seq) for w, f in folders for seq in _seqs(f)]
        if labelled is not None or split is not None:
            refs = [r for r in refs if self._matches(r, labelled, split)]
        return refs

    def sampled(self, stream: str, window: int) -> Refs:
        """All samples of one window, in time order."""
        return self.list(stream, [window])

    def load_image(self, ref: SampleRef) -> np.ndarray:
        """uint8 (H, W, 3) RGB. KeyError: not there (any more); StorageError 'corrupt': not a picture."""
        path = self._picture(ref)
        data = _read(path, ref)
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB) if data else None
        if image is None:
            raise _damaged(path)
        return image

    def picture_bytes(self, ref: SampleRef) -> bytes:
        """The JPEG file as it lies there. KeyError: not there (any more)."""
        return _read(self._picture(ref), ref)

    def load_regions(self, ref: SampleRef) -> np.ndarray | None:
        """What moved in the frame, float32 (N, 4) xyxy px; None: nobody looked, or the sample is not there (any more).
        StorageError 'corrupt': not a file of regions."""
        path = self._regions(ref)
        try:
            return _decoded_regions(_read(path, ref))
        except KeyError:
            return None
        except ValueError as error:
            raise _damaged(path) from error

    def load_labels(self, ref: SampleRef) -> SampleLabels:
        """KeyError: not there or not labelled; StorageError 'corrupt': not a label file."""
        path = self._labels(ref)
        data = _read(path, ref)
        try:
            return decode(data)
        except ValueError as error:
            raise _damaged(path) from error

    def split(self, ref: SampleRef) -> str | None:
        """'train' or 'holdout'; None: not labelled, or its label file is damaged and it may be labelled anew."""
        labels = self.labels_or_none(ref)
        return labels.split if labels is not None else None

    def usable(self, stream: str, windows: Sequence[int], split: str) -> Refs:
        """Labelled samples of a split that may be trained on or judged by, in order of window and seq."""
        found = ((ref, self.labels_or_none(ref)) for ref in self.list(stream, windows, labelled=True))
        return [ref for ref, labels in found if labels is not None and labels.split == split and labels.usable]

    def streams(self) -> Texts:
        """Cameras that have a folder, in order."""
        with storage_errors(self._root):
            return sorted(f.name for f in self._root.iterdir() if is_camera_id(f.name) and f.is_dir())

    def windows(self, stream: str) -> Numbers:
        """Windows that have samples, in order."""
        return [w for w, f in self._window_folders(stream) if any(True for _ in _iter_seqs(f))]

    def newest_window(self) -> int:
        """The highest window number of any camera; -1 when there is no sample. A box that starts again goes on after it:
        a frame's seq starts at 0 again, so a window must not be filled by two runs."""
        return max((w for s in self.streams() for w in self.windows(s)), default=-1)

    def remove(self, ref: SampleRef) -> None:
        """Removes picture, labels and regions; nothing happens when they are gone."""
        with storage_errors(self._picture(ref)):
            for path in self._files(ref):
                path.unlink(missing_ok=True)

    def remove_stream(self, stream: str) -> None:
        """Removes all samples of a camera."""
        if not is_camera_id(stream):
            raise ValueError(f"not a camera id: {stream!r}")
        with storage_errors(self._root / stream), suppress(FileNotFoundError):
            shutil.rmtree(self._root / stream)

    def prune(self) -> int:
        """Applies the limits; how many samples were removed. Only one thread at a time does it, others return 0."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            doomed = self._over_stream_limits()
            doomed |= self._over_bytes(doomed)
            for ref in sorted(doomed):
                self.remove(ref)
            self._remove_empty_folders()
            return len(doomed)
        finally:
            self._lock.release()

    def recover(self) -> Texts:
        """After a crash: removes unfinished files, pictures, labels and regions cut short by a power cut, labels and
        regions without a picture.
        One note per kind of finding."""
        counts: dict[str, int] = {}
        for path in sorted(p for p in self._root.rglob("*") if p.is_file()):
            finding = _finding(path)
            if finding:
                with storage_errors(path):
                    path.unlink(missing_ok=True)
                counts[finding] = counts.get(finding, 0) + 1
        return [f"samples: removed {count} {finding}" for finding, count in sorted(counts.items())]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _folder(self, ref: SampleRef) -> Path:
        return self._root / ref.stream / f"{ref.window:06d}"

    def _picture(self, ref: SampleRef) -> Path:
        return self._folder(ref) / f"{ref.seq:09d}.jpg"

    def _labels(self, ref: SampleRef) -> Path:
        return self._folder(ref) / f"{ref.seq:09d}.json"

    def _regions(self, ref: SampleRef) -> Path:
        return self._folder(ref) / f"{ref.seq:09d}.regions"

    def _files(self, ref: SampleRef) -> tuple[Path, ...]:
        """The picture first: without it the sample is not listed."""
        return self._picture(ref), self._labels(ref), self._regions(ref)

    def labels_or_none(self, ref: SampleRef) -> SampleLabels | None:
        """None also for a damaged file: whoever wants labels there makes them anew."""
        try:
            return self.load_labels(ref)
        except KeyError:
            return None
        except StorageError as error:
            if error.code != "corrupt":
                raise
            return None

    def _matches(self, ref: SampleRef, labelled: bool | None, split: str | None) -> bool:
        has_labels = self._labels(ref).is_file()
        if labelled is not None and has_labels != labelled:
            return False
        return split is None or (has_labels and self.split(ref) == split)

    def _window_folders(self, stream: str) -> Folders:
        with storage_errors(self._root / stream), suppress(FileNotFoundError, NotADirectoryError):
            return sorted((int(f.name), f) for f in (self._root / stream).iterdir() if f.name.isdecimal())
        return []

    def _prune_now_and_then(self) -> None:
        with self._lock:
            self._adds += 1
            due = self._adds % self._prune_every == 0
        if due:
            self.prune()

    def _over_stream_limits(self) -> set[SampleRef]:
        doomed: set[SampleRef] = set()
        for stream in self.streams():
            if self._max_windows and (old := self.windows(stream)[: -self._max_windows]):
                doomed |= set(self.list(stream, old))
            if self._max_samples:
                doomed |= set(self.list(stream)[: -self._max_samples])
        return doomed

    def _over_bytes(self, gone: set[SampleRef]) -> set[SampleRef]:
        """The oldest, until the others fit. Mostly they do, and then nothing is listed: this is done all the time, and thousands of
        names at once would be what the process grows by."""
        over = self._held_bytes() - sum(map(self._size_bytes, gone)) - self._max_bytes if self._max_bytes else 0
        doomed: set[SampleRef] = set()
        streams = self.streams() if over > 0 else []
        for window in sorted({w for s in streams for w, _ in self._window_folders(s)}):
            refs = (r for s in streams for r in self.list(s, [window]) if r not in gone)
            for ref in sorted(refs, key=lambda r: (r.seq, r.stream)):
                if over <= 0:
                    return doomed
                doomed.add(ref)
                over -= self._size_bytes(ref)
        return doomed

    def _held_bytes(self) -> int:
        total = 0
        for _, folder in (found for stream in self.streams() for found in self._window_folders(stream)):
            with storage_errors(folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        total += entry.stat().st_size
        return total

    def _size_bytes(self, ref: SampleRef) -> int:
        total = 0
        for path in self._files(ref):
            with suppress(OSError):
                total += path.stat().st_size
        return total

    def _remove_empty_folders(self) -> None:
        for stream in self.streams():
            for _, folder in self._window_folders(stream)[:-1]:  # the newest may be about to get its first sample
                with suppress(OSError):
                    folder.rmdir()


def encode_jpeg(image: np.ndarray, quality: int = JPEG_QUALITY) -> bytes:
    """JPEG of a uint8 (H, W, 3) RGB image."""
    ok, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not ok:
        raise ValueError(f"cannot encode an image of shape {image.shape}")
    return data.tobytes()


def _seqs(folder: Path) -> list[int]:
    return sorted(_iter_seqs(folder))


def _iter_seqs(folder: Path) -> Iterator[int]:
    with storage_errors(folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            stem, _, suffix = entry.name.rpartition(".")
            if suffix == "jpg" and stem.isdecimal():
                yield int(stem)


def _read(path: Path, ref: SampleRef) -> bytes:
    try:
        with storage_errors(path):
            return path.read_bytes()
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise KeyError(ref.name) from None
        raise


def _split(text: str) -> Split:
    for known in SPLITS:
        if text == known:
            return known
    raise ValueError(f"split must be 'train' or 'holdout', got {text!r}")


def _finding(path: Path) -> str | None:
    """What is wrong with a file of the store, None: nothing."""
    if path.name.startswith(TEMP_PREFIX):
        return "unfinished files"
    if path.suffix == ".jpg" and not _is_whole_jpeg(path):
        return "damaged pictures"
    if path.suffix == ".json" and not path.with_suffix(".jpg").is_file():
        return "labels without a picture"
    if path.suffix == ".json" and not _is_readable(path, decode):
        return "damaged labels"
    if path.suffix == ".regions" and not path.with_suffix(".jpg").is_file():
        return "regions without a picture"
    if path.suffix == ".regions" and not _is_readable(path, _decoded_regions):
        return "damaged regions"
    return None


def _encoded_regions(regions: np.ndarray) -> bytes:
    return json.dumps({"schema": _REGIONS_SCHEMA, "xyxy": np.asarray(regions, np.float32).tolist()}).encode()


def _decoded_regions(data: bytes) -> np.ndarray:
    """Raises ValueError for anything but a whole file of regions."""
    try:
        body = json.loads(data)
        if body["schema"] != _REGIONS_SCHEMA:
            raise ValueError("unknown schema of regions")
        return np.asarray(body["xyxy"], np.float32).reshape(-1, 4)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a file of regions: {error}") from error


def _is_readable(path: Path, read: Callable[[bytes], object]) -> bool:
    with storage_errors(path):
        data = path.read_bytes()
    try:
        read(data)
    except ValueError:
        return False
    return True


def _is_whole_jpeg(path: Path) -> bool:
    with storage_errors(path), open(path, "rb") as file:
        if file.read(2) != b"\xff\xd8":
            return False
        file.seek(-2, os.SEEK_END)
        return file.read(2) == b"\xff\xd9"


def _damaged(path: Path) -> StorageError:
    return StorageError(f"sample file {path} is damaged", subject=str(path), code="corrupt", remedy="remove the file")
