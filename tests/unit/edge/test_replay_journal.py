"""A journal replays to the same commands, byte for byte; the first difference is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from edge.replay import replay_lines
from scheduler.codec import encode
from scheduler.engine import WINDOW_END, BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, CameraHealth, Event, JobFailed, LabelDone, ProfileDone, TimerFired
from scheduler.types import KnobProfile, ProfileTrial, RetrainConfig

CONFIG = RetrainConfig(name="full", epochs=4)
ENGINE = EngineConfig(window_s=50, first_window_s=50, retrain=(CONFIG,), golden_gpu_s=0.05)
KNOBS = (KnobProfile(name="every", demand_pct=13.7, quality_frac=1.0),)


def journal(engine: BoxEngine, events: list[Event]) -> list[str]:
    lines = [encode(engine.checkpoint())]
    for event in events:
        commands = engine.handle(event)
        lines += [encode(event), *(encode(command) for command in commands)]
    return lines


def run_of_a_window(quality: float = 1 / 3, at_s: float = 0.1) -> list[Event]:
    trial = ProfileTrial(
        config=CONFIG, quality=(quality, quality + 0.05, quality + 0.07), init_gpu_s=0.1, gpu_s_per_epoch=1 / 7,
        n_profiled=6, n_total=12,
    )  # fmt: skip
    return [
        CameraAdded(at_s=at_s, stream="a", knobs=KNOBS, version="a-0"),
        BoxStarted(at_s=at_s, window=3),
        LabelDone(at_s=at_s + 1.1, job="a/label/3", stream="a", train=12, holdout=8, quality=quality, gpu_s=0.7),
        ProfileDone(at_s=at_s + 2.3, job="a/profile/3", stream="a", trials=(trial,), n_train=12, gpu_s=0.9),
        CameraHealth(at_s=at_s + 5, stream="a", live=False),
        CameraHealth(at_s=at_s + 6, stream="a", live=True),
        JobFailed(at_s=at_s + 7, job="a/train/3", stream="a", code="nan", text="loss"),
        TimerFired(at_s=at_s + 50, timer=WINDOW_END),
    ]


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 0.9), st.floats(0, 1e6))
def test_what_was_recorded_replays_exactly(quality: float, at_s: float) -> None:
    lines = journal(BoxEngine(ENGINE), run_of_a_window(quality, at_s))
    result = replay_lines(lines)
    assert result.exact
    assert result.events == 8
    assert result.commands == len(lines) - 9


def test_a_changed_command_is_found_and_named() -> None:
    lines = journal(BoxEngine(ENGINE), run_of_a_window())
    number = next(i for i, line in enumerate(lines) if '"kind":"SetShares"' in line)
    body = json.loads(lines[number])
    body["spare_pct"] += 1
    lines[number] = json.dumps(body, separators=(",", ":"))
    difference = replay_lines(lines, name="00000001.jsonl").difference
    assert difference is not None
    assert (difference.segment, difference.line) == ("00000001.jsonl", number + 1)
    assert difference.recorded == lines[number]
    assert json.loads(difference.replayed)["spare_pct"] == body["spare_pct"] - 1


def without(line: str, *names: str) -> str:
    """A line as a version wrote it that did not know these fields."""
    body = json.loads(line)
    for name in names:
        del body[name]
    return json.dumps(body, separators=(",", ":"))


def of_before_lending() -> tuple[list[str], int]:
    """A journal whose configuration and commands know nothing of lending, and where its profile was asked for."""
    lines = journal(BoxEngine(ENGINE), run_of_a_window())
    asked = next(i for i, line in enumerate(lines) if '"kind":"StartProfiling"' in line)
    start = json.loads(lines[0])
    del start["config"]["profile_lend"]
    lines[0], lines[asked] = json.dumps(start, separators=(",", ":")), without(lines[asked], "lend")
    return lines, asked


def test_a_journal_from_before_lending_replays_exactly() -> None:
    lines, _ = of_before_lending()
    result = replay_lines(lines)
    assert result.exact
    assert result.commands == len(lines) - 9


def test_what_a_journal_of_another_version_says_must_still_be_the_same() -> None:
    lines, asked = of_before_lending()
    other = {**json.loads(lines[asked]), "epochs": 99}
    gone = {**json.loads(lines[asked]), "thoroughness": 1}
    for body in (other, gone):
        changed = [*lines[:asked], json.dumps(body, separators=(",", ":")), *lines[asked + 1 :]]
        difference = replay_lines(changed).difference
        assert difference is not None
        assert difference.line == asked + 1


def test_a_box_that_lends_does_not_replay_as_one_that_does_not() -> None:
    lines = journal(BoxEngine(replace(ENGINE, profile_lend=True)), run_of_a_window())
    assert replay_lines(lines).exact
    asked = next(i for i, line in enumerate(lines) if '"kind":"StartProfiling"' in line)
    lines[asked] = without(lines[asked], "lend")
    assert not replay_lines(lines).exact, "it was asked to try every family, and would not ask that now"


def test_a_missing_command_is_a_difference_but_not_in_the_last_event_of_a_killed_box() -> None:
    lines = journal(BoxEngine(ENGINE), run_of_a_window())
    first_command = next(i for i, line in enumerate(lines[2:], 2) if '"kind":"SetKnobs"' in line)
    assert not replay_lines(lines[:first_command] + lines[first_command + 1 :]).exact
    assert replay_lines(lines[:-2]).exact


def test_a_segment_in_the_middle_of_a_run_replays_on_its_own() -> None:
    engine = BoxEngine(ENGINE)
    events = run_of_a_window()
    for event in events[:4]:
        engine.handle(event)
    assert replay_lines(journal(engine, events[4:])).exact


@pytest.mark.parametrize("lines", [["{}"], ["not json"], ['{"kind":"StopRequested","at_s":1.0}']])
def test_a_segment_that_does_not_begin_with_a_checkpoint_is_refused(lines: list[str]) -> None:
    with pytest.raises(StorageError) as caught:
        replay_lines(lines)
    assert caught.value.code == "corrupt"
