"""Pages in a real browser: the browser itself, one open page with all its complaints, and what every page must stand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Of the browser for whatever a test waits for.
PATIENCE_MS = 120_000.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: Told by the browser when something on the page broke the content policy.
_LISTEN = """() => {
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (e) =>
    window.violations.push(`${e.violatedDirective}: ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
}"""


@contextmanager
def launched_browser() -> Iterator[Any]:
    """Chromium; without it the test is skipped, or fails where CI promises it."""
    if CHROMIUM is None:
        message = "Chromium is not installed (apt-get install chromium)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield launched
        launched.close()


def expect(found: Any) -> Any:
    """Playwright's assertions, which wait: pages draw when their data has come, so what is there at once is a matter of luck."""
    from playwright.sync_api import expect as playwright_expect

    playwright_expect.set_options(timeout=PATIENCE_MS)
    return playwright_expect(found)


class Visit:
    """An open page with everything it complained about. hash: '#/labels'; ready: a selector of what must be there first; before: is
    given the page before it is opened.

    complaints: errors in the console and uncaught ones; foreign: requests that left the box."""

    def __init__(
        self, browser: Any, url: str, hash: str = "", *, ready: str = "#page > *", width_px: int = 1200,
        before: Callable[[Any], None] | None = None, **context: Any,
    ) -> None:  # fmt: skip
        self.url = url
        self.page = browser.new_page(viewport={"width": width_px, "height": 900}, **context)
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: request.url.startswith(url) or self.foreign.append(request.url))
        self.page.add_init_script(f"({_LISTEN})()")
        if before is not None:
            before(self.page)
        self.page.goto(url + hash)
        self.page.wait_for_selector(ready)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def is_sound(self) -> None:
        """Nothing complained, nothing left the box, the content policy held."""
        assert self.complaints == [], self.complaints
        assert self.foreign == [], self.foreign
        assert self.page.evaluate("window.violations") == []

    def fits(self) -> None:
        """No sideways scroll of the page; on a phone none of a wide table either, whose rows are lists there."""
        wide = self.page.evaluate(
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".slice(0, 5).map(e => e.outerHTML.slice(0, 120))"
        )
        width_px = self.page.evaluate("innerWidth")
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width_px, wide
        sideways = self.page.evaluate(
            "innerWidth > 640 ? [] : [...document.querySelectorAll('.stacks')]"
            ".filter(t => t.scrollWidth > t.parentElement.clientWidth + 1).map(t => t.querySelector('caption').textContent)"
        )
        assert sideways == [], sideways

    def is_accessible(self) -> None:
        """axe finds nothing serious or critical on what is shown now."""
        grave = self.grave_findings()
        assert not grave, "\n".join(grave)

    def grave_findings(self) -> list[str]:
        """What axe finds serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['impact']} {one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def save(self, name: str) -> None:
        """Keeps a screenshot where DRIFTBOX_SCREENSHOTS says, for people to look at."""
        folder = os.environ.get("DRIFTBOX_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder) / name, full_page=True)
