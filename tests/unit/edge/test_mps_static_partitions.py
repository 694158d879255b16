"""Static partitions of MPS: what is ours, what is left alone, and refusals and kills at every step. The daemon is a table in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.errors import EnvironmentLacking
from edge.gpu.mps_daemon import PartitionRow, PartitionTable, read_partitions
from edge.gpu.mps_partitions import NOTE, StaticPartitions
from tests.support.mps_division import UUID, Division, Killed


@dataclass
class Tenant:
    ended: bool = False


@pytest.fixture
def device(tmp_path: Path) -> Division:
    return Division(root=tmp_path)


@pytest.fixture
def ours(device: Division) -> StaticPartitions:
    made = StaticPartitions(device)
    assert made.open() == ""
    return made


def enter(ours: StaticPartitions, job: str, shares: dict[str, float], at: dict[str, str] | None = None) -> tuple[str, Tenant]:
    name, tenant = ours.place(job, shares, at or {}, ()), Tenant()
    assert name is not None
    ours.enter(name, job, tenant)
    return name, tenant


# --- what `lspart` says -----------------------------------------------------------------------------------------------

AS_SEEN = """\
GPU           Partition                          free    used    free  used  clients
                                                 chunks  chunks  SM    SM
GPU-74d43ed3                                     9       7       76    56
GPU-74d43ed3  Dx4AAAAAAAAAAAAA/AAAAAAAAAAAAAA=           7             56    Yes
GPU-0a0b0c0d                                     16      0       132   0
GPU-0a0b0c0d  Dx5                                        2             16    No
"""
AS_DOCUMENTED = """\
GPU           Partition   free   used   free  used  clients
                          chunk  chunk  SM    SM
GPU-74d43ed3  -           9      7      76    56    -
GPU-74d43ed3  Dx4AAAAAAAAAAAAA/AAAAAAAAAAAAAA=  -  7  -  56  Yes
"""


@pytest.mark.parametrize("said", [AS_SEEN, AS_DOCUMENTED], ids=["as seen", "as documented"])
def test_what_the_daemon_lists_is_read_in_both_forms_and_other_gpus_are_not_taken_for_ours(said: str) -> None:
    assert read_partitions(said, UUID) == PartitionTable(
        free=9, taken=7, sms=132, rows=(PartitionRow(id="Dx4AAAAAAAAAAAAA/AAAAAAAAAAAAAA=", chunks=7, used=True),)
    )


@pytest.mark.parametrize(
    "said", ["", "Static partitioning is not enabled", "GPU-ffffffff 16 0 132 0", "GPU-74d43ed3 many few 0 0", "-", "- - -"]
)
def test_what_is_not_understood_is_nothing(said: str) -> None:
    assert read_partitions(said, UUID) is None


# --- who gets what ----------------------------------------------------------------------------------------------------


def test_a_share_becomes_a_partition_of_chunks_and_goes_with_its_last_process(device: Division, ours: StaticPartitions) -> None:
    shares = {"a": 50.0, "b": 30.0}
    a, first = enter(ours, "a", shares)
    b, _ = enter(ours, "b", shares)
    assert (ours.pct(a), ours.pct(b), ours.free) == (50.0, 31.25, 3)
    again, second = enter(ours, "a", shares, {"a": a, "b": b})
    assert again == a, "a second process of a job, a new version's say, is beside the first"
    first.ended = True
    ours.tidy()
    assert set(device.rows) == {a, b}
    second.ended = True
    ours.tidy()
    assert set(device.rows) == {b}
    assert ours.free == 11


def test_a_partition_that_still_has_a_client_is_kept_and_removed_later(device: Division, ours: StaticPartitions) -> None:
    a, tenant = enter(ours, "a", {"a": 50.0})
    device.use(a)
    tenant.ended = True  # the daemon has not noticed yet
    ours.tidy()
    assert ours.free == 8
    device.use(a, False)
    ours.tidy()
    assert ours.free == 16
    assert device.rows == {}


def test_a_job_that_begins_waits_until_there_is_room_and_then_shares(ours: StaticPartitions) -> None:
    shares = {"a": 50.0, "b": 50.0}
    at = {"a": enter(ours, "a", shares)[0], "b": enter(ours, "b", shares)[0]}
    shares = {"a": 25.0, "b": 25.0, "c": 50.0}
    assert ours.is_right("a", shares, at, ()), "nobody needs it"
    assert ours.place("c", shares, at, ()) is None
    assert not ours.is_right("a", shares, at, ("c",))
    assert ours.place("c", shares, at, ("c",), at_once=True) in at.values()


def test_all_shares_are_parts_of_the_chunks_that_others_leave(device: Division) -> None:
    device.rows["theirs"] = PartitionRow(id="theirs", chunks=6, used=True)
    ours = StaticPartitions(device)
    said = ours.open()
    assert "1 partitions are not this box's and are left alone" in said
    name, _ = enter(ours, "a", {"a": 50.0})
    assert device.rows[name].chunks == 5
    ours.close()
    assert set(device.rows) == {"theirs"} | ({name} if name in device.rows else set())


def test_where_no_chunk_is_left_there_are_no_partitions(device: Division) -> None:
    device.rows["theirs"] = PartitionRow(id="theirs", chunks=16, used=False)
    with pytest.raises(EnvironmentLacking, match="no chunk of multiprocessors is free") as caught:
        StaticPartitions(device).open()
    assert "lspart" in caught.value.remedy
    assert set(device.rows) == {"theirs"}


def test_a_refused_partition_is_counted_and_nothing_has_changed(device: Division, ours: StaticPartitions) -> None:
    a, _ = enter(ours, "a", {"a": 50.0})
    device.refuses = True
    for _ in range(2):
        with pytest.raises(EnvironmentLacking):
            ours.place("b", {"a": 50.0, "b": 25.0}, {"a": a}, ())
    assert (ours.refused, ours.free, ours.largest()) == (2, 8, a)
    device.refuses = False
    enter(ours, "b", {"a": 50.0, "b": 25.0}, {"a": a})
    assert ours.refused == 0, "in a row"


# --- what a killed box leaves behind ----------------------------------------------------------------------------------


def killed_at(device: Division, what: str, when: str) -> None:
    """A box that is killed at the first such step of its life with two jobs, one of which ends."""
    device.stop_at = (what, when)
    try:
        box = StaticPartitions(device)
        box.open()
        _, tenant = enter(box, "a", {"a": 50.0, "b": 25.0})
        enter(box, "b", {"a": 50.0, "b": 25.0})
        tenant.ended = True
        box.tidy()
    except Killed:
        return
    pytest.fail(f"never came to {what}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["add", "rm"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_box_that_is_killed_at_any_step_finds_and_removes_what_is_its_own(
    device: Division, what: str, when: str, beside: bool
) -> None:
    if beside:
        device.rows["theirs"] = PartitionRow(id="theirs", chunks=2, used=False)
    killed_at(device, what, when)
    again = StaticPartitions(device)
    again.open()
    assert set(device.rows) == ({"theirs"} if beside else set())
    assert again.groups == (14 if beside else 16)


def test_a_box_that_is_killed_while_it_cleans_up_goes_on_where_it_was(device: Division, ours: StaticPartitions) -> None:
    for job in "abc":
        enter(ours, job, {"a": 25.0, "b": 25.0, "c": 25.0})
    for when in ("before", "after"):
        device.stop_at = ("rm", when)
        with pytest.raises(Killed):
            StaticPartitions(device).open()
    assert len(device.rows) == 2
    StaticPartitions(device).open()
    assert device.rows == {}


def test_one_whose_last_client_is_still_dying_goes_later(device: Division, ours: StaticPartitions) -> None:
    a, _ = enter(ours, "a", {"a": 50.0})
    device.use(a)
    again = StaticPartitions(device)
    assert again.open() == ""
    assert (again.groups, again.free) == (16, 8)
    device.use(a, False)
    again.tidy()
    assert (again.free, device.rows) == (16, {})


def test_what_might_be_another_s_is_left_alone(device: Division, ours: StaticPartitions) -> None:
    """Killed while it made one of four chunks, and meanwhile somebody made one of that size, too; or theirs alone is in use."""
    device.stop_at = ("add", "after")
    with pytest.raises(Killed):
        ours.place("a", {"a": 25.0}, {}, ())
    device.rows["theirs"] = PartitionRow(id="theirs", chunks=4, used=False)
    StaticPartitions(device).open()
    assert len(device.rows) == 2
    (device.root / NOTE).write_text(json.dumps({"ours": [], "others": [], "adding": 8}))
    device.rows = {"theirs": PartitionRow(id="theirs", chunks=8, used=True)}
    StaticPartitions(device).open()
    assert set(device.rows) == {"theirs"}


@pytest.mark.parametrize("note", [None, "", "{", "[]", '{"ours": 1, "no": 2}', '{"unknown": []}'])
def test_without_a_note_that_can_be_read_nothing_is_ours(device: Division, note: str | None) -> None:
    if note is not None:
        (device.root / NOTE).write_text(note)
    device.rows["somebody's"] = PartitionRow(id="somebody's", chunks=4, used=False)
    ours = StaticPartitions(device)
    ours.open()
    assert set(device.rows) == {"somebody's"}
    assert ours.groups == 12
