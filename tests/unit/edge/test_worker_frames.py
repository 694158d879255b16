"""Frames between the box and a job's process, answers as arrays, and what a worker says of its errors. No process is made."""

from __future__ import annotations

import mmap
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import JobError, WeightsError
from edge.gpu.worker import BODY_MAX, HEADER_MAX, Channel, ChannelClosed, Worker, pack, unpack
from scheduler.types import Detections

DTYPES = ("u1", "f4", "i8", "f8", "?")


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    with ours, theirs:
        yield ours, theirs


def array_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    return (np.arange(size) % 120).astype(dtype).reshape(shape)


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), min_size=0, max_size=3)), max_size=5),
    st.sampled_from([None, 4096, 65536]),
    st.dictionaries(st.text(max_size=5).filter(lambda key: key != "arrays"), st.integers() | st.text(max_size=9), max_size=3),
)
def test_what_is_sent_is_what_is_received(
    kinds: list[tuple[str, list[int]]], room: int | None, said: dict[str, int | str]
) -> None:
    """Whether the arrays find room in the shared memory or not."""
    arrays = [array_of(dtype, tuple(shape)) for dtype, shape in kinds]
    shared = None if room is None else mmap.mmap(-1, room)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(5.0)
        Channel(ours, shared).send(said, arrays)
        header, received = Channel(theirs, shared, places=False).receive()
        assert header == said
        assert len(received) == len(arrays)
        for got, sent in zip(received, arrays, strict=True):
            assert got.dtype == sent.dtype
            np.testing.assert_array_equal(got, sent)


def test_a_picture_that_is_no_whole_block_goes_through(link: tuple[socket.socket, socket.socket]) -> None:
    image = np.arange(60 * 80 * 3, dtype=np.uint8).reshape(60, 80, 3)
    shared = mmap.mmap(-1, 1 << 16)
    Channel(link[0], shared).send({}, [image[::2, 1::3], image[:, ::-1]])
    _, (a, b) = Channel(link[1], shared).receive()
    np.testing.assert_array_equal(a, image[::2, 1::3])
    np.testing.assert_array_equal(b, image[:, ::-1])


def test_the_other_side_that_hung_up_is_noticed(link: tuple[socket.socket, socket.socket]) -> None:
    link[1].close()
    with pytest.raises(ChannelClosed):
        Channel(link[0], None).receive()
    with pytest.raises(ChannelClosed):
        Channel(link[0], None).send({"op": "ping"}, [np.zeros(1 << 20)])


def test_half_a_frame_is_the_end_or_a_time_out(link: tuple[socket.socket, socket.socket]) -> None:
    link[0].sendall(struct.pack("<II", 100, 0) + b'{"arr')
    link[1].settimeout(0.05)
    with pytest.raises(TimeoutError):
        Channel(link[1], None).receive()
    link[0].close()
    with pytest.raises(ChannelClosed):
        Channel(link[1], None).receive()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<II", HEADER_MAX + 1, 0),
        struct.pack("<II", 10, BODY_MAX + 1),
        struct.pack("<II", 4, 0) + b"{no}",
        struct.pack("<II", 2, 0) + b"{}",
        struct.pack("<II", 30, 0) + b'{"arrays": [["<f4", [9], -1]]}',
        struct.pack("<II", 29, 0) + b'{"arrays": [["|O", [1], -1]]}',
    ],
)
def test_what_is_no_frame_is_refused(link: tuple[socket.socket, socket.socket], frame: bytes) -> None:
    link[0].sendall(frame)
    with pytest.raises((ValueError, KeyError)):
        Channel(link[1], None).receive()


@given(st.lists(st.integers(0, 4), max_size=6))
def test_answers_of_several_pictures_come_apart_again(counts: list[int]) -> None:
    found = [
        Detections(
            xyxy=np.full((n, 4), number, np.float32), score=np.linspace(1, 0, n, dtype=np.float32), class_id=np.arange(n)
        )
        for number, n in enumerate(counts)
    ]
    sizes, arrays = pack(found)
    assert sizes == counts
    for got, sent in zip(unpack(sizes, arrays), found, strict=True):
        np.testing.assert_array_equal(got.xyxy, sent.xyxy)
        np.testing.assert_array_equal(got.score, sent.score)
        np.testing.assert_array_equal(got.class_id, sent.class_id)


def test_answers_that_do_not_belong_together_are_refused() -> None:
    sizes, arrays = pack([Detections.empty()])
    with pytest.raises(ValueError, match="boxes for"):
        unpack([3], arrays)
    assert unpack(sizes, arrays)[0].xyxy.shape == (0, 4)


class Failing:
    """Raises what it is given."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def predict(self, images: object, *, score_min: float) -> list[Detections]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (WeightsError("gone", subject="w", remedy="look"), {"kind": "weights", "poisoned": False, "remedy": "look"}),
        (JobError("bad", code="no_data"), {"kind": "job", "code": "no_data", "poisoned": False}),
        (RuntimeError("CUDA out of memory"), {"code": "out_of_memory", "poisoned": False}),
        (MemoryError(), {"code": "out_of_memory", "poisoned": False}),
        (RuntimeError("rtsp://user:hunter2@cam/ is no tensor"), {"code": "exception", "poisoned": False}),
        (RuntimeError("CUDA error: unspecified launch failure"), {"poisoned": True}),
    ],
)
def test_a_worker_tells_its_errors_and_ends_only_when_its_device_is_lost(error: Exception, told: dict[str, object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60.0)
        worker = Worker(Channel(theirs, None))
        worker._detector = Failing(error)  # type: ignore[assignment]
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(worker.run()))
        thread.start()
        channel = Channel(ours, None)
        channel.send({"op": "predict", "score_min": 0.2}, [np.zeros((4, 4, 3), np.uint8)])
        said = channel.receive()[0]["error"]
        assert {key: said[key] for key in told} == told
        assert "hunter2" not in said["text"]
        if not told["poisoned"]:
            channel.send({"op": "stop"})
        thread.join(60.0)
        assert codes == [4 if told["poisoned"] else 0]
