"""Pictures out of RTP packets: as they were coded, and as soon as their last packet is here. All streams are real ones, coded here."""

from __future__ import annotations

import io
from typing import cast

import av
import av.error
import pytest
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from hypothesis import given
from hypothesis import strategies as st

from streams import depacketise, rtp
from streams.depacketise import START, Depacketiser, Unit, Unsuited
from tests.support.rtp_streams import TICKS, Coded, coded, expected_levels, levels, marked, of_one_payload, sent


def fed(packets: list[bytes], *, codec: str = "h264", into: Depacketiser | None = None) -> list[Unit]:
    made = into or Depacketiser(codec, 96)
    return [unit for packet in packets for unit in made.feed(packet)]


def flat(packets: list[list[bytes]]) -> list[bytes]:
    return [packet for unit in packets for packet in unit]


def shown(units: list[Unit], codec: str = "h264") -> list[list[int]]:
    """The levels of every picture that a decoder makes of them."""
    decoder = cast(VideoCodecContext, av.CodecContext.create(codec, "r"))
    decoder.thread_count = 1
    frames = []
    for unit in units:
        try:
            frames += decoder.decode(Packet(unit.data))
        except av.error.FFmpegError:
            continue
    return [levels(frame) for frame in [*frames, *decoder.decode(None)]]


nals = rtp.split_annexb


STREAMS = {
    "one slice": ("h264", {}),
    "four slices": ("h264", {"slices": "4"}),
    "with delimiters": ("h264", {"aud": "1"}),
    "interlaced": ("h264", {"tff": "1"}),
    "without CABAC": ("h264", {"cabac": "0"}),
    "H.265": ("hevc", {}),
}


@pytest.mark.parametrize(("codec", "options"), [*STREAMS.values(), ("hevc", {"slices": "3"})])
def test_a_picture_is_there_when_its_last_packet_is(codec: str, options: dict[str, str]) -> None:
    units = coded(12, codec=codec, **options)
    made = Depacketiser(codec, 96)
    for unit, packets in zip(units, sent(units, codec=codec), strict=True):
        *before, last = packets
        assert fed(before, into=made) == [], "not before"
        (got,) = made.feed(last)
        assert nals(got.data) == nals(unit.data)
        assert got.keyframe == unit.keyframe
        assert got.ticks == unit.ticks, "timestamps wrap on the way, ticks do not"
    assert made.lost == 0


@pytest.mark.parametrize("name", STREAMS)
def test_every_picture_can_be_decoded_at_once(name: str) -> None:
    codec, options = STREAMS[name]
    units = fed(flat(sent(coded(12, codec=codec, **options), codec=codec)), codec=codec)
    assert shown(units, codec) == [expected_levels(index) for index in range(12)]


@pytest.mark.parametrize("name", STREAMS)
def test_without_markers_the_next_timestamp_ends_a_picture(name: str) -> None:
    codec, options = STREAMS[name]
    units = coded(6, codec=codec, **options)
    packets = [[marked(packet, marker=False) for packet in unit] for unit in sent(units, codec=codec)]
    made = Depacketiser(codec, 96)
    assert fed(packets[0], into=made) == []
    (first, *rest) = fed(flat(packets[1:]), into=made)
    assert [(one.keyframe, one.ticks) for one in (first, *rest)] == [(unit.keyframe, unit.ticks) for unit in units[:-1]]
    assert nals(first.data) == nals(units[0].data)


def test_a_camera_that_marks_every_slice_costs_one_picture() -> None:
    units = coded(8, slices="4")
    packets = [[marked(packet, marker=True) for packet in unit] for unit in sent(units)]
    got = fed(flat(packets))
    whole = [nals(unit.data) for unit in units]
    assert [nals(unit.data) for unit in got[-6:]] == whole[1:-1], "from the second one on by timestamps"
    assert sum((nals(unit.data) for unit in got[:-6]), []) == whole[0], "nothing is lost of the first"


def test_markers_on_parameter_sets_mean_nothing() -> None:
    units = coded(3, keyframe_every=1)
    made, got, seq = Depacketiser("h264", 96), [], 0
    for unit in units:
        for nal in rtp.split_annexb(unit.data):
            for payload in rtp.payloads(nal):
                got += made.feed(
                    of_one_payload(payload, seq=seq, stamp=unit.ticks, marker=rtp.nal_type(nal) != 5 or payload[1] & 0x40 > 0)
                )
                seq += 1
    assert [nals(unit.data) for unit in got] == [nals(unit.data) for unit in units]


def test_parameter_sets_with_a_timestamp_of_their_own_go_with_the_next_picture() -> None:
    (unit,) = coded(1)
    *sets, idr = [nal for nal in rtp.split_annexb(unit.data) if rtp.nal_type(nal) != 6]
    packets = [of_one_payload(nal, seq=n, stamp=100 + n, marker=True) for n, nal in enumerate(sets)]
    packets += [of_one_payload(part, seq=len(sets) + n, stamp=9000, marker=False) for n, part in enumerate(rtp.payloads(idr))]
    packets[-1] = marked(packets[-1], marker=True)
    (got,) = fed(packets)
    assert nals(got.data) == [*sets, idr]
    assert got.keyframe


def test_several_units_in_one_packet() -> None:
    (unit,) = coded(1, slices="4", crf="50")
    units = rtp.split_annexb(unit.data)
    payload = bytes([24]) + b"".join(len(nal).to_bytes(2, "big") + nal for nal in units)
    (got,) = fed([of_one_payload(payload, seq=1, stamp=1, marker=True)])
    assert nals(got.data) == units


def test_several_units_in_one_packet_of_h265() -> None:
    (unit,) = coded(1, codec="hevc", crf="50")
    units = rtp.split_annexb(unit.data)
    payload = bytes([48 << 1, 1]) + b"".join(len(nal).to_bytes(2, "big") + nal for nal in units)
    (got,) = fed([of_one_payload(payload, seq=1, stamp=1, marker=True)], codec="hevc")
    assert nals(got.data) == units
    assert got.keyframe


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_lost_packet_costs_pictures_up_to_the_next_keyframe(codec: str, which: str) -> None:
    packets = sent(coded(15, codec=codec), codec=codec)
    at = {"first": 0, "middle": len(packets[7]) // 2, "last": len(packets[7]) - 1}[which]
    assert len(packets[7]) > 2, "a picture of several packets"
    made = Depacketiser(codec, 96)
    got = fed(flat([*packets[:7], packets[7][:at] + packets[7][at + 1 :], *packets[8:]]), into=made)
    assert made.lost == 1
    assert [unit.ticks for unit in got if unit.ticks != 7 * TICKS] == [n * TICKS for n in range(15) if n != 7]
    pictures = shown(got, codec)
    assert pictures[:7] == [expected_levels(index) for index in range(7)]
    assert pictures[-5:] == [expected_levels(index) for index in range(10, 15)]


def test_a_lost_part_is_not_glued_over() -> None:
    (unit,) = coded(1)
    (packets,) = sent([unit])
    got = fed([*packets[:-2], packets[-1]])
    assert all(rtp.nal_type(nal) != 5 for one in got for nal in nals(one.data))


def test_pictures_sent_in_another_order_are_left_to_ffmpeg() -> None:
    units = coded(10, bframes="2", b_adapt="0")
    assert [unit.ticks for unit in units] != sorted(unit.ticks for unit in units), "it has B pictures"
    with pytest.raises(Unsuited, match="order"):
        fed(flat(sent(units)))


def test_a_clock_that_is_set_is_no_other_order() -> None:
    units = coded(4)
    late = [Coded(data=unit.data, keyframe=unit.keyframe, ticks=unit.ticks + 10**9 * (n > 1)) for n, unit in enumerate(units)]
    back = [*late[:3], Coded(data=units[3].data, keyframe=False, ticks=0)]
    got = fed(flat(sent(back)))
    assert [nals(unit.data) for unit in got] == [nals(unit.data) for unit in units]


def test_timestamps_that_stand_still_are_left_to_ffmpeg() -> None:
    units = [Coded(data=unit.data, keyframe=unit.keyframe, ticks=0) for unit in coded(6)]
    with pytest.raises(Unsuited, match="still"):
        fed(flat(sent(units)))


def test_both_fields_of_a_picture_stay_together() -> None:
    # What a camera sends that codes fields one by one: two pictures of one timestamp. (x264 codes them together, so these are frames.)
    units = coded(8)
    pairs = [Coded(data=unit.data, keyframe=unit.keyframe, ticks=(n // 2) * TICKS) for n, unit in enumerate(units)]
    got = fed(flat(sent(pairs)))
    assert [unit.ticks for unit in got[-2:]] == [TICKS, 2 * TICKS]
    assert nals(got[-1].data) == nals(units[4].data) + nals(units[5].data)


def keyframes_of_ffmpeg(units: list[Coded], codec: str) -> list[bool]:
    with av.open(io.BytesIO(b"".join(unit.data for unit in units)), format=codec) as container:
        return [packet.is_keyframe for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize(
    ("codec", "options"),
    [("h264", {}), ("h264", {"intra_refresh": "1"}), ("h264", {"open_gop": "1"}), ("hevc", {}), ("hevc", {"open_gop": "1"})],
)
def test_keyframes_are_those_of_ffmpegs_parser(codec: str, options: dict[str, str]) -> None:
    units = coded(16, codec=codec, **options)
    got = fed(flat(sent(units, codec=codec)), codec=codec)
    assert [unit.keyframe for unit in got] == keyframes_of_ffmpeg(units, codec)
    assert any(unit.keyframe for unit in got)


def test_other_payloads_padding_extensions_and_sources() -> None:
    (unit,) = coded(1, crf="50", slices="1")
    nal = rtp.split_annexb(unit.data)[-1]
    plain = of_one_payload(nal[:900], seq=1, stamp=1, marker=True)
    padded = bytes([plain[0] | 0x20]) + plain[1:] + bytes([0, 0, 3])
    extended = bytes([plain[0] | 0x10]) + plain[1:12] + b"\xbe\xde\x00\x01" + bytes(4) + plain[12:]
    with_sources = bytes([plain[0] | 0x02]) + plain[1:12] + bytes(8) + plain[12:]
    for packet in (plain, padded, extended, with_sources):
        (got,) = fed([packet])
        assert got.data == START + nal[:900]
    assert fed([of_one_payload(nal, seq=1, stamp=1, marker=True, payload_type=97)]) == []
    assert fed([b"", plain[:11], b"\x40" + plain[1:]]) == []


def test_what_never_ends_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depacketise, "UNIT_BYTES", 10_000)
    made = Depacketiser("h264", 96)
    for seq in range(100):
        made.feed(of_one_payload(b"\x41\x00" + bytes(1000), seq=seq, stamp=1, marker=False))
    assert sum(map(len, made._parts)) <= 10_000
    endless = [b"\x7c" + bytes([0x85 if seq == 0 else 0x05]) + b"\x88" * 1000 for seq in range(100)]
    for seq, payload in enumerate(endless):
        made.feed(of_one_payload(payload, seq=100 + seq, stamp=2, marker=False))
    assert sum(map(len, made._fragment or [])) <= 11_000


@given(packets=st.lists(st.binary(max_size=60), max_size=20), codec=st.sampled_from(["h264", "hevc"]))
def test_rubbish_is_borne(packets: list[bytes], codec: str) -> None:
    made = Depacketiser(codec, 96)
    for seq, packet in enumerate(packets):
        try:
            units = made.feed(of_one_payload(packet, seq=seq, stamp=seq // 3, marker=seq % 3 == 2)) + made.feed(packet)
        except Unsuited:
            return
        assert all(unit.data.startswith(START) for unit in units)


def test_only_codecs_that_it_knows() -> None:
    with pytest.raises(ValueError, match="vp8"):
        Depacketiser("vp8", 96)
