"""Room is made by whole groups, oldest first, and what comes out can be decoded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.buffer import PacketQueue


@dataclass(frozen=True)
class Coded:
    number: int
    keyframe: bool
    size_bytes: int = 1


def queue(max_bytes: int = 10_000, max_packets: int = 100) -> PacketQueue[Coded]:
    return PacketQueue(max_bytes=max_bytes, max_packets=max_packets)


def fill(target: PacketQueue[Coded], pattern: str) -> None:
    """K and P in the order of the pattern, numbered from 0."""
    for number, letter in enumerate(pattern):
        target.put(Coded(number, letter == "K"))


def numbers(target: PacketQueue[Coded]) -> list[int]:
    return [item.number for item in target.take()]


def test_first_in_first_out() -> None:
    target = queue()
    fill(target, "KPPKP")
    assert len(target) == 5
    assert target.size_bytes == 5
    assert target.peek() == Coded(0, True)
    assert target.pop().number == 0
    assert numbers(target) == [1, 2, 3, 4]
    assert (len(target), target.size_bytes, target.dropped) == (0, 0, 0)


def test_nothing_is_kept_before_the_first_keyframe() -> None:
    target = queue()
    fill(target, "PPKP")
    assert numbers(target) == [2, 3]
    assert target.dropped == 2


def test_the_oldest_group_goes_as_a_whole() -> None:
    target = queue(max_packets=5)
    fill(target, "KPPKPP")
    assert target.dropped == 3
    assert numbers(target) == [3, 4, 5]


def test_the_rest_of_a_group_in_decoding_goes_first() -> None:
    target = queue(max_packets=4)
    fill(target, "KPP")
    target.pop()
    for number, keyframe in ((3, True), (4, False), (5, False)):
        target.put(Coded(number, keyframe))
    assert numbers(target) == [3, 4, 5]
    assert target.dropped == 2


def test_a_group_too_large_is_refused_to_its_end() -> None:
    target = queue(max_packets=3)
    fill(target, "KPPPPPKP")
    assert numbers(target) == [6, 7]
    assert target.dropped == 6


def test_bytes_are_bounded_too() -> None:
    target = queue(max_bytes=100)
    target.put(Coded(0, True, 60))
    target.put(Coded(1, False, 30))
    assert target.fits(Coded(2, False, 10))
    assert not target.fits(Coded(2, True, 11))
    target.put(Coded(2, True, 11))
    assert (target.size_bytes, target.dropped) == (11, 2)
    target.put(Coded(3, True, 101))
    assert (len(target), target.size_bytes) == (0, 0)


def test_half_empty_is_half_of_both_bounds() -> None:
    target = queue(max_bytes=100, max_packets=4)
    assert target.half_empty()
    target.put(Coded(0, True, 50))
    assert target.half_empty()
    target.put(Coded(1, False, 1))
    assert not target.half_empty()
    target = queue(max_bytes=100, max_packets=4)
    fill(target, "KPP")
    assert not target.half_empty()
    target.pop()
    assert target.half_empty()


def test_skipping_to_the_newest_keyframe_is_no_loss() -> None:
    target = queue()
    fill(target, "KPKPKPP")
    assert target.skip_to_newest() == 4
    assert target.dropped == 0
    assert numbers(target) == [4, 5, 6]
    fill(target, "KP")
    target.pop()
    assert target.skip_to_newest() == 0, "without a keyframe the rest of a group stays: the decoder is in the middle of it"
    assert numbers(target) == [1]


def test_after_clearing_a_keyframe_comes_first() -> None:
    target = queue()
    fill(target, "KPP")
    target.clear()
    assert len(target) == 0
    target.put(Coded(9, False))
    assert len(target) == 0


@pytest.mark.parametrize(("max_bytes", "max_packets"), [(0, 5), (5, 0)])
def test_a_queue_without_room_is_refused(max_bytes: int, max_packets: int) -> None:
    with pytest.raises(ValueError, match="needs room"):
        queue(max_bytes, max_packets)


steps = st.lists(st.tuples(st.sampled_from("KPPPtps"), st.integers(1, 40)), max_size=80)


@given(steps=steps, max_bytes=st.integers(20, 200), max_packets=st.integers(1, 12))
def test_bounds_hold_and_every_packet_that_comes_out_can_be_decoded(
    steps: list[tuple[str, int]], max_bytes: int, max_packets: int
) -> None:
    target = queue(max_bytes, max_packets)
    put = skipped = 0
    out: list[Coded] = []
    for number, (step, size) in enumerate(steps):
        match step:
            case "t":
                out += target.take()
            case "p" if len(target):
                out.append(target.pop())
            case "s":
                skipped += target.skip_to_newest()
            case "K" | "P":
                target.put(Coded(number, step == "K", size))
                put += 1
        waiting = len(target)
        assert waiting <= max_packets
        assert 0 <= target.size_bytes <= max_bytes
        assert put == len(out) + waiting + target.dropped + skipped, "no packet is lost without being counted"
    coded = [number for number, (step, _) in enumerate(steps) if step in "KP"]
    for before, item in zip([None, *out], out, strict=False):
        # What is no keyframe must follow, in the stream, the very packet that came out before it.
        assert item.keyframe or (before is not None and coded.index(item.number) == coded.index(before.number) + 1)
