"""Cameras that learn together: one lesson a window, on the share of what learns, and one verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler import glance
from scheduler import lessons as lessons_module
from scheduler.commands import (
    RejectModel,
    ReportPlan,
    SetShares,
    StartGate,
    StartLabelling,
    StartLook,
    StartProfiling,
    StartReprofiling,
    StartRetraining,
)
from scheduler.engine import PREP_DEADLINE
from scheduler.engine_state import StreamState
from scheduler.events import CameraAdded, CameraRemoved, Event, ModelRolledBack, ProfileOld, Reprofiled, TimerFired
from scheduler.sim.driver import Work
from scheduler.types import RetrainConfig
from tests.support.learning_world import CONFIG, DAY, KNOBS, NIGHT, LearningWorld, Ran, run

CAMERAS = ("a", "b", "c", "d", "e")
SHORT = RetrainConfig(name="short", epochs=1)


def together(**changes: Any) -> Ran:
    options = {
        "windows": 3, "cameras": CAMERAS, "together": True, "overlap": True, "prep_auto": True, "policy": "lookahead",
        "gate_known": True, "count_taught": True, "look_again": True, **changes,
    }  # fmt: skip
    world = options.pop("world", None) or LearningWorld(said=lambda version, truth, window: truth)
    return run(world, **options)


def lessons(ran: Ran) -> list[StartRetraining]:
    return ran.of(StartRetraining)


def test_all_cameras_share_one_lesson_and_each_judges_what_it_made() -> None:
    ran = together(windows=2)
    (lesson,) = lessons(ran)
    assert lesson.members == CAMERAS
    assert lesson.config == CONFIG, "in full: it costs what their own trainings would have cost"
    gates = [(c.stream, c.candidate, c.known, c.least) for c in ran.of(StartGate)]
    assert gates == [(c, f"{c}:0", True, 1) for c in CAMERAS]
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS}


def test_one_label_in_five_judges_and_one_camera_is_profiled_for_all() -> None:
    ran = together(windows=2)
    asked = ran.of(StartLabelling)
    assert [c.stream for c in asked] == list(CAMERAS)
    assert all(c.judges == max(1, c.frames // 5) for c in asked)
    assert len(ran.of(StartProfiling)) == 1


def test_nobody_is_profiled_again_in_the_next_window() -> None:
    ran = together(world=LearningWorld(learns=0.7), windows=4)
    assert len(ran.of(StartProfiling)) == 1
    assert {c.window for c in lessons(ran)} >= {0, 1}


def test_it_begins_when_all_are_labelled_on_the_share_of_what_learns_and_no_plan_takes_that() -> None:
    ran = together(windows=2)
    begun = next(commands for _, commands in ran.driver.log if any(isinstance(c, StartRetraining) for c in commands))
    shares = next(dict(c.shares_pct) for c in begun if isinstance(c, SetShares))
    job = next(c.job for c in begun if isinstance(c, StartRetraining))
    labels = next(
        dict(c.shares_pct)
        for _, cs in ran.driver.log
        for c in cs
        if isinstance(c, SetShares) and any("/label/" in j for j, _ in c.shares_pct)
    )
    assert shares[job] >= next(pct for j, pct in labels.items() if "/label/" in j) > 0
    for _, commands in ran.driver.log:
        for command in commands:
            if isinstance(command, SetShares):
                assert sum(pct for _, pct in command.shares_pct) <= 100.0001
            if isinstance(command, ReportPlan):
                assert all(s.retrain is None for s in command.plan.streams)


def test_gates_have_a_share_where_something_else_is_to_be_prepared_after_the_lesson() -> None:
    """A box on which nothing had been planned yet took theirs away for that, and they never ended."""

    class Reprofiles(LearningWorld):
        def start(self, command: Any, at_s: float) -> Any:
            if not isinstance(command, StartReprofiling):
                return super().start(command, at_s)
            return Work(gpu_s=1.0, finish=lambda t: Reprofiled(at_s=t, job=command.job, stream=command.stream, gpu_s=1.0))

    ran = together(world=Reprofiles(), windows=2, events=(ProfileOld(at_s=50.0, stream="a", why="the scene drifted"),))
    begun_s = [e.at_s for e, commands in ran.driver.log if any(isinstance(c, StartReprofiling) for c in commands)]
    assert len(begun_s) == 1
    gates = [
        c for _, commands in ran.driver.log for c in commands if isinstance(c, SetShares) and "/gate/" in str(c.shares_pct)
    ]
    assert all(pct > 0 for c in gates for job, pct in c.shares_pct if "/gate/" in job)
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS}


def test_too_few_cameras_to_judge_for_each_other_learn_alone() -> None:
    ran = together(windows=2, cameras=("a", "b", "c"))
    assert len(lessons(ran)) == 3
    assert not any(c.members for c in lessons(ran))
    assert all(c.judges is None for c in ran.of(StartLabelling))


def test_a_camera_with_other_retrainings_learns_alone_beside_them() -> None:
    own = CameraAdded(at_s=0, stream="z", knobs=KNOBS, version="z-0", quality=0.5, arch="net", retrain=(SHORT,))
    ran = together(windows=2, events=(own,))
    assert sorted((c.stream, c.members) for c in lessons(ran)) == [("a", CAMERAS), ("z", ())]


def test_no_customers_pictures_teach_anothers_model() -> None:
    def added(customer: str) -> tuple[Event, ...]:
        return tuple(
            CameraAdded(at_s=0, stream=f"{customer}{n}", knobs=KNOBS, version="v", quality=0.5, arch="net", customer=customer)
            for n in range(4)
        )

    ran = together(windows=2, cameras=(), events=(*added("north"), *added("south")))
    assert {c.members for c in lessons(ran)} <= {tuple(f"{who}{n}" for n in range(4)) for who in ("north", "south")}
    assert lessons(ran)


def test_off_by_default_everybody_learns_alone() -> None:
    assert not any(c.members for c in lessons(together(together=False)))


def test_a_model_that_is_worse_for_most_serves_nobody_and_is_thrown_away_by_all() -> None:
    ran = together(world=LearningWorld(learns=0.3), windows=2)
    assert not ran.swaps("retrained")
    assert {r.version for r in ran.of(RejectModel)} in ({f"{c}:0" for c in CAMERAS}, set())


def test_who_sees_clearly_that_it_is_worse_there_keeps_its_model() -> None:
    class Picky(LearningWorld):
        def _measured(self, version: str, camera: str, window: int) -> float:
            return 0.1 if version == "c:0" else super()._measured(version, camera, window)

    ran = together(world=Picky(), windows=2)
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS if c != "c"}
    assert [r.version for r in ran.of(RejectModel)] == ["c:0"]
    assert ran.engine.state.streams["c"].version == "c-0"


def test_a_camera_whose_labels_that_judge_hold_no_object_teaches_the_others_and_keeps_its_model() -> None:
    class Dark(LearningWorld):
        def start(self, command: Any, at_s: float) -> Any:
            work = super().start(command, at_s)
            if command.stream != "b" or not isinstance(command, StartLabelling | StartGate):  # type: ignore[attr-defined]
                return work
            blind = (
                {"quality": None}
                if isinstance(command, StartLabelling)
                else {"serving_quality": None, "candidate_quality": None}
            )
            return replace(work, finish=lambda t: replace(work.finish(t), **blind))

    ran = together(world=Dark(), windows=2)
    assert lessons(ran)[0].members == CAMERAS
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS if c != "b"}
    assert ran.engine.state.streams["b"].quality == 0.5, "what is believed of it stays"
    assert "b" not in [c.stream for c in ran.of(StartProfiling)]


class FindsLittle(LearningWorld):
    """Known labels, a frame of each camera, speak for a model that finds a third; new ones tell what it wins."""

    def __init__(self, *, truly: float, failing_again: str = "") -> None:
        super().__init__(said=lambda version, truth, window: truth)
        self._truly, self._failing_again = truly, failing_again

    def start(self, command: Any, at_s: float) -> Any:
        if not isinstance(command, StartGate):
            return super().start(command, at_s)
        again = not command.known
        self.failing = {"StartGate"} if again and command.stream == self._failing_again else set()
        work, won = super().start(command, at_s), self._truly if again else 0.08 + 0.01 * CAMERAS.index(command.stream)
        if self.failing:
            return work
        seen = {"serving_quality": 0.25, "candidate_quality": 0.25 + won, "gain_sd": 0.02 if again else None}
        return replace(work, finish=lambda t: replace(work.finish(t), **seen, frames=16 if again else 1))


def second_looks(ran: Ran) -> list[str]:
    return [c.stream for c in ran.of(StartGate) if c.candidate.endswith(":0") and not c.known]


def test_a_lesson_that_finds_little_is_looked_at_again_on_new_labels_and_those_decide() -> None:
    ran = together(world=FindsLittle(truly=0.2), windows=2)
    assert second_looks(ran) == list(CAMERAS)
    assert {s.version for s in ran.swaps("retrained")} >= {f"{c}:0" for c in CAMERAS}
    ran = together(world=FindsLittle(truly=-0.05), windows=2)
    assert second_looks(ran) == list(CAMERAS)
    assert not ran.swaps("retrained")
    assert {r.version for r in ran.of(RejectModel)} >= {f"{c}:0" for c in CAMERAS}


def test_journals_of_before_decide_at_the_first_look() -> None:
    ran = together(world=FindsLittle(truly=-0.05), windows=2, look_again=False)
    assert not second_looks(ran)
    assert {s.version for s in ran.swaps("retrained")} >= {f"{c}:0" for c in CAMERAS}


def test_the_second_look_has_shares_and_jobs_of_its_own() -> None:
    ran = together(world=FindsLittle(truly=0.2), windows=2)
    gates = [c.job for c in ran.of(StartGate) if c.candidate.endswith(":0")]
    assert len(gates) == len(set(gates)) == 2 * len(CAMERAS)
    begun = next(cs for _, cs in ran.driver.log if any(isinstance(c, StartGate) and not c.known for c in cs))
    shares = [dict(c.shares_pct) for c in begun if isinstance(c, SetShares)][-1]
    assert all(shares[job] > 0 for job in gates[len(CAMERAS) :])
    assert sum(shares.values()) <= 100.0001


def test_a_second_look_that_fails_costs_its_own_camera_the_model() -> None:
    ran = together(world=FindsLittle(truly=0.2, failing_again="b"), windows=2)
    assert {s.version for s in ran.swaps("retrained") if s.version.endswith(":0")} == {f"{c}:0" for c in CAMERAS if c != "b"}
    assert "b:0" in {r.version for r in ran.of(RejectModel)}


def test_a_camera_that_goes_during_the_second_look_holds_up_nobody() -> None:
    begun_s = next(
        e.at_s
        for e, cs in together(world=FindsLittle(truly=0.2), windows=2).driver.log
        if any(isinstance(c, StartGate) and not c.known for c in cs)
    )
    ran = together(world=FindsLittle(truly=0.2), windows=2, events=(CameraRemoved(at_s=begun_s + 0.1, stream="c"),))
    assert {s.version for s in ran.swaps("retrained") if s.version.endswith(":0")} == {f"{c}:0" for c in CAMERAS if c != "c"}


def test_a_gate_that_fails_holds_up_nobody() -> None:
    class Broken(LearningWorld):
        def start(self, command: Any, at_s: float) -> Any:
            self.failing = {"StartGate"} if getattr(command, "stream", "") == "b" else set()
            return super().start(command, at_s)

    ran = together(world=Broken(), windows=2)
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS if c != "b"}
    assert "b:0" in {r.version for r in ran.of(RejectModel)}


def test_a_lesson_that_fails_is_said_of_all_and_the_next_window_has_one_again() -> None:
    class Once(LearningWorld):
        def start(self, command: Any, at_s: float) -> Any:
            self.failing = {"StartRetraining"} if getattr(command, "window", 1) == 0 else set()
            return super().start(command, at_s)

    ran = together(world=Once(), windows=3)
    assert {c.window for c in lessons(ran)} == {0, 1}
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:1" for c in CAMERAS}


def lesson_at(**changes: Any) -> float:
    ran = together(windows=2, **changes)
    return next(e.at_s for e, cs in ran.driver.log if any(isinstance(c, StartRetraining) for c in cs))


def test_the_leader_goes_while_it_trains_and_the_others_begin_a_lesson_of_their_own() -> None:
    gone: tuple[Event, ...] = (CameraRemoved(at_s=lesson_at() + 0.5, stream="a"),)
    ran = together(windows=2, events=gone)
    first, second = lessons(ran)
    assert (first.stream, first.members) == ("a", CAMERAS)
    assert second.members == CAMERAS[1:]
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS[1:]}


def test_a_member_that_goes_while_it_trains_gets_nothing_and_the_others_what_they_learned() -> None:
    gone: tuple[Event, ...] = (CameraRemoved(at_s=lesson_at() + 0.5, stream="d"),)
    ran = together(windows=2, events=gone)
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS if c != "d"}
    assert "d:0" in {r.version for r in ran.of(RejectModel)}


def test_the_deadline_of_preparation_does_not_end_a_lesson_that_is_paid_for() -> None:
    late: tuple[Event, ...] = (TimerFired(at_s=lesson_at() + 0.2, timer=PREP_DEADLINE),)
    ran = together(windows=2, events=late)
    assert {s.version for s in ran.swaps("retrained")} == {f"{c}:0" for c in CAMERAS}


def test_all_learn_from_the_version_that_most_of_them_serve() -> None:
    streams = [StreamState(id=id, knobs=KNOBS, version=version, quality=quality) for id, version, quality in (
        ("a", "old", 0.1), ("b", "new", 0.5), ("c", "new", 0.4), ("d", "newest", 0.2),
    )]  # fmt: skip
    assert lessons_module.leader_of(streams).id == "b", "two serve it; b sees best by it"
    assert lessons_module.leader_of(streams[::3]).id == "d"
    for stream in streams[::3]:
        stream.taught_in = "a/train/3"
    streams.append(StreamState(id="e", knobs=KNOBS, version="e-000004", quality=0.3, taught_in="a/train/3"))
    assert lessons_module.leader_of(streams).id == "e", "their versions have names of their own"


def test_who_took_what_they_learned_together_is_known_until_another_model_serves() -> None:
    class Picky(LearningWorld):
        def _measured(self, version: str, camera: str, window: int) -> float:
            return 0.1 if version == "c:0" else super()._measured(version, camera, window)

    ran = together(world=Picky(learns=0.7), windows=2)
    taught = {s.id: s.taught_in for s in ran.engine.state.ordered()}
    assert taught == {c: "" if c == "c" else lessons(ran)[0].job for c in CAMERAS}
    back = ModelRolledBack(at_s=150.0, stream="a", version="a-0")
    assert together(world=Picky(learns=0.7), windows=2, events=(back,)).engine.state.streams["a"].taught_in == ""


# --- of the window in progress ----------------------------------------------------------------------------------------

NOW: dict[str, Any] = {"glance": True, "learn_now": True, "windows": 4}


def test_they_learn_from_the_window_in_progress_in_every_window() -> None:
    """What was sampled last is nearest to what people will see; a window of its own is waited for no longer."""
    ran = together(world=LearningWorld(learns=0.7), **NOW)
    asked = [
        (event.at_s, c)
        for event, commands in ran.driver.log
        for c in commands
        if isinstance(c, StartLabelling | StartRetraining) and "/sample/" not in c.job
    ]
    assert {int(at_s // 100) for at_s, c in asked if isinstance(c, StartRetraining)} >= {0, 1}
    assert all(c.window == int(at_s // 100) for at_s, c in asked)
    assert all(at_s % 100 >= 100 * glance.LESSONS_FRAC for at_s, _ in asked)


def test_nothing_is_looked_at_or_labelled_of_the_window_before() -> None:
    ran = together(world=LearningWorld(learns=0.7), **NOW)
    assert all(
        c.window == int(event.at_s // 100) for event, commands in ran.driver.log for c in commands if isinstance(c, StartLook)
    )


def test_older_frames_of_the_same_scene_judge_beside_the_new_ones() -> None:
    """They are labelled already, and one frame of a camera says little."""
    gates = together(world=LearningWorld(learns=0.7), **NOW).of(StartGate)
    assert {c.older for c in gates if c.window == 0} == {False}, "there are none"
    assert {c.older for c in gates if c.window > 0} == {True}


def test_frames_of_another_scene_do_not_judge() -> None:
    world = LearningWorld(scene_of=lambda camera, window: NIGHT if camera == "a" and window >= 2 else DAY, learns=0.7)
    gates = [c for c in together(world=world, **NOW).of(StartGate) if c.window == 2]
    assert {c.stream: c.older for c in gates} == {c: c != "a" for c in CAMERAS}


def test_who_learns_alone_beside_a_pool_learns_from_the_last_window_as_before() -> None:
    own = CameraAdded(at_s=0, stream="z", knobs=KNOBS, version="z-0", quality=0.5, arch="net", retrain=(SHORT,))
    ran = together(events=(own,), world=LearningWorld(learns=0.7), **NOW)
    assert {
        c.window - int(event.at_s // 100)
        for event, commands in ran.driver.log
        for c in commands
        if isinstance(c, StartLabelling) and c.stream == "z" and event.at_s >= 100
    } == {-1}
