"""What a camera tells the pool about the frame in work, without every layer between the two having to know of it.

`Detector.predict` has no deadline, and a task may call it several times for one frame (crops in groups). So the camera's thread opens a
`Turn` around its prediction; a `PoolFront` that is asked inside it takes the deadline from there and writes down what it cost. A model
that is asked outside any turn (a first run, a picture for a page) has time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from configs.errors import DriftboxError


class TooLate(DriftboxError):
    """A frame was given up: it could not have been answered by its deadline. Counted as dropped, not as an error."""

    default_code = "too_late"


class Superseded(TooLate):
    """A frame still waited when the camera's next one was there."""

    default_code = "superseded"


def _nothing() -> None: ...


def _never() -> bool:
    return False


@dataclass(kw_only=True, eq=False)
class Turn:
    """One frame's way through its model. Belongs to the camera's thread.

    deadline_s: monotonic time by which its answer is wanted; next_s: when the camera's next frame is due (None: it may lag, or nobody
    knows); newer: whether a newer frame is there, asked from `next_s` on; checkpoint: raises JobCancelled when the camera's job was
    cancelled. after_s: seconds before its deadline that what asks other models about the same frame will need. weight: what an answer
    to it is worth beside other cameras' frames, from 0 on. spent_s: seconds of compute that others spent for it, so far."""

    deadline_s: float
    next_s: float | None = None
    newer: Callable[[], bool] = _never
    checkpoint: Callable[[], None] = _nothing
    after_s: float = 0.0
    weight: float = 1.0
    spent_s: float = 0.0


_TURN: ContextVar[Turn | None] = ContextVar("driftbox_turn", default=None)


def current() -> Turn | None:
    """The turn that the calling thread is in."""
    return _TURN.get()


class taken:
    """The calling thread is in `turn` for the body. Written out, because a generator costs twice as much."""

    __slots__ = ("_token", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __enter__(self) -> Turn:
        self._token = _TURN.set(self._turn)
        return self._turn

    def __exit__(self, *raised: object) -> None:
        _TURN.reset(self._token)
