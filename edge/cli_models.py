"""`driftbox models ...`: stored versions of a box's models, on the data folder of one that runs or has run.

Thin, like `edge.cli`; what is done stands in `edge.models_admin`, `edge.models_exchange` and `edge.models_prune`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli_common import ConfigOption, DataDir, Json, load_given
from edge.console import cell_text, print_json, print_table, say, warn

if TYPE_CHECKING:
    from edge.models_admin import Served
    from models.keys import KeyRing

models_app = typer.Typer(help="Stored model versions of a box.", no_args_is_help=True)

Version = Annotated[str, typer.Argument(metavar="VERSION", help="Id of a version (`driftbox models list`).")]
OneCamera = Annotated[str | None, typer.Option(help="Only this camera's.", show_default=False)]

_COLUMNS = {
    "camera": "camera", "id": "version", "state": "state", "quality": "quality", "gpu_s": "GPU-s", "parent": "made from",
    "pinned": "pinned", "origin": "origin", "created": "made (UTC)",
}  # fmt: skip


def folder_of(config: Path | None, data_dir: Path | None) -> Path:
    return load_given(config, data_dir).box.data_dir


@models_app.command("list")
def models_list(
    camera: OneCamera = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="In the order of their lineage: what branched off stands indented.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Stored versions of every camera, oldest first, and which one serves."""
    from edge.models_admin import list_models, tree_of

    folder = folder_of(config, data_dir)
    rows = tree_of(folder, camera) if tree else list_models(folder, camera)
    if json:
        print_json({"models": rows})
        return
    print_table(tuple(_COLUMNS.values()), [tuple(_cell(row, key) for key in _COLUMNS) for row in rows])


def _cell(row: dict[str, Any], key: str) -> object:
    return f"{'  ' * row.get('depth', 0)}{row[key]}" if key == "id" else row[key]


@models_app.command("show")
def models_show(version: Version, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """One version: where it comes from, how it was trained, how good it was, what its files are."""
    from edge.models_admin import show_model

    shown = show_model(folder_of(config, data_dir), version)
    if json:
        print_json(shown)
        return
    shown["lineage"] = " < ".join(shown["lineage"])
    for key, value in shown.items():
        for name, inner in value.items() if isinstance(value, dict) else [("", value)]:
            say(f"{f'{key}.{name}' if name else key:<24} {cell_text(inner)}")


@models_app.command("rollback")
def models_rollback(
    camera: Annotated[str, typer.Argument(metavar="CAMERA", help="Camera id.")],
    version: Annotated[
        str | None,
        typer.Argument(metavar="[VERSION]", help="Version to serve; without it, the one before.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Let an older version serve again. A running box follows at once, a stopped one begins with it."""
    from edge.models_admin import rollback

    _say_served(rollback(folder_of(config, data_dir), camera, version), "serves again", json)


@models_app.command("promote")
def models_promote(
    version: Version,
    camera: Annotated[str | None, typer.Option(help="Copy it to this camera and serve it there.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Also a version that no gate has ever admitted.")] = False,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Let a version serve. A running box follows at once, a stopped one begins with it."""
    from edge.models_admin import promote

    folder = folder_of(config, data_dir)
    if camera is None:
        served = promote(folder, version, force=force)
    else:
        from edge.models_exchange import copy_to_camera

        served = copy_to_camera(folder, version, camera, force=force)
    _say_served(served, "serves", json)


def _say_served(served: Served, verb: str, json: bool) -> None:
    if json:
        print_json({"camera": served.camera, "before": served.before, "after": served.after, "warning": served.warning})
        return
    say(f"{served.camera}: {served.after} {verb} (before: {served.before or 'none'})")
    if served.warning:
        warn(f"warning: {served.warning}")


@models_app.command("pin")
def models_pin(version: Version, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Keep a version's files, however old it becomes."""
    _pin(folder_of(config, data_dir), version, True, json)


@models_app.command("unpin")
def models_unpin(version: Version, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Leave a pinned version to the retention of section `storage` again."""
    _pin(folder_of(config, data_dir), version, False, json)


def _pin(folder: Path, version: str, pinned: bool, json: bool) -> None:
    from edge.models_admin import pin

    pin(folder, version, pinned=pinned)
    if json:
        print_json({"version": version, "pinned": pinned})
    else:
        say(f"{version} is {'pinned' if pinned else 'no longer pinned'}")


@models_app.command("export")
def models_export(
    version: Version,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to; without it, the data folder's exports.", show_default=False),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="bundle (signed, for `models import`), onnx, openvino or tensorrt.")
    ] = "bundle",
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Write a version as one signed file, or its network for another program."""
    from edge.models_exchange import export_model

    done = export_model(folder_of(config, data_dir), version, out, form=form)
    if json:
        print_json(done)
        return
    say(f"{version} is in {done['file']}")
    if "signed_by" in done:
        say(f"signed with this box's key {done['signed_by']} (`driftbox models key` prints it for those who are to trust it)")


@models_app.command("prune")
def models_prune(
    version: Version,
    ratio: Annotated[float, typer.Option(metavar="FRAC", help="Part of its channels to take out, up to 0.9.")] = 0.3,
    epochs: Annotated[int, typer.Option(help="Of the training afterwards.")] = 15,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Make a smaller version of it, taught by it on the camera's labels: minutes. It waits until it is promoted."""
    from edge.models_prune import prune_version

    done = prune_version(
        folder_of(config, data_dir), version, ratio=ratio, epochs=epochs, told=lambda text: None if json else say(text)
    )
    if json:
        print_json(asdict(done))
        return
    for name, one in ((version, done.before), (done.version, done.after)):
        quality = "not known (no object in the held-out labels)" if one.quality is None else f"{one.quality:.3f}"
        say(f"{name}: {one.weights} weights, {one.ms:.1f} ms of CPU a picture as trained, F1 {quality}")
    say(f"learned from {done.lessons} labelled pictures, judged on {done.held_out} others")
    say(f"`driftbox models promote {done.version} --force` lets it serve")


@models_app.command("import")
def models_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that `driftbox models export` wrote.")],
    camera: Annotated[
        str | None, typer.Option(help="For which camera; without it, the one it was made for.", show_default=False)
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Serve it at once, without the camera's gate.")] = False,
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Also a bundle without a signature, or of a key nobody here knows.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Take a version of another box in, as a candidate that the camera's gate has to admit."""
    from edge.models_exchange import import_model

    done = import_model(folder_of(config, data_dir), file, camera=camera, promote=promote, allow_unsigned=allow_unsigned)
    if json:
        print_json(done)
        return
    signed = f"signed by {done['signed_by']}" if done["signed_by"] else "not signed"
    say(f"{done['camera']}: {done['version']} ({signed}) is its {'serving model' if promote else 'candidate'}")
    if done["warning"]:
        warn(f"warning: {done['warning']}")


@models_app.command("trust")
def models_trust(
    key_file: Annotated[
        Path | None,
        typer.Argument(metavar="[KEYFILE]", help="Public key of another box; without it, those trusted.", show_default=False),
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="Trust this key no longer.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Trust what another box signs, or list and remove the keys that are trusted."""
    ring = _key_ring(config, data_dir)
    if key_file is not None:
        ring.trust(key_file)
    if remove is not None:
        ring.distrust(remove)
    if json:
        print_json({"trusted": ring.trusted()})
    else:
        print_table(("trusted keys",), [(name,) for name in ring.trusted()])


@models_app.command("key")
def models_key(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the public key there as well.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """This box's public key, for those who are to trust what it exports; made when there is none."""
    from configs.files import atomic_write
    from models.keys import fingerprint, public_pem

    public = _key_ring(config, data_dir).signer().public
    text = public_pem(public).decode()
    if out is not None:
        atomic_write(out, text.encode())
    if json:
        print_json({"fingerprint": fingerprint(public), "public_key": text, "file": str(out) if out else None})
    else:
        say(f"{fingerprint(public)}\n{text}".rstrip())


def _key_ring(config: Path | None, data_dir: Path | None) -> KeyRing:
    """The keys of a data folder in which a box has run; never makes the folder. Raises StorageError."""
    from edge.models_admin import open_store
    from models.keys import KeyRing

    folder = folder_of(config, data_dir)
    open_store(folder).close()
    return KeyRing(folder)
