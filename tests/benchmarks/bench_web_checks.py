"""Every page under axe, on a screen and on a phone in the dark, and the headers of every answer against OWASP's list.

    driftbox bench web_checks

A box with all its parts (most of them fakes) over TLS, in a real browser: accessibility findings that axe calls serious or critical,
complaints of the browser, breaches of the content policy, requests that leave the box. Then every route of the OpenAPI document, pages
and files, asked as nobody and as an admin: headers that scanners want and those that they do not, the session's cookie.
Made-up requests are `driftbox bench api_fuzz`.
"""

from __future__ import annotations

import argparse
import os
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx

from configs.load import parse_config
from edge.web.tls import Certificates, own_paths
from tests.support.accounts import PAGE, PASSWORD
from tests.support.every_page import PAGES, furnished_box, go, signed_in
from tests.support.secure_headers import cookie_findings, header_findings
from tests.support.visits import CHROMIUM, launched_browser

VIEWS: dict[str, dict[str, Any]] = {"screen": {"width_px": 1200}, "phone, dark": {"width_px": 360, "color_scheme": "dark"}}
METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
FILES = ("/", "/static/ui.js", "/static/nothing.js", "/healthz", "/readyz", "/metrics", "/nothing", "/api/v1/nothing")


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if CHROMIUM is None:
        print("Chromium is not installed: apt-get install chromium")
        return 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = parse_config(f"box: {{data_dir: {folder}}}\nweb: {{tls: own}}")
        context = Certificates(config.web, folder, now_utc=time.time()).context
        with furnished_box(folder, tls=context) as url:
            grave, looks = looked_at(url)
            wrong, answers = asked(url, own_paths(folder)[0])
    for told in [*grave, *wrong][:40]:
        print(told)
    for what, found, count, of in (
        ("accessibility findings, serious or critical, and complaints of the browser", grave, looks, "views of pages"),
        ("security headers and cookies that are not as OWASP wants them", wrong, answers, "answers"),
    ):
        print(f"{'MISSED' if found else 'reached':<8} {what}: {len(found)} in {count} {of} (to reach: 0)")
    print(f"         load of the machine over the last minute: {os.getloadavg()[0]:.1f}")
    return 1 if grave or wrong else 0


def looked_at(url: str) -> tuple[list[str], int]:
    """(findings, views) of every page in a real browser."""
    found: list[str] = []
    with launched_browser() as browser:
        for view, settings in VIEWS.items():
            with signed_in(browser, url, ignore_https_errors=True, **settings) as visit:
                for address in PAGES:
                    go(visit.page, address)
                    visit.page.evaluate("document.querySelectorAll('#page details').forEach((d) => { d.open = true; })")
                    found += [f"{address} ({view}): {finding}" for finding in visit.grave_findings()]
                told = [*visit.complaints, *visit.foreign, *visit.page.evaluate("window.violations")]
                found += [f"{view}: {words}" for words in told]
    return found, len(VIEWS) * len(PAGES)


def asked(url: str, certificate: Path) -> tuple[list[str], int]:
    """(findings, answers) of every route, as nobody and as an admin."""
    with _client(url, certificate) as nobody, _client(url, certificate) as admin:
        answer = admin.post("/api/v1/sign-in", json={"name": "admin", "password": PASSWORD})
        found = cookie_findings(answer.headers["set-cookie"])
        requests = list(_requests(admin.get("/api/v1/openapi.json").json()))
        for client in (nobody, admin):
            for method, path in requests:
                answer = client.request(method, path)
                found += [f"{method} {path}: {finding}" for finding in header_findings(answer.headers)]
                if answer.status_code >= 500:
                    found.append(f"{method} {path}: {answer.status_code}")
    return found, 2 * len(requests) + 1


def _client(url: str, certificate: Path) -> httpx.Client:
    return httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(certificate)), timeout=60, headers=PAGE)


def _requests(described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Whatever changes nothing."""
    routes = [re.sub(r"\{\w+(?::path)?\}", "1", path) for path in described["paths"]]
    yield from ((method, path) for path in (*FILES, *routes) for method in METHODS)


if __name__ == "__main__":
    sys.exit(main())
