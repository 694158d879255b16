"""`python -m edge.cameras.onvif_child`: speaks ONVIF with one camera, or listens for those that announce themselves, and ends.

A process of its own, because what it reads comes from the network: it may use so much memory and time and no more, whatever is sent; and
because the libraries take seconds of Python's lock and set up logging for themselves, which the box's cameras must not feel.

One JSON object on standard input (no credential stands on the command line), one on standard output:

    {"do": "discover", "seconds": 3, "to": ["192.0.2.10", 3702] | null}           -> {"cameras": [...]}
    {"do": "probe", "host": ..., "port": ..., "user": ..., "password": ...}       -> {"profiles": [...], ...}
                                                                        or, both: -> {"code": ..., "error": ...}
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from contextlib import suppress
from typing import Any

from edge.cameras.onvif_search import search

#: Most memory (address space) and processor time.
MEMORY_BYTES, CPU_S = 2 * 1024**3, 30
#: Most profiles that are asked for their addresses.
MOST_PROFILES = 16


def main() -> int:
    for limit, value in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S)):
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    asked = json.loads(sys.stdin.read())
    try:
        told = (
            {"cameras": search(asked["seconds"], asked.get("to"))} if asked["do"] == "discover" else asyncio.run(probe(asked))
        )
    except Exception as error:
        told = failure(error)
    json.dump(told, sys.stdout)
    return 0


# --- one camera -------------------------------------------------------------------------------------------------------


async def probe(asked: dict[str, Any]) -> dict[str, Any]:
    """Its profiles with their streams. Whatever addresses it gives for its services, they are asked where it was found: credentials go
    nowhere else."""
    from onvif import ONVIFCamera

    camera = ONVIFCamera(
        asked["host"],
        asked["port"],
        asked["user"] or None,
        asked["password"] or None,
        adjust_time=True,
        nat_override=True,
        no_cache=True,
    )
    try:
        await camera.update_xaddrs()
        media = await camera.create_media_service()
        profiles = [await _profile(media, p) for p in (await media.GetProfiles() or [])[:MOST_PROFILES]]
        return {"profiles": profiles, **await _about(camera)}
    finally:
        with suppress(Exception):
            await camera.close()


async def _about(camera: Any) -> dict[str, str]:
    with suppress(Exception):  # nice to know
        told = await (await camera.create_devicemgmt_service()).GetDeviceInformation()
        return {
            "manufacturer": str(told.Manufacturer or ""),
            "model": str(told.Model or ""),
            "firmware": str(told.FirmwareVersion or ""),
        }
    return {}


async def _profile(media: Any, profile: Any) -> dict[str, Any]:
    token = str(profile.token)
    coding = getattr(profile, "VideoEncoderConfiguration", None)
    size, rate = getattr(coding, "Resolution", None), getattr(coding, "RateControl", None)
    found = {
        "token": token, "name": str(getattr(profile, "Name", "") or ""), "codec": str(getattr(coding, "Encoding", "") or ""),
        "width_px": _number(getattr(size, "Width", 0)), "height_px": _number(getattr(size, "Height", 0)),
        "fps": _number(getattr(rate, "FrameRateLimit", 0)), "url": "",
    }  # fmt: skip
    setup = {"Stream": "RTP-Unicast", "Transport": {"Protocol": "RTSP"}}
    try:
        answer = await media.GetStreamUri({"StreamSetup": setup, "ProfileToken": token})
        found["url"] = str(getattr(answer, "Uri", "") or "")
    except Exception as error:
        found["error"] = failure(error)["error"]
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 100_000 else 0


def failure(error: BaseException) -> dict[str, str]:
    """(code, text) of whatever went wrong; nothing of what the camera sent is repeated but the kind of error."""
    kinds = " ".join(type(e).__name__ for e in _chain(error))
    said = " ".join(str(e) for e in _chain(error)).lower()
    if "Auth" in kinds or "notauthorized" in said.replace(" ", "") or "401" in said or "not authorized" in said:
        return {"code": "auth", "error": "user or password are wrong, or ONVIF is not allowed for this user"}
    if "Timeout" in kinds or "timed out" in said:
        return {"code": "timeout", "error": "it does not answer in time"}
    if any(
        kind in kinds for kind in ("ClientConnector", "ClientOSError", "ServerDisconnected", "ConnectionRefused", "gaierror")
    ):
        return {"code": "network", "error": "nothing answers there"}
    if any(kind in kinds for kind in ("XML", "Entit", "DTD", "Transport", "Validation", "Lookup", "Syntax", "MemoryError")):
        return {"code": "malformed", "error": f"what it answers is no ONVIF ({type(error).__name__})"}
    return {"code": "failed", "error": f"it cannot be asked ({kinds[:80]})"}


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and len(found) < 6:
        found.append(error)
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        error = error.__cause__ or inner or error.__context__
    return found


if __name__ == "__main__":
    sys.exit(main())
