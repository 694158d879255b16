"""A handoff phase by phase: what moves it on, what undoes it, what each box is told in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.placement.handoff import HandoffRules, advance_handoffs, begin_handoff, orders_of
from cluster.placement.plan import describe
from cluster.placement.sight import labels_stay
from cluster.types import BoxView, CameraLease, FleetState
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, CameraWord, Confirmation

GATE = CameraKey(home="a", camera="gate")
RULES = HandoffRules()
PARCEL = "b.a.gate.1"


class Story:
    """A state that words and time change."""

    def __init__(self, cause: str = "move") -> None:
        self.at_s, self.dead = 1000.0, set[str]()
        self.state = FleetState(
            term=1,
            boxes={id: BoxView(id=id, site="s", joined_utc_s=0, online=True, seen_utc_s=1000.0) for id in ("a", "b", "c")},
        )
        self.state = begin_handoff(self.state, GATE, "b", cause=cause, reason="because", rules=RULES, now_utc_s=1000.0)  # type: ignore[arg-type]

    def say(self, box: str, stage: str, term: int, **more: object) -> Story:
        word = CameraWord(camera=GATE, term=term, stage=stage, **more)  # type: ignore[arg-type]
        report = BoxReport(
            box=box, site="s", boot="b", sequence=1, sent_utc="", software="", capacity_pct=100, spare_pct=0, memory_mib=None,
            networks=(), cameras=(), confirmation=Confirmation(term=1, version=1, cameras=(word,)),
        )  # fmt: skip
        return self.see(box, report=report)

    def see(self, box: str, **what: object) -> Story:
        view = replace(self.state.boxes[box], **what)  # type: ignore[arg-type]
        self.state = replace(self.state, boxes={**self.state.boxes, box: view})
        return self

    def packed(self) -> Story:
        self.state = replace(self.state, parcels=frozenset({PARCEL}))
        return self

    def after(self, seconds: float = 0.0, *, silent: tuple[str, ...] = ()) -> Story:
        self.at_s += seconds
        self.dead |= set(silent)
        for box in self.state.boxes:
            if box not in self.dead:
                self.see(box, seen_utc_s=self.at_s)
        self.state = advance_handoffs(self.state, RULES, self.at_s).state
        return self

    def dies(self, box: str) -> Story:
        self.see(box, online=False)
        return self.after(21.0, silent=(box,))

    @property
    def phase(self) -> str:
        return self.state.handoffs[GATE].phase

    @property
    def lease(self) -> CameraLease:
        return self.state.leases[GATE]

    def told(self) -> dict[str, tuple[str, int, str, float | None]]:
        return {b: (o.role, o.term, o.parcel, o.after_s) for b, orders in orders_of(self.state).items() for o in orders}


def in_phase(phase: str) -> Story:
    story = Story()
    steps = {
        "prepare": lambda: story, "warm": lambda: story.packed().after(), "switch": lambda: story.say("b", "warm", 1).after(),
        "release": lambda: story.say("b", "owning", 1).after(), "done": lambda: story.say("a", "released", 1, last_s=77.5).after(),
    }  # fmt: skip
    for name, step in steps.items():
        step()
        if name == phase:
            break
    assert story.phase == phase
    return story


@pytest.mark.parametrize(("consent", "stays"), [(False, "without consent its labels stay on box a"), (True, ""), (None, "")])
def test_whether_a_cameras_labels_follow_it_is_told_with_the_move(consent: bool | None, stays: str) -> None:
    story = Story().packed()
    seen = () if consent is None else (CameraReport(camera=GATE, customer="house", consent=consent),)
    story.say("a", "owning", 0)
    report = story.state.boxes["a"].report
    assert report is not None
    story.see("a", report=replace(report, cameras=seen))
    (said,) = advance_handoffs(story.state, RULES, story.at_s).said
    assert said == "camera a/gate, a -> b, warm (move: because)" + (f"; {stays}" if stays else "")
    on_its_way = describe(story.after().state)
    assert on_its_way == (
        {} if consent is None else {GATE: "on its way to b (warm): because" + (f"; {stays}" if stays else "")}
    )


def test_a_dead_box_sends_no_labels() -> None:
    story = Story(cause="takeover")
    assert labels_stay(story.state, story.state.handoffs[GATE]) == "its labels stay on box a, which is gone"


def test_what_each_box_is_told_in_each_phase() -> None:
    assert in_phase("prepare").told() == {"a": ("own", 0, PARCEL, 0.0)}
    assert in_phase("warm").told() == {"a": ("own", 0, "", 0.0), "b": ("warm", 1, PARCEL, 0.0)}
    assert in_phase("switch").told() == {"a": ("own", 0, "", 0.0), "b": ("own", 1, PARCEL, None)}
    assert in_phase("release").told() == {"a": ("release", 1, "", 0.0), "b": ("own", 1, PARCEL, None)}
    assert in_phase("done").told() == {"a": ("release", 1, "", 0.0), "b": ("own", 1, PARCEL, 77.5)}


STATE = "b.a.gate.1.state"


def states(story: Story) -> dict[str, str]:
    return {b: o.state for b, orders in orders_of(story.state).items() for o in orders}


def test_the_state_is_asked_for_with_the_release_and_named_to_the_target_when_it_lies_here() -> None:
    for phase in ("prepare", "warm", "switch"):
        assert set(states(in_phase(phase)).values()) == {""}
    story = in_phase("release")
    assert states(story) == {"a": STATE, "b": ""}
    assert story.say("a", "leaving", 1, last_s=77.5).after().phase == "release", "it is still packing"
    story.state = replace(story.state, parcels=story.state.parcels | {STATE})
    assert story.say("a", "released", 1, last_s=77.5).after().phase == "done"
    assert states(story) == {"a": "", "b": STATE}
    assert story.told()["b"] == ("own", 1, PARCEL, 77.5)


def test_a_source_without_a_state_is_released_all_the_same() -> None:
    """An older box, or one that could not pack it, says `released`, and nothing lies here."""
    assert states(in_phase("done")) == {"a": "", "b": ""}


def test_a_source_that_packs_for_ever_is_not_waited_for_and_what_it_has_told_is_not_told_again() -> None:
    story = in_phase("release").say("a", "leaving", 1, last_s=77.5).after(16.0)
    assert story.phase == "done"
    assert story.told()["b"] == ("own", 1, PARCEL, 77.5)
    assert states(story)["b"] == ""


def test_no_state_goes_to_who_gets_the_camera_back() -> None:
    story = in_phase("release")
    story.state = replace(story.state, parcels=story.state.parcels | {STATE})
    assert story.dies("b").phase == "undone"
    assert states(story)["a"] == ""


def test_the_lease_changes_hands_with_the_switch_and_not_before() -> None:
    assert (in_phase("warm").lease.box, in_phase("switch").lease.box) == ("a", "b")
    assert in_phase("switch").lease.term == 1


@pytest.mark.parametrize(("phase", "box"), [("prepare", "a"), ("prepare", "b"), ("warm", "b")])
def test_before_the_switch_whoever_dies_leaves_it_with_the_source(phase: str, box: str) -> None:
    story = in_phase(phase).dies(box)
    assert story.phase == "undone"
    assert (story.lease.box, story.lease.term) == ("a", 1), "the term that the target has heard of is used up"
    assert "is gone" in story.state.handoffs[GATE].problem


def test_a_warm_target_goes_on_when_the_source_dies() -> None:
    story = in_phase("warm").dies("a")
    assert story.phase == "warm"
    assert story.say("b", "warm", 1).after().phase == "switch"
    assert story.say("b", "owning", 1).after().phase == "done", "nobody is left to be released"
    assert story.lease.after_s == 0.0


@pytest.mark.parametrize("phase", ["switch", "release"])
def test_a_target_that_dies_gives_it_back_by_a_new_term(phase: str) -> None:
    story = in_phase(phase).dies("b")
    assert story.phase == "undone"
    assert (story.lease.box, story.lease.term) == ("a", 2)
    assert story.told()["a"][:2] == ("own", 2)
    assert "b" not in story.told()


def test_a_source_that_dies_while_it_is_released_is_not_waited_for() -> None:
    story = in_phase("release").say("a", "owning", 0, last_s=70.0)
    story.dies("a")
    assert (story.phase, story.lease.after_s) == ("done", 70.0)
    slow = in_phase("release").say("a", "owning", 0, last_s=71.0).after(16.0)
    assert (slow.phase, slow.lease.after_s) == ("done", 71.0), "nor is one that does not answer"


@pytest.mark.parametrize(("phase", "seconds"), [("prepare", 61.0), ("warm", 61.0), ("switch", 21.0)])
def test_what_takes_too_long_is_undone(phase: str, seconds: float) -> None:
    story = in_phase(phase).after(seconds)
    assert story.phase == "undone"
    assert story.lease.box == "a"


def test_a_target_that_cannot_says_so() -> None:
    story = in_phase("warm").say("b", "failed", 1, problem="no such model").after()
    assert "no such model" in story.state.handoffs[GATE].problem
    assert in_phase("switch").say("b", "failed", 1, problem="disk full").after().lease.box == "a"


@pytest.mark.parametrize(
    ("phase", "box", "stage"), [("warm", "b", "warm"), ("switch", "b", "owning"), ("release", "a", "released")]
)
def test_words_of_an_older_term_move_nothing(phase: str, box: str, stage: str) -> None:
    assert in_phase(phase).say(box, stage, 0).after().phase == phase


def test_home_is_watched_even_if_its_guest_cannot_be_packed() -> None:
    story = in_phase("done")
    story.state = begin_handoff(story.state, GATE, "a", cause="return", reason="", rules=RULES, now_utc_s=story.at_s)
    assert story.told() == {"a": ("release", 1, "", 0.0), "b": ("own", 1, "a.a.gate.2", 77.5)}
    story.after(61.0)
    assert (story.phase, story.told()["a"]) == ("warm", ("warm", 2, "", 0.0))
    story.say("a", "warm", 2).after().say("a", "owning", 2).after()
    assert story.told() == {"a": ("own", 2, "", None), "b": ("release", 2, "", 0.0)}
    story.say("b", "released", 2, last_s=99.0).after()
    assert story.told() == {"a": ("own", 2, "", 99.0), "b": ("release", 2, "", 0.0)}
    story.after(601.0)
    assert GATE not in story.state.handoffs
    assert story.told() == {"a": ("own", 2, "", 99.0)}


def test_a_takeover_changes_the_lease_at_once() -> None:
    story = Story()
    lease = CameraLease(camera=GATE, box="a", term=4, since_utc_s=0, standby="b", standby_parcel="b.x.y.4")
    story.state = replace(story.state, handoffs={}, leases={GATE: lease})
    story.say("a", "owning", 4, last_s=50.0)
    story.state = begin_handoff(story.state, GATE, "b", cause="takeover", reason="", rules=RULES, now_utc_s=story.at_s)
    assert story.told() == {"a": ("release", 5, "", 0.0), "b": ("own", 5, "b.x.y.4", 50.0)}
    assert story.after(300.0).phase == "switch", "there is nobody to give it back to"
    assert story.say("b", "owning", 5).after().phase == "done"
    assert story.lease.standby == ""


def test_nothing_begins_twice_and_nothing_goes_where_it_is() -> None:
    story = Story()
    assert begin_handoff(story.state, GATE, "c", cause="move", reason="", rules=RULES, now_utc_s=1.0) is story.state
    fresh = replace(story.state, handoffs={})
    assert begin_handoff(fresh, GATE, "a", cause="move", reason="", rules=RULES, now_utc_s=1.0) is fresh


# --- an old copy of the controller's data -----------------------------------------------------------------------------


def heard_of(*words: tuple[str, str, int]) -> Story:
    """What boxes say of a camera that this controller has never moved."""
    story = Story()
    story.state = replace(story.state, handoffs={}, leases={}, listens_utc_s=1000.0)
    for box, stage, term in words:
        story.say(box, stage, term, parcel=f"{box}.a.gate.{term}.v7" if stage == "owning" else "")
    return story


def test_who_owns_by_the_newest_term_that_the_home_knows_keeps_the_camera() -> None:
    story = heard_of(("a", "released", 7), ("c", "owning", 7), ("b", "owning", 3)).after(1.0)
    assert (story.lease.box, story.lease.term, story.lease.parcel) == ("c", 7, "c.a.gate.7.v7")
    told = story.told()
    assert told["c"] == ("own", 7, "c.a.gate.7.v7", 0.0), "with what it begins from after a restart"
    assert told["a"][:2] == ("release", 7)
    assert "b" not in told


def test_a_camera_that_came_home_meanwhile_is_at_home() -> None:
    story = heard_of(("a", "owning", 4)).after(1.0)
    assert (story.lease.box, story.lease.term, story.lease.cause) == ("a", 4, "")


def test_a_handoff_of_the_past_is_over() -> None:
    story = in_phase("warm").say("a", "released", 5).say("c", "owning", 5).after()
    assert story.state.handoffs == {}
    assert (story.lease.box, story.lease.term) == ("c", 5)


def test_where_nobody_owns_by_it_all_are_heard_before_the_known_one_does_by_a_higher_term() -> None:
    story = heard_of(("a", "released", 7))
    story.see("c", seen_utc_s=0.0)
    story.after(1.0, silent=("c",))
    assert story.state.leases == {}, "box c may yet say that it owns it"
    story.after(14.0)
    assert (story.lease.box, story.lease.term) == ("a", 8)
    assert (story.say("a", "owning", 8).after(1.0).lease.term) == 8


def test_two_who_own_by_one_term_are_not_chosen_between() -> None:
    story = heard_of(("a", "released", 7), ("b", "owning", 7), ("c", "owning", 7)).after(1.0)
    assert (story.lease.box, story.lease.term) == ("a", 8)


def test_only_the_home_of_a_camera_is_believed() -> None:
    story = heard_of(("b", "owning", 99)).after(100.0)
    assert story.state.leases == {}
