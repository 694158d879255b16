"""`driftbox cameras ...`: add, change, remove and find cameras, of a box that runs (over its own HTTP) or of its data folder.

Passwords are asked for on a terminal, or read from a variable or file: what stands on a command line, every user of the machine can see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import UsageError
from edge import cli_cameras_asked as asked
from edge import cli_cameras_words as words
from edge.cli_common import ConfigOption, DataDir, Json, OptionalConfig, load_given
from edge.console import print_json, print_table, say, warn

if TYPE_CHECKING:
    from edge.cameras.desk import CameraInfo
    from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
    from edge.cameras.probe import ProbeResult
    from edge.cameras.remote import CommandDesk

cameras_app = typer.Typer(help="The cameras of a box.", no_args_is_help=True)

BY = "command line"

Camera = Annotated[str, typer.Argument(metavar="CAMERA", help="Camera id.")]
Name = Annotated[str | None, typer.Option(help="Name for people; any text.", show_default=False)]
RecordUrl = Annotated[str | None, typer.Option(help="Main stream, for clips.", show_default=False)]
User = Annotated[str | None, typer.Option(help="User of the camera, put into its addresses.", show_default=False)]
PasswordEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds the password.", show_default=False)
]
PasswordFile = Annotated[Path | None, typer.Option(metavar="FILE", help="File that holds the password.", show_default=False)]
Task = Annotated[str | None, typer.Option(help="What its model is asked.", show_default=False)]
Fps = Annotated[float | None, typer.Option(help="Wanted analysis rate (frames/s).", show_default=False)]
Zone = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=X,Y;X,Y;...",
        help="A zone, corners as fractions 0-1; may be repeated; 'NAME=' takes it away.",
        show_default=False,
    ),
]
Line = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=X,Y;X,Y", help="A line that is counted at, two points; may be repeated; as --zone.", show_default=False
    ),
]
Mask = Annotated[
    list[str] | None, typer.Option(metavar="X,Y;X,Y;...", help="A privacy mask; may be repeated.", show_default=False)
]
Class = Annotated[list[str] | None, typer.Option("--class", help="Class that counts; may be repeated.", show_default=False)]
Watch = Annotated[
    list[str] | None,
    typer.Option(metavar="TIMES", help="When it is watched: 'mon-fri 07:00-19:00'; may be repeated.", show_default=False),
]
Learn = Annotated[
    list[str] | None, typer.Option(metavar="TIMES", help="When its model learns; may be repeated.", show_default=False)
]
TimeZone = Annotated[str | None, typer.Option(help="Time zone of the times, as Europe/Berlin.", show_default=False)]
Learning = Annotated[bool | None, typer.Option("--learning/--no-learning", help="Whether its model learns.")]
Snapshots = Annotated[bool | None, typer.Option("--snapshots/--no-snapshots", help="Keep the best picture of every object.")]
Clips = Annotated[bool | None, typer.Option("--clips/--no-clips", help="Keep a clip of every object that moves.")]
PreS = Annotated[float | None, typer.Option(help="Seconds of a clip before its object is first seen.", show_default=False)]
PostS = Annotated[float | None, typer.Option(help="Seconds of a clip after it is last seen.", show_default=False)]
KeepDays = Annotated[
    float | None,
    typer.Option(help="Days that its snapshots and clips are kept; else as the box keeps them.", show_default=False),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=JSON",
        help="Any other field of cameras[], as height_px or objects.lost_s; may be repeated.",
        show_default=False,
    ),
]
Picture = Annotated[
    Path | None, typer.Option(metavar="FILE.jpg", help="Write the picture that was seen there.", show_default=False)
]


@cameras_app.command("list")
def cameras_list(config: OptionalConfig = None, data_dir: DataDir = None, json: Json = False) -> None:
    """All cameras, those of the file and those added here; with their state when the box runs on this machine."""
    from edge.cameras.book import with_book
    from edge.client import running_status

    loaded = load_given(config, data_dir)
    found = with_book(loaded)
    status = running_status(loaded)
    views = {camera.id: camera for camera in status.cameras} if status else {}
    rows = []
    for kept in found.cameras:
        camera, view = kept.entry, views.get(kept.entry.id)
        state = view.state if view else "not running" if camera.enabled else "switched off"
        rows.append(
            {"id": camera.id, "name": camera.title, "url": str(camera.url), "fps": camera.fps, "state": state,
             "error": view.error if view else "", "quality": view.quality if view else None, "kept": kept.source}
        )  # fmt: skip
    if json:
        told = {"removed": found.removed, "findings": found.findings}
        print_json({"running": status is not None, "cameras": rows, **told})
        return
    print_table(
        ("camera", "name", "address", "wanted frames/s", "state", "error", "quality", "kept"), [tuple(r.values()) for r in rows]
    )
    for text in found.findings:
        say(text)
    if found.removed:
        say(f"of the file, removed here: {', '.join(found.removed)} (driftbox cameras reset CAMERA brings one back)")


@cameras_app.command("add")
def cameras_add(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Its address; asked for when left out.", show_default=False)
    ] = None,
    name: Name = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Camera id; made from the name when left out.", show_default=False)
    ] = None,
    record_url: RecordUrl = None,
    user: User = None,
    password_env: PasswordEnv = None,
    password_file: PasswordFile = None,
    task: Task = None,
    fps: Fps = None,
    zone: Zone = None,
    line: Line = None,
    mask: Mask = None,
    class_: Class = None,
    learning: Learning = None,
    watch: Watch = None,
    learn: Learn = None,
    time_zone: TimeZone = None,
    snapshots: Snapshots = None,
    clips: Clips = None,
    pre_s: PreS = None,
    post_s: PostS = None,
    keep_days: KeepDays = None,
    set_: Set = None,
    picture: Picture = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing, and add it even when it gives no picture.")] = False,
    config: ConfigOption = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Adds a camera. On a terminal it asks for what is left out, step by step; a box that runs watches it at once."""
    from edge.cameras.remote import desk_for

    asks = sys.stdin.isatty() and not yes and not json
    fields = words.given(
        name=name, id=id, record_url=record_url, task=task, fps=fps, classes=class_, learning=learning, watch=watch, learn=learn,
        time_zone=time_zone, snapshots=snapshots, clips=clips, pre_s=pre_s, post_s=post_s, keep_days=keep_days,
    )  # fmt: skip
    fields |= words.drawn(zone, line, mask) | words.set_fields(set_)
    credentials = _credentials(user, password_env, password_file)
    with desk_for(load_given(config, data_dir)) as (desk, running):
        if url is None and not asks:
            raise UsageError("cameras add needs an address", remedy="driftbox cameras add rtsp://192.0.2.10/stream --name Gate")
        if url is None or (asks and not credentials and "@" not in url):
            url, credentials, more = _asked_for(desk, url, credentials)
            fields = more | fields
        where = {"url": url} | ({"credentials": credentials} if credentials else {})
        if not yes:
            _look_first(desk, where, asks, picture)
        if asks:
            document = asked.as_document(asked.asked_fields(desk, fields)) | where
            asked.confirmed(document)
        else:
            document = words.document_of(fields) | where
        added = desk.add(document, by=BY)
    _told(added, "is watched" if running else "is watched from the next start on", json)


@cameras_app.command("change")
def cameras_change(
    camera: Camera,
    url: Annotated[str | None, typer.Option(help="Another address.", show_default=False)] = None,
    name: Name = None,
    record_url: RecordUrl = None,
    user: User = None,
    password_env: PasswordEnv = None,
    password_file: PasswordFile = None,
    task: Task = None,
    fps: Fps = None,
    zone: Zone = None,
    line: Line = None,
    mask: Mask = None,
    class_: Class = None,
    learning: Learning = None,
    watch: Watch = None,
    learn: Learn = None,
    time_zone: TimeZone = None,
    snapshots: Snapshots = None,
    clips: Clips = None,
    pre_s: PreS = None,
    post_s: PostS = None,
    keep_days: KeepDays = None,
    enabled: Annotated[bool | None, typer.Option("--on/--off", help="Whether it is watched at all.")] = None,
    set_: Set = None,
    config: ConfigOption = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Changes a camera, only what is named; a box that runs goes on with it at once, and no other camera notices."""
    from edge.cameras.remote import desk_for

    fields = words.given(
        url=url, name=name, record_url=record_url, task=task, fps=fps, classes=class_, learning=learning, enabled=enabled, watch=watch,
        learn=learn, time_zone=time_zone, snapshots=snapshots, clips=clips, pre_s=pre_s, post_s=post_s, keep_days=keep_days,
    )  # fmt: skip
    fields |= words.drawn(zone, line, mask) | words.set_fields(set_)
    credentials = _credentials(user, password_env, password_file)
    if not fields and not credentials:
        raise UsageError("nothing to change", subject=camera, remedy="driftbox cameras change --help lists what can be")
    with desk_for(load_given(config, data_dir)) as (desk, running):
        known = {one.id: one.entry for one in desk.list().cameras}
        patch = words.document_of(fields, known.get(camera)) | ({"credentials": credentials} if credentials else {})
        changed = desk.change(camera, patch, by=BY)
    _told(changed, "is changed" if running else "is changed from the next start on", json)


@cameras_app.command("remove")
def cameras_remove(
    camera: Camera,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Watches a camera no longer; its models and samples stay. The configuration file is not touched."""
    from edge.cameras.remote import desk_for

    if not yes and sys.stdin.isatty() and not json:
        typer.confirm(f"Remove {camera}? Its models and samples stay.", abort=True)
    with desk_for(load_given(config, data_dir)) as (desk, _):
        desk.remove(camera, by=BY)
    if json:
        print_json({"removed": camera})
    else:
        say(f"{camera} is no longer watched")


@cameras_app.command("reset")
def cameras_reset(camera: Camera, config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Drops what was changed about a camera: it is as the configuration file says again, or gone when it is not in there."""
    from edge.cameras.remote import desk_for

    with desk_for(load_given(config, data_dir)) as (desk, _):
        found = desk.reset(camera, by=BY)
    if found is not None:
        _told(found, "is as the configuration file says", json)
    elif json:
        print_json({"removed": camera})
    else:
        say(f"{camera} is gone: the configuration file does not name it")


@cameras_app.command("discover")
def cameras_discover(
    seconds: Annotated[float, typer.Option(min=0.2, max=15.0, help="How long answers are waited for.")] = 3.0,
    address: Annotated[str, typer.Option(help="Ask only this host[:port], as behind a router.", show_default=False)] = "",
    json: Json = False,
) -> None:
    """Finds ONVIF cameras that announce themselves on this machine's networks."""
    from edge.cameras.onvif import Onvif

    found = Onvif().discover(seconds=seconds, address=address)
    if json:
        print_json({"cameras": [camera.model_dump() for camera in found]})
    elif found:
        print_table(("address", "name", "hardware", "location"), [_line(camera) for camera in found])
    else:
        say("no camera has answered; not every camera announces itself: try driftbox cameras probe ADDRESS")


@cameras_app.command("probe")
def cameras_probe(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="host[:port] of an ONVIF camera, or the address of a stream.")
    ],
    user: User = None,
    password_env: PasswordEnv = None,
    password_file: PasswordFile = None,
    picture: Picture = None,
    json: Json = False,
) -> None:
    """Looks at an address without keeping it: the streams that a camera offers, or what a stream gives. Exit code 1: nothing."""
    from edge.cameras.live_desk import with_credentials
    from edge.cameras.onvif import Onvif
    from edge.cameras.probe import Prober

    credentials = _credentials(user, password_env, password_file)
    if _is_stream(address):
        url = with_credentials({"url": address, "credentials": credentials or None})["url"]
        prober = Prober()
        seen = prober.probe(url, local=True)
        _write_picture(prober.picture, seen, picture)
        print_json(seen.model_dump(exclude={"picture_url"})) if json else _say_probe(seen)
        ok = seen.ok
    else:
        offered = Onvif().probe(address, user=credentials.get("user", ""), password=credentials.get("password", ""))
        print_json(offered.model_dump()) if json else _say_onvif(offered)
        ok = offered.ok
    if not ok:
        raise typer.Exit(1)


# --- finding it on a terminal -----------------------------------------------------------------------------------------


def _asked_for(desk: CommandDesk, url: str | None, credentials: dict[str, str]) -> tuple[str, dict[str, str], asked.Fields]:
    """(address, credentials, what the camera offers besides) as somebody at a terminal says."""
    if url is None:
        url = _chosen(desk)
    if not credentials and not _is_here(url):
        user = typer.prompt("User (empty: none)", default="", show_default=False)
        password = typer.prompt("Password", default="", show_default=False, hide_input=True) if user else ""
        credentials = {"user": user, "password": password} if user else {}
    if _is_stream(url):
        return url, credentials, {}
    offered = desk.probe_onvif(url, user=credentials.get("user", ""), password=credentials.get("password", ""))
    _say_onvif(offered)
    if not offered.ok or not offered.analyse:
        return str(typer.prompt("It cannot be asked; type the address of its stream")), credentials, {}
    analyse, record = asked.streams_of(offered)
    return analyse, credentials, words.given(record_url=record) if record != analyse else {}


def _is_here(address: str) -> bool:
    """A file, a device or a drawn scene: nobody asks for a password."""
    return address.startswith(("/", "file:", "v4l2:", "rendered:"))


def _is_stream(address: str) -> bool:
    """As `cameras[].url`; else host[:port] of an ONVIF camera."""
    return "://" in address or _is_here(address)


def _chosen(desk: CommandDesk) -> str:
    say("looking for cameras ...")
    found = desk.discover(seconds=3.0)
    for number, camera in enumerate(found, 1):
        say(f"  {number}  {'  '.join(_line(camera))}")
    answer = str(typer.prompt("Number of a camera, or an address" if found else "None has answered; type an address"))
    return found[int(answer) - 1].address if answer.isdigit() and 0 < int(answer) <= len(found) else answer


def _look_first(desk: CommandDesk, where: Mapping[str, Any], asks: bool, picture: Path | None) -> None:
    """Opens the address once; at a terminal somebody decides what a failure means, a program is told."""
    from edge.cameras.live_desk import with_credentials

    seen = desk.probe(with_credentials(where)["url"], local=True)
    if seen.ok:
        warn(f"a picture came after {seen.took_s:.1f} s: {seen.width_px}x{seen.height_px} px, {seen.fps:g} frames/s")
    elif asks:
        typer.confirm(f"No picture: {seen.error}. Add it all the same?", abort=True)
    else:
        raise UsageError(
            f"the address gives no picture: {seen.error}", code=seen.code, remedy="add --yes to add it all the same"
        )
    if seen.ok and asks and picture is None:
        answer = str(typer.prompt("File to write the picture to (empty: none)", default="", show_default=False)).strip()
        picture = Path(answer).expanduser() if answer else None
    _write_picture(desk.picture, seen, picture)


def _write_picture(fetch: Callable[[str], bytes | None], seen: ProbeResult, to: Path | None) -> None:
    """The picture of a probe into a file; without a file, or without a picture, nothing."""
    if to is None or not seen.picture_url:
        return
    jpeg = fetch(seen.picture_url.split("/")[-2])
    if jpeg is None:
        warn("the picture is not kept any more; nothing was written")
        return
    try:
        to.write_bytes(jpeg)
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror}", subject=str(to), remedy="name another file") from None
    warn(f"its picture is in {to}")


# --- words to fields --------------------------------------------------------------------------------------------------


def _credentials(user: str | None, variable: str | None, file: Path | None) -> dict[str, str]:
    if variable is not None and file is not None:
        raise UsageError("the password stands in a variable or in a file, not in both")
    password = None
    if variable is not None:
        password = os.environ.get(variable)
        if password is None:
            raise UsageError(f"the variable {variable} is not set", subject=variable)
    elif file is not None:
        try:
            password = file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            raise UsageError(
                f"{file} cannot be read", subject=str(file), remedy="name a text file that holds the password"
            ) from None
    if user is None and password is None:
        return {}
    return {"user": user or ""} | ({"password": password} if password is not None else {})


# --- what is said -----------------------------------------------------------------------------------------------------


def _told(info: CameraInfo, what: str, json: bool) -> None:
    if json:
        print_json(info.model_dump(mode="json"))
    else:
        say(f"{info.id} ({info.title}) {what}: {info.state}{f', {info.why}' if info.why else ''}")


def _line(camera: OnvifCamera) -> tuple[str, ...]:
    return camera.address, camera.name, camera.hardware, camera.location


def _say_probe(seen: ProbeResult) -> None:
    if seen.ok:
        say(f"a picture after {seen.took_s:.1f} s: {seen.width_px}x{seen.height_px} px, {seen.fps:g} frames/s")
    else:
        say(f"no picture ({seen.code}): {seen.error}")


def _say_onvif(offered: OnvifProbe) -> None:
    if not offered.ok:
        say(f"it offers nothing ({offered.code}): {offered.error}")
        return
    say(" ".join(word for word in (offered.manufacturer, offered.model, offered.firmware) if word) or "an ONVIF camera")
    roles = {offered.record: "record"} | {
        offered.analyse: "analyse" if offered.analyse != offered.record else "analyse, record"
    }
    rows = [
        (p.token, p.name, p.codec, f"{p.width_px}x{p.height_px}", p.fps, p.url, roles.get(p.token, ""))
        for p in offered.profiles
    ]
    print_table(("profile", "name", "codec", "px", "frames/s", "address", "proposed for"), rows)
    for note in offered.notes:
        say(note)
