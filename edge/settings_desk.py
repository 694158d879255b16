"""What can be changed about the box itself, for the command line: of a box that runs over its own HTTP, else in its data folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from configs.errors import EnvironmentLacking
from configs.schema import BoxConfig
from edge.client import ask_box
from edge.settings import BoxSettings, SettingsView
from edge.settings_book import SettingsBook
from edge.store.folder import DataFolder
from edge.store.store import Store


class SettingsDesk(Protocol):
    """What the commands use of `edge.settings.SettingsSource`. Raise ConfigError, or UsageError with the box's words."""

    def settings(self) -> SettingsView: ...

    def change_media(self, patch: Mapping[str, Any], *, by: str) -> SettingsView: ...


class RemoteSettings:
    """Of the box that serves the configuration's address; who asks is found out by the box, so `by` is not sent."""

    def __init__(self, config: BoxConfig) -> None:
        self._config = config

    def settings(self) -> SettingsView:
        return SettingsView.model_validate(ask_box(self._config, "GET", "settings"))

    def change_media(self, patch: Mapping[str, Any], *, by: str) -> SettingsView:
        return SettingsView.model_validate(ask_box(self._config, "PATCH", "settings/media", dict(patch)))


@contextmanager
def settings_desk(config: BoxConfig) -> Iterator[tuple[SettingsDesk, bool]]:
    """(desk, whether a box runs). Raises StorageError (code 'in_use': a box runs, but cannot be asked)."""
    remote = RemoteSettings(config)
    try:
        if config.web.enabled:
            remote.settings()
            yield remote, True
            return
    except EnvironmentLacking as error:
        if error.code != "not_running":
            raise
    with DataFolder(config.box.data_dir) as folder, Store(folder.db_path) as store:
        yield BoxSettings(config, folder.root, book=SettingsBook(config, store, utc_s=time.time)), False
