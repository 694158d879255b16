"""Join codes: `XXXX-XXXX-XXXX-XXXX.` and the beginning of the fingerprint of the fleet's authority.

The first part is the secret (80 bits; kept as its hash); the second tells the box that it speaks to the right controller before it has
any certificate to check it by. Pure, but for the secret itself.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

from configs.errors import UsageError

#: Hex digits of the authority's fingerprint in a code.
DIGITS = 32


def new_secret() -> str:
    """XXXX-XXXX-XXXX-XXXX"""
    text = base64.b32encode(secrets.token_bytes(10)).decode()
    return "-".join(text[at : at + 4] for at in range(0, 16, 4))


def code_of(secret: str, fingerprint: str) -> str:
    return f"{secret}.{fingerprint[:DIGITS]}"


def secret_of(code: str) -> str:
    """The first part, as people type it. UsageError 'code_unknown' for what cannot be one."""
    text = code.strip().partition(".")[0].upper().replace("-", "").replace(" ", "")
    if len(text) != 16 or not text.isascii() or not text.isalnum():
        raise UsageError("this is no join code", code="code_unknown", remedy="driftbox fleet boxes invite makes one")
    return text


def digest(secret: str) -> str:
    """What is kept of it. 80 random bits need no slow hash."""
    return hashlib.sha256(b"driftbox join " + secret_of(secret).encode()).hexdigest()
