"""The journal: no hole in a segment, torn ends are dropped and told, old segments go."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from edge.clock import FakeClock
from edge.journal import Journal, read_segments

LINES = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\x00"), max_size=40), max_size=20)


class Disk:
    """A `write` with `room` bytes left."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(fd, data[: self.room])
        self.room -= taken
        return taken


def read(root: Path) -> list[tuple[str, ...]]:
    return [s.lines for s in read_segments(root)]


def test_lines_come_back_in_order_by_segment(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events")
    first = journal.start_segment("header 1")
    journal.append('{"a": "ä\u2028"}')
    journal.append("b", durable=True)
    journal.start_segment("header 2")
    journal.append("c")
    journal.close()
    segments = list(read_segments(tmp_path / "events"))
    assert [s.lines for s in segments] == [("header 1", '{"a": "ä\u2028"}', "b"), ("header 2", "c")]
    assert not any(s.torn for s in segments)
    assert segments[0].path == first


def test_a_line_can_be_read_before_the_journal_is_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.start_segment("h")
    journal.append("a")
    assert read(tmp_path) == [("h", "a")]


def test_a_new_process_goes_on_with_the_next_number(tmp_path: Path) -> None:
    for n in range(3):
        Journal(tmp_path).start_segment(f"h{n}")
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["00000001.jsonl", "00000002.jsonl", "00000003.jsonl"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, cut=st.integers(0, 2000))
def test_cut_anywhere_whole_lines_survive_and_only_they(tmp_path_factory: pytest.TempPathFactory, lines, cut) -> None:  # type: ignore[no-untyped-def]
    root = tmp_path_factory.mktemp("events")
    journal = Journal(root)
    path = journal.start_segment("header")
    for line in lines:
        journal.append(line)
    journal.close()
    data = path.read_bytes()
    cut = min(cut, len(data))
    path.write_bytes(data[:cut])
    segment = next(iter(read_segments(root)))
    whole = ["header", *lines]
    assert list(segment.lines) == whole[: data[:cut].count(b"\n")]
    assert segment.torn == (cut > 0 and data[cut - 1 : cut] != b"\n")


def test_zeros_at_the_end_after_a_power_cut_are_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "00000001.jsonl").write_bytes(b"h\na\n" + b"\x00" * 100)
    segment = next(iter(read_segments(tmp_path)))
    assert (segment.lines, segment.torn) == (("h", "a"), True)
    (tmp_path / "00000001.jsonl").write_bytes(b"h\na\n\x00\x00\n")
    segment = next(iter(read_segments(tmp_path)))
    assert (segment.lines, segment.torn) == (("h", "a"), True)


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "00000001.jsonl").write_bytes(b"h\n\xff\xfe\na\n")
    with pytest.raises(StorageError, match="line 2") as caught:
        list(read_segments(tmp_path))
    assert caught.value.code == "corrupt"


@pytest.mark.parametrize("room", [2, 5, 6, 9])
def test_a_full_disk_closes_the_segment_without_a_half_line(tmp_path: Path, room: int) -> None:
    disk = Disk(room)
    journal = Journal(tmp_path, write=disk.write)
    journal.start_segment("h")
    fitting = (room - 2) // 3
    written = ["h", *["aa"] * fitting]
    for line in written[1:]:
        journal.append(line)
    with pytest.raises(StorageError) as caught:
        journal.append("bb")
    assert caught.value.code == "full"
    assert read(tmp_path) == [tuple(written)]
    assert not any(s.torn for s in read_segments(tmp_path))
    assert journal.wants_rotation
    disk.room = 1000
    with pytest.raises(StorageError):  # one event is missing: what follows must not look as if it came next
        journal.append("ee")
    journal.start_segment("h2")
    journal.append("ff")
    assert read(tmp_path) == [tuple(written), ("h2", "ff")]


def test_a_segment_that_cannot_be_begun_leaves_no_file(tmp_path: Path) -> None:
    disk = Disk(3)
    journal = Journal(tmp_path, write=disk.write)
    with pytest.raises(StorageError):
        journal.start_segment("a long header")
    assert list(tmp_path.iterdir()) == []
    assert journal.wants_rotation


def test_oldest_segments_go_first_and_the_current_one_stays(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=100)
    for n in range(5):
        journal.start_segment(f"h{n}")
        journal.append("x" * 40)
    # When h4 began there were h0..h3 of 43 bytes each; h2 + h3 + "h4" are 89.
    assert [s.lines[0] for s in read_segments(tmp_path)] == ["h2", "h3", "h4"]
    Journal(tmp_path, max_bytes=0).start_segment("last")
    assert read(tmp_path) == [("last",)]


def test_rotation_is_wanted_above_the_segment_size(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=20)
    assert journal.wants_rotation
    journal.start_segment("h")
    assert not journal.wants_rotation
    journal.append("x" * 30)
    assert journal.wants_rotation


@pytest.mark.parametrize("line", ["a\nb", "a\r", "\x00"])
def test_a_line_end_inside_a_line_is_refused(tmp_path: Path, line: str) -> None:
    journal = Journal(tmp_path)
    journal.start_segment("h")
    with pytest.raises(ValueError, match="line end"):
        journal.append(line)
    assert read(tmp_path) == [("h",)]


def test_append_needs_a_segment(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        Journal(tmp_path).append("a")


def test_lines_reach_the_disk_when_asked_or_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    journal = Journal(tmp_path, fsync_every_s=1.0, clock=clock)
    journal.start_segment("h")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.append("a")
    assert not synced
    journal.append("b", durable=True)
    assert len(synced) == 1
    clock.advance_to(0.5)
    journal.append("c")
    assert len(synced) == 1
    clock.advance_to(1.5)
    journal.append("d")
    assert len(synced) == 2


def test_no_folder_is_an_empty_journal_and_other_files_are_ignored(tmp_path: Path) -> None:
    assert list(read_segments(tmp_path / "nothing")) == []
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".tmp-1-00000001.jsonl").write_text("half")
    assert list(read_segments(tmp_path)) == []
