"""Pooled training on Ray: merged blocks go into the object store, Ray Train runs our own training loop on several workers, and what
comes out is a signed bundle that every box judges for itself.

The loop is `models.retrain`, not a copy of it: a worker is one retraining over its part of the pictures whose gradients are averaged
over all workers before each step (`Averaged`). With the same batches on every worker that is one retraining with a batch so many times
as large. Workers begin from the same weights, so they stay equal, and the first one's are the result.

Workers are a gang: `demands` is what each of them asks of the engine. With ESCHER's gang (`cluster.riffle.gang`) that is a unit of the
gang; without it a CPU each, in a placement group that Ray Train makes.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed

from cluster.engines.ray_cluster import imported_ray
from cluster.riffle.pool import Pooled
from configs.errors import DriftboxError, JobError
from configs.files import atomic_write
from models.bundle import SUFFIX, write_bundle
from models.detector import Detector, DetectorSpec
from models.keys import Signer
from models.labelled import LabelledImage, Subset
from models.precision import Precision, Updates, precision_of
from models.retrain import retrain, student
from models.sanity import looked_at
from models.tasks.registry import task_of
from models.versions import Manifest, save_version
from models.zoo import new_detector
from scheduler.types import RetrainConfig
from streams.block_file import records_of
from streams.sample_record import SampleRecord, decoded

log = logging.getLogger("driftbox.fleet")

STATE_FILE = "model.safetensors"
#: Reducers that read at the same time: a disk serves a few large requests best.
READERS = 2


@dataclass(frozen=True, kw_only=True)
class Training:
    """config: as of a box's retraining; task: of the cameras; workers: N; demands: of each of them; storage: a folder that all workers
    reach, for what Ray Train keeps of a run; timeout_s: of averaging, and of a worker's beginning."""

    config: RetrainConfig
    storage: Path
    task: str = "detection"
    workers: int = 2
    demands: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    seed: int = 0
    timeout_s: float = 600.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """losses: per epoch, mean over workers."""

    state: dict[str, torch.Tensor]
    spec: DetectorSpec
    losses: tuple[float, ...]
    pictures: int


# --- blocks into the object store -------------------------------------------------------------------------------------------


def dataset(pooled: Pooled) -> Any:
    """A Ray Data set of the samples, a block of it per training partition: rows of `record` (bytes). Reducers run where the files lie;
    what they read goes to the object store and is not kept here. Raises JobError where a part cannot be had any more."""
    ray = imported_ray()
    import pyarrow as pa
    from ray.data import from_arrow_refs

    def reduced(partition: int) -> Any:
        found = [r for block in pooled.job.blocks(pooled.plan, partition) for r in records_of(block)]
        return ray.put(pa.table({"record": pa.array(found, pa.large_binary())})) if found else None

    with ThreadPoolExecutor(READERS) as readers:
        references = [reference for reference in readers.map(reduced, range(pooled.job.reducers)) if reference is not None]
    return from_arrow_refs(references)


# --- training ---------------------------------------------------------------------------------------------------------------


def train(serving: Detector, samples: Any, training: Training) -> Trained:
    """Trains a copy of `serving` on the data set by Ray Train. Raises JobError (what `models.retrain` and `models.sanity` say, or that
    workers were lost)."""
    from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    training.storage.mkdir(parents=True, exist_ok=True)
    told = {
        "state": imported_ray().put(serving.state()), "spec": asdict(serving.spec), "config": asdict(training.config),
        "seed": training.seed, "task": training.task,
    }  # fmt: skip
    trainer = TorchTrainer(
        train_worker, train_loop_config=told, torch_config=TorchConfig(backend="gloo", timeout_s=int(training.timeout_s)),
        scaling_config=ScalingConfig(num_workers=training.workers, resources_per_worker=dict(training.demands)),
        run_config=RunConfig(name="pooled", storage_path=str(training.storage), failure_config=FailureConfig(max_failures=0)),
        datasets={"train": samples}, dataset_config=DataConfig(datasets_to_split=["train"]),
    )  # fmt: skip
    try:
        result = trainer.fit()
    except Exception as error:  # Ray wraps whatever a worker raised in types of its own
        raise _failed(error) from error
    if result.checkpoint is None:
        raise JobError("the training ended without a model", subject="pooled training", remedy="see the workers' logs")
    with result.checkpoint.as_directory() as folder:
        state = safetensors.torch.load((Path(folder) / STATE_FILE).read_bytes())
    metrics = result.metrics or {}
    return Trained(state=state, spec=serving.spec, losses=tuple(metrics["losses"]), pictures=int(metrics["pictures"]))


def train_worker(told: Mapping[str, Any]) -> None:
    """One worker of Ray Train: our retraining, its gradients averaged with the others'."""
    import ray
    import ray.train

    torch.set_num_threads(1)
    world, rank = ray.train.get_context().get_world_size(), ray.train.get_context().get_world_rank()
    config = RetrainConfig(**told["config"])
    shard = ray.train.get_dataset_shard("train")
    mine = Images(sorted((decoded(row["record"]) for row in shard.iter_rows()), key=lambda r: r.name))
    checked = _run(looked_at(mine, subject=f"worker {rank}", balance=config.balance))
    n = smallest(len(checked))  # as many batches everywhere, or one worker waits for an average that never comes
    serving = new_detector(DetectorSpec(**told["spec"]), state=ray.get(told["state"]))
    model = student(serving, config, seed=told["seed"])
    losses: list[float] = []
    steps = retrain(
        model, Subset(checked, range(n)), config, seed=told["seed"] + rank, task=task_of(told["task"]),
        precision=Averaged.of(precision_of("cpu", serving.spec.arch)),
    )  # fmt: skip
    for step in steps:
        if step.epoch_loss is not None:
            losses.append(mean(step.epoch_loss))
    report = {"losses": losses, "pictures": n * world}
    if rank:
        ray.train.report(report)
        return
    with tempfile.TemporaryDirectory() as folder:
        atomic_write(Path(folder) / STATE_FILE, safetensors.torch.save(model.state()))
        ray.train.report(report, checkpoint=ray.train.Checkpoint.from_directory(folder))


class Images(Sequence[LabelledImage]):
    """Samples as training wants them, decoded when they are asked for."""

    def __init__(self, records: Sequence[SampleRecord]) -> None:
        self._records = records

    @property
    def persons(self) -> list[int]:
        return [n for n, record in enumerate(self._records) if record.labels.by == "person"]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int or slice, as Sequence has it
        if isinstance(i, slice):
            return Subset(self, range(len(self))[i])
        labels = self._records[i].labels
        return LabelledImage(image=self._records[i].image(), labels=labels.detections, by_person=labels.by == "person")


@dataclass(frozen=True, kw_only=True)
class Averaged(Precision):
    """A precision whose updates average the gradients of all workers first."""

    @staticmethod
    def of(precision: Precision) -> Averaged:
        return Averaged(device=precision.device, dtype=precision.dtype)

    def updates(self, optimiser: torch.optim.Optimizer, *, max_norm: float) -> Updates:
        plain = super().updates(optimiser, max_norm=max_norm)
        return _AveragedUpdates(optimiser, max_norm=max_norm, scaler=plain.scaler)


class _AveragedUpdates(Updates):
    def step(self) -> float:
        for parameter in self._parameters():
            if parameter.grad is None:  # no picture of this worker's batch had a say; the others' may
                parameter.grad = torch.zeros_like(parameter)
        average([p.grad for p in self._parameters() if p.grad is not None])
        return super().step()


def average(tensors: Sequence[torch.Tensor]) -> None:
    """In place, over all workers; one message for all of them."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


def smallest(count: int) -> int:
    """Of all workers'."""
    found = torch.tensor([count])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MIN)
    return int(found)


def mean(value: float) -> float:
    """Over all workers."""
    tensor = torch.tensor([value], dtype=torch.float64)
    average([tensor])
    return float(tensor)


def _run(steps: Iterator[None]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _failed(error: BaseException) -> DriftboxError:
    """What a worker said, as far as it can be found under Ray's wrappings."""
    seen: BaseException | None = error
    while seen is not None:
        failures = getattr(seen, "worker_failures", None) or {}
        for cause in (seen, *failures.values()):
            for inner in (cause, getattr(cause, "cause", None), cause.__cause__):
                if isinstance(inner, DriftboxError):
                    return JobError(inner.message, subject="pooled training", remedy=inner.remedy, code=inner.code)
        seen = seen.__cause__ or seen.__context__
    text = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return JobError(f"the training failed: {text[:300]}", subject="pooled training", remedy="see the workers' logs")


# --- what comes out ---------------------------------------------------------------------------------------------------------


def bundle(
    trained: Trained, pooled: Pooled, out: Path, signer: Signer, *, name: str, config: RetrainConfig, at_utc: float
) -> Path:
    """The model as a signed bundle (`models.bundle`), `out`/NAME.driftbox, for `ModelOffer`s. Which cameras and boxes it learned from is
    not in it: customers share a fleet, and who sees what is nobody else's business. Raises WeightsError, StorageError."""
    manifest = Manifest(
        id=f"{name}-000001", stream=name, parent=None, spec=trained.spec, config=config, window=None, created_utc=at_utc,
        origin={"kind": "pooled", "boxes": str(len(pooled.boxes)), "pictures": str(trained.pictures)},
    )  # fmt: skip
    target = out / f"{name}{SUFFIX}"
    with tempfile.TemporaryDirectory(dir=out) as folder:
        save_version(Path(folder), manifest, trained.state)
        write_bundle(Path(folder), target, signer)
    return target
