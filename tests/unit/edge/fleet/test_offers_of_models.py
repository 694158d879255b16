"""Offered models: fetched once, believed only when signed, judged by the camera's own gate, answered, kept out when refused."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import pytest

from configs.errors import EnvironmentLacking
from edge.clock import SystemClock
from edge.fleet.offers import OfferBook
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from models.bundle import write_bundle
from models.keys import KeyRing, public_pem
from models.tinydet import TinyDetector
from models.versions import Manifest, save_version
from scheduler.fleet.types import CameraKey, ModelOffer
from tests.support.pooled_fleet import Post

GATE, YARD, ELSEWHERE = (CameraKey(home="north", camera=c) for c in ("gate", "yard", "nowhere"))


@functools.cache
def detector(seed: int) -> TinyDetector:
    return TinyDetector("tinydet-edge", seed=seed)


class Place:
    """A box that watches gate and yard, and a fleet that signs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = DataFolder(root / "box")
        self.store = Store(self.folder.db_path)
        self.shelf = Shelf(self.folder, self.store, SystemClock())
        for camera in ("gate", "yard"):
            self.shelf.ensure(camera, "tinydet-edge", lambda _: detector(1))
        self.fleet, self.post = KeyRing(root / "fleet"), Post()
        public = root / "fleet.pub"
        public.write_bytes(public_pem(self.fleet.signer().public))
        KeyRing(self.folder.root).trust(public)
        self.book = self.started()

    def started(self) -> OfferBook:
        return OfferBook(
            self.folder.root, self.folder.root / "offers", self.post, retry_s=0.01,
            local_id=lambda key: key.camera if key.camera in ("gate", "yard") else None,
        )  # fmt: skip

    def bundle(self, parcel: str, seed: int, ring: KeyRing | None = None) -> None:
        made, model = self.root / f"made{seed}", detector(seed)
        made.mkdir(exist_ok=True)
        manifest = Manifest(
            id="pooled-000001", stream="pooled", parent=None, spec=model.spec, config=None, window=None, created_utc=1.0
        )
        save_version(made, manifest, model.state())
        write_bundle(made, made / "m.driftbox", (ring or self.fleet).signer())
        self.post.parcels[parcel] = (made / "m.driftbox").read_bytes()

    def offer(self, *cameras: CameraKey, rollout: str = "r1", parcel: str = "north.r1", withdraw: bool = False) -> None:
        """As `take`, without its thread."""
        self.book._offers = (ModelOffer(rollout=rollout, parcel=parcel, cameras=cameras, withdraw=withdraw),)
        self.book.settle()

    def stages(self) -> list[str]:
        return [word.stage for word in self.book.words()]

    def candidates(self, camera: str = "gate") -> list[str]:
        return list(self.shelf.offered(camera))

    def close(self) -> None:
        self.book.close()
        self.store.close()
        self.folder.close()


@pytest.fixture
def place(tmp_path: Path):
    made = Place(tmp_path)
    yield made
    made.close()


def test_an_offer_becomes_a_candidate_of_each_camera_and_waits_for_its_gate(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE, YARD)
    assert place.stages() == ["judging", "judging"]
    assert len(place.candidates("gate")) == len(place.candidates("yard")) == 1
    assert place.store.serving("gate")["gate"].id == "gate-000001"  # nothing serves because somebody offers it
    origin = place.store.model(place.candidates()[0]).config["origin"]
    assert (origin["rollout"], origin["signed_by"] != "") == ("r1", True)


def test_the_gates_word_is_the_answer_and_survives_a_restart(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE, YARD)
    place.shelf.admit("gate", place.candidates("gate")[0], 0.83, "better")
    place.shelf.reject("yard", place.candidates("yard")[0], "not better on this camera's labels: 0.612 against 0.700")
    place.book = place.started()
    place.offer(GATE, YARD)
    gate, yard = place.book.words()
    assert (gate.stage, gate.after) == ("serving", 0.83)
    assert (yard.stage, yard.before, yard.after) == ("refused", 0.7, 0.612)
    assert place.candidates("yard") == []  # an answered one is not measured again


def test_what_the_box_gave_up_for_the_one_before_is_no_better_after_all(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE, YARD)
    for camera in ("gate", "yard"):
        place.shelf.admit(camera, place.candidates(camera)[0], 0.83, "better")
    assert place.stages() == ["serving", "serving"]
    assert [word.version for word in place.book.words()] == ["gate-x000001", "yard-x000001"]
    place.shelf.admit("gate", "gate-000001", 0.8, "rollback: live quality fell below what it replaced")
    gate, yard = place.book.words()
    assert (gate.stage, yard.stage) == ("refused", "serving")
    assert gate.problem == "let in, then given up: rollback: live quality fell below what it replaced"
    assert gate.version == "gate-x000001"


def test_what_a_newer_model_replaced_was_let_in(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE)
    place.shelf.admit("gate", place.candidates("gate")[0], 0.83, "better")
    place.shelf.admit("gate", "gate-000001", 0.9, "reuse: an earlier model fits this window better")
    assert place.stages() == ["serving"]


def test_the_reason_that_is_read_is_the_one_that_the_engine_writes() -> None:
    text = Path(__file__).parents[4].joinpath("scheduler/engine.py").read_text()
    assert 'f"not better on this camera\'s labels: {qualities[version]:.3f} against {event.serving_quality:.3f}"' in text


def test_the_same_bundle_is_never_measured_twice_whatever_brings_it(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE)
    place.shelf.reject("gate", place.candidates()[0], "not better on this camera's labels: 0.6 against 0.7")
    place.post.parcels["north.again"] = place.post.parcels["north.r1"]
    place.offer(GATE, rollout="r2", parcel="north.again")
    assert place.stages() == ["refused"]
    assert place.candidates() == []
    place.bundle("north.other", 8)
    place.offer(GATE, rollout="r3", parcel="north.other")
    assert place.stages() == ["judging"]


@pytest.mark.parametrize("spoil", ["cut", "nonsense"])
def test_what_is_damaged_is_not_even_a_candidate(place: Place, spoil: str) -> None:
    place.bundle("north.r1", 7)
    data = place.post.parcels["north.r1"]
    place.post.parcels["north.r1"] = {"cut": data[:-9], "nonsense": b"PK nothing"}[spoil]
    place.offer(GATE, ELSEWHERE)
    assert place.stages() == ["failed", "failed"]
    assert place.book.words()[0].problem != ""
    assert place.book.words()[1].problem == "it is not watched here"
    assert [m.state for m in place.store.models("gate")] == [ModelState.SERVING]
    assert not list((place.folder.root / "offers").glob("*.driftbox"))


def test_what_a_stranger_signed_waits_until_his_key_is_trusted(place: Place) -> None:
    stranger = KeyRing(place.root / "stranger")
    place.bundle("north.r1", 7, stranger)
    place.offer(GATE)
    (word,) = place.book.words()
    assert word.stage == "judging", "no answer: it was never judged"
    assert "does not trust" in word.problem
    assert "driftbox models trust" in word.problem
    assert place.candidates() == []
    assert not list((place.folder.root / "offers").glob("*.driftbox"))
    place.post.away = True
    for _ in range(3):
        assert not place.book.settle(), "it is looked at again"
    assert place.book.words() == (word,), "and not fetched again for nothing"
    place.post.away = False

    public = place.root / "stranger.pub"
    public.write_bytes(public_pem(stranger.signer().public))
    KeyRing(place.folder.root).trust(public)
    assert place.book.settle()
    assert len(place.candidates()) == 1
    assert [(word.stage, word.problem) for word in place.book.words()] == [("judging", "")]
    place.shelf.admit("gate", place.candidates()[0], 0.9)
    assert place.stages() == ["serving"]


def test_withdrawn_a_candidate_goes_and_what_serves_gives_its_place_back(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE, YARD)
    place.shelf.admit("gate", place.candidates("gate")[0], 0.9)
    before = time.time()
    place.offer(GATE, YARD, parcel="", withdraw=True)
    assert place.stages() == ["withdrawn", "withdrawn"]
    assert place.store.serving("gate")["gate"].id == "gate-000001"
    assert place.candidates("yard") == []
    place.offer(GATE, YARD, parcel="", withdraw=True)  # told again: nothing more happens
    assert place.stages() == ["withdrawn", "withdrawn"]
    assert place.store.serving("gate")["gate"].id == "gate-000001"
    assert time.time() - before < 60


def test_an_offer_that_stands_no_more_changes_nothing(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.offer(GATE)
    waiting = place.candidates()
    place.book.take([])
    assert place.book.words() == ()
    assert place.candidates() == waiting


def test_it_waits_while_the_fleet_is_away_and_goes_on_by_itself(place: Place) -> None:
    place.bundle("north.r1", 7)
    place.post.away = True
    place.offer(GATE)
    assert place.stages() == ["judging"]
    place.book.take(place.book._offers)
    place.post.away = False
    end_s = time.monotonic() + 20
    while not place.candidates() and time.monotonic() < end_s:
        pass
    assert len(place.candidates()) == 1


def test_a_kill_between_import_and_anything_else_brings_it_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.bundle("north.r1", 7)
    monkeypatch.setattr(
        "edge.fleet.offers.import_model", lambda *a, **k: (_ for _ in ()).throw(EnvironmentLacking("full", code="full"))
    )
    place.offer(GATE)
    assert (place.stages(), place.candidates()) == (["judging"], [])
    monkeypatch.undo()
    for _ in range(2):
        place.book = place.started()
        place.offer(GATE)
    assert len(place.store.models("gate")) == 2
