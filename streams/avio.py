"""The one door to FFmpeg (PyAV): its errors mapped to ours, its log kept quiet.

FFmpeg logs whole URLs, credentials included, when a server refuses them. PyAV drops that log unless somebody calls
`av.logging.set_level` or `restore_default_callback`; nothing in this project does (`tests/unit/streams` keeps it so), and
`quiet` says it once more for processes where a library did. The exceptions carry the URL too (`filename`), so no PyAV
exception may leave `streams` nor stay attached to one of ours: raise ours after the `except` block, or at least `from None`.
"""

from __future__ import annotations

import logging

import av
import av.error
import av.logging

from configs.errors import StreamError, StreamErrorCode, redact

_REMEDY = {
    StreamErrorCode.AUTH: "check the user name and the password of the camera",
    StreamErrorCode.NOT_FOUND: "check the path or the device name",
    StreamErrorCode.TIMEOUT: "check that the camera is switched on and that the network lets it through",
    StreamErrorCode.CODEC: "give a video that FFmpeg can decode, H.264 for instance",
    StreamErrorCode.NETWORK: "check the host name, the port and the network",
    StreamErrorCode.ENDED: "",
}

#: First match wins, so classes stand before their bases.
_CODES: tuple[tuple[tuple[type[BaseException], ...], StreamErrorCode], ...] = (
    ((av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError, PermissionError), StreamErrorCode.AUTH),
    ((av.error.HTTPNotFoundError, FileNotFoundError, IsADirectoryError, NotADirectoryError), StreamErrorCode.NOT_FOUND),
    ((av.error.ExitError, TimeoutError), StreamErrorCode.TIMEOUT),
    (
        (
            av.error.InvalidDataError,
            av.error.DecoderNotFoundError,
            av.error.DemuxerNotFoundError,
            av.error.PatchWelcomeError,
            av.error.ArgumentError,
        ),
        StreamErrorCode.CODEC,
    ),
    ((EOFError, ConnectionError, OSError), StreamErrorCode.NETWORK),
)


def quiet() -> None:
    """Drops FFmpeg's own log in this process. Cheap; called before every open."""
    av.logging.set_level(None)
    logging.getLogger("libav").disabled = True


def code_of(error: BaseException) -> StreamErrorCode:
    """The stable name for a PyAV (or built-in) exception; NETWORK for what nobody foresaw, because a retry is then right."""
    return next((code for classes, code in _CODES if isinstance(error, classes)), StreamErrorCode.NETWORK)


def reason_of(error: BaseException) -> str:
    """The words of the error without the URL that PyAV appends to them."""
    words = getattr(error, "strerror", None)
    if not words and not isinstance(error, av.error.FFmpegError):
        words = str(error)
    return redact(str(words)) if words else type(error).__name__


def stream_error(error: BaseException, *, subject: str) -> StreamError:
    """Ours for theirs. subject: the redacted name of the camera or file. How to raise it: see the module's text."""
    if isinstance(error, StreamError):
        return error
    code = code_of(error)
    reason = "it is not a video" if isinstance(error, av.error.InvalidDataError) else reason_of(error)
    return StreamError(f"{subject}: {reason}", stream_code=code, subject=subject, remedy=_REMEDY[code])


def codec_error(subject: str, reason: str) -> StreamError:
    """`subject` was opened but holds nothing that can be decoded."""
    return StreamError(
        f"{subject}: {reason}", stream_code=StreamErrorCode.CODEC, subject=subject, remedy=_REMEDY[StreamErrorCode.CODEC]
    )
