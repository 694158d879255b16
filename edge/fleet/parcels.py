"""A camera in a parcel: its settings with credentials, the model that serves it, its profile. Packed, sealed, carried, unpacked.

    camera.json      schema, who it is, its entry of the configuration, what is known of its learning
    model.driftbox   the serving version as a signed bundle (`models.bundle`)

Whoever opens one believes nothing: the envelope says which member it is from (`edge.fleet.envelope`), sizes are bounded, the entry is
checked by the one schema of cameras, the model by all checks of a bundle.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from configs.errors import DriftboxError, EnvironmentLacking, UsageError
from scheduler.fleet.types import CameraKey

SCHEMA = 1
CAMERA_FILE, MODEL_FILE = "camera.json", "model.driftbox"
_MOST = {CAMERA_FILE: 4 * 2**20, MODEL_FILE: 500 * 2**20}
#: Schemes of addresses that mean the same on another box.
TRAVELS = ("rtsp", "rtsps", "http", "https")


@dataclass(frozen=True, kw_only=True)
class CameraParcel:
    """camera: who it is; document: its entry, addresses with their credentials; model: the bundle's bytes, b'' none; known: what is
    known of its learning (`quality`, `version`, `profile`, `labels`: how many there are, `pictures`: under which request they follow, or
    `stay`: why they do not)."""

    camera: CameraKey
    document: Mapping[str, Any]
    model: bytes = b""
    known: Mapping[str, Any] = field(default_factory=dict)


def addressee(parcel: str) -> str:
    """The box that a parcel is for, by its name."""
    return parcel.partition(".")[0]


def is_of_journey(parcel: str) -> bool:
    """Whether a parcel is of a camera that sets out now, by its name (docs/fleet/controller.md); else it is for a box that stands by."""
    return parcel.count(".") == 3


def packed(parcel: CameraParcel) -> bytes:
    """As bytes, equal for equal parcels."""
    head = {"schema": SCHEMA, "camera": str(parcel.camera), "entry": dict(parcel.document), "known": dict(parcel.known)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo(CAMERA_FILE), json.dumps(head, sort_keys=True).encode())
        if parcel.model:
            file.writestr(zipfile.ZipInfo(MODEL_FILE), parcel.model)
    return out.getvalue()


def unpacked(data: bytes, camera: CameraKey) -> CameraParcel:
    """UsageError for anything that is not a parcel of that camera."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            infos = {info.filename: info for info in file.infolist()}
            if CAMERA_FILE not in infos or not set(infos) <= set(_MOST) or len(infos) != len(file.infolist()):
                raise ValueError("other files than a camera's")
            if any(info.file_size > _MOST[name] or info.compress_type != zipfile.ZIP_STORED for name, info in infos.items()):
                raise ValueError("too large")
            head = json.loads(file.read(CAMERA_FILE))
            model = file.read(MODEL_FILE) if MODEL_FILE in infos else b""
        if head["schema"] != SCHEMA or head["camera"] != str(camera) or not isinstance(head["entry"], dict):
            raise ValueError("of another release or another camera")
    except (
        ValueError,
        KeyError,
        TypeError,
        OSError,
        RuntimeError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UsageError(
            f"the parcel of camera {camera} cannot be used: {error}", subject=str(camera), remedy="is its sender of the same release?"
        ) from None  # fmt: skip
    known = head.get("known")
    return CameraParcel(camera=camera, document=head["entry"], model=model, known=known if isinstance(known, dict) else {})


class ParcelPost(Protocol):
    """What carries parcels between boxes: the controller's shelf. Raises EnvironmentLacking (it is away: try again), UsageError."""

    def certificate_of(self, box: str) -> bytes:
        """PEM of a fellow box's certificate."""

    def put(self, parcel: str, data: bytes) -> None:
        """The same again: nothing happens."""

    def get(self, parcel: str) -> bytes: ...


class HttpsPost:
    """Over the controller's HTTPS (docs/fleet/controller.md). client: with the box's certificate, its base the controller's address."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def certificate_of(self, box: str) -> bytes:
        return self._ask("GET", f"/fleet/v1/boxes/{box}/certificate").content

    def put(self, parcel: str, data: bytes) -> None:
        self._ask("PUT", f"/fleet/v1/parcels/{parcel}", content=data, headers={"X-Sha256": hashlib.sha256(data).hexdigest()})

    def get(self, parcel: str) -> bytes:
        answer = self._ask("GET", f"/fleet/v1/parcels/{parcel}")
        said = answer.headers.get("X-Sha256", "")
        if said and said != hashlib.sha256(answer.content).hexdigest():
            raise EnvironmentLacking(
                f"parcel {parcel} came damaged", subject=parcel, remedy="it is fetched again", code="checksum"
            )
        return answer.content

    def remove(self, parcel: str) -> None:
        """Of this box's own; one that is not there is no error."""
        self._ask("DELETE", f"/fleet/v1/parcels/{parcel}")

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **more)
        except (httpx.HTTPError, OSError) as error:
            raise EnvironmentLacking(
                f"the controller does not answer: {type(error).__name__}", subject="controller", remedy="it is tried again", code="away"
            ) from None  # fmt: skip
        if answer.status_code < 300:
            return answer
        raise refusal_of(answer.status_code, answer.content)


def refusal_of(status: int, body: bytes) -> DriftboxError:
    """What a controller's refusal means here: away (5xx, 404: not there yet) is tried again, all else is not."""
    try:
        said = json.loads(body)["error"]
        message, code = str(said["message"])[:300], str(said["code"])[:60]
    except (ValueError, KeyError, TypeError):
        message, code = f"the controller answered {status}", "http"
    if status >= 500 or status in (404, 408, 429):
        return EnvironmentLacking(message, subject="controller", remedy="it is tried again", code=code)
    return UsageError(message, subject="controller", code=code, remedy="driftbox fleet status on the controller says more")
