"""What `simulate` reads: a trace (JSON), the authors' table (CSV), or the data folder of a box."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from configs.errors import UsageError
from edge.simulate.from_journal import trace_of_data_dir
from scheduler.sim.random_profiles import FRAME_SAMPLING, interpolated_knobs
from scheduler.sim.variations import first_windows
from scheduler.trace import Trace, TraceKnobs, parse_trace, sampling_of_ekya_table, trace_of_ekya_table

#: Lies beside the authors' micro-profiles.
SAMPLING_FILE = "ekya_subsampling_accuracy.csv"
#: Windows made of the authors' table unless asked otherwise; its cities go round.
TABLE_WINDOWS = 10
#: The authors' simulator gives labelling and profiling so many seconds a window and no compute.
TABLE_OVERHEAD_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """overhead_s: what preparation takes unless asked otherwise (see `scheduler.sim.trace_world.simulate`)."""

    trace: Trace
    overhead_s: float | None = None


def read_source(path: Path, windows: int | None = None) -> Source:
    """The trace at `path`, with the first window and `windows` more (None: all; of the authors' table 10).

    A folder is a box's data folder, a name ending in .csv the authors' table, anything else a trace. Raises UsageError, ConfigError or
    StorageError.
    """
    if path.is_dir():
        return Source(trace=_cut(trace_of_data_dir(path), windows))
    text = _text(path)
    if path.suffix.lower() == ".csv":
        table = trace_of_ekya_table(
            text.splitlines(), knobs=_table_knobs(path), windows=windows or TABLE_WINDOWS, go_round=True, subject=path.name
        )
        return Source(trace=table, overhead_s=TABLE_OVERHEAD_S)
    return Source(trace=_cut(parse_trace(text, path.name), windows))


def _cut(trace: Trace, windows: int | None) -> Trace:
    return trace if windows is None else first_windows(trace, windows)


def _table_knobs(path: Path) -> tuple[TraceKnobs, ...]:
    """Column c1 of the authors' sub-sampling table when it lies beside, else the same numbers from here."""
    beside = path.with_name(SAMPLING_FILE)
    sampling = sampling_of_ekya_table(_text(beside).splitlines(), subject=beside.name) if beside.exists() else FRAME_SAMPLING
    return tuple(
        TraceKnobs(name=k.name, demand_pct=k.demand_pct, quality_frac=k.quality_frac)
        for k in interpolated_knobs(sampling=sampling)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is not a UTF-8 text", subject=str(path), remedy="give a trace (JSON) or a table (CSV)"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", subject=str(path), remedy="check the path") from None
