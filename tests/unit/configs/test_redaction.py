"""No credential survives `redact`, whatever it is made of and wherever the URL stands."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, DriftboxError, StreamError, StreamErrorCode, redact

# Everything printable but what ends a word in a log line: blanks, quotes, angle brackets.
WORD = "".join(sorted(set(string.ascii_letters + string.digits + string.punctuation + "äß€中") - set("\"'<>")))
#: A canary begins and ends with letters that occur nowhere else in these texts.
canaries = st.text(WORD, max_size=12).map(lambda text: f"QZ{text}ZQ")
schemes = st.sampled_from(["rtsp", "rtsps", "http", "https", "mqtt", "1rtsp", "x+y-z.w"])
around = st.sampled_from(["", "could not open ", "(", "url=", '{"a": "', "[tcp @ 0x55] Connection to "])
after = st.sampled_from(["", "/stream1", ":554/live", ":8554", "/a?channel=1", "/ failed: timed out", '", "b": 1}'])


@given(canary=canaries, scheme=schemes, before=around, behind=after, user=st.sampled_from(["", "joe", "jo%40e", "a.b-c"]))
def test_a_password_never_survives(canary: str, scheme: str, before: str, behind: str, user: str) -> None:
    shown = redact(f"{before}{scheme}://{user}:{canary}@cam7.example{behind}")
    assert "QZ" not in shown
    assert "ZQ" not in shown
    assert shown.startswith(f"{before}{scheme}://***@cam7.example")


@given(canary=st.text(sorted(set(WORD) - set("/:")), max_size=12).map(lambda text: f"QZ{text}ZQ"))
def test_a_token_in_place_of_a_user_never_survives(canary: str) -> None:
    assert redact(f"rtsp://{canary}@cam7.example/live") == "rtsp://***@cam7.example/live"


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "pwd",
        "pass",
        "loginpas",
        "psw",
        "token",
        "access_token",
        "api-key",
        "auth",
        "usr",
        "user",
        "Signature",
        "secret",
    ],
)
@pytest.mark.parametrize("mark", ["?", "&", ";", "#"])
def test_secret_parameters_are_hidden_and_others_kept(key: str, mark: str) -> None:
    shown = redact(f"http://cam7.example/video?channel=3{mark}{key}=QZcanary&size=640")
    assert shown == f"http://cam7.example/video?channel=3{mark}{key}=***&size=640"


def test_http_credentials_are_hidden() -> None:
    assert redact("sent\r\nAuthorization: Digest user=QZ, response=QZ\r\nCSeq: 3") == "sent\r\nAuthorization: ***\r\nCSeq: 3"


@pytest.mark.parametrize(
    "text",
    [
        "camera yard: no answer from rtsp://10.0.0.7:554/live (check the network)",
        "http://cam7.example/users/joe@example.com?channel=1",
        "rtsp://cam7.example/live failed, write to joe@example.com",
        "401 Unauthorized (authorization failed)",
        "ratio 3:4 at 10:20, joe@example.com",
        "",
    ],
)
def test_text_without_credentials_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(text=st.text(max_size=60) | st.text(":/@?&=pasword", max_size=60))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_every_field_of_an_error_is_redacted() -> None:
    url = "rtsp://joe:QZcanary@cam7.example/live"
    errors = [
        DriftboxError(f"bad {url}", subject=url, remedy=f"see {url}"),
        StreamError(f"bad {url}", stream_code=StreamErrorCode.AUTH, subject=url, remedy=f"see {url}"),
        ConfigError("bad", problems=(("cameras.0.url", f"bad {url}"),)),
    ]
    for error in errors:
        assert "QZcanary" not in f"{error} {error!r} {vars(error)} {error.args}"


@pytest.mark.parametrize("text", ["a" * 200_000, "?" + "a" * 200_000, "://" * 50_000, "://a:" + "b" * 200_000, "&a" * 100_000])
def test_long_text_takes_linear_time(text: str) -> None:
    # Quadratic time would be minutes here; the bound is loose on purpose, a busy machine passes.
    begin_s = time.process_time()
    redact(text)
    assert time.process_time() - begin_s < 20
