"""A box's journal becomes a trace: a virtual box writes one, the converter reads it, the simulator runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import StorageError
from edge.journal import Journal
from edge.simulate.from_journal import trace_of_data_dir
from edge.simulate.source import read_source
from edge.simulate.sweep import Setting, engine_config_of
from scheduler.codec import encode
from scheduler.commands import Command
from scheduler.events import CameraAdded, CameraRemoved, EpochDone, Event, GateDone, KnobsMeasured
from scheduler.sim.driver import VirtualDriver
from scheduler.sim.trace_world import simulate, virtual_box
from scheduler.trace import Trace
from scheduler.types import KnobProfile
from tests.support.traces import one_stream, option, random_trace, window

CONFIG = replace(
    engine_config_of(Setting(min_quality=0.0, calibrate=False, prune=False, react=False)), label_frames=10, gate_frames=4
)


def journalled_box(
    folder: Path, trace: Trace, policy: str = "thief-repeat", *, extra: tuple[Event, ...] = (), until_s: float | None = None
) -> VirtualDriver:
    """Runs a virtual box over the trace and leaves its journal in `folder`/events, as the live box writes it."""
    driver, _, events = virtual_box(trace, policy, CONFIG)
    header = encode(driver.engine.checkpoint())
    driver.run([*events, *extra], trace.windows * trace.window_s if until_s is None else until_s)
    write_journal(folder, header, driver.log)
    return driver


def write_journal(folder: Path, header: str, log: list[tuple[Event, list[Command]]]) -> None:
    journal = Journal(folder / "events")
    journal.start_segment(header)
    for event, commands in log:
        for entry in (event, *commands):
            journal.append(encode(entry))
    journal.close()


def recorded(seed: int = 0) -> Trace:
    """Costs for labels and profiles, predictions of the start."""
    trace = random_trace(seed, streams=3, windows=4)
    streams = []
    for stream in trace.streams:
        windows = tuple(
            w.model_copy(update={"labels": 10, "profile_gpu_s": 1.5, "predicted_start_quality": w.start_quality})
            for w in stream.windows
        )
        streams.append(stream.model_copy(update={"windows": windows}))
    return trace.model_copy(update={"golden_gpu_s": 0.1, "streams": tuple(streams)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "box"


def test_what_a_box_saw_comes_back(folder: Path) -> None:
    trace = recorded()
    driver = journalled_box(folder, trace)
    read = trace_of_data_dir(folder)
    assert (read.policy, read.window_s) == ("thief-repeat", 100.0)
    assert read.golden_gpu_s == pytest.approx(0.1)
    assert read.windows == trace.windows
    gated = {(e.stream, int(e.at_s // 100)): e for e, _ in driver.log if isinstance(e, GateDone)}
    assert len(gated) >= 3, "the box did retrain"
    for stream, original in zip(read.streams, trace.streams, strict=True):
        assert (stream.id, stream.knobs) == (original.id, original.knobs)
        for w, there in zip(stream.windows[1:], original.windows[1:], strict=True):
            # an option that the box did not profile in time is not there; what is there is what was offered
            for o in w.options:
                offered = there.option(o.name)
                assert offered is not None
                assert o.predicted_quality == pytest.approx(offered.predicted_quality)
                assert o.cost_gpu_s == pytest.approx(offered.cost_gpu_s)
                assert o.epochs == offered.epochs
            gate = gated.get((stream.id, w.window))
            done = [o for o in w.options if o.measured_quality is not None]
            assert len(done) == (gate is not None)
            if gate is not None:
                assert (w.start_quality, done[0].measured_quality) == (gate.serving_quality, gate.candidate_quality)
                assert done[0].epoch_quality == pytest.approx(there.option(done[0].name).epoch_quality)  # type: ignore[union-attr]
            assert (w.labels, w.profile_gpu_s) == (10, 1.5 if w.options else 0.0)


def test_a_converted_box_can_be_simulated(folder: Path) -> None:
    trace = recorded(1)
    journalled_box(folder, trace)
    source = read_source(folder)
    assert source.overhead_s is None
    again = {policy: simulate(source.trace, policy, CONFIG) for policy in ("thief-repeat", "no-retrain", "uniform(c0,50)")}
    first = simulate(trace, "thief-repeat", CONFIG)
    assert again["thief-repeat"].mean_quality == pytest.approx(first.mean_quality, abs=0.03)
    assert again["thief-repeat"].retrainings >= first.admitted
    assert again["no-retrain"].retrainings == 0
    assert again == {p: simulate(read_source(folder).trace, p, CONFIG) for p in again}


def test_the_converted_trace_survives_writing(folder: Path) -> None:
    from scheduler.trace import parse_trace

    journalled_box(folder, recorded())
    read = trace_of_data_dir(folder)
    assert parse_trace(read.model_dump_json()) == read


# --- the rules for what nobody measured -------------------------------------------------------------------------------


def test_a_model_that_was_replaced_keeps_its_last_known_quality_but_never_beats_the_new_one(folder: Path) -> None:
    # labels at the begin of a window are of the window before: .7 in window 2, .4 in window 3
    after = (
        window(2, 0.2, start=0.7),
        window(3, 0.1, start=0.4).model_copy(update={"predicted_start_quality": 0.7}),
        window(4, 0.1, start=0.6).model_copy(update={"predicted_start_quality": 0.4}),
    )
    journalled_box(folder, one_stream(window(0, 0.6), window(1, 0.5, option("x", 0.8)), *after))
    read = trace_of_data_dir(folder).streams[0].windows
    assert [w.start_quality for w in read] == pytest.approx([0.5, 0.5, 0.7, 0.4, 0.4], abs=1e-9)
    assert [w.base_quality for w in read] == pytest.approx([0.5, 0.5, 0.5, 0.4, 0.4], abs=1e-9)


def test_labels_of_the_next_window_judge_a_model_that_was_not_swapped(folder: Path) -> None:
    """Labels at the begin of window w+1 are of window w's frames."""
    windows = tuple(
        window(n, q).model_copy(update={"predicted_start_quality": p, "labels": 4})
        for n, (q, p) in enumerate([(0.6, 0.6), (0.5, 0.55), (0.4, 0.45), (0.3, 0.35)])
    )
    journalled_box(folder, one_stream(*windows), "thief")
    read = trace_of_data_dir(folder).streams[0].windows
    assert [w.predicted_start_quality for w in read] == pytest.approx([None, 0.55, 0.45, 0.35])
    assert [w.start_quality for w in read] == pytest.approx([0.55, 0.45, 0.35, 0.35])


def test_a_camera_that_nobody_ever_labelled_has_what_it_came_with(folder: Path) -> None:
    journalled_box(folder, one_stream(window(0, 0.62), window(1, 0.5)), "no-retrain")
    assert [w.start_quality for w in trace_of_data_dir(folder).streams[0].windows] == [0.62, 0.62]


def test_a_fixed_policy_leaves_options_without_predictions(folder: Path) -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.8, way=(0.6, 0.8)), option("y", 0.9)))
    journalled_box(folder, trace, "uniform(x,50)")
    (done,) = trace_of_data_dir(folder).streams[0].windows[1].options
    assert (done.name, done.predicted_quality, done.measured_quality, done.epoch_quality) == ("x", None, 0.8, (0.6, 0.8))


def test_missing_epochs_follow_the_curve_through_the_others(folder: Path) -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5, option("x", 0.8, way=(0.6, 0.65, 0.75, 0.8))))
    driver, _, events = virtual_box(trace, "thief", CONFIG)
    header = encode(driver.engine.checkpoint())
    driver.run(events, 200.0)
    kept = [(e, cs) for e, cs in driver.log if not (isinstance(e, EpochDone) and e.report.epoch in (1, 3))]
    write_journal(folder, header, kept)
    (done,) = trace_of_data_dir(folder).streams[0].windows[1].options
    first, second, third, last = done.epoch_quality
    assert (second, last) == (0.65, 0.8), "epoch 2 was reported, the gate measured the end"
    assert 0.5 < first < 0.65 < third < 0.8


def test_cameras_that_came_later_or_left_have_all_windows(folder: Path) -> None:
    trace = recorded(2)
    late, gone = trace.streams[0], trace.streams[1]
    knobs = tuple(KnobProfile(**k.model_dump()) for k in late.knobs)
    driver, _, events = virtual_box(trace, "thief", CONFIG)
    header = encode(driver.engine.checkpoint())
    events = [e for e in events if not (isinstance(e, CameraAdded) and e.stream == late.id)]
    added = CameraAdded(at_s=210.0, stream=late.id, knobs=knobs, version="base", quality=0.44)
    driver.run([*events, added, CameraRemoved(at_s=220.0, stream=gone.id)], 500.0)
    write_journal(folder, header, driver.log)
    read = {s.id: s for s in trace_of_data_dir(folder).streams}
    assert set(read) == {s.id for s in trace.streams}
    assert all(len(s.windows) == 5 for s in read.values())
    assert [w.start_quality for w in read[late.id].windows[:2]] == [0.44, 0.44]
    assert not any(w.options for w in read[late.id].windows[:3])
    assert not any(w.options for w in read[gone.id].windows[3:])
    assert len({w.start_quality for w in read[gone.id].windows[2:]}) == 1


def test_the_newest_knobs_count(folder: Path) -> None:
    trace = one_stream(window(0, 0.5), window(1, 0.5))
    newer = (KnobProfile(name="fast", demand_pct=7, quality_frac=0.9, fps=5, height_px=320, memory_mib=600),)
    journalled_box(folder, trace, extra=(KnobsMeasured(at_s=50.0, stream="a", knobs=newer),))
    (knobs,) = trace_of_data_dir(folder).streams[0].knobs
    assert knobs.model_dump() == {
        "name": "fast", "demand_pct": 7.0, "quality_frac": 0.9, "fps": 5.0, "height_px": 320, "memory_mib": 600.0
    }  # fmt: skip


# --- journals as boxes leave them -------------------------------------------------------------------------------------


def two_segments(folder: Path) -> Trace:
    """A box that was restarted in the middle of its third window: the second segment goes on with that window."""
    trace = recorded(3)
    whole = journalled_box(folder, trace, until_s=250.0)
    state_header = encode(whole.engine.checkpoint())
    before = len(whole.log)
    whole.run([], 500.0)
    write_journal(folder, state_header, whole.log[before:])
    return trace


def test_segments_are_read_one_after_the_other(folder: Path, tmp_path: Path) -> None:
    trace = two_segments(folder)
    journalled_box(tmp_path / "one", trace)
    assert trace_of_data_dir(folder) == trace_of_data_dir(tmp_path / "one")


def test_a_journal_whose_begin_was_dropped_counts_from_zero(folder: Path) -> None:
    two_segments(folder)
    (folder / "events" / "00000001.jsonl").unlink()
    read = trace_of_data_dir(folder)
    assert [w.window for w in read.streams[0].windows] == [0, 1, 2]


def test_a_torn_last_line_is_left_out(folder: Path) -> None:
    journalled_box(folder, recorded())
    whole = trace_of_data_dir(folder)
    with (folder / "events" / "00000001.jsonl").open("ab") as file:
        file.write(b'{"kind": "TimerFired", "at')
    assert trace_of_data_dir(folder) == whole


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "no journal under"),
        (lambda path: path.write_text('{"kind":"BoxStarted","at_s":0.0,"window":0}\n'), "does not begin with a checkpoint"),
        (lambda path: path.write_text(path.read_text().splitlines()[0] + "\n"), "no finished window"),
        (lambda path: path.write_text(path.read_text() + "what is this\n"), "cannot be read"),
    ],
)
def test_a_folder_without_a_usable_journal_is_refused(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    journalled_box(folder, recorded())
    damage(folder / "events" / "00000001.jsonl")
    with pytest.raises(StorageError, match=message):
        trace_of_data_dir(folder)
