"""Clips from packets: what the ring holds, what a file holds and when, masks, what a kill leaves."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.encode import write_video
from streams.masks import Mask
from streams.recording import ClipFile, Coded, MaskedClip, Ring, Tap, suffix_of, whole_part
from tests.support.packets import UTC, decoded, nal_units, packets, read_clip

LEFT = Mask(((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)))


def written(path: Path, items: list[Coded]) -> ClipFile:
    with path.open("wb") as file:
        clip = ClipFile(file, items[0].format)
        for item in items:
            clip.add(item)
        clip.close()
    return clip


# --- the ring ---------------------------------------------------------------------------------------------------------


def plain(at_s: float, keyframe: bool, size: int = 10) -> Coded:
    return Coded(data=b"x" * size, keyframe=keyframe, at_s=at_s, at_utc=UTC + at_s, format=_FORMAT)


_FORMAT = packets(1)[0].format


def test_a_ring_holds_whole_groups_that_reach_back_far_enough() -> None:
    ring = Ring(keep_s=3.0, max_bytes=10**6)
    for n in range(50):
        ring.put(plain(n / 5, n % 5 == 0))
    items, _ = ring.read(ring.cursor(0.0))
    assert items[0].keyframe
    assert items[0].at_s == 6.0  # 9.8 - 3 = 6.8 lies in the group of 6.0
    assert items[-1].at_s == 9.8


def test_a_cursor_begins_at_the_keyframe_before_and_goes_on_where_it_was() -> None:
    ring = Ring(keep_s=100.0, max_bytes=10**6)
    for n in range(20):
        ring.put(plain(n / 5, n % 5 == 0))
    cursor = ring.cursor(2.3)
    items, cursor = ring.read(cursor, limit=3)
    assert [item.at_s for item in items] == [2.0, 2.2, 2.4]
    items, cursor = ring.read(cursor)
    assert [item.at_s for item in items] == [2.6, 2.8, 3.0, 3.2, 3.4, 3.6, 3.8]
    assert ring.read(cursor)[0] == []
    ring.put(plain(4.0, True))
    assert [item.at_s for item in ring.read(cursor)[0]] == [4.0]


def test_packets_before_a_keyframe_and_a_group_that_is_too_large_are_left_out() -> None:
    ring = Ring(keep_s=100.0, max_bytes=100)
    ring.put(plain(0.0, False))
    assert (ring.dropped, ring.read(ring.cursor(0.0))[0]) == (1, [])
    ring.put(plain(1.0, True, 60))
    ring.put(plain(1.2, False, 60))
    assert ring.size_bytes == 0
    assert ring.dropped == 3
    ring.put(plain(1.4, False))
    ring.put(plain(2.0, True))
    assert [item.at_s for item in ring.read(ring.cursor(0.0))[0]] == [2.0]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.floats(0.0, 2.0)), max_size=80), st.integers(1, 7))
def test_a_reader_gets_packets_in_order_none_twice_and_memory_is_bounded(
    steps: list[tuple[bool, int, float]], limit: int
) -> None:
    ring, at_s, read = Ring(keep_s=3.0, max_bytes=300), 0.0, list[float]()
    cursor = ring.cursor(0.0)
    for n, (keyframe, size, after_s) in enumerate(steps):
        at_s += after_s + 0.001
        ring.put(plain(at_s, keyframe, size))
        assert ring.size_bytes <= 300
        if n % 3 == 0:
            items, cursor = ring.read(cursor, limit=limit)
            assert len(items) <= limit
            read += [item.at_s for item in items]
    assert read == sorted(set(read))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_packets_are_copied_and_not_encoded_anew(tmp_path: Path, codec: str) -> None:
    items = packets(20, codec=codec)
    clip = written(tmp_path / "a.mp4", items)
    found, times_s, keyframes = read_clip(tmp_path / "a.mp4")
    assert [n for n, is_key in enumerate(keyframes) if is_key] == [0, 5, 10, 15]
    assert times_s == pytest.approx([n / 5 for n in range(20)], abs=1e-4)
    assert clip.length_s == pytest.approx(3.8)
    for item, data in zip(items, found, strict=True):
        pictures = nal_units(data, lengths=True)
        assert pictures[-1] == nal_units(item.data, lengths=False)[-1]
    assert len(decoded(tmp_path / "a.mp4")) == 20


def test_parameters_that_only_the_description_has_are_put_in_front(tmp_path: Path) -> None:
    whole = packets(10)
    units = nal_units(whole[0].data, lengths=False)
    parameters = b"".join(b"\0\0\0\1" + unit for unit in units if unit[0] & 31 in (7, 8))
    about = replace(whole[0].format, parameters=parameters)
    without = [
        replace(
            item, format=about,
            data=b"".join(b"\0\0\0\1" + unit for unit in nal_units(item.data, lengths=False) if unit[0] & 31 not in (6, 7, 8)),
        )
        for item in whole
    ]  # fmt: skip
    written(tmp_path / "a.mp4", without)
    assert len(decoded(tmp_path / "a.mp4")) == 10


def test_a_gap_in_what_the_camera_sent_is_a_gap_in_the_clip(tmp_path: Path) -> None:
    before = packets(10, begin_s=1000.0)
    after = packets(10, begin_s=1012.0, first_pts=77_000_000)  # opened anew: other stamps
    written(tmp_path / "a.mp4", before + after[1:])  # the first keyframe was lost
    _, times_s, _ = read_clip(tmp_path / "a.mp4")
    assert times_s[:10] == pytest.approx([n / 5 for n in range(10)], abs=1e-4)
    assert times_s[10:] == pytest.approx([13.0, 13.2, 13.4, 13.6, 13.8], abs=1e-4)


def test_stamps_that_jump_while_the_packets_come_evenly_are_not_believed(tmp_path: Path) -> None:
    items = packets(10)
    wild = [replace(item, pts=item.pts + 10**9, dts=item.dts + 10**9) if n >= 5 else item for n, item in enumerate(items)]  # type: ignore[operator]
    written(tmp_path / "a.mp4", wild)
    assert read_clip(tmp_path / "a.mp4")[1] == pytest.approx([n / 5 for n in range(10)], abs=1e-3)


@given(st.lists(st.one_of(st.none(), st.integers(-(10**10), 10**10)), min_size=2, max_size=12))
def test_whatever_the_stamps_the_file_plays_in_order(
    tmp_path_factory: pytest.TempPathFactory, stamps: list[int | None]
) -> None:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    items = [
        replace(item, pts=stamp, dts=stamp) for item, stamp in zip(_MANY[: len(stamps)], stamps, strict=True)
    ]  # fmt: skip
    written(path, items)
    found, times_s, _ = read_clip(path)
    assert len(found) == len(items)
    assert times_s == sorted(times_s)
    assert times_s[-1] <= items[-1].at_s - items[0].at_s + 10.0


_MANY = packets(12)


def test_streams_that_differ_do_not_share_a_file(tmp_path: Path) -> None:
    items, other = packets(1), packets(1, size=(96, 48))
    with (tmp_path / "a.mp4").open("wb") as file:
        clip = ClipFile(file, items[0].format)
        clip.add(items[0])
        assert clip.takes(packets(1)[0])
        assert not clip.takes(other[0])
        clip.close()


@pytest.mark.parametrize("at", [6, 14, 19])
def test_a_kill_leaves_what_plays_up_to_the_last_whole_group(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a.mp4"
    file = path.open("wb")
    clip = ClipFile(file, _FORMAT)
    for item in packets(20)[:at]:
        clip.add(item)
    file.flush()
    (tmp_path / "killed.mp4").write_bytes(path.read_bytes())
    played = whole_part(tmp_path / "killed.mp4")
    assert played is not None
    assert played[0] == "h264"
    assert len(decoded(tmp_path / "killed.mp4")) == 5 * ((at - 1) // 5)
    file.close()


@given(st.floats(0.0, 1.0))
def test_wherever_a_full_disk_cuts_a_clip_what_is_left_plays(tmp_path_factory: pytest.TempPathFactory, part: float) -> None:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    path.write_bytes(_UNFINISHED[: round(part * len(_UNFINISHED))])
    played = whole_part(path)
    if played is None:
        assert part < 0.8  # not one whole group
        return
    count = len(decoded(path))
    assert count in (5, 10, 15)
    assert played[1] == pytest.approx((count - 1) / 5, abs=1e-3)


def _unfinished() -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        clip = ClipFile(file, _FORMAT)  # type: ignore[arg-type]
        for item in packets(19):
            clip.add(item)
        file.flush()
        return Path(file.name).read_bytes()


_UNFINISHED = _unfinished()


def test_a_finished_clip_is_not_cut(tmp_path: Path) -> None:
    written(tmp_path / "a.mp4", packets(20))
    before = (tmp_path / "a.mp4").read_bytes()
    assert whole_part(tmp_path / "a.mp4") is not None
    assert (tmp_path / "a.mp4").read_bytes() == before


@pytest.mark.parametrize("data", [b"", b"nonsense" * 100, b"\0\0\0\x20ftypisom"])
def test_what_is_no_clip_has_no_whole_part(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(data)
    assert whole_part(path) is None


def test_motion_jpeg_goes_into_matroska_as_it_is(tmp_path: Path) -> None:
    assert (suffix_of("mjpeg"), suffix_of("h264")) == (".mkv", ".mp4")
    context = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt = 64, 48, "yuvj420p"  # type: ignore[attr-defined]
    context.time_base = _FORMAT.time_base
    about = replace(_FORMAT, codec="mjpeg")
    items = []
    for n in range(5):
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * n, np.uint8), format="rgb24").reformat(format="yuvj420p")
        frame.pts = 18_000 * n
        data = b"".join(bytes(p) for p in context.encode(frame))  # type: ignore[attr-defined]
        items.append(Coded(data=data, keyframe=True, at_s=n / 5, at_utc=UTC, format=about, pts=18_000 * n, dts=18_000 * n))
    written(tmp_path / "a.mkv", items)
    found, times_s, _ = read_clip(tmp_path / "a.mkv")
    assert found == [item.data for item in items]
    assert times_s == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8], abs=2e-3)


def test_packets_of_a_video_file_come_as_a_camera_sends_them(tmp_path: Path) -> None:
    source = tmp_path / "source.mp4"
    write_video(source, [np.full((48, 64, 3), 20 * n, np.uint8) for n in range(12)], fps=6)
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        tap = Tap(stream)
        coded = [tap.coded(p, (float(p.pts * p.time_base), UTC)) for p in container.demux(stream) if p.size]
    assert coded[0].data.startswith(b"\0\0\0\1")
    assert coded[0].keyframe
    written(tmp_path / "a.mp4", coded)
    assert len(decoded(tmp_path / "a.mp4")) == 12


# --- masks ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.floats(1.0, 30.0))
def test_no_picture_of_a_masked_clip_shows_what_is_behind_the_mask(
    tmp_path_factory: pytest.TempPathFactory, count: int, fps: float
) -> None:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    items = _BRIGHT[:count]
    with path.open("wb") as file:
        clip = MaskedClip(file, items[0].format, [LEFT], fps=fps)
        for item in items:
            clip.add(item)
        facts = clip.close()
    assert facts is not None
    images = decoded(path)
    assert len(images) == facts.pictures
    for image in images:
        assert image[:, :28].max() < 40  # the encoder rounds a little at the edge
        assert image[:, 40:].min() > 120
    assert len(images) <= 1 + (items[-1].at_s - items[0].at_s) * (fps + 1) / (1 - 0.3)


_BRIGHT = packets(30, grey=200)


def test_a_masked_clip_has_the_times_of_what_it_shows(tmp_path: Path) -> None:
    with (tmp_path / "a.mp4").open("wb") as file:
        clip = MaskedClip(file, _FORMAT, [LEFT], fps=2.5)
        for item in packets(20):
            clip.add(item)
        facts = clip.close()
    assert facts is not None
    assert (facts.codec, facts.began_utc) == ("h264", UTC + 1000.0)
    assert read_clip(tmp_path / "a.mp4")[1] == pytest.approx([0.4 * n for n in range(10)], abs=1e-3)


def test_a_masked_clip_of_pictures_sent_out_of_order_moves_on_evenly(tmp_path: Path) -> None:
    """Three B pictures in a row: what others refer to is sent first and shown last."""
    source = tmp_path / "b.mp4"
    with av.open(str(source), "w") as made:
        stream = made.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.options = {"preset": "fast", "x264-params": "bframes=3:b-adapt=0:keyint=15"}
        for n in range(30):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 8 * n, np.uint8), format="rgb24")))
        made.mux(stream.encode(None))
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        tap = Tap(stream)
        items = [
            tap.coded(packet, (n / 10, UTC + n / 10)) for n, packet in enumerate(p for p in container.demux(stream) if p.size)
        ]
    with (tmp_path / "a.mp4").open("wb") as file:
        clip = MaskedClip(file, items[0].format, [LEFT], fps=10.0)
        for item in items:
            clip.add(item)
        clip.close()
    assert read_clip(tmp_path / "a.mp4")[1] == pytest.approx(
        [n / 10 for n in range(len(decoded(tmp_path / "a.mp4")))], abs=1e-3
    )
    assert len(decoded(tmp_path / "a.mp4")) >= 26


def test_a_masked_clip_without_masks_cannot_be_made(tmp_path: Path) -> None:
    with (tmp_path / "a.mp4").open("wb") as file, pytest.raises(ValueError, match="masks"):
        MaskedClip(file, _FORMAT, [], fps=5.0)


def test_damaged_packets_cost_a_masked_clip_some_pictures_and_nothing_else(tmp_path: Path) -> None:
    items = packets(20)
    damaged = [replace(item, data=b"\xff" * 40) if n in (2, 3, 11) else item for n, item in enumerate(items)]
    with (tmp_path / "a.mp4").open("wb") as file:
        clip = MaskedClip(file, _FORMAT, [LEFT], fps=5.0)
        for item in damaged:
            clip.add(item)
        facts = clip.close()
    assert facts is not None
    assert facts.pictures >= 10
