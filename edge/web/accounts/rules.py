"""What accounts are made of, as pure functions: names, passwords, session ids, API tokens, claim codes. Time is an argument.

Whatever opens a door is made by `secrets` with at least 80 random bits and kept as its SHA-256 only: so many bits cannot be guessed, and
a slow hash would only slow down the box. Passwords, which people choose, are hashed by argon2 (`edge.web.accounts.book`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from dataclasses import dataclass

from configs.errors import UsageError

#: Names of users, tokens; what an account is called in the audit log.
NAME = re.compile(r"^[a-z0-9][a-z0-9._@-]{0,39}$")
#: Parts of the interface that a token may be held to: the word after `/api/v1/`, and `metrics`.
AREA = re.compile(r"^[a-z][a-z-]{0,30}$")
#: Cameras that one token may be held to.
MOST_CAMERAS = 1000
LEAST_PASSWORD, MOST_PASSWORD = 10, 200
#: Found first by whoever guesses; longer than LEAST_PASSWORD, or they would be refused anyway.
_COMMON_TEXT = """
    1234567890 0123456789 0987654321 12345678910 123456789012 1111111111 0000000000 1q2w3e4r5t 1qaz2wsx3edc qwertyuiop qwerty1234
    qwerty12345 qwerty123456 asdfghjkl1 abcdefghij abcd123456 a123456789 administrator password12 password123 password1234 password12345
    passw0rd123 p@ssw0rd123 changeme123 changemenow letmein1234 welcome123 welcome1234 iloveyou123 adminadmin admin12345 admin123456
    rootroot12 driftbox123 driftboxdriftbox raspberry1 surveillance football123 princess123 sunshine123 superman123 dragon12345
"""
COMMON = frozenset(_COMMON_TEXT.split())
#: Without letters that look like digits.
_CODE_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CODE_LENGTH = 16
_LOOKALIKE = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})
_TOKEN = re.compile(r"^driftbox_([0-9a-f]{12}|local)_([A-Za-z0-9_-]{43})$")
LOCAL_TOKEN = "local"


class TooSoon(UsageError):
    """Somebody tries too often. retry_s: when the next try will be looked at."""

    default_code = "too_soon"

    def __init__(self, retry_s: float) -> None:
        self.retry_s = max(1.0, retry_s)
        words = f"{self.retry_s:.0f} s" if self.retry_s < 100 else f"{self.retry_s / 60:.0f} min"
        super().__init__(f"too many wrong tries; the next one counts in {words}", remedy="wait, then try again")


def digest(secret: str) -> str:
    """What is kept of a session id, a token's secret or a claim code."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same(a: str, b: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))


# --- names and passwords ----------------------------------------------------------------------------------------------


def account_name(text: str) -> str:
    """The name in the form in which it is kept. Raises UsageError."""
    name = text.strip().lower()
    if NAME.fullmatch(name) is None:
        raise UsageError(
            "an account's name begins with a letter or a digit; then those and . _ @ - (40 at most)", code="name",
            remedy="choose another name",
        )  # fmt: skip
    return name


def password_of(text: str) -> str:
    """The password as it is hashed: the same whichever way a keyboard composes its letters."""
    return unicodedata.normalize("NFKC", text)


def check_new_password(password: str, name: str) -> None:
    """Raises UsageError (code 'password') for one that is guessed too easily. There are no rules about kinds of characters: length is
    what counts. Never shows the password."""
    plain = password_of(password)
    folded = plain.casefold()
    problem = next(
        (text for wrong, text in (
            (len(plain) < LEAST_PASSWORD, f"the password is too short: {LEAST_PASSWORD} characters at least"),
            (len(plain) > MOST_PASSWORD, f"the password is too long: {MOST_PASSWORD} characters at most"),
            (any(unicodedata.category(c) in ("Cc", "Cs") for c in plain), "the password holds control characters"),
            (len(set(folded)) < 4, "the password repeats the same few characters"),
            (folded in COMMON, "everybody tries this password first"),
            (folded.replace(name, "") in ("", name) or folded.strip("0123456789!.") == name, "the password is the account's name"),
        ) if wrong), "")  # fmt: skip
    if problem:
        raise UsageError(problem, code="password", remedy="take a few words that nobody would put together")


# --- what opens a door ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Token:
    """An API token, taken apart. id: names it in lists; `local`: the running box's own for commands beside it."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.id}, ***)"

    def __str__(self) -> str:
        return f"driftbox_{self.id}_{self.secret}"


def new_token(id: str | None = None) -> Token:
    return Token(id=id or secrets.token_hex(6), secret=secrets.token_urlsafe(32))


def parse_token(text: str) -> Token | None:
    """None: it has not the form of a token."""
    found = _TOKEN.fullmatch(text)
    return Token(id=found[1], secret=found[2]) if found else None


def new_session_id() -> str:
    return secrets.token_urlsafe(32)


def new_claim_code() -> str:
    """Sixteen letters and digits in groups of four, 80 bits."""
    letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))
    return "-".join(letters[at : at + 4] for at in range(0, _CODE_LENGTH, 4))


def claim_code_of(text: str) -> str:
    """As typed by a person: small letters, without the dashes, O for 0 are all fine. '' for what can be no code."""
    code = text.strip().upper().translate(_LOOKALIKE)
    return code if len(code) == _CODE_LENGTH and set(code) <= set(_CODE_LETTERS) else ""


# --- sessions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionRules:
    """idle_s: without a request for so long a session is over; most_s: so long after signing in, whatever happens. A clock that was set
    back by more than back_s ends it, too: nobody knows how old it is."""

    idle_s: float = 24 * 3600.0
    most_s: float = 30 * 24 * 3600.0
    back_s: float = 300.0

    def alive(self, *, created_utc: float, seen_utc: float, now_utc: float) -> bool:
        idle_s, age_s = now_utc - seen_utc, now_utc - created_utc
        return -self.back_s <= idle_s < self.idle_s and -self.back_s <= age_s < self.most_s

    def ends_utc(self, *, created_utc: float, seen_utc: float) -> float:
        return min(created_utc + self.most_s, seen_utc + self.idle_s)
