"""Profiling trials that are trained on several devices at once, where that was measured to be faster (`models.wide`; Fluid's widths).

Which widths pay is known from the first trial of each architecture: some batches by one process, the same by all, on a copy, in the
job's own lane. That counts waiting for the share: ranks that use up in half the time what one would use bring nothing, and that is what
is measured. Below the gain that packing asks for too (`scheduler.fluid.packing.GAIN_MIN`) trials are trained by one process. Either way
they come to the same qualities, but for rounding.

Ranks serve one job at a time; the trials of others are trained by one process meanwhile, and so are all while the ranks start: a job
that waited for them could run out of its time, window after window.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import Step, Train, retrain
from scheduler.fluid.packing import GAIN_MIN, beta_of
from scheduler.types import RetrainConfig

log = logging.getLogger("driftbox")

#: Batches that do not count, and that do, each way.
WARM, COUNTED = 1, 3


class Wide(Protocol):
    """`models.wide.Ranks`."""

    @property
    def width(self) -> int: ...

    @property
    def retrain(self) -> Train: ...

    def ready(self) -> bool: ...

    def close(self) -> None: ...


class WideTrials:
    """Thread-safe. ranks: who trains together; clock: seconds."""

    def __init__(self, ranks: Wide, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._clock = ranks, clock
        self._busy = threading.Lock()
        self._beta: dict[str, float] = {}
        self._pays: dict[str, bool] = {}

    def close(self) -> None:
        """When no job has them any more."""
        self._ranks.close()

    @contextmanager
    def of_a_job(self) -> Iterator[Train]:
        """What a job's trials are trained with as long as this is entered."""
        if not self._busy.acquire(blocking=False):
            yield retrain
            return
        try:
            yield self._train if self._ranks.ready() else retrain
        finally:
            self._busy.release()

    def _train(
        self, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, /, **how: Any
    ) -> Generator[Step, None, None]:
        """Measures first when this is the first trial of its architecture. What is measured yields steps of iteration 0, so that it can
        be paused and cancelled too."""
        arch = detector.spec.arch
        if arch not in self._pays:
            yield from self._measure(arch, detector, samples, config, how)
        yield from (self._ranks.retrain if self._pays[arch] else retrain)(detector, samples, config, **how)

    def _measure(
        self, arch: str, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, how: dict[str, Any]
    ) -> Generator[Step, None, None]:
        width = self._ranks.width
        one_s = yield from self._timed(retrain, detector, samples, config, how)
        all_s = yield from self._timed(self._ranks.retrain, detector, samples, config, how)
        self._beta[arch] = beta_of([one_s] * (width - 1) + [all_s])
        self._pays[arch] = all_s <= (1 - GAIN_MIN) * one_s
        said = f"trained on {width} devices" if self._pays[arch] else "trained on one device"
        log.info(
            "trials of %s are %s: a batch takes %.3f s on one, %.3f s on %d (beta %.2f)",
            arch, said, one_s / COUNTED, all_s / COUNTED, width, self._beta[arch],
        )  # fmt: skip

    def _timed(
        self, train: Train, detector: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, how: dict[str, Any]
    ) -> Generator[Step, None, float]:
        """Seconds for the batches that count, from the end of the warm ones: a small training with as many epochs, each of one batch."""
        batches = WARM + COUNTED
        few = [samples[i % len(samples)] for i in range(min(config.batch, len(samples)))]
        small = replace(config, epochs=batches, data_frac=1.0, batch=len(few), balance=False)
        steps = train(detector.clone(), few, small, **{**how, "replay": ()})
        began_s, done = 0.0, 0
        try:
            for step in steps:
                if step.epoch_loss is not None:
                    done += 1
                    if done == WARM:
                        began_s = self._clock()
                yield Step(iteration=0, n_iterations=step.n_iterations, epoch=0, loss=step.loss)
        finally:
            steps.close()
        return max(1e-9, self._clock() - began_s)
