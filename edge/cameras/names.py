"""A camera's id from the name that people give it: any text in, `[a-z0-9_-]` out, unique among those there are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from configs.units import is_camera_id

#: Longest id that is proposed, so that a number fits behind it and people can still read it.
LONGEST = 40
#: For names of which nothing can be written in an id.
PLAIN = "camera"

#: Letters that Unicode does not take apart.
_LETTERS = str.maketrans(
    {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i", "ħ": "h", "ŋ": "ng"}
)
_OTHERS = re.compile(r"[^a-z0-9]+")


def proposed_id(name: str, taken: Collection[str] = ()) -> str:
    """An id for a camera of that name which none of `taken` is: `Hof Süd` -> `hof-sud`, a name of pictures or of other scripts ->
    `camera`, the second of its kind -> `camera-2`."""
    plain = slug(name) or PLAIN
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def slug(name: str) -> str:
    """What of a name can stand in an id; '' when nothing can."""
    apart = unicodedata.normalize("NFKD", name[:200].casefold().translate(_LETTERS)).casefold()
    text = _OTHERS.sub("-", "".join(c for c in apart if not unicodedata.combining(c))).strip("-")[:LONGEST].strip("-")
    return text if is_camera_id(text) else ""
