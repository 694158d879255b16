"""What of pooled training needs no Ray: pictures, averaged gradients (two real processes), a worker's words under Ray's wrappings."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed

from cluster.riffle.pool import Pooled
from cluster.riffle.train import Averaged, Images, Trained, _failed, average, bundle, mean, smallest
from configs.errors import JobError
from models.bundle import read_bundle
from models.fake import scripted_image
from models.keys import KeyRing, fingerprint
from models.precision import FLOAT32
from models.tinydet import load_bundled
from scheduler.fleet.types import CameraKey
from scheduler.types import RetrainConfig
from streams.label_file import SampleLabels
from streams.sample_record import SampleRecord, decoded, encoded
from streams.samples import encode_jpeg


def record(seq: int, by: str = "golden") -> SampleRecord:
    image, truth = scripted_image(seq)
    labels = SampleLabels(detections=truth, golden="g", split="train", stored_utc=1.0, by=by)  # type: ignore[arg-type]
    return SampleRecord(camera=CameraKey(home="b", camera="c"), window=0, seq=seq, labels=labels, jpeg=encode_jpeg(image))


def test_records_come_back_as_pictures_with_their_labels() -> None:
    images = Images([decoded(encoded(record(n, "person" if n == 1 else "golden"))) for n in range(3)])
    assert (len(images), images.persons) == (3, [1])
    assert [image.by_person for image in images] == [False, True, False]
    np.testing.assert_allclose(images[2].labels.xyxy, scripted_image(2)[1].xyxy, atol=1e-4)
    assert images[0].image.shape == scripted_image(0)[0].shape
    assert len(images[1:]) == 2


@pytest.mark.parametrize("data", [b"", b"\x05\x00\x00\x00{}", b"\x02\x00\x00\x00{}jpeg", encoded(record(1))[:30], b"\xff" * 99])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="sample"):
        decoded(data)


class TwoWorkers:
    """A process group of two threads: what the first gives and what the second gives meet in `all_reduce`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._met, self._given = threading.Barrier(2, timeout=120), dict[int, torch.Tensor]()
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.all_reduce)

    def all_reduce(self, tensor: torch.Tensor, op: object = torch.distributed.ReduceOp.SUM) -> None:
        self._given[threading.get_ident()] = tensor.clone()
        self._met.wait()
        both = torch.stack(list(self._given.values()))
        self._met.wait()
        tensor.copy_(both.min(0).values if op == torch.distributed.ReduceOp.MIN else both.sum(0))
        self._given.pop(threading.get_ident())
        self._met.wait()

    def run(self, work: Callable[[int], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        with ThreadPoolExecutor(2) as workers:
            one, two = workers.map(work, range(2))
        return one, two


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(3, 2)


def test_two_workers_step_as_one_with_all_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    first, pictures = linear(), torch.arange(12.0).reshape(4, 3)

    def work(rank: int) -> dict[str, Any]:
        layer = copy.deepcopy(first)
        updates = Averaged.of(FLOAT32).updates(torch.optim.SGD(layer.parameters(), lr=0.5), max_norm=1e9)
        updates.backward(layer(pictures[2 * rank : 2 * rank + 2]).pow(2).mean())
        if rank:
            layer.bias.grad = None  # nothing in its batch had a say
        updates.step()
        return {
            "weight": layer.weight.detach(),
            "bias": layer.bias.detach(),
            "n": smallest(5 + rank),
            "mean": mean(float(rank)),
        }

    one, two = TwoWorkers(monkeypatch).run(work)
    assert torch.equal(one["weight"], two["weight"])
    assert torch.equal(one["bias"], two["bias"])
    assert (one["n"], two["n"], one["mean"]) == (5, 5, 0.5)
    whole = copy.deepcopy(first)
    whole(pictures).pow(2).mean().backward()
    assert whole.weight.grad is not None
    torch.testing.assert_close(one["weight"], whole.weight.detach() - 0.5 * whole.weight.grad)


def test_alone_nothing_is_averaged() -> None:
    tensor = torch.ones(3)
    average([tensor])
    assert (smallest(4), mean(2.5), tensor.sum()) == (4, 2.5, 3)


class WorkerGroupError(Exception):
    """As Ray Train's (`ray.train.v2.api.exceptions.WorkerGroupError`): what each rank raised."""

    def __init__(self, text: str, worker_failures: dict[int, Exception]) -> None:
        super().__init__(text)
        self.worker_failures = worker_failures


def test_a_workers_own_words_are_told() -> None:
    cause = JobError("the training loss became nan", subject="worker 0", remedy="lower lr", code="nan")
    told = _failed(WorkerGroupError("2 workers failed", {0: cause, 1: RuntimeError("connection closed")}))
    assert (told.message, told.code, told.remedy) == ("the training loss became nan", "nan", "lower lr")
    told = _failed(RuntimeError("first line\nlast line\n"))
    assert told.message == "the training failed: last line"


def test_a_bundle_says_who_signed_it_and_not_whose_cameras_they_were(tmp_path: Path) -> None:
    model = load_bundled("tinydet-edge")
    trained = Trained(state=model.state(), spec=model.spec, losses=(1.0,), pictures=48)
    pooled = Pooled(job=None, plan=(), verdict=None, boxes=("north", "south"), pictures=48)  # type: ignore[arg-type]
    signer = KeyRing(tmp_path).signer()
    file = bundle(trained, pooled, tmp_path, signer, name="night", config=RetrainConfig(name="c"), at_utc=5.0)
    found = read_bundle(file, trusts=lambda name: name == fingerprint(signer.public))
    assert found.signed_by == fingerprint(signer.public)
    assert dict(found.manifest.origin) == {"kind": "pooled", "boxes": "2", "pictures": "48"}
    assert b"north" not in file.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["keys"]
