"""Pooled training, the fleet's side, up to the blocks: boxes are asked for samples, their parts become map outputs, and are merged.

    ask       a request per box, sealed for it
    answers   every box's last word: how many parts, or none (no consent, withdrawn, away)
    shuffle   the parts are fetched, opened, checked record by record, written as map outputs; merging goes on meanwhile where the gate
              says that it pays here; the plan covers every part exactly once

A part that is lost here is a map task that runs again: it is fetched once more. Nothing that a box says is believed: a part whose
content is not what its box said, or not samples of that box, costs that box's part and nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.riffle.cost import DiskSpeed, Shuffle, Verdict, gate
from cluster.riffle.job import ShuffleJob, StageRule
from cluster.riffle.merger import Merger, original_name
from cluster.riffle.plan import Fetch, FixedBlockSize, FixedCount, MapOutput, Policy
from configs.errors import DriftboxError, EnvironmentLacking, JobError, UsageError
from edge.fleet.envelope import Member, certificate_of, open_sealed, seal
from edge.fleet.parcels import ParcelPost
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, CollectRequest, PartSent, end_parcel, part_parcel, request_parcel
from streams.block_file import remove_unfinished, write_block_file
from streams.sample_record import digest, taken_in

log = logging.getLogger("driftbox.fleet")


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The training service as a member of the fleet. disk: speed of `folder`'s, None: not measured, then the gate counts requests."""

    member: Member
    post: ParcelPost
    folder: Path
    utc: Callable[[], float]
    mergers: Sequence[Merger]
    disk: DiskSpeed | None = None


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """A shuffle that is ready to be read. verdict: why (not) merged; refused: parts that cannot be used, by box, in words."""

    job: ShuffleJob
    plan: tuple[Fetch, ...]
    verdict: Verdict
    boxes: tuple[str, ...]
    pictures: int
    refused: Mapping[str, str] = field(default_factory=dict)


def ask(trainer: Trainer, requests: Sequence[CollectRequest]) -> None:
    """Puts each box's request where the box gets it; `Desired.collect` then tells the box. Raises EnvironmentLacking, UsageError."""
    for request in requests:
        if request.trainer != trainer.member.box:
            raise UsageError(
                f"request {request.id} names {request.trainer}", subject=request.id, remedy=f"name {trainer.member.box}"
            )
        parcel = request_parcel(request.box, request.id)
        to = certificate_of(trainer.post.certificate_of(request.box))
        content = codec.encode(request)
        trainer.post.put(
            parcel, seal(content, parcel=parcel, sender=trainer.member, addressee=to, to=request.box, now_utc_s=trainer.utc())
        )


def answers(trainer: Trainer, requests: Sequence[CollectRequest]) -> dict[str, Collected]:
    """The last words that have come, by box. Ask again later for the others; who is away too long is left out of the round."""
    found = {}
    for request in requests:
        parcel = end_parcel(request.trainer, request.id, request.box)
        try:
            word = codec.decode(Collected, _opened(trainer, parcel, request.box))
            if (word.request, word.box) != (request.id, request.box):
                raise UsageError(
                    f"box {request.box} answered another request", subject=request.box, remedy="its samples are not used"
                )
            found[request.box] = word
        except EnvironmentLacking:
            continue  # not there yet
        except DriftboxError as error:
            log.warning("the answer of %s cannot be used: %s", request.box, error)
            found[request.box] = Collected(
                request=request.id, box=request.box, stage="refused", problem=error.message, left_out={}
            )
    return found


def shuffle(
    trainer: Trainer, requests: Sequence[CollectRequest], words: Mapping[str, Collected], *, policy: Policy, left_overs: bool = True,
    rule: StageRule | None = None, gate_off: bool = False,
) -> Pooled:  # fmt: skip
    """Fetches what was given and merges it. gate_off: merge whatever it costs. Raises JobError 'no_data' when there is nothing to train
    on, EnvironmentLacking (the controller is away), StorageError (our own disk)."""
    given = [
        (r, part, told) for r in requests if (w := words.get(r.box)) and w.stage == "given" for part, told in enumerate(w.parts)
    ]
    if not given:
        raise JobError("no box gave samples", subject="pooled training", remedy="do the operators consent?", code="no_data")
    partitions = given[0][0].partitions
    trainer.folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(trainer.folder)
    verdict = _verdict(trainer, policy, partitions, [told.size_bytes for *_, told in given], gate_off)
    refused: dict[str, str] = {}

    def fetch(map_id: int, attempt: int) -> MapOutput:
        """A map task. A part that cannot be used is an empty map output: every part is covered once, this one by nothing."""
        request, part, told = given[map_id]
        try:
            return _fetch(trainer, request, part, told, map_id, attempt)
        except DriftboxError as error:
            if isinstance(error, EnvironmentLacking) and error.code != "corrupt":
                raise
            log.warning("part %d of %s cannot be used: %s", part, request.box, error)
            refused[request.box] = error.message
            return _empty(trainer.folder, partitions, map_id, attempt)

    job = ShuffleJob(
        len(given), partitions, policy if verdict.merge else None, folders={"": trainer.folder}, mergers={"": trainer.mergers},
        run_task=fetch, left_overs=left_overs,
    )  # fmt: skip
    pictures: Counter[str] = Counter()
    for map_id, (request, _, told) in enumerate(given):
        output = fetch(map_id, 0)
        pictures[request.box] += told.samples if output.size_bytes else 0
        job.map_done(output)  # merging begins while the next parts are fetched
    if not pictures.total():
        raise JobError(
            f"no samples can be used: {refused}", subject="pooled training", remedy="see the boxes' logs", code="no_data"
        )
    boxes = tuple(sorted(box for box, count in pictures.items() if count))
    return Pooled(
        job=job, plan=job.end_map_stage(rule), verdict=verdict, boxes=boxes, pictures=pictures.total(), refused=refused
    )


def _empty(folder: Path, partitions: int, map_id: int, attempt: int) -> MapOutput:
    write_block_file(folder, original_name(map_id, attempt), [[]] * partitions, covers=[(map_id, attempt)])
    return MapOutput(map_id=map_id, node="", size_bytes=0, attempt=attempt)


def _fetch(trainer: Trainer, request: CollectRequest, part: int, told: PartSent, map_id: int, attempt: int) -> MapOutput:
    """A map task: a part, as its box said that it is, written as a map output."""
    parcel = part_parcel(request.trainer, request.id, request.box, part)
    data = _opened(trainer, parcel, request.box)
    if digest(data) != told.sha256:
        raise UsageError(f"part {part} of {request.box} is not what it said", subject=request.box, remedy="it is left out")
    name = original_name(map_id, attempt)
    index, names = taken_in(
        data, trainer.folder, name, partitions=request.partitions, covers=[(map_id, attempt)], home=request.box
    )
    log.info("part %d of %s: %d pictures", part, request.box, len(names))
    return MapOutput(map_id=map_id, node="", size_bytes=index.size_bytes, attempt=attempt)


def _opened(trainer: Trainer, parcel: str, box: str) -> bytes:
    data = trainer.post.get(parcel)
    return open_sealed(data, parcel=parcel, member=trainer.member, now_utc_s=trainer.utc(), sender=box).content


def _verdict(trainer: Trainer, policy: Policy, partitions: int, sizes: Sequence[int], gate_off: bool) -> Verdict:
    whole = Shuffle(maps=len(sizes), reducers=partitions, total_bytes=sum(sizes))
    fan_in = policy.files if isinstance(policy, FixedCount) else _fan_in(policy, whole)
    buffer_bytes = trainer.mergers[0].buffers.write
    found = gate(whole, fan_in=fan_in, buffer_bytes=buffer_bytes, disk=trainer.disk)
    return replace(found, merge=True, why="not asked") if gate_off else found


def _fan_in(policy: FixedBlockSize, whole: Shuffle) -> int:
    """What the average file makes of it."""
    return max(2, min(policy.most_files, int(-(-policy.block_bytes // max(1.0, whole.block_bytes)))))
