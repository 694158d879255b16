"""What ONVIF cameras tell of themselves, as pages and the command line are told it, and which of their streams are proposed for what."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from edge.status import View

#: Least height of a stream that objects are looked for in.
ANALYSE_MIN_PX = 240
#: Names and addresses that a camera sends are cut to this.
MOST_TEXT = 400


class OnvifCamera(View):
    """One that announced itself. All of it is what it says."""

    address: str = Field(description="Where to ask it: host:port, for the probe.")
    name: str = ""
    hardware: str = ""
    location: str = ""


class OnvifProfile(View):
    """One stream that a camera offers. url: without credentials."""

    token: str
    name: str = ""
    codec: str = ""
    width_px: int = 0
    height_px: int = 0
    fps: float = 0.0
    url: str = ""


class OnvifProbe(View):
    """What a camera offers. analyse, record: the tokens of the streams that are proposed as `url` and `record_url`."""

    ok: bool
    code: str = Field(default="", description="auth, timeout, network, malformed or failed.")
    error: str = ""
    manufacturer: str = ""
    model: str = ""
    firmware: str = ""
    profiles: tuple[OnvifProfile, ...] = ()
    analyse: str = ""
    record: str = ""
    notes: tuple[str, ...] = Field(default=(), description="What was odd and put right, in words.")


def roles(profiles: Sequence[OnvifProfile]) -> tuple[str, str]:
    """(token to analyse, token to record): the smallest stream that is large enough, and the largest. '' where there is none."""
    usable = [profile for profile in profiles if profile.url]
    if not usable:
        return "", ""

    def size(profile: OnvifProfile) -> tuple[int, str]:
        return profile.width_px * profile.height_px, profile.token

    large_enough = [profile for profile in usable if profile.height_px >= ANALYSE_MIN_PX]
    analyse = min(large_enough, key=size) if large_enough else max(usable, key=size)
    return analyse.token, max(usable, key=size).token
