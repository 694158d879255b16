"""One contract for every serving policy: nothing lost or served twice, nothing dropped is served, the same calls decide the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.orloj.registry import POLICIES, make_batch_policy
from scheduler.orloj.types import Batch, BatchPolicy, Decision, ModelCost, Request

COST = ModelCost(c0_s=0.004, c1=0.3, sizes=(1, 2, 4, 8))
every = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
Make = Callable[..., BatchPolicy]


def ready(make: Make, *, sampled: bool = True) -> BatchPolicy:
    policy = make()
    for model in ("detect", "classify"):
        policy.add_model(model, COST)
        for i in range(20) if sampled else ():
            policy.sample(model, "cam", 0.01 + 0.001 * (i % 5), 0.0)
    return policy


def asked(id: int, released_s: float, slo_s: float = 0.1, model: str = "detect", app: str = "cam") -> Request:
    return Request(id=id, app=app, model=model, released_s=released_s, deadline_s=released_s + slo_s)


class Ledger:
    """What became of each request."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.waiting: set[int] = set()
        self.gone: dict[int, str] = {}

    def submit(self, request: Request, now_s: float) -> None:
        self.policy.submit(request, now_s)
        self.waiting.add(request.id)

    def note(self, decision: Decision) -> None:
        for request in decision.dropped:
            self._leave(request.id, "dropped")
        if decision.batch is None:
            return
        batch = decision.batch
        assert 1 <= len(batch.requests) <= batch.size
        assert batch.size in COST.sizes
        assert math.isfinite(batch.expected_s)
        assert batch.expected_s >= 0
        for request in batch.requests:
            assert request.model == batch.model
            self._leave(request.id, "served")

    def _leave(self, id: int, how: str) -> None:
        assert id in self.waiting, f"{id} left twice or never came: {self.gone.get(id)}, {how}"
        self.waiting.remove(id)
        self.gone[id] = how

    def run(self, seed: int, *, steps: int = 60, backwards: bool = False) -> list[Decision]:
        """Random arrivals, decisions and clocks; afterwards everything is worked off."""
        rng = np.random.default_rng(seed)
        now_s, id_, decisions = 100.0, 0, []
        for _ in range(steps):
            for _ in range(int(rng.integers(0, 5))):
                model = str(rng.choice(["detect", "classify"]))
                app = str(rng.choice(["cam", "door"]))
                self.submit(asked(id_, now_s, float(rng.uniform(-0.01, 0.2)), model, app), now_s)
                id_ += 1
            if id_ and rng.random() < 0.1:
                gone = int(rng.integers(id_))
                assert self.policy.withdraw(gone) == (gone in self.waiting)
                self.waiting.discard(gone)
                self.gone.setdefault(gone, "withdrawn")
            decision = self.policy.decide(now_s)
            self.note(decision)
            decisions.append(decision)
            assert self.policy.waiting() == len(self.waiting)
            if decision.batch is not None:
                took_s = decision.batch.expected_s * float(rng.uniform(0.5, 3))
                now_s += took_s
                self.policy.ran(decision.batch, took_s, now_s)
            if rng.random() < 0.3:
                self.policy.sample("detect", "cam", float(rng.uniform(0.001, 0.05)), now_s)
            now_s += float(rng.uniform(-0.3, 0.3)) if backwards else float(rng.uniform(0, 0.01))
        while self.policy.waiting():
            decision = self.policy.decide(now_s)
            self.note(decision)
            decisions.append(decision)
            assert decision.batch or decision.dropped
            now_s += decision.batch.expected_s if decision.batch is not None else 0.0
        return decisions


@every
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**31), sampled=st.booleans(), backwards=st.booleans())
def test_nothing_is_lost_and_nothing_leaves_twice(make: Make, seed: int, sampled: bool, backwards: bool) -> None:
    ledger = Ledger(ready(make, sampled=sampled))
    ledger.run(seed, backwards=backwards)
    assert ledger.waiting == set()
    assert ledger.policy.waiting() == 0


@every
def test_the_same_calls_decide_the_same(make: Make) -> None:
    assert Ledger(ready(make)).run(7) == Ledger(ready(make)).run(7)


@every
def test_a_lone_request_is_served_at_once(make: Make) -> None:
    policy = ready(make)
    policy.submit(asked(1, 10.0), 10.0)
    decision = policy.decide(10.0)
    assert decision.batch is not None
    assert (decision.batch.size, [r.id for r in decision.batch.requests]) == (1, [1])
    assert policy.decide(10.0) == Decision()


@every
def test_a_withdrawn_request_is_not_served(make: Make) -> None:
    policy = ready(make)
    for i in range(20):
        policy.submit(asked(i, 10.0, 10.0), 10.0)
    first = policy.decide(10.0)
    assert first.batch is not None
    rest = set(range(20)) - {r.id for r in first.batch.requests}
    assert all(policy.withdraw(i) for i in rest)
    assert not any(policy.withdraw(i) for i in range(20))
    assert policy.waiting() == 0
    assert policy.decide(10.1) == Decision()


@every
def test_a_burst_of_100_times_the_usual_goes_through(make: Make) -> None:
    ledger = Ledger(ready(make))
    for i in range(2000):
        ledger.submit(asked(i, 10.0, 0.1 + 0.0001 * i), 10.0)
    now_s = 10.0
    while ledger.waiting:
        decision = ledger.policy.decide(now_s)
        ledger.note(decision)
        assert decision.batch or decision.dropped
        now_s += decision.batch.expected_s if decision.batch else 0.001
    assert "served" in ledger.gone.values()


@every
def test_late_ones_do_not_keep_later_ones_from_being_served(make: Make) -> None:
    policy = ready(make)
    policy.submit(asked(1, 0.0, 1.0), 10.0)  # long late
    policy.submit(asked(2, 10.0, 1.0), 10.0)
    served: set[int] = set()
    now_s = 10.0
    while policy.waiting():
        decision = policy.decide(now_s)
        served |= {r.id for r in decision.batch.requests} if decision.batch else set()
        now_s += 0.02
    assert 2 in served


@every
def test_bad_calls_are_refused_and_change_nothing(make: Make) -> None:
    policy = ready(make)
    policy.submit(asked(1, 10.0), 10.0)
    nan = float("nan")
    refused: list[Callable[[], object]] = [
        lambda: policy.submit(asked(1, 10.0), 10.0),
        lambda: policy.submit(asked(2, 10.0, model="nobody"), 10.0),
        lambda: policy.submit(asked(3, nan), 10.0),
        lambda: policy.submit(asked(4, 10.0, math.inf), 10.0),
        lambda: policy.submit(asked(5, 10.0), nan),
        lambda: policy.submit(Request(id=6, app="a", model="detect", released_s=1.0, deadline_s=2.0, penalty=nan), 10.0),
        lambda: policy.submit(Request(id=7, app="a", model="detect", released_s=1.0, deadline_s=2.0, penalty=-1.0), 10.0),
        lambda: policy.submit(Request(id=8, app="a", model="detect", released_s=1.0, deadline_s=2.0, together=-1), 10.0),
        lambda: policy.decide(nan),
        lambda: policy.sample("detect", "cam", nan, 10.0),
        lambda: policy.sample("detect", "cam", -0.1, 10.0),
        lambda: policy.sample("nobody", "cam", 0.1, 10.0),
        lambda: policy.ran(Batch(model="detect", requests=(asked(1, 10.0),), size=1, expected_s=0.01), nan, 10.0),
        lambda: policy.add_model("x", ModelCost(c0_s=nan)),
        lambda: policy.add_model("x", ModelCost(c1=0.0)),
        lambda: policy.add_model("x", ModelCost(sizes=(2, 4))),
        lambda: policy.add_model("x", ModelCost(sizes=(1, 4, 2))),
        lambda: policy.add_model("x", ModelCost(sizes=())),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"\w"):
            call()
    assert policy.waiting() == 1
    decision = policy.decide(10.0)
    assert decision.batch is not None
    assert [r.id for r in decision.batch.requests] == [1]


@every
def test_a_cost_measured_anew_keeps_what_waits(make: Make) -> None:
    policy = ready(make)
    for i in range(5):
        policy.submit(asked(i, 10.0, 5.0), 10.0)
    first = policy.decide(10.0)
    left, now_s = {r.id for r in (first.batch.requests if first.batch else ())}, 10.0
    policy.add_model("detect", ModelCost(c0_s=0.2, c1=0.5, sizes=(1, 2)))
    assert policy.waiting() == 5 - len(left)
    for _ in range(10):
        decision = policy.decide(now_s)
        left |= {r.id for r in decision.dropped}
        if decision.batch is not None:
            assert decision.batch.size <= 2
            left |= {r.id for r in decision.batch.requests}
    assert left == set(range(5))


def test_every_policy_knows_its_name_and_unknown_ones_are_refused() -> None:
    assert {make_batch_policy(name).name for name in POLICIES} <= set(POLICIES)
    with pytest.raises(UsageError, match="known: orloj"):
        make_batch_policy("orlog")
