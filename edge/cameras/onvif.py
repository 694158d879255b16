"""ONVIF: cameras that announce themselves, and what a camera offers to who has its password. `edge.cameras.onvif_child` does the work in
a process of its own that is ended when its time is over; here its answer is judged: sizes, addresses and texts of strangers.

A stream is opened where the camera was found: a camera that names another host for its stream is not believed, and that is said.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from configs.errors import JobError, UsageError, redact
from edge.cameras.onvif_view import MOST_TEXT, OnvifCamera, OnvifProbe, OnvifProfile, roles

#: Longest discovery, and the longest that one camera is asked.
DISCOVER_MAX_S, PROBE_S = 15.0, 25.0
#: What starting the process may take on a busy machine.
START_S = 15.0
#: Longest answer of the process that is read.
MOST_BYTES = 1024 * 1024
DISCOVERY_PORT, ONVIF_PORT = 3702, 80

#: (what is asked, seconds) -> what the process told.
Ask = Callable[[Mapping[str, Any], float], dict[str, Any]]


def ask_child(asked: Mapping[str, Any], within_s: float) -> dict[str, Any]:
    """Starts the process, waits for its answer and ends it. Whatever it does, this gives an answer in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edge.cameras.onvif_child"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(__file__).resolve().parents[2],
        env={key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")} | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        out, _ = process.communicate(json.dumps(dict(asked)).encode(), timeout=within_s + START_S)
        told = json.loads(out[:MOST_BYTES]) if len(out) <= MOST_BYTES else None
    except subprocess.TimeoutExpired:
        return {"code": "timeout", "error": f"it does not come to an end within {within_s:g} s"}
    except ValueError:
        told = None
    finally:
        process.kill()
        process.communicate()
    return (
        told if isinstance(told, dict) else {"code": "malformed", "error": "what it answers cannot be read, or is far too much"}
    )


class Onvif:
    """One question at a time. ask: who is asked instead of a process of its own (tests)."""

    def __init__(self, ask: Ask = ask_child) -> None:
        self._ask = ask
        self._turn = threading.Lock()

    def discover(self, *, seconds: float, address: str = "") -> tuple[OnvifCamera, ...]:
        """Who answers within `seconds` on this machine's networks; address: ask only this host[:port], which may be behind a router.
        Raises UsageError, JobError (code 'busy'; 'network' when nothing can be sent)."""
        if not 0.2 <= seconds <= DISCOVER_MAX_S:
            raise UsageError(f"a discovery lasts 0.2 to {DISCOVER_MAX_S:g} s", subject="seconds")
        to = list(host_and_port(address, DISCOVERY_PORT)) if address else None
        told = self._told({"do": "discover", "seconds": seconds, "to": to}, seconds)
        if "cameras" not in told:
            raise JobError(
                f"cameras cannot be looked for: {told.get('error', '')}", code="network", remedy="type their address"
            )
        return tuple(_cameras(told["cameras"]))

    def probe(self, address: str, *, user: str, password: str) -> OnvifProbe:
        """What the camera at host[:port] offers. Raises UsageError for what is no address, JobError (code 'busy')."""
        host, port = host_and_port(address, ONVIF_PORT)
        scheme = "https://" if address.lower().startswith("https://") else ""
        told = self._told(
            {
                "do": "probe",
                "host": scheme + (f"[{host}]" if ":" in host else host),
                "port": port,
                "user": user,
                "password": password,
            },
            PROBE_S,
        )
        if "profiles" not in told:
            return OnvifProbe(
                ok=False, code=_text(told.get("code")) or "failed", error=_hide(_text(told.get("error")), password)
            )
        notes: list[str] = []
        profiles = tuple(_profile(entry, host, notes) for entry in _list(told["profiles"]))
        analyse, record = roles(profiles)
        if not analyse:
            return OnvifProbe(
                ok=False,
                code="malformed",
                error="it offers no stream that can be opened",
                profiles=profiles,
                notes=tuple(notes),
            )
        return OnvifProbe(
            ok=True, manufacturer=_text(told.get("manufacturer")), model=_text(told.get("model")), firmware=_text(told.get("firmware")),
            profiles=profiles, analyse=analyse, record=record, notes=tuple(notes),
        )  # fmt: skip

    def _told(self, asked: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        if not self._turn.acquire(blocking=False):
            raise JobError("cameras are being asked already", remedy="try again in some seconds", code="busy")
        try:
            return self._ask(asked, within_s)
        finally:
            self._turn.release()


def host_and_port(address: str, default: int) -> tuple[str, int]:
    """Of `host`, `host:port`, `[::1]:80` or an http(s):// address. Raises UsageError, without repeating credentials."""
    text = address.strip()
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    allowed = parts.scheme in ("", "http", "https") if host else False
    if not allowed or len(host) > 253 or any(c.isspace() or c in "/\\@?#'\"<>" for c in host) or not host.isprintable():
        raise UsageError(
            "that is no address of a camera",
            subject="address",
            remedy="type its name or number, as 192.0.2.10 or 192.0.2.10:8000",
        )
    return host, port or (443 if parts.scheme == "https" else default)


def _cameras(found: object) -> Iterable[OnvifCamera]:
    seen: set[str] = set()
    for entry in _list(found):
        try:
            host, port = host_and_port(str(entry.get("address", "")), ONVIF_PORT)
        except UsageError:
            continue  # it announces something that is no address
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address not in seen and not _is_odd(host):
            seen.add(address)
            yield OnvifCamera(address=address, **{key: _text(entry.get(key)) for key in ("name", "hardware", "location")})


def _is_odd(host: str) -> bool:
    """An address that no camera has."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.is_multicast or found.is_unspecified


def _profile(entry: Mapping[str, Any], host: str, notes: list[str]) -> OnvifProfile:
    token = _text(entry.get("token"))
    raw = entry.get("url")
    url = _stream(raw[:2000] if isinstance(raw, str) else "", host, token, notes)
    return OnvifProfile(
        token=token, name=_text(entry.get("name")), codec=_text(entry.get("codec")), width_px=_count(entry.get("width_px")),
        height_px=_count(entry.get("height_px")), fps=float(_count(entry.get("fps"))), url=url,
    )  # fmt: skip


def _stream(url: str, host: str, token: str, notes: list[str]) -> str:
    """The stream's address where the camera was found, without credentials; '' for what is no stream."""
    try:
        parts = urlsplit(url)
        named, port = parts.hostname, parts.port
    except ValueError:
        named, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("rtsp", "rtsps", "http", "https") or not named:
        notes.append(f"{token or 'a profile'}: gives no address of a stream")
        return ""
    if named != host:
        notes.append(f"{token}: names the host {named[:80]} for its stream; {host} is used, where it was found")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    clean = redact(urlunsplit((parts.scheme, netloc, parts.path, parts.query, "")))
    if "***" in clean:
        notes.append(f"{token}: has a password in its address, which is not shown: type it where *** stands")
    return "" if any(c.isspace() or c in "'\"<>" for c in clean) or "${" in clean or not clean.isprintable() else clean


def _list(found: object) -> list[Mapping[str, Any]]:
    entries: list[Mapping[str, Any]] = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return entries[:200]


def _text(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return redact("".join(c for c in text if c.isprintable())[:MOST_TEXT])


def _hide(text: str, password: str) -> str:
    return text.replace(password, "***") if len(password) >= 3 else text


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 100_000 else 0
