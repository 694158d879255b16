"""A camera's queries on what is shown: the hand-off, a transform that hangs, what the status says. Real threads, a clock set by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from configs.errors import UsageError
from edge.inference import Shown
from edge.pool.turn import current
from edge.queries.base import Scene
from edge.queries.live import COSTS_KEPT, COSTS_LEAST, CameraQueries, QueryReport, specs_of
from edge.queries.registry import BUILT_IN
from edge.queries.runner import FaultRules, Outcome
from scheduler.types import Detections
from tests.support.query_scenes import (
    COUNT,
    LINES,
    Scripted,
    at_centre,
    boxes,
    entries_of,
    frame_at,
    scripted_spec,
    specs,
    tools_of,
)

#: Longest real wait for a thread that has all it needs.
PATIENCE_S = 60.0


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def utc_s(self) -> float:
        return 1.7e9 + self.now_s

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        return 0.0

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        raise AssertionError("nothing here waits for a time")

    def notify_all(self, condition: threading.Condition) -> None:
        condition.notify_all()


class Answers:
    """What the queries' thread tells, for a test that waits for it."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.told.append(outcome)
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[list[Outcome]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self.told), PATIENCE_S), [o.query for o in self.told]

    def of(self, query: str) -> list[int]:
        with self._changed:
            return [outcome.seq for outcome in self.told if outcome.query == query]


class Gate:
    """A script for `scripted`: every frame waits until it is let through; `entered` says that one waits."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, transform: Any, scene: Scene) -> Scene:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return scene.with_(told={"seq": scene.frame.seq})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    class Own(Scripted):
        pass

    monkeypatch.setitem(BUILT_IN, "scripted", Own)
    return Own


@pytest.fixture
def started() -> Iterator[list[CameraQueries]]:
    """What must be stopped after the test."""
    made: list[CameraQueries] = []
    yield made
    for queries in made:
        queries.stop()


def shown(seq: int, *, at_s: float | None = None, found: Detections | None = None) -> Shown:
    frame = frame_at(seq / 10 if at_s is None else at_s, seq=seq)
    return Shown(frame=frame, detections=found or boxes(at_centre(100, 100)), version="v", cost_s=0.0, lag_s=0.0)


def report_of(queries: CameraQueries, name: str) -> QueryReport:
    [found] = [report for report in queries.reports() if report.name == name]
    return found


def test_what_is_shown_is_answered(started: list[CameraQueries]) -> None:
    answers, clock = Answers(), HandClock()
    tools, detector = tools_of()
    queries = CameraQueries(specs(COUNT, LINES), tools, clock=clock, on_outcome=answers)
    started.append(queries)
    assert report_of(queries, "count").state == "waiting"
    clock.now_s = 0.75
    for seq in range(3):
        queries.on_shown(shown(seq))
        answers.wait_for(lambda told, seq=seq: len(told) == 2 * (seq + 1))
    assert detector.asked == []  # the camera's worker has detected already
    report = report_of(queries, "count")
    assert (report.state, report.frames, report.failed_frames) == ("running", 3, 0)
    assert report.told["count"]["classes"] == {"car": 1}
    assert report.at_utc == 1.7e9 + 0.2
    assert report.lag_s == pytest.approx(0.55)
    assert [node.id for node in report_of(queries, "lines").nodes] == ["decode", "detect", "track", "lines"]
    assert {node.runs for node in report.nodes} == {3}


def test_the_newest_frame_wins_and_nobody_waits(started: list[CameraQueries], scripted: type[Scripted]) -> None:
    gate, answers = Gate(), Answers()
    scripted.does = staticmethod(gate)
    queries = CameraQueries([scripted_spec()], tools_of()[0], clock=HandClock(), on_outcome=answers)
    started.append(queries)
    queries.on_shown(shown(0))
    assert gate.entered.wait(PATIENCE_S)
    for seq in range(1, 101):
        queries.on_shown(shown(seq))  # returns although nothing moves
    assert queries.skipped == 99
    gate.open.set()
    answers.wait_for(lambda told: len(told) == 2)
    assert answers.of("odd") == [0, 100]


def test_who_may_lag_says_that_it_is_behind(started: list[CameraQueries], scripted: type[Scripted]) -> None:
    gate, answers = Gate(), Answers()
    scripted.does = staticmethod(gate)
    queries = CameraQueries([replace(scripted_spec(), may_lag=True)], tools_of()[0], clock=HandClock(), on_outcome=answers)
    started.append(queries)
    assert not queries.behind()
    queries.on_shown(shown(0))
    assert gate.entered.wait(PATIENCE_S)
    assert not queries.behind()
    queries.on_shown(shown(1))
    assert queries.behind()
    gate.open.set()
    answers.wait_for(lambda told: len(told) == 2)
    assert not queries.behind()


def test_a_transform_that_hangs_is_given_up_and_the_others_go_on(
    started: list[CameraQueries], scripted: type[Scripted]
) -> None:
    gate, answers, clock = Gate(), Answers(), HandClock()
    queries = CameraQueries(
        [scripted_spec(), *specs(COUNT)], tools_of()[0], clock=clock, on_outcome=answers,
        rules=FaultRules(node_s=2.0, first_s=50.0, rest_s=30.0),
    )  # fmt: skip
    started.append(queries)
    queries.on_shown(shown(0))
    answers.wait_for(lambda told: len(told) == 2)
    scripted.does = staticmethod(gate)
    queries.on_shown(shown(1))
    assert gate.entered.wait(PATIENCE_S)
    clock.now_s = 1.9
    queries.on_shown(shown(2))
    assert report_of(queries, "odd").state == "running"
    clock.now_s = 2.1
    queries.on_shown(shown(3))  # whoever comes next notices
    answers.wait_for(lambda told: any(o.seq == 3 for o in told))
    report = report_of(queries, "odd")
    assert (report.state, report.again_s) == ("resting", 30.0)
    assert report.reason == "odd: did not come back from one frame in 2 s"
    assert dict(report.nodes[-1].faults) == {"hung": 1}
    assert answers.of("count") == [0, 3]  # frame 1 went with the thread, frame 2 was replaced
    gate.open.set()  # the thread comes back from the dead: it may touch nothing
    scripted.does = Scripted.does
    clock.now_s = 40.0
    queries.on_shown(shown(4))
    answers.wait_for(lambda told: sum(o.seq == 4 for o in told) == 2)
    assert answers.of("odd") == [0, 4]
    assert report_of(queries, "odd").told["odd"] == {"seen": 1}


def test_a_transform_may_take_its_time_over_its_first_frame(started: list[CameraQueries], scripted: type[Scripted]) -> None:
    gate, answers, clock = Gate(), Answers(), HandClock()
    scripted.does = staticmethod(gate)
    queries = CameraQueries(
        [scripted_spec()], tools_of()[0], clock=clock, on_outcome=answers, rules=FaultRules(node_s=2.0, first_s=50.0)
    )
    started.append(queries)
    queries.on_shown(shown(0))
    assert gate.entered.wait(PATIENCE_S)
    clock.now_s = 49.0
    assert report_of(queries, "odd").state == "waiting"
    gate.open.set()
    answers.wait_for(lambda told: len(told) == 1)


def test_the_status_alone_notices_a_transform_that_hangs(started: list[CameraQueries], scripted: type[Scripted]) -> None:
    gate, clock = Gate(), HandClock()
    scripted.does = staticmethod(gate)
    queries = CameraQueries([scripted_spec()], tools_of()[0], clock=clock, rules=FaultRules(first_s=5.0))
    started.append(queries)
    queries.on_shown(shown(0))
    assert gate.entered.wait(PATIENCE_S)
    clock.now_s = 6.0
    assert report_of(queries, "odd").state == "resting"
    gate.open.set()


def test_one_that_hangs_again_and_again_rests_for_good(started: list[CameraQueries], scripted: type[Scripted]) -> None:
    gates, clock, answers = [Gate() for _ in range(3)], HandClock(), Answers()
    queries = CameraQueries(
        [scripted_spec(), *specs(COUNT)], tools_of()[0], clock=clock, on_outcome=answers,
        rules=FaultRules(first_s=1.0, rest_s=10.0, threads_max=3),
    )  # fmt: skip
    started.append(queries)
    for number, gate in enumerate(gates):
        scripted.does = staticmethod(gate)
        queries.on_shown(shown(10 * number))
        assert gate.entered.wait(PATIENCE_S)
        clock.now_s += 2.0
        report = report_of(queries, "odd")
        assert report.state == "resting"
        assert report.again_s == (None if number == 2 else 10.0 * 2**number)
        clock.now_s += 100.0
    clock.now_s += 1e6
    queries.on_shown(shown(99))
    answers.wait_for(lambda told: any(o.seq == 99 for o in told))
    assert report_of(queries, "odd").state == "resting"
    assert answers.of("odd") == []
    for gate in gates:
        gate.open.set()


def test_a_listener_that_throws_is_not_the_queries_trouble(
    started: list[CameraQueries], caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers()

    def listen(outcome: Outcome) -> None:
        answers(outcome)
        raise RuntimeError("broker")

    queries = CameraQueries(specs(COUNT), tools_of()[0], clock=HandClock(), on_outcome=listen)
    started.append(queries)
    for seq in range(3):
        queries.on_shown(shown(seq))
        answers.wait_for(lambda told, seq=seq: len(told) == seq + 1)
    assert "could not be told" in caplog.text


def test_knobs_change_between_two_frames(started: list[CameraQueries]) -> None:
    answers = Answers()
    queries = CameraQueries(specs(COUNT), tools_of()[0], clock=HandClock(), on_outcome=answers)
    started.append(queries)
    queries.on_shown(shown(0))
    answers.wait_for(lambda told: len(told) == 1)
    queries.set_knobs("count", {"decode.fps": 1})
    for seq in range(1, 11):
        queries.on_shown(shown(seq))
    answers.wait_for(lambda told: told[-1].seq == 10)
    assert answers.of("count") == [0, 10]
    assert report_of(queries, "count").setting["decode.fps"] == 1
    assert queries.front()["count"]["decode.fps"] == 1
    with pytest.raises(UsageError, match="cannot be 99"):
        queries.set_knobs("count", {"decode.fps": 99})
    with pytest.raises(UsageError, match="has no query nobody"):
        queries.set_knobs("nobody", {})


def test_after_the_end_nothing_is_taken(started: list[CameraQueries]) -> None:
    answers = Answers()
    queries = CameraQueries(specs(COUNT), tools_of()[0], clock=HandClock(), on_outcome=answers)
    queries.on_shown(shown(0))
    answers.wait_for(lambda told: len(told) == 1)
    queries.stop()
    queries.join(PATIENCE_S)
    queries.on_shown(shown(1))
    assert len(answers.told) == 1


def test_a_camera_without_queries_has_no_thread() -> None:
    queries = CameraQueries([], tools_of()[0], clock=HandClock())
    before = threading.active_count()
    queries.on_shown(shown(0))
    assert threading.active_count() == before
    assert queries.reports() == ()


def test_queries_that_are_switched_off_are_not_made() -> None:
    usable, broken = specs_of(entries_of(COUNT, "{name: idle, template: read, enabled: false}"), task="detection")
    assert [spec.name for spec in usable] == ["count"]
    assert broken == {}


# --- what a frame costs, and what it needs after its answer -----------------------------------------------------------


def spent(queries: CameraQueries, *frames: tuple[float, float]) -> CameraQueries:
    """(CPU seconds of the queries' thread, seconds of the box's queue) of frames that were looked at."""
    queries._spent_s.extend(frames)
    return queries


def asked_with(lag_goal_s: float) -> CameraQueries:
    spec = replace(specs(COUNT)[0], lag_goal_s=lag_goal_s)
    return CameraQueries([spec], tools_of()[0], clock=HandClock())


def test_what_a_frame_costs_is_said_of_some_frames_at_least() -> None:
    queries = asked_with(1.0)
    assert spent(queries, *[(0.01, 0.2)] * (COSTS_LEAST - 1)).frame_cost_s(with_cpu=True) is None
    assert queries.after_s(1.0) == 0.0
    spent(queries, (0.01, 0.2))
    assert queries.frame_cost_s(with_cpu=True) == pytest.approx(0.21)
    assert queries.frame_cost_s(with_cpu=False) == pytest.approx(0.2), "on a GPU box the thread's own work is not the device's"


@pytest.mark.parametrize(
    ("lag_goal_s", "after_s"),
    [(1.0, 0.2), (1.1, 0.1), (1.5, 0.0), (0.9, 0.3), (0.1, 0.5)],
    ids=["all of it", "part of it", "there is time after the deadline", "more than it takes", "never more than half"],
)
def test_what_has_to_fit_before_a_frames_deadline(lag_goal_s: float, after_s: float) -> None:
    """0.2 s of crops after each frame, and a second until its deadline."""
    queries = spent(asked_with(lag_goal_s), *[(0.01, 0.2)] * COSTS_LEAST)
    assert queries.after_s(1.0) == pytest.approx(after_s)


def test_what_was_spent_with_other_knobs_is_not_what_a_frame_costs_now() -> None:
    """And one of 25 frames that is read is not seen in the first 16."""
    spec = specs("{name: plate, template: read, knobs: {read.every: [1, 25]}}")[0]
    queries = spent(CameraQueries([spec], tools_of()[0], clock=HandClock()), *[(0.1, 0.0)] * COSTS_LEAST)
    queries.set_knobs("plate", {"read.every": 1})
    assert queries.frame_cost_s(with_cpu=True) == pytest.approx(0.1), "nothing has changed"
    queries.set_knobs("plate", {"read.every": 25})
    assert queries.frame_cost_s(with_cpu=True) is None
    spent(queries, *[(0.0, 0.0)] * (COSTS_KEPT - 1))
    assert queries.frame_cost_s(with_cpu=True) is None
    spent(queries, (0.1, 0.0))
    assert queries.frame_cost_s(with_cpu=True) == pytest.approx(0.1 / COSTS_KEPT)


def test_a_frame_is_worth_what_all_of_its_queries_say_together() -> None:
    """The same sum that divisions of the shares go by."""
    heavy, light = (replace(specs(COUNT)[0], name=name, quality_weight=w) for name, w in (("heavy", 3.0), ("light", 0.5)))
    queries = CameraQueries([heavy, light], tools_of()[0], clock=HandClock())
    utility = queries.utility()
    assert utility is not None
    assert queries.weight() == utility.quality_weight == 3.5
    nobody = CameraQueries([], tools_of()[0], clock=HandClock())
    assert (nobody.utility(), nobody.weight()) == (None, 1.0)


def test_the_queue_is_told_what_models_that_queries_ask_are_worth() -> None:
    weights: list[float] = []

    def read(image: object) -> list[Any]:
        turn = current()
        assert turn is not None
        weights.append(turn.weight)
        return []

    one = replace(specs("{name: plate, template: read}")[0], quality_weight=3.0)
    answers = Answers()
    queries = CameraQueries([one], tools_of(read_text=read)[0], clock=HandClock(), on_outcome=answers)
    queries.on_shown(shown(0))
    answers.wait_for(bool)
    assert weights == [3.0]
    queries.stop()
    queries.join(PATIENCE_S)


def test_frames_are_metered_as_they_come() -> None:
    answers, queries = Answers(), asked_with(1.0)
    queries.on_outcome = answers
    for number in range(COSTS_LEAST):
        queries.on_shown(shown(number))
        answers.wait_for(lambda told, number=number: len(told) > number)  # type: ignore[misc]
    assert queries.frame_cost_s(with_cpu=True) == 0.0, "by this clock, nothing takes time"
    queries.stop()
    queries.join(PATIENCE_S)
