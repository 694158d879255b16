"""What the demonstration of the fleet is played with: its configurations hold, and its rush hour is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.load import load_config
from scheduler.fleet.grants import Division, parts_of
from scheduler.registry import make_policy
from scheduler.types import KnobProfile, Plan, Snapshot, StreamView
from scripts.fleet_scenes import stage

#: F1 of each camera of the rush hour at every frame, every 2nd, 3rd, 4th, 6th, 8th, as `driftbox profile` gave it.
MEASURED = {
    "gate": (0.94, 0.83, 0.63, 0.53, 0.41, 0.36),
    "dock": (0.96, 0.91, 0.79, 0.73, 0.65, 0.61),
    "kerb": (0.95, 0.88, 0.66, 0.53, 0.42, 0.35),
    "ramp": (0.95, 0.85, 0.63, 0.51, 0.40, 0.32),
}
STRIDES = (1, 2, 3, 4, 6, 8)
#: Of the model on labels by day, and acme's later goal (`fleet_scenes/shares.py`).
QUALITY, GOAL = 0.9, 0.7


@pytest.mark.parametrize("cams", [stage.USUAL, stage.RUSH])
def test_every_box_has_a_valid_configuration(cams: dict[str, tuple[stage.Cam, ...]], tmp_path: Path) -> None:
    settings = stage.BoxSettings(capacity_pct=14, window=stage.RUSH_WINDOW) if cams is stage.RUSH else stage.BoxSettings()
    for box, some in cams.items():
        addresses = {cam: f"rtsp://127.0.0.1:8554/{box}-{cam.id}" for cam in some}
        path = tmp_path / f"{box}.yaml"
        path.write_text(stage.config_text(box, tmp_path / box, addresses, settings), encoding="utf-8")
        config = load_config(path)
        assert [(c.id, c.customer, c.fps) for c in config.cameras] == [(c.id, c.customer, c.fps) for c in some]
        assert config.fleet.consent


def planned(acme_pct: float, capacity_pct: int, need_pct: float) -> Plan:
    """How north is divided when acme is sure of so much. need_pct: of every frame of a camera, as the machine really needs it."""
    views = tuple(
        StreamView(
            id=cam.id, quality=QUALITY,
            knobs=tuple(
                KnobProfile(name=f"1/{n}", demand_pct=1.15 * need_pct / n, quality_frac=f1 / MEASURED[cam.id][0], fps=cam.fps / n)
                for n, f1 in zip(STRIDES, MEASURED[cam.id], strict=True)
            ),
        )
        for cam in stage.RUSH["north"]
    )  # fmt: skip
    snapshot = Snapshot(remaining_s=100.0, capacity_pct=capacity_pct, quantum_pct=1, min_quality=0.4, streams=views)
    division = Division(
        shares_pct={"acme": acme_pct, "bolt": capacity_pct - acme_pct},
        customers={cam.id: cam.customer for cam in stage.RUSH["north"]},
    )
    parts = parts_of(snapshot, make_policy("lookahead"), division)
    return next(part.plan for part in parts if part.customer == "acme")


@pytest.mark.parametrize("real_need_pct", [5.0, 6.3, 8.0])
def test_in_the_rush_hour_acme_misses_its_goal_with_a_small_share_and_meets_it_with_a_larger_one(real_need_pct: float) -> None:
    """Also where a frame costs a fifth less or a quarter more than while it was profiled."""
    capacity_pct = round(stage.FEW_CAMERAS * 6.3)
    assert planned(1.0, capacity_pct, real_need_pct).expected_quality < GOAL - 0.05
    assert planned(capacity_pct / 2, capacity_pct, real_need_pct).expected_quality > GOAL + 0.05


@pytest.mark.parametrize(("capacity_pct", "times"), [(4, 4), (5, 3), (8, 2), (13, 2), (14, 1), (40, 1)])
def test_on_a_quick_machine_the_rush_hour_is_quicker_and_north_is_large_enough_to_be_divided(
    capacity_pct: int, times: int, tmp_path: Path
) -> None:
    assert stage.times_for(capacity_pct) == times
    some = stage.hurried(stage.RUSH, times)["north"]
    assert [cam.pace / cam.fps for cam in some] == [
        cam.pace / cam.fps for cam in stage.RUSH["north"]
    ]  # a frame moves as far as before
    settings = stage.BoxSettings(capacity_pct=capacity_pct * times, window=stage.RUSH_WINDOW)
    path = tmp_path / "north.yaml"
    addresses = {cam: f"rtsp://127.0.0.1:8554/north-{cam.id}" for cam in some}
    path.write_text(stage.config_text("north", tmp_path / "north", addresses, settings), encoding="utf-8")
    assert load_config(path).gpus.capacity_pct >= stage.ENOUGH_PCT
