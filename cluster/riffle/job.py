"""One shuffle, live: does what the `MergeScheduler` says, and gives reducers their blocks (Riffle, card sections 2, 6 and 8).

The driver of one job. A lost driver is a restart of its job: merged files are worth nothing without what it knows, originals are found
again by their names and told anew (`MapOutput`), and no map task runs twice for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.riffle.admit import pick_merger
from cluster.riffle.cost import merges_needed
from cluster.riffle.merge import blamed
from cluster.riffle.merger import Merger, MergeWork, merged_name, original_name, sources_of
from cluster.riffle.plan import CancelMerge, Command, Fetch, MapOutput, MergeRequest, MergeScheduler, Policy, RunMap, StartMerge
from configs.errors import DriftboxError, JobError, StorageError
from streams.block_file import DISK, BlockIndex, Disk, read_block, read_index

log = logging.getLogger("driftbox.fleet")

#: Runs a map task again: (map id, attempt) -> what it wrote, under `original_name`. May raise DriftboxError.
RunTask = Callable[[int, int], MapOutput]


@dataclass(frozen=True, kw_only=True)
class StageRule:
    """When the map stage ends. threshold: part of the merges that must be done (1: all; text: 0.95); max_wait_s: after the last map;
    merge_timeout_s: a merge that takes longer is dropped."""

    threshold: float = 0.95
    max_wait_s: float = 30.0
    merge_timeout_s: float = 600.0


class ShuffleJob:
    """folders: node -> folder of this job there; mergers: those that reach it (one on the node itself; several where storage is
    shared: the power of two choices, drawn with `seed`). run_task: see `RunTask`. Thread-safe: reducers of many threads
    fetch at once, mergers report at any time. Raises what `run_task` raises, and JobError 'no_data' where a map output cannot be had."""

    #: A map task that is lost again after so many runs is given up.
    MOST_ATTEMPTS = 4

    def __init__(
        self, maps: int | Iterable[int], reducers: int, policy: Policy | None, *, folders: Mapping[str, Path],
        mergers: Mapping[str, Sequence[Merger]], run_task: RunTask, left_overs: bool = False,
        disk: Disk = DISK, clock: Callable[[], float] = time.monotonic, seed: int = 0,
    ) -> None:  # fmt: skip
        self.reducers = reducers
        self._scheduler = MergeScheduler(maps, reducers, policy, left_overs=left_overs)
        self._folders, self._mergers, self._run_task = dict(folders), dict(mergers), run_task
        self._disk, self._clock = disk, clock
        self._rng, self._chosen = np.random.default_rng(seed), dict[int, Merger]()
        self._nodes: dict[tuple[int, int], str] = {}
        self._began_s: dict[int, float] = {}
        self._indexes: dict[tuple[str, str], BlockIndex] = {}
        self._change = threading.Condition(threading.RLock())
        self.fetches = 0

    # --- the map stage --------------------------------------------------------------------------------------------------

    def map_done(self, output: MapOutput) -> None:
        """A map output is durable under its `original_name` in its node's folder."""
        with self._change:
            self._nodes[output.map_id, output.attempt] = output.node
            commands = self._scheduler.map_done(output)
        self._obey(commands)

    def end_map_stage(self, rule: StageRule | None = None) -> tuple[Fetch, ...]:
        """Waits, when all maps are done, for as many merges as the rule wants, cancels the others, and returns what reducers read.
        JobError 'no_data': a map task has not finished."""
        rule = rule or StageRule()
        last_map_s = self._clock()
        with self._change:
            if missing := self._scheduler.unfinished():
                raise JobError(
                    f"map tasks {missing[:20]} have not finished", subject="riffle", remedy="wait for them", code="no_data"
                )
            self._drop_overdue(rule)
            while not self._enough(rule) and (left_s := last_map_s + rule.max_wait_s - self._clock()) > 0:
                self._change.wait(min(left_s, self._next_timeout_s(rule)))
                self._drop_overdue(rule)
            commands = self._scheduler.close()
        self._obey(commands)
        with self._change:
            return self._scheduler.plan()

    def _enough(self, rule: StageRule) -> bool:
        counts = self._scheduler.counts()
        total = sum(counts.values())
        # a dropped merge will never be done: nobody waits for it
        return counts["merged"] + counts["dropped"] >= merges_needed(total, rule.threshold) or not counts["running"]

    def _next_timeout_s(self, rule: StageRule) -> float:
        ends_s = [began_s + rule.merge_timeout_s - self._clock() for began_s in self._began_s.values()]
        return max(0.001, min(ends_s, default=math.inf))

    def _drop_overdue(self, rule: StageRule) -> None:
        for request, began_s in list(self._began_s.items()):
            if self._clock() - began_s >= rule.merge_timeout_s:
                log.warning("merge %d takes longer than %.0f s: its originals are read", request, rule.merge_timeout_s)
                self._began_s.pop(request)
                self._obey(self._scheduler.merge_failed(request))

    # --- the reduce stage -----------------------------------------------------------------------------------------------

    def blocks(self, plan: Iterable[Fetch], partition: int) -> Iterator[bytes]:
        """A reducer's blocks, every map output in exactly one of them; empty ones are left out. What cannot be read is replaced: a
        merged file by its originals, an original by a new run of its map task."""
        todo = list(reversed(list(plan)))
        while todo:
            fetch = todo.pop()
            try:
                block = self._read(fetch, partition)
            except StorageError as error:
                todo += reversed(self._instead(fetch, error))
                continue
            if block:
                yield block

    def _read(self, fetch: Fetch, partition: int) -> bytes:
        name = name_of(fetch)
        folder = self._folders[fetch.node]
        index = self._indexes.get((fetch.node, name))
        if index is None:
            index = read_index(folder, name, disk=self._disk)
            if index.covers != tuple(sorted(fetch.covers)):
                raise StorageError(f"{name} holds other map outputs than it should", subject=name, code="corrupt", remedy="")
            self._indexes[fetch.node, name] = index
        if index.block(partition)[1]:
            self.fetches += 1
        return read_block(folder, name, index, partition, disk=self._disk)

    def _instead(self, fetch: Fetch, error: StorageError) -> list[Fetch]:
        """What a reducer reads instead of a file that failed."""
        log.warning("%s cannot be read, using what it was made from: %s", name_of(fetch), error)
        with self._change:
            self._indexes.pop((fetch.node, name_of(fetch)), None)
            if fetch.request is not None:
                commands = self._scheduler.merged_lost(fetch.request)
            else:
                [(map_id, attempt)] = fetch.covers
                commands = self._scheduler.original_lost(map_id, attempt)
            self._obey(commands)
            return [self._original(map_id) for map_id, _ in fetch.covers]

    def _original(self, map_id: int) -> Fetch:
        attempt = max(attempt for id, attempt in self._nodes if id == map_id)
        return Fetch(node=self._nodes[map_id, attempt], covers=((map_id, attempt),))

    # --- commands -------------------------------------------------------------------------------------------------------

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, StartMerge):
                self._start(command)
            elif isinstance(command, CancelMerge):
                folder = self._folders[self._scheduler.request(command.request).node]
                self._chosen[command.request].cancel(folder, merged_name(command.request))
            else:
                self._run(command)

    def _start(self, command: StartMerge) -> None:
        request = command.request
        sources = sources_of(request.covers)

        def done(index: BlockIndex | None, error: DriftboxError | None) -> None:
            with self._change:
                self._began_s.pop(request.id, None)
                if index is not None:
                    self._obey(self._scheduler.merge_done(request.id))
                else:
                    assert error is not None
                    log.warning(
                        "merge %d of files on %s failed, its originals are read: %s",
                        request.id,
                        request.node or "any node",
                        error,
                    )
                    self._obey(self._scheduler.merge_failed(request.id))
                    bad = blamed(error, sources) if isinstance(error, StorageError) else None
                    if bad is not None:
                        self._obey(self._scheduler.original_lost(*bad.covers[0]))
                self._change.notify_all()

        with self._change:
            self._began_s[request.id] = self._clock()
        work = MergeWork(folder=self._folders[request.node], sources=sources, out=merged_name(request.id), done=done)
        self._merger_for(request).submit(work)

    def _merger_for(self, request: MergeRequest) -> Merger:
        """The power of two choices among those that reach the node's files."""
        reach = {f"{n:04d}": merger for n, merger in enumerate(self._mergers[request.node])}
        with self._change:
            chosen = reach[pick_merger({name: merger.pending for name, merger in reach.items()}, self._rng)]
            self._chosen[request.id] = chosen
        return chosen

    def _run(self, command: RunMap) -> None:
        if command.attempt >= self.MOST_ATTEMPTS:
            raise JobError(
                f"map task {command.map_id} was lost {command.attempt} times", subject=f"map {command.map_id}",
                remedy="check the disk of its node", code="no_data",
            )  # fmt: skip
        self.map_done(self._run_task(command.map_id, command.attempt))

    @property
    def merged(self) -> int:
        """Merges that are in use."""
        with self._change:
            return self._scheduler.counts()["merged"]


def name_of(fetch: Fetch) -> str:
    """The block file of a fetch."""
    return merged_name(fetch.request) if fetch.request is not None else original_name(*fetch.covers[0])
