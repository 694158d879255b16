"""Ids with emoji, other scripts, marks that turn the direction, markup and what no text may hold, in every place of every route: a word
in answer, never a mistake of ours; and no message in a camera's name is ever anything but text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.support.accounts import HERE
from tests.support.api_fuzz import fuzzed_box

#: As they stand in a path, percent-encoded or not text at all.
IDS = {
    "emoji": quote("\N{VIDEO CAMERA}\N{ZERO WIDTH JOINER}\N{CAT FACE}"),
    "Han": quote("門前"),
    "Greek": quote("αυλή"),
    "right to left": quote("\N{RIGHT-TO-LEFT OVERRIDE}etag\N{HEBREW LETTER ALEF}"),
    "combining": quote("g\N{COMBINING ACUTE ACCENT}ate"),
    "full width": quote("ｇａｔｅ"),
    "digits of another script": quote("\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT TWO}"),
    "markup": quote("<img src=x onerror=alert(1)>"),
    "a template": quote("{{7*7}}${7*7}"),
    "a line": quote("gate\r\nX-Evil: 1"),
    "zero": "%00gate",
    "no UTF-8": "%ff%fe",
    "half a pair": "%ed%a0%80",
    "long": quote("\N{CAT FACE}" * 500),
    "a way out": "%2e%2e%2f%2e%2e%2fdriftbox.db",
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, list[tuple[str, str]]]]:
    """A client that is an admin, and (method, path) of every operation with something to fill in."""
    with fuzzed_box(tmp_path_factory.mktemp("box")) as (app, headers):
        client = TestClient(app, base_url="http://127.0.0.1:8080", client=HERE, headers=headers, raise_server_exceptions=False)
        paths: dict[str, dict[str, Any]] = app.openapi()["paths"]
        yield client, [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" in path]


@pytest.mark.parametrize("name", IDS)
def test_no_route_breaks_over_an_id(asked: tuple[TestClient, list[tuple[str, str]]], name: str) -> None:
    client, operations = asked
    assert len(operations) > 30, "the whole interface"
    for method, path in operations:
        filled = re.sub(r"\{[^}]*\}", IDS[name], path)
        body: dict[str, Any] | None = None if method in ("GET", "DELETE") else {}
        answer = client.request(method, filled, json=body)
        assert 400 <= answer.status_code < 500, (method, path, answer.status_code, answer.text[:200])
        assert "x-evil" not in answer.headers
        assert answer.headers["content-type"].startswith("application/json"), "nothing that a browser would draw"
        assert json.loads(answer.text)["detail"]


def test_ids_in_queries_and_bodies_neither(asked: tuple[TestClient, list[tuple[str, str]]]) -> None:
    client, _ = asked
    for text in IDS.values():
        for path in (
            "events?camera=",
            "labels?camera=",
            "models?camera=",
            "gpu?camera=",
            "health/log?level=",
            "cameras/propose-id?name=",
        ):
            answer = client.get(f"/api/v1/{path}{text}")
            assert answer.status_code < 500, (path, answer.text[:200])
        for command in ("camera/watch", "camera/restart", "camera/learning"):
            answer = client.post(f"/api/v1/commands/{command}", json={"camera": text, "on": True})
            assert 400 <= answer.status_code < 500
