"""A library over the local engine in virtual time: what unit tests of ESCHER's policies play in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cluster.engines.base import Demands, NodeId, Task
from cluster.engines.local import LocalEngine
from cluster.escher.library import Escher, State
from cluster.escher.names import named
from cluster.escher.policies.base import Policy
from cluster.escher.table import state_as_dict, state_from_dict

P = TypeVar("P")
APP = "app"


def name(*parts: str | int) -> str:
    return named(APP, *parts)


class Crash(BaseException):
    """The controller is killed here."""


class CrashingEngine:
    """Kills whoever calls, before or after the n-th call that changes something."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.name = engine.name
        self.calls = 0
        self.at: tuple[int, bool] | None = None  # (which call, after it was made)

    def __getattr__(self, call: str) -> Any:
        inner = getattr(self._engine, call)
        if call not in ("set_resource", "submit", "lift", "cancel", "forget", "reserve", "release"):
            return inner

        def counted(*arguments: Any, **named_arguments: Any) -> Any:
            self.calls += 1
            if self.at == (self.calls, False):
                raise Crash
            result = inner(*arguments, **named_arguments)
            if self.at == (self.calls, True):
                raise Crash
            return result

        return counted


class World:
    """nodes: id -> physical amounts. keeps: every state goes through JSON, so that what cannot be stored fails here."""

    def __init__(self, nodes: Mapping[NodeId, Mapping[str, float]] | None = None, *, seed: int = 0, keeps: bool = True) -> None:
        self.keeps = keeps
        nodes = nodes or {f"n{n}": {"CPU": 4} for n in (1, 2, 3)}
        self.engine = LocalEngine(nodes, threads=False, seed=seed)
        self.seam = CrashingEngine(self.engine)
        self.stored = ""
        self.now_s = 0.0
        self.restart()
        self.escher.register(APP, 0.0)

    def restart(self) -> None:
        """A controller that knows only what was kept."""
        state = state_from_dict(json.loads(self.stored)) if self.stored else State()
        self.escher = Escher(self.seam, state=state, keep=self._keep if self.keeps else None)  # type: ignore[arg-type]

    def _keep(self, state: State) -> None:
        self.stored = json.dumps(state_as_dict(state))

    def run(self, policy: Policy) -> None:
        self.escher.run(policy, self.now_s)

    def found(self, cls: type[P], policy: str) -> P:
        policy_now = self.escher.policy(policy)
        assert isinstance(policy_now, cls)
        return policy_now

    def tick(self, passed_s: float = 0.0) -> float | None:
        self.now_s += passed_s
        wake_s = self.escher.tick(self.now_s)
        self.engine.check()
        return wake_s

    def drive(self, condition: Callable[[], bool], *, looks: int = 500, step_s: float = 1.0) -> bool:
        """Ticks to the next time at which something is due, or `step_s` on."""
        for _ in range(looks):
            wake_s = self.tick()
            if condition():
                return True
            self.now_s = min(self.now_s + step_s, wake_s) if wake_s and wake_s > self.now_s else self.now_s + step_s
        return False

    def ghost(self, task: str, demands: Demands) -> str:
        self.engine.submit(Task(id=task, demands=demands))
        return task

    def state(self, task: str) -> str:
        found = self.engine.status([task]).get(task)
        return found.state if found else ""

    def at(self, task: str) -> NodeId | None:
        found = self.engine.status([task]).get(task)
        return found.node if found else None

    def states(self, tasks: Sequence[str]) -> list[str]:
        return [self.state(task) for task in tasks]

    def finish(self, *tasks: str) -> None:
        """A task that was submitted without work ends as if it had done some."""
        for task in tasks:
            with self.engine._changed:
                entry = self.engine._tasks[task]
                assert entry.state == "running", f"{task} is {entry.state}"
                self.engine._end(entry, "done")

    def free(self, resource: str) -> float:
        return sum(node.free.get(resource, 0.0) for node in self.engine.nodes() if node.alive)

    def ours(self) -> set[str]:
        """Ephemeral resources that exist."""
        return {n for node in self.engine.nodes() for n in node.total if n not in ("CPU", "GPU", "memory_mib")}
