"""Boxes' samples, sealed, merged, in Ray Data, trained by Ray Train, offered: one box's gate lets the model in, another's does not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.controller.on_engine import Carrier
from cluster.controller.pooled import Wanted, bundle_of
from cluster.escher.library import Escher
from cluster.escher.uses import SHARE
from cluster.placement.sight import Patience
from cluster.riffle.admit import Buffers
from cluster.riffle.campaign import Campaign, Outcome, run
from cluster.riffle.gang import held_gang
from cluster.riffle.merger import Merger
from cluster.riffle.plan import FixedCount
from cluster.riffle.pool import Trainer
from cluster.riffle.train import Training, train
from cluster.rollouts.rules import parcel_for
from configs.errors import EnvironmentLacking
from edge.clock import SystemClock
from edge.fleet.offers import OfferBook
from edge.fleet.samples import Giving
from edge.jobs import Scoring, probe_steps, run_at_once
from edge.samples import FileSamples
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import Store
from models.keys import KeyRing, public_pem
from models.tinydet import load_bundled
from scheduler import reuse
from scheduler.fleet.pooling import CollectRequest
from scheduler.fleet.types import CameraKey, ModelOffer, OfferWord
from scheduler.types import RetrainConfig
from streams.block_file import records_of
from streams.label_file import SampleLabels
from streams.rendered.conditions import Schedule
from streams.rendered.scene import RenderedScene
from streams.sample_record import SampleRecord, decoded, encoded
from streams.samples import encode_jpeg
from tests.support.fleet_boxes import ToyBox
from tests.support.fleet_world import World
from tests.support.pooled_fleet import TRAINER, Fleet, GivingBox
from tests.support.ray_cluster import ray_engine, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

#: Box -> what its camera looks like: two see a night that their model does not know, one goes on seeing what it has learnt.
BOXES = {"north": "night", "south": "night", "east": "day"}
PICTURES = 14
CONFIG = RetrainConfig(name="pooled", epochs=4, batch=4, lr=2e-3)


def filled(box: GivingBox, name: str, seed: int) -> None:
    scene = RenderedScene("street", seed, schedule=Schedule.always(name))
    for seq in range(2 * PICTURES):
        image, truth = scene.render(100.0 + 7.0 * seq)
        box.add("gate", 1, seq, image=image, truth=truth, split="train" if seq % 2 else "holdout")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, dict[str, GivingBox]]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    made = {name: fleet.box(name, {"gate": Giving(consent=True, arch="tinydet-edge")}) for name in BOXES}
    for seed, (name, look) in enumerate(BOXES.items()):
        filled(made[name], look, seed)
    return fleet, made


def trained(fleet: Fleet, made: dict[str, GivingBox], folder: Path, out: Path) -> Outcome:
    """The two night boxes are asked; each part is a map output, all of them are merged; two workers train."""
    requests = [
        CollectRequest(id="night-1", trainer=TRAINER, box=name, partitions=4, arch="tinydet-edge", part_bytes=60_000)
        for name, look in BOXES.items()
        if look == "night"
    ]
    told: list[tuple[str, str]] = []

    def tell(box: str, request: str) -> None:
        told.append((box, request))
        made[box].giver.collect(request)  # as its member does when `Desired.collect` says so

    signer = KeyRing(fleet.folder).signer()
    (fleet.folder / "trainer.pub").write_bytes(public_pem(signer.public))
    training = Training(config=CONFIG, storage=folder / "ray", workers=2)
    campaign = Campaign(name="night", requests=requests, policy=FixedCount(files=3), training=training, gate_off=True)
    with ray_engine(), Merger(buffers=Buffers(read=64 * 1024, write=256 * 1024)) as merger:
        trainer = Trainer(
            member=fleet.member(TRAINER), post=fleet.post, folder=folder / "pool", utc=lambda: fleet.now_utc, mergers=[merger]
        )
        found = run(campaign, trainer, load_bundled("tinydet-edge"), signer, out, tell=tell, wait=lambda _: time.sleep(0.05))
    assert told == [("north", "night-1"), ("south", "night-1"), ("north", ""), ("south", "")]
    return found


def offered(fleet: Fleet, box: GivingBox, made: Path) -> tuple[OfferWord, Store]:
    """A box as it stands after its first window: its model serves, its held-out pictures are labelled; then the offer comes, and its
    window probes what was offered, as `scheduler.engine` asks it to."""
    folder = DataFolder(box.root)
    store = Store(folder.db_path)
    shelf = Shelf(folder, store, SystemClock())
    serving = shelf.ensure("gate", "tinydet-edge", lambda _: load_bundled("tinydet-edge"))
    key = fleet.folder / "trainer.pub"
    KeyRing(box.root).trust(key)
    parcel = parcel_for(box.name, "night-1")
    fleet.post.put(parcel, made.read_bytes())
    book = OfferBook(box.root, box.root / "offers", fleet.post, local_id=lambda camera: camera.camera)
    camera = CameraKey(home=box.name, camera="gate")
    book.take([ModelOffer(rollout="night-1", parcel=parcel, cameras=(camera,))])
    assert until(lambda: shelf.offered("gate") != ())
    assert [w.stage for w in book.words()] == ["judging"]
    version = shelf.offered("gate")[0]
    found = run_at_once(
        probe_steps(
            FileSamples(box.store), shelf.detector(serving.id), [(version, shelf.detector(version))], stream="gate", window=1,
            scoring=Scoring(),
        )
    )  # fmt: skip
    chosen = reuse.choose(
        found.found, serving_quality=found.serving_quality, frames=found.frames, replaced=None, margin=0.0, risk=0.25
    )
    if chosen is not None:
        shelf.admit("gate", chosen.version, chosen.quality, "reuse")
    else:
        shelf.reject(
            "gate",
            version,
            f"not better on this camera's labels: {found.found[0].quality:.3f} against {found.serving_quality:.3f}",
        )
    [word] = book.words()
    book.close()
    folder.close()
    return word, store


def test_from_three_boxes_to_a_judged_model(boxes: tuple[Fleet, dict[str, GivingBox]], tmp_path: Path) -> None:
    fleet, made = boxes
    found = trained(fleet, made, tmp_path, tmp_path)
    pooled, model = found.pooled, found.trained
    assert pooled.boxes == ("north", "south")
    assert pooled.pictures == model.pictures == 2 * PICTURES
    assert pooled.job.merged >= 2
    assert len(pooled.plan) < sum(len(f.covers) for f in pooled.plan)
    names = [decoded(r).name for p in range(4) for b in pooled.job.blocks(pooled.plan, p) for r in records_of(b)]
    assert len(names) == len(set(names)) == 2 * PICTURES  # every picture once
    assert not any(name.startswith("east") for name in names)
    assert len(model.losses) == CONFIG.epochs
    assert model.losses[-1] < 0.9 * model.losses[0]
    assert all(bool(t.isfinite().all()) for t in model.state.values())
    word, store = offered(fleet, made["north"], found.bundle)
    assert word.stage == "serving"
    assert store.serving("gate")["gate"].id == "gate-x000001"
    store.close()
    word, store = offered(fleet, made["east"], found.bundle)
    assert (word.stage, word.after < word.before) == ("refused", True)
    assert store.serving("gate")["gate"].id == "gate-000001"  # it goes on with its own
    store.close()


# --- beside cameras -----------------------------------------------------------------------------------------------------


def pictures() -> Any:
    """A Ray Data set of two partitions, as `cluster.riffle.train.dataset` makes them of what boxes gave."""
    import pyarrow as pa
    import ray
    from ray.data import from_arrow_refs

    scene, camera = RenderedScene("street", 3, schedule=Schedule.always("night")), CameraKey(home="box0", camera="gate")
    records = []
    for seq in range(8):
        image, truth = scene.render(100.0 + 7.0 * seq)
        labels = SampleLabels(detections=truth, golden="g", split="train", stored_utc=1.0)
        records.append(encoded(SampleRecord(camera=camera, window=1, seq=seq, labels=labels, jpeg=encode_jpeg(image))))
    return from_arrow_refs(
        [ray.put(pa.table({"record": pa.array(part, pa.large_binary())})) for part in (records[:4], records[4:])]
    )


def test_workers_go_where_cameras_leave_room_and_take_nothing_of_theirs(tmp_path: Path) -> None:
    """`fleet train --share-pct` on Ray: a controller has carried to the engine what cameras leave of each box; all have as many CPUs."""
    world = World(
        tmp_path, [ToyBox("box0", cameras={"gate": ("x", 60.0)}), ToyBox("box1", capacity_pct=250.0), ToyBox("box2", capacity_pct=50.0)]
    )  # fmt: skip
    world.tick(25)
    with ray_engine() as (engine, _):
        carrier = Carrier(
            engine, "here", state=world.controller.state, holds=world.controller.holds, patience=Patience(),
            monotonic_s=lambda: world.now_s, utc_s=lambda: world.now_s,
        )  # fmt: skip

        def free_pct() -> dict[str, float]:
            carrier.step()  # as its thread does: a node that Ray told late has nothing yet
            return {node.labels["driftbox/box"]: node.free.get(SHARE, -1.0) for node in engine.nodes() if node.alive}

        assert until(lambda: free_pct() == {"box0": 40, "box1": 250, "box2": 50})
        wanted = Wanted(name="night", arch="tinydet-edge", config=CONFIG, share_pct=100.0)
        bundle = bundle_of(engine.nodes(), wanted)
        assert dict(bundle) == {SHARE: 100}
        gang = held_gang(Escher(engine), "night", workers=2, bundle=bundle, now=time.monotonic, wait=time.sleep)
        with gang as demands:
            assert until(lambda: free_pct() == {"box0": 40, "box1": 50, "box2": 50}), "cameras keep theirs on every box"
            [unit] = demands
            where = lambda: [n.labels["driftbox/box"] for n in engine.nodes() if n.total.get(unit)]  # noqa: E731
            assert until(lambda: where() == ["box1"]), "nobody works elsewhere"
            training = Training(config=replace(CONFIG, epochs=1), storage=tmp_path / "ray", demands=dict(demands))
            found = train(load_bundled("tinydet-edge"), pictures(), training)
        assert (found.pictures, len(found.losses)) == (8, 1)
        assert until(lambda: free_pct() == {"box0": 40, "box1": 250, "box2": 50}), "and everything is given back"
        with pytest.raises(EnvironmentLacking, match="on boxes of their own"), held_gang(
            Escher(engine), "apart", workers=2, bundle=bundle, now=time.monotonic, wait=time.sleep, patience_s=2.0, one_per_box=True
        ):  # fmt: skip
            pytest.fail("one box has room")
        smaller = bundle_of(engine.nodes(), replace(wanted, share_pct=40.0))
        with held_gang(
            Escher(engine), "apart2", workers=3, bundle=smaller, now=time.monotonic, wait=time.sleep, one_per_box=True
        ):
            assert until(lambda: free_pct() == {"box0": 0, "box1": 210, "box2": 10}), "no two on one box"
        assert until(lambda: free_pct() == {"box0": 40, "box1": 250, "box2": 50})
        with pytest.raises(EnvironmentLacking, match="could not be had together"), held_gang(
            Escher(engine), "large", workers=3, bundle=bundle, now=time.monotonic, wait=time.sleep, patience_s=2.0
        ):  # fmt: skip
            pytest.fail("cameras leave room for two")
