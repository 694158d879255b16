"""One pooled training from the request to the signed bundle: what the steps of `pool` and `train` are called by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.riffle.job import StageRule
from cluster.riffle.plan import Policy
from cluster.riffle.pool import Pooled, Trainer, answers, ask, shuffle
from cluster.riffle.train import Trained, Training, bundle, dataset, train
from models.detector import Detector
from models.keys import Signer
from scheduler.fleet.pooling import Collected, CollectRequest

log = logging.getLogger("driftbox.fleet")

#: Between two looks for boxes' answers, seconds.
LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """name: of the model, and of its bundle; requests: of each box; policy: of merging, where the gate lets it; gather_s: how long boxes
    are waited for: who has not answered by then is left out; gang: gives what each worker asks for while all have their place
    (`cluster.riffle.gang.held_gang`), None: Ray Train makes a placement group of its own."""

    name: str
    requests: Sequence[CollectRequest]
    policy: Policy
    training: Training
    gather_s: float = 3600.0
    rule: StageRule | None = None
    gate_off: bool = False
    gang: Callable[[], AbstractContextManager[Mapping[str, float]]] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """bundle: to be offered to boxes (`scheduler.fleet.types.ModelOffer`), each of which judges it."""

    bundle: Path
    trained: Trained
    pooled: Pooled


def run(
    campaign: Campaign, trainer: Trainer, serving: Detector, signer: Signer, out: Path, *, tell: Callable[[str, str], None],
    clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep,
) -> Outcome:  # fmt: skip
    """serving: what the students begin from; out: folder of the bundle; tell: (box, request id): puts it into the box's
    `Desired.collect` ('' takes it out again). Raises JobError 'no_data' (nobody gave samples) and what the steps raise."""
    ask(trainer, campaign.requests)
    for request in campaign.requests:
        tell(request.box, request.id)
    try:
        words = _gathered(campaign, trainer, clock, wait)
    finally:
        for request in campaign.requests:
            tell(request.box, "")
    pooled = shuffle(trainer, campaign.requests, words, policy=campaign.policy, rule=campaign.rule, gate_off=campaign.gate_off)
    log.info("%s: %d pictures of %d boxes; %s", campaign.name, pooled.pictures, len(pooled.boxes), pooled.verdict.why)
    with campaign.gang() if campaign.gang else nullcontext(campaign.training.demands) as demands:
        trained = train(serving, dataset(pooled), replace(campaign.training, demands=dict(demands)))
    file = bundle(trained, pooled, out, signer, name=campaign.name, config=campaign.training.config, at_utc=trainer.utc())
    return Outcome(bundle=file, trained=trained, pooled=pooled)


def _gathered(
    campaign: Campaign, trainer: Trainer, clock: Callable[[], float], wait: Callable[[float], None]
) -> dict[str, Collected]:
    until_s = clock() + campaign.gather_s
    while len(words := answers(trainer, campaign.requests)) < len(campaign.requests) and (left_s := until_s - clock()) > 0:
        wait(min(LOOK_S, left_s))
    missing = sorted({r.box for r in campaign.requests} - set(words))
    if missing:
        log.warning("%s goes on without %s, which have not answered", campaign.name, ", ".join(missing))
    return words
