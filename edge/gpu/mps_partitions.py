"""Static partitions of MPS: which there are, whose they are, and which processes are in them (CUDA 13.1 and later).

A daemon that was started for it (`MpsDaemon.static`) divides the GPU's multiprocessors in *chunks* of equal size; a partition is some
chunks that nobody else's kernels run on, and a client is in exactly one. It cannot be resized, and not be removed while it has clients.
How large they are to be says `scheduler.partitions`, who goes where `scheduler.partition_moves`; here is what there is.

What is ours is noted beside the daemon, before a partition is made and after, so that those that a killed box has left behind are found
and removed. All others are left alone: the box then has the chunks that they leave. Nothing of this was verified on a GPU.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from configs.errors import EnvironmentLacking
from configs.files import atomic_write
from edge.gpu.mps_daemon import PartitionTable
from scheduler.partition_moves import Room, is_pressed, last_resort, next_move
from scheduler.partitions import Partition, plan_partitions

log = logging.getLogger("driftbox")

NOTE = "partitions.json"
#: Why a box has given partitions up, for `driftbox doctor`; below its data folder.
GIVEN_UP = Path("mps") / "partitions-given-up.json"


class Divides(Protocol):
    """The part of `edge.gpu.mps_daemon.MpsDaemon` that this needs; each raises EnvironmentLacking."""

    @property
    def gpu(self) -> str: ...

    @property
    def root(self) -> Path: ...

    def partitions(self) -> PartitionTable: ...

    def add_partition(self, chunks: int) -> str: ...

    def remove_partition(self, partition: str) -> bool: ...


class Tenant(Protocol):
    """A process in a partition."""

    @property
    def ended(self) -> bool:
        """It is gone; not only told to go."""


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What stands in the note. ours, others: ids; adding: chunks of the partition that is being made, 0: none is."""

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    adding: int = 0


@dataclass(kw_only=True)
class _Held:
    chunks: int
    tenants: list[tuple[str, Tenant]] = field(default_factory=list)


class StaticPartitions:
    """Ours, of one daemon. Used by one thread at a time (the backend's lock).

    groups: chunks that may be ours; these are the 100 pct of all shares."""

    def __init__(self, daemon: Divides) -> None:
        self._daemon = daemon
        self._held: dict[str, _Held] = {}
        self._others: tuple[str, ...] = ()
        self.groups = 0
        #: How often in a row the daemon made no partition that should have fitted.
        self.refused = 0

    def open(self) -> str:
        """After the daemon's start. Removes what an earlier run of this box left behind, and counts what there is. What is to be told,
        '': nothing. Raises EnvironmentLacking when there is no chunk for us, or the daemon is not understood."""
        table, noted = self._daemon.partitions(), self._read()
        ours = [row.id for row in table.rows if row.id in (*noted.ours, _interrupted(noted, table))]
        for name in ours:
            log.warning("%s: the partition %s of an earlier run is removed", self._daemon.gpu, name)
            self._daemon.remove_partition(name)
        table = self._daemon.partitions()
        self.refused, self._others = 0, tuple(row.id for row in table.rows if row.id not in ours)
        # One whose last client is still dying goes later.
        self._held = {row.id: _Held(chunks=row.chunks) for row in table.rows if row.id in ours}
        self.groups = table.free + sum(held.chunks for held in self._held.values())
        self._write()
        if self.groups < 1:
            raise EnvironmentLacking(
                f"{self._daemon.gpu}: no chunk of multiprocessors is free for partitions", subject=self._daemon.gpu,
                remedy="remove the partitions that nobody needs (echo lspart | nvidia-cuda-mps-control)",
            )  # fmt: skip
        if not self._others:
            return ""
        return f"{len(self._others)} partitions are not this box's and are left alone; shares are parts of the {self.groups} chunks left"

    def pct(self, partition: str) -> float:
        """Of the GPU, as far as it is ours."""
        return 100.0 * self._held[partition].chunks / self.groups

    def rooms(self) -> list[Room]:
        return [
            Room(name=name, groups=held.chunks, jobs=tuple(dict.fromkeys(job for job, _ in held.tenants)))
            for name, held in self._held.items()
        ]

    @property
    def free(self) -> int:
        return self.groups - sum(held.chunks for held in self._held.values())

    def is_right(self, job: str, shares_pct: Mapping[str, float], at: Mapping[str, str], waiting: Collection[str]) -> bool:
        """Whether the job stays where it is."""
        plan = self._plan(shares_pct)
        return next_move(job, plan, self.rooms(), free=self.free, at=at, waiting=waiting) is None

    def is_pressed(self, shares_pct: Mapping[str, float], at: Mapping[str, str], waiting: Collection[str]) -> bool:
        """Whether somebody lacks room."""
        return is_pressed(self._plan(shares_pct), self.rooms(), free=self.free, at=at, waiting=waiting)

    def place(
        self, job: str, shares_pct: Mapping[str, float], at: Mapping[str, str], waiting: Collection[str], *, at_once: bool = False
    ) -> str | None:  # fmt: skip
        """The partition of the job's next process, made where there is none; None: there is no room yet. at_once: then the best there
        is. at: where each job is that moves; waiting: jobs that this said None to. Raises EnvironmentLacking when the daemon makes none
        although it should fit."""
        move = next_move(job, self._plan(shares_pct), self.rooms(), free=self.free, at=at, waiting=waiting)
        if move is None and job in at:
            return at[job]  # a second process of the job, beside the first
        if move is None and at_once:
            move = last_resort(self.rooms(), free=self.free)
        if move is None:
            return None
        return move.beside or self._add(move.groups)

    def largest(self) -> str | None:
        """Where somebody can always go; None: there is no partition."""
        move = last_resort(self.rooms(), free=0)
        return move.beside if move is not None else None

    def enter(self, partition: str, job: str, tenant: Tenant) -> None:
        self._held[partition].tenants.append((job, tenant))

    def tidy(self) -> None:
        """Removes what all processes have left. One that cannot be removed yet stays, and is taken again by whoever it fits."""
        for name, held in list(self._held.items()):
            held.tenants = [(job, tenant) for job, tenant in held.tenants if not tenant.ended]
            if not held.tenants:
                self._remove(name)

    def close(self) -> None:
        """The processes have ended; the daemon is about to."""
        for held in self._held.values():
            held.tenants = []
        self.tidy()

    def _plan(self, shares_pct: Mapping[str, float]) -> tuple[Partition, ...]:
        return plan_partitions(shares_pct, groups=self.groups)

    def _add(self, chunks: int) -> str:
        self._write(adding=chunks)
        try:
            made = self._daemon.add_partition(chunks)
        except EnvironmentLacking:
            self.refused += 1
            self._write()
            raise
        self.refused = 0
        self._held[made] = _Held(chunks=chunks)
        self._write()
        return made

    def _remove(self, name: str) -> None:
        try:
            gone = self._daemon.remove_partition(name)
        except EnvironmentLacking as error:
            log.warning("%s", error)
            return
        if gone:
            del self._held[name]
            self._write()

    # --- the note -----------------------------------------------------------------------------------------------------

    def _read(self) -> Noted:
        try:
            found = Noted(**json.loads((self._daemon.root / NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return Noted()
        return found

    def _write(self, *, adding: int = 0) -> None:
        noted = Noted(ours=tuple(self._held), others=self._others, adding=adding)
        atomic_write(self._daemon.root / NOTE, json.dumps(asdict(noted)).encode())


def _interrupted(noted: Noted, table: PartitionTable) -> str:
    """The partition that was being made when the box was killed: the only unknown one of that size, without clients. Where it is not
    certain none is: somebody else may have made it."""
    known = {*noted.ours, *noted.others}
    fitting = [row.id for row in table.rows if row.id not in known and row.chunks == noted.adding and not row.used]
    return fitting[0] if len(fitting) == 1 else ""
