"""Weighted fair queue: one queue per class, released in proportion to weights (card section 5).

`slots` tasks may be in at once. Whenever one is free, the class with the least virtual time among those with somebody waiting releases
one (start-time fair queueing with tasks of equal length): serving a class moves its virtual time on by 1 / weight. A class that had
nobody waiting starts again at the virtual time of the queue, so it cannot save up what it did not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.engines.base import Task
from cluster.escher.policies.base import Command, Step, View
from cluster.escher.policies.turnstile import Turnstile, queue


@dataclass(frozen=True, kw_only=True)
class FairQueue:
    """weights: class -> weight, above 0; queues: class -> its queue; times: class -> virtual time; at: virtual time of the queue."""

    id: str
    owner: str
    weights: Mapping[str, float]
    slots: int = 1
    queues: Mapping[str, Turnstile] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    at: float = 0.0

    over = False

    def __post_init__(self) -> None:
        if self.slots < 1 or not all(weight > 0 for weight in self.weights.values()):
            raise ValueError("slots must be 1 or more, weights above 0")

    def entering(self, name: str, *tasks: Task) -> FairQueue:
        """KeyError for a class that has no weight."""
        weight = self.weights[name]
        assert weight > 0
        place = self.queues.get(name) or queue(f"{self.id}.{sorted(self.weights).index(name)}", self.owner)
        idle = place.waiting == 0
        times = {**self.times, name: max(self.times.get(name, 0.0), self.at)} if idle else self.times
        return replace(self, queues={**self.queues, name: place.entering(*tasks)}, times=times)

    def watches(self) -> tuple[str, ...]:
        return tuple(i for place in self.queues.values() for i in place.watches())

    def undone(self) -> tuple[Command, ...]:
        return tuple(command for place in self.queues.values() for command in place.undone())

    def step(self, view: View, now_s: float) -> Step:
        commands: list[Command] = []
        queues = dict(self.queues)
        for name, place in self.queues.items():
            step = place.step(view, now_s)
            assert isinstance(step.policy, Turnstile)
            queues[name] = step.policy
            commands += step.commands
        after = replace(self, queues=queues)._released()
        return Step(policy=after, commands=tuple(commands))

    def _released(self) -> FairQueue:
        queues, times, at = dict(self.queues), dict(self.times), self.at
        free = self.slots - sum(_taken(place) for place in queues.values())
        for _ in range(max(0, free)):
            able = [name for name, place in queues.items() if _unreleased(place) > 0]
            if not able:
                break
            name = min(able, key=lambda n: (times.get(n, 0.0), n))
            at = times.get(name, 0.0)
            times[name] = at + 1.0 / self.weights[name]
            queues[name] = queues[name].releasing(1)
        return replace(self, queues=queues, times=times, at=at)


def _through(place: Turnstile) -> int:
    return sum(item.phase == "over" for item in place.items)


def _taken(place: Turnstile) -> int:
    """In, or released and on their way in."""
    return place.units - _through(place)


def _unreleased(place: Turnstile) -> int:
    """Waiting without a unit that is meant for them."""
    return place.waiting - (_taken(place) - place.inside)
