"""Clips as the recorder writes them: from when to when, shared, split, masked; gaps, full disks, kills."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from configs.errors import StorageError, UsageError
from edge.media.folder import MediaFolder
from edge.media.library import Library
from edge.media.recorder import SILENT_S, ClipRules, Recorder, ring_s
from edge.media.space import FAILED_S, Space
from edge.store.objects import ObjectStore, StoredClip
from edge.store.store import Store
from streams.masks import Mask
from streams.recording import Coded, Ring
from tests.support.packets import UTC, decoded, packets, read_clip
from tests.unit.edge.test_object_store import event

LEFT = Mask(((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)))


class Studio:
    """A recorder whose turns the test takes, and a camera whose packets come when the test says so."""

    def __init__(self, root: Path, *, folder: MediaFolder | None = None, **rules: Any) -> None:
        self.folder = folder or MediaFolder(root / "media")
        self.store = ObjectStore(Store(root / "driftbox.db"))
        self.clock_s = 0.0
        self.space = Space(self.folder.root, clock_s=lambda: self.clock_s)
        self.recorder = Recorder(self.folder, self.store, self.space, clock_s=lambda: self.clock_s)
        self.rules = ClipRules(**rules)
        self.ring = Ring(keep_s=ring_s(self.rules), max_bytes=10**7)
        self.recorder.add("gate", self.ring, self.rules)

    def send(self, items: list[Coded], *, seen: tuple[float, float] | None = None) -> None:
        """The packets come one by one; seen: from when to when something is there, told as it is seen."""
        for item in items:
            self.ring.put(item)
            if seen is not None and seen[0] <= item.at_s <= seen[1]:
                self.recorder.want("gate", since_s=seen[0], at_s=item.at_s)
            self.clock_s += 0.2
            self.recorder.step()

    def clips(self) -> list[StoredClip]:
        rows = self.store._store.rows("SELECT id FROM clips ORDER BY id")
        return [clip for row in rows if (clip := self.store.clip(row["id"])) is not None]

    def path(self, clip: StoredClip) -> Path:
        return self.folder.file(clip.path)

    def left_over(self) -> list[Path]:
        return list(self.folder.root.glob("*/*/.tmp-*"))


def test_a_clip_covers_what_was_there_with_what_came_before_and_after(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=3.0, post_s=2.0)
    studio.send(packets(150), seen=(1010.0, 1014.0))
    (clip,) = studio.clips()
    assert clip.began_utc == UTC + 1007.0
    assert clip.ended_utc == pytest.approx(UTC + 1016.0, abs=0.21)
    data, times_s, keyframes = read_clip(studio.path(clip))
    assert keyframes[0]
    assert times_s[-1] == pytest.approx(9.0, abs=0.21)
    assert clip.size_bytes == studio.path(clip).stat().st_size
    assert len(decoded(studio.path(clip))) == len(data)
    assert studio.left_over() == []
    assert studio.recorder.recording() == ()


def test_objects_whose_times_overlap_share_a_clip_and_later_ones_have_their_own(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=2.0, post_s=2.0)
    items = packets(300)
    studio.send(items[:60], seen=(1005.0, 1008.0))
    studio.send(items[60:], seen=(1009.0, 1011.0))  # begins before the first clip has ended: 1010
    assert len(studio.clips()) == 1
    studio.send(packets(100, begin_s=1100.0), seen=(1105.0, 1106.0))
    assert [round(c.began_utc - UTC) for c in studio.clips()] == [1003, 1103]


def test_a_clip_does_not_repeat_what_the_one_before_has(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=8.0, post_s=1.0)
    items = packets(200)
    studio.send(items[:80], seen=(1005.0, 1007.0))
    studio.send(items[80:], seen=(1017.0, 1018.0))
    first, second = studio.clips()
    assert second.began_utc >= first.ended_utc - 1.2  # the group of pictures that they share


def test_a_long_clip_goes_on_in_another_file_without_a_gap(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0, max_s=10.0)
    studio.send(packets(250), seen=(1005.0, 1035.0))
    clips = studio.clips()
    assert len(clips) == 3
    assert all(10.0 <= c.ended_utc - c.began_utc <= 11.0 for c in clips)
    assert all(b.began_utc - a.ended_utc == pytest.approx(0.2, abs=0.01) for a, b in zip(clips, clips[1:], strict=False))


def test_a_stream_that_changes_its_size_goes_on_in_another_file(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)
    studio.send(packets(50), seen=(1003.0, 1100.0))
    studio.send(packets(50, begin_s=1010.0, size=(96, 48)), seen=(1003.0, 1014.0))
    sizes = [decoded(studio.path(clip))[0].shape[1] for clip in studio.clips()]
    assert sizes == [64, 96]


def test_a_camera_that_reconnects_goes_on_in_the_same_file_with_a_gap(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=20.0)
    studio.send(packets(50), seen=(1003.0, 1009.0))
    studio.send(packets(150, begin_s=1018.0, first_pts=5_000_000))
    (clip,) = studio.clips()
    times_s = read_clip(studio.path(clip))[1]
    gaps = [b - a for a, b in zip(times_s, times_s[1:], strict=False)]
    assert max(gaps) == pytest.approx(8.2, abs=0.01)


def test_a_camera_that_stays_away_ends_its_clip(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=5.0)
    studio.send(packets(50), seen=(1003.0, 1100.0))
    assert studio.recorder.recording() == ("gate",)
    studio.clock_s += SILENT_S + 1
    studio.recorder.step()
    assert studio.recorder.recording() == ()
    assert len(studio.clips()) == 1
    studio.send(packets(50, begin_s=1200.0), seen=(1202.0, 1203.0))
    assert len(studio.clips()) == 2


def test_a_camera_that_is_taken_out_has_its_clip_whole(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=5.0)
    studio.send(packets(50), seen=(1003.0, 1100.0))
    studio.recorder.remove("gate", Ring(keep_s=1, max_bytes=1))  # somebody else's
    assert studio.recorder.recording() == ("gate",)
    studio.recorder.remove("gate", studio.ring)
    (clip,) = studio.clips()
    assert len(decoded(studio.path(clip))) >= 39
    studio.recorder.want("gate", since_s=0.0, at_s=5.0)
    studio.recorder.step()


def test_a_masked_camera_has_masked_clips_only(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0, masks=(LEFT,), masked_fps=5.0)
    studio.send(packets(60, grey=200), seen=(1004.0, 1007.0))
    (clip,) = studio.clips()
    assert clip.masked
    images = decoded(studio.path(clip))
    assert len(images) >= 20
    assert max(int(image[:, :28].max()) for image in images) < 40
    assert clip.path.endswith("-m.mp4")


def test_without_anything_wanted_nothing_is_written(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.send(packets(100))
    assert studio.clips() == []
    assert list(studio.folder.root.iterdir()) == []


def test_while_there_is_no_room_nothing_is_begun_and_then_it_goes_on(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=2.0, post_s=1.0)
    items = packets(200)
    studio.space.rest("12 MiB are left")
    studio.send(items[:100], seen=(1005.0, 1012.0))
    assert studio.clips() == []
    studio.space.go_on()
    studio.send(items[100:], seen=(1025.0, 1027.0))
    assert [round(c.began_utc - UTC) for c in studio.clips()] == [1023]


class FullFile(RawIOBase):
    """A file on a disk that is full after so many bytes."""

    def __init__(self, path: Path, room: int) -> None:
        self._file, self._room = path.open("wb"), room

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def seek(self, *words: int) -> int:
        return self._file.seek(*words)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


class FullFolder(MediaFolder):
    room = 3500

    def open_clip(self, name: str) -> BinaryIO:
        super().open_clip(name).close()
        return cast(BinaryIO, FullFile(self.unfinished(name), self.room))


def test_a_disk_that_fills_ends_the_clip_and_what_plays_is_kept(tmp_path: Path) -> None:
    studio = Studio(tmp_path, folder=FullFolder(tmp_path / "media"), pre_s=1.0, post_s=1.0)
    said: list[str] = []
    studio.space.say = said.append
    studio.send(packets(100), seen=(1003.0, 1015.0))
    assert "No space left" in studio.space.problem
    assert len(said) == 1
    (clip,) = studio.clips()
    assert len(decoded(studio.path(clip))) >= 5
    assert studio.left_over() == []
    FullFolder.room = 10**9
    studio.clock_s += FAILED_S + 1
    studio.space.go_on()
    studio.send(packets(50, begin_s=1100.0), seen=(1103.0, 1105.0))
    assert len(studio.clips()) == 2
    FullFolder.room = 3500


def test_packets_that_no_file_holds_cost_their_camera_its_clip_and_are_not_tried_all_the_time(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)
    begun = []
    open_clip = studio.folder.open_clip
    studio.folder.open_clip = lambda name: (begun.append(name), open_clip(name))[1]  # type: ignore[method-assign]
    about = replace(packets(1)[0].format, codec="no such codec")
    studio.send([replace(item, format=about) for item in packets(40)], seen=(1001.0, 1100.0))
    assert 1 <= len(begun) <= 3
    assert studio.clips() == []
    assert studio.left_over() == []
    assert not studio.space.problem


def test_a_database_that_cannot_be_written_leaves_the_file_for_the_next_start(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)

    def full(clip: StoredClip) -> int:
        raise StorageError("no space left", code="full")

    add_clip, studio.store.add_clip = studio.store.add_clip, full  # type: ignore[method-assign]
    studio.send(packets(60), seen=(1004.0, 1007.0))
    assert studio.clips() == []
    studio.store.add_clip = add_clip  # type: ignore[method-assign]
    assert len(list(studio.folder.settle(studio.store, before_utc=2e10))) == 1
    (clip,) = studio.clips()
    assert clip.ended_utc - clip.began_utc == pytest.approx(5.0, abs=0.5)


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_clip_that_was_being_written_at_a_kill_is_kept_as_far_as_it_plays(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)
    studio.store.put([event(1, started_utc=UTC + 1004.0, seen_utc=UTC + 1008.0)])
    studio.send(packets(60), seen=(1004.0, 1100.0))
    assert len(studio.left_over()) == 1  # and here it is killed
    found = MediaFolder(studio.folder.root).recover(studio.store)
    assert len(found) == 1
    assert "up to the moment" in found[0]
    (clip,) = studio.clips()
    assert clip.began_utc == UTC + 1003.0
    assert len(decoded(studio.path(clip))) >= 35
    assert studio.left_over() == []
    assert studio.store.get(event(1).id).event.has_clip
    assert MediaFolder(studio.folder.root).recover(studio.store) == []


def test_half_written_pictures_and_hopeless_clips_are_removed_at_the_start(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    day = studio.folder.root / "gate" / "2026-01-01"
    day.mkdir(parents=True)
    for name in (".tmp-7-1234-abcd.jpg", ".tmp-7-1234-abcd.mp4", ".tmp-7-evil.mp4", ".tmp-"):
        (day / name).write_bytes(b"half")
    assert len(studio.folder.recover(studio.store)) == 4
    assert list(day.iterdir()) == []


def test_files_and_rows_that_do_not_belong_together_are_put_in_order(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)
    kept = studio.folder.write_pictures("gate", "1790000000000-aaaabbbb", UTC, snapshot=b"s", thumbnail=b"t")
    lost = studio.folder.write_pictures("gate", "1790000000001-aaaabbbb", UTC, snapshot=b"s", thumbnail=b"t")
    studio.folder.write_pictures("gate", "1790000000002-aaaabbbb", UTC, snapshot=b"s", thumbnail=b"t")  # without a row
    studio.store.put([event(1), event(2)], {event(1).id: kept, event(2).id: lost})
    studio.folder.remove([lost.snapshot, lost.thumbnail])
    done = list(studio.folder.settle(studio.store, before_utc=2e10))
    assert len(done) == 4
    assert studio.store.get(event(1).id).snapshot == kept.snapshot
    assert studio.store.get(event(2).id).snapshot == ""
    assert {p.name for p in studio.folder.root.glob("*/*/*")} == {Path(kept.snapshot).name, Path(kept.thumbnail).name}
    assert list(studio.folder.settle(studio.store, before_utc=2e10)) == []


@pytest.mark.parametrize(
    "name",
    ["", "..", "../secrets", "gate/../../etc/passwd", "/etc/passwd", "gate/2026-01-01/../x.mp4", "gate/2026-01-01/.tmp-1-1-aaaa.mp4",
     "gate/2026-01-01/1-aaaa.mp4\n", "gate/2026-01-01/1-aaaa.html", "Gate/2026-01-01/1-aaaa.mp4", "gate//2026-01-01/1-aaaa.mp4"],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_never_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        MediaFolder(tmp_path).file(name)


def test_an_event_goes_with_its_pictures_and_with_clips_that_are_its_own_alone(tmp_path: Path) -> None:
    studio = Studio(tmp_path, pre_s=1.0, post_s=1.0)
    library = Library(studio.store, studio.folder)
    studio.send(packets(60), seen=(1004.0, 1007.0))
    events = [
        event(n, "end", started_utc=UTC + 1004.0 + n, seen_utc=UTC + 1006.0 + n, ended_utc=UTC + 1006.0 + n) for n in (0, 1)
    ]  # fmt: skip
    pictures = studio.folder.write_pictures("gate", events[0].id, UTC, snapshot=b"s", thumbnail=b"t")
    studio.store.put([*events, event(7)], {events[0].id: pictures})
    with pytest.raises(UsageError) as refused:
        library.remove(event(7).id)
    assert refused.value.code == "open"
    library.remove(events[0].id)
    assert len(studio.clips()) == 1
    assert not studio.folder.file(pictures.snapshot).exists()
    library.remove(events[1].id)
    assert studio.clips() == []
    assert list(studio.folder.root.glob("*/*/*")) == []
