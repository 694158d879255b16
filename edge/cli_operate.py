"""`driftbox backup ...`, `driftbox upgrade`, `driftbox diagnostics`: what keeps a box for years.

Thin, like `edge.cli`; what is done stands in `edge.store.backup` and `edge.diagnostics`.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.files import storage_errors
from edge.cli_common import ConfigOption, DataDir, Json, OptionalConfig, load_given
from edge.console import print_json, print_table, say
from edge.software import software_version

if TYPE_CHECKING:
    from edge.store.backup import Backup

backup_app = typer.Typer(help="Back-ups of a box: database, serving models, keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of `driftbox backup list`; `newest` for the newest.")]


def _row(backup: Backup) -> dict[str, Any]:
    when = datetime.fromtimestamp(backup.created_utc, UTC)
    return {
        "name": backup.name, "made": when.strftime("%Y-%m-%d %H:%M:%S"), "reason": backup.reason, "software": backup.software,
        "mib": round(backup.size_bytes / 2**20, 1), "path": str(backup.path),
    }  # fmt: skip


@backup_app.command("make")
def backup_make(
    config: OptionalConfig = None,
    data_dir: DataDir = None,
    before_upgrade: Annotated[
        bool, typer.Option("--before-upgrade", help="Kept as those that an upgrade makes: the newest five.")
    ] = False,
    json: Json = False,
) -> None:
    """Back the box up, while it runs or not. With CONFIG the configuration file goes in as well, readable by its owner only."""
    from edge.store.backup import UPGRADE, make_backup, prune

    folder = load_given(config, data_dir).box.data_dir
    reason = UPGRADE if before_upgrade else "by-hand"
    made = make_backup(folder, reason=reason, at_utc=time.time(), software=software_version(), config=config)
    if before_upgrade:
        prune(folder, reason=UPGRADE)
    if json:
        print_json({"backup": _row(made)})
    else:
        say(f"{made.name}: {made.size_bytes / 2**20:.1f} MiB in {made.path}")


@backup_app.command("list")
def backup_list(data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """The back-ups of a box, oldest first."""
    from edge.store.backup import list_backups

    rows = [_row(b) for b in list_backups(load_given(config, data_dir).box.data_dir)]
    if json:
        print_json({"backups": rows})
    else:
        print_table(("back-up", "made (UTC)", "why", "software", "MiB"), [tuple(r.values())[:-1] for r in rows])


@backup_app.command("verify")
def backup_verify(name: Name = "newest", data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Read a back-up whole: checksums, SQLite's own integrity check, whether this version can use it. Exit code 1: it cannot."""
    from edge.store.backup import find_backup, verify

    found = find_backup(load_given(config, data_dir).box.data_dir, name)
    wrong = verify(found)
    if json:
        print_json({"ok": not wrong, "name": found.name, "problems": wrong})
    else:
        say(f"{found.name} can be restored" if not wrong else "\n".join(f"{found.name}: {text}" for text in wrong))
    raise typer.Exit(1 if wrong else 0)


@backup_app.command("restore")
def backup_restore(name: Name, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Put a back-up in the place of what is there; the box must not run. What is there is backed up first."""
    from edge.store.backup import find_backup, restore
    from edge.store.folder import DataFolder

    root = load_given(config, data_dir).box.data_dir
    found = find_backup(root, name)
    with DataFolder(root):
        done = restore(root, found, at_utc=time.time(), software=software_version())
    if json:
        print_json({"restored": found.name, "done": done})
    else:
        say("\n".join([*done, f"{found.name} is restored; start the box again"]))


def diagnostics(
    config: OptionalConfig = None,
    output: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where the zip goes; - for standard output.")] = Path(
        "driftbox-diagnostics.zip"
    ),
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write one zip for whoever helps: status, configuration without secrets, findings, versions, ends of log and journal."""
    from edge.box_health import command_bundle, examine_running
    from edge.client import running_status
    from edge.environment import prepare

    loaded = load_given(config, data_dir)
    prepare(loaded)
    data = command_bundle(loaded, running_status(loaded), examine_running(loaded))
    if str(output) == "-":
        sys.stdout.buffer.write(data)
        return
    with storage_errors(output):
        output.write_bytes(data)
        output.chmod(0o600)
    if json:
        print_json({"file": str(output), "size_bytes": len(data)})
    else:
        say(f"{output}: {len(data) / 1024:.0f} KiB; have a look before you send it on")


def upgrade(config: OptionalConfig = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Bring a data folder to this version of the program, with a back-up first; `driftbox run` does the same at its start."""
    from edge.store.backup import DATABASE, UPGRADE, list_backups
    from edge.store.folder import DataFolder
    from edge.store.store import Store

    root = load_given(config, data_dir).box.data_dir
    if not (root / DATABASE).is_file():
        print_json({"changed": False, "backup": None}) if json else say(f"{root}: nothing there yet")
        return
    before = {b.name for b in list_backups(root)}
    with DataFolder(root) as folder, Store(folder.db_path):
        pass
    made = [b for b in list_backups(root) if b.name not in before and b.reason == UPGRADE]
    if json:
        print_json({"changed": bool(made), "backup": _row(made[0]) if made else None})
    elif made:
        say(f"{root} is of version {software_version()} now; before that it was kept as {made[0].name}")
    else:
        say(f"{root} is of version {software_version()} already")
