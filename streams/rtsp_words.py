"""What is said over RTSP (RFC 2326), from the viewer's side: requests, answers, descriptions, passwords. Pure: text in, text out.

Raises `Unsuited` for whatever is not understood: FFmpeg's reader may know better.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from streams.depacketise import START, Unsuited

#: An answer's headers, and its body, are never larger.
ANSWER_BYTES = 256 * 1024
_CODECS = {"H264": "h264", "H265": "hevc", "HEVC": "hevc"}
_HASHES = {"MD5": "md5", "SHA-256": "sha256"}
_PARAMETER = re.compile(r'([\w-]+)\s*=\s*(?:"([^"]*)"|([^\s,]+))')
_METHOD = re.compile(rb"[A-Z_]{1,20}(?: |\Z)")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """status 0: a request of the server's. headers: in lower case; several of one name in the order in which they came."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    def header(self, name: str) -> str:
        return self.headers.get(name, [""])[0]


def request(method: str, url: str, seq: int, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    lines = [
        f"{method} {url} RTSP/1.0",
        f"CSeq: {seq}",
        "User-Agent: driftbox",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def take_answer(data: bytes, at: int = 0) -> tuple[Answer, int] | None:
    """(the answer that begins at data[at], where it ends); None: it is not all here. Raises Unsuited when it is none."""
    begins = data[at : at + 20]
    if not (b"RTSP/".startswith(begins[:5]) or _METHOD.match(begins)):
        raise Unsuited("it does not speak RTSP")
    head_end = data.find(b"\r\n\r\n", at)
    if head_end < 0:
        if len(data) - at > ANSWER_BYTES:
            raise Unsuited("its answer does not end")
        return None
    first, *lines = data[at:head_end].decode("utf-8", "replace").split("\r\n")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip())
    size = _whole(headers.get("content-length", ["0"])[0])
    if size is None or size > ANSWER_BYTES:
        raise Unsuited("its answer is too long")
    end = head_end + 4 + size
    if end > len(data):
        return None
    status = _whole((first.split(" ") + ["", ""])[1]) if first.startswith("RTSP/") else 0
    if status is None:
        raise Unsuited("it does not speak RTSP")
    return Answer(status=status, headers=headers, body=data[head_end + 4 : end]), end


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, kw_only=True)
class Track:
    """The video of a session. parameters: its parameter sets as Annex B, as far as the description tells them; control, session_control:
    as written, "" where nothing is."""

    codec: str
    payload_type: int
    control: str
    session_control: str
    parameters: bytes


def track_of(description: str) -> Track:
    """The first video of a session description (RFC 8866). Raises Unsuited when it is not plain H.264 or H.265."""
    head, *media = re.split(r"(?m)^m=", description.replace("\r", ""))
    video = next((part for part in media if part.startswith("video ")), None)
    if video is None:
        raise Unsuited("it describes no video")
    words = video.partition("\n")[0].split()
    if len(words) < 4 or not words[2].startswith("RTP/AVP"):
        raise Unsuited("its video is not sent as plain RTP")
    for form in words[3:]:
        named = re.search(rf"(?m)^a=rtpmap:{re.escape(form)}\s+(\w+)/90000", video)
        codec = _CODECS.get(named[1].upper()) if named else None
        if codec is not None and form.isdigit():
            about = re.search(rf"(?m)^a=fmtp:{form}\s+(.*)$", video)
            told = _told(about[1] if about else "")
            if told.get("packetization-mode") == "2" or told.get("sprop-max-don-diff", "0") != "0":
                raise Unsuited("its packets are interleaved")
            return Track(
                codec=codec, payload_type=int(form), control=_attribute(video, "control"),
                session_control=_attribute(head, "control"), parameters=_parameters(told, codec),
            )  # fmt: skip
    raise Unsuited("its video is neither H.264 nor H.265")


def _attribute(text: str, name: str) -> str:
    found = re.search(rf"(?m)^a={name}:(.*)$", text)
    return found[1].strip() if found else ""


def _told(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parameters(told: dict[str, str], codec: str) -> bytes:
    names = ("sprop-vps", "sprop-sps", "sprop-pps") if codec == "hevc" else ("sprop-parameter-sets",)
    sets = [one for name in names for one in told.get(name, "").split(",") if one]
    try:
        return b"".join(START + base64.b64decode(one, validate=True) for one in sets)
    except (binascii.Error, ValueError):
        return b""  # they are in the stream, too


def address_of(base: str, control: str) -> str:
    """Where a track, or the whole session, is asked for."""
    if control in ("", "*"):
        return base
    return control if "://" in control else f"{base.removesuffix('/')}/{control.removeprefix('/')}"


def timeout_s(session: str) -> float:
    """How long a session lives without a sign of life: 60 s unless its header says otherwise."""
    found = re.search(r";\s*timeout\s*=\s*(\d{1,6})", session)
    return float(found[1]) if found and int(found[1]) > 0 else 60.0


@dataclass(kw_only=True, repr=False)
class Server:
    """Where a camera is, and with which user. It is not printed: it holds the password."""

    host: str
    port: int
    url: str
    user: str
    password: str
    _challenge: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def of(cls, address: str) -> Server:
        """address: rtsp://[user[:password]@]host[:port]/path, quoted."""
        parts = urlsplit(address)
        host = parts.hostname or ""
        place = f"[{host}]" if ":" in host else host
        place += f":{parts.port}" if parts.port else ""
        query = f"?{parts.query}" if parts.query else ""
        return cls(
            host=host, port=parts.port or 554, url=f"rtsp://{place}{parts.path or '/'}{query}", user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
        )  # fmt: skip

    def challenged(self, asked: Sequence[str]) -> bool:
        """Takes the challenges of a refusal; returns whether another try makes sense: they can be answered, and were not yet."""
        before, self._challenge, self._count = self._challenge, self._best(asked), 0
        again = not before or self._challenge.get("stale", "").lower() == "true"
        return again and bool(self._challenge) and bool(self.user or self.password)

    @staticmethod
    def _best(asked: Sequence[str]) -> dict[str, str]:
        """Digest where it can be had; of several the first that can be answered."""
        found: list[dict[str, str]] = []
        for text in asked:
            scheme, _, rest = text.strip().partition(" ")
            told = {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(rest)}
            known = told.get("algorithm", "MD5").upper() in _HASHES
            offers_auth = "auth" in re.split(r"[,\s]+", told.get("qop", "auth"))
            if scheme.lower() == "digest" and known and offers_auth and "nonce" in told:
                found.insert(0, told | {"scheme": "digest"})
            elif scheme.lower() == "basic":
                found.append(told | {"scheme": "basic"})
        return next((one for one in found if one["scheme"] == "digest"), found[0] if found else {})

    def authorization(self, method: str, url: str) -> tuple[tuple[str, str], ...]:
        """The header that answers the last challenge; none without one."""
        told = self._challenge
        if not told:
            return ()
        if told["scheme"] == "basic":
            both = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return (("Authorization", f"Basic {both}"),)
        self._count += 1
        return (("Authorization", "Digest " + self._digest(told, method, url)),)

    def _digest(self, told: dict[str, str], method: str, url: str) -> str:
        """RFC 2617 and, with SHA-256, RFC 7616."""
        algorithm = told.get("algorithm", "MD5").upper()
        realm, nonce = told.get("realm", ""), told["nonce"]

        def hashed(text: str) -> str:
            return hashlib.new(_HASHES[algorithm], text.encode(), usedforsecurity=False).hexdigest()

        secret, asked = hashed(f"{self.user}:{realm}:{self.password}"), hashed(f"{method}:{url}")
        said = [f'username="{self.user}"', f'realm="{realm}"', f'nonce="{nonce}"', f'uri="{url}"']
        if "qop" in told:
            count, mine = f"{self._count:08x}", secrets.token_hex(8)
            answer = hashed(f"{secret}:{nonce}:{count}:{mine}:auth:{asked}")
            said += [f"qop=auth, nc={count}", f'cnonce="{mine}"']
        else:
            answer = hashed(f"{secret}:{nonce}:{asked}")
        said.append(f'response="{answer}"')
        said += [f'opaque="{told["opaque"]}"'] if "opaque" in told else []
        said += [f"algorithm={told['algorithm']}"] if "algorithm" in told else []
        return ", ".join(said)
