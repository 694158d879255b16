"""A box that may divide its GPU makes one partition, remembers it, and touches nothing else; whatever fails leaves the GPU as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import DriftboxError, EnvironmentLacking, StorageError
from edge.gpu import mig_division
from edge.gpu.fake_nvml import FakeGpu, FakeMig, FakeNvml
from edge.gpu.mig_card import Card
from edge.gpu.mig_division import NOTE, Division

THEIRS = FakeMig(profile="2g.35gb", slices=2, memory_mib=35_000, number=5, uuid="MIG-theirs")


class Killed(BaseException):
    """The box ends here."""


class Box:
    """One data folder, and a start at a time."""

    def __init__(self, fake: FakeNvml, folder: Path, *, boot: str = "today") -> None:
        self.fake, self.folder, self.boot = fake, folder, boot
        self.told: list[str] = []

    def start(self, profile: str = "3g.71gb", *, index: int = 0) -> str:
        with Card(index, self.fake) as card:
            card.must_be_on()
            own = self.division(card)
            return own.carry_out(own.profile(profile))

    def foresees(self, profile: str = "3g.71gb") -> str:
        with Card(0, self.fake) as card:
            own = self.division(card)
            return own.change(own.profile(profile)).words(own.profile(profile))

    def division(self, card: Card) -> Division:
        return Division(card, self.folder, boot=lambda: self.boot, tell=self.told.append)

    @property
    def noted(self) -> list[tuple[int, str, str]]:
        return [(o["number"], o["profile"], o["uuid"]) for o in json.loads((self.folder / NOTE).read_text())["own"]]


def box(folder: Path, *parts: FakeMig, **about: Any) -> Box:
    return Box(FakeNvml([FakeGpu(uuid="GPU-a", mig=[*parts], **about)]), folder)


def parts_of(box: Box, gpu: int = 0) -> list[tuple[str, str, bool]]:
    """(profile, UUID, usable) of every partition."""
    return [(part.profile, part.uuid, not part.bare) for part in box.fake.gpus[gpu].mig or []]


def made(box: Box) -> list[str]:
    return [profile for profile, uuid, _ in parts_of(box) if uuid != "MIG-theirs"]


def test_the_first_start_makes_the_partition_and_the_next_ones_use_it(tmp_path: Path) -> None:
    one = box(tmp_path, THEIRS)
    uuid = one.start()
    assert parts_of(one) == [("2g.35gb", "MIG-theirs", True), ("3g.71gb", uuid, True)]
    assert one.fake.gpus[0].mig[1].compute_slices == 3, "one compute instance, as large as the partition"  # type: ignore[index]
    assert one.noted == [(1, "3g.71gb", uuid)]
    one.fake.calls.clear()
    assert one.start() == uuid
    assert not [call for call in one.fake.calls if "Create" in call or "Destroy" in call]
    assert one.fake.users == 0, "the driver is given back"


def test_another_profile_beside_the_old_one_first_then_the_old_one_goes(tmp_path: Path) -> None:
    one = box(tmp_path, THEIRS)
    one.start("1g.18gb")
    one.fake.calls.clear()
    uuid = one.start("2g.35gb")
    assert parts_of(one) == [("2g.35gb", "MIG-theirs", True), ("2g.35gb", uuid, True)]
    assert one.noted == [(2, "2g.35gb", uuid)]
    order = [call for call in one.fake.calls if "Create" in call or "Destroy" in call]
    assert order == [
        "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance", "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy",
    ]  # fmt: skip


def test_where_both_do_not_fit_the_old_one_goes_first(tmp_path: Path) -> None:
    one = box(tmp_path)
    one.start("4g.71gb")
    uuid = one.start("7g.141gb")
    assert parts_of(one) == [("7g.141gb", uuid, True)]
    assert one.noted == [(1, "7g.141gb", uuid)]


def test_what_a_start_would_do_is_said_and_nothing_is_changed(tmp_path: Path) -> None:
    one = box(tmp_path)
    assert one.foresees() == "the box makes a partition 3g.71gb when it starts"
    assert not (tmp_path / NOTE).exists()
    uuid = one.start()
    assert one.foresees() == f"the box works in its own partition 3g.71gb {uuid}"
    before = parts_of(one)
    assert one.foresees("1g.18gb") == "the box makes a partition 1g.18gb when it starts; it removes its 3g.71gb"
    assert parts_of(one) == before


@pytest.mark.parametrize(
    ("about", "code", "words", "remedy"),
    [
        ({"mig": None}, "mig_off", "MIG mode is off", "nvidia-smi -i 0 -mig 1"),
        ({"mig": None, "mig_pending": True}, "mig_off", "only after a reset", "--gpu-reset -i 0"),
        ({"mig": [], "mig_pending": True}, "mig_off", "MIG mode is off", "-mig 1"),
        ({"mig": [], "processes": [(4321, None)]}, "gpu_busy", "process 4321", "as it was"),
        ({"mig": [FakeMig(processes=[(77, 500)])]}, "gpu_busy", "process 77", "nvidia-smi"),
        ({"mig": [FakeMig(profile="7g.141gb", slices=7)]}, "no_room", "(3g.71gb); there are: NVIDIA Fake 80GB MIG 7g.141gb", "smaller"),
    ],
)  # fmt: skip
def test_what_does_not_allow_it_is_said_before_anything_is_touched(
    tmp_path: Path, about: dict[str, Any], code: str, words: str, remedy: str
) -> None:
    one = Box(FakeNvml([FakeGpu(uuid="GPU-a", **about)]), tmp_path)
    before = parts_of(one)
    with pytest.raises(EnvironmentLacking) as caught:
        one.start()
    assert (caught.value.code, caught.value.exit_code) == (code, 3)
    assert words in caught.value.message
    assert "GPU 0 (" in caught.value.message
    assert remedy in caught.value.remedy
    assert parts_of(one) == before
    assert not [call for call in one.fake.calls if "Create" in call or "Destroy" in call]
    assert one.fake.users == 0


def test_a_profile_that_the_gpu_does_not_have_is_answered_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="no MIG profile 3g.40gb") as caught:
        box(tmp_path).start("3g.40gb")
    assert caught.value.code == "no_profile"
    assert "1g.18gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb" in caught.value.remedy


def test_the_box_itself_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gpu.mig_card.os.getpid", lambda: 99)
    assert box(tmp_path, processes=[(99, 100)]).start()


def test_a_partition_that_is_used_while_nothing_changes_disturbs_nobody(tmp_path: Path) -> None:
    one = box(tmp_path)
    uuid = one.start()
    one.fake.gpus[0].processes = [(4321, None)]
    assert one.start() == uuid
    with pytest.raises(EnvironmentLacking, match="process 4321"):
        one.start("1g.18gb")
    assert made(one) == ["3g.71gb"]


CHANGING = (
    "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance", "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy",
)  # fmt: skip
LOOKING = (
    "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceRemainingCapacity", "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMigMode",
)  # fmt: skip


@pytest.mark.parametrize("function", [*CHANGING, *LOOKING])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("NO_PERMISSION", "no_permission"),
        ("INSUFFICIENT_RESOURCES", "no_room"),
        ("IN_USE", "gpu_busy"),
        ("GPU_IS_LOST", "gpu_lost"),
    ],
)
@pytest.mark.parametrize("profile", ["1g.18gb", "7g.141gb"])
def test_a_step_that_is_refused_leaves_the_gpu_as_it_was(
    tmp_path: Path, function: str, error: str, code: str, profile: str
) -> None:
    """Beside the old partition, and in its place."""
    one = box(tmp_path)
    uuid = one.start("4g.71gb")
    one.fake.fail(function, error, times=1)
    with pytest.raises(EnvironmentLacking) as caught:
        one.start(profile)
    assert caught.value.code == code
    assert "GPU 0" in caught.value.message
    assert caught.value.remedy
    assert ("4g.71gb", uuid, True) in parts_of(one)
    assert len(one.noted) == len(parts_of(one)), "all that is there is known"
    assert one.start(profile), "the next start goes on"
    assert made(one) == [profile]
    assert [noted[1] for noted in one.noted] == [profile]


def test_not_supported_is_said_with_where_it_can_be_done(tmp_path: Path) -> None:
    one = box(tmp_path)
    one.fake.fail("nvmlDeviceCreateGpuInstance", "NOT_SUPPORTED")
    with pytest.raises(EnvironmentLacking, match="cannot be divided from here") as caught:
        one.start()
    assert caught.value.code == "not_supported"
    assert "host" in caught.value.remedy


def test_an_old_partition_that_does_not_come_back_is_told(tmp_path: Path) -> None:
    one = box(tmp_path)
    one.start("4g.71gb")
    one.fake.fail("nvmlDeviceCreateGpuInstance", "NO_PERMISSION", times=2)
    with pytest.raises(EnvironmentLacking, match="may not divide"):
        one.start("7g.141gb")
    assert any("4g.71gb was removed and could not be made again" in text for text in one.told)
    assert (parts_of(one), one.noted) == ([], [])
    assert one.start("4g.71gb")


def _killing(monkeypatch: pytest.MonkeyPatch, call: int) -> Callable[[], int]:
    """The box ends before the given step, counted over notes and changes of the GPU. Returns how many steps there were."""
    steps = 0

    def step(do: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*of: Any, **how: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == call:
                raise Killed
            return do(*of, **how)

        return counted

    monkeypatch.setattr(mig_division, "atomic_write", step(mig_division.atomic_write))
    for function in CHANGING:
        monkeypatch.setattr(FakeNvml, function, step(getattr(FakeNvml, function)))
    return lambda: steps


@pytest.mark.parametrize("profile", ["1g.18gb", "7g.141gb"])
def test_killed_at_any_step_the_next_start_finds_what_it_had_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """From the first start on, then on the way to another profile (beside the old one, or in its place)."""
    for first in (True, False):
        call = 0
        while True:
            call += 1
            folder = tmp_path / f"{first}-{call}"
            folder.mkdir()
            one = box(folder) if profile == "7g.141gb" else box(folder, THEIRS)
            if not first:
                one.start("4g.71gb")
            with monkeypatch.context() as patched:
                steps = _killing(patched, call)
                try:
                    one.start(profile)
                except Killed:
                    pass
                else:
                    assert steps() < call
                    break
            assert one.foresees(profile)
            uuid = one.start(profile)
            assert made(one) == [profile], f"killed before step {call}"
            assert [(noted[1], noted[2]) for noted in one.noted] == [(profile, uuid)]
            assert all(usable for _, _, usable in parts_of(one))
            assert one.told == []
        assert call > 5, "it was killed at every step"


def test_after_a_kill_two_new_partitions_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = box(tmp_path)
    with monkeypatch.context() as patched:
        _killing(patched, 3)  # made, and not noted
        with pytest.raises(Killed):
            one.start("1g.18gb")
    one.fake.gpus[0].mig.append(FakeMig(profile="1g.18gb", number=6, uuid="MIG-by-hand"))  # type: ignore[union-attr]
    uuid = one.start("1g.18gb")
    assert [text for text in one.told if "2 partitions 1g.18gb" in text]
    assert len(parts_of(one)) == 3
    assert one.noted == [(2, "1g.18gb", uuid)]
    one.start("2g.35gb")
    assert [profile for profile, _, _ in parts_of(one)] == ["1g.18gb", "1g.18gb", "2g.35gb"], "the two are left alone"


def test_notes_from_before_a_restart_of_the_machine_are_void(tmp_path: Path) -> None:
    """Instances do not survive it, and somebody else's partition may get the same UUID, which follows from the numbers."""
    one = box(tmp_path)
    uuid = one.start("1g.18gb")
    one.boot = "tomorrow"
    one.fake.gpus[0].mig = [FakeMig(profile="1g.18gb", number=1, uuid=uuid)]
    assert one.start("2g.35gb") != uuid
    assert ("1g.18gb", uuid, True) in parts_of(one)


def test_a_partition_that_was_replaced_by_hand_is_not_ours(tmp_path: Path) -> None:
    one = box(tmp_path)
    one.start("1g.18gb")
    one.fake.gpus[0].mig = [FakeMig(profile="1g.18gb", number=1, uuid="MIG-another")]
    one.start("2g.35gb")
    assert made(one) == ["1g.18gb", "2g.35gb"]
    one.fake.gpus[0].mig = []
    assert one.start("2g.35gb"), "removed by hand: made again"
    assert len(one.noted) == 1


def test_a_compute_instance_that_was_removed_by_hand_is_made_again(tmp_path: Path) -> None:
    one = box(tmp_path)
    uuid = one.start()
    one.fake.gpus[0].mig[0].bare = True  # type: ignore[index]
    assert "completed at its start" in one.foresees()
    assert one.start() == uuid
    assert parts_of(one) == [("3g.71gb", uuid, True)]


def test_what_it_made_on_another_gpu_is_remembered_and_left_alone(tmp_path: Path) -> None:
    two = Box(FakeNvml([FakeGpu(uuid="GPU-a", mig=[]), FakeGpu(uuid="GPU-b", mig=[])]), tmp_path)
    first = two.start("1g.18gb", index=0)
    second = two.start("2g.35gb", index=1)
    assert (parts_of(two, 0), parts_of(two, 1)) == ([("1g.18gb", first, True)], [("2g.35gb", second, True)])
    assert two.start("3g.71gb", index=0)
    assert len(parts_of(two, 0)) == 1, "its own there was known, and is gone"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot": "today"}', '{"boot": "today", "own": [{"colour": 1}], "begun": null}']
)
def test_a_damaged_note_is_told_and_claims_nothing(tmp_path: Path, text: str) -> None:
    one = box(tmp_path)
    one.start("1g.18gb")
    (tmp_path / NOTE).write_text(text)
    one.start("2g.35gb")
    assert made(one) == ["1g.18gb", "2g.35gb"]
    assert len([told for told in one.told if "damaged" in told]) == 1


def test_without_a_note_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = box(tmp_path)

    def full(path: Path, data: bytes) -> None:
        raise StorageError("the disk is full", subject=str(path))

    monkeypatch.setattr(mig_division, "atomic_write", full)
    with pytest.raises(StorageError):
        one.start()
    assert parts_of(one) == []


def test_a_driver_that_makes_and_does_not_list_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = box(tmp_path)
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetMaxMigDeviceCount", lambda self, device: 0)
    with pytest.raises(DriftboxError, match="does not list it"):
        one.start()
    assert "could not be removed" in one.told[0]
    assert [noted[1] for noted in one.noted] == ["3g.71gb"], "it stays noted: it is there"


def test_a_driver_that_does_not_start_is_said(tmp_path: Path) -> None:
    one = box(tmp_path)
    one.fake.fail("nvmlInit", "DRIVER_NOT_LOADED")
    with pytest.raises(EnvironmentLacking, match="driver is not loaded"):
        one.start()
