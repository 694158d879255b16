"""Reading video files: every frame, in order, and a clear error for what is no video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from configs.errors import StreamError, StreamErrorCode
from streams.encode import write_video
from streams.video import RgbMaker, probe, read_frames, size_for_height, to_rgb

FRAMES = 25


def grey_steps(count: int, height: int = 64, width: int = 96) -> list[np.ndarray]:
    """Frame k is a plain grey of 8 * k, so that a picture tells its own index."""
    return [np.full((height, width, 3), 8 * k, np.uint8) for k in range(count)]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    assert write_video(path, grey_steps(FRAMES), fps=12.5) == FRAMES
    return path


def test_probe_tells_size_rate_length_and_codec(clip: Path) -> None:
    info = probe(clip)
    assert (info.width_px, info.height_px, info.fps, info.frames, info.codec) == (96, 64, 12.5, FRAMES, "h264")
    assert info.duration_s == pytest.approx(2.0)


def test_probe_counts_frames_when_the_container_does_not(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    write_video(path, grey_steps(7), fps=10)
    assert probe(path).frames == 7


def test_every_frame_comes_once_and_in_order(clip: Path) -> None:
    pairs = list(read_frames(clip))
    assert [index for index, _ in pairs] == list(range(FRAMES))
    for index, image in pairs:
        assert image.shape == (64, 96, 3)
        assert image.dtype == np.uint8
        assert abs(float(image.mean()) - 8 * index) < 4


@pytest.mark.parametrize(
    ("every", "start", "stop", "expected"),
    [(10, 0, None, [0, 10, 20]), (1, 22, None, [22, 23, 24]), (5, 3, 14, [3, 8, 13]), (1, 5, 5, []), (1, 90, None, [])],
)
def test_index_is_the_files_own(clip: Path, every: int, start: int, stop: int | None, expected: list[int]) -> None:
    pairs = list(read_frames(clip, every=every, start=start, stop=stop))
    assert [index for index, _ in pairs] == expected
    assert all(abs(float(image.mean()) - 8 * index) < 4 for index, image in pairs)


def test_only_the_frames_that_are_asked_for_become_pictures(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def picture(frame: object, **how: int) -> np.ndarray:
        made.append(1)
        return np.zeros((2, 2, 3), np.uint8)

    monkeypatch.setattr("streams.video.to_rgb", picture)
    found = read_frames(clip, start=3, stop=20, only={1, 3, 11, 19, 22})
    assert [index for index, _ in found] == [3, 11, 19]
    assert len(made) == 3


def test_pictures_are_reduced_in_proportion_and_never_enlarged(clip: Path) -> None:
    assert next(read_frames(clip, height_px=32))[1].shape == (32, 48, 3)
    assert next(read_frames(clip, height_px=1000))[1].shape == (64, 96, 3)


def test_one_scaler_for_all_frames_gives_what_a_scaler_per_frame_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    write_video(tmp_path / "a.mp4", (rng.integers(0, 255, (90, 160, 3), np.uint8) for _ in range(4)), fps=10)
    maker = RgbMaker()
    with av.open(str(tmp_path / "a.mp4")) as container:
        for frame in container.decode(video=0):
            for height_px in (0, 36, 0, 90, 48):  # the height changes from frame to frame
                width, height = size_for_height(160, 90, height_px)
                how = "AREA" if height != 90 else "BILINEAR"
                plain = frame.reformat(width=width, height=height, format="rgb24", interpolation=how).to_ndarray()
                assert (maker.make(frame, height_px=height_px) == plain).all()
                assert (to_rgb(frame, height_px=height_px) == plain).all()


def test_a_picture_is_never_the_decoders_own_memory() -> None:
    frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), 7, np.uint8), format="rgb24")
    to_rgb(frame)[:] = 0
    assert (frame.to_ndarray() == 7).all()


def test_width_stays_in_proportion_and_even() -> None:
    assert size_for_height(1920, 1080, 0) == (1920, 1080)
    assert size_for_height(1920, 1080, 320) == (568, 320)
    assert size_for_height(3, 900, 4) == (2, 4)


@pytest.mark.parametrize("reader", [probe, lambda path: list(read_frames(path))])
@pytest.mark.parametrize(
    ("content", "code"),
    [(None, StreamErrorCode.NOT_FOUND), (b"", StreamErrorCode.CODEC), (b"no video, just words. " * 500, StreamErrorCode.CODEC)],
)
def test_bad_files_are_named_with_a_code(tmp_path: Path, reader: object, content: bytes | None, code: StreamErrorCode) -> None:
    path = tmp_path / "bad.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StreamError) as caught:
        reader(path)  # type: ignore[operator]
    assert caught.value.stream_code is code
    assert "bad.mp4" in str(caught.value)
    assert caught.value.remedy


def test_a_folder_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(StreamError) as caught:
        probe(tmp_path)
    assert caught.value.stream_code is StreamErrorCode.NOT_FOUND


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    import wave

    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    with pytest.raises(StreamError) as caught:
        next(read_frames(path))
    assert caught.value.stream_code is StreamErrorCode.CODEC


def test_a_truncated_file_gives_the_frames_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    rng = np.random.default_rng(5)
    write_video(path, (rng.integers(0, 255, (64, 96, 3), np.uint8) for _ in range(FRAMES)), fps=10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    indexes = [index for index, _ in read_frames(path)]
    assert 0 < len(indexes) < FRAMES
    assert indexes == list(range(len(indexes)))


def test_a_corrupt_middle_costs_frames_but_does_not_end_the_video(tmp_path: Path) -> None:
    path = tmp_path / "clip.ts"
    write_video(path, grey_steps(FRAMES), fps=10, keyframe_s=0.5)
    data = bytearray(path.read_bytes())
    third = len(data) // 3
    data[third : third + 400] = bytes(400)
    path.write_bytes(data)
    means = [float(image.mean()) for _, image in read_frames(path)]
    assert len(means) > FRAMES // 2
    assert abs(means[-1] - 8 * (FRAMES - 1)) < 4


@pytest.mark.parametrize("arguments", [{"every": 0}, {"start": -1}])
def test_a_senseless_range_is_refused_at_once(clip: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="read_frames needs"):
        read_frames(clip, **arguments)
