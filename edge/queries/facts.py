"""Knobs and parameters of the built-in transforms, from the one table of `configs.queries`."""

from __future__ import annotations

from collections.abc import Sequence

from configs.queries import TRANSFORMS, KnobFacts
from edge.queries.base import Knob, KnobValue


def knob_of(facts: KnobFacts, values: Sequence[KnobValue] | None = None) -> Knob:
    """values: what an operator allows, the one to begin with first; None: the usual ones."""
    allowed = tuple(values or facts.values)
    return Knob(name=facts.name, values=allowed, unit=facts.unit, help=facts.text, golden=facts.golden(allowed))


def knobs_of(transform: str) -> tuple[Knob, ...]:
    return tuple(knob_of(facts) for facts in TRANSFORMS[transform].knobs)


def params_of(transform: str) -> tuple[str, ...]:
    return TRANSFORMS[transform].params
