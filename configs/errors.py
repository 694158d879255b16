"""The one error tree of Driftbox. Vendor errors are mapped to it at the seam where they appear.

    DriftboxError                 code, subject, remedy; exit code for the command line
    ├── ConfigError               the configuration is wrong                       (exit 2)
    ├── UsageError                a command was called wrongly                     (exit 2)
    ├── EnvironmentLacking        weights, driver, port, disk, library missing     (exit 3)
    │   ├── WeightsError          weights missing, wrong or corrupt
    │   └── StorageError          data folder: full, read-only, newer, in use
    ├── StreamError               a camera or a file cannot be read                (exit 1)
    └── JobError                  a labelling, profiling, training or gate job failed (exit 1)
        └── JobCancelled          the job was told to stop (not a failure)

Messages name the subject and say what to do; they never hold a credential (see `redact`).
"""

from __future__ import annotations

import re
from enum import StrEnum


class StreamErrorCode(StrEnum):
    """Why a camera gives no frames; a stable name for logs, pages and MQTT."""

    AUTH = "auth"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    CODEC = "codec"
    NETWORK = "network"
    ENDED = "ended"


#: User information of a URL: to the last `@` of the word when it looks like `user:password@` (people forget to quote a `/` in a
#: password), else to the last `@` before the path. Anchored on `://` and bounded, so that long text costs linear time.
_USERINFO = re.compile(r"""://(?:[^\s/:]{0,200}:[^\s"'<>]{0,1000}|[^/\s]{0,1000})@""")
_SECRET_PARAM = re.compile(
    r"(?P<key>[?&;#][\w-]{0,40}?(?:pass|pas|psw|pwd|token|secret|key|auth|user|usr|login|sig|cred|session)[\w-]{0,40}=)[^&\s;'\"]+",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(r"(?P<key>(?:authorization|(?:set-)?cookie)\s*[:=]\s*)[^\r\n]+", re.IGNORECASE)
#: The box's own API tokens (`edge.web.accounts.rules`), wherever they stand.
_TOKEN = re.compile(r"driftbox_(?:[0-9a-f]{12}|local)_[A-Za-z0-9_-]{20,}")


def redact(text: str) -> str:
    """`text` with the user information and secret query values of every URL in it, and HTTP credentials, replaced by `***`."""
    text = _TOKEN.sub("driftbox_***", _USERINFO.sub("://***@", text))
    text = _SECRET_PARAM.sub(lambda m: f"{m['key']}***", text)
    return _AUTHORIZATION.sub(lambda m: f"{m['key']}***", text)


def secret_values(text: str) -> list[tuple[int, int]]:
    """(begin, end) of each value in an address's query that is secret by its name, first one first."""
    return [(found.end("key"), found.end()) for found in _SECRET_PARAM.finditer(text)]


class DriftboxError(Exception):
    """An error an operator may see.

    message: what is wrong, naming its subject; remedy: what to do about it; code: a stable short name.
    All text is redacted on construction.
    """

    exit_code = 1
    default_code = "error"

    def __init__(self, message: str, *, subject: str = "", remedy: str = "", code: str = "") -> None:
        self.message = redact(message)
        self.subject = redact(subject)
        self.remedy = redact(remedy)
        self.code = code or self.default_code
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class UsageError(DriftboxError):
    exit_code = 2
    default_code = "usage"


class ConfigError(DriftboxError):
    """problems: every problem as (field path, text), all found at once."""

    exit_code = 2
    default_code = "config"

    def __init__(
        self, message: str, *, problems: tuple[tuple[str, str], ...] = (), subject: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message, subject=subject, remedy=remedy)
        self.problems = tuple((path, redact(text)) for path, text in problems)


class EnvironmentLacking(DriftboxError):
    exit_code = 3
    default_code = "environment"


class WeightsError(EnvironmentLacking):
    default_code = "weights"


class StorageError(EnvironmentLacking):
    """code: 'full', 'read_only', 'newer', 'in_use' or 'corrupt'."""

    default_code = "storage"


class StreamError(DriftboxError):
    """A source failed. code is a `StreamErrorCode`."""

    def __init__(self, message: str, *, stream_code: StreamErrorCode, subject: str = "", remedy: str = "") -> None:
        super().__init__(message, subject=subject, remedy=remedy, code=stream_code.value)
        self.stream_code = stream_code


class JobError(DriftboxError):
    """code: 'nan', 'out_of_memory', 'exception', 'no_data' or 'cancelled'; labels that nothing is trained on: 'too_few', 'no_objects',
    'unknown_classes' or 'bad_labels' (`models.sanity`)."""

    default_code = "exception"


class JobCancelled(JobError):
    default_code = "cancelled"
