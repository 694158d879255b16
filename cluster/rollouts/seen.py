"""What a rollout looks at, picked out of a fleet's state once for all rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.placement.sight import lease_of
from cluster.types import FleetState
from scheduler.fleet.types import CameraKey, CameraReport, OfferWord


def owner_of(state: FleetState, camera: CameraKey) -> str:
    """The box that watches a camera: by its lease, else its home."""
    return lease_of(state, camera).box


@dataclass(frozen=True, kw_only=True)
class Seen:
    """cameras: as their owners report them; words: (rollout, camera) -> answer of the owner; alarms: by box, its sentences without
    their numbers (a disk that is 1 percent fuller is no new alarm); messages: by box, which of its reports
    that was; away: boxes that are not there now."""

    owners: Mapping[CameraKey, str]
    cameras: Mapping[CameraKey, CameraReport]
    words: Mapping[tuple[str, CameraKey], OfferWord]
    alarms: Mapping[str, frozenset[str]]
    messages: Mapping[str, str]
    away: frozenset[str]


def seen_in(state: FleetState) -> Seen:
    owners: dict[CameraKey, str] = {camera: lease.box for camera, lease in state.leases.items()}
    cameras: dict[CameraKey, CameraReport] = {}
    words: dict[tuple[str, CameraKey], OfferWord] = {}
    for box, view in state.boxes.items():
        for report in view.cameras:
            if owners.setdefault(report.camera, report.camera.home) == box:
                cameras[report.camera] = report
        for word in view.report.confirmation.offers if view.report else ():
            if owners.get(word.camera, word.camera.home) == box:
                words[word.rollout, word.camera] = word
    return Seen(
        owners=owners, cameras=cameras, words=words,
        alarms={box: alarms_of(view.report.alarms if view.report else ()) for box, view in state.boxes.items()},
        messages={box: f"{view.report.boot} {view.report.sequence}" for box, view in state.boxes.items() if view.report},
        away=frozenset(box for box, view in state.boxes.items() if not view.online),
    )  # fmt: skip


def alarms_of(sentences: tuple[str, ...]) -> frozenset[str]:
    return frozenset(re.sub(r"\d+(?:[.,]\d+)*", "#", sentence) for sentence in sentences)
