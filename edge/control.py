"""What people and programs can tell a running box, whichever way they come (HTTP, MQTT, pages): one list of commands, one door.

`BoxControl.do` is called from web and MQTT threads. It returns when the box has done it, or raises one of our errors. Every command is
a name of `COMMANDS` with its arguments as a pydantic model; what came in is checked by it at the door.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from configs.units import CAMERA_ID
from edge.web.who import Role


class Arguments(BaseModel):
    """Base: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OfCamera(Arguments):
    camera: str = Field(pattern=CAMERA_ID.pattern, description="Camera id.")


class Switch(OfCamera):
    on: bool = Field(strict=True, description="On or off.")


class Rollback(OfCamera):
    version: str | None = Field(
        default=None, max_length=200, description="Version to go back to; default: the one that served before."
    )


class Promote(Arguments):
    version: str = Field(max_length=200, description="Version that is to serve.")
    force: bool = Field(default=False, strict=True, description="Although it was rejected.")


#: Command -> (its arguments, what one must be to give it, what it does).
COMMANDS: dict[str, tuple[type[Arguments], Role, str]] = {
    "camera/watch": (Switch, Role.OPERATOR, "Watch a camera, or stop watching it; its models and samples stay."),
    "camera/learning": (Switch, Role.OPERATOR, "Let a camera's model learn, or leave it as it is; inference goes on."),
    "camera/restart": (OfCamera, Role.OPERATOR, "Open a camera anew, also one that is quarantined."),
    "model/rollback": (Rollback, Role.OPERATOR, "Let an earlier version serve a camera again."),
    "model/promote": (Promote, Role.OPERATOR, "Let a version serve its camera."),
}


class BoxControl(Protocol):
    """See the module."""

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        """Carries a command out. by: who asks, for log and notes. Returns what changed (JSON). Raises UsageError (unknown command, bad
        arguments, code 'not_found' for an unknown camera or version), JobError, StorageError."""
