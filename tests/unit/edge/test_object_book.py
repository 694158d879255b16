"""The book of tracked objects: what is told, when, and in which order, whatever is seen and whatever clocks do."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from edge.objects.book import OPEN_MAX, ObjectBook, Rules, Seen
from edge.objects.types import ObjectEvent

UTC = 1_790_000_000.0


def book(**rules: float) -> ObjectBook:
    numbers = count()
    return ObjectBook("gate", new_id=lambda utc: f"{int(utc * 1000)}-{next(numbers):08x}", rules=Rules(**rules))  # type: ignore[arg-type]


def seen(
    track: int = 1, *, at: float = 0.3, score: float = 0.8, name: str = "person", zones: Iterable[str] = (), size: float = 0.1,
    crossed: dict[str, str] | None = None,
) -> Seen:  # fmt: skip
    return Seen(
        track=track,
        class_name=name,
        score=score,
        box=(at, 0.3, at + size, 0.3 + size),
        zones=frozenset(zones),
        crossed=crossed or {},
    )


class Story:
    """A book fed frame by frame, five a second."""

    def __init__(self, **rules: float) -> None:
        self.book, self.at_s, self.events, self.pictures = book(**rules), 100.0, list[ObjectEvent](), list[set[str]]()

    def frame(self, *what: Seen, after_s: float = 0.2, utc: float | None = None) -> list[ObjectEvent]:
        self.at_s += after_s
        told = self.book.see(what, at_s=self.at_s, at_utc=UTC + self.at_s if utc is None else utc, version="gate-1")
        self.events += told.events
        self.pictures.append(set(told.pictures))
        return list(told.events)

    def walk(self, frames: int, **what: object) -> None:
        for n in range(frames):
            self.frame(seen(at=0.1 + 0.02 * n, **what))  # type: ignore[arg-type]

    @property
    def story(self) -> list[str]:
        return [event.what for event in self.events]


def test_an_object_is_new_after_enough_frames_and_ends_when_it_is_lost() -> None:
    story = Story()
    assert story.frame(seen()) == []
    assert story.frame(seen()) == []
    (new,) = story.frame(seen(score=0.9))
    assert (new.what, new.class_name, new.camera, new.score, new.version) == ("new", "person", "gate", 0.9, "gate-1")
    assert new.started_utc == UTC + 100.2
    assert story.frame() == []
    (end,) = story.frame(after_s=4.1)
    assert (end.what, end.id, end.ended_utc) == ("end", new.id, new.seen_utc)
    assert story.book.open() == ()


def test_what_is_never_sure_enough_is_never_told() -> None:
    story = Story()
    for _ in range(50):
        story.frame(seen(score=0.45))
    story.frame(after_s=10.0)
    assert story.events == []


def test_one_sure_frame_among_many_is_enough() -> None:
    story = Story()
    for score in (0.3, 0.3, 0.3, 0.6):
        story.frame(seen(score=score))
    assert story.story == ["new"]


def test_what_stands_still_is_not_told_again_and_again() -> None:
    story = Story()
    for _ in range(3000):  # ten minutes
        story.frame(seen())
    assert story.story[0] == "new"
    assert len(story.story) <= 5
    assert story.events[-1].extra["still"] is True
    assert story.book.active_since_s() is None


def test_what_moves_is_told_every_few_seconds() -> None:
    story = Story(update_s=2.0)
    for n in range(100):  # 20 s
        story.frame(seen(at=0.1 + 0.007 * n))
    assert 8 <= story.story.count("update") <= 14
    assert story.book.active_since_s() == 100.2


def test_zones_are_entered_after_two_frames_and_left_after_a_while() -> None:
    story = Story(update_s=1000.0)
    for _ in range(3):
        story.frame(seen())
    assert story.frame(seen(zones=["door"])) == []
    (entered,) = story.frame(seen(zones=["door"]))
    assert (entered.what, entered.zones, entered.zones_been) == ("update", ("door",), ("door",))
    assert story.book.in_zones() == {"door": {"person": 1}}
    for _ in range(9):  # it trembles at the edge for less than two seconds
        assert story.frame(seen()) == []
    assert story.frame(seen(zones=["door"])) == []
    told = [event for _ in range(12) for event in story.frame(seen())]
    assert [(event.zones, event.zones_been) for event in told] == [((), ("door",))]
    assert story.book.in_zones() == {}


def test_a_zone_it_only_brushes_is_not_told() -> None:
    story = Story(update_s=1000.0)
    for n in range(20):
        story.frame(seen(zones=["door"] if n == 8 else []))
    assert all(event.zones_been == () for event in story.events)


def test_time_in_zones_adds_up() -> None:
    story = Story()
    story.walk(11, zones=["door"])
    (end,) = story.frame(after_s=5.0)
    assert end.extra["dwell_s"] == {"door": 1.8}
    assert end.zones == ()


def test_lines_are_told_with_their_way_and_counted_once_they_are_objects() -> None:
    story = Story(update_s=1000.0)
    story.frame(seen(crossed={"gate": "in"}))  # not an object yet
    assert story.book.crossings == {}
    story.frame(seen())
    (new,) = story.frame(seen())
    assert new.lines == {"gate": "in"}
    assert story.book.crossings == {"gate": {"in": 1}}
    (update,) = story.frame(seen(crossed={"gate": "out"}))
    assert update.lines == {"gate": "out"}
    assert story.book.crossings == {"gate": {"in": 1, "out": 1}}


def test_the_class_is_what_most_scores_speak_for() -> None:
    story = Story(update_s=1000.0)
    for name in ("car", "person", "person"):
        story.frame(seen(name=name))
    assert story.events[0].class_name == "person"
    story.frame(seen(name="car"))
    assert story.book.present() == {"person": 1}  # 1.6 against 1.6: not clearly ahead
    for _ in range(3):
        story.frame(seen(name="car"))
    assert story.book.present() == {"car": 1}
    assert story.events[-1].class_name == "car"


def test_a_better_picture_is_made_and_a_slightly_better_one_is_not() -> None:
    story = Story(update_s=1000.0)
    for _ in range(3):
        story.frame(seen(score=0.6))
    first = story.events[0].id
    assert story.pictures[-1] == {first}
    for _ in range(10):
        story.frame(seen(score=0.62))
    assert all(not pictures for pictures in story.pictures[3:])
    (update,) = story.frame(seen(score=0.95, size=0.2))
    assert story.pictures[-1] == {first}
    assert update.what == "update"
    story.frame(seen(score=0.95, size=0.5))
    assert story.pictures[-1] == set()  # not twice within a second


def test_one_cut_off_by_the_edge_is_worth_less() -> None:
    story = Story(update_s=1000.0)
    for _ in range(3):
        story.frame(seen(at=0.0, size=0.2))
    for _ in range(6):
        story.frame(seen(at=0.4, size=0.2))
    assert [len(pictures) for pictures in story.pictures if pictures] == [1, 1]


def test_a_camera_that_falls_silent_ends_its_objects_when_they_were_last_seen() -> None:
    story = Story()
    story.walk(5)
    assert story.book.silence(story.at_s + 14.0).events == ()
    (end,) = story.book.silence(story.at_s + 15.5).events
    assert (end.what, end.ended_utc) == ("end", UTC + 101.0)


def test_a_camera_that_goes_ends_everything_at_once() -> None:
    story = Story()
    for _ in range(3):
        story.frame(seen(1), seen(2, at=0.6))
    ends = story.book.close().events
    assert [event.what for event in ends] == ["end", "end"]
    assert story.book.close().events == ()


def test_times_of_an_object_follow_the_monotonic_clock_when_the_wall_clock_is_set() -> None:
    story = Story(update_s=1.0)
    story.walk(4)
    for _ in range(10):
        story.frame(seen(at=0.5), utc=UTC - 86_400.0)
    (end,) = story.frame(after_s=60.0, utc=UTC + 1e8)
    assert end.ended_utc is not None
    assert abs((end.ended_utc - end.started_utc) - 2.6) < 1e-6


def test_noise_does_not_open_objects_without_end() -> None:
    story = Story()
    story.frame(*(seen(track) for track in range(3 * OPEN_MAX)))
    assert len(story.book._of_track) == OPEN_MAX


# --- properties -------------------------------------------------------------------------------------------------------

frames = st.lists(
    st.tuples(
        st.floats(-5.0, 20.0),  # until the next frame; frames may come late or early
        st.floats(-1e6, 1e6),  # how wrong the wall clock is
        st.lists(
            st.builds(
                seen, track=st.integers(1, 6), at=st.floats(0.0, 0.8), score=st.floats(0.2, 1.0),
                name=st.sampled_from(["person", "car"]),
                zones=st.lists(st.sampled_from(["door", "yard"]), max_size=2), size=st.floats(0.02, 0.2),
                crossed=st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["in", "out"]), max_size=1),
            ),
            max_size=5, unique_by=lambda one: one.track,
        ),
        st.sampled_from(["see", "see", "see", "silence"]),
    ),
    max_size=60,
)  # fmt: skip


@given(frames)
def test_every_new_has_one_end_updates_lie_between_and_times_never_run_back(
    steps: list[tuple[float, float, list[Seen], str]],
) -> None:
    kept, at_s, events = book(start_frames=2, update_s=0.5), 1000.0, list[ObjectEvent]()
    for after_s, wrong_s, what, how in steps:
        at_s += after_s
        told = kept.see(what, at_s=at_s, at_utc=UTC + at_s + wrong_s) if how == "see" else kept.silence(at_s)
        events += told.events
        assert told.pictures <= {event.id for event in told.events}
        assert sum(kept.present().values()) == len(kept.open())
    events += kept.close().events
    assert kept.open() == ()
    stories: dict[str, list[ObjectEvent]] = {}
    for event in events:
        stories.setdefault(event.id, []).append(event)
    for story in stories.values():
        whats = [event.what for event in story]
        assert whats[0] == "new"
        assert whats[-1] == "end"
        assert set(whats[1:-1]) <= {"update"}
        times = [event.seen_utc for event in story]
        assert times == sorted(times)
        assert len({event.started_utc for event in story}) == 1
        assert story[0].started_utc <= times[0]
        assert all(event.ended_utc is None for event in story[:-1])
        assert story[-1].ended_utc == times[-1]
        assert [e.score for e in story] == sorted(e.score for e in story)
        been = [event.zones_been for event in story]
        assert all(later[: len(earlier)] == earlier for earlier, later in zip(been, been[1:], strict=False))
        assert all(set(event.zones) <= set(event.zones_been) for event in story)


@given(st.lists(st.floats(0.05, 3.9), min_size=4, max_size=40))
def test_a_track_that_is_seen_within_the_time_keeps_its_id(gaps_s: list[float]) -> None:
    story = Story()
    for after_s in gaps_s:
        story.frame(seen(), after_s=after_s)
    assert len({event.id for event in story.events}) == 1
    assert "end" not in story.story
