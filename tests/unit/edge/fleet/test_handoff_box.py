"""What a running box does for a camera that changes boxes: its state is looked for and taken on, and what stays is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.errors import UsageError
from configs.load import parse_config
from edge.clock import SystemClock
from edge.fleet.camera_state import CameraState
from edge.fleet.handoff_box import Labels, RunningCameras
from edge.fleet.labels import came_as
from edge.fleet.labels_leave import request_of
from edge.fleet.parcels import CameraParcel, packed, unpacked
from edge.fleet.samples import Giving
from edge.objects.carried import ObjectsState
from edge.queries.carried import QueryStates
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import Store
from models.tinydet import TinyDetector
from scheduler.fleet.types import CameraKey
from scheduler.types import Detections, Frame, ModelVersion, RetrainConfig, Signature, Traits
from streams.samples import SampleStore

KEY = CameraKey(home="a", camera="gate")
STATE = CameraState.of(KEY, 1.0, None, QueryStates(size_px=(64, 48), nodes={}))
ENTRY = parse_config("cameras: [{id: gate, url: 'rtsp://10.0.0.9/gate'}]").cameras[0]


class Told:
    """In the place of a camera's objects and queries."""

    def __init__(self, anew: Any = "") -> None:
        self.anew, self.taken = anew, list[tuple[Any, float]]()

    def hand_over(self, *wait: Any) -> Any:
        return None

    def take_on(self, state: ObjectsState | QueryStates, base_s: float) -> Any:
        self.taken.append((state, base_s))
        return self.anew


class Follows:
    """`edge.fleet.handoff_box.Follow` that notes. follows: what `expect` answers."""

    def __init__(self) -> None:
        self.asked, self.follows = list[tuple[Any, ...]](), True

    def begin(self, camera: str, parcel: str, giving: Giving) -> None:
        self.asked.append(("begin", camera, parcel, giving))

    def close(self, camera: str) -> None:
        self.asked.append(("close", camera))

    def expect(self, camera: str, known: Mapping[str, Any], sender: str) -> bool:
        self.asked.append(("expect", camera, known.get("pictures"), sender))
        return self.follows and "pictures" in known


class Box:
    """A box that watches the camera `gate`; said: its notes; calls: of live control; learned: the window that its engine knows of."""

    def __init__(
        self, folder: Path, watched: SimpleNamespace | None = None, *, consent: bool = False, learned: int | None = None
    ) -> None:
        self.said, self.calls = list[str](), list[str]()
        self.samples, self.store, self.follows = SampleStore(folder / "samples"), Store(folder / "box.db"), Follows()
        stream = SimpleNamespace(learned=learned)
        engine = SimpleNamespace(state=SimpleNamespace(streams={"gate": stream}))
        runtime: Any = SimpleNamespace(
            watched={"gate": watched} if watched else {}, note_from_anywhere=lambda note: self.said.append(note.text),
            parts=SimpleNamespace(engine=engine),
        )  # fmt: skip
        kept: Any = SimpleNamespace(entry=ENTRY.model_copy(update={"consent": consent}), changed_by="file", source="file")
        control: Any = SimpleNamespace(
            cameras=lambda: SimpleNamespace(cameras=[kept], find=lambda id: kept), give_back=lambda camera: None,
            withhold=lambda camera, why: self.calls.append(f"withhold {camera}, after {self.follows.asked}"),
        )  # fmt: skip
        root: Any = SimpleNamespace(samples_dir=folder / "samples", root=folder)
        self.cameras = RunningCameras(runtime, control, root, self.store, lambda entry: bool(entry.consent), self.follows)

    def label(self, seq: int, split: str, *, person: bool = False) -> None:
        image = np.full((48, 64, 3), 90, np.uint8)
        ref = self.samples.add(Frame(stream="gate", seq=seq, captured_s=seq, captured_utc=1e9, image=image), 3)
        self.samples.label(ref, Detections.empty(), "golden", split)
        if person:
            self.samples.correct(ref, Detections.empty())


def carried(box: Box, name: str = "b.a.gate.1") -> CameraParcel:
    return unpacked(packed(box.cameras.pack("gate", KEY, name)), KEY)


def test_who_gets_a_camera_without_consent_is_told_which_labels_stay_where_they_were_made(tmp_path: Path) -> None:
    source, target = Box(tmp_path / "a"), Box(tmp_path / "b")
    for seq in range(4):
        source.label(seq, "holdout" if seq == 0 else "train", person=seq == 3)
    parcel = carried(source)
    assert parcel.known["labels"] == {"labelled": 4, "by_person": 1, "held_out": 1}
    assert "pictures" not in parcel.known
    source.cameras.sent("gate", "b.a.gate.1")
    assert source.follows.asked == [], "nothing sets out"
    target.cameras.bring_in("gate", parcel, "a")
    (said,) = target.said
    assert (
        "stay on box a (its operator does not let its samples leave a box): 4 pictures, 1 of them corrected by a person" in said
    )


def test_with_consent_they_follow_and_that_is_told(tmp_path: Path) -> None:
    source, target = Box(tmp_path / "a", consent=True, learned=2), Box(tmp_path / "b")
    source.label(1, "train", person=True)
    parcel = carried(source)
    request = request_of("b.a.gate.1")
    assert parcel.known["pictures"] == {"request": request, "newest": 3, "learned": 2}
    source.cameras.sent("gate", "b.a.gate.1")
    assert source.follows.asked == [("begin", "gate", "b.a.gate.1", Giving(consent=True))]
    target.cameras.bring_in("gate", parcel, "a")
    assert target.follows.asked == [("expect", "gate", parcel.known["pictures"], "a")]
    assert target.said == ["its labels follow it from box a: 1 pictures, 1 of them corrected by a person, 0 held out"]


def test_who_stands_by_gets_no_labels_and_knows_why(tmp_path: Path) -> None:
    source, target = Box(tmp_path / "a", consent=True), Box(tmp_path / "b")
    source.label(1, "train")
    name = "b.a.gate.1.gate-000001_29000000"
    parcel = carried(source, name)
    source.cameras.sent("gate", name)
    assert source.follows.asked == []
    target.cameras.bring_in("gate", parcel, "a")
    assert "stay on box a (they were not sent ahead): 1 pictures" in target.said[0]


def test_who_takes_over_has_the_model_its_quality_and_what_its_window_looked_like(tmp_path: Path) -> None:
    """What the standby's parcel brings, and what it cannot: docs/decisions/0092."""
    signature, traits = Signature(values=(0.1, 0.7)), Traits(daypart="night", objects_per_frame=2.5)
    boxes = {}
    for name in ("a", "b"):
        folder = DataFolder(tmp_path / name)
        store = Store(folder.db_path)
        parts = SimpleNamespace(clock=SystemClock(), engine=SimpleNamespace(state=SimpleNamespace(streams={})))
        runtime: Any = SimpleNamespace(watched={}, parts=parts, note_from_anywhere=lambda note: None)
        kept: Any = SimpleNamespace(entry=ENTRY, changed_by="file", source="file")
        cameras = SimpleNamespace(cameras=[kept], find=lambda id, kept=kept: kept)
        control: Any = SimpleNamespace(cameras=lambda cameras=cameras: cameras, give_back=lambda camera: None)
        boxes[name] = (RunningCameras(runtime, control, folder, store), Shelf(folder, store, SystemClock()), folder, store)
    owner, shelf, _, _ = boxes["a"]
    shelf.ensure("gate", "tinydet-edge", lambda arch: TinyDetector(arch, seed=1))
    learned = shelf.keep_candidate(
        "gate", parent="gate-000001", detector=TinyDetector("tinydet-edge", seed=2), config=RetrainConfig(name="head"), window=7,
        traits=traits, signature=signature,
    )  # fmt: skip
    shelf.admit("gate", learned.id, 0.83)
    parcel = unpacked(packed(owner.pack("gate", KEY, "b.a.gate.1.gate-000002_29000000")), KEY)

    standby, _, _, store = boxes["b"]
    standby.bring_in("gate", parcel, "a")
    serving = store.serving("gate")["gate"]
    assert (serving.quality, came_as(store, serving.id)) == (0.83, learned.id)
    about = store.model(serving.id).config
    assert (about["signature"], about["traits"]["daypart"]) == ([0.1, 0.7], "night")
    assert about["window"] is None, "windows are a box's own: that one is not here"
    for *_, folder, store in boxes.values():
        store.close()
        folder.close()


def test_a_camera_is_closed_after_its_labels_know_of_it(tmp_path: Path) -> None:
    """Killed in between, it is closed again, and they are told again: the other way round nobody would tell them."""
    box = Box(tmp_path / "a", consent=True)
    box.cameras.take_out("gate", "a test")
    assert box.calls == ["withhold gate, after [('close', 'gate')]"]


def test_what_the_model_learned_from_is_looked_up_where_the_engine_has_forgotten(tmp_path: Path) -> None:
    box = Box(tmp_path / "a", consent=True, learned=None)
    assert carried(box).known["pictures"]["learned"] is None
    version = ModelVersion(id="gate-2", stream="gate", parent=None, arch="fake", sha256="0")
    box.store.add_model(version, at_utc=1.0, config={"window": 7})
    box.store.serve("gate-2", at_utc=2.0, reason="a test", quality=None)
    serving = box.store.serving("gate")["gate"]
    assert box.cameras._learned_in("gate", serving) == 7


def test_where_there_are_no_labels_nothing_is_said(tmp_path: Path) -> None:
    source, target = Box(tmp_path / "a"), Box(tmp_path / "b")
    target.cameras.bring_in("gate", carried(source), "a")
    assert target.said == []


@pytest.mark.parametrize(
    "labels", [None, 3, {}, {"labelled": "x" * 9, "by_person": 0, "held_out": 0}, {"labelled": -1}, {"more": 1}]
)
def test_a_sender_that_says_odd_things_of_its_labels_is_not_repeated(tmp_path: Path, labels: Any) -> None:
    target = Box(tmp_path / "b")
    target.cameras.bring_in("gate", CameraParcel(camera=KEY, document={}, known={"labels": labels}), "a")
    assert target.said == []


def test_a_state_is_taken_on_by_who_is_there_and_what_begins_anew_is_said(tmp_path: Path) -> None:
    objects, queries = Told("its zones are other ones"), Told(["lines.track: nothing came of it"])
    box = Box(tmp_path, SimpleNamespace(objects=objects, queries=queries))
    box.cameras.take_on("gate", STATE, 7.5)
    assert (objects.taken, queries.taken) == ([], [(STATE.queries, 7.5)])
    assert "objects: nothing came of them; lines.track: nothing came of it" in box.said[0]
    well = Box(tmp_path / "well", SimpleNamespace(objects=None, queries=Told([])))
    well.cameras.take_on("gate", STATE, 7.5)
    assert "go on where the box before has left them" in well.said[0]


def test_a_camera_that_is_gone_meanwhile_has_no_state_and_takes_none(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert box.cameras.leave("gate", KEY, "b", 1.0) is None
    box.cameras.take_on("gate", STATE, 7.5)
    assert box.said == []


def test_more_than_anybody_takes_on_is_said_not_raised_as_something_else(tmp_path: Path) -> None:
    class Crowd(Told):
        def hand_over(self, *wait: Any) -> Any:
            return QueryStates(size_px=(0, 0), nodes={})

    box = Box(tmp_path, SimpleNamespace(objects=None, queries=Crowd()))
    with pytest.raises(UsageError, match="not one that travels"):
        box.cameras.leave("gate", KEY, "b", 1.0)


def test_labels_are_counted_among_the_newest_pictures_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.fleet.handoff_box.MOST_COUNTED", 2)
    box = Box(tmp_path)
    for seq in range(5):
        box.label(seq, "train")
    assert box.cameras._labels("gate") == (Labels(labelled=2, by_person=0, held_out=0), 3)
