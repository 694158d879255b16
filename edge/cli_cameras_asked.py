"""The wizard of `driftbox cameras add` on a terminal: the steps of the page (docs/pages.md), a question each, the default in brackets.

What the command line has said already is not asked again. A wrong answer is said and asked for once more; nothing is kept before the
last question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from configs.errors import UsageError
from configs.schedule import MAX_SPANS
from configs.tasks import known_tasks
from configs.units import CLASSES
from edge.cli_cameras_words import (
    LINE_FORM,
    LINES,
    MASK_FORM,
    MASKS,
    PLACES,
    ZONE_FORM,
    ZONES,
    Place,
    corners_of,
    document_of,
    named,
    problem_of,
)
from edge.console import print_table, say

if TYPE_CHECKING:
    from edge.cameras.onvif_view import OnvifProbe
    from edge.cameras.remote import CommandDesk

Fields = dict[Place, Any]


def streams_of(offered: OnvifProbe) -> tuple[str, str]:
    """(address to analyse, address for clips) among an ONVIF camera's profiles, as somebody chooses; proposed is what it should be."""
    urls = {profile.token: profile.url for profile in offered.profiles if profile.url}
    if len(urls) < 2:
        return urls[offered.analyse], urls[offered.record]
    return urls[_profile("Profile to analyse (small is enough)", offered.analyse, urls)], urls[
        _profile("Profile for clips", offered.record, urls)
    ]


def _profile(question: str, proposed: str, urls: Mapping[str, str]) -> str:
    while True:
        answer = str(typer.prompt(question, default=proposed))
        if answer in urls:
            return answer
        say(f"there is no profile {answer!r}; there are: {', '.join(urls)}")


def asked_fields(desk: CommandDesk, said: Fields) -> Fields:
    """Name, task, places, times and clips, as somebody at a terminal wants them; `said`: what the command line has named."""
    say("What stands in brackets is taken when you just press Enter.")
    found = dict(said)
    _about(desk, found)
    if not _any(found, ZONES, LINES, MASKS) and typer.confirm("Draw zones, lines or privacy masks?", default=False):
        _places(found)
    times = [PLACES[name] for name in ("watch", "learn", "snapshots", "clips", "pre_s", "post_s", "keep_days")]
    if not _any(found, *times) and typer.confirm("Choose when it is watched, and what is kept of it?", default=False):
        _times(found)
        _clips(found)
    return found


def confirmed(document: Mapping[str, Any]) -> None:
    """All that is about to be added, and the last question. Raises Abort."""
    rows = [(name, _words(value)) for name, value in _flat(document) if name not in ("url", "record_url", "credentials")]
    print_table(("of the camera", "value"), rows)
    typer.confirm("Add this camera?", default=True, abort=True)


# --- the steps --------------------------------------------------------------------------------------------------------


def _about(desk: CommandDesk, found: Fields) -> None:
    if PLACES["name"] not in found:
        found[PLACES["name"]] = _ask("Name for people", "", ("name",))
    if PLACES["id"] not in found:
        found[PLACES["id"]] = _ask("Id, for folders and topics; it stays", desk.propose_id(found[PLACES["name"]]), ("id",))
    if PLACES["task"] not in found:
        found[PLACES["task"]] = _ask(f"Task ({', '.join(known_tasks())})", "detection", ("task",))
    if PLACES["fps"] not in found:
        found[PLACES["fps"]] = _ask("Analysed frames per second (0: all)", "5", ("fps",), float)
    if PLACES["classes"] not in found:
        question = "Objects that are told, separated by commas (empty: all; ?: which there are)"
        found[PLACES["classes"]] = _ask(question, "", ("classes",), _listed, helped=", ".join(CLASSES))
    if PLACES["learning"] not in found:
        found[PLACES["learning"]] = typer.confirm("Let its model learn?", default=True)


def _places(found: Fields) -> None:
    """Corners are typed as fractions of the picture: what a terminal can do of drawing."""
    _several(f"A zone as {ZONE_FORM}", found, ZONES, lambda text: named(text, "polygon", ZONE_FORM, least=3))
    _several(f"A line as {LINE_FORM}", found, LINES, lambda text: named(text, "line", LINE_FORM, least=2, most=2))
    _several(
        f"A privacy mask as {MASK_FORM}", found, MASKS, lambda text: ("", corners_of(text, text, "polygon", MASK_FORM, least=3))
    )


def _times(found: Fields) -> None:
    times = "as mon-fri 07:00-19:00"
    found[PLACES["watch"]] = _times_asked(f"Times of watching, {times}", PLACES["watch"])
    found[PLACES["learn"]] = _times_asked(f"Times of learning, {times}", PLACES["learn"])
    if found[PLACES["watch"]] or found[PLACES["learn"]]:
        found[PLACES["time_zone"]] = _ask("Time zone, as Europe/Berlin (empty: that of the box)", "", PLACES["time_zone"])


def _clips(found: Fields) -> None:
    found[PLACES["snapshots"]] = typer.confirm("Keep the best picture of every object?", default=True)
    found[PLACES["clips"]] = typer.confirm("Keep a clip of every object that moves?", default=True)
    if found[PLACES["clips"]]:
        found[PLACES["pre_s"]] = _ask("Seconds before the object is first seen", "5", PLACES["pre_s"], float)
        found[PLACES["post_s"]] = _ask("Seconds after it is last seen", "5", PLACES["post_s"], float)
    found[PLACES["keep_days"]] = _ask(
        "Days that snapshots and clips are kept (empty: as the box keeps them)", "", PLACES["keep_days"], _days
    )


# --- a question -------------------------------------------------------------------------------------------------------


def _ask(question: str, default: str, place: Place, read: Callable[[str], Any] = str, *, helped: str = "") -> Any:
    """An answer that the camera can have; asked again as long as it cannot."""
    while True:
        text = str(typer.prompt(question, default=default, show_default=bool(default))).strip()
        if helped and text == "?":
            say(helped)
            continue
        try:
            value = read(text)
        except ValueError:
            say(f"{text!r} is no number")
            continue
        wrong = problem_of({place: value})
        if not wrong:
            return value
        say(wrong)


def _several(question: str, found: Fields, place: Place, read: Callable[[str], tuple[str, Any]]) -> None:
    """One after the other until an empty answer. Without a name (masks) they are a list."""
    while text := str(typer.prompt(f"{question} (empty: no more)", default="", show_default=False)).strip():
        try:
            name, corners = read(text)
        except UsageError as error:
            say(f"{error.message}; {error.remedy}")
            continue
        one = {(*place, name): corners} if name else {place: [*found.get(place, []), corners]}
        wrong = problem_of(one)
        if wrong:
            say(wrong)
        else:
            found |= one


def _times_asked(question: str, place: Place) -> list[str]:
    spans: list[str] = []
    while len(spans) < MAX_SPANS:
        text = _ask(f"{question} (empty: {'no more' if spans else 'always'})", "", place, _listed_span)
        if not text:
            break
        spans += text
    return spans


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _listed_span(text: str) -> list[str]:
    """One time: a comma stands between days in it."""
    return [text] if text else []


def _days(text: str) -> float | None:
    return float(text) if text else None


def _any(found: Fields, *places: Place) -> bool:
    return any(known[: len(place)] == place for known in found for place in places)


def _flat(document: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """`recording.keep_days` and so on, in order."""
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        rows += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) and value else [(f"{before}{name}", value)]
    return rows


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and value and isinstance(value[0], str):
        return "; ".join(value)
    return "-" if value in (None, "", [], {}) else str(value)


def as_document(fields: Fields) -> dict[str, Any]:
    """What is sent: without what was left empty."""
    return document_of({place: value for place, value in fields.items() if value not in (None, "", [])})
