"""`streams.motion`: what moves in rendered scenes, on a real video with ground truth, and in anything that a decoder may hand over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.motion import Motion, MotionOptions, joined, no_regions
from streams.rendered.conditions import Schedule
from streams.rendered.scene import RenderedScene
from tests.support.movement import common_px, covered, walkers_found

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
PETS = DATA / "videos" / "pets09_s2l1_view1.mp4"
FPS = 5.0


def board(at: int = -1, *, size_px: int = 24, light: int = 0) -> np.ndarray:
    """A textured still picture, 180x320, with a bright square at column `at` (-1: none)."""
    rng = np.random.default_rng(5)
    image = np.clip(rng.integers(60, 120, size=(180, 320, 3)) + light, 0, 255).astype(np.uint8)
    if at >= 0:
        image[80 : 80 + size_px, at : at + size_px] = (250, 240, 20)
    return image


def watched(motion: Motion, frames: int = 20, *, start_s: float = 0.0, fps: float = FPS) -> float:
    """Shows the still board `frames` times; the time of the next frame."""
    for i in range(frames):
        motion.find(board(), at_s=start_s + i / fps)
    return start_s + frames / fps


@pytest.mark.parametrize(("kind", "recall_min"), [("street", 0.7), ("hall", 0.65), ("yard", 0.35)])
def test_the_walkers_and_cars_of_a_rendered_scene(kind: str, recall_min: float) -> None:
    scene, motion = RenderedScene(kind, 101), Motion()
    asked = found = told = right = 0
    for i in range(100):
        image, truth = scene.render(i / FPS)
        regions = motion.find(image, at_s=i / FPS)
        if i < 15:
            continue
        asked, found = asked + len(truth), found + covered(truth.xyxy, regions)
        told, right = told + len(regions), right + int((common_px(regions, truth.xyxy) > 0).any(axis=1).sum())
    assert asked > 150
    assert found / asked >= recall_min, f"{found} of {asked} figures lie in a region"
    assert right / told >= 0.85, f"{right} of {told} regions hold a figure"


def test_a_square_that_moves_is_one_region_around_it() -> None:
    motion = Motion()
    now_s = watched(motion)
    for step, at in enumerate(range(20, 200, 12)):
        (region,) = motion.find(board(at), at_s=now_s + step / FPS)
        assert np.abs(region - (at, 80, at + 24, 104)).max() <= 4, region


def test_nothing_moves_in_a_still_picture_nor_while_the_background_is_learnt() -> None:
    motion = Motion()
    options = motion.options
    for i in range(30):
        image = board(10 * i) if i < options.warmup_frames else board()
        assert len(motion.find(image, at_s=100 + i / FPS)) == 0 or i >= options.warmup_frames
    assert len(motion.find(board(), at_s=100 + 30 / FPS)) == 0


def test_what_stops_is_background_after_a_while_however_often_one_looks() -> None:
    for fps in (2.0, 8.0):
        motion = Motion(MotionOptions(memory_s=30))
        now_s = watched(motion, round(30 * fps), fps=fps)
        gone_after = [at_s for i in range(round(10 * fps)) if len(motion.find(board(100), at_s=now_s + (at_s := i / fps)))]
        assert 1.5 < max(gone_after) < 6, f"at {fps} frames/s it moved for {max(gone_after)} s"


def test_a_shadow_is_no_object() -> None:
    motion = Motion()
    now_s = watched(motion)
    shadow = board()
    shadow[60:120, 80:160] = (shadow[60:120, 80:160] * 0.7).astype(np.uint8)
    assert len(motion.find(shadow, at_s=now_s)) == 0


def test_a_lamp_that_goes_out_is_learnt_anew_and_objects_are_seen_again() -> None:
    motion = Motion()
    now_s = watched(motion)
    dark_s = [now_s + i / FPS for i in range(30)]
    assert len(motion.find(board(light=-50), at_s=dark_s[0])) == 0, "no giant box"
    assert motion.relearnt == 1
    assert all(len(motion.find(board(light=-50), at_s=at_s)) == 0 for at_s in dark_s[1:-1])
    assert motion.relearnt == 1
    (region,) = motion.find(board(100, light=-50), at_s=dark_s[-1])
    assert np.abs(region - (100, 80, 124, 104)).max() <= 4


def test_dusk_that_falls_gradually_over_a_street_does_not_flood_it_with_regions() -> None:
    scene, motion = RenderedScene("street", 101, schedule=Schedule.of((0, "day"), (10, "day"), (25, "night"))), Motion()
    counts = [len(motion.find(scene.render(i / FPS)[0], at_s=i / FPS)) for i in range(150)]
    assert np.mean(counts) < 6
    assert max(counts) < 15
    assert motion.relearnt <= 2


def test_a_long_gap_begins_anew_and_so_does_time_that_runs_backwards() -> None:
    for later_s in (60.0, -60.0):
        motion = Motion()
        now_s = watched(motion)
        assert len(motion.find(board(100), at_s=now_s)) == 1
        assert len(motion.find(board(60), at_s=now_s + later_s)) == 0
        now_s = watched(motion, start_s=now_s + later_s + 0.2)
        assert len(motion.find(board(100), at_s=now_s)) == 1


def test_a_camera_that_is_watched_seldom_has_no_gap() -> None:
    for fps in (0.125, 0.02):
        motion = Motion(MotionOptions(gap_s=10))
        now_s = watched(motion, start_s=1e6, fps=fps)
        assert len(motion.find(board(100), at_s=now_s)) == 1


def test_another_size_begins_anew_a_larger_picture_of_the_same_shape_does_not() -> None:
    motion = Motion()
    now_s = watched(motion)
    large = board(100).repeat(2, axis=0).repeat(2, axis=1)
    (region,) = motion.find(large, at_s=now_s)
    assert np.abs(region - (200, 160, 248, 208)).max() <= 8, "pixels of the frame that was given"
    assert len(motion.find(board(100)[:, :200], at_s=now_s + 0.2)) == 0


def noisy_scene(kind: str, frames: int) -> list[np.ndarray]:
    """A rendered scene as a cheap camera sees it."""
    scene, rng = RenderedScene(kind, 101), np.random.default_rng(1)
    images = [scene.render(i / FPS)[0] for i in range(frames)]
    return [np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8) for image in images]


@pytest.mark.parametrize(("before_px", "after_px"), [(320, 160), (160, 320), (320, 64)])
def test_what_was_learnt_goes_on_in_a_copy_of_another_size(before_px: int, after_px: int) -> None:
    motion = Motion(MotionOptions(work_px=before_px))
    now_s = watched(motion)
    motion.options = MotionOptions(work_px=after_px)
    (region,) = motion.find(board(100), at_s=now_s)
    assert np.abs(region - (100, 80, 124, 104)).max() <= 4 * 320 / after_px, "the square alone, with the very next frame"
    assert len(motion.find(board(), at_s=now_s + 1 / FPS)) == 0
    assert motion.relearnt == 0


@pytest.mark.parametrize("kind", ["street", "hall"])
@pytest.mark.parametrize(("before_px", "after_px"), [(320, 160), (160, 320)])
def test_another_size_of_the_copy_floods_no_scene_with_regions(kind: str, before_px: int, after_px: int) -> None:
    """Against one that has had that size from the start: about as many regions, from the first frame on."""
    motion, always = Motion(MotionOptions(work_px=before_px)), Motion(MotionOptions(work_px=after_px))
    found: list[int] = []
    wanted: list[int] = []
    for i, image in enumerate(noisy_scene(kind, 48)):
        if i == 40:
            motion.options = MotionOptions(work_px=after_px)
        regions, usual = motion.find(image, at_s=i / FPS), always.find(image, at_s=i / FPS)
        if i >= 40:
            found, wanted = [*found, len(regions)], [*wanted, len(usual)]
    assert motion.relearnt == 0
    assert min(found) > 0
    assert 0.7 * sum(wanted) <= sum(found) <= 1.5 * sum(wanted), (found, wanted)


def test_frames_that_were_seen_count_in_another_size_too() -> None:
    motion = Motion()
    now_s = watched(motion, frames=6)
    motion.options = MotionOptions(work_px=160)
    assert len(motion.find(board(100), at_s=now_s)) == 0, "the seventh: still learnt"
    motion.find(board(), at_s=now_s + 1 / FPS)
    assert len(motion.find(board(200), at_s=now_s + 2 / FPS)) == 1, "the ninth"


def test_a_picture_that_comes_smaller_goes_on_and_one_of_another_shape_does_not() -> None:
    motion = Motion()
    now_s = watched(motion)
    assert len(motion.find(np.ascontiguousarray(board(100)[::2, ::2]), at_s=now_s)) == 1
    assert len(motion.find(np.ascontiguousarray(board(160)[::2]), at_s=now_s + 1 / FPS)) == 0


def test_a_fork_goes_on_from_what_was_learnt_and_then_its_own_way() -> None:
    motion = Motion()
    now_s = watched(motion)
    twin = motion.fork()
    for one in (motion, twin):
        (region,) = one.find(board(100), at_s=now_s)
        assert np.abs(region - (100, 80, 124, 104)).max() <= 4
    for step in range(1, 300):
        motion.find(board(100), at_s=now_s + step / FPS)
    assert len(motion.find(board(100), at_s=now_s + 60)) == 0, "here the square has become background"
    twin.find(board(), at_s=now_s + 1 / FPS)
    assert len(twin.find(board(100), at_s=now_s + 2 / FPS)) == 1
    assert len(Motion().fork().find(board(100), at_s=0.0)) == 0, "of one that has seen nothing"


def test_reset_forgets_the_background() -> None:
    motion = Motion()
    now_s = watched(motion)
    motion.reset()
    assert len(motion.find(board(100), at_s=now_s)) == 0


def test_the_largest_regions_are_kept_and_the_others_counted() -> None:
    motion = Motion(MotionOptions(max_regions=3, join_px=0))
    now_s = watched(motion)
    image = board()
    for number in range(6):
        image[10 : 18 + 4 * number, 50 * number : 50 * number + 20] = (250, 240, 20)
    regions = motion.find(image, at_s=now_s)
    assert len(regions) == 3
    assert motion.cut == 3
    heights = regions[:, 3] - regions[:, 1]
    assert (np.diff(heights) < 0).all()
    assert heights[0] >= 26


def test_specks_and_sensor_noise_are_too_small() -> None:
    motion = Motion()
    rng = np.random.default_rng(3)
    now_s = 0.0
    for now_s in np.arange(30) / FPS:
        noisy = np.clip(board().astype(int) + rng.normal(0, 3, (180, 320, 3)), 0, 255).astype(np.uint8)
        motion.find(noisy, at_s=float(now_s))
    noisy[50:53, 50:53] = 255
    assert len(motion.find(noisy, at_s=float(now_s) + 0.2)) == 0


def test_two_cameras_alike_give_the_same_bytes() -> None:
    scene = RenderedScene("street", 7)
    first, second = Motion(), Motion()
    for i in range(40):
        image = scene.render(i / FPS)[0]
        assert first.find(image, at_s=i / FPS).tobytes() == second.find(image, at_s=i / FPS).tobytes()


def test_options_that_cannot_be_used_are_refused() -> None:
    for wrong in ({"work_px": 0}, {"memory_s": 0.0}, {"memory_s": float("nan")}, {"max_regions": 0}, {"all_frac": 0.0}):
        with pytest.raises(ValueError, match="not usable"):
            MotionOptions(**wrong)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 700)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    steps_s=st.lists(st.floats(-20, 40), min_size=12, max_size=30),
    max_regions=st.integers(1, 6),
)
def test_whatever_comes_regions_lie_inside_the_picture(
    sizes: list[tuple[int, int]], seed: int, steps_s: list[float], max_regions: int
) -> None:
    rng = np.random.default_rng(seed)
    motion = Motion(MotionOptions(max_regions=max_regions, warmup_frames=2, min_area_frac=0.0, all_frac=0.9))
    now_s = 0.0
    for number, step_s in enumerate(steps_s):
        now_s += step_s
        height, width = sizes[number * len(sizes) // len(steps_s)]
        image = np.full((height, width, 3), 90, np.uint8)
        top, left = rng.integers(0, height), rng.integers(0, width)
        image[top : top + rng.integers(1, height + 1), left : left + rng.integers(1, width + 1)] = rng.integers(0, 256, 3)
        regions = motion.find(image, at_s=now_s)
        assert regions.dtype == np.float32
        assert regions.ndim == 2
        assert regions.shape[1] == 4
        assert len(regions) <= max_regions
        assert (regions[:, :2] >= 0).all()
        assert (regions[:, 2:] <= (width, height)).all()
        assert (regions[:, :2] < regions[:, 2:]).all(), "never empty"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20), st.integers(1, 20)), max_size=14),
    st.integers(0, 5),
)
def test_joined_boxes_lie_apart_and_cover_all(raw: list[tuple[int, int, int, int]], near_px: int) -> None:
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h in raw], np.int64).reshape(-1, 4)
    result = joined(boxes, near_px=near_px)
    for number, box in enumerate(result):
        others = np.delete(result, number, axis=0)
        gap = np.maximum(others[:, :2] - box[2:], box[:2] - others[:, 2:]).max(axis=1)
        assert (gap >= near_px).all(), "two that are left lie apart"
    for box in boxes:
        inside = (result[:, :2] <= box[:2]).all(axis=1) & (result[:, 2:] >= box[2:]).all(axis=1)
        assert inside.sum() == 1, "each box lies in exactly one of the joined"
    assert len(result) <= len(boxes)


def test_boxes_join_over_a_chain() -> None:
    chain = np.array([(0, 0, 10, 10), (30, 0, 40, 10), (11, 0, 29, 10), (80, 80, 90, 90)])
    assert joined(chain, near_px=2).tolist() == [[0, 0, 40, 10], [80, 80, 90, 90]]
    assert len(joined(chain, near_px=0)) == 4
    assert len(joined(no_regions().astype(np.int64), near_px=2)) == 0


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not PETS.is_file(), reason="needs the videos of ../shared/data")
@pytest.mark.parametrize(("every", "recall_min"), [(1, 0.84), (2, 0.82)])
def test_people_on_a_real_path_lie_in_regions(every: int, recall_min: float) -> None:
    """PETS 2009 S2.L1 with its ground truth: the figures stand in docs/tasks.md."""
    found = walkers_found(DATA, every=every)
    print(found)
    assert found.asked > 2000
    assert found.recall >= recall_min
    assert found.precision >= 0.9
