"""What the fleet view does beside the routes of `cluster.controller.api`: staged rollouts with their bundles, and where sites lie."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import open_file, to_thread
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from cluster.controller.services import Services
from cluster.rollouts.types import RolloutRules
from cluster.rollouts.wishes import RolloutWish
from cluster.types import SitePlace
from configs.errors import UsageError
from edge.web.who import Role, needs, who_of
from scheduler.fleet.types import CameraKey

Id = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,63}$")]
_ID = re.compile(r"[a-z0-9_-]{1,63}")


class In(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class NewRollout(In):
    """bundle: name under which it was put; cameras, customer, box: whose cameras (all that are given must fit); none: all."""

    bundle: Id
    name: str = Field(default="", max_length=200)
    cameras: list[str] = Field(default=[], max_length=20_000)
    customer: str = ""
    arch: str = Field(default="", description="Only cameras that serve this model architecture; '': any.")
    steps_pct: list[float] = Field(default=[0, 10, 50, 100], min_length=1, max_length=20)
    soak_min: float = Field(default=60, ge=0, le=60 * 24 * 30)
    margin: float = Field(default=0.03, ge=0, le=1, description="Fall of quality that stops it.")
    refused_pct: float = Field(default=50, gt=0, le=100, description="More refusals of gates than this stop it.")


class Change(In):
    what: Literal["stop", "go_on", "roll_back", "forget"]
    reason: str = Field(default="", max_length=500)


class Place(In):
    latitude_deg: float = Field(ge=-90, le=90)
    longitude_deg: float = Field(ge=-180, le=180)
    name: str = Field(default="", max_length=100)


def doing_routes(services: Services) -> APIRouter:
    """Rollouts need the role operator, bundles and sites admin."""
    routes = APIRouter(prefix="/api/v1/fleet", tags=["view"])
    actions = services.actions

    @routes.post("/rollouts/{id}", status_code=201, dependencies=[needs(Role.OPERATOR)])
    def begin(request: Request, id: str, body: NewRollout) -> dict[str, Any]:
        """Begins a staged rollout of a bundle that was put before."""
        actions.rollout(_wish(services, _checked(id), body), by=who_of(request).name)
        return {}

    @routes.patch("/rollouts/{id}", dependencies=[needs(Role.OPERATOR)])
    def change(request: Request, id: str, body: Change) -> dict[str, Any]:
        """Stops it, goes on with it (its next step begins at once), rolls it back, or forgets one that has ended."""
        actions.rollout(RolloutWish(what=body.what, id=_checked(id), reason=body.reason), by=who_of(request).name)
        return {}

    @routes.put("/bundles/{name}", status_code=201, dependencies=[needs(Role.ADMIN)])
    async def put_bundle(request: Request, name: str) -> dict[str, Any]:
        """A signed model bundle (`driftbox models export`) for a rollout, as it is (application/octet-stream)."""
        kept, by = await _on_disk(request.stream()), who_of(request).name
        try:
            await to_thread.run_sync(lambda: actions.put_bundle(_checked(name), kept, by=by))
        finally:
            kept.unlink(missing_ok=True)
        return {"name": name}

    @routes.put("/sites/{site}", dependencies=[needs(Role.ADMIN)])
    def put_site(request: Request, site: str, body: Place) -> dict[str, Any]:
        """Where a site lies, for the map."""
        place = SitePlace(site=_checked(site), latitude_deg=body.latitude_deg, longitude_deg=body.longitude_deg, name=body.name)
        actions.put_site(place, by=who_of(request).name)
        return {}

    @routes.delete("/sites/{site}", dependencies=[needs(Role.ADMIN)])
    def remove_site(request: Request, site: str) -> dict[str, Any]:
        actions.remove_site(_checked(site), by=who_of(request).name)
        return {}

    return routes


# --- inside -----------------------------------------------------------------------------------------------------------


def _checked(id: str) -> str:
    if not _ID.fullmatch(id):
        raise UsageError("a name is 1 to 63 of a-z, 0-9, '_', '-'", subject=id[:64], code="name")
    return id


def _wish(services: Services, id: str, body: NewRollout) -> RolloutWish:
    try:
        rules = RolloutRules(
            steps_frac=tuple(pct / 100 for pct in body.steps_pct), soak_s=60 * body.soak_min, margin=body.margin,
            refused_frac=body.refused_pct / 100,
        )  # fmt: skip
        wanted = {CameraKey.parse(text) for text in body.cameras}
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    if body.customer or body.arch or not wanted:
        reports = [camera for view in services.state().boxes.values() for camera in view.cameras]
        fitting = {c.camera for c in reports if body.customer in ("", c.customer) and body.arch in ("", c.arch)}
        wanted = wanted & fitting if wanted else fitting
    if not wanted:
        raise HTTPException(400, "no camera fits: check customer, architecture and cameras")
    return RolloutWish(what="begin", id=id, parcel=body.bundle, name=body.name, cameras=tuple(sorted(wanted)), rules=rules)


async def _on_disk(chunks: AsyncIterator[bytes]) -> Path:
    """The body in a file of its own: it can be hundreds of megabytes."""
    with tempfile.NamedTemporaryFile(prefix="driftbox-", suffix=".bundle", delete=False) as made:
        kept = Path(made.name)
    try:
        async with await open_file(kept, "wb") as file:
            async for chunk in chunks:
                await file.write(chunk)
    except BaseException:
        kept.unlink(missing_ok=True)
        raise
    return kept
