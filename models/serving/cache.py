"""Forms kept on the disk, so that a restart does not make them again. A form is there whole and unchanged, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import StorageError
from models.serving.base import Files, Runtime, ShapePx

if TYPE_CHECKING:
    import torch

log = logging.getLogger("driftbox")

_ABOUT = "form.json"
_PART = ".part-"
#: Which kind of files these are: a new one whenever the same network would be written otherwise, so that older ones are made again.
#: 2: networks that take pixels normalise them.
FORM_FORMAT = 2


def machine() -> str:
    """What the machine calls its processor: a form is tuned, or a choice measured, for it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores"


def gpu_name(device: str = "cuda") -> str:
    """What torch calls a GPU: an engine is made, or a choice measured, for it. Empty: there is none."""
    import torch

    if not torch.cuda.is_available():
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"


def versions(libraries: tuple[str, ...]) -> str:
    """'openvino 2026.4.1, nncf 3.4.0'; a missing one as '-'."""
    found = []
    for name in libraries:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} -")
    return ", ".join(found)


def network_digest(network: torch.nn.Module) -> str:
    """SHA-256 of a network's tensors with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def form_key(network: torch.nn.Module, runtime: Runtime, shape_px: ShapePx) -> str:
    """Names a form by all that it depends on: the network with its weights, how forms are written, the runtime, the
    libraries, the machine, the GPU of an engine."""
    libraries = versions((*runtime.libraries, "torch", "ultralytics", "driftbox"))
    parts = [
        f"format {FORM_FORMAT}",
        type(network).__qualname__,
        network_digest(network),
        runtime.name,
        f"{shape_px[0]}x{shape_px[1]}",
        libraries,
        machine(),
        runtime.tuned_for(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class FormCache:
    """max_mib: the oldest used go first when there is more. Safe for several threads: writes are renames."""

    def __init__(self, folder: Path, *, max_mib: int = 512) -> None:
        self._folder, self._max_bytes = folder, max_mib * 2**20

    def load(self, key: str) -> Files | None:
        """The form's files, or None. One that is damaged is removed and will be made again."""
        place = self._folder / key
        try:
            digests = json.loads((place / _ABOUT).read_text(encoding="utf-8"))["sha256"]
            files = {name: (place / name).read_bytes() for name in digests}
        except FileNotFoundError:
            if place.exists():
                self._discard(key, "a file is missing")
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._discard(key, f"it cannot be read ({type(error).__name__})")
            return None
        if any(hashlib.sha256(content).hexdigest() != digests[name] for name, content in files.items()):
            self._discard(key, "a file was changed")
            return None
        with contextlib.suppress(OSError):
            os.utime(place)
        return files

    def _discard(self, key: str, why: str) -> None:
        log.warning("kept form %s is damaged and made again: %s", key[:12], why)
        shutil.rmtree(self._folder / key, ignore_errors=True)

    def store(self, key: str, files: Files) -> None:
        """Raises StorageError 'full' when there is no room; nothing half written stays."""
        part: Path | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=_PART, dir=self._folder))
            for name, content in files.items():
                (part / name).write_bytes(content)
            about = {"sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
            (part / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(self._folder / key, ignore_errors=True)
            part.rename(self._folder / key)
        except OSError as error:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
            raise StorageError(
                f"the form of a model cannot be kept: {error.strerror or type(error).__name__}", subject=str(self._folder),
                remedy="free some space; it is made again at the next start", code="full",
            ) from error  # fmt: skip
        self._tidy(keep=key)

    def _tidy(self, *, keep: str) -> None:
        """Least recently used first, until what is left fits. Folders half written by a killed process go at once."""
        with contextlib.suppress(OSError):
            entries = [place for place in self._folder.iterdir() if place.is_dir() and place.name != keep]
            parts = [place for place in entries if place.name.startswith(_PART)]
            whole = sorted((p for p in entries if not p.name.startswith(_PART)), key=lambda p: p.stat().st_mtime, reverse=True)
            room = self._max_bytes - _bytes_of(self._folder / keep)
            for place in whole:
                room -= _bytes_of(place)
                if room < 0:
                    shutil.rmtree(place, ignore_errors=True)
            for place in parts:
                shutil.rmtree(place, ignore_errors=True)


def _bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.iterdir() if path.is_file())
