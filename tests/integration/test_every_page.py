"""What holds for every page of a box, in a real browser: the keyboard alone reaches everything and one sees where it is; whatever can be
used has a name; every number has its unit, and every part with numbers a word of explanation; on a phone in the dark axe finds nothing
grave, and nothing is wider than the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.every_page import PAGES, furnished_box, go, signed_in
from tests.support.visits import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with furnished_box(tmp_path) as address:
        yield address


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Visit]:
    with signed_in(browser, url) as opened:
        yield opened


#: What can be used and is seen: [key, name]; the key stays the same when the page draws itself anew.
USABLE = """() => {
  const all = 'a[href], button:not([disabled]), input:not([disabled]), select:not([disabled]), textarea, summary, '
    + '[tabindex="0"], video[controls]';
  const nameOf = (e) => (e.ariaLabel || [...(e.labels || [])].map((l) => l.textContent).join(' ')
    || e.querySelector('title')?.textContent || e.textContent || e.title || '').trim();
  window.keyOf = (e) => [e.tagName, e.getAttribute('href') || e.type || '', nameOf(e).replace(/[0-9]+/g, '#').slice(0, 60)].join(' ');
  const seen = (e) => e.getClientRects().length && e.checkVisibility({ visibilityProperty: true });  // not in what is folded away
  return [...document.querySelectorAll(all)].filter(seen).map((e) => [keyOf(e), nameOf(e)]);
}"""
LISTEN = """() => {
  window.reached = new Set();
  window.unseen = new Set();
  if (window.listening) return;
  window.listening = true;
  document.addEventListener('focusin', (event) => {
    const e = event.target;
    window.reached.add(keyOf(e));
    if (getComputedStyle(e).outlineStyle === 'none' && !e.classList.contains('corner')) window.unseen.add(keyOf(e));
  });
}"""


@pytest.mark.parametrize("part", [0, 1], ids=["watching", "settings"])
def test_the_keyboard_alone_reaches_everything(visit: Visit, part: int) -> None:
    page = visit.page
    addresses = list(PAGES)[:10] if part == 0 else list(PAGES)[10:]
    for address in addresses:
        go(page, address)
        usable = page.evaluate(USABLE)
        nameless = [key for key, name in usable if not name]
        assert nameless == [], (address, nameless)
        page.evaluate(LISTEN)
        wanted = {key for key, _ in usable}
        page.locator("#nav a").first.focus()
        for _ in range(3):
            for _ in range(len(usable) + 15):
                page.keyboard.press("Tab")
            reached = set(page.evaluate("[...window.reached]"))
            if wanted <= reached:
                break
        # What was drawn away meanwhile is no loss; what stands there now must have been reached.
        missing = wanted & {key for key, _ in page.evaluate(USABLE)} - reached
        assert not missing, (address, sorted(missing)[:5])
        unseen = set(page.evaluate("[...window.unseen]")) & wanted
        assert not unseen, (address, "has the focus and does not show it", sorted(unseen)[:5])
    visit.is_sound()


#: [what it is called, the number] for numbers that stand alone in a cell or behind a term.
BARE = r"""() => [...document.querySelectorAll('td, dd')]
  .filter((e) => e.getClientRects().length && /^[\s\d.,]*\d[\s\d.,]*$/.test(e.textContent))
  // With a column of that name each row says its own.
  .filter((e) => ![...(e.closest('table')?.querySelectorAll('th') || [])].some((th) => th.textContent === 'unit'))
  .map((e) => [(e.dataset.heading ?? (e.tagName === 'DD' ? e.previousElementSibling.textContent : '')).trim(), e.textContent.trim(),
    e.closest('tr')?.querySelector('td')?.textContent ?? ''])"""
#: Parts with numbers that say nothing about them.
UNTOLD = r"""() => [...document.querySelectorAll('#page section')]
  .filter((e) => e.getClientRects().length && [...e.querySelectorAll('td, dd, .numbers')].some((c) => /\d/.test(c.textContent)))
  .filter((e) => ![...e.querySelectorAll('p')].some((p) => p.textContent.trim().length > 30)).map((e) => e.textContent.slice(0, 80))"""
UNIT = re.compile(r"\(.+\)|\b0 to 1\b|%|\bMiB\b|\bpx\b|\bms\b|°C|\bdays\b|frames/s|\bGPU-s\b|seconds")
#: Things that are counted: the name is the unit.
COUNTED = {
    "frames", "failed", "restarts", "threads", "retrainings", "below the floor", "pictures", "points", "jobs in it", "objects", "may be",
}  # fmt: skip
#: Numbers that are names, or addresses.
NAMES = {"lane", "plan", "window", "from"}


def test_every_number_has_its_unit_and_a_word(visit: Visit) -> None:
    page, bare, untold = visit.page, set(), []
    for address in PAGES:
        go(page, address)
        if address == "learning":
            page.get_by_role("button", name="Why?").first.click()
            page.wait_for_selector(".why table")
        page.evaluate("document.querySelectorAll('#page details').forEach((d) => { d.open = true; })")
        for name, number, row in page.evaluate(BARE):
            units = " ".join((name, row))  # of a table of facts, the row's first cell says what it is
            if not UNIT.search(units) and name not in COUNTED | NAMES:
                bare.add((address, name, row if row != number else ""))
        untold += [(address, words) for words in page.evaluate(UNTOLD)]
    assert not bare, "\n".join(map(str, sorted(bare)))
    assert untold == []


def test_on_a_phone_in_the_dark_nothing_grave_is_found(browser: Any, url: str) -> None:
    with signed_in(browser, url, width_px=360, color_scheme="dark") as visit:
        for address in PAGES:
            go(visit.page, address)
            visit.page.evaluate("document.querySelectorAll('#page details').forEach((d) => { d.open = true; })")
            visit.fits()
            visit.is_accessible()
        visit.is_sound()
