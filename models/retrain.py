"""Our training loop: a generator that does ONE micro-batch (forward and backward) per `next`, so that it can be scheduled,
paused or cancelled between any two.

Fine-tuning of a served model on a camera's golden labels, as Ekya's retraining (section 2.2): last layers first (layers_frac), a part
of the sample (data_frac). Against forgetting, after iCaRL (Rebuffi et al., CVPR 2017): older pictures mixed in (replay_frac;
`models.exemplars` chooses which), the answers of the version it started from kept (distill), every class shown alike (balance). What
we changed there:
- iCaRL distils on new and old pictures alike. A camera that drifted has a teacher that is wrong about the new ones, which is why it
  retrains: with replay, only replayed pictures distil; without any, all do (Li and Hoiem, "Learning without Forgetting");
- pictures hold several classes: those with rare ones are drawn more often (repeat factors, after Gupta et al., "LVIS", CVPR 2019,
  without the root), BALANCE_MAX times as often at most, and an epoch keeps its length, so that balance costs nothing that the plan
  has not paid for;
- iCaRL's nearest-mean classifier is not used: the head learns, and the gate decides.

The optimiser steps once per batch; its micro-batches accumulate gradients, and since models normalise their loss per image and freeze
batch-norm statistics, the split does not change the result. AdamW, short linear warm-up, cosine decay, clipped gradients. Close the
generator to cancel; the model is then half trained, so train a copy (`student`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from configs.errors import JobError
from models.augment import Augmentation, augmented, skip_augmented
from models.detector import Detector, YieldPoint
from models.labelled import LabelledImage, presence_of
from models.precision import Precision, Updates, device_of, is_measured, measure_cpu, precision_of
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from models.yielding import yielding_in_training
from scheduler.types import RetrainConfig

__all__ = [
    "Augmentation",
    "Bookmark",
    "LabelledImage",
    "Saved",
    "Step",
    "Team",
    "Train",
    "n_iterations",
    "n_replayed",
    "retrain",
    "scaled",
    "settle_precision",
    "student",
    "trains_head_only",
]

WEIGHT_DECAY = 5e-4
#: SGD steps relative to AdamW's, so that one `lr` in a configuration suits both kinds of detector.
SGD_LR_FACTOR, SGD_MOMENTUM = 2.0, 0.9
WARMUP_FRAC = 0.1
#: The learning rate ends at this part of its peak.
END_LR_FRAC = 0.05
MAX_GRAD_NORM = 10.0
#: With class balance, a picture is drawn at most so many times as often as one that shows the commonest class.
BALANCE_MAX = 4.0
#: In half precision, updates in a row whose scaled gradients overflowed before the training counts as failed.
MAX_SKIPPED = 8
#: What torch says, without a type of its own, when the CPU has no memory left.
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One iteration done. iteration counts from 1 to n_iterations, epoch from 1. loss: mean per image of this micro-batch.
    epoch_loss: mean over the epoch, set on the epoch's last iteration only (evaluate then, if you want a quality per epoch)."""

    iteration: int
    n_iterations: int
    epoch: int
    loss: float
    epoch_loss: float | None = None


#: `retrain`, or something that trains alike.
Train = Callable[..., Generator[Step, None, None]]


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """samples: index into the new samples, or -1 - index into the replayed ones."""

    samples: tuple[int, ...]

    def micro_batches(self, size: int) -> list[tuple[int, ...]]:
        return [self.samples[i : i + size] for i in range(0, len(self.samples), size)]


class Team(Protocol):
    """Several processes that train one model, each on its part of every batch (`models.wide`). rank: 0 to size - 1."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def add_up(self, values: Sequence[torch.Tensor]) -> None:
        """In place, over all members; each calls it with tensors of the same shapes. It returns when all have."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A training between two epochs: all that it needs to go on elsewhere, in another process or on another number of devices, but for
    the model's weights as they are then. epoch: those that are over; skipped: updates in a row that overflowed; rng: state of its random
    choices; optimiser, schedule, scaler: as torch's `state_dict`, arrays for tensors, so that they can be sent."""

    epoch: int
    skipped: int
    rng: dict[str, Any]
    optimiser: dict[str, Any]
    schedule: dict[str, Any]
    scaler: dict[str, Any] | None


def scaled(saved: Saved, factor: float) -> Saved:
    """The same, to go on with `factor` times the learning rate."""
    groups = [
        group | {name: group[name] * factor for name in ("lr", "initial_lr")} for group in saved.optimiser["param_groups"]
    ]
    rates = {name: [rate * factor for rate in saved.schedule[name]] for name in ("base_lrs", "_last_lr")}
    return replace(saved, optimiser=saved.optimiser | {"param_groups": groups}, schedule=saved.schedule | rates)


class Bookmark:
    """For a training that is to go on elsewhere after one of its epochs. after: where this one begins (None: at its beginning).
    Between an epoch's last iteration and the next `saved` says where to go on."""

    def __init__(self, after: Saved | None = None) -> None:
        self.after = after
        self.save: Callable[[], Saved] | None = None

    def saved(self) -> Saved | None:
        """None: nothing was trained yet."""
        return self.save() if self.save is not None else self.after


def student(serving: Detector, config: RetrainConfig, *, seed: int = 0) -> Detector:
    """The model that `retrain` is given: a copy of the serving one, with the added layer that config.head_neurons asks for.
    Raises UsageError when that model cannot have one."""
    copy = serving.clone()
    if not config.head_neurons and not hasattr(serving, "head_neurons"):
        return copy
    from models.classifier import adapted  # brings torchvision, which a box of detectors may do without

    return adapted(copy, config, seed=seed)


def retrain(
    detector: Detector,
    samples: Sequence[LabelledImage],
    config: RetrainConfig,
    *,
    seed: int,
    micro_batch: int = 1,
    replay: Sequence[LabelledImage] = (),
    augmentation: Augmentation | None = None,
    task: Task = DETECTION,
    teacher: Detector | None = None,
    precision: Precision | None = None,
    yield_point: YieldPoint | None = None,
    team: Team | None = None,
    bookmark: Bookmark | None = None,
) -> Generator[Step, None, None]:
    """Trains `detector` in place. The same arguments give the same weights (on one CPU thread).

    samples: new labelled pictures; replay: older ones (may be empty); both are read one picture at a time. With config.balance their
    classes must be known (`models.labelled.presence_of`), or every picture is read once at the first `next`.
    micro_batch: images per iteration; memory and the length of one iteration grow with it, the result does not change.
    teacher: whose answers config.distill keeps, not changed (default: a copy of `detector` as it is at the first `next`).
    precision: what to compute in (default: what pays on the detector's device).
    yield_point: called between layers, forward and backward (`models.yielding.yielding_in_training`), so that a frame need not wait
    for a whole micro-batch; the result does not change. What it raises ends the training.
    team: this process does every size-th micro-batch of each batch; gradients are added up before each update, so that every member gets
    the weights that one process alone would get, but for rounding. An iteration is then one micro-batch of each member, `Step.loss` that
    of this one.
    bookmark: the training goes on after the epochs that are over there, to the weights that it would have come to in one go. It needs
    the same arguments, `detector` with its weights as they were, and a teacher if it distils (ValueError).
    Raises JobError: 'no_data' without samples, 'nan' when the loss or a gradient is not finite, 'out_of_memory';
    ValueError for a configuration out of range.
    """
    check_lesson(samples, config, micro_batch)
    run = _Run(
        detector, config, seed=seed, micro_batch=micro_batch, augmentation=augmentation or Augmentation(), task=task,
        teacher=teacher, precision=precision or precision_of(device_of(detector.trainable_layers()), detector.spec.arch),
        yield_point=yield_point, team=team, bookmark=bookmark,
    )  # fmt: skip
    return run.steps(samples, replay)


def check_lesson(samples: Sequence[LabelledImage], config: RetrainConfig, micro_batch: int = 1) -> None:
    """Raises JobError 'no_data' without samples, ValueError for a configuration out of range."""
    _check(config, micro_batch)
    if not len(samples):
        raise JobError("there is nothing to train on", subject=config.name, remedy="label some frames first", code="no_data")


def settle_precision(detector: Detector, samples: Sequence[LabelledImage], *, task: Task = DETECTION) -> Precision:
    """Times a training step of a copy of `detector` in float32 and in half precision, once per architecture and process, and decides
    what its models train in here (`models.precision`). Nothing is measured where the device decides.
    samples: at least one picture like the camera's."""
    device, arch = device_of(detector.trainable_layers()), detector.spec.arch
    if device.type != "cpu" or is_measured(arch):
        return precision_of(device, arch)
    config = RetrainConfig(name="precision", epochs=1, batch=1)

    def step_s(precision: Precision) -> float:
        times: list[float] = []
        pictures = [samples[i % len(samples)] for i in range(2)]  # the first warms up
        steps = retrain(detector.clone(), pictures, config, seed=0, task=task, precision=precision)
        while True:
            started_s = time.thread_time()
            try:
                if next(steps, None) is None:
                    return min(times)
            except JobError:  # no number in that precision, or no room: the retrainings themselves will say so
                return math.inf
            times.append(time.thread_time() - started_s)

    return measure_cpu(arch, step_s)


def n_iterations(config: RetrainConfig, n_samples: int, *, n_replay: int = 0, micro_batch: int = 1, width: int = 1) -> int:
    """How many times `next` works in a retraining of that size. width: members of its team."""
    batches = _epoch_sizes(config, n_samples, n_replay)
    return config.epochs * sum(math.ceil(math.ceil(size / micro_batch) / width) for size in batches)


def n_used(config: RetrainConfig, n_samples: int) -> int:
    """New samples that an epoch uses: data_frac of them, at least one."""
    return max(1, round(config.data_frac * n_samples))


def trains_head_only(detector: Detector, config: RetrainConfig) -> bool:
    """Whether the last layer alone trains, so that everything before it says the same of a picture throughout."""
    return _n_trained(detector, config.layers_frac) == 1


def _n_trained(detector: Detector, layers_frac: float) -> int:
    return max(1, round(layers_frac * len(detector.trainable_layers())))


def n_replayed(config: RetrainConfig, n_new: int, n_replay: int) -> int:
    """Older samples that an epoch adds, so that they make up replay_frac of it; at most those there are."""
    if not n_replay or config.replay_frac <= 0:
        return 0
    return min(n_replay, round(n_new * config.replay_frac / (1 - config.replay_frac)))


def _epoch_sizes(config: RetrainConfig, n_samples: int, n_replay: int) -> list[int]:
    new = n_used(config, n_samples)
    total = new + n_replayed(config, new, n_replay)
    return [min(config.batch, total - i) for i in range(0, total, config.batch)]


def _check(config: RetrainConfig, micro_batch: int) -> None:
    in_range = (
        config.epochs >= 1
        and config.batch >= 1
        and 0 < config.layers_frac <= 1
        and 0 < config.data_frac <= 1
        and 0 <= config.replay_frac < 1
        and config.lr > 0
        and config.head_neurons >= 0
        and 0 <= config.distill < math.inf
        and micro_batch >= 1
    )
    if not in_range:
        raise ValueError(f"retraining configuration out of range (micro_batch={micro_batch}): {config}")


class _Run:
    """One retraining: the optimiser, its schedule and the random choices."""

    def __init__(
        self, detector: Detector, config: RetrainConfig, *, seed: int, micro_batch: int, augmentation: Augmentation, task: Task,
        teacher: Detector | None, precision: Precision, yield_point: YieldPoint | None = None, team: Team | None = None,
        bookmark: Bookmark | None = None,
    ) -> None:  # fmt: skip
        if bookmark is not None and bookmark.after is not None and config.distill > 0 and teacher is None:
            raise ValueError("a training that distils goes on with the teacher it had")
        self._detector, self._config, self._micro_batch = detector, config, micro_batch
        self._augmentation, self._task = augmentation, task
        self._teacher, self._precision = teacher, precision
        self._yield_point, self._team, self._bookmark = yield_point, team, bookmark or Bookmark()
        self._rank, self._width = (team.rank, team.size) if team else (0, 1)
        self._trained: list[nn.Parameter] = []
        self._rng = np.random.default_rng(seed)
        self._done, self._skipped = 0, 0

    def steps(self, samples: Sequence[LabelledImage], replay: Sequence[LabelledImage]) -> Generator[Step, None, None]:
        config = self._config
        if config.distill > 0 and self._teacher is None:
            self._teacher = self._detector.clone()
        draw = _Draw(config, samples, replay, self._rng)
        total = n_iterations(config, len(samples), n_replay=len(replay), micro_batch=self._micro_batch, width=self._width)
        n_updates = config.epochs * len(_epoch_sizes(config, len(samples), len(replay)))
        with _only_last_layers(self._detector, config.layers_frac) as parameters:
            self._trained = parameters
            optimiser = _optimiser(self._detector, parameters, config.lr)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda update: lr_factor(update, n_updates))
            updates = self._precision.updates(optimiser, max_norm=MAX_GRAD_NORM)
            over = self._resume(optimiser, schedule, updates)
            self._done = total // config.epochs * over
            for epoch in range(over + 1, config.epochs + 1):
                batches = draw.batches()
                self._bookmark.save = lambda epoch=epoch: self._saved(epoch, optimiser, schedule, updates)
                yield from self._epoch(epoch, total, batches, samples, replay, updates, schedule)

    def _saved(
        self, epoch: int, optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, updates: Updates
    ) -> Saved:
        return Saved(
            epoch=epoch, skipped=self._skipped, rng=dict(copy.deepcopy(self._rng.bit_generator.state)),
            optimiser=_arrays(optimiser.state_dict()), schedule=_arrays(schedule.state_dict()),
            scaler=_arrays(updates.scaler.state_dict()) if updates.scaler is not None else None,
        )  # fmt: skip

    def _resume(
        self, optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, updates: Updates
    ) -> int:
        """Epochs that are over."""
        after = self._bookmark.after
        if after is None:
            return 0
        optimiser.load_state_dict(_tensors(after.optimiser))
        schedule.load_state_dict(_tensors(after.schedule))
        if updates.scaler is not None and after.scaler is not None:
            updates.scaler.load_state_dict(after.scaler)
        self._rng.bit_generator.state, self._skipped = after.rng, after.skipped
        return after.epoch

    def _epoch(
        self,
        epoch: int,
        total: int,
        batches: list[_Batch],
        samples: Sequence[LabelledImage],
        replay: Sequence[LabelledImage],
        updates: Updates,
        schedule: torch.optim.lr_scheduler.LRScheduler,
    ) -> Iterator[Step]:
        loss, sum_loss, n_seen, n_epoch = 0.0, 0.0, 0, sum(len(batch.samples) for batch in batches)
        for batch in batches:
            micro_batches = batch.micro_batches(self._micro_batch)
            for first in range(0, len(micro_batches), self._width):
                for place, micro in enumerate(micro_batches[first : first + self._width]):
                    n_seen += len(micro)
                    if place != self._rank:  # another member's; what is drawn for it is drawn here too
                        skip_augmented(len(micro), self._rng)
                        continue
                    # Without replay every picture distils; with it, only the older ones (see the module's text).
                    distils = [not len(replay) or i < 0 for i in micro]
                    loss = self._backward(
                        [_sample(i, samples, replay) for i in micro], distils, len(micro) / len(batch.samples), updates
                    )
                    sum_loss += loss * len(micro)
                if first + self._width >= len(micro_batches):
                    self._update(updates, schedule)
                self._done += 1
                epoch_loss = self._of_all(sum_loss) / n_epoch if n_seen == n_epoch else None
                yield Step(iteration=self._done, n_iterations=total, epoch=epoch, loss=loss, epoch_loss=epoch_loss)

    def _backward(self, micro: list[LabelledImage], distils: list[bool], batch_frac: float, updates: Updates) -> float:
        """Adds the gradients of a micro-batch, weighted by its part of the batch. Returns its mean loss per image."""
        changed = [augmented(sample, self._augmentation, self._rng) for sample in micro]
        self._yield()
        try:
            with yielding_in_training(self._detector.trainable_layers(), self._yield_point):
                with self._precision.forward():
                    loss = self._loss(changed, distils)
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise JobError(f"the training loss became {value}", subject=self._config.name, remedy=_LOWER_LR, code="nan")
                updates.backward(loss * batch_frac)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise self._out_of_memory() from error
        except RuntimeError as error:
            if any(sign in str(error).lower() for sign in _CPU_OUT_OF_MEMORY):
                raise self._out_of_memory() from error
            raise
        return value

    def _loss(self, micro: list[LabelledImage], distils: list[bool]) -> torch.Tensor:
        """Mean per image: the task's loss on the labels; plus, on those that distil, config.distill times the teacher's distance."""
        loss = self._task.loss(self._detector, [s.image for s in micro], [s.labels for s in micro])
        old = [sample for sample, distil in zip(micro, distils, strict=True) if distil]
        if self._teacher is None or not self._config.distill or not old:
            return loss
        distance = self._task.distill_loss(self._detector, [s.image for s in old], [s.labels for s in old], self._teacher)
        return loss + distance * (self._config.distill * len(old) / len(micro))

    def _of_all(self, value: float) -> float:
        """The sum over the team."""
        if self._team is None:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=device_of(self._detector.trainable_layers()))
        self._team.add_up([total])
        return float(total)

    def _add_up_gradients(self) -> None:
        """Each micro-batch weighs as much as its part of the batch, so the sum over the team is the batch's gradient."""
        if self._team is None:
            return
        # One without a gradient (here, or in every member: then it is not touched by the update) takes part with zeros.
        have = torch.tensor([float(p.grad is not None) for p in self._trained], device=self._trained[0].device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
        self._team.add_up([have, *gradients])
        for parameter, gradient, members in zip(self._trained, gradients, have.tolist(), strict=True):
            parameter.grad = gradient if members else None

    def _update(self, updates: Updates, schedule: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._yield()
        self._add_up_gradients()
        norm = updates.step()
        self._skipped = 0 if math.isfinite(norm) else self._skipped + 1
        if self._skipped > (MAX_SKIPPED if updates.skips else 0):
            raise JobError("a gradient became infinite", subject=self._config.name, remedy=_LOWER_LR, code="nan")
        if not self._skipped:
            schedule.step()

    def _yield(self) -> None:
        if self._yield_point is not None:
            self._yield_point()

    def _out_of_memory(self) -> JobError:
        return JobError(
            "training ran out of memory",
            subject=self._config.name,
            remedy="use a smaller model or input size, or a micro-batch of 1",
            code="out_of_memory",
        )


class _Draw:
    """Which pictures each epoch shows. The part of the new ones that data_frac asks for is drawn once, older ones anew each epoch."""

    def __init__(
        self, config: RetrainConfig, samples: Sequence[LabelledImage], replay: Sequence[LabelledImage], rng: np.random.Generator
    ) -> None:
        self._config, self._rng = config, rng
        self._older_weights = np.ones(len(replay))
        weights = np.ones(len(samples))
        if config.balance:
            weights = balance_weights(presence_of(samples))
            self._older_weights = balance_weights(presence_of(replay)) if config.replay_frac > 0 else self._older_weights
        self._chosen = np.sort(self._some(weights, n_used(config, len(samples))))
        self._weights = balance_weights(presence_of(samples)[self._chosen]) if config.balance else None

    def batches(self) -> list[_Batch]:
        """The next epoch's: new and older pictures, shuffled together."""
        new = self._chosen if self._weights is None else self._chosen[repeated(self._weights, self._rng)]
        older = self._some(self._older_weights, n_replayed(self._config, len(new), len(self._older_weights)))
        mixed = self._rng.permutation(np.concatenate([new, -1 - older]).astype(np.int64))
        size = self._config.batch
        return [_Batch(samples=tuple(int(i) for i in mixed[k : k + size])) for k in range(0, len(mixed), size)]

    def _some(self, weights: np.ndarray, n: int) -> np.ndarray:
        """n different indices, heavier ones rather than lighter ones (Efraimidis and Spirakis 2006: the largest u ** (1 / w))."""
        if not self._config.balance:
            return self._rng.permutation(len(weights))[:n]
        keys = np.log(self._rng.random(len(weights))) / weights
        return np.argsort(-keys, kind="stable")[:n]


def balance_weights(presence: np.ndarray) -> np.ndarray:
    """How often each picture is to be drawn, relative to one that shows only the commonest class or nothing: n_max / n_c of the rarest
    class c that it shows, at most BALANCE_MAX. n_c: pictures that show c. presence: bool (N, C); answer: (N,), 1 to BALANCE_MAX."""
    count = presence.sum(axis=0)
    factor = np.minimum(count.max(initial=0) / np.maximum(count, 1), BALANCE_MAX)
    return np.where(presence, np.maximum(factor, 1.0), 1.0).max(axis=1, initial=1.0)


def repeated(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many indices as there are weights, each as often as its part of their sum says, rounded up or down (systematic sampling: one
    random number shifts all). Rising."""
    n = len(weights)
    ends = np.cumsum(weights) * (n / weights.sum())
    return np.minimum(np.searchsorted(ends, np.arange(n) + rng.random(), side="right"), n - 1)


def _arrays(value: Any) -> Any:
    """A copy with arrays for tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return [_arrays(item) for item in value] if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return [_tensors(item) for item in value] if isinstance(value, list) else value


_LOWER_LR = "the camera keeps its model; lower the learning rate of this configuration"


def _sample(index: int, samples: Sequence[LabelledImage], replay: Sequence[LabelledImage]) -> LabelledImage:
    return samples[index] if index >= 0 else replay[-1 - index]


def lr_factor(update: int, n_updates: int) -> float:
    """Part of the peak learning rate at an update (from 0): linear warm-up over the first tenth, then a cosine to
    END_LR_FRAC."""
    warmup = max(1, round(WARMUP_FRAC * n_updates))
    if update < warmup:
        return (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, n_updates - warmup))
    return END_LR_FRAC + (1 - END_LR_FRAC) * (1 + math.cos(math.pi * progress)) / 2


def _optimiser(detector: Detector, parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Weights decay, biases and batch-norm factors do not.

    Adam's first steps move every weight by about lr, however flat the loss is there: on a well trained network with few
    labels that costs more than is learnt (yolov8n, 12 pictures, 3 epochs: F1 0.68 -> 0.44-0.65; SGD 0.68 -> 0.67). Such a
    detector has the attribute `prefers_sgd`; its steps are SGD_LR_FACTOR times `lr`.
    """
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if getattr(detector, "prefers_sgd", False):
        return torch.optim.SGD(groups, lr=SGD_LR_FACTOR * lr, momentum=SGD_MOMENTUM, nesterov=True)
    return torch.optim.AdamW(groups, lr=lr)


class _only_last_layers:
    """Lets only the last layers_frac of the detector's layers train, inside the body; at least one layer."""

    def __init__(self, detector: Detector, layers_frac: float) -> None:
        layers = detector.trainable_layers()
        n_trained = _n_trained(detector, layers_frac)
        self._frozen = [p for layer in layers[:-n_trained] for p in layer.parameters() if p.requires_grad]
        self._trained = [p for layer in layers[-n_trained:] for p in layer.parameters() if p.requires_grad]

    def __enter__(self) -> list[nn.Parameter]:
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        return self._trained

    def __exit__(self, *exception: object) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for parameter in self._trained:
            parameter.grad = None
