"""Golden labels follow drift: a scene that stays as it was needs a few to measure by, one that changed needs many to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.types import Drift

#: A drift that is certain gets at least this part of what lies between minimum and full, however small it is.
LEAST_DRIFTED = 0.5


def label_frames(drift: Drift | None, settled: bool, full: int, minimum: int) -> int:
    """Labels that a camera should get in a window, from `minimum` to `full`; never falls when the drift grows.

    A camera that is not settled (see `settled`), or of which nothing is known (drift None), gets all; one without drift only the
    minimum, by which its quality is still measured; a drifted one at least half of what is between, all from magnitude 1 on."""
    minimum = min(minimum, full)
    if not settled or drift is None:
        return full
    if not drift.drifted:
        return minimum
    part = LEAST_DRIFTED + (1 - LEAST_DRIFTED) * min(1.0, max(0.0, drift.magnitude))
    return minimum + round(part * (full - minimum))


def settled(gains: Sequence[float], *, min_gain: float = 0.01, patience: int = 1) -> bool:
    """Would more of the same labels teach a camera nothing? gains: what each of its retrainings won by its gate (0 or less: refused),
    newest last. Not before it has learned, that is before the first; then when the last `patience` of them won less than `min_gain`."""
    return len(gains) >= max(1, patience) and all(gain < min_gain for gain in gains[-max(1, patience) :])


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a camera asks for. frames: wanted labels (`label_frames`); waited: windows since it last got any."""

    id: str
    frames: int
    waited: int = 0


def shared(needs: Sequence[Need], total: int, minimum: int) -> dict[str, int]:
    """Labels per camera when only `total` can be made; the sum is min(total, all that is wanted).

    Everybody gets the minimum (or what it wants, when that is less), what is left goes where more is wanted, in proportion. When not
    even the minimum is there for all, as many as can have it take turns: by what they want and by how long they have waited, so
    that a drifted camera comes sooner and none waits for ever; the others get 0. One camera always gets its minimum, even when
    `total` is less."""
    wanted = _whose_turn(sorted((n for n in needs if n.frames > 0), key=lambda n: n.id), total, minimum)
    given = {n.id: 0 for n in needs} | {n.id: min(n.frames, minimum) for n in wanted}
    spare = min(total, sum(n.frames for n in wanted)) - sum(given.values())
    return given | _in_proportion({n.id: n.frames - given[n.id] for n in wanted}, max(0, spare), given)


def _whose_turn(wanted: list[Need], total: int, minimum: int) -> list[Need]:
    """Those that can have the minimum: all when `total` is enough for it, else the first ones by want and wait."""
    if sum(min(n.frames, minimum) for n in wanted) <= total:
        return wanted
    most = max(n.frames for n in wanted)
    wanted = sorted(wanted, key=lambda n: (-(n.frames / most + n.waited / 2), n.id))
    chosen = 1
    while sum(min(n.frames, minimum) for n in wanted[: chosen + 1]) <= total:
        chosen += 1
    return wanted[:chosen]


def _in_proportion(more: dict[str, int], spare: int, given: dict[str, int]) -> dict[str, int]:
    """`spare` dealt in proportion to `more`, no camera above it; the largest remainders get what rounding leaves."""
    whole = sum(more.values())
    if whole == 0:
        return given
    floors = {id: spare * want // whole for id, want in more.items()}
    by_remainder = sorted(more, key=lambda id: (-(spare * more[id] % whole), id))
    for id in by_remainder[: spare - sum(floors.values())]:
        floors[id] += 1
    return {id: given[id] + extra for id, extra in floors.items()}
