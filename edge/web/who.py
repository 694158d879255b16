"""Who asks over HTTP, and what that person or program may do. Every route that needs more than looking says so with `needs`.

    @routes.put("/...", dependencies=[needs(Role.OPERATOR)])

`edge.web.accounts` finds out who asks and puts it into `request.state.who` before a route runs; nobody is there when the box serves
without accounts (tests, `web.login: false`), where `edge.api_guard` lets only this machine write.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fastapi import Depends, HTTPException, Request
from starlette.requests import HTTPConnection


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEWER = 1  # sees pictures, numbers, events
    OPERATOR = 2  # cameras, labels, models, queries
    ADMIN = 3  # accounts, secrets, settings, back-ups

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Who:
    """name: as the audit log tells it, a person's or a token's. cameras: a token that is held to these sees nothing of the others
    (`edge.web.held`), None: all."""

    name: str
    role: Role
    cameras: frozenset[str] | None = None


#: Who asks where there are no accounts: from this machine, and from elsewhere (`edge.api_guard`).
LOCAL = Who(name="local", role=Role.ADMIN)
ANYBODY = Who(name="anybody", role=Role.VIEWER)


def who_of(connection: HTTPConnection) -> Who:
    """Who asks."""
    who = getattr(connection.state, "who", None)
    return who if isinstance(who, Who) else LOCAL


def needs(role: Role) -> Any:
    """A route's dependency: 403 for whoever may less."""

    def check(request: Request) -> Who:
        who = who_of(request)
        if who.role < role:
            raise HTTPException(403, f"{who.name} is a {who.role.word}; this needs the role {role.word}")
        return who

    return Depends(check)
