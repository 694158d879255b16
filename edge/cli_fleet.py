"""`driftbox fleet ...`: what a box does about its fleet, and, where the cluster tier is installed, the controller's commands."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from edge.cli_common import ConfigOption, DataDir, Json, load_given
from edge.console import print_json, say
from edge.plug_ins import add_fleet_commands

fleet_app = typer.Typer(help="Several boxes as one: join a fleet, or run its controller.", no_args_is_help=True)
add_fleet_commands(fleet_app)


@fleet_app.command("join")
def fleet_join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The controller: https://fleet.example:8470.", show_default=False)],
    code: Annotated[
        str,
        typer.Option("--code", metavar="CODE", help="Join code that the controller showed; or the variable DRIFTBOX_JOIN_CODE.",
                     envvar="DRIFTBOX_JOIN_CODE", show_default=False),
    ],
    config: ConfigOption = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Make this box a member of a fleet. Its key is made here and never leaves. A box that runs notices within seconds."""
    from edge.fleet.joining import Candidate, join
    from edge.fleet.membership import MemberFolder
    from edge.software import software_version

    given = load_given(config, data_dir)
    candidate = Candidate(
        box=given.box.id, site=given.box.site, capacity_pct=given.gpus.capacity_pct, software=software_version()
    )
    member = join(MemberFolder(given.box.data_dir), url, code, candidate, now_utc_s=time.time())
    if json:
        print_json({"box": member.box, "site": member.site, "url": member.url, "broker": vars(member.broker)})
        return
    say(f"{member.box} has joined the fleet of {member.url}; its broker is {member.broker.host}:{member.broker.port}")
    if not given.fleet.enabled:
        say("fleet.enabled is false in the configuration: the box will not take part until that is changed")


@fleet_app.command("leave")
def fleet_leave(config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Leave the fleet, also when its controller cannot be reached; everything of the membership is deleted here.

    The box goes on watching its own cameras, and only those."""
    from edge.fleet.joining import leave
    from edge.fleet.membership import MemberFolder

    untold = leave(MemberFolder(load_given(config, data_dir).box.data_dir))
    if json:
        print_json({"left": True, "told": not untold, "why": untold})
    elif untold:
        say(f"left; the controller does not know it yet ({untold}). Remove the box there: driftbox fleet boxes remove")
    else:
        say("left")


@fleet_app.command("member")
def fleet_member(config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """This box's membership, and how the running box stands with its fleet."""
    from edge.fleet.cli_view import member_view
    from edge.fleet.view import sentence

    view = member_view(load_given(config, data_dir))
    if json:
        print_json(view.model_dump(mode="json"))
        return
    say(sentence(view) or "this box is a member of no fleet")
    for share in view.shares:
        say(f"customer {share.customer}: sure of {share.share_pct:g} pct")
    for order in view.cameras:
        say(f"{order.camera}: {order.role}, {order.stage or 'not begun'}{f' ({order.problem})' if order.problem else ''}")
