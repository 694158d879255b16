"""Pooled training beside a controller: `driftbox fleet train`. Works on the controller's data folder, as its other commands do.

The training service is the controller itself, as the member `fleet`: boxes seal their samples for its certificate, and their parcels
lie in its folder already. What comes out is a signed bundle, which a staged rollout offers to the boxes; each judges it by its own gate.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.controller.membership import CONTROLLER
from cluster.controller.serve import FleetFolder
from cluster.engines.base import Demands, NodeStatus
from cluster.engines.choose import EngineSettings, open_engine
from cluster.escher.library import Escher
from cluster.escher.uses import SHARE, training_bundle
from cluster.riffle.campaign import Campaign, Outcome, run
from cluster.riffle.gang import held_gang
from cluster.riffle.merger import Merger
from cluster.riffle.plan import FixedBlockSize
from cluster.riffle.pool import Trainer
from cluster.riffle.speed import measure
from cluster.riffle.train import Training
from cluster.rollouts.types import RolloutRules
from cluster.rollouts.wishes import RolloutWish
from configs.errors import EnvironmentLacking, UsageError
from edge.fleet.envelope import Member
from models.keys import KeyRing
from models.zoo import load_detector
from scheduler.fleet.pooling import CollectRequest
from scheduler.fleet.types import CameraKey, CameraReport
from scheduler.types import RetrainConfig

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """name: of the model and its rollout; arch: what it begins from, and whose cameras are asked; customer, boxes: only theirs are
    asked, and only the customer's are offered the model; engine, workers, cpus: of the training; share_pct: of each worker's box, in
    what its cameras leave, where the fleet tells its engine what that is (`bundle_of`), None: as many cores as cpus; within_share: no
    more of a box than the customer was granted there; one_per_box: every worker on a box of its own; gather_s: how long boxes are waited
    for; soak_s: between the rollout's steps."""

    name: str
    arch: str
    config: RetrainConfig
    customer: str = ""
    boxes: tuple[str, ...] = ()
    engine: EngineSettings = EngineSettings()
    workers: int = 2
    cpus: float = 1.0
    share_pct: float | None = None
    within_share: bool = False
    one_per_box: bool = False
    partitions: int = 8
    gather_s: float = 600.0
    soak_s: float = 3600.0
    offer: bool = True

    def __post_init__(self) -> None:
        if self.within_share and not self.customer:
            raise UsageError(
                "whose share the training is to stay within was not said",
                subject="--within-share",
                remedy="name it: --customer",
            )


def bundle_of(nodes: Sequence[NodeStatus], wanted: Wanted) -> Demands:
    """What a worker asks for. The engine's own CPUs know nothing of cameras, which do not run on it: where the controller carries to the
    engine what cameras leave of each box (`cluster.controller.on_engine`), a worker asks for a part of that, so it goes to a box
    with room and its cameras keep theirs; where no node has it (a cluster beside the fleet), for CPUs."""
    if any(node.alive and SHARE in node.total for node in nodes):
        share_pct = 100.0 * wanted.cpus if wanted.share_pct is None else wanted.share_pct
        return training_bundle(share_pct=share_pct, customer_id=wanted.customer if wanted.within_share else "")
    if wanted.share_pct is not None or wanted.within_share:
        raise EnvironmentLacking(
            "no node of the engine says what cameras leave of its box", subject=wanted.name,
            remedy="let the controller carry it there (fleet serve --engine), or ask for --cpus",
        )  # fmt: skip
    return training_bundle(share_pct=0, cpus=wanted.cpus)


class FolderPost:
    """`edge.fleet.parcels.ParcelPost` over the controller's own folder."""

    def __init__(self, folder: FleetFolder) -> None:
        self._folder = folder

    def certificate_of(self, box: str) -> bytes:
        return self._folder.membership.certificate_of(box).encode("ascii")

    def put(self, parcel: str, data: bytes) -> None:
        self._folder.parcels.put(parcel, data, CONTROLLER)

    def get(self, parcel: str) -> bytes:
        try:
            return self._folder.parcels.find(parcel).path.read_bytes()
        except (UsageError, FileNotFoundError):
            raise EnvironmentLacking("no such parcel", subject=parcel, code="not_found", remedy="it has not come yet") from None


def asked(cameras: Sequence[tuple[str, CameraReport]], wanted: Wanted, request: str) -> tuple[CollectRequest, ...]:
    """A request per box that has cameras which fit and consent. cameras: with the box that watches each. Raises UsageError when there
    are none."""
    fitting: dict[str, list[CameraKey]] = {}
    for box, camera in cameras:
        if _is_for(camera, wanted) and (not wanted.boxes or box in wanted.boxes) and camera.consent:
            fitting.setdefault(box, []).append(camera.camera)
    if not fitting:
        raise UsageError(
            f"no camera with {wanted.arch} may give samples", subject=wanted.name,
            remedy="its operator says so: fleet.consent in the box's configuration, or the camera's own",
        )  # fmt: skip
    return tuple(
        CollectRequest(
            id=request, trainer=CONTROLLER, box=box, partitions=wanted.partitions, cameras=tuple(sorted(keys)), arch=wanted.arch
        )
        for box, keys in sorted(fitting.items())
    )


def offered_to(cameras: Iterable[CameraReport], wanted: Wanted) -> tuple[CameraKey, ...]:
    """Cameras that the model is for: of its architecture, and of the customer whose samples it was trained on. Also those that gave
    none: each judges it by its own gate."""
    return tuple(sorted(camera.camera for camera in cameras if _is_for(camera, wanted)))


def _is_for(camera: CameraReport, wanted: Wanted) -> bool:
    return camera.arch == wanted.arch and wanted.customer in ("", camera.customer)


def train_pooled(folder: FleetFolder, wanted: Wanted, *, by: str, say: Callable[[str], None]) -> dict[str, Any]:
    """From the request to the rollout; what was done, as a document. Raises UsageError (nobody may give), JobError (nobody gave, the
    training failed), EnvironmentLacking (no engine)."""
    actions, utc = folder.actions(), folder.clock.utc_s
    boxes = folder.store.load().known.state.boxes
    cameras = [(box, camera) for box, view in boxes.items() if view.online for camera in view.cameras]
    requests = asked(cameras, wanted, f"{wanted.name}-{int(utc())}"[:63])
    say(f"asked for samples: {', '.join(r.box for r in requests)}")
    work = folder.data_dir / "pooled" / wanted.name
    work.mkdir(parents=True, exist_ok=True)
    signer = KeyRing(folder.data_dir)
    with _engine(wanted, say) as gang, Merger() as merger:
        trainer = Trainer(
            member=_member(folder), post=FolderPost(folder), folder=work, utc=utc, mergers=[merger], disk=measure(work).speed
        )
        campaign = Campaign(
            name=wanted.name, requests=requests, policy=FixedBlockSize(block_bytes=MIB), gather_s=wanted.gather_s, gang=gang,
            training=Training(config=wanted.config, storage=work / "ray", workers=wanted.workers, demands={"CPU": wanted.cpus}),
        )  # fmt: skip
        outcome = run(
            campaign,
            trainer,
            load_detector(wanted.arch),
            signer.signer(),
            work,
            tell=lambda box, id: actions.collect(box, id, by=by),
        )
    if wanted.offer:
        actions.put_bundle(wanted.name, outcome.bundle, by=by)
        keys = offered_to([camera for _, camera in cameras], wanted)
        rules = RolloutRules(soak_s=wanted.soak_s)
        wish = RolloutWish(what="begin", id=wanted.name, parcel=wanted.name, cameras=keys, name=wanted.name, rules=rules)
        actions.rollout(wish, by=by)
    return _document(wanted, outcome, signer.public_file)


def _document(wanted: Wanted, outcome: Outcome, key: Path) -> dict[str, Any]:
    pooled, trained = outcome.pooled, outcome.trained
    return {
        "name": wanted.name, "boxes": list(pooled.boxes), "pictures": pooled.pictures, "refused": dict(pooled.refused),
        "merged": pooled.verdict.merge, "why": pooled.verdict.why, "losses": list(trained.losses), "offered": wanted.offer,
        "signed_by": str(key),
    }  # fmt: skip


def _member(folder: FleetFolder) -> Member:
    authority = folder.authority
    try:
        key, certificate = authority.server_key_file.read_bytes(), authority.server_cert_file.read_bytes()
    except FileNotFoundError:
        raise EnvironmentLacking(
            "the controller has no certificate yet", subject=str(folder.data_dir), remedy="start it once: driftbox fleet serve"
        ) from None
    return Member.of_pem(key=key, certificate=certificate, authority=authority.pem.encode("ascii"))


@contextlib.contextmanager
def _engine(wanted: Wanted, say: Callable[[str], None]) -> Iterator[Callable[[], Any]]:
    """The engine, and what holds a gang of workers on it by ESCHER."""
    engine = open_engine(wanted.engine)
    try:
        nodes = [node for node in engine.nodes() if node.alive]
        say(f"engine {engine.name}: {len(nodes)} nodes, {sum(node.total.get('CPU', 0.0) for node in nodes):g} CPUs")
        escher, bundle = Escher(engine), bundle_of(nodes, wanted)
        say(f"each of {wanted.workers} workers asks for {', '.join(f'{name} {amount:g}' for name, amount in bundle.items())}")

        def gang() -> contextlib.AbstractContextManager[Mapping[str, float]]:
            return held_gang(
                escher, wanted.name, workers=wanted.workers, bundle=bundle, now=time.monotonic, wait=time.sleep,
                one_per_box=wanted.one_per_box,
            )  # fmt: skip

        yield gang
    finally:
        engine.close()
