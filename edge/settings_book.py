"""What was changed through the product about the box itself, over its configuration file, which nobody writes into: `storage.media`.

Only what is other than in the file is kept (table `settings_book`), so a value that is set back belongs to the file again. File and
layer are checked together, by the one schema, before anything is kept. A change counts at once, and again after a restart.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from configs.errors import ConfigError, UsageError
from configs.load import with_media
from configs.schema import BoxConfig
from configs.schema.media import MediaSection
from edge.store.store import Store

log = logging.getLogger("driftbox")

#: How the one section is called that can be changed here, in the file and in the table.
MEDIA = "storage.media"


class SettingsBook:
    """config: as the file has it; utc_s: the clock. From any thread. on_media: told what is in force, after every change."""

    def __init__(self, config: BoxConfig, store: Store, *, utc_s: Callable[[], float]) -> None:
        self._config, self._store, self._utc_s = config, store, utc_s
        self._lock = threading.Lock()
        self.on_media: list[Callable[[MediaSection], None]] = []

    def media(self) -> MediaSection:
        """`storage.media` in force."""
        return self.over(self._config).storage.media

    def changed(self) -> frozenset[str]:
        """Keys of the file that were changed here: `storage.media.clip_days`."""
        return frozenset(f"{MEDIA}.{name}" for name in self._kept())

    def etag(self) -> str:
        """Of `storage.media` in force: other when another value is."""
        return _etag(self.media())

    def over(self, config: BoxConfig) -> BoxConfig:
        """A configuration with what was changed here. A file or release that it no longer fits goes before it: a bound that nobody
        can read must not keep the box from starting."""
        try:
            return self._with(config, self._kept())
        except ConfigError as error:
            log.warning("what was changed about %s does not fit any more, the file counts: %s", MEDIA, error)
            return config

    def change_media(self, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> MediaSection:
        """Some fields get other values, null: what the file says. Durable, and in force, when it returns. etag: of what was seen, None:
        whatever is in force. Raises ConfigError with problems by field, UsageError 'changed' when something else is in force by now,
        StorageError."""
        with self._lock:
            if etag is not None and etag != self.etag():
                raise UsageError(
                    f"{MEDIA} was changed by somebody else meanwhile", subject=MEDIA, code="changed",
                    remedy="look at it again, then change it",
                )  # fmt: skip
            kept = {**self._kept(), **patch}
            in_file = self._config.storage.media
            try:
                found = self._with(self._config, {name: value for name, value in kept.items() if value is not None})
            except ConfigError as error:
                raise _by_field(error) from None
            media = found.storage.media
            values = media.model_dump(mode="json")
            mine = {name: values[name] for name in kept if kept[name] is not None and values[name] != getattr(in_file, name)}
            self._keep(mine, by)
        for tell in self.on_media:
            tell(media)
        return media

    # --- inside -------------------------------------------------------------------------------------------------------

    def _with(self, config: BoxConfig, kept: Mapping[str, Any]) -> BoxConfig:
        if not kept:
            return config
        return with_media(
            config, config.storage.media.model_dump(mode="json", exclude_unset=True) | dict(kept), source="settings"
        )

    def _kept(self) -> dict[str, Any]:
        rows = self._store.rows("SELECT document FROM settings_book WHERE section = ?", (MEDIA,))
        found = json.loads(rows[0]["document"]) if rows else {}
        return found if isinstance(found, dict) else {}

    def _keep(self, document: Mapping[str, Any], by: str) -> None:
        with self._store.transaction(durable=True) as db:
            if not document:
                db.execute("DELETE FROM settings_book WHERE section = ?", (MEDIA,))
                return
            db.execute(
                "INSERT OR REPLACE INTO settings_book (section, document, updated_utc, changed_by) VALUES (?, ?, ?, ?)",
                (MEDIA, json.dumps(dict(document), sort_keys=True, ensure_ascii=False, allow_nan=False), self._utc_s(), by),
            )


def _etag(media: MediaSection) -> str:
    return hashlib.sha256(json.dumps(media.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:24]


def _by_field(error: ConfigError) -> ConfigError:
    """Fields by their own names, as whoever changes this section knows them."""
    problems = tuple((path.removeprefix(f"{MEDIA}."), text) for path, text in error.problems)
    told = "; ".join(f"{path}: {text}" for path, text in problems)
    return ConfigError(
        f"{MEDIA} cannot be like that: {told}",
        problems=problems,
        subject=MEDIA,
        remedy="docs/configuration.md describes every key",
    )
