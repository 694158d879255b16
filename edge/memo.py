"""Work done once, keyed by content: golden labels, predictions, trials and trained models of `evaluate`, in memory and on disk.

A key is the SHA-256 of all data and settings that the result depends on, but not of the code: after an update of Driftbox that changes
detectors or training, use a new folder. Deleting it only costs time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from configs.errors import StorageError
from configs.files import atomic_write, storage_errors
from scheduler.types import Detections


class Memo:
    """root None: memory only."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._seen: dict[str, Any] = {}
        if root is not None:
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot make the cache folder {root}: {error.strerror}", code="read_only") from error

    @property
    def on_disk(self) -> bool:
        return self._root is not None

    def json(self, key: str) -> Any:
        """The JSON value kept under `key`, None when there is none."""
        if key not in self._seen and self._root is not None:
            path = self._path(key, "json")
            if path.exists():
                self._seen[key] = json.loads(path.read_text(encoding="utf-8"))
        return self._seen.get(key)

    def keep_json(self, key: str, value: Any) -> None:
        self._seen[key] = value
        if self._root is not None:
            self._write(self._path(key, "json"), json.dumps(value).encode())

    def detections(self, key: str) -> Detections | None:
        found = self.json(key)
        if found is None:
            return None
        return Detections(
            xyxy=np.array(found["xyxy"], np.float32).reshape(-1, 4),
            score=np.array(found["score"], np.float32),
            class_id=np.array(found["class_id"], np.int64),
        )

    def keep_detections(self, key: str, value: Detections) -> None:
        body = {"xyxy": value.xyxy.tolist(), "score": value.score.tolist(), "class_id": value.class_id.tolist()}
        self.keep_json(key, body)

    def state(self, key: str) -> dict[str, torch.Tensor] | None:
        """The tensors kept under `key` (disk only: a live process holds the detectors themselves)."""
        path = self._path(key, "safetensors") if self._root is not None else None
        return load_file(path) if path is not None and path.exists() else None

    def keep_state(self, key: str, state: Mapping[str, torch.Tensor]) -> None:
        if self._root is not None:
            self._write(self._path(key, "safetensors"), save({k: v.contiguous() for k, v in state.items()}))

    @staticmethod
    def digest_of(state: Mapping[str, torch.Tensor]) -> str:
        """SHA-256 of a model's tensors."""
        digest = hashlib.sha256()
        for name in sorted(state):
            digest.update(name.encode())
            digest.update(state[name].detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _path(self, key: str, suffix: str) -> Path:
        assert self._root is not None
        return self._root / key[:2] / f"{key}.{suffix}"

    def _write(self, path: Path, data: bytes) -> None:
        with storage_errors(path):
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, data, durable=False)  # what is lost is only made again
