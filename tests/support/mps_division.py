"""A daemon of MPS that divides its GPU, as a table in memory: for tests of what the box makes of it, without processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from configs.errors import EnvironmentLacking
from edge.gpu.mps_daemon import PartitionRow, PartitionTable

CHUNKS = 16
UUID = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"


class Killed(BaseException):
    """The box is gone at this very moment."""


@dataclass
class Division:
    """What the daemon knows; here it outlives the box and the daemon. stop_at: the step ('add', 'rm', 'list') 'before' or 'after' which
    the box is killed, once."""

    root: Path
    gpu: str = UUID
    rows: dict[str, PartitionRow] = field(default_factory=dict)
    made: int = 0
    refuses: bool = False
    stop_at: tuple[str, str] | None = None
    chunks: int = CHUNKS

    def partitions(self) -> PartitionTable:
        self._killed("list", "before")
        taken = sum(row.chunks for row in self.rows.values())
        return PartitionTable(free=self.chunks - taken, taken=taken, sms=8 * self.chunks, rows=tuple(self.rows.values()))

    def add_partition(self, chunks: int) -> str:
        self._killed("add", "before")
        if self.refuses or chunks > self.partitions().free:
            raise EnvironmentLacking(f"no partition of {chunks} chunks")
        self.made += 1
        name = f"Dx/{self.made}="
        self.rows[name] = PartitionRow(id=name, chunks=chunks, used=False)
        self._killed("add", "after")
        return name

    def remove_partition(self, partition: str) -> bool:
        self._killed("rm", "before")
        if self.rows[partition].used:
            return False
        del self.rows[partition]
        self._killed("rm", "after")
        return True

    def use(self, name: str, used: bool = True) -> None:
        self.rows[name] = replace(self.rows[name], used=used)

    def _killed(self, what: str, when: str) -> None:
        if self.stop_at == (what, when):
            self.stop_at = None
            raise Killed


@dataclass
class DividedDaemon(Division):
    """With as much of a life as `edge.gpu.mps.MpsBackend` asks for. lacking: what its start for partitions fails with; recovers: whether
    it comes back by itself after a fault."""

    static: bool = False
    new_enough: bool = True
    lacking: str = ""
    recovers: bool = True
    starts: list[bool] = field(default_factory=list)

    def has_partitions(self) -> bool:
        return self.new_enough

    def start(self) -> None:
        if self.static and self.lacking:
            raise EnvironmentLacking(self.lacking)
        self.starts.append(self.static)

    def stop(self, *, timeout_s: float = 0.0) -> None:
        """Its partitions go with it."""
        self.rows = {}

    def drain(self, *, timeout_s: float) -> bool:
        return True

    def recover(self) -> bool:
        return self.recovers

    def terminate_client(self, pid: int) -> bool:
        return True

    def client_env(self, **settings: Any) -> dict[str, str]:
        return {name: str(value) for name, value in settings.items()}
