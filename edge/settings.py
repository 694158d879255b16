"""The configuration in force, for people: every key with its value, unit, range, default and meaning, and nothing secret.

Cameras are left out: they are changed live and have routes of their own. Everything here stands in the configuration file and is changed
there; `driftbox check` says what is wrong with it before a restart. `storage.media` can be changed here, too, and then counts at once
(`edge.settings_book`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from configs.describe import described
from configs.errors import UsageError, redact
from configs.schema import BoxConfig
from configs.schema.secret import Secret
from configs.tasks import known_tasks
from configs.units import CLASSES
from edge.settings_book import MEDIA, SettingsBook
from edge.software import software_version
from edge.status import View

if TYPE_CHECKING:
    from edge.web.tls import Certificate

#: Sections of the configuration that have pages of their own.
_ELSEWHERE = ("cameras",)
MIB = 1024 * 1024


class SettingView(View):
    """One key."""

    key: str = Field(description="As it stands in the file: `window.seconds`.")
    value: str = Field(description="In force; a secret is shown as where it comes from, or ***.")
    unit: str = ""
    range: str = Field(default="", description="What is allowed.")
    default: str = ""
    meaning: str = ""
    given: bool = Field(default=False, description="Stands in the file; the others have their default.")
    live: bool = Field(default=False, description="Can be changed here, without a restart.")
    changed: bool = Field(default=False, description="Was changed here: `value` counts, whatever the file says.")


class SectionView(View):
    """One section of the file."""

    key: str
    meaning: str = ""
    settings: tuple[SettingView, ...] = ()


class DiskView(View):
    """The disk that the data folder lies on."""

    data_dir: str
    total_mib: float
    free_mib: float
    min_free_mib: float = Field(description="Below so much nothing is sampled or trained; inference goes on.")


class CertificateView(View):
    """What the pages are served with."""

    kind: str = Field(description="own: made by the box; given: by the operator.")
    state: str = Field(description="good, soon (three weeks are left), expired or early.")
    from_utc: float
    until_utc: float
    names: tuple[str, ...] = Field(description="Names and addresses it is good for.")
    fingerprint: str = Field(description="SHA-256, as browsers show it.")


class MqttView(View):
    """The box at its broker."""

    broker: str = Field(description="host:port.")
    connected: bool
    obeys: bool = Field(description="Commands that come over MQTT are carried out.")
    discovery: bool = Field(description="Cameras are announced to Home Assistant.")


class SettingsView(View):
    """The configuration in force."""

    software: str
    file: str = Field(default="", description="Where it was read from; empty: the built-in demo.")
    sections: tuple[SectionView, ...] = ()
    media_etag: str = Field(
        default="", description="Of `storage.media` in force, for If-Match; empty: it cannot be changed here."
    )
    disk: DiskView | None = Field(default=None, description="null: the disk cannot be asked.")
    certificate: CertificateView | None = Field(default=None, description="null: plain HTTP.")
    mqtt: MqttView | None = Field(default=None, description="null: the box speaks to no broker.")


class ChoicesView(View):
    """What one can choose from when a camera is set up."""

    classes: tuple[str, ...] = CLASSES
    tasks: tuple[str, ...] = Field(description="What a camera's model may be asked.")


class SettingsSource(Protocol):
    """Asked from web threads."""

    def settings(self) -> SettingsView: ...

    def change_media(self, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> SettingsView:
        """`storage.media`, see `edge.settings_book`. Raises ConfigError, UsageError where nothing can be changed."""
        ...

    def choices(self) -> ChoicesView: ...


class BoxSettings:
    """See `SettingsSource`. file: where the configuration was read from, None: nowhere. connected, certificate: set by whoever has them;
    None: there is no broker, no TLS. book: what was changed here, None: nothing can be."""

    connected: Callable[[], bool] | None = None
    certificate: Callable[[], Certificate] | None = None

    def __init__(
        self, config: BoxConfig, data_dir: Path, *, file: Path | None = None, utc_s: Callable[[], float] = time.time,
        book: SettingsBook | None = None,
    ) -> None:  # fmt: skip
        self._config, self._book = config, book
        self._in_file = {one.key for section in _sections(config) for one in section.settings if one.given}
        self._data_dir, self._file = data_dir, file
        self._mqtt, self._tls_kind = config.telemetry.mqtt, config.web.tls_kind
        self._utc_s = utc_s
        self._min_free_mib = float(config.storage.min_free_mib)

    def settings(self) -> SettingsView:
        return SettingsView(
            software=software_version(), file=str(self._file or ""), sections=tuple(self._sections()), disk=self._disk(),
            media_etag=self._book.etag() if self._book is not None else "", certificate=self._certificate(), mqtt=self._broker(),
        )  # fmt: skip

    def choices(self) -> ChoicesView:
        return ChoicesView(tasks=known_tasks())

    def change_media(self, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> SettingsView:
        if self._book is None:
            raise UsageError("nothing can be changed here", code="not_found", remedy="change the configuration file")
        self._book.change_media(patch, by=by, etag=etag)
        return self.settings()

    def _sections(self) -> Iterator[SectionView]:
        """The file's, with what was changed here."""
        if self._book is None:
            yield from _sections(self._config)
            return
        changed = self._book.changed()
        for section in _sections(self._book.over(self._config)):
            told = (
                one.model_copy(
                    update={
                        "given": one.key in self._in_file,
                        "live": one.key.startswith(f"{MEDIA}."),
                        "changed": one.key in changed,
                    }
                )
                for one in section.settings
            )
            yield section.model_copy(update={"settings": tuple(told)})

    def _certificate(self) -> CertificateView | None:
        if self.certificate is None:
            return None
        found = self.certificate()
        return CertificateView(
            kind=self._tls_kind, state=found.state(self._utc_s()), from_utc=found.from_utc, until_utc=found.until_utc,
            names=tuple(sorted(found.names)), fingerprint=found.fingerprint,
        )  # fmt: skip

    def _broker(self) -> MqttView | None:
        if self.connected is None:
            return None
        mqtt = self._mqtt
        where = f"{mqtt.host}:{mqtt.port}" if mqtt.broker == "external" else f"the box's own, port {mqtt.port}"
        return MqttView(broker=where, connected=self.connected(), obeys=mqtt.obeys, discovery=mqtt.discovery)

    def _disk(self) -> DiskView | None:
        try:
            usage = shutil.disk_usage(self._data_dir)
        except OSError:
            return None
        return DiskView(
            data_dir=str(self._data_dir),
            total_mib=usage.total / MIB,
            free_mib=usage.free / MIB,
            min_free_mib=self._min_free_mib,
        )


def _sections(config: BoxConfig) -> Iterator[SectionView]:
    for name in type(config).model_fields:
        section = getattr(config, name)
        if name not in _ELSEWHERE and isinstance(section, BaseModel):
            meaning = (type(section).__doc__ or "").strip()
            yield SectionView(key=name, meaning=meaning, settings=tuple(_settings(section, f"{name}.")))


def _settings(section: BaseModel, prefix: str) -> Iterator[SettingView]:
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{prefix}{name}"
        inner = dict(_inner(value))
        if isinstance(value, BaseModel):
            yield from _settings(value, f"{path}.")
        elif inner:
            for key, part in inner.items():
                yield from _settings(part, f"{path}{key}.")
        else:
            yield _setting(path, field, value, given=name in section.model_fields_set)


def _inner(value: Any) -> Iterator[tuple[str, BaseModel]]:
    """The sections of a list or map of sections, by how they stand in a path."""
    if isinstance(value, Mapping):
        yield from ((f".{name}", part) for name, part in value.items() if isinstance(part, BaseModel))
    elif isinstance(value, tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(value) if isinstance(part, BaseModel))


def _setting(path: str, field: FieldInfo, value: Any, *, given: bool) -> SettingView:
    told = described(field)
    return SettingView(
        key=path, value=_shown(value), unit=told.unit, range=told.range, default=told.default, meaning=told.meaning, given=given
    )


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Secret):
        return value.shown()
    if isinstance(value, bool | list | tuple | Mapping):
        return redact(json.dumps(value, default=str, ensure_ascii=False))
    return redact(str(value))
