"""The Queries page in a real browser: graph, knobs, quality over demand, and what a viewer sees of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.learning_pages import Served, as_viewer, served
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def box() -> Iterator[Served]:
    with served() as running:
        yield running


def test_graph_answers_and_quality_over_demand(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/queries/gate", ready="svg.dag") as visit:
        page = visit.page
        expect(page.locator("svg.dag rect")).to_have_count(3)
        expect(page.locator("svg.dag")).to_have_attribute("aria-label", re.compile("track takes decode"))
        expect(page.locator("svg.plot")).to_have_count(3)
        expect(page.get_by_role("table", name="Steps of entrance").locator("tbody tr")).to_have_count(3)
        expect(page.get_by_role("table", name="Newest answer of entrance")).to_contain_text('"in":3', use_inner_text=True)
        expect(page.locator("#page")).to_contain_text("9 of 18 settings tried", use_inner_text=True)
        visit.is_accessible()
        visit.save("queries.png")
        visit.is_sound()


def test_a_knob_is_turned(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/queries/gate", ready="svg.dag") as visit:
        page = visit.page
        page.get_by_label("decode.fps of entrance").select_option("2")
        page.wait_for_selector("#announcement:has-text('decode.fps of entrance is 2 now')")
        assert box.fakes.queries.fps == 2
        assert box.fakes.queries.by == "local"
        visit.is_sound()


def test_a_viewer_turns_nothing_and_a_phone_is_wide_enough(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/queries/gate", ready="svg.dag", width_px=360) as visit:
        visit.fits()
        page = as_viewer(visit)
        page.wait_for_selector("svg.dag")
        expect(page.get_by_label("decode.fps of entrance")).to_have_count(0)
