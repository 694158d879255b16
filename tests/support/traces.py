"""Small traces made by hand or by chance, for the simulator's tests."""

from __future__ import annotations

import numpy as np

from scheduler.trace import Trace, TraceKnobs, TraceOption, TraceStream, TraceWindow

KNOBS = (TraceKnobs(name="every", demand_pct=20, quality_frac=1.0), TraceKnobs(name="1/2", demand_pct=10, quality_frac=0.8))


def option(
    name: str, measured: float, cost_gpu_s: float = 10.0, predicted: float | None = None, way: tuple[float, ...] = ()
) -> TraceOption:
    """predicted None: exact. way: quality after each epoch."""
    return TraceOption(
        name=name, cost_gpu_s=cost_gpu_s, predicted_quality=measured if predicted is None else predicted,
        measured_quality=measured, epochs=len(way) or None, epoch_quality=way,
    )  # fmt: skip


def window(number: int, base: float, *options: TraceOption, start: float | None = None) -> TraceWindow:
    return TraceWindow(window=number, base_quality=base, start_quality=base if start is None else start, options=options)


def one_stream(*windows: TraceWindow, id: str = "a", window_s: float = 100.0) -> Trace:
    stream = TraceStream(id=id, knobs=KNOBS, windows=windows)
    return Trace(source="by hand", window_s=window_s, golden_gpu_s=0.0, streams=(stream,))


def random_trace(seed: int = 0, *, streams: int = 4, windows: int = 4, options: int = 3, window_s: float = 100.0) -> Trace:
    """Every window offers the same option names with gains and costs of its own; every third prediction is far off."""
    rng = np.random.default_rng(seed)

    def offered(base: float) -> tuple[TraceOption, ...]:
        made = []
        for n in range(options):
            measured = float(np.clip(base + rng.uniform(-0.05, 0.3), 0, 1))
            error = float(rng.normal(0, 0.15)) if rng.random() < 1 / 3 else 0.0
            way = tuple(float(q) for q in np.linspace(base, measured, n + 3)[1:])
            made.append(option(f"c{n}", measured, float(rng.uniform(4, 30)), float(np.clip(measured + error, 0, 1)), way))
        return tuple(made)

    def stream(id: str) -> TraceStream:
        bases = [float(q) for q in rng.uniform(0.4, 0.7, windows + 1)]
        made = tuple(window(n, base, *(offered(base) if n else ())) for n, base in enumerate(bases))
        return TraceStream(id=id, knobs=KNOBS, windows=made)

    return Trace(source="by chance", window_s=window_s, streams=tuple(stream(f"s{n}") for n in range(streams)))
