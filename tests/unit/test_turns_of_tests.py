"""Which tests run in one go: files, and Ray's together and first; a test on Ray that is not among them is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.turns import NEED_RAY, RAY, in_turns, turn_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("nodeid", "turn"),
    [
        ("tests/contract/test_fleet_engines.py::test_x[ray]", RAY),
        ("tests/contract/test_fleet_engines.py::test_x[ray-CPU]", RAY),
        ("tests/contract/test_fleet_engines.py::test_x[0.5-ray]", RAY),
        ("tests/contract/test_fleet_engines.py::test_x[local]", "tests/contract/test_fleet_engines.py"),
        ("tests/unit/test_x.py::test_an_array[array-x]", "tests/unit/test_x.py"),
        ("tests/unit/test_x.py::test_ray", "tests/unit/test_x.py"),
        *((f"{start}test_any" if start.endswith("::") else start, RAY) for start in NEED_RAY),
    ],
)
def test_a_file_or_ray(nodeid: str, turn: str) -> None:
    assert turn_of(nodeid) == turn


def test_those_that_are_named_are_there() -> None:
    for start in NEED_RAY:
        path, _, test = start.partition("::")
        assert f"def {test}" in (ROOT / path).read_text()


class Item:
    """As much of a collected test as its turn looks at."""

    def __init__(self, path: str, name: str, *, marks: tuple[str, ...] = (), timeout_s: float | None = None) -> None:
        self.nodeid = f"{path}::{name}"
        self._marks = {mark: getattr(pytest.mark, mark).mark for mark in marks}
        if timeout_s is not None:
            self._marks["timeout"] = pytest.mark.timeout(timeout_s).mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


def test_ray_comes_first_and_what_waits_is_spread_the_longest_first() -> None:
    items = [
        Item("tests/unit/test_a.py", "one"),
        Item("tests/integration/test_short.py", "one"),
        Item("tests/unit/test_b.py", "one"),
        Item("tests/integration/test_long.py", "one", timeout_s=900.0),
        Item("tests/integration/test_ray_engine.py", "one", marks=("ray",)),
        Item("tests/contract/test_fleet_engines.py", "one[ray]", marks=("ray",)),
        Item("tests/unit/test_a.py", "two"),
    ]
    order = [item.nodeid.rpartition("/")[2] for item in in_turns(items)]  # type: ignore[arg-type]
    assert order[:2] == ["test_ray_engine.py::one", "test_fleet_engines.py::one[ray]"]
    assert order.index("test_long.py::one") < order.index("test_short.py::one")
    assert order.index("test_a.py::two") == order.index("test_a.py::one") + 1


def test_a_test_on_ray_that_nobody_put_there_is_told() -> None:
    with pytest.raises(pytest.UsageError, match=r"tests/support/turns\.py"):
        in_turns([Item("tests/integration/test_new.py", "one", marks=("ray",))])  # type: ignore[list-item]
