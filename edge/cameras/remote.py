"""The desk of a box that runs on this machine, asked over its own HTTP (`edge.client`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from configs.errors import EnvironmentLacking
from configs.schema import BoxConfig
from edge.cameras.desk import CameraInfo, CameraList
from edge.cameras.live_desk import LiveDesk
from edge.cameras.offline import offline
from edge.cameras.onvif import Onvif
from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import Prober, ProbeResult
from edge.client import ask_box, fetch_from_box

#: A change may load a model, open a camera, and wait for the change before it.
CHANGE_S = 180.0


class CommandDesk(Protocol):
    """What the commands use of `edge.cameras.desk.CameraDesk`."""

    def list(self) -> CameraList: ...

    def add(self, document: Mapping[str, Any], *, by: str) -> CameraInfo: ...

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str) -> CameraInfo: ...

    def remove(self, camera: str, *, by: str) -> None: ...

    def reset(self, camera: str, *, by: str) -> CameraInfo | None: ...

    def propose_id(self, name: str) -> str: ...

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]: ...

    def probe_onvif(self, address: str, *, user: str, password: str) -> OnvifProbe: ...

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult: ...

    def picture(self, token: str) -> bytes | None: ...


class RemoteDesk:
    """by: who asks is found out by the box, so it is not sent. Raises UsageError with the box's words, EnvironmentLacking."""

    def __init__(self, config: BoxConfig) -> None:
        self._config = config

    def list(self) -> CameraList:
        return CameraList.model_validate(self._ask("GET", "cameras"))

    def add(self, document: Mapping[str, Any], *, by: str) -> CameraInfo:
        return CameraInfo.model_validate(self._ask("POST", "cameras", dict(document)))

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str) -> CameraInfo:
        return CameraInfo.model_validate(self._ask("PATCH", f"cameras/{quote(camera, safe='')}", dict(patch)))

    def remove(self, camera: str, *, by: str) -> None:
        self._ask("DELETE", f"cameras/{quote(camera, safe='')}")

    def reset(self, camera: str, *, by: str) -> CameraInfo | None:
        told = self._ask("POST", f"cameras/{quote(camera, safe='')}/reset", {})
        return CameraInfo.model_validate(told) if told is not None else None

    def propose_id(self, name: str) -> str:
        return str(self._ask("GET", f"cameras/propose-id?name={quote(name, safe='')}")["id"])

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]:
        told = self._ask("POST", "cameras/discover", {"seconds": seconds, "address": address})
        return tuple(OnvifCamera.model_validate(camera) for camera in told["cameras"])

    def probe_onvif(self, address: str, *, user: str, password: str) -> OnvifProbe:
        told = self._ask("POST", "cameras/probe", {"onvif": address, "user": user, "password": password})
        return OnvifProbe.model_validate(told["onvif"])

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult:
        told = self._ask("POST", "cameras/probe", {"url": url, "transport": transport})
        return ProbeResult.model_validate(told["url"])

    def picture(self, token: str) -> bytes | None:
        return fetch_from_box(self._config, f"cameras/probe/{quote(token, safe='')}/picture.jpg", timeout_s=CHANGE_S)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask_box(self._config, method, path, body, timeout_s=CHANGE_S)


@contextmanager
def desk_for(config: BoxConfig) -> Iterator[tuple[CommandDesk, bool]]:
    """(desk, whether a box runs): that of the box that serves the configuration's address, else its data folder. Raises StorageError
    (code 'in_use': a box runs, but cannot be asked)."""
    remote = RemoteDesk(config)
    try:
        if config.web.enabled:
            remote.list()
            yield remote, True
            return
    except EnvironmentLacking as error:
        if error.code != "not_running":
            raise
    with offline(config) as control:
        yield LiveDesk(control, Prober(), Onvif()), False
