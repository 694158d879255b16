"""The desk of a running box (`edge.cameras.desk`): its live control, its prober, its ONVIF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from configs.errors import ConfigError
from configs.schema import CameraUrl
from edge.cameras.book import ADDRESSES, Kept, Shelfful
from edge.cameras.desk import CameraInfo, CameraList
from edge.cameras.names import proposed_id
from edge.cameras.onvif import Onvif
from edge.cameras.onvif_view import OnvifCamera, OnvifProbe
from edge.cameras.probe import Prober, ProbeResult

#: Beside the fields of a camera: user and password for those of its addresses that have none.
CREDENTIALS = "credentials"


class Control(Protocol):
    """What changes cameras: `edge.live_control` on a running box, `edge.cameras.offline` where none runs."""

    def cameras(self) -> Shelfful: ...

    def state(self, kept: Kept) -> tuple[str, str]: ...

    def add(self, document: Mapping[str, Any], *, by: str) -> Kept: ...

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> Kept: ...

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None: ...

    def reset(self, camera: str, *, by: str) -> Kept | None: ...


class LiveDesk:
    """See `edge.cameras.desk.CameraDesk`."""

    def __init__(self, control: Control, prober: Prober, onvif: Onvif) -> None:
        self._control, self._prober, self._onvif = control, prober, onvif

    def list(self) -> CameraList:
        found = self._control.cameras()
        return CameraList(cameras=tuple(self._info(k) for k in found.cameras), removed=found.removed, findings=found.findings)

    def get(self, camera: str) -> CameraInfo:
        return self._info(self._control.cameras().find(camera))

    def add(self, document: Mapping[str, Any], *, by: str) -> CameraInfo:
        return self._info(self._control.add(with_credentials(document), by=by))

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> CameraInfo:
        return self._info(self._control.change(camera, with_credentials(patch), by=by, etag=etag))

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None:
        self._control.remove(camera, by=by, etag=etag)

    def reset(self, camera: str, *, by: str) -> CameraInfo | None:
        kept = self._control.reset(camera, by=by)
        return self._info(kept) if kept is not None else None

    def propose_id(self, name: str) -> str:
        found = self._control.cameras()
        return proposed_id(name, {kept.entry.id for kept in found.cameras} | set(found.removed))

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]:
        return self._onvif.discover(seconds=seconds, address=address)

    def probe_onvif(self, address: str, *, user: str, password: str) -> OnvifProbe:
        return self._onvif.probe(address, user=user, password=password)

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult:
        return self._prober.probe(url, transport=transport, local=local)

    def picture(self, token: str) -> bytes | None:
        return self._prober.picture(token)

    def _info(self, kept: Kept) -> CameraInfo:
        state, why = self._control.state(kept)
        return info_of(kept, state, why)


def info_of(kept: Kept, state: str, why: str) -> CameraInfo:
    """What people are told of a camera."""
    entry = kept.entry
    addresses = {name: value for name in ADDRESSES if isinstance(value := getattr(entry, name), CameraUrl)}
    return CameraInfo(
        id=entry.id, title=entry.title, state=state, why=why, source=kept.source, changed=kept.changed, changed_by=kept.changed_by,
        changed_utc=kept.changed_utc, etag=kept.etag, entry=entry.model_dump(mode="json"),
        has_credentials=tuple(name for name, url in addresses.items() if "***" in str(url)),
    )  # fmt: skip


def with_credentials(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with user and password, where they come apart from the addresses, in those that have none. Raises ConfigError."""
    rest = {name: value for name, value in document.items() if name != CREDENTIALS}
    given = document.get(CREDENTIALS)
    if given is None:
        return rest
    if (
        not isinstance(given, Mapping)
        or not set(given) <= {"user", "password"}
        or not all(isinstance(v, str) for v in given.values())
    ):
        raise ConfigError(
            "credentials are {user, password}", problems=((CREDENTIALS, "must be an object with user and password"),)
        )
    user, password = given.get("user", ""), given.get("password", "")
    if not user and not password:
        return rest
    info = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    for name in ADDRESSES:
        text = rest.get(name)
        head, separator, tail = text.partition("://") if isinstance(text, str) else ("", "", "")
        if separator and "@" not in tail:
            rest[name] = f"{head}://{info}@{tail}"
    return rest
