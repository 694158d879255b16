"""The learning pages over a box that runs: what it tells of itself, and a rollback by the page's button."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from edge.labels_admin import FolderLabels
from edge.web.serve import WebServer
from edge.web.services import Services
from edge.wiring.running import _with_learning
from scheduler import events as ev
from tests.support.live_box import CONFIG, LiveBox
from tests.support.visits import Visit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]


@contextmanager
def served(box: LiveBox) -> Iterator[str]:
    """The box's pages, wired as `driftbox run` wires them; the address."""
    with ExitStack() as stack:
        parts: Any = SimpleNamespace(runtime=box.runtime, folder=box.folder, store=box.store, devices=tuple)
        labels = Services(labels=FolderLabels(box.root))
        watchdog: Any = SimpleNamespace(take=lambda charge: None)
        services = _with_learning(labels, parts, box.status, watchdog, stack)
        yield stack.enter_context(WebServer(box.status, host="127.0.0.1", port=0, services=services)).url


def test_what_a_running_box_tells_of_its_learning(tmp_path: Path) -> None:
    box = LiveBox(tmp_path / "data", {"a": "fake"})
    with served(box) as url, box, httpx.Client(base_url=f"{url}api/v1/", timeout=120) as client:
        box.wait_for(ev.SwapDone, "a")
        box.wait_windows(2)

        def learnt() -> tuple[dict[str, Any], list[dict[str, Any]]]:
            told = client.get("learning/a").json()
            return told, [w for w in told["windows"] if w["closed_utc"] is not None and w["retrained"]]

        box.wait(lambda: bool(learnt()[1]), "a window in which it learnt is closed")
        told, closed = learnt()
        assert any("retrain 'quick'" in line for w in closed for line in w["why"])
        assert all(w["predicted_low"] <= w["predicted"] <= w["predicted_high"] for w in closed if w["predicted"] is not None)
        assert told["errors"]["retrainings"] >= 1
        assert [p["version"] for p in told["history"]]
        why = client.get("plans/current/why").json()
        assert why["in_force"]
        assert {j["stream"] for j in why["answer"]["explain"]["jobs"]} == {"a"}
        assert (
            sum(s["infer_pct"] + s["train_pct"] for s in why["answer"]["streams"]) + why["answer"]["spare_pct"]
            == why["capacity_pct"]
        )
        pictures = client.get("learning/a/before-after", params={"pictures": 2}).json()
        assert pictures["pictures"], pictures
        assert pictures["before"] != pictures["after"]
        gpu = client.get("gpu").json()
        assert any(s["job"] == "a/infer" for s in gpu["shares"])
        assert gpu["windows"][0]["shares"]
        [camera] = client.get("queries").json()["cameras"]
        assert any(s["in_force"] for s in camera["settings"]) or not camera["share_pct"]
        versions = client.get("models", params={"camera": "a"}).json()["models"]
        assert sum(v["state"] == "serving" for v in versions) == 1
        assert box.replayed().exact


@pytest.mark.browser
def test_a_rollback_by_the_button_is_served(tmp_path: Path, browser: Any) -> None:
    """Beside its anchor: 1 s from the press to the older version serving. Printed, not judged: the machine may be busy."""
    # One swap and no more: a second one would come between the page's look and the press.
    box = LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, window_s=120.0))
    worker = box.watched["a"].worker
    with served(box) as url, box:
        box.wait_for(ev.SwapDone, "a")
        with Visit(browser, url, "#/models/a", ready='button[data-key="back"]') as visit:
            before, served_before = box.store.serving("a")["a"].id, box.store.replaced("a")
            pressed_s = time.monotonic()
            visit.page.locator('button[data-key="back"]').click()
            back = box.wait_for(ev.ModelRolledBack, "a")
            took_s = time.monotonic() - pressed_s
            visit.page.wait_for_selector("#announcement:has-text('serves a now')")
            visit.is_sound()
        print(f"\nrollback by the page: {1000 * took_s:.0f} ms from the press to the older version serving (to reach: 1000 ms)")
        assert back.version in {v.version.id for v in box.store.models("a")}
        assert back.version != before or served_before is None
        box.wait(lambda: worker.frames > 0, "frames go on")
        assert box.replayed().exact
