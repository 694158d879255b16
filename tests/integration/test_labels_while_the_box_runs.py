"""Labels corrected over HTTP and by command while a box runs: the next retraining learns from them, nobody overwrites them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge.jobs import train
from edge.labels import LabelQuery, SampleName
from edge.labels_admin import FolderLabels
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from edge.web.services import Services
from models.labelled import LabelledImage
from scheduler import events as ev
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.labelled_folder import labelled_folder
from tests.support.live_box import WAIT_S, LiveBox

BOX = {"class": "bus", "xyxy": [3, 3, 60, 50]}


# --- the server, without a box ------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, data folder) of a real server on loopback."""
    labelled_folder(tmp_path)
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=Services(labels=FolderLabels(tmp_path))) as server:
        yield server.url.rstrip("/"), tmp_path


def test_labels_are_corrected_over_a_real_connection(served: tuple[str, Path]) -> None:
    url, folder = served
    with httpx.Client(base_url=url, timeout=120) as client:
        page = client.get("/api/v1/labels", params={"unsure": "true", "limit": 2}).json()
        assert page["labels"][0]["unsure"] == 1
        path = f"/api/v1/labels/{page['labels'][0]['sample']}"
        seen = client.get(path)
        done = client.put(path, json={"boxes": [BOX]}, headers={"If-Match": seen.headers["etag"]})
        assert (done.status_code, done.json()["state"]) == (200, "person")
        assert client.put(path, json={"boxes": []}, headers={"If-Match": seen.headers["etag"]}).status_code == 412
        assert client.get(path + "/picture.jpg").content.startswith(b"\xff\xd8")
    name = SampleName.parse(page["labels"][0]["sample"])
    assert FolderLabels(folder).get(name).counts == {"bus": 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Forwarded-For": "127.0.0.1"}, 403),
        ({"Forwarded": "for=127.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_whoever_is_not_here_is_refused_over_a_real_connection(
    served: tuple[str, Path], headers: dict[str, str], status: int
) -> None:
    url, folder = served
    with httpx.Client(base_url=url, timeout=120) as client:
        body = json.dumps({"boxes": []})
        answer = client.put("/api/v1/labels/gate/0/0", content=body, headers={"Content-Type": "application/json"} | headers)
    assert answer.status_code == status
    assert FolderLabels(folder).stats().by_person == 0


def test_a_body_without_end_is_cut_off(served: tuple[str, Path]) -> None:
    url, folder = served

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 65536

    with httpx.Client(base_url=url, timeout=120) as client:
        try:
            answer = client.put("/api/v1/labels/gate/0/0", content=endless(), headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
        except httpx.TransportError:  # the server closed while more was on its way
            pass
        assert client.get("/healthz").json()["ok"] is True
    assert FolderLabels(folder).stats().by_person == 0


# --- a box that runs ----------------------------------------------------------------------------------------------------


class Learned:
    """What every retraining of the box was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sets: list[list[LabelledImage]] = []
        original = train.retrain

        def retrain(detector: Any, samples: Sequence[LabelledImage], *args: Any, **options: Any) -> Any:
            self.sets.append([samples[i] for i in range(len(samples))])
            return original(detector, samples, *args, **options)

        monkeypatch.setattr(train, "retrain", retrain)

    def persons(self) -> list[LabelledImage]:
        return [one for seen in list(self.sets) for one in seen if one.by_person]


def bus_only(image: LabelledImage) -> bool:
    return len(image.labels) == 1 and image.labels.xyxy[0].tolist() == [3, 3, 60, 50]


@pytest.mark.slow
def test_the_next_retraining_learns_what_a_person_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    learned = Learned(monkeypatch)
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        labels = FolderLabels(tmp_path / "data")
        corrected: set[str] = set()
        with (
            WebServer(box.status, host="127.0.0.1", port=0, services=Services(labels=labels)) as server,
            httpx.Client(timeout=120) as client,
        ):

            def correct_what_is_new() -> bool:
                """Frames that nobody has labelled yet, while the box samples and labels beside it."""
                for row in labels.list(LabelQuery(camera="a", unlabelled=True, limit=6)).labels:
                    if row.state == "unlabelled":
                        answer = client.put(f"{server.url}api/v1/labels/{row.sample}", json={"boxes": [BOX]})
                        if answer.status_code == 200:
                            corrected.add(row.sample)
                return bool(learned.persons())

            box.wait(correct_what_is_new, "a retraining was given a person's labels")
        assert any(e.corrected for e in box.seen(ev.LabelDone, "a")), "the box says that it used them"
        kept = [labels.get(SampleName.parse(sample)) for sample in sorted(corrected)]
        assert box.replayed().exact
    assert all(bus_only(one) for one in learned.persons())
    assert [view.state for view in kept] == ["person"] * len(kept), "no golden labelling replaced one"


@pytest.mark.slow
def test_a_command_corrects_while_the_box_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    with LiveBox(tmp_path / "data", {"a": "fake"}) as box:
        box.wait_for(ev.LabelDone, "a")
        labels = FolderLabels(tmp_path / "data")
        row = labels.list(LabelQuery(by="golden", limit=1)).labels[0]
        done = subprocess.run(
            [sys.executable, "-m", "edge", "labels", "ignore", row.sample, "--data-dir", str(tmp_path / "data"), "--json"],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert (done.returncode, json.loads(done.stdout)["state"]) == (0, "ignored")
        box.wait_frames("a")
        assert labels.get(SampleName.parse(row.sample)).state == "ignored"
        assert box.replayed().exact
