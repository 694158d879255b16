"""Which map outputs are merged, and what reducers read (Riffle, card sections 5, 6 and 8). Pure: events in, commands out.

One `MergeScheduler` per shuffle, in the job's driver. The shell tells it what happened and does what it says; the same object runs
live (`cluster.riffle.job`), in `driftbox decide riffle` and in tests. No clock: when the map stage ends says `cluster.riffle.cost`.

Left open by the text, decided here: one merge level; a file takes part in one merge at most, one whose merge failed is read as it is; a
map task that runs again (attempt) invalidates every merge that holds the old attempt; an original that is lost is not missed as long as
its merged file is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

MapAttempt = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class FixedCount:
    """Policy 1: as soon as `files` (N) finished files of a node wait, they are merged."""

    files: int

    def __post_init__(self) -> None:
        if self.files < 2:
            raise ValueError(f"a merge takes at least 2 files, got {self.files}")


@dataclass(frozen=True, kw_only=True)
class FixedBlockSize:
    """Policy 2: the average blocks (file size / R) of waiting files are added up; above `block_bytes` (B) they are merged. A file whose
    blocks are B already stays alone. most_files: a bound on the fan-in (ours), so that a request's memory stays bounded."""

    block_bytes: float
    most_files: int = 1000

    def __post_init__(self) -> None:
        if not self.block_bytes > 0 or self.most_files < 2:
            raise ValueError(f"block_bytes above 0, most_files at least 2, got {self}")


Policy = FixedCount | FixedBlockSize


@dataclass(frozen=True, kw_only=True)
class MapOutput:
    """What a finished map task wrote. node: where it lies; '' everywhere: storage that all mergers reach."""

    map_id: int
    node: str
    size_bytes: int
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """covers: (map id, attempt) of its sources, in the order in which they are merged. A file name is used once: `id` counts up."""

    id: int
    node: str
    covers: tuple[MapAttempt, ...]
    size_bytes: int


# --- commands -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StartMerge:
    request: MergeRequest


@dataclass(frozen=True, kw_only=True)
class CancelMerge:
    """Also one that has just ended: its file is worth nothing any more."""

    request: int


@dataclass(frozen=True, kw_only=True)
class RunMap:
    """The map task has to run (again): its output is nowhere any more."""

    map_id: int
    attempt: int


Command = StartMerge | CancelMerge | RunMap


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """A file that every reducer reads a block of. request: id of the merge that wrote it, None: an original."""

    node: str
    covers: tuple[MapAttempt, ...]
    request: int | None = None


# --- grouping -----------------------------------------------------------------------------------------------------------


def next_group(waiting: Sequence[MapOutput], policy: Policy | None, reducers: int) -> tuple[MapOutput, ...]:
    """The files of one node (in order of completion) that are to be merged now; () none yet. reducers: R. None: no merging."""
    if policy is None:
        return ()
    if isinstance(policy, FixedCount):
        return tuple(waiting[: policy.files]) if len(waiting) >= policy.files else ()
    group: list[MapOutput] = []
    total = 0.0
    for output in waiting:
        if is_bulky(output, policy, reducers):
            continue
        group.append(output)
        total += output.size_bytes / reducers
        if len(group) >= 2 and (total > policy.block_bytes or len(group) == policy.most_files):
            return tuple(group)
    return ()


def is_bulky(output: MapOutput, policy: Policy, reducers: int) -> bool:
    """Whether a file's blocks are as large as merging would make them."""
    return isinstance(policy, FixedBlockSize) and output.size_bytes / reducers >= policy.block_bytes


# --- the scheduler ------------------------------------------------------------------------------------------------------

RequestState = Literal["running", "merged", "dropped"]


@dataclass(frozen=True, kw_only=True)
class _Request:
    request: MergeRequest
    state: RequestState


class MergeScheduler:
    """maps: M, ids 0 to M - 1 or those given; reducers: R; policy: None: the gate refused, nothing is merged; left_overs: merge what is
    left on a node when all maps are done, if two or more. Raises ValueError for an event about what it does not know."""

    def __init__(self, maps: int | Iterable[int], reducers: int, policy: Policy | None, *, left_overs: bool = False) -> None:
        ids = range(maps) if isinstance(maps, int) else maps
        self._attempt = dict.fromkeys(ids, -1)  # the newest finished attempt; -1: none yet
        self._reducers, self._policy, self._left_overs = reducers, policy, left_overs
        self._outputs: dict[int, MapOutput] = {}
        self._lost: set[int] = set()  # originals that are gone
        self._waiting: dict[str, list[MapOutput]] = {}
        self._requests: dict[int, _Request] = {}
        self._of: dict[int, int] = {}  # map id -> the request that holds its present attempt
        self._closed = False
        if not self._attempt or reducers < 1:
            raise ValueError("a shuffle has at least one map and one reducer")

    # --- events ---------------------------------------------------------------------------------------------------------

    def map_done(self, output: MapOutput) -> list[Command]:
        """A map task has finished. The same attempt told twice, or an older one, changes nothing."""
        self._known(output.map_id)
        if output.attempt <= self._attempt[output.map_id]:
            return []
        commands = self._invalidate(output.map_id)
        self._attempt[output.map_id] = output.attempt
        self._outputs[output.map_id] = output
        self._lost.discard(output.map_id)
        if self._closed:
            return commands  # reducers read it as it is
        waiting = self._waiting.setdefault(output.node, [])
        waiting.append(output)
        commands += self._merge_waiting(output.node)
        if self._left_overs and not self.unfinished():
            commands += self._merge_left_overs()
        return commands

    def merge_done(self, request: int) -> list[Command]:
        """Its file is durable. One that was dropped meanwhile is not taken up again."""
        found = self._request(request)
        if found.state == "dropped":
            return [CancelMerge(request=request)]
        if found.state == "running":
            self._requests[request] = replace(found, state="merged")
        return []

    def merge_failed(self, request: int) -> list[Command]:
        """It failed, timed out, its merger crashed, or its file is lost or damaged: its originals serve, and what is in neither is made
        anew."""
        found = self._request(request)
        if found.state == "dropped":
            return []
        return self._drop(found)

    merged_lost = merge_failed

    def original_lost(self, map_id: int, attempt: int) -> list[Command]:
        """Its merged file serves if there is one; otherwise exactly this map task runs again."""
        self._known(map_id)
        if attempt != self._attempt[map_id] or map_id in self._lost:
            return []
        self._lost.add(map_id)
        output = self._outputs[map_id]
        if output in (waiting := self._waiting.get(output.node, [])):
            waiting.remove(output)
        request = self._requests.get(self._of.get(map_id, -1))
        if request is None:
            return [self._again(map_id)]
        return [] if request.state == "merged" else self._drop(request)

    def close(self) -> list[Command]:
        """The map stage has ended: merges that run are cancelled, their originals serve; no new ones begin."""
        self._closed = True
        self._waiting.clear()
        running = [r for r in self._requests.values() if r.state == "running"]
        return [command for request in running for command in (CancelMerge(request=request.request.id), *self._drop(request))]

    # --- answers --------------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[int]:
        """Map tasks whose output is nowhere: not finished yet, or lost."""
        return [id for id, attempt in self._attempt.items() if attempt < 0 or (id in self._lost and id not in self._served())]

    def counts(self) -> Mapping[RequestState, int]:
        """Requests by state."""
        found = Counter(r.state for r in self._requests.values())
        return {"running": found["running"], "merged": found["merged"], "dropped": found["dropped"]}

    def request(self, request: int) -> MergeRequest:
        return self._request(request).request

    def plan(self) -> tuple[Fetch, ...]:
        """What reducers read: merged files, then originals. ValueError when a map output is nowhere; what it returns covers each map
        output exactly once."""
        missing = self.unfinished()
        if missing:
            raise ValueError(f"map outputs are missing: {missing[:20]}")
        merged = [r.request for r in self._requests.values() if r.state == "merged"]
        fetches = [Fetch(node=r.node, covers=r.covers, request=r.id) for r in merged]
        served = self._served()
        fetches += [
            Fetch(node=o.node, covers=((id, o.attempt),)) for id, o in sorted(self._outputs.items()) if id not in served
        ]
        check_coverage(fetches, self._attempt)
        return tuple(fetches)

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _merge_waiting(self, node: str) -> list[Command]:
        commands: list[Command] = []
        while group := next_group(self._waiting[node], self._policy, self._reducers):
            commands.append(self._start(node, group))
        return commands

    def _merge_left_overs(self) -> list[Command]:
        commands: list[Command] = []
        for node, waiting in sorted(self._waiting.items()):
            if self._policy is None:
                continue
            left = tuple(o for o in waiting if not is_bulky(o, self._policy, self._reducers))
            if len(left) >= 2:
                commands.append(self._start(node, left))
        return commands

    def _start(self, node: str, group: tuple[MapOutput, ...]) -> StartMerge:
        self._waiting[node] = [o for o in self._waiting[node] if o not in group]
        covers = tuple((o.map_id, o.attempt) for o in group)
        request = MergeRequest(id=len(self._requests), node=node, covers=covers, size_bytes=sum(o.size_bytes for o in group))
        self._requests[request.id] = _Request(request=request, state="running")
        self._of.update((o.map_id, request.id) for o in group)
        return StartMerge(request=request)

    def _drop(self, found: _Request) -> list[Command]:
        """A request is over without a file. Those of its outputs whose originals are gone have to be made again."""
        self._requests[found.request.id] = replace(found, state="dropped")
        mine = [id for id, _ in found.request.covers if self._of.get(id) == found.request.id]
        for id in mine:
            del self._of[id]
        cancel: list[Command] = [CancelMerge(request=found.request.id)] if found.state == "running" and not self._closed else []
        return [*cancel, *(self._again(id) for id in mine if id in self._lost)]

    def _invalidate(self, map_id: int) -> list[Command]:
        """A newer attempt: whatever holds the old one is worth nothing, for all its members (a block cannot be read in part)."""
        request = self._requests.get(self._of.pop(map_id, -1))
        old = self._outputs.get(map_id)
        if old is not None and old in (waiting := self._waiting.get(old.node, [])):
            waiting.remove(old)
        self._lost.discard(map_id)
        if request is None:
            return []
        drop = self._drop(request)
        return drop if drop and isinstance(drop[0], CancelMerge) else [CancelMerge(request=request.request.id), *drop]

    def _again(self, map_id: int) -> RunMap:
        return RunMap(map_id=map_id, attempt=self._attempt[map_id] + 1)

    def _served(self) -> set[int]:
        """Map ids whose present attempt a merged file holds."""
        return {id for id, request in self._of.items() if self._requests[request].state == "merged"}

    def _known(self, map_id: int) -> None:
        if map_id not in self._attempt:
            raise ValueError(f"no map task {map_id} in this shuffle")

    def _request(self, request: int) -> _Request:
        if request not in self._requests:
            raise ValueError(f"no merge request {request} in this shuffle")
        return self._requests[request]


def check_coverage(fetches: Iterable[Fetch], attempts: Mapping[int, int]) -> None:
    """The invariant of card section 8: every map output exactly once, in its newest attempt. ValueError naming what is wrong."""
    read = Counter(cover for fetch in fetches for cover in fetch.covers)
    twice = sorted(cover for cover, times in read.items() if times > 1)
    wrong = sorted(set(read) ^ set(attempts.items()))
    if twice or wrong:
        raise ValueError(f"a reducer would read map outputs twice or not at all: twice {twice[:10]}, differing {wrong[:10]}")
