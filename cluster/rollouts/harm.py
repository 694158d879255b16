"""Whether a rollout does harm: its gates refuse, boxes raise alarms, quality falls."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.rollouts.seen import Seen
from cluster.rollouts.types import Rollout, Watched

#: Boxes without the version that it takes to say what all went through.
FEWEST_OTHERS = 3


def harm(rollout: Rollout, seen: Seen) -> str:
    """Why it must stop, in words; '' nothing speaks against it."""
    return _refusals(rollout) or _alarms(rollout, seen) or _fall(rollout)


def _cohorts(rollout: Rollout) -> Sequence[tuple[str, list[Watched]]]:
    """The newest step by itself (the good ones before it must not hide it), and all together."""
    offered = [w for w in rollout.cameras if w.step is not None]
    return (("this step", [w for w in offered if w.step == rollout.step]), ("all steps", offered))


def _refusals(rollout: Rollout) -> str:
    rules = rollout.rules
    for where, cohort in _cohorts(rollout):
        answered = [w for w in cohort if w.answer in ("serving", "refused", "failed") and not w.forgiven]
        against = [w for w in answered if w.answer != "serving"]
        if len(answered) >= max(1, min(rules.fewest_answers, len(cohort))) and len(against) > rules.refused_frac * len(
            answered
        ):
            problems = sorted({w.problem for w in against if w.problem})[:2]
            told = f" ({'; '.join(problems)})" if problems else ""
            return (
                f"the gates of {len(against)} of {len(answered)} cameras of {where} refused it, "
                f"at most {100 * rules.refused_frac:.0f} % may{told}"
            )
    return ""


def _alarms(rollout: Rollout, seen: Seen) -> str:
    known = set(rollout.alarms)
    took = sorted({seen.owners.get(w.camera, w.camera.home) for w in rollout.cameras if w.answer == "serving"})
    for box in took:
        fresh = sorted(sentence for sentence in seen.alarms.get(box, ()) if (box, sentence) not in known)
        if fresh:
            return f"box {box}, which serves it, raises an alarm: {fresh[0]}"
    return ""


def _fall(rollout: Rollout) -> str:
    rules = rollout.rules
    for where, cohort in _cohorts(rollout):
        found = compared(rollout, cohort)
        if found is not None and found.mean < -rules.margin and found.mean + rules.z * found.error < 0:
            return (
                f"quality fell by {-found.mean:.3f} +- {found.error:.3f} on {found.cameras} cameras of {where} that serve it, beside "
                f"those that do not; {rules.margin:g} is allowed"
            )
    return ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """mean: change of quality where the version serves, less that where it does not; error: its standard error; cameras, boxes: that
    serve it and are measured."""

    mean: float
    error: float
    cameras: int
    boxes: int


def compared(rollout: Rollout, cohort: Sequence[Watched]) -> Compared | None:
    """Difference in differences: each camera's own change since its step began, less the mean change of the boxes without the version
    over the same time (night falls on all of them; 0 where fewer than `FEWEST_OTHERS` are measured). Boxes count, not cameras: those of
    one box have their scene and their load in common, so ten of them are not ten proofs. By chance alone a box changes as much as the
    others' changes differ. None: nothing is measured."""
    by_box: defaultdict[str, list[float]] = defaultdict(list)
    steps: dict[int, tuple[float, float]] = {}
    for watched in cohort:
        if watched.answer != "serving" or watched.change is None or watched.step is None:
            continue
        if watched.step not in steps:
            steps[watched.step] = _others(rollout, watched.step)
        by_box[watched.group].append(watched.change - steps[watched.step][0])
    if not by_box:
        return None
    means = [statistics.fmean(changes) for changes in by_box.values()]
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    chance = max(rollout.rules.sigma, spread, *(sigma for _, sigma in steps.values()))
    return Compared(
        mean=statistics.fmean(means),
        error=chance / math.sqrt(len(means)),
        cameras=sum(map(len, by_box.values())),
        boxes=len(means),
    )


def _others(rollout: Rollout, step: int) -> tuple[float, float]:
    """(mean, standard deviation) of the changes since `step` began of boxes without the version."""
    by_box: defaultdict[str, list[float]] = defaultdict(list)
    for watched in rollout.cameras:
        before = watched.starts[step] if step < len(watched.starts) else None
        if watched.answer in ("", "refused", "failed") and before is not None and watched.last is not None:
            by_box[watched.group].append(watched.last - before)
    means = [statistics.fmean(changes) for changes in by_box.values()]
    return (statistics.fmean(means), statistics.stdev(means)) if len(means) >= FEWEST_OTHERS else (0.0, 0.0)
