"""Vectors of resources: sums, what fits into what, and how constraints are joined (card section 5, composition)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cluster.engines.base import PHYSICAL, QUANTUM, Demands

#: Ordered by preference: the first that can be met. OR of constraints.
Alternatives = Sequence[Demands]

#: Half of the smallest amount: sums of floats are compared with it.
_SLACK = QUANTUM / 2


def fits(demands: Demands, amounts: Mapping[str, float]) -> bool:
    """All of them, in one place."""
    return all(amounts.get(name, 0.0) + _SLACK >= amount for name, amount in demands.items())


def lacking(demands: Demands, amounts: Mapping[str, float]) -> tuple[str, ...]:
    """Names of which there is too little, in order of the alphabet."""
    return tuple(sorted(name for name, amount in demands.items() if amounts.get(name, 0.0) + _SLACK < amount))


def plus(*vectors: Demands) -> dict[str, float]:
    """Sum, name by name."""
    total: dict[str, float] = {}
    for vector in vectors:
        for name, amount in vector.items():
            total[name] = round(total.get(name, 0.0) + amount, 4)
    return total


def minus(amounts: Mapping[str, float], taken: Demands) -> dict[str, float]:
    """What is left, never below 0; names that `amounts` has not are left out."""
    return {name: max(0.0, round(amount - taken.get(name, 0.0), 4)) for name, amount in amounts.items()}


def every(*vectors: Demands) -> dict[str, float]:
    """AND: one node must meet all of them. The same name in two vectors is the same constraint stated twice: the larger counts."""
    joined: dict[str, float] = {}
    for vector in vectors:
        for name, amount in vector.items():
            joined[name] = max(joined.get(name, 0.0), amount)
    return joined


def either(*choices: Demands) -> list[dict[str, float]]:
    """OR: the first of the choices that can be met; doubles are left out."""
    kept: list[dict[str, float]] = []
    for choice in choices:
        if dict(choice) not in kept:
            kept.append(dict(choice))
    return kept


def every_of(*lists: Alternatives) -> list[dict[str, float]]:
    """AND of ORs: all combinations, those of the first list's best first."""
    joined: list[dict[str, float]] = [{}]
    for choices in lists:
        joined = [every(before, choice) for before in joined for choice in choices]
    return either(*joined)


def relaxed(*constraints: Demands) -> list[dict[str, float]]:
    """For constraints that may contradict each other, the least dispensable first: all of them, then without the last, ... down to the
    first alone (card: [{fair:1, anti:1}, {fair:1}])."""
    return either(*(every(*constraints[:count]) for count in range(len(constraints), 0, -1)))


def physical(demands: Demands) -> dict[str, float]:
    return {name: amount for name, amount in demands.items() if name in PHYSICAL}


def ephemeral(demands: Demands) -> dict[str, float]:
    return {name: amount for name, amount in demands.items() if name not in PHYSICAL}


def total(vectors: Iterable[Demands]) -> dict[str, float]:
    return plus(*vectors)
