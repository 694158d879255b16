"""Costs that follow what runs beside the worker: told, measured, mapped back, and never a reason to lose a request."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.orloj.beside import Beside
from scheduler.orloj.registry import make_batch_policy
from scheduler.orloj.types import Batch, Decision, ModelCost, Request


class Scripted:
    """A policy that writes down what it is told, and decides what the test says."""

    name = "scripted"

    def __init__(self) -> None:
        self.costs: list[tuple[str, ModelCost]] = []
        self.samples: list[float] = []
        self.runs: list[float] = []

    def add_model(self, model: str, cost: ModelCost) -> None:
        self.costs.append((model, cost))

    def submit(self, request: Request, now_s: float) -> None: ...

    def withdraw(self, id: int) -> bool:
        return id == 7

    def decide(self, now_s: float) -> Decision:
        return Decision(wake_s=now_s + 1)

    def sample(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        self.samples.append(alone_s)

    def ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        self.runs.append(took_s)

    def waiting(self) -> int:
        return 3


class World:
    """A policy beside which a training may run."""

    def __init__(self) -> None:
        self.state = ""
        self.inside = Scripted()
        self.policy = Beside(self.inside, lambda: self.state)
        self.policy.add_model("m", ModelCost(c0_s=0.01, c1=1.0, sizes=(1, 2)))

    def run(self, took_s: float, *, expected_s: float = 0.1, times: int = 5) -> None:
        for _ in range(times):
            self.policy.decide(0.0)
            self.policy.ran(Batch(model="m", requests=(), size=1, expected_s=expected_s), took_s, 0.0)
        self.policy.decide(0.0)


def test_beside_a_training_costs_are_what_they_are_there_and_afterwards_what_they_were() -> None:
    world = World()
    world.run(0.1)
    assert world.policy.factor("m") == 1.0
    world.state = "learning"
    world.run(0.2)
    assert world.policy.factor("m") == pytest.approx(2.0)
    assert world.inside.costs[-1] == ("m", ModelCost(c0_s=pytest.approx(0.02), c1=pytest.approx(2.0), sizes=(1, 2)))
    world.state = ""
    world.policy.decide(0.0)
    assert world.policy.factor("m") == 1.0
    assert world.inside.costs[-1] == ("m", ModelCost(c0_s=0.01, c1=1.0, sizes=(1, 2)))
    world.state = "learning"
    world.policy.decide(0.0)
    assert world.policy.factor("m") == pytest.approx(2.0), "what was learnt of a training is known when the next one begins"


def test_a_factor_that_is_known_stays_where_it_is() -> None:
    """Expected times hold the factor already: a batch that takes what was expected says that the factor is right."""
    world = World()
    world.state = "learning"
    world.run(0.2)
    world.run(0.2, expected_s=0.2, times=40)
    assert world.policy.factor("m") == pytest.approx(2.0)
    assert len(world.inside.costs) == 2, "told once, and not with every batch"


def test_a_stand_alone_run_beside_a_training_is_taken_for_what_it_were_on_the_quiet_device() -> None:
    world = World()
    world.policy.sample("m", "a", 0.3, 0.0)
    world.state = "learning"
    world.run(0.2)
    world.policy.sample("m", "a", 0.3, 0.0)
    assert world.inside.samples == [0.3, pytest.approx(0.15)]


def test_a_cost_that_is_measured_anew_is_told_as_it_is_beside_a_training() -> None:
    world = World()
    world.state = "learning"
    world.run(0.2)
    world.policy.add_model("m", ModelCost(c0_s=0.015, c1=0.5, sizes=(1,)))
    assert world.inside.costs[-1][1] == ModelCost(c0_s=pytest.approx(0.03), c1=pytest.approx(1.0), sizes=(1,))
    world.state = ""
    world.policy.decide(0.0)
    assert world.inside.costs[-1][1] == ModelCost(c0_s=pytest.approx(0.015), c1=0.5, sizes=(1,))


def test_a_batch_that_saw_two_states_tells_of_neither() -> None:
    world = World()
    for _ in range(20):
        world.state = "learning"
        world.policy.decide(0.0)
        world.state = ""
        world.policy.ran(Batch(model="m", requests=(), size=1, expected_s=0.1), 9.0, 0.0)
    world.state = "learning"
    world.policy.decide(0.0)
    assert world.policy.factor("m") == 1.0
    assert len(world.inside.runs) == 20


def test_policies_that_expect_nothing_have_no_slowdown() -> None:
    world = World()
    world.state = "learning"
    world.run(5.0, expected_s=0.0)
    assert world.policy.factor("m") == 1.0


def test_everything_else_is_the_policys_own() -> None:
    world = World()
    assert world.policy.name == "scripted"
    assert world.policy.withdraw(7)
    assert not world.policy.withdraw(8)
    assert world.policy.waiting() == 3
    assert world.policy.decide(2.0) == Decision(wake_s=3.0)


def test_orloj_does_not_promise_beside_a_training_what_it_could_keep_without_it() -> None:
    """A picture takes 0.1 s, and 0.3 s beside a training. With 0.2 s left it is served on the quiet device, and given up beside it."""
    drawn = np.random.default_rng(1)
    state = ""
    policy = Beside(make_batch_policy("orloj"), lambda: state)
    policy.add_model("m", ModelCost(sizes=(1,)))
    now_s, number = 0.0, 0

    def one(left_s: float, took_s: float) -> Decision:
        nonlocal now_s, number
        number += 1
        policy.submit(Request(id=number, app="a", model="m", released_s=now_s, deadline_s=now_s + left_s), now_s)
        decision = policy.decide(now_s)
        now_s += took_s
        if decision.batch is not None:
            policy.ran(decision.batch, took_s, now_s)
        return decision

    for _ in range(40):
        assert one(5.0, 0.1 + 0.002 * drawn.random()).batch is not None
    assert one(0.2, 0.1).batch is not None
    state = "learning"
    for _ in range(10):
        assert one(5.0, 0.3).batch is not None
    assert 2.0 <= policy.factor("m") <= 3.3, "the law has seen the first of them before anything was known"
    hopeless = one(0.2, 0.3)
    assert hopeless.batch is None
    assert [r.id for r in hopeless.dropped] == [number]
    state = ""
    assert one(0.2, 0.1).batch is not None, "and at once again when it is over"
    assert policy.waiting() == 0
