"""What a policy is: a value that turns a view of the cluster into commands (card section 3).

    policy.step(view, now_s) -> Step(policy after it, commands)

A policy asks nobody and waits for nothing: the library looks at the engine, steps every policy, executes what they command, and steps
again until none has anything to say. So a policy can be tested by comparing commands, stored, and taken up by another controller.
now_s is the controller's clock in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from cluster.engines.base import Demands, NodeId, NodeStatus, Task, TaskStatus
from cluster.escher.wishes import Wish

#: How often a wrapper or a member is run again when its node is lost: always, as long as the policy lives.
ALWAYS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Want:
    """Make (or change) what is wished."""

    wish: Wish


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Wish it no more: it is deleted wherever it is."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Submit:
    task: Task


@dataclass(frozen=True, kw_only=True)
class Lift:
    """Take a gate of a submitted task away. One that is gone: nothing happens."""

    task: str
    gate: str


@dataclass(frozen=True, kw_only=True)
class Cancel:
    tasks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Ask the engine for its own all-or-nothing reservation; the answer is in the next view."""

    gang: str
    bundles: tuple[Demands, ...]
    spread: bool


@dataclass(frozen=True, kw_only=True)
class Release:
    gang: str


Command = Want | Drop | Submit | Lift | Cancel | Reserve | Release


@dataclass(frozen=True, kw_only=True)
class View:
    """What a policy sees. tasks: those it watches, as far as the engine knows them; in_force: resource -> node -> capacity, as the
    engine answered; reserved: gang -> answer to its last `Reserve`; demands: of reserved gangs, per bundle."""

    nodes: Sequence[NodeStatus] = ()
    tasks: Mapping[str, TaskStatus] = field(default_factory=dict)
    in_force: Mapping[str, Mapping[NodeId, float]] = field(default_factory=dict)
    reserved: Mapping[str, bool | None] = field(default_factory=dict)
    demands: Mapping[str, Sequence[Demands]] = field(default_factory=dict)

    @property
    def alive(self) -> tuple[NodeStatus, ...]:
        return tuple(node for node in self.nodes if node.alive)

    def state(self, task: str) -> str:
        """'' where the engine does not know it."""
        found = self.tasks.get(task)
        return found.state if found else ""

    def running(self, task: str) -> bool:
        return self.state(task) == "running"

    def ended(self, task: str) -> bool:
        found = self.tasks.get(task)
        return found is not None and found.ended

    def node(self, task: str) -> NodeId | None:
        found = self.tasks.get(task)
        return found.node if found else None


class Policy(Protocol):
    """A frozen dataclass. id: also the begin of the names it makes; owner: whose lease it lives by."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def over(self) -> bool:
        """It has nothing more to do; the library forgets it."""

    def watches(self) -> tuple[str, ...]:
        """Tasks whose state it must see."""

    def step(self, view: View, now_s: float) -> Step: ...

    def undone(self) -> tuple[Command, ...]:
        """What frees all that it made and still holds, for when it is taken away."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """wake_s: look again at this time at the latest, None: only when something has changed."""

    policy: Policy
    commands: tuple[Command, ...] = ()
    wake_s: float | None = None


T = TypeVar("T", bound="Policy")


_HELPER = re.compile(r"~[wg][0-9.]*$")


def is_helper(task: str) -> bool:
    """A wrapper or a ghost: nobody asks for its result."""
    return _HELPER.search(task) is not None


def demanding(task: Task, demands: Demands) -> Task:
    """`task` with these added to what it demands."""
    return replace(task, demands={**task.demands, **demands})


def only_demanding(task: Task, demands: Demands) -> Task:
    """`task` without physical demands of its own: its ghost holds them for it."""
    return replace(task, demands=dict(demands))
