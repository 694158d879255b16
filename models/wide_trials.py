"""Profiling trials that may be trained on several devices of a box (`models.wide`): how much that gains, and trials whose width changes.

How much wider trials gain (beta) is asked of each architecture's real work, in the job's own lane: the same batch by one device and by
two, in turns, on copies, until rounds agree (`scheduler.fluid.observe.Scaling`). That counts waiting for the share: two processes
that use up in half the time what one would use bring nothing, and that is what is measured. Where it does not pay, trials stay on one
device, and it is asked again some day; whenever a trial has run one epoch on one device and another on more, that counts too. Which
trial is how wide is not decided here (`scheduler.fluid.running`). Whatever the width, a trial comes to the same qualities, but for
rounding.

The devices serve one job at a time, and nobody waits while their processes start: a job that waited could run out of its time, window
after window. Trials have one device meanwhile. They are not started before a trial wants them.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import Bookmark, Saved, Step, Train, retrain
from scheduler.fluid.observe import Scaling
from scheduler.fluid.running import UnderWay, next_width
from scheduler.fluid.types import Pool, Trial
from scheduler.types import RetrainConfig

log = logging.getLogger("driftbox")

#: Batches of a comparison that do not count, of each width.
WARM = 1
#: Seconds that a change of width takes, before one was seen; changes that are remembered.
EPSILON_S, CHANGES = 0.5, 15


class Wide(Protocol):
    """`models.wide.Ranks`."""

    @property
    def width(self) -> int: ...

    @property
    def retrain(self) -> Train: ...

    def ready(self) -> bool: ...

    def close(self) -> None: ...


class WideTrials:
    """What a box knows of its devices for trials. Thread-safe. ranks: the devices; width_max: most of one (None: all); narrow_here:
    trials of width 1 are trained in this process (its cores), not on one of the devices (GPUs of their own); clock: seconds."""

    def __init__(
        self,
        ranks: Wide,
        *,
        width_max: int | None = None,
        narrow_here: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ranks, self.narrow_here, self.clock = ranks, narrow_here, clock
        self.most = min(width_max or ranks.width, ranks.width)
        self._busy, self._lock = threading.Lock(), threading.Lock()
        self._scaling: dict[str, Scaling] = {}
        self._changes_s: deque[float] = deque(maxlen=CHANGES)

    def close(self) -> None:
        """When no job has them any more."""
        self.ranks.close()

    @contextmanager
    def of_a_job(self) -> Iterator[Widths | None]:
        """The devices for one job's trials, as long as this is entered; None: another one has them."""
        if not self._busy.acquire(blocking=False):
            yield None
            return
        try:
            yield Widths(self)
        finally:
            self._busy.release()

    def scaling(self, arch: str) -> Scaling:
        with self._lock:
            return self._scaling.setdefault(arch, Scaling(self.most))

    def changed(self, seconds: float) -> None:
        """A change of width has taken so long."""
        with self._lock:
            self._changes_s.append(max(0.0, seconds))

    @property
    def epsilon_s(self) -> float:
        with self._lock:
            return statistics.median(self._changes_s) if self._changes_s else EPSILON_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Going:
    """A trial that has something left. left_s: compute of that; width: devices that it has, or had last; 0: it has not begun."""

    id: str
    left_s: float
    width: int
    runs: bool


class Widths:
    """One job's view of the devices."""

    def __init__(self, box: WideTrials) -> None:
        self._box = box

    @property
    def devices(self) -> int:
        return self._box.ranks.width

    @property
    def most(self) -> int:
        """Devices that one trial may have, whatever is measured."""
        return self._box.most

    @property
    def epsilon_s(self) -> float:
        return self._box.epsilon_s

    def ready(self) -> bool:
        """Whether more than this process can train now; they are started, and not waited for."""
        return self._box.ranks.ready()

    def asks(self, arch: str) -> bool:
        """Whether `compare` is wanted before a trial of this architecture is given more than one device."""
        return self._box.scaling(arch).asks

    def beta(self, arch: str) -> float:
        return self._box.scaling(arch).beta

    def width_max(self, arch: str) -> int:
        """Most devices of one trial, by what was measured; 1 before that."""
        return self._box.scaling(arch).width_max

    def choose(self, id: str, arch: str, group: Sequence[Going], *, devices: int, room: int) -> int:
        """How many devices trial `id` has for its next epoch, by Fluid (`scheduler.fluid.running`). Of an architecture of which nothing
        is known yet the most is hoped for: `compare` before it is believed. group: all trials of one architecture that have something
        left; devices: that the group has, room: of them free."""
        asks = self.asks(arch)
        pool = Pool(gpus=devices, width_max=self.most if asks else self.width_max(arch))
        beta = 1.0 if asks else self.beta(arch)
        members = [
            UnderWay(trial=Trial(id=t.id, h_s=t.left_s, beta=beta), width=max(t.width, int(t.runs)), runs=t.runs) for t in group
        ]
        found = next_width(id, members, pool, room=room, epsilon_s=self.epsilon_s)
        return found if found == 1 or self.ready() else 1

    def train(self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, /, **how: Any) -> WidthChanges:
        """A training as `models.retrain.retrain` does it, one device wide until it is told otherwise. after: where it goes on."""
        after = how.pop("after", None)
        scaling = self._box.scaling(detector.spec.arch)
        scaling.begun()

        def begun(width: int, after: Saved | None) -> tuple[Generator[Step, None, None], Bookmark]:
            mark = Bookmark(after)
            return self._trainer(width)(detector, samples, config, **how, bookmark=mark), mark

        return WidthChanges(begun, self._box.clock, on_change=self._box.changed, on_compared=scaling.compared, after=after)

    def compare(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, /, **how: Any
    ) -> Generator[None, None, None]:
        """Asks what two devices gain, a batch of one and a batch of the other in turns, the next time the other way round. Yields after
        each iteration. Devices that are lost meanwhile raise JobError, as in a training."""
        arch, scaling = detector.spec.arch, self._box.scaling(detector.spec.arch)
        with ExitStack() as open_:
            one, two = (_Batches(self._trainer(width), detector, samples, config, how, self._box.clock) for width in (1, 2))
            for batches in (one, two):
                open_.callback(batches.close)
                for _ in range(WARM):
                    yield from batches.next()
            turn = [one, two]
            while scaling.asks:
                for batches in turn:
                    yield from batches.next()
                scaling.compared(one.took_s, two.took_s)
                turn.reverse()
        log.info(
            "trials of %s may have %d of %d devices: a batch takes %.3f s on one, %.3f s on 2 (beta %.2f)",
            arch, scaling.width_max, self.devices, one.took_s, two.took_s, scaling.beta,
        )  # fmt: skip

    def _trainer(self, width: int) -> Train:
        if width == 1 and (self._box.narrow_here or not self.ready()):
            return retrain
        return lambda *given, **named: self._box.ranks.retrain(*given, **named, width=width)


class _Batches:
    """A small training, a batch at a time. took_s: the newest batch, from wanting it to its end."""

    def __init__(
        self, train: Train, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, how: dict[str, Any],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        few = [samples[i % len(samples)] for i in range(min(config.batch, len(samples)))]
        small = replace(config, epochs=1000, data_frac=1.0, batch=len(few), balance=False)  # an epoch each; it is closed before
        self._steps = train(detector.clone(), few, small, **{**how, "replay": ()})
        self._clock = clock
        self.took_s = 0.0

    def next(self) -> Iterator[None]:
        began_s = self._clock()
        for step in self._steps:
            if step.epoch_loss is not None:
                self.took_s = self._clock() - began_s
                yield
                return
            yield

    def close(self) -> None:
        self._steps.close()


@dataclass
class _Epoch:
    """How long one took. first_s: until its first step; rest_s, rest: seconds and number of the others; last_s: end of the newest."""

    began_s: float
    last_s: float = 0.0
    first_s: float = 0.0
    rest_s: float = 0.0
    rest: int = 0

    @property
    def step_s(self) -> float:
        return self.rest_s / self.rest if self.rest else 0.0


def narrow(
    detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, /, *, after: Saved | None = None, **how: Any
) -> WidthChanges:
    """A training of one device in this process, as `Widths.train` gives it."""

    def begun(width: int, after: Saved | None) -> tuple[Generator[Step, None, None], Bookmark]:
        mark = Bookmark(after)
        return retrain(detector, samples, config, **how, bookmark=mark), mark

    def unheard(*_: float, **__: int) -> None: ...

    return WidthChanges(begun, time.monotonic, on_change=unheard, on_compared=unheard, after=after)


class WidthChanges:
    """A training, an iterator of steps, whose `width` may be set between epochs. begun: (width, where it goes on) -> a training of
    that width and its bookmark; on_change: hears what a change took; on_compared: (seconds of an epoch on one, on more, width)."""

    def __init__(
        self, begun: Callable[[int, Saved | None], tuple[Generator[Step, None, None], Bookmark]], clock: Callable[[], float], *,
        on_change: Callable[[float], None], on_compared: Callable[..., None], after: Saved | None = None,
    ) -> None:  # fmt: skip
        self._begun, self._clock, self._on_change, self._on_compared = begun, clock, on_change, on_compared
        self.width = 1
        self._has = 0  # the width of `_steps`
        self._steps: Generator[Step, None, None] | None = None
        self._mark = Bookmark(after)
        self._epoch: _Epoch | None = None
        self._changed = False
        self._epoch_s: dict[int, float] = {}

    def __iter__(self) -> WidthChanges:
        return self

    def __next__(self) -> Step:
        if self._epoch is None:
            self._epoch = _Epoch(began_s=self._clock())
            self._settle()
        assert self._steps is not None
        step = next(self._steps)
        self._timed(step, self._epoch)
        return step

    def saved(self) -> Saved | None:
        """Between two epochs: where another one would go on. None: nothing was trained yet."""
        return self._mark.saved()

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def _settle(self) -> None:
        """Goes on at the width that is wanted."""
        if self._has == self.width:
            self._changed = False
            return
        after = self._mark.saved()
        self._changed = self._steps is not None
        self.close()
        self._steps, self._mark = self._begun(self.width, after)
        self._has = self.width

    def _timed(self, step: Step, epoch: _Epoch) -> None:
        now_s = self._clock()
        if not epoch.last_s:
            epoch.first_s = now_s - epoch.began_s
        else:
            epoch.rest_s, epoch.rest = epoch.rest_s + now_s - epoch.last_s, epoch.rest + 1
        epoch.last_s = now_s
        if step.epoch_loss is None:
            return
        self._epoch = None
        if not epoch.rest:
            return
        if self._changed:
            self._on_change(epoch.first_s - epoch.step_s)
        self._epoch_s[self._has] = epoch.step_s * (epoch.rest + 1)
        wide = max(self._epoch_s)
        if self._changed and wide > 1 and 1 in self._epoch_s:
            self._on_compared(self._epoch_s[1], self._epoch_s[wide], width=wide)
