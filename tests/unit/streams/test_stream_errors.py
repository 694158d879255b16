"""FFmpeg's errors as ours: a code, a remedy, and never the URL that FFmpeg puts into its own."""

from __future__ import annotations

import logging
import traceback

import av
import av.error
import av.logging
import pytest

from configs.errors import StreamError, StreamErrorCode
from streams import avio

URL = "rtsp://joe:QZcanary@cam7.example/live"


def ffmpeg(kind: type[av.error.FFmpegError], words: str = "it went wrong") -> av.error.FFmpegError:
    return kind(-1, words, URL)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ffmpeg(av.error.HTTPUnauthorizedError), StreamErrorCode.AUTH),
        (ffmpeg(av.error.HTTPForbiddenError), StreamErrorCode.AUTH),
        (ffmpeg(av.error.HTTPNotFoundError), StreamErrorCode.NOT_FOUND),
        (ffmpeg(av.error.HTTPOtherClientError), StreamErrorCode.NETWORK),
        (ffmpeg(av.error.HTTPServerError), StreamErrorCode.NETWORK),
        (ffmpeg(av.error.FileNotFoundError), StreamErrorCode.NOT_FOUND),
        (ffmpeg(av.error.ConnectionRefusedError), StreamErrorCode.NETWORK),
        (ffmpeg(av.error.TimeoutError), StreamErrorCode.TIMEOUT),
        (ffmpeg(av.error.ExitError), StreamErrorCode.TIMEOUT),
        (ffmpeg(av.error.InvalidDataError), StreamErrorCode.CODEC),
        (ffmpeg(av.error.DecoderNotFoundError), StreamErrorCode.CODEC),
        (ffmpeg(av.error.EOFError), StreamErrorCode.NETWORK),
        (TimeoutError("no video came for too long"), StreamErrorCode.TIMEOUT),
        (OSError(5, "Input/output error"), StreamErrorCode.NETWORK),
        (RuntimeError("never seen before"), StreamErrorCode.NETWORK),
    ],
)
def test_codes_and_words(error: Exception, code: StreamErrorCode) -> None:
    ours = avio.stream_error(error, subject="camera yard")
    assert ours.stream_code is code
    assert ours.code == code.value
    assert str(ours).startswith("camera yard: ")
    assert ours.remedy
    assert "QZcanary" not in f"{ours} {ours!r} {vars(ours)}"
    assert "cam7" not in str(ours), "not even the address: the subject names the camera"


def test_a_url_in_the_words_of_an_error_is_redacted() -> None:
    assert "QZcanary" not in str(avio.stream_error(RuntimeError(f"no answer from {URL}"), subject="camera yard"))
    assert "QZcanary" not in str(avio.stream_error(ffmpeg(av.error.OSError, f"no answer from {URL}"), subject="camera yard"))


def test_our_own_error_passes_unchanged() -> None:
    ours = avio.codec_error("camera yard", "it sends no video")
    assert avio.stream_error(ours, subject="something else") is ours


def test_no_trace_of_the_vendors_error_hangs_on_ours() -> None:
    """What is raised `from None` inside an `except` keeps its context; it must not be shown, here or by a logger."""

    def fails() -> None:
        try:
            raise ffmpeg(av.error.HTTPUnauthorizedError)
        except av.error.FFmpegError as error:
            raise avio.stream_error(error, subject="camera yard") from None

    with pytest.raises(StreamError) as caught:
        fails()
    assert "QZcanary" not in "".join(traceback.format_exception(caught.value))


def test_ffmpegs_log_stays_silent_even_when_it_was_switched_on(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    av.logging.set_level(av.logging.DEBUG)
    avio.quiet()
    with caplog.at_level(logging.DEBUG):
        av.logging.log(av.logging.ERROR, "rtsp", f"method DESCRIBE failed for {URL}")
    captured = capfd.readouterr()
    assert "QZcanary" not in caplog.text + captured.out + captured.err
    assert av.logging.get_level() is None
