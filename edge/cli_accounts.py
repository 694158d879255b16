"""`driftbox accounts ...`: who may use the box's page and interface. Works on the data folder, whether a box runs on it or not; a
running one heeds what was changed within two seconds.

Passwords are asked for, read from standard input, or made up: never taken from the command line, which others can see.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import UsageError
from edge.cli_common import ConfigOption, DataDir, Json, load_given
from edge.console import print_json, print_table, say

if TYPE_CHECKING:
    from edge.store.accounts import ApiToken
    from edge.web.accounts.book import Accounts

accounts_app = typer.Typer(help="Accounts and tokens of a box: who may use its page and interface.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the account.")]
RoleOption = Annotated[str, typer.Option("--role", help="viewer, operator or admin.")]
FromStdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input (one line).")]
MadeUp = Annotated[bool, typer.Option("--generate", help="Make a password up and print it, this once.")]
#: Where the audit log says that a command came from.
HERE = "command line"


@accounts_app.command("list")
def accounts_list(data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """The accounts of the box and their roles."""
    with _opened(data_dir, config) as accounts:
        users, claimed = accounts.users(), accounts.claimed()
    if json:
        rows = [
            {"name": u.name, "role": u.role.word, "created_utc": u.created_utc, "signed_in_utc": u.signed_in_utc} for u in users
        ]
        print_json({"claimed": claimed, "accounts": rows})
        return
    print_table(
        ("account", "role", "made", "signed in"),
        [(u.name, u.role.word, _day(u.created_utc), _day(u.signed_in_utc)) for u in users],
    )
    if not claimed:
        say("nobody has an account yet: `driftbox accounts claim-code`, or `driftbox accounts add NAME --role admin`")


@accounts_app.command("add")
def accounts_add(
    name: Name, role: RoleOption = "viewer", password_stdin: FromStdin = False, generate: MadeUp = False,
    data_dir: DataDir = None, config: ConfigOption = None, json: Json = False,
) -> None:  # fmt: skip
    """Add an account."""
    from edge.store.accounts import role_named

    given = role_named(role)
    with _opened(data_dir, config) as accounts:
        password = _password(password_stdin, generate)
        user = accounts.add_user(name, given, password, by=_me(), address=HERE)
    words = f"{user.name} may sign in as {user.role.word}"
    _tell({"name": user.name, "role": user.role.word}, words, password if generate else "", json=json)


@accounts_app.command("password")
def accounts_password(
    name: Name, password_stdin: FromStdin = False, generate: MadeUp = False, data_dir: DataDir = None, config: ConfigOption = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Give an account another password; all its sessions end."""
    with _opened(data_dir, config) as accounts:
        user = accounts.user(name.strip().lower())
        password = _password(password_stdin, generate)
        accounts.set_password(user.name, password, by=_me(), address=HERE)
    _tell(
        {"name": user.name}, f"{user.name} has a new password and must sign in again", password if generate else "", json=json
    )


@accounts_app.command("role")
def accounts_role(
    name: Name, role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, operator or admin.")],
    data_dir: DataDir = None, config: ConfigOption = None, json: Json = False,
) -> None:  # fmt: skip
    """Give an account another role, in force at once."""
    from edge.store.accounts import role_named

    given = role_named(role)
    with _opened(data_dir, config) as accounts:
        user = accounts.set_role(name.strip().lower(), given, by=_me(), address=HERE)
    _tell({"name": user.name, "role": user.role.word}, f"{user.name} is {user.role.word}", json=json)


@accounts_app.command("remove")
def accounts_remove(name: Name, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Remove an account with its sessions and tokens. The last admin stays."""
    with _opened(data_dir, config) as accounts:
        accounts.remove_user(name.strip().lower(), by=_me(), address=HERE)
    _tell({"name": name.strip().lower()}, f"{name} is gone", json=json)


@accounts_app.command("claim-code")
def accounts_claim_code(data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Make a new claim code, when nobody has an account yet and the first one was lost. The one before is void."""
    with _opened(data_dir, config) as accounts:
        code = accounts.new_code()
    _tell(
        {"claim_code": code},
        f"claim code: {code} (shown this once; open the page and make the first account with it)",
        json=json,
    )


@accounts_app.command("token")
def accounts_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the token is for.")],
    role: RoleOption = "viewer",
    area: Annotated[
        list[str] | None, typer.Option(help="Hold it to this part of the interface (status, events, metrics); may stand several times.")
    ] = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="Hold it to this camera: it sees nothing of the others; may stand several times.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, max=3650, help="It is good for so long; 0: until it is revoked.")] = 365.0,
    data_dir: DataDir = None, config: ConfigOption = None, json: Json = False,
) -> None:  # fmt: skip
    """Make an API token for a program. It is shown this once."""
    from edge.store.accounts import role_named

    given = role_named(role)
    with _opened(data_dir, config) as accounts:
        token, about = accounts.add_token(
            name, given, owner=None, by=_me(), address=HERE, areas=area or (), cameras=camera or (),
            lives_s=days * 86_400.0 if days else None,
        )  # fmt: skip
    _tell({"token": str(token), **_row(about)}, f"{token}\nshown this once; id {about.id}, role {about.role.word}", json=json)


@accounts_app.command("tokens")
def accounts_tokens(data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """All API tokens."""
    with _opened(data_dir, config) as accounts:
        rows = [_row(token) for token in accounts.tokens()]
    if json:
        print_json({"tokens": rows})
        return
    print_table(
        ("id", "name", "of", "role", "held to", "good until", "last used"),
        [
            (
                r["id"],
                r["name"],
                r["owner"] or "the box",
                r["role"],
                ", ".join([*r["areas"], *r["cameras"]]),
                _day(r["expires_utc"]),
                _day(r["used_utc"]),
            )
            for r in rows
        ],
    )


@accounts_app.command("revoke")
def accounts_revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `driftbox accounts tokens` names it.")],
    data_dir: DataDir = None, config: ConfigOption = None, json: Json = False,
) -> None:  # fmt: skip
    """Revoke an API token."""
    with _opened(data_dir, config) as accounts:
        accounts.revoke_token(token_id, of=None, by=_me(), address=HERE)
    _tell({"id": token_id}, f"token {token_id} opens nothing any more", json=json)


@accounts_app.command("audit")
def accounts_audit(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Entries at most.")] = 50,
    data_dir: DataDir = None, config: ConfigOption = None, json: Json = False,
) -> None:  # fmt: skip
    """Who did what, from where, and what came of it; newest first."""
    with _opened(data_dir, config) as accounts:
        entries = accounts.audit_log(limit=limit)
    if json:
        print_json({"entries": [vars(entry) for entry in entries]})
        return
    columns = ("when (UTC)", "who", "from", "what", "outcome", "detail")
    print_table(columns, [(_moment(e.at_utc), e.who, e.address, e.action, e.outcome, e.detail) for e in entries])


@contextmanager
def _opened(data_dir: DataDir, config: ConfigOption) -> Iterator[Accounts]:
    """The accounts of a data folder. One in which no box has run yet is made: an account may be there before the first start."""
    from edge.clock import SystemClock
    from edge.store.accounts import AccountStore
    from edge.store.folder import DataFolder
    from edge.store.store import Store
    from edge.web.accounts.book import Accounts

    root = load_given(config, data_dir).box.data_dir
    if not (root / "driftbox.db").is_file():
        DataFolder(root).close()
    with Store(root / "driftbox.db") as store:
        yield Accounts(AccountStore(store), SystemClock())


def _password(from_stdin: bool, made_up: bool) -> str:
    """Raises UsageError."""
    if from_stdin and made_up:
        raise UsageError("--password-stdin and --generate are two ways", remedy="choose one")
    if made_up:
        import secrets

        return secrets.token_urlsafe(15)
    if from_stdin:
        return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask for the password", remedy="give it with --password-stdin, or use --generate"
        )
    first = getpass.getpass("password: ")
    if getpass.getpass("once more: ") != first:
        raise UsageError("the two passwords differ", remedy="try again")
    return first


def _me() -> str:
    try:
        return f"{getpass.getuser()} (on the box)"
    except (KeyError, OSError):
        return "on the box"


def _tell(document: dict[str, object], words: str, password: str = "", *, json: bool) -> None:
    if json:
        print_json(document | ({"password": password} if password else {}))
        return
    say(words)
    if password:
        say(f"password: {password} (shown this once)")


def _row(token: ApiToken) -> dict[str, Any]:
    return {**vars(token), "role": token.role.word, "areas": list(token.areas), "cameras": list(token.cameras)}


def _day(utc: float | None) -> str | None:
    return None if utc is None else f"{datetime.fromtimestamp(utc, UTC):%Y-%m-%d}"


def _moment(utc: float) -> str:
    return f"{datetime.fromtimestamp(utc, UTC):%Y-%m-%d %H:%M:%S}"
