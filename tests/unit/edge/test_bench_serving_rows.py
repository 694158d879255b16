"""`bench serving` prints the tables it promises: each part runs, at its smallest, and its columns hold what they are named for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import benchmark

POLICIES = ("orloj", "clockwork", "edf")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark("bench_serving", patch)


def lines(bench: ModuleType, capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    bench.main([*map(str, words), "--policies", ",".join(POLICIES)])
    return capsys.readouterr().out.splitlines()


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def test_the_cards_table_has_a_row_per_policy_and_a_rate_per_objective(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    some = ("bimodal sd 1", "8 modes", "static ResNet")
    monkeypatch.setattr(bench, "WORKLOADS", [w for w in bench.WORKLOADS if w.name in some])
    said = lines(bench, capsys, "--part", "card", "--count", 40, "--seeds", 2, "--plots", tmp_path)
    assert "SLO = 1.5 / 2 / 3 / 4 / 5 x p99" in said[0]
    for name in some:
        rows = said[said.index(name) + 1 :][: len(POLICIES)]
        assert [row.split()[0] for row in rows] == list(POLICIES)
        for row in rows:
            ours, bracket, published = row.split(maxsplit=1)[1].partition("[")
            assert len(numbers(ours)) == 5
            assert all(0 <= rate <= 100 for rate in numbers(ours))
            assert bool(bracket) == (row.split()[0] != "edf"), "the thesis has no such column"
            assert len(numbers(published.rstrip("]"))) == (5 if bracket else 0)
    assert sum(line.startswith("SLO ") and "over the best baseline" in line for line in said) == 5
    assert any("dynamic cells: best in" in line and "of 10" in line for line in said)
    assert any(line.startswith(("reached: static loads", "MISSED: static loads")) for line in said)
    assert (tmp_path / "serving_card.svg").stat().st_size > 0


def test_no_policy_finishes_more_of_the_cascade_than_is_possible(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "CASCADE_LOADS", (1.0, 1.5))
    monkeypatch.setattr(bench, "CASCADE_SLOS", (1.5, 3.0))
    said = lines(bench, capsys, "--part", "cascade", "--count", 40, "--seeds", 2, "--plots", tmp_path)
    heads = [i for i, line in enumerate(said) if line.split() == ["load", "SLO", *POLICIES, "possible", "lead"]]
    assert [said[i - 1].partition(":")[0] for i in heads] == ["whole frames", "pictures and crops"]
    for i in heads:
        rows = [numbers(line.replace("+-", " ")) for line in said[i + 1 : i + 5]]
        assert [row[:2] for row in rows] == [[1.0, 1.5], [1.0, 3.0], [1.5, 1.5], [1.5, 3.0]]
        for _, _, *rates, possible, lead, half in rows:
            assert len(rates) == len(POLICIES)
            assert all(0 <= rate <= possible + 0.05 for rate in rates)
            assert lead == pytest.approx(rates[0] - max(rates[1:]), abs=0.11)
            assert half >= 0
    assert sum("best or within 1 point of best in" in line and "of 4 cells" in line for line in said) == 2
    assert (tmp_path / "serving_cascade.svg").stat().st_size > 0


def test_a_decision_is_timed_for_each_policy(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(bench, capsys, "--part", "cost")
    form = re.compile(
        r"(?:(reached|MISSED): )?(\w+), (\d) applications: ([\d.]+) ms a decision \(([\d.]+) of 0\.3 ms\), ([\d.]+) ms an"
    )
    rows = [found.groups() for line in said if (found := form.match(line.strip()))]
    assert [(name, apps) for _, name, apps, *_ in rows] == [(name, apps) for name in POLICIES for apps in ("1", "8")]
    for mark, name, _, decide_ms, part, submit_ms in rows:
        assert (mark is not None) == (name == "orloj")
        assert mark is None or (mark == "reached") == (float(part) <= 1.0)
        assert float(part) == pytest.approx(float(decide_ms) / 0.3, abs=0.01)
        assert float(decide_ms) > 0
        assert float(submit_ms) > 0
