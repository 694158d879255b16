"""What a box shows of its fleet: the schema of `/api/v1/fleet`, and the seam behind it."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from edge.status import View


class ShareView(View):
    """A customer's share on this box."""

    customer: str
    share_pct: float = Field(description="Percent of one GPU (of one core without) that its cameras are sure of.")


class OrderView(View):
    """What the fleet wishes of one camera, and how far the box is."""

    camera: str = Field(description="HOME/CAMERA.")
    role: str = Field(description="own, warm, standby or release.")
    term: int
    reason: str = ""
    stage: str = Field(default="", description="owning, warming, warm, standby, released, failed; empty: not begun.")
    problem: str = ""


class FleetView(View):
    """The box as a member of its fleet."""

    joined: bool
    enabled: bool = Field(default=True, description="`fleet.enabled`: whether the membership is used.")
    box: str = Field(default="", description="Its id in the fleet.")
    site: str = ""
    controller: str = Field(default="", description="Address of the controller in charge.")
    connected: bool = Field(default=False, description="Whether it hears the fleet's broker.")
    trouble: str = Field(default="", description="Why not, or what is wrong with its certificate.")
    silent_s: float | None = Field(
        default=None, description="Since when nothing was heard of the controller; null: never since the start."
    )
    offset_s: float | None = Field(default=None, description="The controller's clock minus the box's; null: not measured yet.")
    term: int = Field(default=0, description="Of the wish in force; 0: none.")
    version: int = 0
    refused: str = Field(default="", description="Why a newer wish is not in force.")
    problems: tuple[str, ...] = Field(default=(), description="What of the wish could not be done.")
    draining: bool = Field(default=False, description="The fleet is to empty this box.")
    shares: tuple[ShareView, ...] = ()
    cameras: tuple[OrderView, ...] = ()
    certificate_until_utc: float | None = Field(default=None, description="When the box's certificate ends.")


class FleetSource(Protocol):
    """Called from worker threads; answers at once."""

    def fleet(self) -> FleetView: ...


def sentence(view: FleetView) -> str:
    """A line for the Health page; '' for a box that has joined no fleet."""
    if not view.joined:
        return ""
    if not view.enabled:
        return "member of a fleet, switched off by fleet.enabled"
    wish = f"wish {view.term}.{view.version} in force" if view.term else "no wish in force"
    if view.connected and (view.silent_s is None or view.silent_s < 60):
        text = f"member of the fleet of {view.controller}, {wish}"
    else:
        text = f"member of the fleet of {view.controller}, alone just now, {wish}"
    more = [why for why in (view.trouble, view.refused and f"a newer wish was refused: {view.refused}", *view.problems) if why]
    return "; ".join([text, *more])
