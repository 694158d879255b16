"""Are shares kept? Real torch jobs in lanes of the CPU backend, on this machine, now.

    python tests/benchmarks/bench_shares.py [--seconds 60] [--shares 50,30,20] [--fps 10] [--mode capped] [--no-checkpoints]

Three jobs: `train` (forward, backward and step of a small convolutional detector, one micro-batch per iteration), `golden` (a
forward pass of about a second, split by `checkpoint` between layers) and `infer` (a small model at a camera's frame rate: it
wants to run only when a frame is there; --fps 0: always). Printed per job: promised, received, backlogged, the longest
unsplittable piece, the seconds its thread was ready but the machine gave it no core (Linux), and the worst deviation in
percentage points over *all* 10 s spans of the run (exact, not sampled). A job that is not backlogged all the time may lawfully
receive less; and what the machine does not deliver, no pacing can: compare deviations with the seconds without a core.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from configs.errors import JobCancelled
from edge.clock import SystemClock
from edge.gpu.base import Lane
from edge.gpu.lanes import LaneBackend, usable_cores
from scheduler.pacing import worst_deviation_pct

SPAN_S = 10.0
Body = Callable[[Lane, "LongestPiece", bool], None]


def conv_stack(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers)


class LongestPiece:
    """CPU time of the calling thread between two charges, the largest."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._since_s = 0.0

    def begin(self) -> None:
        self._since_s = time.thread_time()

    def end(self) -> None:
        now_s = time.thread_time()
        self.worst_s = max(self.worst_s, now_s - self._since_s)
        self._since_s = now_s


def train(lane: Lane, piece: LongestPiece, checkpoints: bool) -> None:
    model = conv_stack(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.rand(2, 3, 96, 160)
    while True:
        with lane.iteration():
            piece.begin()
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            piece.end()


def golden(lane: Lane, piece: LongestPiece, checkpoints: bool) -> None:
    model = conv_stack(64, 12).eval()

    def between_layers(*_: object) -> None:
        piece.end()
        lane.checkpoint()
        piece.begin()

    for layer in model if checkpoints else ():
        layer.register_forward_hook(between_layers)
    image = torch.rand(1, 3, 192, 320)
    with torch.inference_mode():
        while True:
            with lane.iteration():
                piece.begin()
                model(image)
                piece.end()


def infer(lane: Lane, piece: LongestPiece, checkpoints: bool, fps: float) -> None:
    model = conv_stack(8, 3).eval()
    image = torch.rand(1, 3, 180, 320)
    next_s = time.monotonic()
    with torch.inference_mode():
        while True:
            if fps > 0:
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s = max(next_s + 1.0 / fps, time.monotonic())
            with lane.iteration():
                piece.begin()
                model(image)
                piece.end()


def core_wait_s(thread: threading.Thread) -> float:
    """Seconds that the thread was ready to run and waited for a core since its start; NaN where the system does not say."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--shares", default="50,30,20")
    parser.add_argument("--fps", type=float, default=10.0)
    parser.add_argument("--mode", default="capped")
    parser.add_argument("--no-checkpoints", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bodies: dict[str, Body] = {"train": train, "golden": golden, "infer": partial(infer, fps=args.fps)}
    backend = LaneBackend(mode=args.mode, clock=SystemClock())
    pieces = {job: LongestPiece() for job in bodies}
    threads = {
        job: threading.Thread(target=until_cancelled, args=(body, backend.open_lane(job), pieces[job], not args.no_checkpoints))
        for job, body in bodies.items()
    }
    backend.set_shares(dict(zip(bodies, (float(s) for s in args.shares.split(",")), strict=True)))
    for thread in threads.values():
        thread.start()
    time.sleep(3.0)  # the first passes allocate memory
    started_s = time.monotonic()
    waited_s = {job: core_wait_s(thread) for job, thread in threads.items()}
    time.sleep(args.seconds)
    report = backend.report(time.monotonic() - started_s)
    print(f"{args.seconds:.0f} s, mode {args.mode}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}")
    print("job    promised received backlog piece_ms  iter/s no_core_s  worst over all 10 s spans")
    for job, entry in report.items():
        low, high = worst_deviation_pct(backend.ledger(job), SPAN_S, from_s=started_s)
        print(
            f"{job:6} {entry.promised_pct:8.1f} {entry.received_pct:8.1f} {entry.backlogged_frac:7.2f} "
            f"{1000 * pieces[job].worst_s:8.0f} {entry.iterations / entry.span_s:7.1f} "
            f"{core_wait_s(threads[job]) - waited_s[job]:9.1f}  {low:+.2f} .. {high:+.2f} pp"
        )
    for job in bodies:
        backend.cancel(job)
    for thread in threads.values():
        thread.join()


def until_cancelled(body: Body, lane: Lane, piece: LongestPiece, checkpoints: bool) -> None:
    try:
        body(lane, piece, checkpoints)
    except JobCancelled:
        return


if __name__ == "__main__":
    main()
