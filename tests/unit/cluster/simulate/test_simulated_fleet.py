"""The fleet in virtual time: its truth, its boxes, whole runs small enough for every day."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.cli import fleet_app
from cluster.controller.round import iso_utc
from cluster.simulate.box import SimulatedBox
from cluster.simulate.cli import parsed_partition
from cluster.simulate.controller import SimulatedController
from cluster.simulate.outbox import SimulatedOutbox
from cluster.simulate.result import Result
from cluster.simulate.run import BEGAN_UTC_S, simulate
from cluster.simulate.scenario import Scenario
from cluster.simulate.world import LOAD, World, divided, loads_for
from configs.errors import UsageError
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.types import BoxReport, CameraKey, CameraOrder, Desired, ShareOrder

SMALL = Scenario(boxes=10, customers=4, hours=3.0, cut_at_h=1.2, cut_h=1.2, cut_frac=0.5, deaths=1, dead_h=0.5, report_s=120.0)


@cache
def small() -> Result:
    return simulate(SMALL)


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_cut_off_boxes_go_on_and_nothing_is_lost() -> None:
    result = small()
    assert result.cut_box_h > 5
    assert (result.changed_alone, result.cut_unwatched_s) == (0, 0)
    assert result.events > 500
    assert (result.events_lost, result.events_waiting) == (0, 0)
    assert all(target.ok for target in result.targets() if target.what != "fleet view" and target.ok is not None)


def test_cameras_are_watched_but_for_their_dead_boxes() -> None:
    result = small()
    dead_frac = SMALL.deaths * SMALL.dead_h / (SMALL.boxes * SMALL.hours)
    assert 1 - dead_frac * 1.1 <= result.watched_frac < 1
    assert result.unwatched_alive_frac < 0.002


def test_the_same_seed_gives_the_same_fleet() -> None:
    times = {"wall_s", "cores", "cores_here", "cpu_ms", "behind_s"}
    brief = replace(SMALL, boxes=6, hours=1.5, cut_h=0.2, cut_at_h=1.1)
    one, two = (asdict(simulate(brief)) for _ in range(2))
    assert {k: v for k, v in one.items() if k not in times} == {k: v for k, v in two.items() if k not in times}
    other = asdict(simulate(replace(brief, seed=1)))
    assert other["met_frac"] != one["met_frac"] or other["events"] != one["events"]


def test_an_outbox_that_is_too_small_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure can fail: with room for two messages, a partition loses events, and the table says so."""
    monkeypatch.setattr("cluster.simulate.box.SimulatedOutbox", lambda: SimulatedOutbox(messages_max=2))
    result = simulate(replace(SMALL, boxes=5, hours=2.5, cut_h=0.5, cut_frac=1.0))
    assert result.events_lost > 0
    assert [t.ok for t in result.targets() if t.what == "QoS 1 events"] == [False]


def test_the_command_prints_the_table_and_json() -> None:
    args = ["simulate", "--boxes", "5", "--customers", "2", "--hours", "1.3", "--partition", "0.4@1.1+0.1", "--deaths", "0"]
    shown = CliRunner().invoke(fleet_app, args)
    assert shown.exit_code == 0, shown.output
    assert "QoS 1 events" in shown.output
    told = json.loads(CliRunner().invoke(fleet_app, [*args, "--json"]).output)
    assert told["events_lost"] == 0
    assert {target["what"] for target in told["targets"]} > {"fleet view", "QoS 1 events"}


@pytest.mark.parametrize("wrong", [{"boxes": 0}, {"cut_frac": 1.5}, {"hours": 0.0}, {"deaths": 5000}, {"report_s": -1.0}])
def test_scenarios_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Scenario(**wrong)  # type: ignore[arg-type]


def test_how_a_partition_is_written() -> None:
    assert parsed_partition("0.3@1.5+24") == (0.3, 1.5, 24.0)
    assert parsed_partition("none") == (0.0, 0.0, 0.0)
    with pytest.raises(UsageError, match="PART@HOUR"):
        parsed_partition("a lot")


# --- a box ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def box() -> SimulatedBox:
    scenario = replace(SMALL, boxes=2)
    return SimulatedBox("box-0000", World(scenario, loads_for(scenario)), scenario, BEGAN_UTC_S)


def wish(version: int = 1, *, expires_s: float = 1e6, **what: object) -> bytes:
    made = Desired(
        box="box-0000", term=1, version=version, made_utc=iso_utc(BEGAN_UTC_S), expires_utc=iso_utc(BEGAN_UTC_S + expires_s),
        **what,  # type: ignore[arg-type]
    )  # fmt: skip
    return encode(made)


def test_a_box_begins_with_its_own_cameras_and_says_so(box: SimulatedBox) -> None:
    box.run(1, 120.0)
    report = decode(BoxReport, box.report(120.0))
    assert [str(c.camera) for c in report.cameras] == [f"box-0000/cam-{k}" for k in range(4)]
    assert sum(c.got_pct for c in report.cameras) <= 100.0 + 1e-6


def test_a_box_heeds_the_newest_wish_and_keeps_it_when_it_expires(box: SimulatedBox) -> None:
    customer = next(iter(box.watching.values())).camera.customer
    box.hear(wish(2, shares=(ShareOrder(customer=customer, share_pct=55.0),), expires_s=500.0), 10.0)
    assert box.shares_pct == {customer: 55.0}
    box.hear(wish(1), 20.0)
    box.hear(wish(3, expires_s=30.0), 40.0)
    assert box.shares_pct == {customer: 55.0}, "an old wish, and one that came too late to be begun"
    box.run(9, 9e5)
    assert box.shares_pct == {customer: 55.0}, "long after its end it still holds"


def test_a_box_lets_go_and_takes_on_as_it_is_told(box: SimulatedBox) -> None:
    own, guest = CameraKey(home="box-0000", camera="cam-0"), CameraKey(home="box-0001", camera="cam-1")
    orders = (CameraOrder(camera=own, role="release", term=2), CameraOrder(camera=guest, role="own", term=2))
    box.hear(wish(cameras=orders), 10.0)
    assert own not in box.watching
    assert guest in box.watching
    words = {w.camera: w.stage for w in decode(BoxReport, box.report(20.0)).confirmation.cameras}
    assert words == {own: "released", guest: "owning"}


def test_a_box_that_died_comes_back_with_what_it_remembers(box: SimulatedBox) -> None:
    box.hear(wish(shares=(ShareOrder(customer="c", share_pct=5.0),)), 10.0)
    box.die()
    assert not box.watching
    box.start(99.0)
    assert box.shares_pct == {"c": 5.0}
    report = decode(BoxReport, box.report(100.0))
    assert report.boot == "boot-99"
    assert len(report.cameras) == 4


def test_a_controller_hears_and_wishes() -> None:
    world = World(SMALL, loads_for(SMALL))
    controller = SimulatedController(SMALL, world.customers, BEGAN_UTC_S)
    assert controller.step(0.0) == {}
    assert controller.calls["settle"] == 1


# --- the truth --------------------------------------------------------------------------------------------------------

NEEDS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 80)), min_size=1, max_size=8)
FLOORS = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 120))


@given(NEEDS, FLOORS)
def test_a_box_gives_no_more_than_it_has_and_nobody_more_than_needed(
    needs: list[tuple[str, float]], floors: dict[str, float]
) -> None:
    got = divided(needs, 100.0, floors)
    assert sum(got) <= 100.0 + 1e-6
    assert all(0 <= share <= need + 1e-9 for share, (_, need) in zip(got, needs, strict=True))
    if sum(need for _, need in needs) > 100.0:
        assert sum(got) == pytest.approx(100.0, abs=1e-6), "work-conserving"


def test_a_customer_has_its_floor_under_contention() -> None:
    got = divided([("a", 90.0), ("b", 90.0)], 100.0, {"a": 70.0, "b": 30.0})
    assert got == pytest.approx([70.0, 30.0])
    assert divided([("a", 10.0), ("b", 120.0)], 100.0, {"a": 70.0, "b": 30.0}) == pytest.approx([10.0, 90.0])
    assert divided([("a", 10.0), ("b", 20.0)], 100.0, {}) == [10.0, 20.0]


def test_loads_are_a_day_with_mean_one() -> None:
    loads = loads_for(replace(SMALL, hours=48.0))
    assert loads.shape == (4, SMALL.steps * 16 + 1)
    assert loads.min() >= LOAD[0]
    assert loads.max() <= LOAD[1]
    assert np.all(np.abs(loads.mean(axis=1) - 1) < 0.15)


def test_recorded_loads_are_read(tmp_path: Path) -> None:
    table = tmp_path / "arrivals.csv"
    table.write_text("timestamp,data\n" + "\n".join(f"{k * 1000},{20 + k % 3}" for k in range(2000)) + "\n2000")  # cut off
    loads = loads_for(replace(SMALL, hours=1.0), table)
    assert loads.shape == (4, 31)
    assert np.allclose(loads, 1.0, atol=0.05)


def test_a_table_without_load_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "arrivals.csv"
    table.write_text("timestamp,data\n1,nan\n")
    with pytest.raises(UsageError, match="no load"):
        loads_for(SMALL, table)


def test_quality_rises_with_the_share() -> None:
    world = World(SMALL, loads_for(SMALL))
    (camera, *_) = world.cameras["box-0000"]
    values = [world.quality(camera, part, 0.0) for part in (0.0, 0.25, 0.5, 1.0, 2.0)]
    assert values == sorted(values)
    assert values[1] == pytest.approx(values[3] / 2)
    assert values[3] == values[4]
