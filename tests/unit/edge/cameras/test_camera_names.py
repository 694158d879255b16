"""Ids from names that people give: any script, emoji, HTML, nothing at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.units import is_camera_id
from edge.cameras.names import proposed_id


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("Gate", "gate"),
        ("Hof Süd / Straße 3", "hof-sud-strasse-3"),
        ("Łódź øst", "lodz-ost"),
        ("Café №1", "cafe-no1"),
        ("<script>alert(1)</script>", "script-alert-1-script"),
        ("門", "camera"),
        ("\N{DOOR} \N{CAT FACE}", "camera"),
        ("", "camera"),
        ("--__--", "camera"),
        ("../../etc/passwd", "etc-passwd"),
        ("ＧＡＴＥ", "gate"),
        ("a" * 300, "a" * 40),
    ],
)
def test_what_is_proposed(name: str, id: str) -> None:
    assert proposed_id(name) == id


def test_an_id_that_is_taken_gets_a_number() -> None:
    assert proposed_id("Gate", {"gate", "gate-2"}) == "gate-3"


@given(st.lists(st.text(max_size=90), max_size=6))
def test_every_name_gets_an_id_of_its_own(names: list[str]) -> None:
    taken: set[str] = set()
    for name in names:
        found = proposed_id(name, taken)
        assert is_camera_id(found)
        assert found not in taken
        taken.add(found)
