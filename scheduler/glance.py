"""A glance at the window in progress: has the scene gone back to one that the camera knows, or to one that it never saw?

Most that is learned in a window is learned from the one before it, so a scene that comes back has the wrong model for a
whole window, and the right one when it may be over. A glance is the look of `scheduler.drift`, taken when a small part of the window
has passed, of each camera that learns. It costs a pass of a few frames and no label.
- Which scene it is follows from its signature (`scheduler.scenes`). Of each scene it is remembered what slower rates leave of the
  quality, what retrainings have won, and which model served it. All of that holds again at once when the scene is back, the model too:
  labels let it in there. The next labels measure it beside the one whose place it took, which comes back if it was better
  (`scheduler.reuse`, rollback).
- In a new scene, one whose model is gone, or where the window looks clearly more like that of a kept model than like the window before
  and the serving model's own, some frames are labelled and the models that may fit are probed on them: the nearest ones, in another
  scene also the one that the camera came with. The gate's rule decides.
- What the last window taught is of another scene when a known one is back, or when a model is taken up: the turn of that camera is given
  up, so nothing is trained that the gate would have to refuse. In a new scene it learns from the window in progress instead, when
  there is enough of it (`lessons_from_s`, docs/decisions/0106-lessons-of-the-window-in-progress.md).
Pure. Ours; RECL (NSDI 2023) picks the expert of a window by its newest frames too.
"""

from __future__ import annotations

import math

from scheduler import reuse
from scheduler.engine_state import BoxState, EngineConfig, Prep, StreamState
from scheduler.scenes import NEARER
from scheduler.types import CachedModel, Signature

#: Part of the window that has passed by then: a box that keeps a frame a second has a dozen of a window of 200 s, and little of the
#: window is served by another scene's model.
AT_FRAC = 0.06
#: What is learned of the window in progress is learned from here on: a box that keeps a frame a second has forty of a window of 200 s.
LESSONS_FRAC = 0.2
#: Enough to tell a scene by; more of them would cost a box with many cameras a tenth of its window.
FRAMES = 8


def at_s(opened_s: float, seconds: float) -> float:
    return opened_s + AT_FRAC * seconds


def lessons_from_s(state: BoxState) -> float:
    """When there is enough of the window in progress to learn from."""
    return state.opened_s + LESSONS_FRAC * (state.ends_s - state.opened_s)


def tasks(state: BoxState, config: EngineConfig) -> list[Prep]:
    """A look at the window in progress for each camera that learns."""
    if not config.glances:
        return []
    return [
        Prep(
            job=state.job(s.id, "glance"),
            stream=s.id,
            kind="glance",
            window=state.window,
            frames=min(FRAMES, config.look_frames),
        )
        for s in state.ordered()
        if s.live and s.learns
    ]


def candidates(stream: StreamState, now: Signature, config: EngineConfig, window: int) -> tuple[str, ...]:
    """Kept models whose windows look clearly more like this one than the serving model's and the one before do, the nearest first.
    Where nobody knows what the serving model's window was like, and none was seen before this one, any may be."""
    own = next((m.signature for m in stream.cached if m.name == stream.version), None)
    most = NEARER * min(reuse.distance(now, own), reuse.distance(now, stream.scene))
    near = tuple(m for m in stream.cached if _is_near(m, now, most))
    return reuse.candidates(
        serving=stream.version, replaced=None, kept=near, signature=now, drifted=True, nearest=config.reuse_nearest,
        window=window, left={},
    )  # fmt: skip


def worth_asking(stream: StreamState, near: tuple[str, ...]) -> tuple[str, ...]:
    """Versions to measure when the camera has turned to a scene that is new, or whose own model is gone: what was trained on the last
    one may be worse there than what the camera came with."""
    return tuple(v for v in dict.fromkeys((stream.delivered, *near)) if v and v != stream.version)


def usable(stream: StreamState) -> set[str]:
    """The versions that can serve the camera."""
    return {stream.version, stream.delivered, *(model.name for model in stream.cached)} - {""}


def _is_near(model: CachedModel, now: Signature, most: float) -> bool:
    distance = reuse.distance(now, model.signature)
    return math.isfinite(distance) and distance < most


def labels(state: BoxState, config: EngineConfig, stream: StreamState, versions: tuple[str, ...]) -> Prep:
    """Of the window in progress, all of them to judge by; the next window need not make them again."""
    return Prep(
        job=state.job(stream.id, "sample"), stream=stream.id, kind="sample", window=state.window,
        frames=min(config.gate_frames, config.label_frames), candidates=versions,
    )  # fmt: skip


def probe(state: BoxState, stream: StreamState, versions: tuple[str, ...]) -> Prep:
    return Prep(job=state.job(stream.id, "choose"), stream=stream.id, kind="choose", window=state.window, candidates=versions)
