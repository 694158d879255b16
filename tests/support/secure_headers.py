"""What scanners look for in the headers of an answer (OWASP's list of secure headers), written down apart from what the box sets."""

from __future__ import annotations

from collections.abc import Mapping

#: Header -> what it must be.
WANTED = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-permitted-cross-domain-policies": "none",
}
#: Header -> words that must stand in it.
PARTS = {"strict-transport-security": "max-age", "permissions-policy": "camera=()"}
#: What tells strangers too much, or lets them in.
UNWANTED = ("server", "x-powered-by", "access-control-allow-origin", "access-control-allow-credentials")


def header_findings(headers: Mapping[str, str]) -> list[str]:
    """What is wrong with the headers of an answer over TLS."""
    found = [f"{name} is {headers.get(name)!r}" for name, value in WANTED.items() if headers.get(name) != value]
    found += [f"{name} lacks {words}" for name, words in PARTS.items() if words not in headers.get(name, "")]
    return found + [f"{name} is there" for name in UNWANTED if name in headers]


def cookie_findings(set_cookie: str) -> list[str]:
    """What is wrong with the session's cookie over TLS."""
    words = {word.strip().lower() for word in set_cookie.split(";")}
    return [f"the cookie lacks {word}" for word in ("secure", "httponly", "samesite=strict", "path=/") if word not in words] + (
        [] if set_cookie.startswith("__Host-") else ["the cookie lacks the prefix __Host-"]
    )
