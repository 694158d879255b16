"""Models that several cameras share: one loaded detector per set of weights, and what its batches cost.

Two versions with the same weights (the same first model, a retraining of a group) are one model here, whatever their ids. A model's name
in the queue is its architecture and a number that is free, so a retrained version begins with the run times that its predecessor had,
which is the best guess there is, and names do not grow in number over the years.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from models.detector import Detector
from models.serving.served import Predicts, ServedDetector, Twin, form_of
from scheduler.orloj.fit import BatchRun, fit_cost
from scheduler.orloj.types import ModelCost

#: Batch sizes that are tried.
SIZES: tuple[int, ...] = (1, 2, 4, 8, 16)
#: A larger batch must save this part of the time per picture, or it only makes everybody wait.
SAVES_FRAC = 0.03
#: Newest run times that are remembered, of each batch size.
RUNS_KEPT = 16
#: Times with fewer runs than this are not believed.
RUNS_LEAST = 2
#: What a batch larger than any that was run is hoped to save of its pictures' time, so that it is tried when so many wait.
HOPED_FRAC = 0.25
#: Sizes that did not pay are tried again after this time: another job may have run beside them (s).
TRY_AGAIN_S = 300.0


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
        self.times_s: dict[int, deque[float]] = {}  # batch size -> newest run times
        self.form: Detector = form_of(detector)
        self.measured_s = float("-inf")  # when its cost was last measured in gaps
        self.failed: set[int] = set()  # sizes that it could not be run in
        self.forgot_s: float | None = None  # when these, and sizes that do not pay, were last forgotten
        self.to_measure: list[int] = []
        self.measure_anew()

    def measure_anew(self) -> None:
        """Batches of all sizes are to be run in gaps."""
        self.to_measure = [1] if self.one_by_one else list(SIZES)

    def note(self, size: int, took_s: float) -> bool:
        """A batch of `size` pictures took so long. True: now it is known how long such batches take, and was not before."""
        times = self.times_s.setdefault(size, deque(maxlen=RUNS_KEPT))
        times.append(took_s)
        return len(times) == RUNS_LEAST

    def forget_bad_sizes(self, now_s: float) -> bool:
        """Now and then: sizes that did not pay, or failed, count as never run. True: some were forgotten."""
        if self.forgot_s is None:
            self.forgot_s = now_s
        if now_s - self.forgot_s < TRY_AGAIN_S:
            return False
        self.forgot_s = now_s
        pay = worthwhile(self.typical_s())
        bad = {size for size in self.times_s if size not in pay} | self.failed
        for size in bad:
            self.times_s.pop(size, None)
        self.failed.clear()
        return bool(bad)

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

    def typical_s(self) -> dict[int, float]:
        """Median run time of each batch size that was run often enough."""
        return {k: statistics.median(t) for k, t in sorted(self.times_s.items()) if len(t) >= RUNS_LEAST}

    def expected_s(self, size: int) -> float:
        """A guess at what a batch takes; 0: nothing is known."""
        known = self.typical_s() or {k: statistics.median(t) for k, t in self.times_s.items()}
        if not known:
            return 0.0
        nearest = min(known, key=lambda k: abs(k - size))
        return known[nearest] * max(1.0, size / nearest)

    def changed_form(self) -> bool:
        """Whether another form of the model has taken over since the last look; what was measured is forgotten then."""
        form = form_of(self.detector)
        if form is self.form:
            return False
        self.form = form
        self.times_s.clear()
        self.failed.clear()
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


def worthwhile(typical_s: Mapping[int, float]) -> tuple[int, ...]:
    """Batch sizes that pay, ascending, 1 among them: each saves `SAVES_FRAC` of the time per picture over the one before it."""
    sizes, best_s = [1], typical_s.get(1)
    for size in sorted(k for k in typical_s if k > 1):
        each_s = typical_s[size] / size
        if best_s is None or each_s <= (1 - SAVES_FRAC) * best_s:
            sizes.append(size)
            best_s = each_s
    return tuple(sizes)


def cost_of(model: SharedModel) -> ModelCost:
    """c0, c1 and the sizes that pay, from the model's run times, and one size of which nothing is known yet: the best is hoped of it.
    Every size costs its pictures as long as no time of single ones is known."""
    if model.one_by_one:
        return ModelCost()
    typical_s = {size: took_s for size, took_s in model.typical_s().items() if size in SIZES}
    if typical_s.get(1, 0.0) <= 0:
        return ModelCost(sizes=SIZES)
    sizes = worthwhile(typical_s)
    unknown = next((size for size in SIZES if size not in typical_s), None)
    if unknown is not None and unknown < min(model.failed, default=math.inf):
        below = max(size for size in typical_s if size < unknown)
        typical_s[unknown] = (1 - HOPED_FRAC) * unknown * typical_s[below] / below
        sizes = tuple(sorted((*sizes, unknown)))
    if sizes == (1,):
        return ModelCost()
    runs = [BatchRun(size=size, longest_s=typical_s[1], took_s=typical_s[size]) for size in sizes]
    return fit_cost(runs, sizes)
