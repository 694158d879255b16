"""Scenes of a camera: which of those that it has seen before is this one? A camera that turns between presets, day and night, fog
that comes and goes.

A box forgets most of what it knew of a scene when the next one comes: another model serves, and what slower frame rates leave of
the quality is measured on other frames. When the scene is back, both are worth having again (`scheduler.glance`). A scene is told by
its signature (`scheduler.drift.signature`) alone: by what the picture is like, and by where it has edges, which a turn of the camera
changes and light hardly does. On real footage two or three frames are enough (docs/decisions/0104-scenes.md).
A model serves by that only where labels let it in before. Pure. Ours; that models are kept by scene is RECL's idea (NSDI 2023).

What was learned since in other scenes is not lost on the one that is back: it is served by the mean of the weights that lessons in it
and the newest lesson made (`to_average`). Models that were trained on from one start, a little each, lie so near each other that their
mean is one too, and on frames that none of them saw it is better than each (Wortsman et al., "Model soups", ICML 2022, the uniform
soup). Changed: the models differ in what they were taught, not in how (docs/decisions/0119-the-mean-of-lessons.md).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from scheduler import drift
from scheduler.types import Signature

#: Looks no further `apart` than SAME are one scene; up to CHANGED_LIGHT, unless a known scene is nearer. On the recurring drift of
#: docs/learning.md the beginnings of neighbouring windows of one scene are at most 0.36 apart (21 of 24 at most 0.24), those of two
#: scenes 0.40 and more (24; rain 0.40 to 0.42).
SAME, CHANGED_LIGHT = 0.25, 0.38
#: So much nearer than the present scene must a known one be to be it, and a kept model's window to be asked: frames of a scene differ.
NEARER = 0.8
#: What no correlation at all between two views counts as. On the same footage two looks of one view correlate by 0.62 and more (19 of
#: 20; fog of 0.6: 0.38 and more), those of two cameras by 0.46 at most (99 of 100): at most 0.30 apart, and 0.43 and more.
OTHER_VIEW = 0.8
#: So many are known of a camera; the one that was not seen for longest is forgotten.
MOST = 8
#: So many lessons of a scene, the newest, are averaged with the newest of all.
MOST_LESSONS = 2


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """An admitted retraining. version: the model that it made; taught_in: the lesson with others that this is of, '': of none."""

    version: str
    taught_in: str = ""

    @property
    def mark(self) -> str:
        """The same for all cameras that have the same model of it."""
        return self.taught_in or self.version


@dataclass(frozen=True, kw_only=True)
class Scene:
    """number: of its own, from 0, never used again; signature: of when it was seen last; version: that served it then; gains: what
    retrainings had won by then, newest last; quality: what it was believed to be worth by then, None: unknown; visits: how often the
    camera has turned to it; lessons: the newest that were learned in it, newest last; averaged: the lessons whose mean was last to
    serve it, and mean: that version, '': there is none."""

    number: int
    signature: Signature
    version: str
    gains: tuple[float, ...] = ()
    quality: float | None = None
    visits: int = 1
    lessons: tuple[Lesson, ...] = ()
    averaged: tuple[Lesson, ...] = ()
    mean: str = ""


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """What a camera has seen, the present scene first; made: so many were ever told apart; newest: the newest lesson in any of them,
    None: none yet, or it was taken back."""

    known: tuple[Scene, ...] = ()
    made: int = 0
    newest: Lesson | None = None

    @property
    def present(self) -> Scene | None:
        return self.known[0] if self.known else None


def apart(a: Signature, b: Signature) -> float:
    """How unlike two looks are: what the picture is like (`drift.distance`, without what the models said that looked) or where it has
    edges, whichever is more."""
    like = drift.distance(drift.picture(a), drift.picture(b))
    if not a.view or len(a.view) != len(b.view):
        return like
    return max(like, OTHER_VIEW * (1.0 - sum(map(operator.mul, a.view, b.view))))


def seen(
    scenes: Scenes, now: Signature, *, version: str, gains: Sequence[float], quality: float | None = None
) -> tuple[Scenes, Scene | None]:
    """(the camera's scenes with what is seen now as the first one; the scene as it was remembered when it is back after another one,
    else None). version: that serves now, and so served what was seen until now; gains, quality: likewise. A signature that says nothing
    changes nothing."""
    if not now.values:
        return scenes, None
    if not scenes.known:
        return replace(scenes, known=(Scene(number=0, signature=now, version=version),), made=1), None
    before, others = replace(scenes.known[0], version=version, gains=tuple(gains), quality=quality), scenes.known[1:]
    away = apart(now, before.signature)
    back = min(others, key=lambda scene: apart(now, scene.signature), default=None)
    if back is not None and away > SAME and apart(now, back.signature) < NEARER * away:
        again = replace(back, signature=now, visits=back.visits + 1)
        return replace(scenes, known=(again, before, *(scene for scene in others if scene is not back))), back
    if away <= CHANGED_LIGHT:
        return replace(scenes, known=(replace(before, signature=now), *others)), None
    new = Scene(number=scenes.made, signature=now, version=version)
    return replace(scenes, known=(new, before, *others)[:MOST], made=scenes.made + 1), None


def learned(scenes: Scenes, lesson: Lesson) -> Scenes:
    """A lesson in the present scene was admitted."""
    if scenes.present is None:
        return replace(scenes, newest=lesson)
    here = replace(scenes.present, lessons=(*scenes.present.lessons, lesson)[-MOST_LESSONS:])
    return replace(scenes, known=(here, *scenes.known[1:]), newest=lesson)


def taken_back(scenes: Scenes, version: str) -> Scenes:
    """A model was worse than what it had replaced: its lesson is averaged with no other."""

    def without(scene: Scene) -> Scene:
        return replace(scene, lessons=tuple(lesson for lesson in scene.lessons if lesson.version != version))

    newest = None if scenes.newest is not None and scenes.newest.version == version else scenes.newest
    return replace(scenes, known=tuple(map(without, scenes.known)), newest=newest)


def to_average(scenes: Scenes, back: Scene, usable: Collection[str]) -> tuple[Lesson, ...]:
    """The lessons whose mean is to serve a scene that is back: its own newest and the newest of all, oldest first. None of them where
    nothing was learned elsewhere since, or nothing since these were last averaged: then its own model serves. usable: versions that
    may serve the camera; what it came with is none of them, since it was taught nothing."""
    newest = scenes.newest
    own = tuple(lesson for lesson in back.lessons or (Lesson(version=back.version),) if lesson.version in usable)
    if newest is None or newest.version not in usable or not own or newest in own:
        return ()
    return () if (*own, newest) == back.averaged else (*own, newest)


def averaging(scenes: Scenes, lessons: tuple[Lesson, ...], mean: str = "") -> Scenes:
    """The present scene is to be served by the mean of these; mean: that is this version."""
    if scenes.present is None:
        return scenes
    return replace(scenes, known=(replace(scenes.present, averaged=lessons, mean=mean), *scenes.known[1:]))


def taught_in(scenes: Scenes, version: str) -> str:
    """What a version was taught in, said so that cameras with the same model say the same; '' where nobody knows."""
    for scene in scenes.known:
        if version and version == scene.mean:
            return " + ".join(sorted(lesson.mark for lesson in scene.averaged))
    lessons = (lesson for scene in scenes.known for lesson in scene.lessons)
    return next((lesson.taught_in for lesson in lessons if lesson.version == version), "")
