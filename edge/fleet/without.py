"""The seams of `edge.fleet.handlers` on a box that lacks what is behind them: what is asked is answered with why it is not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from configs.errors import UsageError
from scheduler.fleet.types import CameraKey, CameraOrder, CameraWord, ModelOffer, OfferWord


class OwnCamerasOnly:
    """A `CameraHost` that watches the box's own cameras whatever is ordered."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._orders: tuple[CameraOrder, ...] = ()

    def apply(self, orders: Sequence[CameraOrder]) -> None:
        self._orders = tuple(orders)

    def words(self) -> tuple[CameraWord, ...]:
        return tuple(self._word(order) for order in self._orders)

    def guests(self) -> Mapping[str, CameraKey]:
        return {}

    def _word(self, order: CameraOrder) -> CameraWord:
        if order.camera.home == self._box and order.role == "own":
            return CameraWord(camera=order.camera, term=order.term, stage="owning")
        return CameraWord(
            camera=order.camera, term=order.term, stage="failed", problem="this box watches its own cameras, and only those"
        )


class NoOffers:
    """An `OfferDesk` that takes none."""

    def __init__(self) -> None:
        self._offers: tuple[ModelOffer, ...] = ()

    def take(self, offers: Sequence[ModelOffer]) -> None:
        self._offers = tuple(offers)

    def words(self) -> tuple[OfferWord, ...]:
        return tuple(
            OfferWord(rollout=offer.rollout, camera=camera, stage="failed", problem="this box takes no models from its fleet")
            for offer in self._offers
            for camera in offer.cameras
        )


class NoSamples:
    """A `SampleDesk` that gives none."""

    def collect(self, request: str) -> None:
        if request:
            raise UsageError("this box gives no samples away", code="no_samples")
