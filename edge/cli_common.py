"""What all commands of `driftbox` share: their common options, and the configuration they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.load import load_config, load_demo
from configs.schema import BoxConfig

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


def load_in_force(path: Path | None, data_dir: Path | None = None) -> BoxConfig:
    """As `load_given`, with the cameras as a box on its data folder has them: those of the file, and over them what was changed through
    the product. Raises ConfigError, StorageError."""
    from edge.cameras.book import with_book

    return with_book(load_given(path, data_dir)).config


def load_given(path: Path | None, data_dir: Path | None = None) -> BoxConfig:
    """The configuration at `path`, or the built-in demo; `data_dir` replaces its data folder."""
    config = load_demo() if path is None else load_config(path)
    if data_dir is None:
        return config
    return config.model_copy(update={"box": config.box.model_copy(update={"data_dir": data_dir})})
