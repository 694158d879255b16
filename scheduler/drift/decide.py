"""Has a camera's scene drifted away from what its model learned from? The four detectors, put together."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.drift.tests import CLASS_MIX, CONFIDENCE, EMBEDDING, IMAGE, NAMES, frames_needed, run_test
from scheduler.types import Drift, DriftTest, Look

#: Distances at which a detector alone says "nothing is as it was".
_FULL: dict[str, float] = {CLASS_MIX: 0.8, CONFIDENCE: 0.4, EMBEDDING: 1.4, IMAGE: 3.0}


@dataclass(frozen=True, kw_only=True)
class DriftConfig:
    """alpha: part of windows without drift that may be called drifted, all detectors together; tests: which are asked;
    blocks: into how many parts a look is cut at most; splits: ways of dealing them that make a threshold."""

    alpha: float = 0.05
    tests: tuple[str, ...] = NAMES
    blocks: int = 8
    splits: int = 1000


def drift(reference: Look | None, current: Look, config: DriftConfig | None = None) -> Drift:
    """A window against its reference. It drifted when any detector fires; each is asked at alpha / (number asked), so that all together
    alarm no more often than alpha (Bonferroni), however they depend on each other.

    magnitude is the largest distance of those that fired, as part of what each can be (`_FULL`): 0 while there is no drift, for a
    distance within chance says nothing, and never less when a change grows. Without a reference, or with too few frames, nothing
    fires and `note` says so."""
    config = config or DriftConfig()
    if reference is None:
        return Drift(drifted=False, magnitude=0.0, note="no reference yet: nothing to compare with")
    alpha = config.alpha / max(1, len(config.tests))
    needed, frames = frames_needed(alpha), min(len(reference.frames), len(current.frames))
    if frames < needed:
        return Drift(
            drifted=False, magnitude=0.0, note=f"{frames} frames are too few to tell drift from chance: {needed} needed"
        )
    asked = [
        run_test(name, reference, current, alpha=alpha, blocks=config.blocks, splits=config.splits) for name in config.tests
    ]
    fired = [test for test in asked if test is not None and test.fired]
    return Drift(
        drifted=bool(fired), magnitude=max(map(_magnitude, fired), default=0.0),
        tests=tuple(test for test in asked if test is not None),
        note=_note(reference, current, [name for name, test in zip(config.tests, asked, strict=True) if test is None]),
    )  # fmt: skip


def _magnitude(test: DriftTest) -> float:
    return min(1.0, test.statistic / _FULL[test.name])


def _note(reference: Look, current: Look, unasked: list[str]) -> str:
    if not unasked:
        return ""
    why = "the looks are by different versions" if reference.version != current.version else "there was nothing to compare"
    return f"not asked: {', '.join(unasked)} ({why})"


# --- which window is the reference ------------------------------------------------------------------------------------


def reference_after(reference: Look | None, current: Look, *, learned: bool) -> Look | None:
    """The reference from now on. learned: the serving model has just learned from the window that `current` shows.

    The reference is the window that the serving model learned from, or the first one seen before it has learned anything. It
    never moves along by itself: a drift so slow that no two neighbouring windows differ is still seen against it."""
    return current if learned or reference is None else reference


def needs_new_look(reference: Look | None, version: str) -> bool:
    """Is the reference seen by another model than the one that serves? Then most detectors cannot compare with it, and its window
    should be looked at again by `version` (its frames are still stored, a look takes no labels)."""
    return reference is not None and reference.version != version
