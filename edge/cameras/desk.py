"""The seam between whoever asks for cameras (HTTP, the command line) and the box: what is told of a camera, and what can be asked.

`edge.cameras.live_desk` is the real one; tests of pages bring their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import Field

from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import ProbeResult
from edge.status import View


class CameraInfo(View):
    """A camera as it is configured, and how it does. Secrets are never in it."""

    id: str
    title: str = Field(description="Its name, or its id.")
    state: str = Field(description="As in docs/cameras.md; also off, scheduled, failed, quarantined.")
    why: str = Field(default="", description="What is wrong, for people.")
    source: str = Field(
        description="file: as the configuration file has it; changed: with changes made here; added: made here."
    )
    changed: tuple[str, ...] = Field(default=(), description="Fields that are other than in the file.")
    changed_by: str = ""
    changed_utc: float | None = None
    etag: str = Field(description="For If-Match.")
    entry: dict[str, Any] = Field(
        description="As docs/configuration.md describes cameras[]; every key, addresses without credentials."
    )
    has_credentials: tuple[str, ...] = Field(
        default=(), description="Addresses (url, record_url) that credentials are known for."
    )


class CameraList(View):
    """All cameras. findings: what people should know of how the file and the changes made here stand to each other."""

    cameras: tuple[CameraInfo, ...]
    removed: tuple[str, ...] = Field(default=(), description="Cameras of the file that were removed here.")
    findings: tuple[str, ...] = ()


class CameraDesk(Protocol):
    """Methods may take seconds: call them in worker threads. They raise ConfigError (problems by field), UsageError (codes `not_found`,
    `exists`, `changed`), JobError (`busy`, `not_running`), StorageError, WeightsError, EnvironmentLacking; then nothing has changed."""

    def list(self) -> CameraList: ...

    def get(self, camera: str) -> CameraInfo: ...

    def add(self, document: Mapping[str, Any], *, by: str) -> CameraInfo: ...

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> CameraInfo: ...

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None: ...

    def reset(self, camera: str, *, by: str) -> CameraInfo | None: ...

    def propose_id(self, name: str) -> str:
        """An id for a new camera of that name, which no other has."""

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]:
        """Cameras that announce themselves on this network, or the one at an address. Waits `seconds`."""

    def probe_onvif(self, address: str, *, user: str, password: str) -> OnvifProbe: ...

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult:
        """Opens an address without keeping it. local: files and devices of this machine too."""

    def picture(self, token: str) -> bytes | None:
        """The picture of a probe, a JPEG; None: it is not kept any more."""
