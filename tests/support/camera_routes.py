"""The routes of `edge.api_cameras` played in the browser, for tests of pages: what was asked is kept, what is answered can be set. The
answers are made by the box's own models, so that they cannot have another shape."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np

from configs.schema import CameraEntry
from edge.api_cameras import Discovered, Probed
from edge.cameras.desk import CameraInfo, CameraList
from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import ProbeResult
from edge.settings import ChoicesView

WORKS = ProbeResult(
    ok=True,
    state="live",
    width_px=640,
    height_px=360,
    fps=15.0,
    took_s=0.4,
    picture_url="/api/v1/cameras/probe/abcdefgh/picture.jpg",
)


class CameraRoutes:
    """`added`, `changed`, `commands`, `removed`, `probed`: what the page asked for. refusal: answer to the next change: status, body."""

    def __init__(self, *cameras: CameraInfo) -> None:
        self.cameras = {camera.id: camera for camera in cameras}
        self.added: list[dict[str, Any]] = []
        self.changed: list[tuple[str, dict[str, Any]]] = []
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.removed: list[str] = []
        self.probed: list[dict[str, Any]] = []
        self.found: tuple[OnvifCamera, ...] = ()
        self.probe: ProbeResult = WORKS
        self.onvif = OnvifProbe(ok=False, code="timeout")
        self.refusal: tuple[int, dict[str, Any]] | None = None

    def install(self, page: Any) -> None:
        page.route("**/api/v1/cameras", self._answer)
        page.route("**/api/v1/cameras/**", self._answer)
        page.route("**/api/v1/commands/**", self._command)
        page.route("**/api/v1/settings/choices", lambda route: _told(route, ChoicesView(tasks=("detection", "classification"))))

    def _command(self, route: Any) -> None:
        name = route.request.url.partition("/commands/")[2]
        self.commands.append((name, json.loads(route.request.post_data)))
        _json(route, {})

    def _answer(self, route: Any) -> None:
        request = route.request
        rest = urlsplit(request.url).path.removeprefix("/api/v1/cameras").strip("/")
        body = json.loads(request.post_data) if request.post_data else {}
        if rest.endswith(".jpg"):
            route.fulfill(status=200, content_type="image/jpeg", body=_picture())
        elif self.refusal is not None and request.method != "GET":
            status, refused = self.refusal
            self.refusal = None
            _json(route, refused, status)
        elif rest == "discover":
            _told(route, Discovered(cameras=self.found))
        elif rest == "probe":
            self.probed.append(body)
            _told(route, Probed(onvif=self.onvif) if body.get("onvif") else Probed(url=self.probe))
        else:
            self._camera(route, request.method, rest, body)

    def _camera(self, route: Any, method: str, id: str, body: dict[str, Any]) -> None:
        if method == "POST":
            self.added.append(body)
            info = camera(**{name: value for name, value in body.items() if name != "credentials"})
            self.cameras[info.id] = info
            _told(route, info, 201)
        elif method == "GET" and not id:
            _told(route, CameraList(cameras=tuple(self.cameras.values()), findings=("the file was changed",)))
        elif id not in self.cameras:
            _json(route, {"detail": f"there is no camera {id}"}, 404)
        elif method == "PATCH":
            self.changed.append((id, body))
            _told(route, self.cameras[id])
        elif method == "DELETE":
            self.removed.append(id)
            del self.cameras[id]
            route.fulfill(status=204)
        else:
            _told(route, self.cameras[id])


def camera(id: str, url: str = "rtsp://u:p@192.0.2.1/s", **more: Any) -> CameraInfo:
    """A camera as the box tells it."""
    entry = CameraEntry.model_validate({"id": id, "url": url, **more})
    return CameraInfo(
        id=id, title=entry.title, state="live", source="changed", etag="e" * 24, entry=entry.model_dump(mode="json"),
        has_credentials=("url",),
    )  # fmt: skip


def _told(route: Any, body: Any, status: int = 200) -> None:
    route.fulfill(status=status, content_type="application/json", body=body.model_dump_json())


def _json(route: Any, body: Any, status: int = 200) -> None:
    route.fulfill(status=status, content_type="application/json", body=json.dumps(body))


def _picture() -> bytes:
    return cv2.imencode(".jpg", np.full((360, 640, 3), (90, 110, 80), np.uint8))[1].tobytes()
