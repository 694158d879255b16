"""What leaves a box for pooled training, and what does not; nothing lost, nothing sent twice with other bytes, whatever is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.errors import EnvironmentLacking, UsageError
from edge.fleet import samples as samples_module
from edge.fleet.envelope import certificate_of, open_sealed, seal
from edge.fleet.mask_check import is_masked
from edge.fleet.samples import Giving
from models.fake import scripted_image
from scheduler.fleet import codec
from scheduler.fleet.pooling import Collected, CollectRequest, end_parcel, part_parcel, request_parcel
from scheduler.fleet.types import CameraKey
from streams.masks import Mask, burn_in
from streams.sample_record import SampleRecord, digest, samples_in, taken_in
from tests.support.pooled_fleet import TRAINER, Fleet, GivingBox

YES, NO = Giving(consent=True, arch="net"), Giving(arch="net")


class World:
    def __init__(self, folder: Path, cameras: dict[str, Giving], **more) -> None:
        self.fleet = Fleet(folder)
        self.trainer = self.fleet.member(TRAINER)
        self.box: GivingBox = self.fleet.box("north", cameras, **more)

    def ask(self, **more) -> CollectRequest:
        asked = CollectRequest(**{"id": "r1", "trainer": TRAINER, "box": "north", "partitions": 3, **more})
        self.post(asked, request_parcel("north", asked.id))
        return asked

    def post(self, asked: CollectRequest, parcel: str) -> None:
        to = certificate_of(self.fleet.post.certificate_of("north"))
        sealed = seal(codec.encode(asked), parcel=parcel, sender=self.trainer, addressee=to, now_utc_s=self.fleet.now_utc)
        self.fleet.post.parcels[parcel] = sealed

    def opened(self, parcel: str) -> bytes:
        data = self.fleet.post.parcels[parcel]
        return open_sealed(data, parcel=parcel, member=self.trainer, now_utc_s=self.fleet.now_utc, sender="north").content

    def given(self, asked: CollectRequest) -> list[SampleRecord]:
        """All samples that the training service has of this box."""
        word = codec.decode(Collected, self.opened(end_parcel(TRAINER, asked.id, "north")))
        found = []
        for part, told in enumerate(word.parts):
            data = self.opened(part_parcel(TRAINER, asked.id, "north", part))
            assert (digest(data), len(data)) == (told.sha256, told.size_bytes)
            folder = self.fleet.folder / f"in-{asked.id}-{part}"
            _, names = taken_in(data, folder, "m", partitions=asked.partitions, covers=[(part, 0)], home="north")
            assert len(names) == told.samples
            found += [s for p in range(asked.partitions) for s in samples_in(folder, "m", p)]
        return found


def test_samples_of_a_camera_that_consents_come_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    refs = {world.box.add("gate", 1, seq).seq for seq in range(7)}
    asked = world.ask(part_bytes=10_000)
    word = world.box.giver.serve("r1")
    given = world.given(asked)
    assert word.stage == "given"
    assert len(word.parts) > 1
    assert {record.seq for record in given} == refs
    assert len(given) == len(refs)
    for record in given:
        ref = next(r for r in world.box.store.list("gate") if r.seq == record.seq)
        assert record.jpeg == world.box.store.picture_bytes(ref)
        np.testing.assert_array_equal(record.labels.detections.xyxy, world.box.store.load_labels(ref).detections.xyxy)
        assert record.camera == CameraKey(home="north", camera="gate")


def test_nothing_leaves_without_consent_and_that_is_said(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": NO, "yard": NO})
    world.box.add("gate", 1, 1)
    asked = world.ask()
    word = world.box.giver.serve("r1")
    assert (word.stage, word.parts) == ("refused", ())
    assert word.left_out == {"camera without consent": 1}
    assert world.fleet.post.puts == [end_parcel(TRAINER, asked.id, "north")]
    assert Giving().consent is False  # the default


def test_only_what_may_leave_does(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES, "yard": NO, "hall": replace(YES, arch="other"), "dock": YES})
    wanted = world.box.add("gate", 3, 1)
    world.box.add("gate", 3, 2, split="holdout")  # what judges stays
    world.box.add("gate", 1, 1)  # too old
    ignored = world.box.add("gate", 3, 3)
    world.box.store.ignore(ignored)
    for camera in ("yard", "hall"):
        world.box.add(camera, 3, 1)
    world.box.add("dock", 3, 1)  # not asked for
    asked = world.ask(
        arch="net", newest_windows=1, cameras=tuple(CameraKey(home="north", camera=c) for c in ("gate", "yard", "hall"))
    )
    word = world.box.giver.serve("r1")
    assert [(r.window, r.seq) for r in world.given(asked)] == [(wanted.window, wanted.seq)]
    assert word.left_out == {"camera without consent": 1, "camera of another model": 1}


MASK = Mask(((0.1, 0.1), (0.6, 0.1), (0.6, 0.6), (0.1, 0.6)))


def test_a_picture_from_before_its_mask_stays(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": replace(YES, masks=(MASK,))})
    rng = np.random.default_rng(1)
    open_ = rng.integers(100, 255, (180, 320, 3), np.uint8)
    world.box.add("gate", 1, 1, image=open_.copy())
    world.box.add("gate", 1, 2, image=burn_in(open_.copy(), [MASK]))
    asked = world.ask()
    word = world.box.giver.serve("r1")
    assert [r.seq for r in world.given(asked)] == [2]
    assert word.left_out == {"not masked": 1}


@pytest.mark.parametrize("shape", [(180, 320), (97, 131), (720, 1280)])
@pytest.mark.parametrize(
    "points",
    [
        ((0.1, 0.1), (0.6, 0.1), (0.6, 0.6)),
        ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)),
        ((0.5, 0.2), (0.52, 0.2), (0.52, 0.8)),
    ],
)
def test_masks_are_seen_through_jpeg(tmp_path: Path, shape: tuple[int, int], points) -> None:
    rng, mask = np.random.default_rng(2), Mask(points)
    world = World(tmp_path, {})
    noise = rng.integers(0, 255, (*shape, 3), np.uint8)
    saved = world.box.add("gate", 0, 0, image=burn_in(noise.copy(), [mask]))
    assert is_masked(world.box.store.load_image(saved), [mask])
    bare = world.box.add("gate", 0, 1, image=noise)
    assert not is_masked(world.box.store.load_image(bare), [mask])
    assert is_masked(noise, [])


def test_a_mask_that_covers_a_part_only_is_not_enough() -> None:
    grey = np.full((180, 320, 3), 120, np.uint8)
    smaller = Mask(((0.1, 0.1), (0.5, 0.1), (0.5, 0.6), (0.1, 0.6)))
    assert is_masked(burn_in(grey.copy(), [MASK]), [smaller])
    assert not is_masked(burn_in(grey.copy(), [smaller]), [MASK])


def test_bounded_by_the_request_and_by_the_box(tmp_path: Path) -> None:
    for limit in ({"most_bytes": 20_000}, {}):
        world = World(tmp_path / str(len(limit)), {"gate": YES, "yard": YES}, most_bytes=20_000 if not limit else 2**30)
        for camera in ("gate", "yard"):
            for seq in range(6):
                world.box.add(camera, 1, seq)
        asked = world.ask(part_bytes=10_000, **limit)
        word = world.box.giver.serve("r1")
        given = world.given(asked)
        assert 0 < sum(len(r.jpeg) for r in given) <= 20_000
        assert word.left_out == {"no room in the request": 12 - len(given)}
        assert {r.camera.camera for r in given} == {"gate", "yard"}  # in turns, the newest first
        assert max(r.seq for r in given) == 5


def test_the_trainer_alone_can_read_it_and_every_step_is_in_the_audit_log(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    world.box.add("gate", 1, 1)
    asked = world.ask()
    world.box.giver.serve("r1")
    other = world.fleet.member("south")
    for parcel in (part_parcel(TRAINER, "r1", "north", 0), end_parcel(TRAINER, asked.id, "north")):
        data = world.fleet.post.parcels[parcel]
        assert b"JFIF" not in data
        assert b"gate" not in data
        with pytest.raises(UsageError):
            open_sealed(data, parcel=parcel, member=other, now_utc_s=world.fleet.now_utc)
    assert [action for action, *_ in world.box.told] == [f"fleet.samples.{w}" for w in ("asked", "planned", "given", "given")]
    assert "1 pictures of gate in 1 parts" in world.box.told[1][2]
    assert not list(world.box.root.rglob("*.sealed"))  # the box keeps no copies


def test_what_cannot_be_recorded_does_not_leave(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    world.box.add("gate", 1, 1)
    world.ask()

    def full(*_: str) -> None:
        raise EnvironmentLacking("the disk is full", code="full")

    world.box.giver._box = replace(world.box.box, audit=full)
    with pytest.raises(EnvironmentLacking):
        world.box.giver.serve("r1")
    assert world.fleet.post.puts == []


def test_a_request_from_elsewhere_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    world.box.add("gate", 1, 1)
    good = CollectRequest(id="r1", trainer=TRAINER, box="north", partitions=3)
    parcel = request_parcel("north", "r1")
    for wrong in (replace(good, trainer="south"), replace(good, id="r2"), replace(good, box="south")):
        world.post(wrong, parcel)
        with pytest.raises(UsageError, match="but came to north from trainer"):
            world.box.giver.serve("r1")
    world.fleet.post.parcels[parcel] = b"DRIFTBOX-PARCEL\x01nonsense"
    with pytest.raises(UsageError):
        world.box.giver.serve("r1")
    with pytest.raises(UsageError, match="1 to 63"):
        world.box.giver.collect("../../etc")
    assert world.fleet.post.puts == []


def test_consent_taken_back_meanwhile_ends_it(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    for seq in range(8):
        world.box.add("gate", 1, seq)
    asked = world.ask(part_bytes=8_000)
    put = world.fleet.post.put

    def put_and_withdraw(parcel: str, data: bytes) -> None:
        put(parcel, data)
        world.box.cameras = {"gate": NO}

    world.fleet.post.put = put_and_withdraw  # type: ignore[method-assign]
    word = world.box.giver.serve("r1")
    assert (word.stage, word.parts) == ("withdrawn", ())
    assert "consent for gate was taken back" in word.problem
    assert world.fleet.post.puts == [part_parcel(TRAINER, "r1", "north", 0), end_parcel(TRAINER, asked.id, "north")]
    assert world.given(asked) == []  # the one part that had left is not in the last word: it is not used


class Killed(BaseException):
    pass


def test_killed_at_every_step_it_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every durable write and every parcel is a step; the post asserts that a parcel never comes twice with other bytes."""
    ends = 0
    for at in range(60):
        world = World(tmp_path / str(at), {"gate": YES})
        for seq in range(5):
            world.box.add("gate", 1, seq)
        asked = world.ask(part_bytes=8_000)
        real_write, real_put, steps = samples_module.atomic_write, world.fleet.post.put, iter(range(10_000))

        def step(at: int = at, steps=steps) -> None:
            if next(steps) == at:
                raise Killed

        def write(*a, real=real_write, step=step, **k) -> None:
            step()
            real(*a, **k)

        def put(parcel: str, data: bytes, real=real_put, step=step) -> None:
            real(parcel, data)
            step()  # the fleet has it, the box does not know

        monkeypatch.setattr(samples_module, "atomic_write", write)
        monkeypatch.setattr(world.fleet.post, "put", put)
        try:
            world.box.giver.serve("r1")
            ends += 1
        except Killed:
            pass
        monkeypatch.setattr(samples_module, "atomic_write", real_write)
        again = world.box.started()
        assert again.serve("r1").stage == "given"
        assert sorted(r.seq for r in world.given(asked)) == [0, 1, 2, 3, 4]
        assert len(set(world.fleet.post.parcels)) == len(world.fleet.post.parcels)
        sent = len(world.fleet.post.puts)
        again.serve("r1")
        assert len(world.fleet.post.puts) == sent  # served once
        if ends:
            assert at > 8
            return
    pytest.fail("it never came to its end")


def test_it_waits_while_the_fleet_is_away_and_then_goes_on_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    world.box.add("gate", 1, 1)
    world.ask()
    world.fleet.post.away = True
    with pytest.raises(EnvironmentLacking):
        world.box.giver.serve("r1")
    world.box.giver.collect("r1")
    world.fleet.post.away = False
    thread = world.box.giver._thread
    assert thread is not None
    thread.join(120.0)
    assert world.box.giver.ended("r1")
    world.box.giver.collect("r1")
    assert world.box.giver._thread is thread  # nothing is begun for what was served
    world.box.giver.close()


def test_samples_that_go_meanwhile_are_left_out_not_fatal(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    refs = [world.box.add("gate", 1, seq) for seq in range(4)]
    asked = world.ask()
    giver = world.box.giver
    giver._plan(giver._asked("r1"))
    world.box.store.remove(refs[2])
    giver.serve("r1")
    assert sorted(r.seq for r in world.given(asked)) == [0, 1, 3]


def test_foreign_parts_are_not_believed(tmp_path: Path) -> None:
    world = World(tmp_path, {"gate": YES})
    world.box.add("gate", 1, 1)
    asked = world.ask()
    world.box.giver.serve("r1")
    data = world.opened(part_parcel(TRAINER, "r1", "north", 0))
    wrong = [
        ({"home": "south"}, data),
        ({"partitions": 4}, data),
        ({}, data[:-1]),
        ({}, b""),
        ({}, data[:40] + b"?" + data[41:]),
    ]
    for more, sent in wrong:
        with pytest.raises(EnvironmentLacking) as caught:
            taken_in(
                sent, tmp_path / "in", "m", **{"partitions": asked.partitions, "covers": [(0, 0)], "home": "north", **more}
            )
        assert caught.value.code == "corrupt"
    assert not (tmp_path / "in").exists()
    assert scripted_image(1)[0].shape
