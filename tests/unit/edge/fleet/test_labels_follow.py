"""The labels of a camera follow it to another box: all of them, once, by consent, whatever is killed; and home again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import EnvironmentLacking, StorageError, UsageError
from edge.fleet import labels_arrive, labels_leave
from edge.fleet import notes as notes_module
from edge.fleet import samples as samples_module
from edge.fleet.envelope import certificate_of, open_sealed, seal
from edge.fleet.labels_arrive import GONE_S, KEPT_S, ArrivingLabels, Expected, Place, expected, facts
from edge.fleet.labels_leave import LeavingLabels, request_of, rest_of
from edge.fleet.samples import Giving
from models.fake import scripted_image
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, PartSent, end_parcel, part_parcel
from scheduler.types import Detections, Frame
from streams import samples as store_module
from streams.label_file import SampleLabels
from streams.masks import Mask
from streams.sample_record import digest
from streams.samples import SampleRef
from tests.support.pooled_fleet import Fleet, GivingBox

YES = Giving(consent=True)
PARCEL = "b.a.gate.1"
REQUEST = request_of(PARCEL)
#: On box b the camera has another name.
GUEST = "a--gate"
PATIENCE_S = 60.0


class Side:
    """A box that gives labels and takes them. open: cameras that are watched; window: its open one; said: notes; learned: told to the
    engine; full: its disk is."""

    def __init__(self, fleet: Fleet, name: str, cameras: dict[str, Giving]) -> None:
        self.giving: GivingBox = fleet.box(name, cameras)
        self.fleet, self.name, self.store = fleet, name, self.giving.store
        self.open, self.known, self.window, self.full = set(cameras), set(cameras), 5, False
        self.heard = threading.Event()
        self.said, self.learned = list[str](), list[tuple[str, str, int]]()
        self.at_utc = fleet.now_utc
        self.start()

    def start(self) -> None:
        """As after a restart."""
        root = self.giving.root
        box = replace(self.giving.box, utc=lambda: self.at_utc)
        place = Place(
            store=self.store, window=lambda: self.window, here=lambda camera: camera in self.known, say=self._say,
            learned=lambda *what: self.learned.append(what), audit=lambda *entry: self.giving.told.append(entry),
            require_room=self._room, utc=lambda: self.at_utc,
        )  # fmt: skip
        self.leaving = LeavingLabels(lambda: box, root / "leaving", watched=lambda camera: camera in self.open, say=self._say)
        self.arriving = ArrivingLabels(place, root / "arriving", member=lambda: self.giving.box.member, post=self.fleet.post)

    def _say(self, camera: str, text: str) -> None:
        self.said.append(f"{camera}: {text}")
        self.heard.set()

    def _room(self) -> None:
        if self.full:
            raise StorageError("no space left", code="full")

    def sets_out(self, camera: str = "gate", parcel: str = PARCEL, giving: Giving = YES) -> None:
        self.leaving.begin(camera, parcel, giving, now_utc=self.at_utc)

    def closes(self, camera: str = "gate") -> None:
        self.leaving.close(camera)
        self.open.discard(camera)

    def expects(self, sender: str = "a", camera: str = GUEST, parcel: str = PARCEL, **more: Any) -> None:
        self.known.add(camera)
        said = facts(request_of(parcel), **{"newest": 9, "learned": 8, **more})
        coming = expected({"pictures": said, "version": "gate-7"}, sender, camera, now_utc=self.at_utc)
        assert coming is not None
        self.arriving.expect(coming)

    def add(self, window: int, seq: int, split: str = "train", camera: str = "gate", **more: Any) -> SampleRef:
        return self.giving.add(camera, window, seq, split=split, **more)

    def labels(self, camera: str) -> dict[tuple[int, int], SampleLabels]:
        return {(ref.window, ref.seq): self.store.load_labels(ref) for ref in self.store.list(camera)}

    def pictures(self, camera: str) -> list[bytes]:
        return [self.store.picture_bytes(ref) for ref in self.store.list(camera)]


class Two:
    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder)
        self.a, self.b = Side(self.fleet, "a", {"gate": YES}), Side(self.fleet, "b", {})

    def go(self) -> None:
        """Everything of the journey from a to b."""
        self.a.sets_out()
        self.b.expects()
        self.a.leaving.look()
        self.a.closes()
        self.a.leaving.look()
        self.b.arriving.look()


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def picture_of(side: Side, ref: SampleRef) -> bytes:
    return side.store.picture_bytes(ref)


# --- there ----------------------------------------------------------------------------------------------------------------


def test_all_that_is_labelled_comes_as_it_was_in_windows_of_this_box(two: Two) -> None:
    train, held_out = two.a.add(9, 1), two.a.add(9, 2, "holdout")
    old, corrected, out = two.a.add(8, 3), two.a.add(7, 4), two.a.add(9, 5)
    two.a.store.correct(corrected, scripted_image(4)[1])
    two.a.store.ignore(out)
    two.a.store.add(Frame(stream="gate", seq=6, captured_s=0.0, captured_utc=0.0, image=scripted_image(6)[0]), 9)  # no labels
    two.go()
    found = two.b.labels(GUEST)
    # Window 9 of a is window 4 of b, the newest one that is over there.
    assert sorted(found) == [(2, 4), (3, 3), (4, 1), (4, 2), (4, 5)]
    assert found[4, 2].split == "holdout"
    assert found[2, 4].by == "person"
    assert found[4, 5].left_out == "ignored"
    for there, here in ((train, (4, 1)), (held_out, (4, 2)), (old, (3, 3)), (corrected, (2, 4)), (out, (4, 5))):
        ref = SampleRef(stream=GUEST, window=here[0], seq=here[1])
        assert two.b.store.picture_bytes(ref) == picture_of(two.a, there)
        np.testing.assert_array_equal(found[here].detections.xyxy, two.a.store.load_labels(there).detections.xyxy, strict=True)
    assert len(two.a.store.list("gate", labelled=True)) == 5, "they stay where they were made, too"
    assert two.b.said == [f"{GUEST}: 5 labelled pictures have followed it from box a; a person labelled 2 of them"]
    assert two.b.learned == [(GUEST, "gate-7", 3)]  # window 8 of a
    assert not two.fleet.post.parcels, "what has come is not kept by the controller"
    assert not list((two.b.giving.root / "arriving").iterdir())
    assert not list((two.a.giving.root / "leaving").glob("*.json"))


def test_only_its_box_can_read_what_is_on_its_way(two: Two) -> None:
    two.a.add(9, 1)
    two.a.sets_out()
    two.a.leaving.look()
    assert part_parcel("b", REQUEST, "a", 0) in two.fleet.post.parcels
    for name, data in two.fleet.post.parcels.items():
        assert b"\xff\xd8\xff" not in data, f"a picture lies open in {name}"
        assert b"xyxy" not in data


def test_every_step_is_in_the_audit_log_of_both(two: Two) -> None:
    two.a.add(9, 1)
    two.go()
    told = [action for action, *_ in two.a.giving.told]
    assert told[:4] == ["fleet.samples.asked", "fleet.samples.planned", "fleet.samples.given", "fleet.samples.given"]
    assert "the camera moves to b" in two.a.giving.told[0][2]
    assert ("fleet.labels.taken", "ok", f"{GUEST} from a: 1 new, 0 here already, 0 parts refused") in two.b.giving.told


def test_what_is_labelled_after_it_set_out_follows_when_it_is_closed(two: Two) -> None:
    first = two.a.add(9, 1)
    two.a.add(9, 2)
    two.a.sets_out()
    two.b.expects()
    two.a.leaving.look()
    two.b.arriving.look()
    assert len(two.b.labels(GUEST)) == 2
    two.a.store._utc = lambda: two.a.at_utc + 1
    two.a.store.correct(first, scripted_image(5)[1])
    two.a.add(9, 3)
    two.a.leaving.close("gate")
    two.a.leaving.look()
    assert end_parcel("b", rest_of(REQUEST), "a") not in two.fleet.post.parcels, "a job may still label: it is watched"
    two.a.closes()
    two.a.leaving.look()
    two.b.arriving.look()
    found = two.b.labels(GUEST)
    assert sorted(found) == [(4, 1), (4, 2), (4, 3)]
    assert (found[4, 1].by, found[4, 2].by) == ("person", "golden")
    assert "1 labelled pictures have followed it from box a" in two.b.said[1]


def test_a_fresh_box_waits_until_its_first_window_is_over(two: Two) -> None:
    two.a.add(9, 1)
    two.a.add(2, 2)
    two.b.window = 0
    two.go()
    assert two.b.labels(GUEST) == {}
    two.b.window = 1
    two.b.arriving.look()
    assert sorted(two.b.labels(GUEST)) == [(0, 1), (0, 2)]


def test_a_number_that_is_taken_here_is_not_taken_again(two: Two) -> None:
    own = two.b.add(4, 1, camera=GUEST)
    before = two.b.store.picture_bytes(own)
    two.a.add(9, 1)
    two.go()
    assert sorted(two.b.labels(GUEST)) == [(4, 1), (4, 2)]
    assert two.b.store.picture_bytes(own) == before


# --- and home -------------------------------------------------------------------------------------------------------------


def test_home_again_pictures_are_not_doubled_and_what_was_corrected_abroad_counts(two: Two) -> None:
    two.a.add(9, 1)
    two.a.add(9, 2, "holdout")
    third = two.a.add(9, 3)
    two.go()
    for side in (two.a, two.b):
        side.store._utc = lambda: 2000.0
    two.b.store.correct(SampleRef(stream=GUEST, window=4, seq=1), scripted_image(33)[1])
    two.b.add(5, 77, camera=GUEST)  # made there
    two.a.store.correct(third, scripted_image(34)[1])  # while it was away, in old pictures at home
    two.a.window, two.b.window = 20, 6
    back = "a.a.gate.2"
    two.b.open.add(GUEST)
    two.b.sets_out(GUEST, back)
    two.a.expects("b", "gate", back, newest=5, learned=None)
    two.b.leaving.look()
    two.b.closes(GUEST)
    two.b.known.discard(GUEST)  # the guest is gone; what its home had said of consent still counts
    two.b.leaving.look()
    two.a.arriving.look()
    found = two.a.labels("gate")
    assert sorted(found) == [(9, 1), (9, 2), (9, 3), (19, 77)]
    assert len(set(two.a.pictures("gate"))) == 4
    assert found[9, 1].by == "person"
    np.testing.assert_array_equal(found[9, 1].detections.xyxy, scripted_image(33)[1].xyxy)
    assert found[9, 3].by == "person"
    assert found[9, 2].split == "holdout"
    assert "1 labelled pictures have followed it from box b, 3 lay here already; a person labelled 2 of them" in two.a.said[-1]
    assert two.a.learned == []


# --- what does not leave --------------------------------------------------------------------------------------------------


def test_a_consent_that_is_taken_back_ends_it_and_nothing_is_kept(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_leave, "PART_BYTES", 6_000)
    for seq in range(6):
        two.a.add(9, seq)
    real_put = two.fleet.post.put

    def put(parcel: str, data: bytes) -> None:
        real_put(parcel, data)
        two.a.giving.cameras["gate"] = Giving()

    monkeypatch.setattr(two.fleet.post, "put", put)
    two.go()
    assert two.b.labels(GUEST) == {}
    assert "the consent for gate was taken back" in two.a.said[0]
    assert two.b.said == [f"{GUEST}: its labels stay on box a: the consent for gate was taken back"]


def test_a_picture_from_before_its_mask_stays_and_is_said(two: Two) -> None:
    two.a.add(9, 1)
    black = np.zeros((96, 128, 3), np.uint8)
    two.a.add(9, 2, image=black, truth=Detections.empty())
    two.a.giving.cameras["gate"] = Giving(consent=True, masks=(Mask(((0.1, 0.1), (0.6, 0.1), (0.6, 0.6), (0.1, 0.6))),))
    two.go()
    assert sorted(two.b.labels(GUEST)) == [(4, 2)]
    assert "left there: 1 not masked" in two.b.said[0]


def test_bounded_a_persons_first_then_the_newest(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for window in range(10):
        two.a.add(window, window)
    two.a.store.correct(SampleRef(stream="gate", window=0, seq=0), Detections.empty())
    size = max(len(data) for data in two.a.pictures("gate")) + 1024
    monkeypatch.setattr(labels_leave, "AHEAD_BYTES", 3 * size)
    monkeypatch.setattr(labels_leave, "PART_BYTES", size)
    two.go()
    assert {seq for _, seq in two.b.labels(GUEST)} == {0, 9, 8}
    assert "no room in the request" in two.b.said[0]


def test_old_windows_stay_but_for_a_persons_word(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_leave, "NEWEST_WINDOWS", 2)
    for window in range(6):
        two.a.add(window, window)
    two.a.store.ignore(SampleRef(stream="gate", window=1, seq=1))
    two.go()
    assert {seq for _, seq in two.b.labels(GUEST)} == {1, 4, 5}


def test_a_camera_without_labels_says_nothing(two: Two) -> None:
    two.go()
    assert (two.a.said, two.b.said) == ([], [])
    assert not list((two.b.giving.root / "arriving").iterdir())


# --- kills ----------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@contextmanager
def killed_at(at: int, patched: pytest.MonkeyPatch, two: Two) -> Iterator[Callable[[], bool]]:
    """Every durable write and every parcel is a step; at one of them the process is gone, before or after it was done. Yields whether
    it came so far."""
    steps, hit = iter(range(100_000)), [False]

    def step() -> None:
        if next(steps) == at:
            hit[0] = True
            raise Killed

    with patched.context() as patch:
        for module in (samples_module, notes_module, store_module):
            real = module.atomic_write

            def write(*a: Any, real: Callable[..., None] = real, **k: Any) -> None:
                step()
                real(*a, **k)
                step()

            patch.setattr(module, "atomic_write", write)
        for name in ("put", "remove"):
            carried = getattr(two.fleet.post, name)

            def post(*a: Any, carried: Callable[..., None] = carried) -> None:
                carried(*a)
                step()

            patch.setattr(two.fleet.post, name, post)
        yield lambda: hit[0]


def test_killed_at_every_step_each_label_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_leave, "PART_BYTES", 6_000)
    at = 0
    while True:
        two = Two(tmp_path / str(at))
        for seq in range(3):
            two.a.add(9, seq, "holdout" if seq == 0 else "train")
        two.a.store.correct(SampleRef(stream="gate", window=9, seq=2), scripted_image(8)[1])
        with killed_at(at, monkeypatch, two) as hit:
            for part in (
                two.a.sets_out,
                two.b.expects,
                two.a.leaving.look,
                two.a.closes,
                two.a.leaving.look,
                two.b.arriving.look,
            ):
                try:
                    part()
                except Killed:
                    two.a.start()  # both: nobody remembers anything that is not on disk
                    two.b.start()
                    part = {  # what the fleet says again to a box that was restarted
                        two.a.sets_out: two.a.sets_out,
                        two.b.expects: two.b.expects,
                        two.a.closes: two.a.closes,
                    }.get(part, lambda: None)
                    part()
            two.a.leaving.look()
            two.b.window += 1  # windows go on meanwhile
            two.b.arriving.look()
        found = two.b.labels(GUEST)
        assert sorted(seq for _, seq in found) == [0, 1, 2], f"killed at step {at}"
        assert len(set(two.b.pictures(GUEST))) == 3
        by_seq = {seq: labels for (_, seq), labels in found.items()}
        assert (by_seq[0].split, by_seq[2].by) == ("holdout", "person")
        assert len({window for window, _ in found}) == 1, "one window there is one window here"
        assert len(two.a.labels("gate")) == 3
        if not hit():
            assert at > 25
            return
        at += 1
        assert at < 200, "it never came to its end"


# --- what goes wrong ------------------------------------------------------------------------------------------------------


def test_while_the_fleet_is_away_it_waits_and_then_goes_on(two: Two) -> None:
    two.a.add(9, 1)
    two.fleet.post.away = True
    two.a.sets_out()
    two.b.expects()
    assert two.a.leaving.look() is True
    two.b.arriving.look()
    two.fleet.post.away = False
    two.a.closes()
    assert two.a.leaving.look() is False
    two.b.arriving.look()
    assert len(two.b.labels(GUEST)) == 1


def test_a_disk_without_room_waits(two: Two) -> None:
    two.a.add(9, 1)
    two.b.full = True
    two.go()
    assert two.b.labels(GUEST) == {}
    two.b.full = False
    two.b.arriving.look()
    assert len(two.b.labels(GUEST)) == 1


def test_a_camera_that_did_not_come_is_forgotten(two: Two) -> None:
    two.a.add(9, 1)
    two.b.expects()
    two.b.known.discard(GUEST)
    two.a.sets_out()
    two.a.leaving.look()
    two.b.arriving.look()
    assert list((two.b.giving.root / "arriving").iterdir())
    two.b.at_utc += GONE_S + 1
    two.b.arriving.look()
    assert not list((two.b.giving.root / "arriving").iterdir())
    assert two.b.store.list(GUEST) == []


def test_labels_that_never_come_are_given_up_with_a_word(two: Two) -> None:
    two.b.expects()
    assert two.b.arriving.look() == labels_arrive.LOOK_S
    two.b.at_utc += KEPT_S + 1
    assert two.b.arriving.look() == labels_arrive.LATER_S
    assert two.b.said == [f"{GUEST}: its labels have not come from box a: they stay there"]
    assert not list((two.b.giving.root / "arriving").iterdir())


def test_a_journey_that_was_undone_is_forgotten_in_a_day(two: Two) -> None:
    two.a.add(9, 1)
    two.a.sets_out()
    two.a.leaving.look()
    two.a.at_utc += labels_leave.KEPT_S + 1
    two.a.leaving.look()
    assert not list((two.a.giving.root / "leaving").glob("*.json"))


def test_a_newer_journey_takes_the_place_of_an_older(two: Two) -> None:
    two.a.add(9, 1)
    two.a.sets_out()
    two.a.sets_out(parcel="b.a.gate.3")
    two.a.leaving.look()
    assert end_parcel("b", request_of("b.a.gate.3"), "a") in two.fleet.post.parcels
    assert end_parcel("b", REQUEST, "a") not in two.fleet.post.parcels


def test_a_camera_that_did_not_set_out_is_closed_without_a_trace(two: Two) -> None:
    two.a.closes()
    two.a.leaving.look()
    assert two.fleet.post.puts == []


def lie(two: Two, parcel: str, content: bytes, sender: str = "a") -> None:
    member = two.fleet.member(sender) if sender != "a" else two.a.giving.box.member
    to = certificate_of(two.fleet.post.certificate_of("b"))
    two.fleet.post.parcels[parcel] = seal(content, parcel=parcel, sender=member, addressee=to, now_utc_s=two.fleet.now_utc)


@pytest.mark.parametrize("lies", ["digest", "bytes", "sender", "home"])
def test_a_part_that_is_not_what_it_should_be_is_left_out_and_said(two: Two, lies: str) -> None:
    two.a.add(9, 1)
    two.a.sets_out()
    two.b.expects()
    two.a.leaving.look()
    name = part_parcel("b", REQUEST, "a", 0)
    match lies:
        case "sender":
            lie(two, name, b"x", sender="c")
        case _:
            content = b"no samples" if lies != "home" else _of_another_home(two)
            lie(two, name, content)
            if lies != "digest":
                told = PartSent(sha256=digest(content), samples=1, size_bytes=len(content))
                word = Collected(request=REQUEST, box="a", stage="given", parts=(told,), left_out={})
                lie(two, end_parcel("b", REQUEST, "a"), codec.encode(word))
    two.b.arriving.look()
    assert two.b.labels(GUEST) == {}
    assert "parts that cannot be used" in two.b.said[0]


def _of_another_home(two: Two) -> bytes:
    """Samples that a says are of a camera of box c."""
    other = Side(two.fleet, "c", {"gate": YES})
    other.add(9, 1)
    other.sets_out()
    other.leaving.look()
    name = part_parcel("b", REQUEST, "c", 0)
    return open_sealed(
        two.fleet.post.parcels[name], parcel=name, member=two.b.giving.box.member, now_utc_s=two.fleet.now_utc
    ).content


@pytest.mark.parametrize("word", ["other", "many", "rubbish"])
def test_a_last_word_that_cannot_be_meant_is_not_believed(two: Two, word: str) -> None:
    two.b.expects()
    part = PartSent(sha256="0" * 64, samples=1, size_bytes=1)
    said = Collected(
        request="h1" if word == "other" else REQUEST, box="a", stage="given", left_out={"lies": 1},
        parts=(part,) * (labels_arrive.MOST_PARTS + 1 if word == "many" else 1),
    )  # fmt: skip
    lie(two, end_parcel("b", REQUEST, "a"), b"{" if word == "rubbish" else codec.encode(said))
    two.b.arriving.look()
    assert two.b.labels(GUEST) == {}


@pytest.mark.parametrize(
    "said",
    [None, 3, {}, {"request": "../x", "newest": 1, "learned": None}, {"request": "h1", "newest": -1, "learned": None},
     {"request": "h1", "newest": 10**12, "learned": 0}, {"request": "h1", "newest": 1, "learned": "x"}],
)  # fmt: skip
def test_odd_words_in_a_parcel_mean_that_nothing_follows(said: object) -> None:
    assert expected({"pictures": said}, "a", GUEST, now_utc=0.0) is None


def test_damaged_files_of_what_is_under_way_cost_that_only(two: Two) -> None:
    for folder in ("leaving", "arriving"):
        path = two.a.giving.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in (("gate", "{"), ("yard", '{"camera": "yard"}')):
            (path / f"{name}.json").write_text(text)
    two.a.leaving.look()
    two.a.arriving.look()
    two.a.add(9, 1)
    two.go()
    assert len(two.b.labels(GUEST)) == 1


def test_a_name_that_is_a_path_is_refused(two: Two) -> None:
    with pytest.raises(UsageError):
        two.a.leaving.begin("../x", PARCEL, YES, now_utc=0.0)
    with pytest.raises(UsageError, match="a request"):
        two.b.arriving.expect(Expected(request="../x", sender="a", camera=GUEST, since_utc=0.0, newest=1))


def test_the_threads_do_it_by_themselves_and_end(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    all_sent, real_put = threading.Event(), two.fleet.post.put

    def put(parcel: str, data: bytes) -> None:
        real_put(parcel, data)
        if parcel == end_parcel("b", REQUEST, "a"):
            all_sent.set()

    monkeypatch.setattr(two.fleet.post, "put", put)
    two.a.add(9, 1)
    two.a.sets_out()
    two.b.expects()
    two.a.leaving.start()
    assert all_sent.wait(PATIENCE_S)
    two.b.arriving.start()
    assert two.b.heard.wait(PATIENCE_S)
    for side in (two.a, two.b):
        side.leaving.stop()
        side.arriving.stop()
    assert len(two.b.labels(GUEST)) == 1
    assert not two.a.leaving._thread.is_alive()
    assert not two.b.arriving._thread.is_alive()


def test_a_giver_that_stops_leaves_the_rest_for_the_next_start(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_leave, "PART_BYTES", 6_000)
    for seq in range(4):
        two.a.add(9, seq)
    two.a.sets_out()
    real_put = two.fleet.post.put

    def put(parcel: str, data: bytes) -> None:
        real_put(parcel, data)
        two.a.leaving.stop()

    with monkeypatch.context() as patch:
        patch.setattr(two.fleet.post, "put", put)
        assert two.a.leaving.look() is True
    assert len(two.fleet.post.puts) == 1
    two.a.start()
    two.b.expects()
    two.a.leaving.look()
    two.b.arriving.look()
    assert len(two.b.labels(GUEST)) == 4


def test_who_is_not_a_member_any_more_waits(two: Two) -> None:
    def gone() -> Any:
        raise EnvironmentLacking("the box's membership cannot be read")

    two.a.add(9, 1)
    two.a.sets_out()
    leaving = LeavingLabels(gone, two.a.giving.root / "leaving", watched=lambda c: False, say=lambda c, t: None)
    assert leaving.look() is True
