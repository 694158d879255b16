"""The section of `bench gpu` for static partitions of MPS: does the daemon say what `edge.gpu.mps_daemon` reads, does a client see the
multiprocessors of its partition, do two halves leave each other alone, and can a partition be removed while it is used."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from configs.errors import EnvironmentLacking
from edge.gpu.mps_daemon import CONTROL, MpsDaemon, has_partitions
from edge.gpu.mps_partitions import StaticPartitions

#: Says how many multiprocessors it sees, then, for each line that it is told, how long a fixed piece of work took.
CLIENT = """
import sys, time, torch
a = torch.rand(4096, 4096, device="cuda")
def work():
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(20):
        torch.mm(a, a)
    torch.cuda.synchronize()
    return time.perf_counter() - started
work()
print(torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
for line in sys.stdin:
    print(work(), flush=True)
"""
#: Seconds that a client may take to end.
END_S = 20.0
Add = Callable[..., None]


class Client:
    """A process in a partition. Context manager."""

    def __init__(self, daemon: MpsDaemon, partition: str, command: Sequence[str]) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")} | daemon.client_env(partition=partition)
        self._process = subprocess.Popen(
            [*command], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def go(self) -> None:
        self._process.stdin.write("go\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def said(self) -> str:
        """Its next line. EnvironmentLacking: it has ended."""
        line = self._process.stdout.readline().strip()  # type: ignore[union-attr]
        if not line:
            complaint = self._process.stderr.read().strip().splitlines()  # type: ignore[union-attr]
            raise EnvironmentLacking(f"a client in a partition ended: {complaint[-1] if complaint else 'no word'}")
        return line

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


def measure(
    add: Add, gpu: str, *, control: Sequence[str] = CONTROL, command: Sequence[str] = (sys.executable, "-c", CLIENT)
) -> None:
    """gpu: its UUID. add: `gpu_sections.Table.add`."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        daemon = MpsDaemon(Path(folder), gpu=gpu, owner="bench", control=control, static=True)
        version = daemon.version()
        if not has_partitions(version):
            add("static partitions of MPS", f"not in this driver: MPS {version or 'says no version'}, they came with 13010")
            return
        try:
            daemon.start()
            _halves(add, daemon, command)
        finally:
            daemon.stop()


def _halves(add: Add, daemon: MpsDaemon, command: Sequence[str]) -> None:
    ours = StaticPartitions(daemon)
    ours.open()
    table = daemon.partitions()
    chunk_sms = table.sms // max(1, table.free + table.taken)
    add("chunks of multiprocessors", f"{ours.groups} of {chunk_sms}, of {table.sms} in all")
    shares = {"a": 50.0, "b": 50.0}
    with ExitStack() as running:
        clients, halves, made_ms = [], [], []
        for job in shares:
            started_s = time.perf_counter()
            half = ours.place(job, shares, {}, ())
            made_ms.append(1000.0 * (time.perf_counter() - started_s))
            assert half is not None
            client = running.enter_context(Client(daemon, half, command))
            ours.enter(half, job, client)
            clients.append(client)
            halves.append(half)
        add("a partition is made in", f"{max(made_ms):.1f} ms")
        for half, client in zip(halves, clients, strict=True):
            seen, wanted = int(client.said()), chunk_sms * (ours.groups // 2)
            add(f"a client of {ours.pct(half):.0f} % sees", f"{seen} multiprocessors", target=str(wanted), met=seen == wanted)
        ratio = _together(clients) / _together(clients[:1])
        add("two halves at once against one alone", f"{ratio:.2f}x", target="<= 1.2x (disjoint)", met=ratio <= 1.2)
        kept = not daemon.remove_partition(halves[0])
        add("a partition in use is not removed", "it stays" if kept else "it went", target="it stays", met=kept)
    ours.tidy()
    left = len(daemon.partitions().rows)
    add("partitions after their clients have gone", str(left), target="0", met=left == 0)


def _together(clients: Sequence[Client]) -> float:
    """Median seconds of the slowest, when all work at the same time."""
    seen = []
    for _ in range(5):
        for client in clients:
            client.go()
        seen.append(max(float(client.said()) for client in clients))
    return statistics.median(seen)
