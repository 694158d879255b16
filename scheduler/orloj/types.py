"""What the serving policies speak in: requests with a deadline, batches, decisions. Card: Orloj, sections 2, 3 and 7.

All times are seconds on one clock that the caller hands in. A *worker* (a GPU, a core) runs one batch at a time and does not interrupt
it. The paper has one worker per model; a box has one device for all of them, so several models share it, and a processor is several
workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Request:
    """A picture or crop that waits for a model (r). app: its application (a(r)), whose run times follow one law: a camera class, say;
    model: requests of one model may form a batch; released_s, deadline_s: T_r and D_r; penalty: c_r, the cost of being late.
    after_s: device time that its frame is expected to need after it before it is answered (a detection whose crops will be classified);
    ours: Orloj takes it off the slack and counts it to the price. The deadline stays that of the frame.
    together: requests with the same number (0 or more; the crops of one frame) are of use only all together; None: by itself. Ours too:
    Orloj plans to serve all of them or none."""

    id: int
    app: str
    model: str
    released_s: float
    deadline_s: float
    penalty: float = 1.0
    after_s: float = 0.0
    together: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """How long a batch of k pictures takes whose longest one would take l alone: c0_s + c1 * k * l (eq. 4.3, 4.4). sizes: batch sizes
    that the model is built for (S), ascending, 1 among them."""

    c0_s: float = 0.0
    c1: float = 1.0
    sizes: tuple[int, ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Requests of one model, best first. size: the batch size it is run as, at least as many as its requests; expected_s: what the
    policy thinks it takes."""

    model: str
    requests: tuple[Request, ...]
    size: int
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a free worker does now. batch None: nothing, until something arrives or `wake_s` (None: until something arrives);
    dropped: requests that were given up, since they would be late; each is told once and never served."""

    batch: Batch | None = None
    dropped: tuple[Request, ...] = field(default=())
    wake_s: float | None = None


class BatchPolicy(Protocol):
    """The queue of a device's workers. Pure: no clock, no I/O; the same calls give the same decisions. Requests are neither lost nor
    served twice."""

    name: str

    def add_model(self, model: str, cost: ModelCost) -> None:
        """A model that requests may name; again: its cost was measured anew."""

    def submit(self, request: Request, now_s: float) -> None:
        """Raises ValueError for an unknown model, an id that waits already, times that are not finite."""

    def withdraw(self, id: int) -> bool:
        """Takes a waiting request out (its camera is gone, a newer frame is there); False: it does not wait."""

    def decide(self, now_s: float) -> Decision:
        """Called when a worker is free: on arrival, after a batch, at `wake_s`. A batch that is returned is out of the queue."""

    def sample(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        """A request of `app` took `alone_s` by itself (batch size 1): feeds the law of its run times."""

    def ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        """A batch took so long: what reactive policies learn from."""

    def waiting(self) -> int:
        """Requests in the queue."""
