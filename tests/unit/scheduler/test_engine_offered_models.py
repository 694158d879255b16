"""Models that came in from outside: measured once on the camera's own held-out labels, then they serve or go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.commands import RejectModel, StartLabelling, StartProbe, StartProfiling, SwapModel
from scheduler.engine import BoxEngine
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    Event,
    LabelDone,
    LookDone,
    ModelsOffered,
    Probed,
    ProbeDone,
    SwapDone,
    SwapFailed,
)
from scheduler.types import CachedModel, Signature, Traits
from tests.support.learning_world import DAY, ENGINE, KNOBS
from tests.support.looks import look

KEPT = (CachedModel(name="new-x1", traits=Traits()), CachedModel(name="old", traits=Traits()))


def box(*, at_start: bool, **changes: Any) -> BoxEngine:
    """A box in whose first window the camera has been looked at; `new-x1` was offered before or just now."""
    engine = BoxEngine(replace(ENGINE, **changes))
    offered = {"cached": KEPT, "offered": ("new-x1",)} if at_start else {}
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", arch="x", **offered))  # type: ignore[arg-type]
    engine.handle(BoxStarted(at_s=0, window=1))
    seen = look(DAY, 7, version="a-1")
    engine.handle(LookDone(at_s=1, job="a/look/1", stream="a", look=seen, signature=Signature(), gpu_s=0.5))
    if not at_start:
        engine.handle(ModelsOffered(at_s=2, stream="a", cached=KEPT, offered=("new-x1",)))
    return engine


def labelled(engine: BoxEngine) -> list[Any]:
    event = LabelDone(at_s=5, job="a/label/1", stream="a", train=24, holdout=16, quality=0.6, gpu_s=4.0, golden_gpu_s=0.1)
    return engine.handle(event)


def probed(engine: BoxEngine, quality: float, serving: float | None = 0.6) -> list[Any]:
    found = (Probed(version="new-x1", quality=quality, gain_sd=0.02),)
    return engine.handle(
        ProbeDone(at_s=7, job="a/probe/1", stream="a", serving_quality=serving, found=found, frames=16, gpu_s=0.3)
    )


def of(kind: type, commands: list[Any]) -> list[Any]:
    return [c for c in commands if isinstance(c, kind)]


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_it_is_measured_on_the_next_labels_whatever_the_window_looks_like(at_start: bool, reuse: bool) -> None:
    (probe,) = of(StartProbe, labelled(box(at_start=at_start, reuse=reuse)))
    assert probe.candidates == ("new-x1",)
    assert probe.version == "a-1"


def test_a_better_one_serves_after_its_shadow() -> None:
    engine = box(at_start=False, shadow=True)
    labelled(engine)
    commands = probed(engine, 0.8)
    (swap,) = of(SwapModel, commands)
    assert (swap.version, swap.quality, swap.shadow) == ("new-x1", 0.8, True)
    assert not of(RejectModel, commands)
    engine.handle(SwapDone(at_s=8, stream="a", version="new-x1"))
    stream = engine.state.streams["a"]
    assert (stream.version, stream.offered) == ("new-x1", ())


def test_one_that_is_not_better_is_rejected_with_its_figures_and_not_asked_for_again() -> None:
    engine = box(at_start=False)
    labelled(engine)
    commands = probed(engine, 0.5)
    (gone,) = of(RejectModel, commands)
    assert (gone.version, gone.reason) == ("new-x1", "not better on this camera's labels: 0.500 against 0.600")
    assert not of(SwapModel, commands)
    assert of(StartProfiling, commands), "the window goes on"
    stream = engine.state.streams["a"]
    assert (stream.offered, [m.name for m in stream.cached]) == ((), ["old"])


@pytest.mark.parametrize("serving", [None, float("nan")])
def test_a_probe_that_measured_nothing_leaves_it_for_the_next_labels(serving: float | None) -> None:
    engine = box(at_start=False)
    labelled(engine)
    commands = probed(engine, 0.9, serving)
    assert not of(RejectModel, commands)
    assert not of(SwapModel, commands)
    assert engine.state.streams["a"].offered == ("new-x1",)


def test_one_that_fails_in_the_shadow_is_rejected() -> None:
    engine = box(at_start=False, shadow=True)
    labelled(engine)
    probed(engine, 0.8)
    commands = engine.handle(SwapFailed(at_s=9, stream="a", version="new-x1", text="it is blind"))
    assert [c.version for c in of(RejectModel, commands)] == ["new-x1"]
    assert engine.state.streams["a"].version == "a-1"


def test_an_earlier_one_that_has_served_needs_no_shadow() -> None:
    engine = box(at_start=False, shadow=True)
    engine.handle(ModelsOffered(at_s=3, stream="a", cached=KEPT, offered=()))
    engine.state.streams["a"].replaced = "old"
    (probe,) = of(StartProbe, labelled(engine))
    assert probe.candidates == ("old",)
    found = (Probed(version="old", quality=0.8, gain_sd=0.02),)
    commands = engine.handle(
        ProbeDone(at_s=7, job="a/probe/1", stream="a", serving_quality=0.6, found=found, frames=16, gpu_s=0.3)
    )
    assert [c.shadow for c in of(SwapModel, commands)] == [False]


def test_an_offer_for_a_camera_that_is_gone_changes_nothing() -> None:
    engine = box(at_start=False)
    event: Event = ModelsOffered(at_s=3, stream="gone", cached=(), offered=("x",))
    assert engine.handle(event) == []


@pytest.mark.parametrize(
    ("offered", "frames", "is_probed"), [((), ENGINE.min_label_frames, False), (("new-x1",), ENGINE.label_frames, True)]
)
def test_a_camera_that_would_be_spared_its_labels_gets_them_for_what_was_offered(
    offered: tuple[str, ...], frames: int, is_probed: bool
) -> None:
    """It has neither drifted nor anything more to learn, but what came from outside must not wait for that to change."""
    engine = BoxEngine(ENGINE)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", arch="x", cached=KEPT, offered=offered))
    stream = engine.state.streams["a"]
    stream.gains, stream.reference = (0.0, 0.0), look(DAY, 6, version="a-1")
    engine.handle(BoxStarted(at_s=0, window=1))
    seen = look(DAY, 7, version="a-1")
    commands = engine.handle(LookDone(at_s=1, job="a/look/1", stream="a", look=seen, signature=Signature(), gpu_s=0.5))
    assert stream.drift is not None
    assert not stream.drift.drifted
    (labels,) = of(StartLabelling, commands)
    assert labels.frames == (ENGINE.label_frames if offered else ENGINE.min_label_frames)
    assert bool(of(StartProbe, labelled(engine))) is bool(offered)
