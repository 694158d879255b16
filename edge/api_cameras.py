"""`/api/v1/cameras` and `/api/v1/commands`: cameras added, changed and removed while the box runs, found and looked at before that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from configs.errors import ConfigError
from configs.units import CAMERA_ID
from edge.api_labels import etag_of
from edge.cameras.desk import CameraDesk, CameraInfo, CameraList
from edge.cameras.live_desk import CREDENTIALS, with_credentials
from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import ProbeResult
from edge.control import COMMANDS, BoxControl
from edge.web.held import check_camera
from edge.web.who import Role, needs, who_of

Camera = Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Camera id.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=80, description="`etag` of the camera that was seen.")]
_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such camera"}}
_CHANGES: _Responses = {
    403: {"description": "for operators"},
    409: {"description": "there is one of this id already, or this box takes cameras in only when it starts"},
    412: {"description": "somebody else has changed it since (`If-Match`)"},
    422: {"description": "fields that cannot be: `problems` names each"},
    503: {"description": "another change is under way, or the box starts or ends"},
}

_FIELDS = (
    "Fields of `cameras[]` as in docs/configuration.md (name, url, record_url, fps, task, classes, zones, masks, schedule, ...). "
    "Beside them `credentials`: {user, password}, put into the addresses that have none."
)
Document = Annotated[
    dict[str, Any],
    Body(
        description=_FIELDS,
        examples=[{"name": "Gate", "url": "rtsp://192.0.2.10/sub", "credentials": {"user": "box", "password": "..."}}],
    ),
]


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DiscoverIn(Asked):
    seconds: float = Field(default=3.0, ge=0.2, le=15.0, description="How long answers are waited for.")
    address: str = Field(
        default="", max_length=260, description="Ask only this host[:port], as behind a router; empty: this network."
    )


class ProbeIn(Asked):
    """One of url and onvif."""

    url: SecretStr = Field(default=SecretStr(""), max_length=2000, description="An address to open.")
    transport: Literal["tcp", "udp"] = "tcp"
    onvif: str = Field(default="", max_length=260, description="host[:port] of a camera to ask for its streams.")
    user: str = Field(default="", max_length=200)
    password: SecretStr = Field(default=SecretStr(""), max_length=200)


class Probed(BaseModel):
    """url: what the address gave; onvif: what the camera offers."""

    url: ProbeResult | None = None
    onvif: OnvifProbe | None = None


class Discovered(BaseModel):
    cameras: tuple[OnvifCamera, ...]


class ProposedId(BaseModel):
    id: str


def camera_routes(desk: CameraDesk) -> APIRouter:
    """Routes over a desk; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/cameras", tags=["cameras"])
    changes: dict[str, Any] = {"dependencies": [needs(Role.OPERATOR)], "responses": _CHANGES | _NOT_FOUND}

    @routes.get("", response_model=CameraList)
    def list_cameras(request: Request) -> CameraList:
        """All cameras, watched or not."""
        found, cameras = desk.list(), who_of(request).cameras
        return found if cameras is None else CameraList(cameras=tuple(one for one in found.cameras if one.id in cameras))

    @routes.post("", status_code=201, response_model=CameraInfo, **changes)
    def add_camera(document: Document, request: Request, response: Response) -> Any:
        """A new camera, watched when this answers. Without `id` one is made from its name."""
        _local_only_for_admins(document, request)
        return answered(lambda: desk.add(document, by=who_of(request).name), response)

    @routes.get("/propose-id")
    def propose_id(name: Annotated[str, Query(max_length=200, description="Name for people.")] = "") -> ProposedId:
        """An id that a new camera of that name may have."""
        return ProposedId(id=desk.propose_id(name))

    @routes.post("/discover", dependencies=[needs(Role.OPERATOR)], responses={503: {"description": "somebody looks already"}})
    def discover(asked: DiscoverIn) -> Discovered:
        """ONVIF cameras that announce themselves."""
        return Discovered(cameras=desk.discover(seconds=asked.seconds, address=asked.address))

    @routes.post("/probe", response_model=Probed, dependencies=[needs(Role.OPERATOR)], responses=_CHANGES)
    def probe(asked: ProbeIn, request: Request) -> Any:
        """Looks at an address, or asks an ONVIF camera for its streams, without keeping anything."""
        url = asked.url.get_secret_value()
        if bool(url) == bool(asked.onvif):
            raise HTTPException(400, "give one of url and onvif")
        if asked.onvif:
            return Probed(onvif=desk.probe_onvif(asked.onvif, user=asked.user, password=asked.password.get_secret_value()))
        local = who_of(request).role >= Role.ADMIN
        given = {"url": url, CREDENTIALS: {"user": asked.user, "password": asked.password.get_secret_value()}}
        return answered(lambda: Probed(url=desk.probe(_address(given), transport=asked.transport, local=local)))

    @routes.get(
        "/probe/{token}/picture.jpg", response_class=Response, dependencies=[needs(Role.OPERATOR)],
        responses={200: {"content": {"image/jpeg": {}}}, 404: {"description": "not kept any more"}},
    )  # fmt: skip
    def probe_picture(token: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{8,40}$", description="Of a probe.")]) -> Response:
        """The picture that a probe took, for two minutes."""
        jpeg = desk.picture(token)
        if jpeg is None:
            raise HTTPException(404, "that picture is not kept any more; probe the address again")
        return Response(jpeg, media_type="image/jpeg")

    @routes.get("/{camera}", response_model=CameraInfo, responses=_NOT_FOUND)
    def get_camera(camera: Camera, response: Response) -> CameraInfo:
        """One camera."""
        info = desk.get(camera)
        response.headers["ETag"] = f'"{info.etag}"'
        return info

    @routes.patch("/{camera}", response_model=CameraInfo, **changes)
    def change_camera(camera: Camera, patch: Document, request: Request, response: Response, if_match: IfMatch = None) -> Any:
        """Some fields get other values, at once; null: the default, or what the configuration file says. An address whose credentials
        are written `***` keeps them, as long as host and kind are the same."""
        _local_only_for_admins(patch, request)
        return answered(lambda: desk.change(camera, patch, by=who_of(request).name, etag=etag_of(if_match)), response)

    @routes.delete("/{camera}", status_code=204, response_class=Response, **changes)
    def remove_camera(camera: Camera, request: Request, if_match: IfMatch = None) -> Response:
        """No longer watched; its models and samples stay, for when a camera of this id comes back."""
        desk.remove(camera, by=who_of(request).name, etag=etag_of(if_match))
        return Response(status_code=204)

    @routes.post("/{camera}/reset", response_model=CameraInfo | None, **changes)
    def reset_camera(camera: Camera, request: Request) -> Any:
        """Drops what was changed here: as the configuration file says again, or gone (null) when it does not name it."""
        return answered(lambda: desk.reset(camera, by=who_of(request).name))

    return routes


def command_routes(control: BoxControl) -> APIRouter:
    """`POST /api/v1/commands/{command}`: see `edge.control`."""
    routes = APIRouter(prefix="/api/v1/commands", tags=["commands"])

    for name, (arguments, role, text) in COMMANDS.items():
        _add_command(routes, control, name, arguments, role, text)
    return routes


def _add_command(routes: APIRouter, control: BoxControl, name: str, arguments: type[BaseModel], role: Role, text: str) -> None:
    def run(given: Any, request: Request) -> dict[str, Any]:
        who = who_of(request)
        check_camera(who.cameras, getattr(given, "camera", ""))
        return control.do(name, given.model_dump(), by=who.name)

    run.__annotations__ = {"given": arguments, "request": Request, "return": dict[str, Any]}
    run.__doc__ = text
    routes.add_api_route(
        f"/{name}", run, methods=["POST"], name=name.replace("/", "_"), operation_id=f"command_{name.replace('/', '_')}",
        summary=text, dependencies=[needs(role)], responses=_NOT_FOUND | {k: v for k, v in _CHANGES.items() if k in (403, 409, 503)},
    )  # fmt: skip


def answered(work: Any, response: Response | None = None) -> Any:
    """What work gives, with its etag; a document that cannot be is answered field by field."""
    try:
        found = work()
    except ConfigError as error:
        problems = [{"field": field, "text": text} for field, text in error.problems]
        detail = error.message + (f"; {error.remedy}" if error.remedy else "")
        return JSONResponse({"detail": detail, "code": error.code, "problems": problems}, status_code=422)
    if response is not None and isinstance(found, CameraInfo):
        response.headers["ETag"] = f'"{found.etag}"'
    return found


def _address(given: Mapping[str, Any]) -> str:
    return str(with_credentials(given)["url"])


def _local_only_for_admins(document: Mapping[str, Any], request: Request) -> None:
    """Files and devices of the box's own machine: what it can read must not become what an operator can see."""
    remote = ("rtsp://", "rtsps://", "http://", "https://", "rendered:")
    for field in ("url", "record_url"):
        text = document.get(field)
        if isinstance(text, str) and text and not text.lower().startswith(remote) and who_of(request).role < Role.ADMIN:
            raise HTTPException(403, f"{field}: files and devices of the box's machine may only be named by an administrator")
