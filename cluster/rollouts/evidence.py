"""What a camera that serves a version says of it, by what is measured there.

*By labels*, where its box tells its measurements (`Measured`): quality on held-out pictures, in which no knob has a part, with the
number of pictures and the standard error. Two of them speak, weighted by how sure they are: the gain over the version that was
replaced, on the same pictures (nothing else differs between the two); and the newest measurements, less the one before. The
second knows nothing of an evening that fell between, hence the fleet's own change is taken off it and what scenes change by themselves
is put on its error (`harm`).

*By reports*, where a box tells no measurements (an older release): the quality that people see. It is the model's times what the knobs
in force keep, and falls whenever a box has other work; so a fall counts once `low_reports` reports in a row told it over `low_s`
seconds, and then by the best of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.rollouts.types import RolloutRules, Watched
from scheduler.fleet.types import CameraReport, Measured

#: A measurement that says it has no error at all would outweigh everything.
LEAST_ERROR = 1e-3
#: Measurements since it serves a version that count, the newest: one that was good for a day may turn bad in an hour.
NEWEST = 4


@dataclass(frozen=True, kw_only=True)
class Change:
    """mean: change of quality by the version; error: standard error of it, as far as labels are few; wander: part of it (0-1) that was
    not measured on the same pictures, and has the scene's own changes in it."""

    mean: float
    error: float
    wander: float


def taken_in(watched: Watched, report: CameraReport, box: str, message: str, rules: RolloutRules, now_utc_s: float) -> Watched:
    """With what its owner `box` tells. message: which report that was; the same one again changes nothing."""
    if report.measured:
        return _by_labels(watched, report.measured, box)
    if watched.error is not None or report.quality is None:
        return watched
    return _by_report(watched, report.quality, message, rules, now_utc_s)


def changed(watched: Watched, others: float, wander: float) -> Change | None:
    """What became of a camera's quality since it serves the version; None: not known (yet). others: mean change of cameras without the
    version over that time; wander: standard deviation of what a scene changes by itself over it."""
    paired = _paired(watched)
    since = _since(watched, others) if watched.error is not None else _told(watched, others)
    if paired is None or since is None:
        return paired or since
    sure, less_sure = paired.error**-2, 1.0 / (since.error**2 + wander**2)
    part = less_sure / (sure + less_sure)
    mean = (1.0 - part) * paired.mean + part * since.mean
    return Change(mean=mean, error=math.hypot((1.0 - part) * paired.error, part * since.error), wander=part)


def is_undecided(watched: Watched) -> bool:
    """Whether reports tell a fall that has not lasted long enough to count."""
    return bool(watched.low_reports) and not watched.lasting


def looks(watched: Watched) -> int:
    """How often labels were asked about the version here."""
    return watched.after_count + watched.pair_count if watched.error is not None else 0


def cleared(watched: Watched, starts: tuple[float | None, ...]) -> Watched:
    """With nothing told since: `starts` and what is known now are what later falls are measured from."""
    return replace(
        watched, starts=starts, start_error=watched.error, after=(), after_count=0, pair_sum=0.0, pair_var=0.0,
        pair_count=0, low_reports=0, low_best=0.0, low_since_utc_s=None, lasting=False,
    )  # fmt: skip


# --- inside -----------------------------------------------------------------------------------------------------------


def _by_labels(watched: Watched, measured: tuple[Measured, ...], box: str) -> Watched:
    """Each measurement once. Of a box that was not asked before nothing counts but what is known now: numbers are a box's own."""
    fresh = [one for one in measured if one.number > watched.number] if box == watched.told_by else []
    for one in fresh:
        watched = _counted(watched, one)
    newest = measured[-1]
    if watched.told_by == box and watched.number == newest.number:
        return watched
    watched = replace(watched, told_by=box, number=newest.number, last=newest.quality, error=max(newest.error, LEAST_ERROR))
    late = watched.step is not None and watched.start is None and watched.answer != "serving"
    return _begun(watched, watched.step or 0) if late else watched


def _begun(watched: Watched, step: int) -> Watched:
    """Nothing was measured when its step began: what is measured until it serves the version is of before, too."""
    starts = (*watched.starts[:step], watched.last, *watched.starts[step + 1 :])
    return replace(watched, starts=starts, start_error=watched.error)


def _counted(watched: Watched, one: Measured) -> Watched:
    if watched.answer != "serving" or not watched.version or one.version != watched.version:
        return watched
    if one.over and one.gain is not None and one.gain_error is not None:
        return replace(
            watched, pair_sum=watched.pair_sum + one.gain, pair_var=watched.pair_var + max(one.gain_error, LEAST_ERROR) ** 2,
            pair_count=watched.pair_count + 1,
        )  # fmt: skip
    after = (*watched.after, (one.quality, max(one.error, LEAST_ERROR)))[-NEWEST:]
    return replace(watched, after=after, after_count=watched.after_count + 1)


def _by_report(watched: Watched, quality: float, message: str, rules: RolloutRules, now_utc_s: float) -> Watched:
    if watched.answer != "serving":
        return watched if watched.last == quality else replace(watched, last=quality)
    if message == watched.message:
        return watched
    watched = replace(watched, message=message, last=quality, after_count=watched.after_count + 1)
    start = watched.start
    if start is None or quality >= start - rules.margin:
        return replace(watched, low_reports=0, low_best=0.0, low_since_utc_s=None, lasting=False)
    count, since_s = watched.low_reports + 1, now_utc_s if watched.low_since_utc_s is None else watched.low_since_utc_s
    return replace(
        watched, low_reports=count, low_best=max(watched.low_best, quality), low_since_utc_s=since_s,
        lasting=count >= rules.low_reports and now_utc_s - since_s >= rules.low_s,
    )  # fmt: skip


def _paired(watched: Watched) -> Change | None:
    n = watched.pair_count
    return Change(mean=watched.pair_sum / n, error=math.sqrt(watched.pair_var) / n, wander=0.0) if n else None


def _since(watched: Watched, others: float) -> Change | None:
    n, start = len(watched.after), watched.start
    if start is None or watched.start_error is None or not n:
        return None
    error = math.hypot(watched.start_error, *(error / n for _, error in watched.after))
    return Change(mean=sum(quality for quality, _ in watched.after) / n - start - others, error=error, wander=1.0)


def _told(watched: Watched, others: float) -> Change | None:
    start = watched.start
    if start is None or watched.last is None or not watched.after_count or is_undecided(watched):
        return None
    return Change(mean=(watched.low_best if watched.lasting else watched.last) - start - others, error=0.0, wander=1.0)
