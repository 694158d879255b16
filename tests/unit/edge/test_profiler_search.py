"""The profiler over a made-up chain of nodes: the card's V6 exactly, its account of work, settings that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobCancelled, UsageError
from edge.profiler.graph import Clip, Graph, Ledger
from edge.profiler.measure import CannotMeasure, name_of
from edge.profiler.profile import pareto
from edge.profiler.profiler import Plan, exhaustive, greedy, quality_lost
from edge.queries.base import BaseTransform, Cost, Knob, NodeSpec, QuerySpec, Scene, Setting, Tools, Transform
from scheduler.videostorm.search import Search
from tests.support.profiled_chain import (
    CACHED_S,
    FRONT,
    SPEC,
    UNCACHED_S,
    Example,
    seconds_of_video,
)


def setting(r: int, f: float, s: int) -> dict[str, Any]:
    return {"decode.r": r, "decode.f": f, "detect.s": s}


# --- V6 ---------------------------------------------------------------------------------------------------------------


def test_v6_every_setting_has_the_cards_quality_and_demand() -> None:
    found = exhaustive(Example().measurer())
    assert len(found.options) == 18
    front = [(round(o.demand, 9), round(o.quality, 9)) for o in reversed(found.front())]
    assert front == list(FRONT)


def test_v6_costs_what_the_card_says_with_and_without_a_cache() -> None:
    example = Example()
    found = exhaustive(example.measurer())
    assert found.spent_s == pytest.approx(CACHED_S)
    assert found.every_s == pytest.approx(UNCACHED_S)
    assert example.clock.cpu_s == pytest.approx(CACHED_S)  # what really ran is what was charged


def test_v6_per_second_of_a_longer_clip() -> None:
    found = exhaustive(Example(count=7).measurer())
    assert found.spent_s == pytest.approx(7 * CACHED_S)
    assert found.every_s == pytest.approx(7 * UNCACHED_S)
    assert [(round(o.demand, 9), round(o.quality, 9)) for o in reversed(found.front())] == list(FRONT)


def test_v6_one_climb_stalls_where_the_card_says_so() -> None:
    measurer = Example().measurer()
    knobs = {name: knob.values for name, knob in SPEC.knobs.items()}
    search = Search(knobs, 0.05, starts=1, order="listed", first=setting(240, 0.25, 2), budget=18)
    worth: dict[tuple[Any, ...], float] = {}
    for _ in range(8):  # the climb, with what it looks at on the way: the ninth is drawn anew
        asked = search.ask()
        assert asked is not None
        found = measurer.measure(asked)
        search.tell(asked, found.option.quality, found.demand.both_s)
        worth[tuple(asked.values())] = round(found.option.quality - 0.05 * found.demand.both_s, 9)
    assert max(worth.values()) == worth[720, 0.5, 2] == 0.60  # and not .65 at (480, .5, 1)
    assert (480, 0.5, 1) not in worth


def test_a_full_budget_finds_the_whole_front_for_less_than_everything() -> None:
    example = Example()
    found = greedy(example.measurer(), Plan(budget=18))
    assert [(round(o.demand, 9), round(o.quality, 9)) for o in reversed(found.front())] == list(FRONT)
    assert found.spent_s <= CACHED_S + 1e-9


@given(st.integers(0, 1000), st.integers(1, 18), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_a_search_never_pays_twice_and_never_invents(seed: int, budget: int, starts: int) -> None:
    example = Example()
    found = greedy(example.measurer(), Plan(seed=seed, budget=budget, starts=starts))
    every = exhaustive(Example().measurer())
    truth = {o.name: o for o in every.options}
    assert found.tried <= budget
    assert all(truth[o.name].quality == pytest.approx(o.quality) for o in found.options)
    assert example.clock.cpu_s == pytest.approx(found.spent_s)
    mean, worst = quality_lost(found.options, every.options)
    assert 0 <= mean <= worst <= 1
    again = greedy(Example().measurer(), Plan(seed=seed, budget=budget, starts=starts))
    assert again == found


def test_nothing_is_lost_when_everything_is_known_and_all_when_nothing_is() -> None:
    every = exhaustive(Example().measurer()).options
    assert quality_lost(every, every) == (0.0, 0.0)
    mean, worst = quality_lost([], every)
    assert worst == pytest.approx(1.0)
    assert mean == pytest.approx(sum(q for _, q in FRONT) / len(FRONT))


def test_a_budget_in_seconds_ends_the_search() -> None:
    found = greedy(Example().measurer(), Plan(budget_s=0.0))
    assert found.tried == 1  # what was begun is finished


# --- settings that fail -----------------------------------------------------------------------------------------------


def test_a_setting_that_throws_is_left_out_and_said_without_secrets() -> None:
    found = exhaustive(Example(throws_at=1).measurer())
    assert len(found.options) == 9
    assert len(found.left_out) == 9
    assert "RuntimeError" in found.left_out[0].reason
    assert "secret" not in found.left_out[0].reason


def test_a_setting_whose_quality_is_no_number_is_left_out_and_said() -> None:
    found = exhaustive(Example(nan_at=2).measurer())
    assert {o.setting["detect.s"] for o in found.options} == {1}
    assert all("nan" in left.reason for left in found.left_out)


def test_the_search_goes_on_past_settings_that_fail() -> None:
    found = greedy(Example(throws_at=1).measurer(), Plan(budget=18, seed=3))
    good = [(d, q) for d, q in ((o.demand, o.quality) for o in found.options)]
    assert len(good) == 9
    assert {o.setting["detect.s"] for o in found.options} == {2}


def test_a_setting_that_the_query_cannot_have_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError):
        Example().measurer().measure(setting(1080, 1.0, 1))


def test_a_cancelled_job_ends_the_profiling() -> None:
    example = Example()

    def cancelled(ran: object) -> float:
        raise JobCancelled("the box is stopping")

    with pytest.raises(JobCancelled):
        exhaustive(replace(example.measurer(), judge=cancelled))


def test_what_it_costs_must_be_a_number() -> None:
    example = Example()
    example.clock.cpu_s = float("nan")
    with pytest.raises(CannotMeasure, match="no number"):
        example.measurer().measure(setting(240, 1.0, 1))


# --- frames, rates, state ---------------------------------------------------------------------------------------------


class Every(BaseTransform):
    """Every n-th frame."""

    name, stateful = "every", True

    def __init__(self, values: Setting) -> None:
        super().__init__({}, Tools(camera_id="a"))
        self.values, self._seen = dict(values), 0

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene | None:
        self._seen += 1
        return scene if (self._seen - 1) % int(self.values["n"]) == 0 else None

    def reset(self) -> None:
        self._seen = 0


class Counted(BaseTransform):
    """Counts how often it runs; one second each. With state: how many frames it has seen."""

    name = "counted"

    def __init__(self, runs: list[int], *, stateful: bool) -> None:
        super().__init__({}, Tools(camera_id="a"))
        self.runs, self.stateful, self._seen = runs, stateful, 0

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        self.runs[0] += 1
        self._seen += 1
        return scene.with_(told={"seen": self._seen, "seq": scene.frame.seq})

    def reset(self) -> None:
        self._seen = 0


RATED = QuerySpec(
    name="rated",
    nodes=(
        NodeSpec(id="every", transform="every", knobs=(Knob(name="n", values=(1, 2, 3, 4)),)),
        NodeSpec(id="work", transform="counted", inputs=("every",)),
    ),
)  # fmt: skip


def rated(runs: list[int], *, stateful: bool, frames: int = 12) -> Graph:
    def make(node: NodeSpec, values: Setting) -> Transform:
        return Every(values) if node.id == "every" else Counted(runs, stateful=stateful)

    return Graph(RATED, seconds_of_video(frames), make, meter=lambda: Cost(cpu_s=float(runs[0])), dear=("work",))


def test_the_frames_of_a_low_rate_are_found_among_those_of_a_high_one() -> None:
    runs = [0]
    graph, ledger = rated(runs, stateful=False), Ledger()
    ledger.charge(graph.run({"every.n": 1}))
    assert runs == [12]
    for n in (2, 3, 4):
        assert graph.is_free({"every.n": n}, ledger)
        ran = graph.run({"every.n": n})
        assert ran.cost(("work",)).cpu_s == 12 / n  # demand is charged in full
        assert ledger.charge(ran).cpu_s == 0
    assert runs == [12]


def test_a_low_rate_first_leaves_the_rest_to_do() -> None:
    runs = [0]
    graph, ledger = rated(runs, stateful=False), Ledger()
    ledger.charge(graph.run({"every.n": 3}))
    assert not graph.is_free({"every.n": 1}, ledger)
    assert ledger.charge(graph.run({"every.n": 1})).cpu_s == 8
    assert runs == [12]


def test_a_node_with_state_is_run_over_the_clip_for_each_rate() -> None:
    runs = [0]
    graph = rated(runs, stateful=True)
    first = graph.run({"every.n": 1})
    slower = graph.run({"every.n": 4})
    assert runs == [12 + 3]
    assert [s.told["seen"] for s in slower.sinks["work"] if s is not None] == [1, 2, 3]
    assert graph.run({"every.n": 1}).sinks == first.sinks
    assert runs == [15]


def test_another_ledger_has_done_nothing_yet() -> None:
    runs = [0]
    graph = rated(runs, stateful=False)
    Ledger().charge(graph.run({"every.n": 1}))
    other = Ledger()
    assert not graph.is_free({"every.n": 2}, other)
    assert other.charge(graph.run({"every.n": 2})).cpu_s == 6


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_the_order_of_settings_changes_neither_answers_nor_the_bill(order: list[int]) -> None:
    ledger, backwards = Ledger(), Ledger()
    one, two = rated([0], stateful=False), rated([0], stateful=False)
    there = {n: one.run({"every.n": n}) for n in order}
    back = {n: two.run({"every.n": n}) for n in reversed(order)}
    for ran in there.values():
        ledger.charge(ran)
    for ran in back.values():
        backwards.charge(ran)
    assert ledger.spent.cpu_s == pytest.approx(backwards.spent.cpu_s)
    for n, ran in there.items():
        told = [None if s is None else s.told["seq"] for s in ran.sinks["work"]]
        assert told == [None if s is None else s.told["seq"] for s in back[n].sinks["work"]]
        assert ran.costs["work"] == back[n].costs["work"]


def test_a_clip_needs_frames_and_time() -> None:
    with pytest.raises(ValueError, match="frames and time"):
        Clip(key="x", scenes=[], seconds=1.0)
    with pytest.raises(ValueError, match="frames and time"):
        Clip(key="x", scenes=seconds_of_video(3).scenes, seconds=0.0)


def test_names_are_short_while_they_can_be() -> None:
    assert name_of({"a.fps": 1, "b.size": 2}) == "fps=1 size=2"
    assert name_of({"a.fps": 1, "b.fps": 2}) == "a.fps=1 b.fps=2"
    assert name_of({}) == "as it is"


def test_pareto_keeps_one_of_equals() -> None:
    every = exhaustive(Example().measurer()).options
    front = pareto([*every, *every])
    assert len(front) == len({(o.demand, o.quality) for o in front}) == len(FRONT)
