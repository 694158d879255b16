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
    """name: as the audit log tells it, a person's or a token's."""

    name: str
    role: Role


#: Who asks where there are no accounts: from this machine, and from elsewhere (`edge.api_guard`).
LOCAL = Who(name="local", role=Role.ADMIN)
ANYBODY = Who(name="anybody", role=Role.VIEWER)


def who_of(request: Request) -> Who:
    """Who asks."""
    who = getattr(request.state, "who", None)
    return who if isinstance(who, Who) else LOCAL


def needs(role: Role) -> Any:
    """A route's dependency: 403 for whoever may less."""

    def check(request: Request) -> Who:
        who = who_of(request)
        if who.role < role:
            raise HTTPException(403, f"{who.name} is a {who.role.word}; this needs the role {role.word}")
        return who

    return Depends(check)
