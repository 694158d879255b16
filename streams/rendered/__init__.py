"""Rendered cameras: procedural scenes with exact truth, for the demo and the tests."""

from streams.rendered.conditions import CONDITIONS, Condition, Schedule, named
from streams.rendered.scene import RenderedScene

__all__ = ["CONDITIONS", "Condition", "RenderedScene", "Schedule", "named"]
