"""`driftbox decide riffle`: which map outputs are merged, and what reducers read. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from cluster.riffle.admit import MIB, Buffers, admitted, need_bytes
from cluster.riffle.cost import (
    DiskSpeed,
    Shuffle,
    StageEnd,
    Verdict,
    border_by_requests,
    border_by_time,
    exact_requests,
    gate,
    plain_requests,
    stage_end,
)
from cluster.riffle.plan import FixedBlockSize, FixedCount, MapOutput, MergeRequest, MergeScheduler, Policy, RunMap, StartMerge
from scheduler.decide import System
from scheduler.decide.inputs import Clock, Strict, Table, no_doubles, parse

Id = Annotated[int, Field(ge=0, le=10**9)]
Bytes = Annotated[float, Field(gt=0, le=1e18)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
#: Fan-ins that an explained answer compares.
FAN_INS = (5, 10, 20, 40, 80, 200)


# --- input ------------------------------------------------------------------------------------------------------------


class MapInput(Strict):
    id: Id = Field(description="number of the map task")
    size_bytes: Bytes = Field(description="what it wrote, all its blocks")
    node: Annotated[str, Field(max_length=200)] = Field("", description="where that lies; only files of one node are merged")
    done_s: Seconds = Field(0.0, description="when it finished")


class DiskInput(Strict):
    seek_s: Seconds = Field(description="a request, however small")
    bytes_per_s: Bytes = Field(description="a long sequential one")


class BuffersInput(Strict):
    read_bytes: int = Field(4 * MIB, ge=1, le=2**40, description="per source file")
    write_bytes: int = Field(20 * MIB, ge=1, le=2**40, description="of the merged file")


class RiffleInput(Strict):
    """What `decide riffle` reads."""

    reducers: int = Field(ge=1, le=10**7, description="R: blocks of every file")
    maps: list[MapInput] = Field(min_length=1, max_length=20_000, description="finished map tasks, in any order")
    files: int | None = Field(None, ge=2, le=10**6, description="policy fixed N: files per merge")
    block_bytes: Bytes | None = Field(None, description="policy fixed block size B, instead of files")
    left_overs: bool = Field(False, description="merge what is left on a node when all maps are done, if two or more")
    disk: DiskInput | None = Field(None, description="as measured; null: the gate looks at requests only")
    gate: bool = Field(True, description="merge only where it pays; false: always")
    buffers: BuffersInput = Field(BuffersInput(read_bytes=4 * MIB, write_bytes=20 * MIB), description="memory of one merge")
    memory_bytes: Bytes = Field(512 * MIB, description="memory of a node's merger")
    threshold: float = Field(0.95, ge=0, le=1, description="part of the merges that must be done before reducers start; 1: all")
    max_wait_s: Seconds | None = Field(None, description="longest wait after the last map; null: none")
    small_counts: bool = Field(True, description="few merges: round the threshold down where it would mean all of them")
    merged_s: list[Seconds | None] = Field(
        default_factory=list,
        max_length=20_000,
        description="when each merge (in order of id) is done; null: it failed; absent: never",
    )
    lost_merges: list[Id] = Field(default_factory=list, max_length=20_000, description="merged files lost or damaged since")
    lost_maps: list[Id] = Field(default_factory=list, max_length=20_000, description="original files lost or damaged since")

    @field_validator("maps")
    @classmethod
    def _one_each(cls, maps: list[MapInput]) -> list[MapInput]:
        no_doubles((str(m.id) for m in maps), "id")
        return maps

    @field_validator("block_bytes")
    @classmethod
    def _one_policy(cls, block_bytes: float | None, info: ValidationInfo) -> float | None:
        if (block_bytes is None) == (info.data.get("files") is None) and "files" in info.data:
            raise ValueError("give files or block_bytes, one of them")
        return block_bytes

    @field_validator("lost_maps")
    @classmethod
    def _are_there(cls, lost: list[int], info: ValidationInfo) -> list[int]:
        unknown = sorted(set(lost) - {m.id for m in info.data.get("maps", ())})
        if unknown and "maps" in info.data:
            raise ValueError(f"no map task {unknown[0]}")
        return lost

    model_config = Strict.model_config | {"validate_default": True}


# --- answer -----------------------------------------------------------------------------------------------------------


class GateAnswer(Strict):
    merge: bool
    why: str
    limit_bytes: float = Field(description="block size below which merging pays")
    block_bytes: float = Field(description="average block")


class MergeAnswer(Strict):
    id: int
    node: str
    maps: list[int]
    size_bytes: float
    memory_bytes: int = Field(description="buffers it needs")
    at_once: bool = Field(description="starts at once if all merges of its node are asked for together; false: it queues")
    state: str = Field(description="merged, cancelled (the stage did not wait), failed or lost")


class FetchAnswer(Strict):
    merge: int | None = Field(description="id of the merge, null: an original")
    maps: list[int] = Field(description="map outputs that the file holds")


class RequestsAnswer(Strict):
    plain: float = Field(description="reads without merging: M * R")
    merged: float = Field(description="reads with these files, and those and the writes of merging")
    factor: float = Field(description="plain / merged")


class StageAnswer(Strict):
    start_s: float | None = Field(
        description="when reducers start; null: never, because merges never end and there is no max_wait_s"
    )
    merged: int
    cancelled: int


class OtherAnswer(Strict):
    files: int = Field(description="files per merge")
    requests: float
    factor: float
    border_requests_bytes: float = Field(description="block size below which requests get fewer")
    border_time_bytes: float | None = Field(description="block size below which time gets less; null: no disk given")


class ExplainAnswer(Strict):
    other: list[OtherAnswer] = Field(description="the same job with other fan-ins, all merges done")


class RiffleAnswer(Strict):
    """What `decide riffle` prints. Every map output is in exactly one of `fetch`."""

    plan_ms: float | None = Field(description="time to plan; null where no clock was given")
    gate: GateAnswer
    merges: list[MergeAnswer]
    stage: StageAnswer
    fetch: list[FetchAnswer] = Field(description="files that every reducer reads, once recompute has run")
    files_per_reducer: int
    requests: RequestsAnswer
    recompute: list[int] = Field(description="map tasks that have to run again, and only they")
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_riffle(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Plan the merges of a shuffle and what reducers read, as plain JSON values, through the scheduler that jobs run
    (`cluster.riffle.plan`). data: what `json.loads` gave; clock: for `plan_ms` only; explain: also what other fan-ins would cost.
    Errors: ConfigError with every problem and its path."""
    given = parse(RiffleInput, data)
    started_s = clock() if clock else 0.0
    shuffle = Shuffle(maps=len(given.maps), reducers=given.reducers, total_bytes=sum(m.size_bytes for m in given.maps))
    verdict = _gate(given, shuffle)
    scheduler = MergeScheduler(
        [m.id for m in given.maps], given.reducers, _policy(given) if verdict.merge else None, left_overs=given.left_overs
    )
    requests, recompute = _map_stage(given, scheduler)
    end, states = _end(given, scheduler, requests, recompute)
    recompute += _losses(given, scheduler, requests, states)
    missing = scheduler.unfinished()
    fetch = _once_run_again(given, scheduler, missing).plan()
    merged_bytes = sum(r.size_bytes for r in requests if states[r.id] == "merged")
    merged_reads = exact_requests(
        reducers=given.reducers, offered_files=len(fetch), merged_bytes=merged_bytes, buffer_bytes=given.buffers.write_bytes
    )
    answer = RiffleAnswer(
        plan_ms=(clock() - started_s) * 1000 if clock else None,
        gate=GateAnswer(merge=verdict.merge, why=verdict.why, limit_bytes=verdict.limit_bytes, block_bytes=shuffle.block_bytes),
        merges=_merges(given, requests, states),
        stage=end,
        fetch=[FetchAnswer(merge=f.request, maps=[id for id, _ in f.covers]) for f in fetch],
        files_per_reducer=len(fetch),
        requests=RequestsAnswer(
            plain=plain_requests(shuffle),
            merged=merged_reads,
            factor=plain_requests(shuffle) / merged_reads if merged_reads else 0.0,
        ),
        recompute=sorted({*recompute, *missing}),
        explain=_others(given, shuffle) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def _policy(given: RiffleInput) -> Policy:
    if given.files is not None:
        return FixedCount(files=given.files)
    assert given.block_bytes is not None
    return FixedBlockSize(block_bytes=given.block_bytes)


def _gate(given: RiffleInput, shuffle: Shuffle) -> Verdict:
    """With fixed block size, the fan-in is what the average file makes of it."""
    fan_in = given.files or max(2, math.ceil((given.block_bytes or 0) / shuffle.block_bytes))
    per_node = Counter(m.node for m in given.maps)
    verdict = gate(
        shuffle,
        fan_in=fan_in,
        buffer_bytes=given.buffers.write_bytes,
        disk=_disk(given),
        files_per_node=list(per_node.values()),
    )
    return verdict if given.gate else Verdict(merge=True, why="not asked (gate: false)", limit_bytes=verdict.limit_bytes)


def _disk(given: RiffleInput) -> DiskSpeed | None:
    return DiskSpeed(seek_s=given.disk.seek_s, bytes_per_s=given.disk.bytes_per_s) if given.disk else None


def _map_stage(given: RiffleInput, scheduler: MergeScheduler) -> tuple[list[MergeRequest], list[int]]:
    """The maps finish in order of time; every merge that this asks for."""
    requests = []
    for done in sorted(given.maps, key=lambda m: (m.done_s, m.id)):
        output = MapOutput(map_id=done.id, node=done.node, size_bytes=int(done.size_bytes))
        requests += [c.request for c in scheduler.map_done(output) if isinstance(c, StartMerge)]
    return requests, []


def _end(
    given: RiffleInput, scheduler: MergeScheduler, requests: Sequence[MergeRequest], recompute: list[int]
) -> tuple[StageAnswer, dict[int, str]]:
    """Merges end, well or badly; the stage ends by the rule. Without any `merged_s` all of them are done when the maps are."""
    last_map_s = max(m.done_s for m in given.maps)
    told = given.merged_s or [last_map_s] * len(requests)
    done_s = [told[n] if n < len(told) else None for n in range(len(requests))]
    failed = {n for n in range(min(len(told), len(requests))) if told[n] is None}
    waited_for = [s for n, s in enumerate(done_s) if n not in failed]
    max_wait_s = math.inf if given.max_wait_s is None else given.max_wait_s
    try:
        end = stage_end(
            last_map_s=last_map_s,
            merge_done_s=waited_for,
            threshold=given.threshold,
            max_wait_s=max_wait_s,
            small=given.small_counts,
        )
    except ValueError:
        end = StageEnd(start_s=math.inf, merged=0, cancelled=0)
    states = {}
    for request, at_s in zip(requests, done_s, strict=True):
        if request.id in failed:
            states[request.id] = "failed"
            commands = scheduler.merge_failed(request.id)
        elif at_s is not None and at_s <= end.start_s:
            states[request.id] = "merged"
            commands = scheduler.merge_done(request.id)
        else:
            states[request.id], commands = "cancelled", []
        recompute += [c.map_id for c in commands if isinstance(c, RunMap)]
    scheduler.close()
    start_s = None if math.isinf(end.start_s) else end.start_s
    counts = Counter(states.values())
    return StageAnswer(start_s=start_s, merged=counts["merged"], cancelled=counts["cancelled"]), states


def _losses(
    given: RiffleInput, scheduler: MergeScheduler, requests: Sequence[MergeRequest], states: dict[int, str]
) -> list[int]:
    commands = []
    for merge in given.lost_merges:
        if states.get(merge) == "merged":
            states[merge] = "lost"
            commands += scheduler.merged_lost(merge)
    for map_id in given.lost_maps:
        commands += scheduler.original_lost(map_id, 0)
    return [c.map_id for c in commands if isinstance(c, RunMap)]


def _once_run_again(given: RiffleInput, scheduler: MergeScheduler, missing: Sequence[int]) -> MergeScheduler:
    """What was lost has been written again; no reducer reads a merge of it."""
    maps = {m.id: m for m in given.maps}
    for id in missing:
        scheduler.map_done(MapOutput(map_id=id, node=maps[id].node, size_bytes=int(maps[id].size_bytes), attempt=1))
    return scheduler


def _merges(given: RiffleInput, requests: Sequence[MergeRequest], states: dict[int, str]) -> list[MergeAnswer]:
    sizes = {m.id: int(m.size_bytes) for m in given.maps}
    buffers = Buffers(read=given.buffers.read_bytes, write=given.buffers.write_bytes)
    needs = {r.id: need_bytes([sizes[id] for id, _ in r.covers], buffers) for r in requests}
    at_once: set[int] = set()
    for node in {r.node for r in requests}:
        mine = [r.id for r in requests if r.node == node]
        at_once |= set(mine[: admitted([needs[id] for id in mine], [], int(given.memory_bytes))])
    return [
        MergeAnswer(
            id=r.id,
            node=r.node,
            maps=[id for id, _ in r.covers],
            size_bytes=r.size_bytes,
            memory_bytes=needs[r.id],
            at_once=r.id in at_once,
            state=states[r.id],
        )
        for r in requests
    ]


def _others(given: RiffleInput, shuffle: Shuffle) -> ExplainAnswer:
    disk, buffer_bytes = _disk(given), given.buffers.write_bytes
    per_node = Counter(m.node for m in given.maps).values()
    other = []
    for fan_in in FAN_INS:
        groups = sum(m // fan_in for m in per_node)
        files = sum(m // fan_in + m % fan_in for m in per_node)
        merged_bytes = shuffle.total_bytes * groups * fan_in / shuffle.maps
        requests = exact_requests(
            reducers=given.reducers, offered_files=files, merged_bytes=merged_bytes, buffer_bytes=buffer_bytes
        )
        other.append(
            OtherAnswer(
                files=fan_in,
                requests=requests,
                factor=plain_requests(shuffle) / requests,
                border_requests_bytes=border_by_requests(buffer_bytes=buffer_bytes, fan_in=fan_in),
                border_time_bytes=None if disk is None else border_by_time(disk, fan_in=fan_in),
            )
        )
    return ExplainAnswer(other=other)


def riffle_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    stage, requests = answer["stage"], answer["requests"]
    start = "never" if stage["start_s"] is None else f"at {stage['start_s']:g} s"
    return [
        Table(
            title=f"{answer['gate']['why']}; reducers start {start} and read {answer['files_per_reducer']} files each",
            columns=("merge", "node", "maps", "bytes", "memory", "at once", "state"),
            rows=[
                (m["id"], m["node"] or "any", _ids(m["maps"]), f"{m['size_bytes']:.4g}", m["memory_bytes"], m["at_once"], m["state"])
                for m in answer["merges"]
            ],
        ),
        Table(
            title=f"requests: {requests['plain']:.6g} without merging, {requests['merged']:.6g} with it ({requests['factor']:.3g} x)",
            columns=("files per merge", "requests", "factor", "pays below (requests)", "pays below (time)"),
            rows=[
                (o["files"], f"{o['requests']:.6g}", f"{o['factor']:.2f}", f"{o['border_requests_bytes']:.3g} B",
                 "-" if o["border_time_bytes"] is None else f"{o['border_time_bytes']:.3g} B")
                for o in answer["explain"]["other"]
            ],
        ),
    ]  # fmt: skip


def _ids(ids: Sequence[int], most: int = 12) -> str:
    text = ", ".join(map(str, ids[:most]))
    return f"{text}, ... ({len(ids)})" if len(ids) > most else text


SYSTEM = System(decide=decide_riffle, input_model=RiffleInput, answer_model=RiffleAnswer, tables=riffle_tables)

__all__ = ["SYSTEM", "RiffleAnswer", "RiffleInput", "decide_riffle", "riffle_tables"]
