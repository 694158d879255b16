"""`driftbox settings ...`: what of the configuration can be changed without a restart, of a running box or of its data folder.

Everything else stands in the configuration file and is changed there.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import UsageError
from edge.cli_common import ConfigOption, DataDir, Json, load_given
from edge.console import print_json, print_table, say

if TYPE_CHECKING:
    from edge.settings import SettingsView, SettingView

settings_app = typer.Typer(help="What can be changed about a box without a restart.", no_args_is_help=True)

BY = "command line"
_PREFIX = "storage.media."

Given = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE...", help="clip_days=7, class_days='{\"person\": 30}'; values are JSON.")
]
Keys = Annotated[list[str] | None, typer.Argument(metavar="[KEY...]", help="As clip_days; without any: all of them.")]


@settings_app.command("show")
def settings_show(config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """The keys that can be changed here, in force, and which of them were changed."""
    from edge.settings_desk import settings_desk

    with settings_desk(load_given(config, data_dir)) as (desk, _):
        _told(desk.settings(), json)


@settings_app.command("set")
def settings_set(given: Given, config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Changes keys of storage.media; a box that runs keeps to them at once, one that does not from its next start on."""
    _change(dict(map(_parsed, given)), config, data_dir, json)


@settings_app.command("reset")
def settings_reset(keys: Keys = None, config: ConfigOption = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Drops what was changed: the configuration file counts again."""
    _change({_name(key): None for key in keys} if keys else None, config, data_dir, json)


def _change(patch: dict[str, Any] | None, config: Any, data_dir: Any, json: bool) -> None:
    """patch: None means all that was changed, back."""
    from edge.settings_desk import settings_desk

    with settings_desk(load_given(config, data_dir)) as (desk, running):
        if patch is None:
            patch = {_name(one.key): None for one in _live(desk.settings()) if one.changed}
        view = desk.change_media(patch, by=BY) if patch else desk.settings()
        _told(view, json)
    if not json:
        say("in force" if running else "in force from the next start on")


def _parsed(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text[:60]!r} is not KEY=VALUE", remedy="driftbox settings set clip_days=7")
    try:
        return _name(key), json_module.loads(value)
    except ValueError:
        raise UsageError(
            f"what stands behind {key[:60]}= is no JSON", remedy="as in clip_days=7, or class_days='{\"person\": 30}'"
        ) from None


def _name(key: str) -> str:
    """`clip_days` of `storage.media.clip_days` or `clip_days`."""
    name = key.strip().removeprefix(_PREFIX)
    if not name or "." in name:
        raise UsageError(
            f"{key[:60]!r} cannot be changed here",
            subject=key[:60],
            remedy="change it in the configuration file; driftbox settings show lists what can be",
        )
    return name


def _live(view: SettingsView) -> Sequence[SettingView]:
    return [one for section in view.sections for one in section.settings if one.live]


def _told(view: SettingsView, json: bool) -> None:
    rows = _live(view)
    if json:
        print_json({"settings": [one.model_dump(mode="json") for one in rows]})
        return
    print_table(
        ("key", "value", "unit", "from", "allowed"),
        [
            (one.key, one.value, one.unit, "changed here" if one.changed else "the file" if one.given else "default", one.range)
            for one in rows
        ],
    )
