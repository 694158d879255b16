"""The fleet's side of pooled training up to the blocks: every picture that was given once, whatever boxes say or lose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.engines.local import LocalEngine
from cluster.escher.library import Escher
from cluster.riffle.cost import DiskSpeed
from cluster.riffle.gang import held_gang
from cluster.riffle.merger import Merger, original_name
from cluster.riffle.plan import FixedBlockSize, FixedCount
from cluster.riffle.pool import Trainer, answers, ask, shuffle
from cluster.riffle.speed import measure
from configs.errors import EnvironmentLacking, JobError, UsageError
from edge.fleet.envelope import certificate_of, open_sealed, seal
from edge.fleet.samples import Giving
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, CollectRequest, end_parcel, part_parcel
from streams.block_file import data_path, names_in, records_of
from streams.sample_record import decoded
from tests.support.pooled_fleet import TRAINER, Fleet, GivingBox

YES = Giving(consent=True, arch="net")
BOXES, PICTURES, PARTITIONS = ("north", "south", "east"), 6, 3


class World:
    def __init__(self, folder: Path, mergers: list[Merger], **disk) -> None:
        self.fleet = Fleet(folder)
        self.trainer = Trainer(
            member=self.fleet.member(TRAINER), post=self.fleet.post, folder=folder / "pool", utc=lambda: self.fleet.now_utc,
            mergers=mergers, **disk,
        )  # fmt: skip
        self.boxes: dict[str, GivingBox] = {name: self.fleet.box(name, {"gate": YES}) for name in BOXES}
        for box in self.boxes.values():
            for seq in range(PICTURES):
                box.add("gate", 1, seq)
        self.requests = [
            CollectRequest(id="r1", trainer=TRAINER, box=name, partitions=PARTITIONS, part_bytes=8_000) for name in BOXES
        ]

    def collected(self) -> dict[str, Collected]:
        ask(self.trainer, self.requests)
        for name, box in self.boxes.items():
            box.giver.serve("r1")
            assert name in answers(self.trainer, self.requests)
        return answers(self.trainer, self.requests)

    def forge(self, box: str, parcel: str, content: bytes) -> None:
        """As that box, which may lie."""
        to = certificate_of(self.fleet.post.certificate_of(TRAINER))
        member = self.boxes[box].box.member
        sealed = seal(content, parcel=parcel, sender=member, addressee=to, now_utc_s=self.fleet.now_utc)
        self.fleet.post.parcels[parcel] = sealed


def names(pooled) -> list[str]:
    blocks = (block for p in range(PARTITIONS) for block in pooled.job.blocks(pooled.plan, p))
    return sorted(decoded(record).name for block in blocks for record in records_of(block))


def all_of(*boxes: str) -> list[str]:
    return sorted(f"{box}/gate/000001/{seq:09d}" for box in boxes for seq in range(PICTURES))


@pytest.fixture
def mergers():
    made = [Merger(), Merger()]
    yield made
    for merger in made:
        merger.close()


def test_every_picture_of_every_box_once(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers)
    words = world.collected()
    pooled = shuffle(world.trainer, world.requests, words, policy=FixedCount(files=3), gate_off=True)
    assert names(pooled) == all_of(*BOXES)
    assert pooled.pictures == len(BOXES) * PICTURES
    assert pooled.job.merged >= 2
    assert pooled.refused == {}


def test_the_gate_refuses_where_merging_does_not_pay(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers, disk=DiskSpeed(seek_s=1e-9, bytes_per_s=1e9))
    words = world.collected()
    pooled = shuffle(world.trainer, world.requests, words, policy=FixedCount(files=3))
    assert not pooled.verdict.merge
    assert "cost more time than it saves" in pooled.verdict.why
    assert all(fetch.request is None for fetch in pooled.plan)
    assert names(pooled) == all_of(*BOXES)


def test_a_lost_part_is_fetched_again_and_only_it(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers)
    pooled = shuffle(world.trainer, world.requests, world.collected(), policy=FixedBlockSize(block_bytes=1e9), left_overs=False)
    assert len(pooled.plan) == len(names_in(world.trainer.folder))
    data_path(world.trainer.folder, original_name(1, 0)).unlink()
    assert names(pooled) == all_of(*BOXES)
    assert [n for n in names_in(world.trainer.folder) if not n.endswith("-0")] == [original_name(1, 1)]


def test_a_box_that_is_away_or_says_no_is_left_out(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers)
    world.boxes["south"].cameras = {"gate": replace(YES, consent=False)}
    ask(world.trainer, world.requests)
    for name in ("north", "south"):
        world.boxes[name].giver.serve("r1")
    words = answers(world.trainer, world.requests)
    assert {name: word.stage for name, word in words.items()} == {"north": "given", "south": "refused"}
    assert names(shuffle(world.trainer, world.requests, words, policy=FixedCount(files=2))) == all_of("north")
    with pytest.raises(JobError, match="no box gave samples"):
        shuffle(world.trainer, world.requests, {"south": words["south"]}, policy=FixedCount(files=2))


def test_a_box_that_lies_costs_its_own_part_and_nothing_else(tmp_path: Path, mergers: list[Merger]) -> None:
    """North's first part is not what it said; south sends east's pictures as its own."""
    world = World(tmp_path, mergers)
    words = world.collected()
    first = part_parcel(TRAINER, "r1", "north", 0)
    world.forge("north", first, b"something else")
    stolen = [world.fleet.post.parcels[part_parcel(TRAINER, "r1", "east", n)] for n in range(len(words["east"].parts))]
    for n, data in enumerate(stolen):
        parcel = part_parcel(TRAINER, "r1", "east", n)
        opened = open_sealed(data, parcel=parcel, member=world.trainer.member, now_utc_s=world.fleet.now_utc)
        world.forge("south", part_parcel(TRAINER, "r1", "south", n), opened.content)
    told = replace(words["east"], box="south")
    world.forge("south", end_parcel(TRAINER, "r1", "south"), codec.encode(told))
    pooled = shuffle(world.trainer, world.requests, answers(world.trainer, world.requests), policy=FixedCount(files=2))
    assert set(all_of("east")) <= set(names(pooled)) <= set(all_of("east", "north"))
    assert 0 < len(names(pooled)) - PICTURES < PICTURES
    assert pooled.boxes == ("east", "north")
    assert "is not what it said" in pooled.refused["north"]
    assert "not a training sample of box south" in pooled.refused["south"]


def test_an_answer_of_another_box_is_not_believed(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers)
    words = world.collected()
    world.forge("south", end_parcel(TRAINER, "r1", "north"), codec.encode(words["north"]))
    assert answers(world.trainer, world.requests)["north"].stage == "refused"
    with pytest.raises(UsageError, match="names other"):
        ask(world.trainer, [replace(world.requests[0], trainer="other")])


def test_the_controller_away_is_no_refusal(tmp_path: Path, mergers: list[Merger]) -> None:
    world = World(tmp_path, mergers)
    words = world.collected()
    world.fleet.post.away = True
    assert answers(world.trainer, world.requests) == {}
    with pytest.raises(EnvironmentLacking):
        shuffle(world.trainer, world.requests, words, policy=FixedCount(files=2))


def test_a_disk_is_measured_where_the_files_lie(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    found = measure(tmp_path, size_mib=8, requests=10, clock=lambda: float(next(ticks)))
    assert found.speed == DiskSpeed(seek_s=1.0, bytes_per_s=8 * 2**20)
    assert found.write_bytes_per_s == 8 * 2**20
    assert list(tmp_path.iterdir()) == []


# --- the gang -----------------------------------------------------------------------------------------------------------


def gang_of(escher: Escher, workers: int, *, patience_s: float = 5.0):
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    bundle = {"CPU": 1.0}
    return held_gang(escher, "night-1", workers=workers, bundle=bundle, now=lambda: clock[0], wait=wait, patience_s=patience_s)


@pytest.fixture
def escher() -> Iterator[Escher]:
    engine = LocalEngine({f"n{n}": {"CPU": 2.0} for n in range(2)})
    yield Escher(engine)
    engine.close()


def test_all_workers_have_their_place_or_none(escher: Escher) -> None:
    with gang_of(escher, 3) as demands:
        assert list(demands.values()) == [1.0]
        [unit] = demands
        assert sum(node.total.get(unit, 0.0) for node in escher.status()) == 3
        assert sum(node.free["CPU"] for node in escher.status()) == 1
    escher.tick(100.0)
    assert sum(node.free["CPU"] for node in escher.status()) == 4
    with pytest.raises(EnvironmentLacking, match="5 places"), gang_of(escher, 5):
        pytest.fail("there are four")
    escher.tick(200.0)
    assert sum(node.free["CPU"] for node in escher.status()) == 4
