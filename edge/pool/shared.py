"""Models that several cameras share: one loaded detector per set of weights, and what its batches cost.

Two versions with the same weights (the same first model, a retraining of a group) are one model here, whatever their ids. A model's name
in the queue is its architecture and a number that is free, so a retrained version begins with the run times that its predecessor had,
which is the best guess there is, and names do not grow in number over the years.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from edge.pool.batch_times import SIZES, BatchTimes
from models.detector import Detector
from models.serving.served import Predicts, ServedDetector, Twin, form_of
from scheduler.orloj.types import ModelCost


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A picture that was answered, for measuring later. app: whose it was."""

    app: str
    image: np.ndarray
    score_min: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Copy:
    """A model as one worker runs it. running: held meanwhile, because a detector is not thread-safe."""

    detector: Predicts
    running: threading.Lock = field(default_factory=threading.Lock)


class SharedModel:
    """A loaded model and its users. copies: one for each worker, the first of them the model itself. Its fields belong to the pool's
    lock."""

    def __init__(self, name: str, weights: str, detector: Detector, *, copies: int = 1) -> None:
        self.name, self.weights, self.detector = name, weights, detector
        self.copies = (Copy(detector=detector), *(Copy(detector=Twin(detector)) for _ in range(copies - 1)))
        self.users = 0
        self.ran = False  # a batch of it came back: it is warm
        self.broken = ""  # why nobody may ask it now: a thread hangs in it
        self.kept: dict[str, Kept] = {}  # app -> its newest picture, to be run alone
        self.sampled: set[str] = set()  # apps whose kept picture was run alone already
        self.times = BatchTimes()
        self.form: Detector = form_of(detector)
        self.measured_s = float("-inf")  # when its cost was last measured in gaps
        self.to_measure: list[int] = []
        self.measure_anew()

    def measure_anew(self) -> None:
        """Batches of all sizes are to be run in gaps."""
        self.to_measure = [1] if self.one_by_one else list(SIZES)

    def keep(self, kept: Kept, *, sampled: bool) -> None:
        """Remembers a finished picture. sampled: it was run alone already."""
        self.kept[kept.app] = kept
        self.sampled.discard(kept.app)
        if sampled:
            self.sampled.add(kept.app)

    def unsampled(self) -> Kept | None:
        return next((kept for app, kept in self.kept.items() if app not in self.sampled), None)

    @property
    def one_by_one(self) -> bool:
        """Whether its form runs a batch picture by picture, so that none saves anything."""
        return isinstance(self.form, ServedDetector)

    def cost(self) -> ModelCost:
        """Of its batches, by what is known of them."""
        return ModelCost() if self.one_by_one else self.times.cost()

    def changed_form(self) -> bool:
        """Whether another form of the model has taken over since the last look; what was measured is forgotten then."""
        form = form_of(self.detector)
        if form is self.form:
            return False
        self.form = form
        self.times.clear()
        self.sampled.clear()
        self.measure_anew()
        return True


def weights_key(detector: Detector) -> str:
    """SHA-256 over what a detector is and all of its tensors: the same for two versions that answer alike."""
    digest = hashlib.sha256(f"{detector.spec.arch}@{detector.spec.input_px}".encode())
    for name, tensor in sorted(detector.state().items()):
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def free_name(detector: Detector, taken: Collection[str]) -> str:
    """arch@px#n with the lowest n that nobody has."""
    sort = f"{detector.spec.arch}@{detector.spec.input_px}"
    return next(name for n in range(len(taken) + 1) if (name := f"{sort}#{n}") not in taken)
