"""Names of ephemeral resources and of tasks that the library makes: realm, owner, purpose, key (card sections 2 and 8).

A name is global in a cluster, so it begins with who made it: `dbx.OWNER.PURPOSE.KEY`. Only what begins with the realm is ever swept;
on a cluster that others use too, what they made stays.
"""

from __future__ import annotations

import hashlib
import re

from configs.errors import UsageError

#: Begin of every name that this library makes.
REALM = "dbx"
#: Longest name that every engine can hold (`cluster.engines.base.checked_resource`).
LONGEST = 63
_PART = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_LETTERS_OF_DIGEST = 10


def checked_owner(owner: str) -> str:
    """`owner` if it can be one: no dot in it, short enough that something can follow. UsageError."""
    if not _PART.fullmatch(owner) or len(owner) > 24:
        raise UsageError(
            f"'{owner[:80]}' cannot own resources",
            subject=owner[:80],
            remedy="1 to 24 of a-z, 0-9, '_', '-', beginning and ending with a letter or digit",
        )
    return owner


def named(owner: str, *parts: str | int) -> str:
    """The name for a purpose of `owner`. Letters that engines do not know become '-', and what is too long ends in a digest, so that
    two different purposes never meet in one name."""
    asked = ".".join(str(part) for part in parts)
    clean = re.sub(r"[^a-z0-9._-]", "-", asked.lower()).strip("._-") or "x"
    name = f"{REALM}.{checked_owner(owner)}.{clean}"
    if clean == asked and len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(asked.encode()).hexdigest()[:_LETTERS_OF_DIGEST]
    return f"{name[: LONGEST - _LETTERS_OF_DIGEST - 1].rstrip('._-')}-{digest}"


def owner_of(name: str) -> str | None:
    """Whose a name is; None: not made by this library."""
    realm, _, rest = name.partition(".")
    owner, dot, _ = rest.partition(".")
    return owner if realm == REALM and dot and owner else None
