"""What the fleet may ask of a box, as three small seams: cameras of others, models made elsewhere, samples for pooled training.

`edge.fleet.member` calls them, always from one thread of its own, with what the `Desired` in force says. Every call is *complete* (what
is not in it is not wished any more), comes again after every start of the box and with every newer `Desired`, and must therefore do
nothing that is already done. A call returns quickly: long work goes to a thread of the handler's own. It raises nothing but
DriftboxError, which becomes one of the confirmation's problems and changes nothing else.

A handler gets what it needs of the box (runtime, cameras, shelf) when it is made, in `edge.fleet.wiring`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.fleet.types import CameraKey, CameraOrder, CameraWord, ModelOffer, OfferWord


class CameraHost(Protocol):
    """Watches cameras as ordered: those of other boxes beside its own, and lets go of its own when another box owns them."""

    def apply(self, orders: Sequence[CameraOrder]) -> None:
        """All orders in force. A camera of this box that is in none is watched here, simply; a guest that is in none goes."""

    def words(self) -> tuple[CameraWord, ...]:
        """How far each order is, at any time; cheap. Orders that it has not heard of are not in it."""

    def guests(self) -> Mapping[str, CameraKey]:
        """Its id on this box -> who it is in the fleet, of every camera here whose home is another box; cheap."""


class OfferDesk(Protocol):
    """Fetches, checks and measures models made elsewhere, by the box's own gate."""

    def take(self, offers: Sequence[ModelOffer]) -> None:
        """All offers in force. One that was answered is not measured again."""

    def words(self) -> tuple[OfferWord, ...]:
        """Answers to the offers that stand, per camera; cheap."""


class SampleDesk(Protocol):
    """Gives samples away, masked, only of cameras whose operator consents."""

    def collect(self, request: str) -> None:
        """`request`: id of the request in force, '' none. One that was served is not served again."""
