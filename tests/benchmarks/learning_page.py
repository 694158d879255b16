"""The part of docs/learning.md that `driftbox bench learning --page` writes: numbers beside anchors, every camera, every window."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

BEGIN = "<!-- bench learning: what follows is written by `driftbox bench learning --page` -->"
END = "<!-- bench learning: end -->"
MARKS = {True: "reached", False: "**MISSED**", None: "-"}


class Row(Protocol):
    """As in `bench_learning`."""

    @property
    def what(self) -> str: ...
    @property
    def anchor(self) -> str: ...
    @property
    def to_reach(self) -> str: ...
    @property
    def measured(self) -> str: ...
    @property
    def ok(self) -> bool | None: ...


class Table(Protocol):
    """As in `bench_learning`."""

    sets: list[str]

    def of(self, scenario: str, policy: str) -> dict[str, Any] | None: ...
    def best_uniform(self, scenario: str) -> str: ...
    def gaps(self) -> dict[str, float]: ...


def check(page: Path) -> None:
    """Ends the program when the page cannot be written: before hours of work."""
    _split(page.read_text(encoding="utf-8") if page.is_file() else "", page)


def write(page: Path, table: Table, rows: Sequence[Row], *, took_s: float, plots: Sequence[tuple[str, Path]]) -> None:
    """Writes the part between the markers anew; every other byte of the page stays."""
    before, after = _split(page.read_text(encoding="utf-8"), page)
    shown = [(title, Path(os.path.relpath(path, page.parent)).as_posix()) for title, path in plots]
    body = "\n".join(text(table, rows, took_s=took_s, plots=shown))
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


def _split(content: str, page: Path) -> tuple[str, str]:
    """What stands before and after the written part."""
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest:
        raise SystemExit(f"{page} has no place for the table: put these two lines into it\n{BEGIN}\n{END}")
    return before, after


def text(
    table: Table,
    rows: Sequence[Row],
    *,
    took_s: float,
    plots: Sequence[tuple[str, str]],
    today: str = "",
    on: str = "",
) -> Iterator[str]:
    """The lines. plots: (title, path relative to the page)."""
    date = today or datetime.date.today().isoformat()
    yield f"Written on {date}, on {on or machine()}: {took_s / 60:.0f} minutes of runs."
    yield ""
    yield "| what | anchor | to reach | measured | |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield _line([row.what, row.anchor, row.to_reach, row.measured, MARKS[row.ok]])
    for title, path in plots:
        yield ""
        yield f"![F1 over time, {title}]({path})"
    for scenario in table.sets:
        yield ""
        yield from _set(table, scenario)


def _set(table: Table, scenario: str) -> Iterator[str]:
    policies = ("lookahead", "thief-repeat", table.best_uniform(scenario), "no-retrain")
    found = {policy: answer for policy in policies if (answer := table.of(scenario, policy))}
    yield from _windows(scenario, found)
    yield ""
    yield from _cameras(scenario, found, table.gaps())


def _windows(scenario: str, found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    count = max(len(values) for answer in found.values() for values in answer["f1_per_window"].values())
    yield _line([f"{scenario}, mean F1", "all", *(f"window {n}" for n in range(count)), "retrainings", "admitted", "GPU-s"])
    yield "|---" * (count + 5) + "|"
    for policy, answer in found.items():
        per_window = [[values[n] for values in answer["f1_per_window"].values()] for n in range(count)]
        means = [f"{sum(values) / len(values):.3f}" for values in per_window]
        counts = [str(answer["retrainings"]), str(answer["admitted"]), f"{answer['gpu_s']:.0f}"]
        yield _line([policy, f"{answer['mean_f1']:.3f}", *means, *counts])


def _cameras(scenario: str, found: Mapping[str, Mapping[str, Any]], gaps: Mapping[str, float]) -> Iterator[str]:
    """gap: what the edge model as delivered misses of the golden one's F1."""
    yield _line([f"{scenario}, mean F1 per camera", *found, "gap"])
    yield "|---" * (len(found) + 2) + "|"
    for video in next(iter(found.values()))["videos"]:
        yield _line([video, *(f"{answer['videos'][video]:.3f}" for answer in found.values()), f"{gaps[video]:.3f}"])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """In words, without a name that tells whose it is."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{os.cpu_count()} cores ({model}), {gpu}"
