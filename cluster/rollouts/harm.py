"""Whether a rollout does harm: its gates refuse, boxes raise alarms, quality falls."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.rollouts.evidence import Change, changed, looks
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
        if found is not None and found.mean < -rules.margin and found.mean + sure_of(rules.risk, found.looks) * found.error < 0:
            how = "on labels" if found.looks else "as reported"
            return (
                f"quality {how} fell by {-found.mean:.3f} +- {found.error:.3f} on {found.cameras} cameras of {where} that serve it, "
                f"beside those that do not; {rules.margin:g} is allowed"
            )
    return ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """mean: change of quality where the version serves, less that where it does not; error: its standard error; cameras, boxes: that
    serve it and are measured; looks: how often labels were asked on one of them, 0: only reports speak."""

    mean: float
    error: float
    cameras: int
    boxes: int
    looks: int


def sure_of(risk: float, looks: int) -> float:
    """How many standard errors a fall must be, at a look that is the `looks`-th. Somebody who looks after every measurement is wrong
    once in the end, however sure he is each time; so the n-th look may be wrong with risk * 6 / (pi * n)^2 only, which over all looks
    adds up to the risk (the union bound)."""
    return statistics.NormalDist().inv_cdf(1.0 - risk * 6.0 / (math.pi * max(1, looks)) ** 2)


def compared(rollout: Rollout, cohort: Sequence[Watched]) -> Compared | None:
    """Each camera's own change (`evidence.changed`), less the mean change of the boxes without the version over the same time (night
    falls on all of them; 0 where fewer than `FEWEST_OTHERS` are measured). Boxes count, not cameras: those of one box have their scene
    and their load in common, so ten of them are not ten proofs. By chance alone a box changes by what its few labels leave open, and as
    much as the others' changes differ. None: nothing is measured."""
    by_box: defaultdict[str, list[Change]] = defaultdict(list)
    steps: dict[int, tuple[float, float]] = {}
    for watched in cohort:
        if watched.answer != "serving" or watched.step is None:
            continue
        if watched.step not in steps:
            steps[watched.step] = _others(rollout, watched.step)
        change = changed(watched, *steps[watched.step])
        if change is not None:
            by_box[watched.group].append(change)
    if not by_box:
        return None
    means = [statistics.fmean(change.mean for change in changes) for changes in by_box.values()]
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    wander = max(sigma for _, sigma in steps.values())
    alone = math.sqrt(statistics.fmean(_error(changes, wander) ** 2 for changes in by_box.values()))
    return Compared(
        mean=statistics.fmean(means), error=max(alone, spread) / math.sqrt(len(means)), cameras=sum(map(len, by_box.values())),
        boxes=len(means), looks=max(looks(watched) for watched in cohort if watched.answer == "serving"),
    )  # fmt: skip


def _error(changes: Sequence[Change], wander: float) -> float:
    """Standard error of a box's mean change: labels are few on each camera by itself, the scene's changes are the box's."""
    few = math.sqrt(sum(change.error**2 for change in changes)) / len(changes)
    return math.hypot(few, wander * statistics.fmean(change.wander for change in changes))


def _others(rollout: Rollout, step: int) -> tuple[float, float]:
    """(mean, standard deviation) of the changes since `step` began of boxes without the version; where they are too few to say, no
    mean, and the deviation of the rules."""
    rules = rollout.rules
    by_box: defaultdict[str, list[float]] = defaultdict(list)
    for watched in rollout.cameras:
        before = watched.starts[step] if step < len(watched.starts) else None
        if watched.answer in ("", "refused", "failed") and before is not None and watched.last is not None:
            by_box[watched.group].append(watched.last - before)
    means = [statistics.fmean(changes) for changes in by_box.values()]
    if len(means) < FEWEST_OTHERS:
        return 0.0, rules.lone_sigma
    return statistics.fmean(means), max(rules.sigma, statistics.stdev(means))
