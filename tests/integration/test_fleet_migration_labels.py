"""A live camera goes to another box and home again, and its labels with it: real boxes, gates, parcels and threads, real RTSP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.fake import scripted_image
from scheduler.events import LearnedFrom
from scheduler.types import Detections, Frame
from streams.rtsp_server import RtspServer
from streams.samples import SampleRef
from tests.integration.test_fleet_migration import GATE, Fleet
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.migrating import MovingBox, camera_server

GUEST = "a--gate"
#: What a person draws.
DRAWN = Detections(xyxy=np.array([[3, 4, 40, 50]], np.float32), score=np.ones(1, np.float32), class_id=np.full(1, 2, np.int64))


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = camera_server(("gate",))
    yield made
    made.stop()


@pytest.fixture
def fleet(tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Box a has labelled pictures of its camera from windows 1 and 2, one corrected, one held out; both boxes are in a later window."""
    put_fakes_in_the_zoo(monkeypatch)
    made = Fleet(tmp_path, server)
    for window, seq, split in ((1, 10, "train"), (1, 11, "holdout"), (2, 20, "train"), (2, 21, "train")):
        image, truth = scripted_image(seq)
        frame = Frame(stream="gate", seq=seq, captured_s=0.0, captured_utc=0.0, image=image)
        made.a.samples.label(made.a.samples.add(frame, window), truth, "golden", split)
    made.a.samples.correct(SampleRef(stream="gate", window=1, seq=10), DRAWN)
    other = Frame(stream="other", seq=0, captured_s=0.0, captured_utc=0.0, image=scripted_image(0)[0])
    made.b.samples.add(other, 6)
    return made


def labelled(box: MovingBox, camera: str) -> dict[tuple[int, int], tuple[str, str]]:
    """(window, seq) -> by whom, and for what."""
    refs = box.samples.list(camera, labelled=True)
    found = ((ref, box.samples.labels_or_none(ref)) for ref in refs)
    return {(ref.window, ref.seq): (labels.by, labels.split) for ref, labels in found if labels is not None}


def notes(box: MovingBox) -> list[str]:
    return [note.text for _, note in list(box.runtime.notes)]


def test_labels_go_with_a_camera_and_come_home_with_what_was_corrected_meanwhile(fleet: Fleet) -> None:
    control = fleet.controller
    with fleet.a as a, fleet.b as b:
        a.consents = b.consents = True
        fleet.wait_told(a)
        a.runtime.ask(lambda: setattr(a.runtime.parts.engine.state.streams["gate"], "learned", 2))
        fleet.move("b")
        fleet.wait_told(b)
        control.until(lambda: len(labelled(b, GUEST)) == 4, "its labels are on b")
        # Box b is in window 7: window 2 of a, the newest that has labels, is its window 6.
        assert labelled(b, GUEST) == {
            (5, 10): ("person", "train"), (5, 11): ("golden", "holdout"), (6, 20): ("golden", "train"), (6, 21): ("golden", "train"),
        }  # fmt: skip
        np.testing.assert_array_equal(
            b.samples.load_labels(SampleRef(stream=GUEST, window=5, seq=10)).detections.xyxy, DRAWN.xyxy
        )
        control.until(lambda: bool(b.seen(LearnedFrom)), "b knows what its model learned from")
        (told,) = b.seen(LearnedFrom)
        assert (told.stream, told.window) == (GUEST, 6)
        assert told.version == b.store.serving(GUEST)[GUEST].id
        control.until(
            lambda: any("4 labelled pictures have followed it from box a" in text for text in notes(b)), "b has said so"
        )
        fleet.judge(a, b)

        b.samples.correct(SampleRef(stream=GUEST, window=6, seq=21), DRAWN)
        before = labelled(a, "gate")
        fleet.move("a", "return")
        fleet.wait_told(a)
        control.until(lambda: labelled(a, "gate")[2, 21][0] == "person", "the correction has come home")
        assert labelled(a, "gate") == before | {(2, 21): ("person", "train")}, "nothing twice, nothing lost"
        fleet.judge(a, b)
        control.until(lambda: not any(".samples." in name for name in fleet.post.parcels), "what has come is removed")
        assert {action for action, *_ in a.audited} >= {"fleet.samples.planned", "fleet.samples.given", "fleet.labels.taken"}


def test_without_consent_no_picture_leaves_and_both_are_told(fleet: Fleet) -> None:
    control = fleet.controller
    with fleet.a as a, fleet.b as b:
        fleet.wait_told(a)
        fleet.move("b")
        fleet.wait_told(b)
        control.until(lambda: any("its labels stay on box a" in text for text in notes(b)), "b has said so")
        (said,) = [text for text in notes(b) if "its labels" in text]
        assert "its operator does not let its samples leave a box" in said
        assert "4 pictures, 1 of them corrected by a person, 1 held out" in said
        assert "without consent its labels stay on box a" in next(text for _, text in control.said if "done" in text)
        assert not any(".samples." in name for name in fleet.post.parcels)
        assert (labelled(b, GUEST), a.audited) == ({}, [])
        assert control.phase(GATE) == "done"
