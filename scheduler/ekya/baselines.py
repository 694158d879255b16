"""What the thief is compared with: Ekya section 6 ("Uniform", Ekya-FixedRes, Ekya-FixedConfig) and no retraining at all.

The even splits are made in whole percent points, not in quanta: the quantum is the step of the planner's search, and on a
coarse grid an even split would leave some cameras without any share, which would make the baseline a straw man. It follows that
on a coarse grid a baseline may, rarely, beat `optimal`; with quantum_pct = 1 it cannot.

Fixed configurations (the paper's Cfg 1 and Cfg 2, "high" and "low" resource points of the Pareto front). The front of a list of
options is every option that no other one matches or beats in both cost (less) and end quality (more); of equals, the first
listed stays. `high` is the costliest option on the front, which is the cheapest way to the best predicted quality; `low` is
the cheapest option on the front, which is the cheapest of all. Both are taken per stream from the options in the snapshot; any
other text is the name of an option, so that one configuration can be fixed for all streams and windows (`front_names` finds the
two from hold-out streams, as the authors did).

A uniform stream always retrains with its configuration, whether it helps or not; only one that cannot end in the time left is
not started (its share lies spare; in the original it is wasted, the unfinished model being thrown away). What it trained serves at
once: the paper's split has no gate (`EngineConfig.plain_splits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from scheduler.ekya.estimate import Choice, SpeedCurve, StreamEstimator
from scheduler.ekya.pick_configs import build_plan
from scheduler.ekya.thief import thief_repeat
from scheduler.types import Plan, RetrainOption, Snapshot, StreamView

HIGH = "high"
LOW = "low"


def pareto_front(options: Sequence[RetrainOption]) -> tuple[RetrainOption, ...]:
    """The options that are worth their cost, cheapest first: each ends above every cheaper one."""
    front: list[RetrainOption] = []
    for option in sorted(options, key=lambda o: (o.cost_gpu_s, -o.end_quality)):
        if not front or option.end_quality > front[-1].end_quality:
            front.append(option)
    return tuple(front)


def fixed_option(options: Sequence[RetrainOption], config: str) -> RetrainOption | None:
    """The option that `config` means here: an option's name, else 'high' or 'low'; None if there is none."""
    for option in options:
        if option.name == config:
            return option
    front = pareto_front(options) if config in (HIGH, LOW) else ()
    if not front:
        return None
    return front[-1] if config == HIGH else front[0]


def front_names(profiles: Sequence[Sequence[RetrainOption]]) -> tuple[str, str]:
    """(high, low) option names over hold-out streams: the front of mean end quality against mean cost per name.

    Only names that every stream has count. Errors: ValueError if there is none.
    """
    by_name = [{o.name: o for o in options} for options in profiles]
    shared = [name for name in by_name[0] if all(name in known for known in by_name)] if by_name else []
    if not shared:
        raise ValueError("front_names: the hold-out streams have no configuration in common")
    means = [
        RetrainOption(
            name=name,
            end_quality=sum(known[name].end_quality for known in by_name) / len(by_name),
            cost_gpu_s=sum(known[name].cost_gpu_s for known in by_name) / len(by_name),
        )
        for name in shared
    ]
    front = pareto_front(means)
    return front[-1].name, front[0].name


def split_evenly(total_pct: int, parts: int) -> list[int]:
    """Whole percent points over `parts`, remainder to the first."""
    if parts == 0:
        return []
    base, extra = divmod(total_pct, parts)
    return [base + (1 if number < extra else 0) for number in range(parts)]


def uniform_shares(snapshot: Snapshot, infer_pct: int) -> list[tuple[int, int]]:
    """(infer, train) pct per stream: `infer_pct` percent of the capacity to inference, the rest to retraining, both even.

    A stream without options has finished: its training share is re-split equally over all remaining jobs (the authors'
    simulator). Doing so at each completion in turn comes to the same as doing it at once from what is finished now, so the
    split needs no memory: with V streams of which d have finished, every remaining job gets d*train/(2V-d) more.
    """
    streams, capacity = len(snapshot.streams), snapshot.capacity_pct
    if streams == 0:
        return []
    training = [number for number, view in enumerate(snapshot.streams) if view.retrain]
    finished = streams - len(training)
    freed_each = Fraction(capacity * (100 - infer_pct) * finished, 100 * streams * (2 * streams - finished))
    for_inference = Fraction(capacity * infer_pct, 100) + streams * freed_each
    infer_total = capacity if not training else int(for_inference + Fraction(1, 2))
    infer = split_evenly(infer_total, streams)
    train = dict(zip(training, split_evenly(capacity - infer_total, len(training)), strict=True))
    return [(infer[number], train.get(number, 0)) for number in range(streams)]


def uniform(snapshot: Snapshot, *, config: str, infer_pct: int) -> Plan:
    """Uniform(config, w): always the same configuration, always the same even split. infer_pct: w, 0-100."""
    shares = uniform_shares(snapshot, infer_pct)
    choices = [
        _always(estimator, fixed_option(estimator.view.retrain, config), *pair)
        for estimator, pair in zip(_estimators(snapshot), shares, strict=True)
    ]
    return build_plan(snapshot, f"uniform({config},{infer_pct})", shares, choices, steps=1)


def _always(estimator: StreamEstimator, option: RetrainOption | None, infer_pct: int, train_pct: int) -> Choice:
    choice = estimator.with_option(option, infer_pct, train_pct) or estimator.with_option(None, infer_pct, train_pct)
    assert choice is not None  # doing nothing always fits
    return choice


def fixed_resources(snapshot: Snapshot, *, infer_pct: int = 50) -> Plan:
    """Ekya-FixedRes: the thief off (uniform's split), the choice of configuration on."""
    shares = uniform_shares(snapshot, infer_pct)
    choices = [e.best(*pair) for e, pair in zip(_estimators(snapshot), shares, strict=True)]
    return build_plan(snapshot, "fixed-resources", shares, choices, steps=1)


def fixed_config(snapshot: Snapshot, *, config: str = LOW) -> Plan:
    """Ekya-FixedConfig: the thief on (repeated), each stream offered one configuration only (the paper's Cfg 2)."""
    return thief_repeat(
        replace(snapshot, streams=tuple(_only(view, config) for view in snapshot.streams)), policy="fixed-config"
    )


def _only(view: StreamView, config: str) -> StreamView:
    option = fixed_option(view.retrain, config)
    return replace(view, retrain=(option,) if option else ())


def no_retrain(snapshot: Snapshot) -> Plan:
    """Everything to inference, evenly; a retraining in progress is left paused."""
    shares = [(share, 0) for share in split_evenly(snapshot.capacity_pct, len(snapshot.streams))]
    choices = [e.best(*pair) for e, pair in zip(_estimators(snapshot), shares, strict=True)]
    return build_plan(snapshot, "no-retrain", shares, choices, steps=1)


def _estimators(snapshot: Snapshot) -> list[StreamEstimator]:
    speed = SpeedCurve.of(snapshot)
    return [StreamEstimator.of(view, snapshot, speed) for view in snapshot.streams]
