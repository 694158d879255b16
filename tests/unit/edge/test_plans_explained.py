"""Plans of a box: kept with their reasons, and explained by the code that made them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import StorageError, UsageError
from edge.api import make_app
from edge.box_why import ALTERNATIVES, REMEMBERED, BoxWhy, alternative
from edge.plan_book import EXPLAINABLE, PlanBook, _read, _written
from edge.store.plans import KEPT, PlanStore
from edge.store.store import Store
from edge.web.fake import FakeSource
from edge.web.fake_learning import SNAPSHOT
from edge.web.services import Services
from scheduler.commands import ReportPlan
from scheduler.decide.ekya import answer_of
from scheduler.engine import BoxEngine
from scheduler.engine_state import Decided, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, TimerFired
from scheduler.registry import make_policy
from scheduler.types import KnobProfile, Snapshot

POLICY = "thief-repeat"


class Planner:
    """Decides again and again, as an engine would."""

    def __init__(self, store: Store) -> None:
        self.decided: Decided | None = None
        self.at_utc, self.policy, self._store = 1000.0, POLICY, store
        self.start()

    def start(self) -> None:
        """As after a start: what is not in the database is gone."""
        self.book = PlanBook(
            PlanStore(self._store), newest=lambda: self.decided, policy=lambda: self.policy, utc=lambda: self.at_utc
        )

    def plan(self, snapshot: Snapshot = SNAPSHOT, *, window: int = 3) -> None:
        plan = make_policy(POLICY)(snapshot)
        self.at_utc += 10
        self.decided = Decided(at_s=1.0, window=window, snapshot=snapshot, plan=plan, reasons=("gate: because", "yard: so"))
        self.book.heard(ReportPlan(window=window, plan=plan, reasons=self.decided.reasons))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "driftbox.db") as opened:
        yield opened


@pytest.fixture
def planner(store: Store) -> Planner:
    return Planner(store)


def why_of(planner: Planner) -> BoxWhy:
    return BoxWhy(planner.book, lambda: 0.0)


def test_a_plan_is_kept_with_what_was_said_of_it(planner: Planner, store: Store) -> None:
    planner.plan(window=3)
    planner.plan(window=4)
    newest, older = PlanStore(store).newest()
    assert (newest.window, older.window) == (4, 3)
    assert newest.reasons == ("gate: because", "yard: so")
    assert newest.at_utc == older.at_utc + 10
    assert [p.number for p in PlanStore(store).since_window(4)] == [newest.number]


def test_credentials_in_reasons_stay_out_of_the_database(store: Store) -> None:
    PlanStore(store).add(
        window=1, at_utc=0.0, policy=POLICY, expected_quality=0.5, spare_pct=0, reasons=("gate: rtsp://user:s3cret@cam/1",)
    )
    assert "s3cret" not in str(PlanStore(store).newest())


def test_old_plans_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.store.plans.KEPT", 5)
    plans = PlanStore(store)
    for window in range(9):
        plans.add(window=window, at_utc=0.0, policy=POLICY, expected_quality=0.5, spare_pct=0, reasons=())
    assert [p.window for p in plans.newest(99)] == [8, 7, 6, 5, 4]
    assert KEPT > EXPLAINABLE


def test_a_full_disk_costs_the_row_and_nothing_else(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("edge.plan_book.log.warning", lambda text, *values: said.append(text % values))

    def full(**values: Any) -> int:
        raise StorageError("no room", code="full")

    planner.plan()
    with monkeypatch.context() as broken:
        broken.setattr(planner.book.plans, "add", full)
        planner.plan()
        planner.plan()
    assert len(said) == 1
    assert [m.number for m in planner.book.made()] == [1, 2, 3]
    planner.plan()
    assert why_of(planner).why(None).in_force


def test_only_the_newest_can_be_explained(planner: Planner) -> None:
    for _ in range(EXPLAINABLE + 2):
        planner.plan()
    why = why_of(planner)
    plans = why.plans(500).plans
    assert [p.explainable for p in plans] == [True] * EXPLAINABLE + [False] * 2
    assert not why.why(plans[1].number).in_force
    with pytest.raises(UsageError) as refused:
        why.why(plans[-1].number)
    assert refused.value.code == "not_found"


def test_a_plan_of_before_a_restart_is_explained_by_what_made_it(planner: Planner) -> None:
    planner.plan(window=2)
    planner.plan(replace(SNAPSHOT, capacity_pct=2 * SNAPSHOT.capacity_pct), window=3)
    before = why_of(planner)
    told = {number: before.why(number) for number in (1, 2)}
    planner.policy = "no-retrain"  # the operator has chosen another one meanwhile
    planner.start()
    why = why_of(planner)
    assert [(p.number, p.explainable) for p in why.plans(9).plans] == [(2, True), (1, True)]
    for number, view in told.items():
        again = why.why(number)
        assert again == view.model_copy(update={"in_force": False})
        assert again.reasons == ("gate: because", "yard: so")
    with pytest.raises(UsageError, match="no plan was made since the box started"):
        why.why(None)
    planner.plan(window=4)
    assert why.why(None).number == 3
    assert [m.number for m in planner.book.made()] == [1, 2, 3]


def test_what_a_plan_was_made_from_comes_back_as_it_was() -> None:
    decided = Decided(
        at_s=1.5, window=3, snapshot=replace(SNAPSHOT, later_s=math.inf, speed=((50.0, 0.1 + 0.2), (100.0, 1.0))),
        plan=make_policy(POLICY)(SNAPSHOT), reasons=("gate: because",),
    )  # fmt: skip
    assert _read(_written(decided), decided.reasons) == decided


def test_of_all_only_the_newest_are_kept_whole_over_restarts(planner: Planner, store: Store) -> None:
    for _ in range(EXPLAINABLE + 1):
        planner.plan()
    planner.start()
    planner.plan()
    assert [m.number for m in planner.book.made()] == list(range(3, EXPLAINABLE + 3))
    assert list(PlanStore(store).made_from()) == list(range(3, EXPLAINABLE + 3))


@pytest.mark.parametrize("body", ["{", "[]", '{"window": 3}', '{"snapshot": null}'])
def test_what_another_release_or_a_fault_has_left_is_read_and_not_explained(planner: Planner, store: Store, body: str) -> None:
    planner.plan()
    planner.plan()
    with store.transaction() as db:
        db.execute("UPDATE plans_made_from SET body = ? WHERE number = 1", (body,))
    planner.start()
    assert [(p.number, p.explainable) for p in why_of(planner).plans(9).plans] == [(2, True), (1, False)]
    with pytest.raises(UsageError, match="plan 1 can no longer be explained"):
        why_of(planner).why(1)


def test_what_a_plan_was_made_from_holds_no_credential(planner: Planner, store: Store) -> None:
    plan = make_policy(POLICY)(SNAPSHOT)
    planner.decided = Decided(at_s=1.0, window=3, snapshot=SNAPSHOT, plan=plan, reasons=("gate: rtsp://user:s3cret@cam/1",))
    planner.book.heard(ReportPlan(window=3, plan=plan, reasons=planner.decided.reasons))
    assert "s3cret" not in str(PlanStore(store).made_from())


def test_before_the_first_plan_that_is_said(planner: Planner) -> None:
    with pytest.raises(UsageError, match="no plan was made since the box started"):
        why_of(planner).why(None)
    planner.book.heard("something else")
    planner.book.heard(ReportPlan(window=0, plan=make_policy(POLICY)(SNAPSHOT), reasons=()))  # of whom nothing is known
    assert planner.book.made() == ()


def test_the_answer_is_that_of_decide(planner: Planner) -> None:
    planner.plan()
    view = why_of(planner).why(None)
    policy = make_policy(POLICY)
    assert view.answer == answer_of(SNAPSHOT, policy(SNAPSHOT), policy, name=POLICY, explain=True)
    assert view.answer.explain is not None
    assert {(j.stream, j.kind) for j in view.answer.explain.jobs} == {
        (s, k) for s in ("gate", "yard") for k in ("infer", "train")
    }
    assert view.answer.optimal_quality >= view.answer.expected_quality
    assert {a.policy for a in view.alternatives} == set(ALTERNATIVES) - {POLICY}
    learning = next(a for a in view.alternatives if a.policy == "no-retrain")
    assert learning.retrainings == 0
    assert learning.expected_quality is not None
    assert learning.expected_quality < view.answer.expected_quality


def test_a_policy_that_cannot_plan_says_so() -> None:
    found = alternative(SNAPSHOT, "no-such-policy", "words")
    assert found.expected_quality is None
    assert found.problem


def test_each_plan_is_explained_once(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "edge.box_why.alternative", lambda snapshot, policy, words: asked.append(policy) or alternative(snapshot, policy, words)
    )
    why = why_of(planner)
    for _ in range(REMEMBERED + 2):
        planner.plan()
        why.why(None)
        why.why(None)
    assert len(asked) == (REMEMBERED + 2) * (len(ALTERNATIVES) - 1)


def test_an_engine_keeps_what_its_newest_plan_was_made_from() -> None:
    engine = BoxEngine(EngineConfig(policy="no-retrain"))
    assert engine.decided is None
    knobs = (KnobProfile(name="every", demand_pct=20, quality_frac=1.0),)
    engine.handle(CameraAdded(at_s=0.0, stream="gate", knobs=knobs, version="gate-1", quality=0.6))
    commands = [*engine.handle(BoxStarted(at_s=0.0)), *engine.handle(TimerFired(at_s=5.0, timer="prep-deadline"))]
    told = [c for c in commands if isinstance(c, ReportPlan)][-1]
    assert engine.decided is not None
    assert engine.decided.plan is told.plan
    assert engine.decided.reasons == told.reasons
    assert [s.id for s in engine.decided.snapshot.streams] == ["gate"]


def test_over_http(planner: Planner) -> None:
    planner.plan()
    client = TestClient(make_app(FakeSource(), Services(why=why_of(planner))), base_url="http://127.0.0.1:8080")
    listed = client.get("/api/v1/plans", params={"limit": 5}).json()["plans"]
    assert listed[0]["explainable"]
    told = client.get("/api/v1/plans/current/why").json()
    assert told == client.get(f"/api/v1/plans/{listed[0]['number']}/why").json() | {"took_ms": told["took_ms"]}
    assert told["answer"]["explain"]["quantum_pct"] == SNAPSHOT.quantum_pct
    assert client.get("/api/v1/plans/99/why").status_code == 404
    assert client.get("/api/v1/plans/nan/why").status_code == 422
    assert client.get("/api/v1/plans", params={"limit": 10**9}).status_code == 422
