"""`/api/v1/sign-in`, `/claim`, `/sign-out`, `/me` and `/accounts`: signing in, and who may what.

Who may pass at all is settled before, by `edge.web.accounts.gate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.types import Scope

from configs.errors import UsageError
from configs.units import CAMERA_ID
from edge.store.accounts import ApiToken, Session, User, role_named
from edge.web.accounts.book import Accounts, Asking, SignedIn
from edge.web.accounts.gate import address_of, cookie_name, is_secure
from edge.web.who import Role, needs, who_of

RoleName = Literal["viewer", "operator", "admin"]
Name = Annotated[str, Path(max_length=40, pattern=r"^[a-z0-9][a-z0-9._@-]*$", description="Name of the account.")]
TokenId = Annotated[str, Path(pattern=r"^[0-9a-f]{12}$", description="`id` of the token.")]
_Responses = dict[int | str, dict[str, Any]]
_WRONG: _Responses = {
    401: {"description": "name, password or claim code is wrong"},
    429: {"description": "too many wrong tries; `Retry-After` says when the next one counts"},
}
_NOT_FOUND: _Responses = {404: {"description": "there is no such thing"}}
_REFUSED: _Responses = {
    400: {"description": "a name or password that cannot be"}, 409: {"description": "taken already, claimed already, or the last admin"},
}  # fmt: skip
_STATUS = {"wrong": 401, "taken": 409, "claimed": 409, "last_admin": 409, "not_found": 404}


class In(BaseModel):
    """Base of what comes in: unknown keys are refused; passwords are never shown, whatever is wrong with them."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class SignIn(In):
    name: str = Field(max_length=200)
    password: SecretStr = Field(max_length=1000)


class Claim(In):
    code: SecretStr = Field(
        max_length=100, description="As printed at the first start; dashes and small letters do not matter."
    )
    name: str = Field(max_length=40, description="Name of the first admin: small letters, digits and . _ @ -")
    password: SecretStr = Field(max_length=1000, description="10 to 200 characters.")


class NewPassword(In):
    old: SecretStr = Field(max_length=1000)
    new: SecretStr = Field(max_length=1000, description="10 to 200 characters.")


class GivenPassword(In):
    password: SecretStr = Field(max_length=1000, description="10 to 200 characters.")


class NewUser(In):
    name: str = Field(max_length=40)
    password: SecretStr = Field(max_length=1000, description="10 to 200 characters.")
    role: RoleName = "viewer"


class NewRole(In):
    role: RoleName


class NewToken(In):
    name: str = Field(max_length=40, description="What it is for; in lists and in the audit log.")
    role: RoleName = Field(default="viewer", description="Not more than one's own.")
    areas: list[Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,30}$")]] = Field(
        default=[], max_length=40,
        description="Parts of the interface it is held to: words after /api/v1/ such as status, events; also metrics. Empty: all.",
    )  # fmt: skip
    cameras: list[Annotated[str, Field(pattern=CAMERA_ID.pattern)]] = Field(
        default=[], max_length=1000,
        description="Ids of the cameras it is held to: it sees nothing else, and is an operator at most. Empty: all.",
    )  # fmt: skip
    days: float | None = Field(default=365.0, gt=0, le=3650, description="It is good for so long; null: until it is revoked.")


class SignInView(BaseModel):
    """What a page must know before anybody signed in."""

    login: bool = Field(description="False: this box has no accounts (`web.login: false`).")
    claimed: bool = Field(
        description="False: nobody has an account yet; the claim code makes the first (`POST /api/v1/claim`)."
    )
    me: Me | None = Field(description="Who asks, null: nobody has signed in.")


class Me(BaseModel):
    name: str
    role: RoleName
    kind: Literal["session", "token", "local", "none"] = Field(
        description="By what one is known; none: the box has no accounts."
    )
    ends_utc: float | None = Field(default=None, description="When one is asked to sign in again, seconds since the epoch.")


class UserView(BaseModel):
    name: str
    role: RoleName
    created_utc: float
    signed_in_utc: float | None = Field(description="Last time, null: never.")


class SessionView(BaseModel):
    ref: str = Field(description="Names the session; opens nothing.")
    user: str
    created_utc: float
    seen_utc: float = Field(description="Last request, to a minute.")
    address: str
    agent: str = Field(description="What the browser calls itself.")
    own: bool = Field(description="The session that asks.")


class TokenView(BaseModel):
    id: str
    name: str
    role: RoleName
    areas: list[str]
    cameras: list[str] = Field(description="It is held to these; empty: to none.")
    owner: str | None = Field(description="Account that made it, null: the box's command line.")
    created_utc: float
    expires_utc: float | None
    used_utc: float | None = Field(description="Last use, to a minute.")


class TokenShown(BaseModel):
    token: str = Field(description="Shown this once: Authorization: Bearer ...")
    about: TokenView


class AuditView(BaseModel):
    id: int
    at_utc: float
    who: str
    address: str
    action: str = Field(description="sign-in, user.add, ..., or method and path of a request that changed something.")
    outcome: str = Field(description="ok, wrong, too soon, or an HTTP status.")
    detail: str


class AuditPage(BaseModel):
    entries: list[AuditView] = Field(description="Newest first.")
    next: int | None = Field(description="`before` of the next page, null: this is the last.")


SignInView.model_rebuild()


def me_routes(accounts: Accounts | None) -> APIRouter:
    """What every box answers, with accounts or without."""
    routes = APIRouter(prefix="/api/v1", tags=["accounts"])

    @routes.get("/sign-in")
    def sign_in_state(request: Request) -> SignInView:
        """Whether there are accounts, whether the box is claimed, and who asks."""
        known = accounts is None or _asking(request) is not None
        return SignInView(
            login=accounts is not None, claimed=accounts is None or accounts.claimed(), me=_me(request) if known else None
        )

    @routes.get("/me")
    def me(request: Request) -> Me:
        """Who asks."""
        return _me(request)

    return routes


def account_routes(accounts: Accounts) -> APIRouter:
    """Routes over the accounts of the box; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1", tags=["accounts"])

    @routes.post("/claim", status_code=201, responses={**_WRONG, **_REFUSED})
    def claim(given: Claim, request: Request, response: Response) -> Me:
        """Makes the first admin and signs it in. Needs the code that the box printed at its first start."""
        with _refusals():
            done = accounts.claim(
                given.code.get_secret_value(), given.name, given.password.get_secret_value(), **_from(request)
            )
        return _signed_in(done, request, response)

    @routes.post("/sign-in", responses=_WRONG)
    def sign_in(given: SignIn, request: Request, response: Response) -> Me:
        """Opens a session; the answer sets its cookie."""
        with _refusals():
            done = accounts.sign_in(given.name, given.password.get_secret_value(), **_from(request))
        return _signed_in(done, request, response)

    @routes.post("/sign-out", status_code=204)
    def sign_out(request: Request, response: Response) -> None:
        """Ends the session that asks, here and on the box."""
        session_id = getattr(request.state, "session_id", "")
        if session_id:
            accounts.sign_out(session_id, address=address_of(request.scope))
        _drop_cookie(request.scope, response)

    @routes.put("/me/password", status_code=204, responses={**_WRONG, **_REFUSED, 403: {"description": "asked with a token"}})
    def own_password(given: NewPassword, request: Request) -> None:
        """Changes the own password; all other sessions of the account end."""
        asking = _asked_by_session(request)
        with _refusals(wrong=403):
            accounts.change_own_password(
                asking.who.name, given.old.get_secret_value(), given.new.get_secret_value(),
                session_id=request.state.session_id, address=address_of(request.scope),
            )  # fmt: skip

    routes.include_router(_user_routes(accounts))
    routes.include_router(_token_routes(accounts))
    routes.include_router(_session_routes(accounts))
    return routes


def _user_routes(accounts: Accounts) -> APIRouter:
    routes = APIRouter(prefix="/accounts/users", dependencies=[needs(Role.ADMIN)])

    @routes.get("")
    def users() -> list[UserView]:
        """All accounts, by name."""
        return [_user_view(user) for user in accounts.users()]

    @routes.post("", status_code=201, responses=_REFUSED)
    def add_user(given: NewUser, request: Request) -> UserView:
        """Adds an account."""
        with _refusals():
            return _user_view(
                accounts.add_user(given.name, role_named(given.role), given.password.get_secret_value(), **_by(request))
            )

    @routes.patch("/{name}", responses={**_NOT_FOUND, **_REFUSED})
    def set_role(name: Name, given: NewRole, request: Request) -> UserView:
        """Gives an account another role, in force at once. The last admin stays one."""
        with _refusals():
            return _user_view(accounts.set_role(name, role_named(given.role), **_by(request)))

    @routes.put("/{name}/password", status_code=204, responses={**_NOT_FOUND, **_REFUSED})
    def set_password(name: Name, given: GivenPassword, request: Request) -> None:
        """Gives an account another password; all its sessions end."""
        with _refusals():
            accounts.set_password(name, given.password.get_secret_value(), **_by(request))

    @routes.delete("/{name}", status_code=204, responses={**_NOT_FOUND, **_REFUSED})
    def remove_user(name: Name, request: Request) -> None:
        """Removes an account with its sessions and tokens. The last admin stays."""
        with _refusals():
            accounts.remove_user(name, **_by(request))

    return routes


def _token_routes(accounts: Accounts) -> APIRouter:
    routes = APIRouter(prefix="/accounts/tokens")

    @routes.get("")
    def tokens(request: Request) -> list[TokenView]:
        """One's own tokens; an admin sees all."""
        asking = _known(request)
        return [_token_view(token) for token in accounts.tokens(None if asking.who.role >= Role.ADMIN else asking.user or "")]

    @routes.post(
        "", status_code=201, responses={**_REFUSED, 403: {"description": "a role above one's own, or asked with a token"}}
    )
    def add_token(given: NewToken, request: Request) -> TokenShown:
        """Makes a token for a program. It is shown this once."""
        asking, role = _known(request), role_named(given.role)
        if asking.kind == "token":
            raise HTTPException(403, "a token makes no tokens; sign in")
        if role > asking.who.role:
            raise HTTPException(403, f"a token may do no more than who makes it: {asking.who.role.word}")
        with _refusals():
            token, about = accounts.add_token(
                given.name, role, owner=asking.user, areas=given.areas, cameras=given.cameras,
                lives_s=None if given.days is None else given.days * 86_400.0,
                **_by(request),
            )  # fmt: skip
        return TokenShown(token=str(token), about=_token_view(about))

    @routes.delete("/{id}", status_code=204, responses=_NOT_FOUND)
    def revoke_token(id: TokenId, request: Request) -> None:
        """Revokes a token, in force at once."""
        asking = _known(request)
        with _refusals():
            accounts.revoke_token(id, of=None if asking.who.role >= Role.ADMIN else asking.user or "", **_by(request))

    return routes


def _session_routes(accounts: Accounts) -> APIRouter:
    routes = APIRouter(prefix="/accounts")

    @routes.get("/sessions")
    def sessions(request: Request) -> list[SessionView]:
        """Open sessions of one's own account; an admin sees all."""
        asking = _known(request)
        return [_session_view(session, asking) for session in accounts.sessions(asking)]

    @routes.delete("/sessions/{ref}", status_code=204, responses=_NOT_FOUND)
    def end_session(ref: Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")], request: Request) -> None:
        """Ends a session: whoever uses it must sign in again."""
        with _refusals():
            accounts.end_session(_known(request), ref, address=address_of(request.scope))

    @routes.get("/audit", dependencies=[needs(Role.ADMIN)])
    def audit(
        limit: Annotated[int, Query(ge=1, le=500, description="Entries of this page.")] = 100,
        before: Annotated[int | None, Query(ge=0, le=2**53, description="`next` of the page before.")] = None,
        who: Annotated[str | None, Query(max_length=100, description="Only this account's or token's.")] = None,
    ) -> AuditPage:
        """Who did what, from where, and what came of it; newest first."""
        found = accounts.audit_log(limit=limit + 1, before=before, who=who)
        entries = [AuditView(**vars(entry)) for entry in found[:limit]]
        return AuditPage(entries=entries, next=entries[-1].id if len(found) > limit else None)

    return routes


# --- inside -----------------------------------------------------------------------------------------------------------


@contextmanager
def _refusals(*, wrong: int = 401) -> Iterator[None]:
    """Our refusals as HTTP. wrong: for a wrong password; 401 would tell the page that the session is over."""
    try:
        yield
    except UsageError as error:
        retry_s = getattr(error, "retry_s", None)
        status = 429 if retry_s is not None else wrong if error.code == "wrong" else _STATUS.get(error.code, 400)
        detail = error.message + (f"; {error.remedy}" if error.remedy else "")
        raise HTTPException(
            status, detail, headers={"Retry-After": str(round(retry_s))} if retry_s is not None else None
        ) from None


def _asking(request: Request) -> Asking | None:
    return getattr(request.state, "asking", None)


def _known(request: Request) -> Asking:
    asking = _asking(request)
    if asking is None:
        raise HTTPException(401, "sign in, or bring a token")
    return asking


def _asked_by_session(request: Request) -> Asking:
    asking = _known(request)
    if asking.kind != "session":
        raise HTTPException(403, "only whoever signed in with a password can change it")
    return asking


def _me(request: Request) -> Me:
    asking = _asking(request)
    if asking is not None:
        return _me_of(asking)
    who = who_of(request)
    return Me.model_validate({"name": who.name, "role": who.role.word, "kind": "none"})


def _me_of(asking: Asking) -> Me:
    return Me.model_validate(
        {"name": asking.who.name, "role": asking.who.role.word, "kind": asking.kind, "ends_utc": asking.ends_utc}
    )


def _from(request: Request) -> dict[str, str]:
    return {"address": address_of(request.scope), "agent": request.headers.get("user-agent", "")}


def _by(request: Request) -> dict[str, str]:
    return {"by": who_of(request).name, "address": address_of(request.scope)}


def _signed_in(done: SignedIn, request: Request, response: Response) -> Me:
    # No lifetime: the box knows when a session is over, and a browser that is closed forgets it.
    response.set_cookie(
        cookie_name(request.scope), done.session_id, httponly=True, samesite="strict", secure=is_secure(request.scope), path="/"
    )
    return _me_of(done.asking)


def _drop_cookie(scope: Scope, response: Response) -> None:
    response.delete_cookie(cookie_name(scope), httponly=True, samesite="strict", secure=is_secure(scope), path="/")


def _user_view(user: User) -> UserView:
    return UserView(**(vars(user) | {"role": user.role.word}))


def _token_view(token: ApiToken) -> TokenView:
    return TokenView(**(vars(token) | {"role": token.role.word, "areas": list(token.areas), "cameras": list(token.cameras)}))


def _session_view(session: Session, asking: Asking) -> SessionView:
    known = {name: value for name, value in vars(session).items() if name != "role"}
    return SessionView(**known, own=asking.kind == "session" and session.ref == asking.ref)
