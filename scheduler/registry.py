"""The one table of policies. A policy is a pure function from a snapshot to a plan; names are what people type.

    thief             Ekya's listing, one sweep                thief-repeat      sweeps until stable (the box's default)
    optimal           exact, by dynamic programming            fair              the thief's starting point
    uniform(C,W)      fixed configuration C, W % to inference  fixed-resources   uniform's split, configurations chosen
    fixed-config      thief with one configuration             no-retrain        everything to inference

C is `high`, `low` (see `scheduler.ekya.baselines`) or the name of an option. `uniform` alone is the family of both fixed
configurations at 30, 50 and 90 % for `expand`, and `uniform(high,50)` where a single policy is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from configs.errors import UsageError
from scheduler.ekya.baselines import HIGH, LOW, fixed_config, fixed_resources, no_retrain, uniform
from scheduler.ekya.optimal import optimal
from scheduler.ekya.thief import fair, thief, thief_repeat
from scheduler.types import Plan, Snapshot

Policy = Callable[[Snapshot], Plan]

#: Policies without parameters.
POLICIES: dict[str, Policy] = {
    "thief": thief,
    "thief-repeat": thief_repeat,
    "optimal": optimal,
    "fair": fair,
    "fixed-resources": fixed_resources,
    "fixed-config": fixed_config,
    "no-retrain": no_retrain,
}

UNIFORM_FAMILY: tuple[str, ...] = tuple(f"uniform({config},{pct})" for config in (HIGH, LOW) for pct in (30, 50, 90))
UNIFORM_DEFAULT = "uniform(high,50)"

_UNIFORM = re.compile(r"uniform\(\s*(?P<config>[^(),\s][^(),]*?)\s*,\s*(?P<pct>\d{1,3})\s*\)")
_SEPARATOR = re.compile(r",(?![^(]*\))")


def known_policies() -> tuple[str, ...]:
    """Every name `make_policy` accepts, the parametrised one by its pattern."""
    return (*POLICIES, "uniform", "uniform(CONFIG,INFER_PCT)")


def make_policy(name: str) -> Policy:
    """The policy called `name`. Errors: UsageError listing the known ones."""
    text = name.strip()
    if text in POLICIES:
        return POLICIES[text]
    match = _UNIFORM.fullmatch(UNIFORM_DEFAULT if text == "uniform" else text)
    if match is not None and int(match["pct"]) <= 100:
        return partial(uniform, config=match["config"], infer_pct=int(match["pct"]))
    raise UsageError(
        f"unknown policy '{name}'",
        subject=name,
        remedy=f"known: {', '.join(known_policies())}; CONFIG is high, low or an option's name, INFER_PCT is 0 to 100",
    )


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a policy must be given. labels: golden labels to train on; profiles: predicted end quality and cost per option;
    useless: also options that are predicted to help nothing (a uniform policy retrains whether it helps or not)."""

    labels: bool
    profiles: bool
    useless: bool = False


def needs(name: str) -> Needs:
    """What the policy called `name` must be given. A uniform policy with a named configuration profiles nothing, like the
    original; `high` and `low` are read off the profiles. Errors: UsageError for an unknown policy."""
    policy = make_policy(name)
    if policy is no_retrain:
        return Needs(labels=False, profiles=False)
    if isinstance(policy, partial):
        return Needs(labels=True, profiles=policy.keywords["config"] in (HIGH, LOW), useless=True)
    return Needs(labels=True, profiles=True)


def expand(name: str) -> tuple[str, ...]:
    """The policies that one name stands for: itself, or for `uniform` its whole family. Errors: UsageError."""
    make_policy(name)
    return UNIFORM_FAMILY if name.strip() == "uniform" else (name.strip(),)


def expand_list(text: str) -> tuple[str, ...]:
    """A comma-separated list as typed (`thief-repeat,uniform,uniform(cfg1,40)`), expanded, doubles dropped, order kept.

    Errors: UsageError for an unknown or empty list.
    """
    names = [part.strip() for part in _SEPARATOR.split(text) if part.strip()]
    if not names:
        raise UsageError("no policy named", remedy=f"known: {', '.join(known_policies())}")
    return tuple(dict.fromkeys(each for name in names for each in expand(name)))
