"""The Learning page in a real browser: the list, a camera, why a plan is as it is, before and after."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.learning_pages import Served, served
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser


@pytest.fixture
def box() -> Iterator[Served]:
    with served() as running:
        yield running


def test_the_list_and_why_a_plan_is_as_it_is(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/learning", ready="table") as visit:
        page = visit.page
        page.wait_for_selector("text=Why?")
        expect(page.locator("tbody tr").first).to_have_text(re.compile(r"^Camera 0 \(gate\)"), use_inner_text=True)
        expect(page.locator("tbody tr").first).to_contain_text("drifted", use_inner_text=True)
        page.get_by_role("button", name="Why?", exact=True).click()
        why = page.locator(".why")
        why.wait_for()
        for told in ("of expected quality if the box had it", "optimal", "no-retrain"):
            expect(why).to_contain_text(told, use_inner_text=True)
        jobs = page.get_by_role("table", name="The value of one quantum").locator("tbody tr")
        expect(jobs).to_have_count(4)
        expect(jobs.first).to_contain_text("inference", use_inner_text=True)
        page.get_by_text("Earlier plans").first.click()
        expect(page.get_by_role("button", name="Why plan 6?")).to_have_count(0)  # too old to be explained
        visit.is_accessible()
        visit.save("learning-why.png")
        visit.is_sound()


def test_a_camera_says_what_it_learned_and_how_well_that_was_predicted(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/learning/gate", ready="figure") as visit:
        page = visit.page
        facts = ("6 of 7 windows; 80 % should be", "cost 1.08 times what was said", "head on 40 % of a GPU, epoch 5 of 12")
        for fact in facts:
            expect(page.locator("#page")).to_contain_text(fact, use_inner_text=True)
        expect(page.locator("svg.plot .band")).to_have_count(1)
        page.get_by_text("window 5: quality predicted").click()
        expect(page.locator("details[open]")).to_contain_text("promised 0.66 for 18.0 GPU-s, became 0.63", use_inner_text=True)
        expect(page.get_by_role("table", name="Signals of drift")).to_contain_text("above", use_inner_text=True)
        visit.is_accessible()
        visit.save("learning.png")
        visit.is_sound()


def test_before_and_after_is_asked_for_and_shown_with_boxes_and_words(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/learning/gate", ready="figure") as visit:
        page = visit.page
        assert box.fakes.learning.compared == 0
        page.get_by_role("button", name="Compare gate-000002 with gate-000001").click()
        page.wait_for_selector(".pairs")
        assert box.fakes.learning.compared == 1
        page.wait_for_function("() => document.querySelector('.pairs img')?.naturalWidth === 160")
        expect(page.locator(".pairs figure")).to_have_count(4)
        expect(page.locator(".pairs figure").nth(1).locator("rect")).to_have_count(3)  # a label and two boxes
        expect(page.locator(".pairs figcaption").nth(1)).to_contain_text("1 right, 1 wrong, 0 missed", use_inner_text=True)
        visit.is_accessible()
        visit.save("before-after.png")
        visit.is_sound()


def test_it_fits_a_phone(browser: Any, box: Served) -> None:
    for hash in ("#/learning", "#/learning/gate"):
        with Visit(browser, box.url, hash, ready="table", width_px=360) as visit:
            visit.fits()


def test_an_unknown_camera_is_told(browser: Any, box: Served) -> None:
    with Visit(browser, box.url, "#/learning/nobody", ready="[role=status]:has-text('no camera has the id')") as visit:
        expect(visit.page.locator("#page")).to_contain_text("no camera has the id 'nobody'", use_inner_text=True)
