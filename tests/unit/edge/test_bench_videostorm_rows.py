"""`bench videostorm` prints the tables it promises: each part runs, at its smallest, and its columns hold what they are named for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import benchmark

POLICIES = ("fair", "sum", "maxmin", "maxmin, printed")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark("bench_videostorm", patch)


@pytest.fixture
def small(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth of the queries and of the cores, and short bursts."""
    for name, value in {"BASE": 10, "BURST": 6, "CORES": 13, "BURSTS_S": (10, 40)}.items():
        monkeypatch.setattr(bench, name, value)


def lines(bench: ModuleType, capsys: pytest.CaptureFixture[str], part: str, *words: object) -> list[str]:
    bench.main(["--part", part, "--seeds", "1", *map(str, words)])
    return capsys.readouterr().out.splitlines()


def rows_of(said: list[str], first: str) -> list[tuple[str, list[str]]]:
    """(policy, the other cells) of the rows behind the heading that begins so, up to an empty line."""
    at = next(i for i, line in enumerate(said) if line.startswith(first))
    rows = []
    for line in said[at + 1 :]:
        found = re.match(r"\s*(?:\d+ )?(maxmin, printed|fair|sum|maxmin)\s+(.*)", line)
        if found is None:
            break
        rows.append((found[1], re.split(r"\s+", found[2].strip())))
    return rows


@pytest.mark.usefixtures("small")
def test_a_burst_is_told_per_length_and_policy(bench: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = lines(bench, capsys, "burst", "--plots", tmp_path)
    head = "burst s policy            quality  of fair  burst of fair   20 s  300 s    late of fair"
    rows = rows_of(said, head)
    assert [policy for policy, _ in rows] == list(POLICIES) * 2
    for policy, (quality, more, burst, burst_more, soon, patient, late, _) in rows:
        assert all(0 <= float(x) <= 1 for x in (quality, burst, soon, patient))
        assert 0 <= float(late.rstrip("%")) <= 100
        assert policy != "fair" or (more, burst_more) == ("+0%", "+0%")
    parts = [re.findall(r"(\d+)%", line) for line in said[said.index(head) + 9 :] if "longest lag" in line]
    assert len(parts) == len(POLICIES)
    assert all(sum(map(int, one)) == pytest.approx(100, abs=1) for one in parts)
    assert (tmp_path / "videostorm_burst.svg").stat().st_size > 0


def test_a_falling_share_is_told_per_policy(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(lines(bench, capsys, "step"), "policy")
    assert [policy for policy, _ in rows] == list(POLICIES)
    for _, (quality, more, inside, lowest, late, changes) in rows:
        assert 0 < float(lowest) <= float(inside) <= float(quality) <= 1
        assert float(more.rstrip("%")) == pytest.approx(100 * (float(quality) / float(rows[0][1][0]) - 1), abs=0.6)
        assert 0 <= float(late.rstrip("%")) <= 100
        assert int(changes) > 0


@pytest.mark.usefixtures("small")
def test_wrong_profiles_are_corrected_to_what_they_are_wrong_by(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(lines(bench, capsys, "wrong"), "policy")
    assert [policy for policy, _ in rows] == list(POLICIES)
    for _, (exact, _, corrected, kept, *more) in rows:
        assert float(kept.rstrip("%")) == pytest.approx(100 * float(corrected) / float(exact), abs=0.2)
        assert [float(late.rstrip("%")) >= 0 for late in more[:3]] == [True] * 3
        mu = dict(zip(more[3::2], more[4::2], strict=True))
        assert {float(k.rstrip(":")): float(v.rstrip(",")) for k, v in mu.items()} == pytest.approx(
            {2.0: 2.0, 0.5: 0.5, 1.0: 1.0}, rel=0.1
        )


def test_the_exact_optimum_is_missed_by_the_greedy_alone(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.gap_to_exact(1, cases=40)
    form = re.compile(r"\s*(.+?)\s+(\d+) below the optimum, by ([\d.]+) on average, ([\d.]+) at most; (\d+) below fair")
    rows = [found.groups() for line in capsys.readouterr().out.splitlines() if (found := form.match(line))]
    assert [row[0] for row in rows] == ["greedy, printed", "greedy, whole segments, guards", "exact beside"]
    assert all(float(mean) <= float(most) for _, _, mean, most, _ in rows)
    assert int(rows[0][1]) > 0
    assert [int(row[4]) for row in rows[1:]] == [0, 0]
    assert rows[2][1:4] == ("0", "0.00", "0.00")


def test_a_decision_is_timed_per_objective_and_capacity(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.decision_time(1, count=300)
    form = re.compile(r"\s*(sum|maxmin)\s+(\d+) cores: ([\d.]+) s \(CPU ([\d.]+) s\); to reach 0\.5 s: ([\d.]+) times faster")
    rows = [found.groups() for line in capsys.readouterr().out.splitlines() if (found := form.match(line))]
    assert [(objective, int(cores)) for objective, cores, *_ in rows] == [
        (objective, cores) for objective in ("sum", "maxmin") for cores in (2000, 6000, 12_000)
    ]
    assert all(float(cpu_s) > 0 and float(faster) > 0 for _, _, _, cpu_s, faster in rows)


def test_searches_are_held_against_measuring_everything(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(bench, capsys, "search")
    at = next(i for i, line in enumerate(said) if line.split()[:2] == ["space", "search"])
    form = re.compile(r"(.{22}) (.{26})\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+) p\s+([\d.]+) p")
    rows = [found.groups() for line in said[at + 1 :] if (found := form.match(line))]
    spaces = {"card, 18": 9, "drawn, 432": 60, "drawn, with interplay": 60}
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [(s, how) for s in spaces for how in bench.SEARCHES]
    for space, _, measured, cost, less, mean, worst in rows:
        assert 0 < int(measured) <= spaces[space.strip()]
        assert float(cost) > 0
        assert float(less) > 1
        assert 0 <= float(mean) <= float(worst) <= 100
