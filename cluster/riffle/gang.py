"""ESCHER's gang for a training: all workers have their place, or none has.

`ghosts` hold the places; whoever runs in them asks for `demands`. The bundles are alike, so all members ask for the same unit, which is
what Ray Train wants: every worker asks for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cluster.escher.library import Escher
from cluster.escher.names import named
from cluster.escher.policies.gang import Gang
from cluster.escher.policies.gang_desk import GangDesk
from configs.errors import EnvironmentLacking

OWNER = "pooled-training"


@contextmanager
def held_gang(
    escher: Escher, name: str, *, workers: int, bundle: Mapping[str, float], now: Callable[[], float], wait: Callable[[float], None],
    patience_s: float = 300.0, one_per_box: bool = False,
) -> Iterator[Mapping[str, float]]:  # fmt: skip
    """What each of `workers` members asks for, while all their places are held. now, wait: a clock and its sleep, seconds;
    one_per_box: no two of them (replicas of one model) on one box, so that none gives up more than one place.
    Raises EnvironmentLacking when they are not had within `patience_s`; nothing is held then."""
    until_s = now() + patience_s
    escher.register(OWNER, now())
    desk, name = named(OWNER, f"{name}-desk"), named(OWNER, name)
    gang = Gang(id=name, owner=OWNER, bundles=(dict(bundle),) * workers, spread=one_per_box, ghosts_only=True)
    escher.run(GangDesk(id=desk, owner=OWNER, gangs=(gang,)), now())
    try:
        while not (found := _gang(escher, desk, name)) or not found.held:
            if now() >= until_s:
                raise EnvironmentLacking(
                    f"{workers} places for {dict(bundle)}{' on boxes of their own' if one_per_box else ''} could not be had together",
                    subject=name,
                    remedy="free some of the fleet, or train with fewer workers",
                )  # fmt: skip
            wake_s = escher.tick(now())
            wait(0.05 if wake_s is None else min(0.5, max(0.01, wake_s - now())))
        yield dict(found.demands[0])
    finally:
        escher.stop(desk, now())


def _gang(escher: Escher, desk: str, name: str) -> Gang | None:
    found = escher.policy(desk)
    return found.gang(name) if isinstance(found, GangDesk) else None
