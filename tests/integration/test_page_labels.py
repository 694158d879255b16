"""The Labels page in a real browser: unsure first, keys, boxes drawn and typed, conflicts, undo, and what a viewer sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge.labels import BoxIn, LabelsIn, SampleName
from tests.support.learning_pages import Served, as_viewer, served
from tests.support.visits import Visit, expect

pytestmark = pytest.mark.browser

FIRST, SECOND = (SampleName(camera="gate", window=1, seq=seq) for seq in (0, 1))


@pytest.fixture
def box() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def visit(browser: Any, box: Served) -> Iterator[Visit]:
    with Visit(browser, box.url, "#/labels", ready=".review img") as opened:
        yield opened
        opened.is_sound()


def line(visit: Visit, words: str) -> None:
    visit.page.wait_for_selector(f'#label-line:has-text("{words}")')


def test_a_picture_with_its_boxes_and_its_doubts(visit: Visit) -> None:
    page = visit.page
    line(visit, f"1 of 3+: {FIRST}")
    page.wait_for_function("() => document.querySelector('.review img')?.naturalWidth === 160")
    expect(page.locator(".review .golden")).to_have_count(1)
    expect(page.locator(".review .unsure")).to_have_count(1)
    expect(page.locator("fieldset.unsure")).to_contain_text("score is 0.45", use_inner_text=True)
    visit.is_accessible()
    visit.save("labels.png")


def test_by_keys_alone(visit: Visit, box: Served) -> None:
    page = visit.page
    page.locator(".review").focus()
    for key in ("y", "3"):  # the unsure person is a label, and it is a car
        page.keyboard.press(key)
    line(visit, "changed, not saved")
    page.keyboard.press("a")
    line(visit, str(SECOND))
    saved = box.fakes.labels.get(FIRST)
    assert saved.state == "person"
    assert [b.class_name for b in saved.boxes] == ["car", "car"]
    page.keyboard.press("i")
    line(visit, "gate/000001/000000002")
    assert box.fakes.labels.get(SECOND).state == "ignored"
    page.keyboard.press("p")
    line(visit, "taken out by a person")
    page.keyboard.press("u")
    page.wait_for_selector("#announcement:has-text('in force again')")
    assert box.fakes.labels.get(SECOND).state == "golden"
    page.keyboard.press("s")
    page.keyboard.press("x")
    expect(page.locator(".review .golden, .review .person")).to_have_count(0)


def test_statistics_say_what_the_corrections_say_of_the_large_model(visit: Visit, box: Served) -> None:
    page = visit.page
    line(visit, str(FIRST))
    box.fakes.labels.put(FIRST, LabelsIn(boxes=(BoxIn(class_name="bus", xyxy=(10, 20, 60, 50)),)))
    page.get_by_text("Statistics of the labels").click()
    by_class = page.get_by_role("table", name="Labels by camera and class")
    expect(by_class.get_by_role("row", name="gate car")).to_contain_text(
        "1 of 1 wrong, 0 of 0 missed (1 picture)", use_inner_text=True
    )
    expect(by_class.get_by_role("row", name="gate bus")).to_contain_text("1 of 1 missed", use_inner_text=True)
    expect(by_class.get_by_role("row", name="gate person")).to_contain_text("nobody has looked", use_inner_text=True)
    visit.is_accessible()
    visit.save("labels-statistics.png")


def test_keys_do_nothing_outside_of_the_picture(visit: Visit, box: Served) -> None:
    page = visit.page
    page.get_by_label("Camera", exact=True).focus()
    page.keyboard.press("i")
    page.keyboard.press("a")
    assert box.fakes.labels.get(FIRST).state == "golden"


def test_a_box_is_drawn_with_the_mouse_and_moved_by_numbers(visit: Visit, box: Served) -> None:
    page = visit.page
    page.wait_for_function("() => document.querySelector('.review img')?.naturalWidth === 160")
    page.wait_for_selector('#summary:has-text("cameras live")')  # nothing moves on the page from here on
    page.wait_for_selector("select[aria-label=Camera] option[value=hall]", state="attached")
    stage = page.locator(".review img")
    stage.scroll_into_view_if_needed()
    place = stage.bounding_box()
    scale = place["width"] / 160
    page.mouse.move(place["x"] + 80 * scale, place["y"] + 60 * scale)
    page.mouse.down()
    page.mouse.move(place["x"] + 100 * scale, place["y"] + 90 * scale)
    page.mouse.up()
    expect(page.locator("fieldset.chosen")).to_have_count(1)
    left = page.get_by_label("left of box 2, px")
    assert abs(int(left.input_value()) - 80) <= 2
    left.fill("70")
    left.blur()
    page.get_by_label("Class of box 2").select_option("truck")
    page.get_by_role("button", name="Save and go on").click()
    line(visit, str(SECOND))
    added = box.fakes.labels.get(FIRST).boxes[1]
    assert added.class_name == "truck"
    assert added.xyxy[0] == 70
    assert abs(added.xyxy[3] - 90) <= 2


def test_somebody_who_was_faster_is_told_and_nothing_is_lost(visit: Visit, box: Served) -> None:
    page = visit.page
    line(visit, str(FIRST))
    theirs = LabelsIn(boxes=(BoxIn(class_name="bus", xyxy=(1, 1, 50, 50)),))
    box.fakes.labels.put(FIRST, theirs)
    page.get_by_role("button", name="Accept and go on").click()
    page.get_by_role("button", name="Show theirs").click()
    line(visit, "a person's labels")
    expect(page.get_by_label("Class of box 1")).to_have_value("bus")
    box.fakes.labels.put(FIRST, theirs)
    page.get_by_role("button", name="Delete box 1").click()
    page.get_by_role("button", name="Save and go on").click()
    page.get_by_role("button", name="Save mine in their place").click()
    line(visit, str(SECOND))
    assert box.fakes.labels.get(FIRST).boxes == ()
    assert all("412" in text for text in visit.complaints)  # the browser itself tells of the two refusals
    visit.complaints.clear()


def test_what_was_changed_is_not_left_without_a_word(visit: Visit, box: Served) -> None:
    page = visit.page
    page.get_by_role("button", name="Add a box").click()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Throw it away").click()
    line(visit, str(SECOND))
    assert box.fakes.labels.get(FIRST).state == "golden"


def test_a_viewer_looks_only(visit: Visit) -> None:
    page = as_viewer(visit)
    page.wait_for_selector(".review img")
    for words in ("Accept", "Ignore", "Add", "Delete", "It is a"):
        expect(page.get_by_role("button", name=words)).to_have_count(0)
    expect(page.get_by_label("left of box 1, px")).to_be_disabled()
    page.locator(".review").focus()
    page.keyboard.press("n")
    line(visit, str(SECOND))


def test_it_fits_a_phone_and_an_empty_list_is_told(browser: Any) -> None:
    with served() as box:
        box.fakes.labels.versions.clear()
        with Visit(browser, box.url, "#/labels", ready="#label-line:has-text('Nothing to review')", width_px=360) as visit:
            visit.fits()
    with served() as box, Visit(browser, box.url, "#/labels", ready=".review img", width_px=360) as visit:
        visit.fits()
