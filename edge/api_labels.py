"""`/api/v1/labels`: samples and their labels, listed, shown, corrected and taken back. Who may write: `edge.api_guard`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from configs.errors import DriftboxError, StorageError
from configs.units import CAMERA_ID
from edge.labels import MAX_PAGE, LabelPage, LabelQuery, LabelsIn, LabelStatistics, LabelStore, LabelView, SampleName
from edge.web.who import who_of

Camera = Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Camera id.")]
Window = Annotated[int, Path(ge=0, le=10**9, description="Window number.")]
Seq = Annotated[int, Path(ge=0, le=10**15, description="Frame number.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=80, description="`etag` of the labels that were seen.")]

_STATUS = {
    "not_found": 404,
    "usage": 400,
    "labels": 422,
    "changed": 412,
    "full": 507,
    "read_only": 503,
    "corrupt": 409,
    "open": 409,
    "weights": 409,
    "busy": 503,
    "not_running": 503,
    "exists": 409,
    "restart": 409,
}
_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such sample, or not any more"}}
_WRITE: _Responses = {
    **_NOT_FOUND,
    403: {"description": "not from this machine, through a proxy, or asked by another web site"},
    412: {"description": "the labels have changed since (`If-Match`)"},
    415: {"description": "not JSON"},
    422: {"description": "boxes that cannot be"},
}


def label_routes(store: LabelStore) -> APIRouter:
    """Routes over a store; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/labels", tags=["labels"])

    @routes.get("")
    def list_labels(
        request: Request,
        camera: Annotated[str | None, Query(pattern=CAMERA_ID.pattern, description="Only this camera's.")] = None,
        window: Annotated[int | None, Query(ge=0, le=10**9, description="Only this window's.")] = None,
        by: Annotated[Literal["golden", "person"] | None, Query(description="Who made the labels.")] = None,
        unsure: Annotated[
            bool | None, Query(description="Only with boxes the golden model was not sure of, or without.")
        ] = None,
        unlabelled: Annotated[bool, Query(description="Also samples without labels.")] = False,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Rows of this page.")] = 50,
        after: Annotated[str | None, Query(max_length=100, description="`next` of the page before.")] = None,
    ) -> LabelPage:
        """Samples, newest window first."""
        query = LabelQuery(
            camera=camera, cameras=who_of(request).cameras, window=window, by=by, unsure=unsure, unlabelled=unlabelled, limit=limit,
            after=after,
        )  # fmt: skip
        return store.list(query)

    @routes.get("/statistics")
    def statistics(
        request: Request,
        camera: Annotated[str | None, Query(pattern=CAMERA_ID.pattern, description="Only this camera's.")] = None,
    ) -> LabelStatistics:
        """By camera and class: labels of the large model and of people, what is unsure, what was taken out, and how often people found
        the large model wrong. Over the newest 4,000 pictures."""
        return store.statistics(LabelQuery(camera=camera, cameras=who_of(request).cameras))

    @routes.get("/{camera}/{window}/{seq}", responses=_NOT_FOUND)
    def get_labels(camera: Camera, window: Window, seq: Seq, response: Response) -> LabelView:
        """One sample's labels: in force, unsure, and the golden model's own."""
        return _with_etag(store.get(_name(camera, window, seq)), response)

    @routes.put("/{camera}/{window}/{seq}", responses=_WRITE)
    def put_labels(
        camera: Camera, window: Window, seq: Seq, labels: LabelsIn, response: Response, if_match: IfMatch = None
    ) -> LabelView:
        """A person's labels from now on: always used before the golden model's, and never replaced by them."""
        return _with_etag(store.put(_name(camera, window, seq), labels, etag=etag_of(if_match)), response)

    @routes.delete("/{camera}/{window}/{seq}", responses=_WRITE)
    def undo_labels(camera: Camera, window: Window, seq: Seq, response: Response, if_match: IfMatch = None) -> LabelView:
        """Takes a person's labels back; the golden model's are in force again, or none."""
        return _with_etag(store.undo(_name(camera, window, seq), etag=etag_of(if_match)), response)

    @routes.get(
        "/{camera}/{window}/{seq}/picture.jpg",
        response_class=Response, responses={200: {"content": {"image/jpeg": {}}}, **_NOT_FOUND},
    )  # fmt: skip
    def picture(
        camera: Camera, window: Window, seq: Seq,
        boxes: Annotated[bool, Query(description="With its boxes drawn in.")] = True,
    ) -> Response:  # fmt: skip
        """The sampled frame, privacy masks burnt in."""
        return Response(store.picture(_name(camera, window, seq), drawn=boxes), media_type="image/jpeg")

    return routes


def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Our errors as HTTP: what is wrong and what to do, under the field that FastAPI uses for its own."""
    assert isinstance(error, DriftboxError)
    default = 503 if isinstance(error, StorageError) else 400
    detail = error.message + (f"; {error.remedy}" if error.remedy else "")
    return JSONResponse({"detail": detail, "code": error.code}, status_code=_STATUS.get(error.code, default))


def _name(camera: str, window: int, seq: int) -> SampleName:
    return SampleName(camera=camera, window=window, seq=seq)


def etag_of(header: str | None) -> str | None:
    """`If-Match` names one entity tag here; `*` and nothing mean any."""
    if header is None or header.strip() == "*":
        return None
    tag = header.strip()
    if len(tag) < 2 or not (tag.startswith('"') and tag.endswith('"')):
        raise HTTPException(400, 'If-Match must be one entity tag: "..."')
    return tag[1:-1]


def _with_etag(view: LabelView, response: Response) -> LabelView:
    response.headers["ETag"] = f'"{view.etag}"'
    return view
