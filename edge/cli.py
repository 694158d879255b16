"""The command `driftbox`. Thin: every command calls one function of the box and prints what it returns.

Exit codes: 0 ok, 1 the thing asked about is bad, 2 wrong usage or configuration, 3 the environment lacks something.
Heavy libraries are imported inside commands, so that `driftbox --help` and `driftbox check` answer at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import DriftboxError, UsageError, redact
from configs.load import load_config, load_demo
from configs.schema import BoxConfig
from edge.console import print_json, print_table, say, show_error

app = typer.Typer(
    name="driftbox",
    help="Edge video analytics with continuous learning: retraining and live inference share one GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
decide_app = typer.Typer(
    help="What would one of the nine systems decide here, and why: JSON in, JSON out.", no_args_is_help=True
)
models_app = typer.Typer(help="Stored model versions of a box.", no_args_is_help=True)
cameras_app = typer.Typer(help="The cameras of a box.", no_args_is_help=True)
app.add_typer(decide_app, name="decide")
app.add_typer(models_app, name="models")
app.add_typer(cameras_app, name="cameras")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file (YAML).")]
OptionalConfig = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG]", help="Configuration file (YAML); without it, the built-in demo.", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data folder, instead of the configuration's.", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="CONFIG", help="Configuration file that names the data folder.", show_default=False),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code. No traceback reaches an operator unless `--debug` is given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app(words, prog_name="driftbox")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:  # the one place where everything that nobody foresaw ends
        if debug:
            # Redacted as a whole: a library's own message may hold an address with a password.
            print(redact(traceback.format_exc()), file=sys.stderr)
        show_error(error, as_json="--json" in words)
        sys.exit(error.exit_code if isinstance(error, DriftboxError) else 1)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"driftbox {version('driftbox')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (may stand anywhere).")] = False,
) -> None:
    """Runs before every command."""


def load_given(path: Path | None, data_dir: Path | None = None) -> BoxConfig:
    """The configuration at `path`, or the built-in demo; `data_dir` replaces its data folder."""
    config = load_demo() if path is None else load_config(path)
    if data_dir is None:
        return config
    return config.model_copy(update={"box": config.box.model_copy(update={"data_dir": data_dir})})


# --- the box ----------------------------------------------------------------------------------------------------------


@app.command()
def check(config: ConfigFile, json: Json = False) -> None:
    """Validate a configuration without touching the world: every problem at once. Exit code 2 if there is any."""
    loaded = load_config(config)
    if json:
        print_json({"ok": True, "config": str(config), "cameras": [camera.id for camera in loaded.cameras]})
    else:
        off = len(loaded.cameras) - len(loaded.active_cameras)
        cameras = f"{len(loaded.active_cameras)} cameras" + (f" and {off} switched off" if off else "")
        say(f"{config} is fine: {cameras}, policy {loaded.scheduler.policy}, windows of {loaded.window.seconds:g} s")
