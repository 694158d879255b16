"""The section of `bench gpu` for static partitions, against the stand-in for MPS: what it says of a daemon that does as documented, and
of one that does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from configs.errors import EnvironmentLacking
from tests.benchmarks.gpu_static_partitions import measure

pytestmark = pytest.mark.slow
FAKE = (sys.executable, "-m", "edge.gpu.fake_mps")
#: As the real one, without a GPU: it sees as many of 128 multiprocessors as its partition has.
CLIENT = """
import sys
from edge.gpu.fake_mps import FakeClient
print(round(1.28 * FakeClient().thread_pct), flush=True)
for line in sys.stdin:
    print(0.01, flush=True)
"""

Rows = dict[str, tuple[str, bool | None]]


def measured(monkeypatch: pytest.MonkeyPatch, flaws: str = "") -> Rows:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    monkeypatch.setenv("FAKE_MPS", flaws)
    rows: Rows = {}

    def add(what: str, value: str, *, target: str = "-", met: bool | None = None) -> None:
        rows[what] = (value, met)

    measure(add, "GPU-fake", control=FAKE, command=(sys.executable, "-c", CLIENT))
    return rows


def test_a_daemon_that_does_as_documented_reaches_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(monkeypatch)
    assert rows["chunks of multiprocessors"][0] == "16 of 8, of 128 in all"
    assert rows["a client of 50 % sees"][0] == "64 multiprocessors"
    assert [what for what, (_, met) in rows.items() if met is False] == []
    assert sum(met is True for _, met in rows.values()) == 4


def test_an_old_driver_is_said_and_no_target_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, "old") == {
        "static partitions of MPS": ("not in this driver: MPS 12080, they came with 13010", None)
    }


def test_partitions_that_stay_miss_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, "no-rm")["partitions after their clients have gone"] == ("2", False)


def test_a_daemon_that_makes_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentLacking, match="no partition of 8 chunks"):
        measured(monkeypatch, "no-add")
