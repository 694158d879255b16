"""`/api/v1/fleet/...`: the controller for programs, for the commands of `driftbox fleet`, and for the fleet view's pages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from cluster.controller.documents import state_document
from cluster.controller.services import Services
from cluster.types import Customer, GroupWeight, Measure, Utility
from configs.errors import DriftboxError, UsageError
from edge.web.who import Role, needs, who_of
from scheduler.fleet.types import CameraKey

_STATUS = {"not_found": 404, "in_use": 409, "taken": 409, "not_in_charge": 503}


def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Ours, as the box's API says it."""
    assert isinstance(error, DriftboxError)
    status = _STATUS.get(error.code, 422 if isinstance(error, UsageError) else 503)
    body = {"code": error.code, "message": error.message, "subject": error.subject, "remedy": error.remedy}
    return JSONResponse({"error": body}, status_code=status)


def answer_wrong_input(request: Request, error: Exception) -> JSONResponse:
    """Which field is wrong and why; never what was given. `detail` is what a box's API answers."""
    assert isinstance(error, RequestValidationError)
    problems = [{"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()]
    told = [(".".join(map(str, p["loc"][1:])) or "the body", p["msg"]) for p in problems]
    body = {
        "code": "wrong_input", "message": "; ".join(f"{field}: {why}" for field, why in told[:5]), "subject": told[0][0],
        "remedy": "/api/v1/openapi.json describes every field",
    }  # fmt: skip
    return JSONResponse({"error": body, "detail": problems}, status_code=422)


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class CustomerIn(_In):
    """`cluster.types.Customer` but for its id."""

    name: str = Field(default="", max_length=200)
    weight: float = Field(default=1.0, gt=0, description="Among its siblings.")
    path: list[str] = Field(default=[], max_length=10, description="Groups it belongs to, the outer one first.")
    goal: float = Field(default=0.8, gt=0, le=1, description="What is promised, of `measure`.")
    measure: Measure = "quality"
    utility: Utility = "linear"
    stated_pct: float | None = Field(default=None, ge=0, description="What it says it needs.")
    at_least_pct: float = Field(default=1.0, gt=0, description="Never less, as long as the fleet has it.")


class GroupIn(_In):
    weight: float = Field(gt=0, description="Among its siblings; 1 is what every group has.")


class InviteIn(_In):
    box: str = Field(default="", max_length=63, description="The only id that may use it.")
    days: float = Field(default=1.0, gt=0, le=30, description="How long it is good.")


class DrainIn(_In):
    on: bool = Field(default=True, description="True empties the box, false lets it be used again.")


class PinIn(_In):
    box: str = Field(default="", max_length=63, description="Where it is to be watched; empty: the fleet decides.")


def fleet_routes(services: Services) -> APIRouter:
    """Looking needs the role viewer, acting operator, boxes and customers admin."""
    routes = APIRouter(prefix="/api/v1/fleet", tags=["fleet"])
    actions = services.actions

    @routes.get("/status")
    def status() -> dict[str, Any]:
        """The controller itself."""
        return asdict(services.status())

    @routes.get("/state")
    def state() -> dict[str, Any]:
        """Everything it knows and has decided."""
        return state_document(services.state())

    @routes.get("/members")
    def members() -> list[dict[str, Any]]:
        """Boxes that have joined, with their certificates."""
        return [asdict(row) for row in services.members()]

    @routes.get("/invites", dependencies=[needs(Role.ADMIN)])
    def invites() -> list[dict[str, Any]]:
        """Join codes, without their secrets."""
        return [asdict(row) for row in services.invites()]

    @routes.post("/invites", dependencies=[needs(Role.ADMIN)])
    def invite(request: Request, body: InviteIn) -> dict[str, Any]:
        """A join code, shown this once."""
        return asdict(actions.invite(by=who_of(request).name, box=body.box, days=body.days))

    @routes.put("/customers/{customer}", dependencies=[needs(Role.ADMIN)])
    def put_customer(request: Request, customer: str, body: CustomerIn) -> dict[str, Any]:
        """Adds or changes a customer."""
        try:
            wanted = Customer(id=customer, **{**body.model_dump(), "path": tuple(body.path)})
        except ValueError as error:
            raise UsageError(str(error), subject=customer[:64], code="customer") from None
        actions.put_customer(wanted, by=who_of(request).name)
        return {}

    @routes.delete("/customers/{customer}", dependencies=[needs(Role.ADMIN)])
    def remove_customer(request: Request, customer: str) -> dict[str, Any]:
        actions.remove_customer(customer, by=who_of(request).name)
        return {}

    @routes.put("/groups/{group:path}", dependencies=[needs(Role.ADMIN)])
    def weigh_group(request: Request, group: str, body: GroupIn) -> dict[str, Any]:
        """What a group of customers counts among its siblings; `region/north` is a group within a group."""
        try:
            wanted = GroupWeight(path=tuple(group.split("/")), weight=body.weight)
        except ValueError as error:
            raise UsageError(str(error), subject=group[:64], code="group") from None
        actions.weigh_group(wanted, by=who_of(request).name)
        return {}

    @routes.put("/boxes/{box}/drain", dependencies=[needs(Role.OPERATOR)])
    def drain(request: Request, box: str, body: DrainIn) -> dict[str, Any]:
        """Empties the box, or lets it be used again."""
        actions.drain(box, body.on, by=who_of(request).name)
        return {}

    @routes.delete("/boxes/{box}/certificate", dependencies=[needs(Role.ADMIN)])
    def revoke(request: Request, box: str) -> dict[str, Any]:
        """Its certificate is worth nothing from now on."""
        actions.revoke(box, by=who_of(request).name)
        return {}

    @routes.delete("/boxes/{box}", dependencies=[needs(Role.ADMIN)])
    def forget(request: Request, box: str) -> dict[str, Any]:
        """It is no member any more."""
        actions.forget(box, by=who_of(request).name)
        return {}

    @routes.put("/cameras/{home}/{camera}/pin", dependencies=[needs(Role.OPERATOR)])
    def pin(request: Request, home: str, camera: str, body: PinIn) -> dict[str, Any]:
        """Says where a camera is to be watched."""
        actions.pin(CameraKey(home=home, camera=camera), body.box, by=who_of(request).name)
        return {}

    return routes
