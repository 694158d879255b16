"""`driftbox fleet serve/status/drain/train/key/customers/boxes/workloads/simulate`: the commands of a fleet's controller; the command
line finds them by entry point.

Thin: every command calls one function and prints what it returns. Heavy libraries are imported inside commands. All but `serve` and
`workloads` work on the controller's data folder, whether it runs or not: what they wish is written down there, and a running controller
acts on it within a second.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from cluster.cli_workloads import workloads_app
from cluster.simulate.cli import simulate_command
from configs.errors import EnvironmentLacking, UsageError
from edge.console import print_json, print_table, say, say_json_line

if TYPE_CHECKING:
    from cluster.controller.serve import FleetFolder
    from configs.schema import ControllerConfig

fleet_app = typer.Typer()
customers_app = typer.Typer(help="Whose cameras are watched, and what was promised to them.", no_args_is_help=True)
boxes_app = typer.Typer(help="Which boxes belong to the fleet.", no_args_is_help=True)
fleet_app.command("simulate")(simulate_command)
fleet_app.add_typer(customers_app, name="customers")
fleet_app.add_typer(boxes_app, name="boxes")
fleet_app.add_typer(workloads_app, name="workloads")

FleetDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The controller's data folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
Box = Annotated[str, typer.Argument(metavar="BOX", help="The box's id.")]
DEFAULT_DIR = Path("driftbox-fleet")


def _who() -> str:
    try:
        return f"{getpass.getuser()} (command line)"
    except (OSError, KeyError):
        return "command line"


@contextmanager
def _folder(data_dir: Path) -> Iterator[FleetFolder]:
    from cluster.controller.database import NAME
    from cluster.controller.serve import FleetFolder
    from edge.clock import SystemClock

    if not (data_dir / NAME).is_file():
        raise EnvironmentLacking(
            f"there is no controller's data in {data_dir}", subject=str(data_dir),
            remedy="name its data folder (--data-dir); driftbox fleet serve makes one",
        )  # fmt: skip
    folder = FleetFolder(data_dir, SystemClock(), beside=True)
    try:
        yield folder
    finally:
        folder.close()


# --- serve ------------------------------------------------------------------------------------------------------------


@fleet_app.command("serve")
def serve(
    data_dir: FleetDir = DEFAULT_DIR,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port of the fleet view and of boxes (HTTPS).")] = 8470,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Name or address under which boxes reach it; the first one is told to them.")
    ] = None,
    broker: Annotated[
        str, typer.Option("--broker", metavar="HOST:PORT", help="MQTT broker of the fleet; without it the controller brings its own.")
    ] = "",
    broker_port: Annotated[int, typer.Option(help="Port of the controller's own broker (TLS).")] = 8883,
    broker_tls: Annotated[bool, typer.Option("--broker-tls", help="The given broker speaks TLS.")] = False,
    broker_ca: Annotated[Path | None, typer.Option(help="Authority of the given broker; default: the fleet's own.")] = None,
    broker_user: Annotated[str, typer.Option(help="User at the given broker.")] = "",
    broker_password: Annotated[str, typer.Option(help="Its password: env:NAME or file:PATH.")] = "",
    broker_cert: Annotated[Path | None, typer.Option(help="Certificate of the controller at it; default: one of the fleet's.")] = None,
    broker_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    prefix: Annotated[str, typer.Option(help="First part of every topic.")] = "driftbox",
    objective: Annotated[
        str, typer.Option(help="What Cilantro is after: njc, sw (social), ew (egalitarian welfare) or fair (parts by weight).")
    ] = "njc",
    round_s: Annotated[float, typer.Option(help="Seconds between two divisions of the shares.")] = 120.0,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML: the lease, the engine, how Ray and Kubernetes are reached.")
    ] = None,
    lease: Annotated[str, typer.Option(help="Where the lease is: file (the data folder), ray or kubernetes.")] = "",
    engine: Annotated[str, typer.Option(help="What placement is carried to: auto, ray, kubernetes or local.")] = "",
    ray: Annotated[str, typer.Option(metavar="HOST:PORT", help="Head of the site's Ray cluster.")] = "",
    ray_token_file: Annotated[str, typer.Option(metavar="FILE", help="That cluster's token.")] = "",
    kubeconfig: Annotated[str, typer.Option(metavar="FILE", help="Of the Kubernetes cluster.")] = "",
    login: Annotated[bool, typer.Option("--login/--no-login", help="People sign in.")] = True,
    json: Json = False,
) -> None:  # fmt: skip
    """Runs the fleet's controller until Ctrl-C."""
    import signal
    import threading

    from cluster.cilantro.policies import Objective
    from cluster.controller.serve import RunningController, ServeOptions
    from edge.logs import set_up_logging

    set_up_logging()
    if objective not in get_args(Objective):
        known = ", ".join(get_args(Objective))
        raise UsageError(f"there is no objective {objective[:40]}", subject="--objective", remedy=f"choose one of {known}")
    if not round_s >= 1:
        raise UsageError("a round takes at least a second", subject="--round-s")
    given = _given_broker(
        broker, tls=broker_tls, ca=broker_ca, user=broker_user, password=broker_password,
        cert=broker_cert, key=broker_key, prefix=prefix,
    )  # fmt: skip
    options = ServeOptions(
        data_dir=data_dir, host=host, port=port, names=tuple(name or ()), broker=given, broker_port=broker_port, prefix=prefix,
        objective=objective, round_s=round_s, login=login,  # type: ignore[arg-type]
        config=_configured(config, lease=lease, engine=engine, ray=ray, ray_token_file=ray_token_file, kubeconfig=kubeconfig),
    )  # fmt: skip
    ended = threading.Event()

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())

    listen()
    running = RunningController(options, say=say_json_line if json else say)
    running.start()
    listen()  # Ray puts a handler of its own in the place of ours
    try:
        ended.wait()
    finally:
        running.stop()


def _configured(
    path: Path | None, *, lease: str, engine: str, ray: str, ray_token_file: str, kubeconfig: str
) -> ControllerConfig:
    """The file, and what the command line says otherwise. Raises ConfigError."""
    from configs.load import load_controller
    from configs.schema import Secret

    given: dict[str, dict[str, Any]] = {
        "lease": {"store": lease}, "engine": {"use": engine}, "kubernetes": {"kubeconfig": kubeconfig},
        "ray": {"address": ray, "token": Secret(f"file:{ray_token_file}") if ray_token_file else ""},
    }  # fmt: skip
    said = {section: {key: value for key, value in keys.items() if value != ""} for section, keys in given.items()}
    return load_controller(path, {section: keys for section, keys in said.items() if keys})


def _given_broker(
    address: str, *, tls: bool, ca: Path | None, user: str, password: str, cert: Path | None, key: Path | None, prefix: str
) -> Any:
    """The broker's section, None: none is given. Raises UsageError, ConfigError."""
    from pydantic import ValidationError

    from configs.schema import MqttSection

    if not address:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"the broker is HOST:PORT, not {address[:80]}", subject="--broker")
    body: dict[str, Any] = {"enabled": True, "host": host, "port": int(port), "prefix": prefix, "tls": tls}
    body |= {"username": user} if user else {}
    body |= {"password": password} if password else {}
    body |= {"ca_file": ca} if ca is not None else {}
    body |= {"cert_file": cert, "key_file": key} if cert is not None and key is not None else {}
    try:
        return MqttSection.model_validate(body)
    except ValidationError as error:
        raise UsageError(f"the broker cannot be used: {error.errors()[0]['msg']}", subject="--broker") from None


# --- pooled training --------------------------------------------------------------------------------------------------


@fleet_app.command("train")
def train(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the model, and of the rollout that offers it.")],
    arch: Annotated[str, typer.Option(help="Model that the cameras run, from which the training begins.")],
    customer: Annotated[str, typer.Option(help="Only cameras of this customer give samples, and are offered the model.")] = "",
    box: Annotated[
        list[str] | None, typer.Option(help="Only cameras that this box watches give samples; may be given again.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, max=1000)] = 5,
    batch: Annotated[int, typer.Option(min=1, max=4096)] = 8,
    lr: Annotated[float, typer.Option(min=1e-7, max=1.0, help="Learning rate.")] = 1e-3,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Of the training; all have their place, or none.")] = 2,
    cpus: Annotated[float, typer.Option(min=0.1, max=256, help="Of each worker.")] = 1.0,
    share_pct: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Of each worker's box, in what its cameras leave, where the engine knows; default: --cpus cores.",
        ),
    ] = None,
    within_share: Annotated[
        bool, typer.Option("--within-share", help="No more of a box than --customer was granted there, where the engine knows.")
    ] = False,
    one_per_box: Annotated[bool, typer.Option("--one-per-box", help="No two workers on one box.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The controller's: which Ray cluster there is, and its token."),
    ] = None,
    ray: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Ray cluster; default: the configuration's, else one is begun on this machine."),
    ] = "",
    ray_token_file: Annotated[str, typer.Option(metavar="FILE", help="That cluster's token.")] = "",
    gather_s: Annotated[float, typer.Option(min=1, help="How long boxes are waited for, seconds.")] = 600.0,
    soak_min: Annotated[float, typer.Option(min=0, help="Between the steps of the rollout, minutes.")] = 60.0,
    offer: Annotated[bool, typer.Option("--offer/--no-offer", help="Offer the model to the boxes, in steps.")] = True,
    data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Train one model on samples of many boxes, of those whose operators consent, and offer it: each box judges it by its own gate."""
    from dataclasses import replace

    from cluster.controller.outside import engine_settings
    from cluster.controller.pooled import Wanted, train_pooled
    from scheduler.types import RetrainConfig

    said = _configured(config, lease="", engine="", ray=ray, ray_token_file=ray_token_file, kubeconfig="")
    wanted = Wanted(
        name=name, arch=arch, customer=customer, boxes=tuple(box or ()), workers=workers, cpus=cpus, share_pct=share_pct,
        within_share=within_share, one_per_box=one_per_box, gather_s=gather_s, soak_s=60.0 * soak_min, offer=offer,
        engine=replace(engine_settings(said), engine="ray"),
        config=RetrainConfig(name=name, epochs=epochs, batch=batch, lr=lr),
    )  # fmt: skip
    with _folder(data_dir) as folder:
        done = train_pooled(folder, wanted, by=_who(), say=(lambda text: None) if json else say)
    if json:
        print_json(done)
        return
    print_table(("what", "value"), [(key, value) for key, value in done.items()], title=name)
    say(f"a box takes the model up for judging once it trusts its key: driftbox models trust {done['signed_by']}")


@fleet_app.command("key")
def key(data_dir: FleetDir = DEFAULT_DIR, json: Json = False) -> None:
    """The key that pooled models are signed with, made when there is none: boxes take such models up for judging once they trust it."""
    from models.keys import KeyRing, fingerprint

    with _folder(data_dir) as folder:
        ring = KeyRing(folder.data_dir)
        name = fingerprint(ring.signer().public)
    if json:
        print_json({"file": str(ring.public_file), "fingerprint": name})
        return
    say(f"{ring.public_file} ({name}); on each box: driftbox models trust FILE")


# --- looking ----------------------------------------------------------------------------------------------------------


@fleet_app.command("status")
def status(data_dir: FleetDir = DEFAULT_DIR, json: Json = False) -> None:
    """The controller, its boxes, customers and cameras on their way, as they were written down last."""
    from cluster.controller.documents import status_document

    with _folder(data_dir) as folder:
        document = status_document(folder)
    if json:
        print_json(document)
        return
    charge = document["controller"]
    if charge["in_charge"]:
        say(f"controller {charge['in_charge']} is in charge (term {charge['term']}), {charge['url']}")
    else:
        say("no controller is in charge: boxes go on with what they were told last")
    for one in document["controllers"]:
        _say_controller(one)
    of_boxes = ("box", "site", "state", "capacity_pct", "spare_pct", "cameras", "quality", "doubts")
    print_table(of_boxes, [[b[k] for k in of_boxes] for b in document["boxes"]], title="Boxes")
    print_table(
        ("customer", "goal", "share_pct", "demand_pct", "expected", "reason"),
        [[c[k] for k in ("customer", "goal", "share_pct", "demand_pct", "expected", "reason")] for c in document["customers"]],
        title="Customers",
    )
    if document["handoffs"]:
        columns = ("camera", "source", "target", "phase", "reason")
        print_table(columns, [[h[k] for k in columns] for h in document["handoffs"]], title="On their way")


def _say_controller(one: dict[str, Any]) -> None:
    engine = one["engine"]
    nodes = f" at {engine['where']}, {engine['nodes']} nodes, {engine['boxes']} of them boxes" if engine["where"] else ""
    does = "writes" if one["in_charge"] else "stands by"
    why = f" ({one['reason']})" if one["reason"] else ""
    say(f"  {one['id']} {does}{why}; lease: {one['lease']}; engine: {engine['name']}{nodes}; broker: {one['broker']}")
    if engine["problem"]:
        say(f"  the engine is not up to date: {engine['problem']}")


@fleet_app.command("drain")
def drain(
    box: Box,
    off: Annotated[bool, typer.Option("--off", help="Let the box be used again.")] = False,
    data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Empties a box: its cameras move to others, as far as others reach them."""
    with _folder(data_dir) as folder:
        folder.actions().drain(box, not off, by=_who())
    _done(json, f"box {box} {'may be used again' if off else 'is being emptied'}", box=box, draining=not off)


# --- customers --------------------------------------------------------------------------------------------------------


@customers_app.command("add")
def customers_add(
    id: Annotated[str, typer.Argument(metavar="ID", help="The customer's id, as boxes name it.")],
    name: Annotated[str, typer.Option(help="Name for people.")] = "",
    goal: Annotated[float, typer.Option(help="What is promised, 0 to 1.")] = 0.8,
    measure: Annotated[
        str, typer.Option(help="Of what: quality, or deadline (part of the frames answered in time).")
    ] = "quality",
    weight: Annotated[float, typer.Option(help="Among its siblings.")] = 1.0,
    group: Annotated[list[str] | None, typer.Option("--group", help="Groups it belongs to, the outer one first.")] = None,
    utility: Annotated[str, typer.Option(help="linear, quadratic, sqrt or identity.")] = "linear",
    stated_pct: Annotated[float | None, typer.Option(help="What it says it needs; used while nothing was learned.")] = None,
    at_least_pct: Annotated[float, typer.Option(help="Never less, as long as the fleet has it.")] = 1.0,
    data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Adds a customer, or changes one."""
    from cluster.types import Customer
    from scheduler.fleet.codec import decode

    customer = decode(
        Customer,
        {
            "id": id, "name": name, "goal": goal, "measure": measure, "weight": weight, "path": list(group or ()), "utility": utility,
            "stated_pct": stated_pct, "at_least_pct": at_least_pct,
        },
    )  # fmt: skip
    with _folder(data_dir) as folder:
        folder.actions().put_customer(customer, by=_who())
    _done(json, f"customer {id}: {measure} {goal:g}, weight {weight:g}", customer=id)


@customers_app.command("list")
def customers_list(data_dir: FleetDir = DEFAULT_DIR, json: Json = False) -> None:
    """All customers, with what they were given in the newest round."""
    from cluster.controller.documents import status_document

    with _folder(data_dir) as folder:
        rows = status_document(folder)["customers"]
    if json:
        print_json(rows)
        return
    columns = ("customer", "name", "measure", "goal", "weight", "group", "share_pct", "demand_pct", "expected", "reason")
    print_table(columns, [[row[k] for k in columns] for row in rows])


@customers_app.command("weigh")
def customers_weigh(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="As its customers name it: NAME, or NAME/NAME within another.")],
    weight: Annotated[float, typer.Argument(metavar="WEIGHT", help="Among its siblings; 1 is what every group has.")],
    data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Says what a group of customers counts among the groups and customers beside it."""
    from cluster.types import GroupWeight

    try:
        wanted = GroupWeight(path=tuple(group.split("/")), weight=weight)
    except ValueError as error:
        raise UsageError(str(error), subject=group[:64], code="group") from None
    with _folder(data_dir) as folder:
        folder.actions().weigh_group(wanted, by=_who())
    _done(json, f"group {group}: weight {weight:g}", group=group, weight=weight)


@customers_app.command("remove")
def customers_remove(
    id: Annotated[str, typer.Argument(metavar="ID")], data_dir: FleetDir = DEFAULT_DIR, json: Json = False
) -> None:
    """Removes a customer for whom no camera is watched any more."""
    with _folder(data_dir) as folder:
        folder.actions().remove_customer(id, by=_who())
    _done(json, f"customer {id} is removed", customer=id)


# --- boxes ------------------------------------------------------------------------------------------------------------


@boxes_app.command("list")
def boxes_list(data_dir: FleetDir = DEFAULT_DIR, json: Json = False) -> None:
    """Members with their certificates, and join codes that are open."""
    from cluster.controller.round import iso_utc

    with _folder(data_dir) as folder:
        members, invites = folder.membership.members(), folder.membership.invites()
    if json:
        print_json({"members": [asdict(row) for row in members], "invites": [asdict(row) for row in invites]})
        return
    rows = [(m.box, m.site, iso_utc(m.joined_utc_s), iso_utc(m.until_utc_s), m.revoked) for m in members]
    print_table(("box", "site", "joined", "certificate until", "revoked"), rows, title="Members")
    open_ones = [(i.ref, i.box, iso_utc(i.expires_utc_s), i.tries_left, i.by) for i in invites if not i.used_by]
    if open_ones:
        print_table(("code", "for", "until", "tries", "by"), open_ones, title="Open join codes")


@boxes_app.command("invite")
def boxes_invite(
    box: Annotated[
        str, typer.Option("--box", help="The only id that may use it; also lets a member of that id join anew.")
    ] = "",
    days: Annotated[float, typer.Option(help="How long it is good.")] = 1.0,
    data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:
    """Makes a join code, shown this once: it is typed on the box."""
    with _folder(data_dir) as folder:
        made = folder.actions().invite(by=_who(), box=box, days=days)
    if json:
        print_json(asdict(made))
        return
    say("on the box, once, within the next " + (f"{days:g} days:" if days != 1 else "day:"))
    say(f"  {made.command}")


@boxes_app.command("uninvite")
def boxes_uninvite(
    ref: Annotated[str, typer.Argument(metavar="CODE", help="As `boxes list` shows it.")], data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:  # fmt: skip
    """Makes an open join code worthless."""
    with _folder(data_dir) as folder:
        folder.actions().revoke_invite(ref, by=_who())
    _done(json, f"join code {ref} is worth nothing any more", ref=ref)


@boxes_app.command("revoke")
def boxes_revoke(
    box: Box, reason: Annotated[str, typer.Option(help="Why, for the audit and for the box.")] = "", data_dir: FleetDir = DEFAULT_DIR,
    json: Json = False,
) -> None:  # fmt: skip
    """Makes a box's certificate worthless: it is not heard any more, and its cameras are taken over as far as others reach them."""
    with _folder(data_dir) as folder:
        folder.actions().revoke(box, by=_who(), reason=reason)
    _done(json, f"the certificate of box {box} is worth nothing any more", box=box)


@boxes_app.command("forget")
def boxes_forget(box: Box, data_dir: FleetDir = DEFAULT_DIR, json: Json = False) -> None:
    """Takes a box out of the fleet, as if it had never joined."""
    with _folder(data_dir) as folder:
        folder.actions().forget(box, by=_who())
    _done(json, f"box {box} is no member any more", box=box)


def _done(json: bool, text: str, **document: Any) -> None:
    if json:
        print_json(document)
    else:
        say(text)
