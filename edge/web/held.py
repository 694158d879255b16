"""What a token that is held to cameras gets: these cameras and nothing else of the box.

`held` stands before every route (`edge.api.make_app`) and lets through only what is in `ALLOWED`: a route that is added later is refused
to such tokens until somebody has thought about it. Another camera and one that does not exist are answered alike, so names are not
told. `tests/contract/test_tokens_held_to_cameras.py` asks every route of the OpenAPI document.
"""

from __future__ import annotations

from enum import Enum

from fastapi import HTTPException
from starlette.requests import HTTPConnection

from edge.status import BoxStatus
from edge.web.who import who_of


class Way(Enum):
    """How a route keeps to the cameras of who asks."""

    NOTHING = "it tells nothing of any camera"
    NAMED = "its address names the camera"
    ITSELF = "it leaves out what is not for who asks, by `Who.cameras`"


_API = "/api/v1"
#: (method, path as in the OpenAPI document) -> how.
ALLOWED: dict[tuple[str, str], Way] = {
    ("GET", "/"): Way.NOTHING,
    ("GET", "/healthz"): Way.NOTHING,
    ("GET", "/readyz"): Way.NOTHING,
    ("GET", f"{_API}/sign-in"): Way.NOTHING,
    ("POST", f"{_API}/sign-in"): Way.NOTHING,
    ("POST", f"{_API}/claim"): Way.NOTHING,
    ("GET", f"{_API}/me"): Way.NOTHING,
    ("GET", f"{_API}/settings/choices"): Way.NOTHING,
    ("GET", f"{_API}/status"): Way.ITSELF,
    ("WEBSOCKET", f"{_API}/live"): Way.ITSELF,
    ("GET", f"{_API}/cameras"): Way.ITSELF,
    ("GET", f"{_API}/cameras/{{camera}}"): Way.NAMED,
    ("PATCH", f"{_API}/cameras/{{camera}}"): Way.NAMED,
    ("DELETE", f"{_API}/cameras/{{camera}}"): Way.NAMED,
    ("POST", f"{_API}/cameras/{{camera}}/reset"): Way.NAMED,
    ("GET", f"{_API}/cameras/{{camera_id}}/picture.jpg"): Way.NAMED,
    ("POST", f"{_API}/commands/camera/watch"): Way.ITSELF,
    ("POST", f"{_API}/commands/camera/learning"): Way.ITSELF,
    ("POST", f"{_API}/commands/camera/restart"): Way.ITSELF,
    ("GET", f"{_API}/events"): Way.ITSELF,
    ("GET", f"{_API}/events/{{id}}"): Way.ITSELF,
    ("DELETE", f"{_API}/events/{{id}}"): Way.ITSELF,
    ("PUT", f"{_API}/events/{{id}}/favourite"): Way.ITSELF,
    ("GET", f"{_API}/events/{{id}}/snapshot.jpg"): Way.ITSELF,
    ("GET", f"{_API}/events/{{id}}/thumbnail.jpg"): Way.ITSELF,
    ("GET", f"{_API}/events/{{id}}/clip.mp4"): Way.ITSELF,
    ("GET", f"{_API}/labels"): Way.ITSELF,
    ("GET", f"{_API}/labels/statistics"): Way.ITSELF,
    ("GET", f"{_API}/labels/{{camera}}/{{window}}/{{seq}}"): Way.NAMED,
    ("PUT", f"{_API}/labels/{{camera}}/{{window}}/{{seq}}"): Way.NAMED,
    ("DELETE", f"{_API}/labels/{{camera}}/{{window}}/{{seq}}"): Way.NAMED,
    ("GET", f"{_API}/labels/{{camera}}/{{window}}/{{seq}}/picture.jpg"): Way.NAMED,
    ("GET", f"{_API}/queries/{{camera}}"): Way.NAMED,
    ("PUT", f"{_API}/queries/{{camera}}/{{query}}/knobs"): Way.NAMED,
}
_CAMERA = ("camera", "camera_id")


def held(connection: HTTPConnection) -> None:
    """A dependency of every route: 403 for what is not for such a token, 404 for a camera that is not."""
    cameras = who_of(connection).cameras
    if cameras is None:
        return
    method = connection.scope.get("method", "WEBSOCKET")
    way = ALLOWED.get((method, getattr(connection.scope.get("route"), "path", "")))
    if way is None:
        raise HTTPException(403, "this token is held to cameras, and this tells about the whole box")
    asked = [value for name in _CAMERA for value in connection.query_params.getlist(name)]
    if any(camera not in cameras for camera in asked):
        raise HTTPException(403, "this token is not for that camera")
    if way is Way.NAMED:
        check_camera(cameras, next((connection.path_params[name] for name in _CAMERA if name in connection.path_params), ""))


def check_camera(cameras: frozenset[str] | None, camera: str) -> None:
    """404 for a camera that who asks may not see, as for one that is not there. cameras: see `Who.cameras`."""
    if cameras is not None and camera not in cameras:
        raise HTTPException(404, "there is no such camera, or this token is not for it")


def status_for(status: BoxStatus, cameras: frozenset[str] | None) -> BoxStatus:
    """The status as whoever is held to these cameras may see it, None: whole. Of the box only how it is called and whether it is up:
    plans, shares, models, notes and reasons name other cameras."""
    if cameras is None:
        return status
    return BoxStatus(
        schema_version=status.schema_version, box=status.box, site=status.site, software=status.software, now_utc=status.now_utc,
        started_utc=status.started_utc, ready=status.ready, cameras=tuple(one for one in status.cameras if one.id in cameras),
    )  # fmt: skip
