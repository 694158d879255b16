"""The one table of policies. A policy is a pure function from a snapshot to a plan; names are what people type.

    thief             Ekya's listing, one sweep                thief-repeat      sweeps until stable (the box's default)
    thief-thorough    steals of every size, two starts         fair              the thief's starting point
    optimal           exact: bounds, then dynamic programming  lookahead         plans with what completions will free
    uniform(C,W)      fixed configuration C, W % to inference  fixed-resources   uniform's split, configurations chosen
    fixed-config      thief with one configuration             no-retrain        everything to inference
    cloud             trained elsewhere, arrives later         cached(RULE)      a model of an earlier window serves again

C is `high`, `low` (see `scheduler.ekya.baselines`) or the name of an option; RULE is one of `scheduler.ekya.cached.RULES`.
`uniform` alone is the family of both fixed configurations at 30, 50 and 90 % for `expand`, and `uniform(high,50)` where a single
policy is wanted; `cached` likewise stands for its four rules, or for `cached(classes)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from configs.errors import UsageError
from scheduler.ekya.baselines import HIGH, LOW, fixed_config, fixed_resources, no_retrain, uniform
from scheduler.ekya.cached import RULES, cached
from scheduler.ekya.cloud import cloud
from scheduler.ekya.lookahead import lookahead
from scheduler.ekya.menu import Latitude
from scheduler.ekya.optimal import optimal
from scheduler.ekya.placing import Placed, placed
from scheduler.ekya.thief import fair, thief, thief_repeat, thief_thorough
from scheduler.types import Plan, Snapshot

Policy = Callable[[Snapshot], Plan]

#: Policies without parameters.
POLICIES: dict[str, Policy] = {
    "thief": thief,
    "thief-repeat": thief_repeat,
    "thief-thorough": thief_thorough,
    "optimal": optimal,
    "lookahead": lookahead,
    "fair": fair,
    "fixed-resources": fixed_resources,
    "fixed-config": fixed_config,
    "no-retrain": no_retrain,
    "cloud": cloud,
}

UNIFORM_FAMILY: tuple[str, ...] = tuple(f"uniform({config},{pct})" for config in (HIGH, LOW) for pct in (30, 50, 90))
CACHED_FAMILY: tuple[str, ...] = tuple(f"cached({rule})" for rule in RULES)
#: Names that stand for several policies in a list, and for the given one alone.
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "uniform": ("uniform(high,50)", UNIFORM_FAMILY),
    "cached": ("cached(classes)", CACHED_FAMILY),
}

_UNIFORM = re.compile(r"uniform\(\s*(?P<config>[^(),\s][^(),]*?)\s*,\s*(?P<pct>\d{1,3})\s*\)")
_CACHED = re.compile(r"cached\(\s*(?P<rule>[a-z]+)\s*\)")
_SEPARATOR = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a policy must be given. labels: golden labels to train on; profiles: predicted end quality and cost per option;
    useless: also options that are predicted to help nothing (a uniform policy retrains whether it helps or not); remote: all this
    happens elsewhere and costs the box nothing; cached: the models of earlier windows; infer_pct: part of the device that belongs to
    inference whatever happens, None: nothing is said."""

    labels: bool = True
    profiles: bool = True
    useless: bool = False
    remote: bool = False
    cached: bool = False
    infer_pct: int | None = None


_NEEDS: dict[str, Needs] = {
    "no-retrain": Needs(labels=False, profiles=False),
    "cloud": Needs(remote=True),
}


#: How far a plan may be changed to fit on the GPUs, by the name before any bracket; others may be changed in every way. A split
#: stays the split, only smaller; a fixed configuration is trained or not. lookahead names the shares of a first phase; the estimate
#: that a repair goes by sees no second one and would undo them.
_LATITUDE: dict[str, Latitude] = {
    "fair": Latitude(grow=False),
    "fixed-resources": Latitude(grow=False),
    "no-retrain": Latitude(grow=False),
    "cloud": Latitude(grow=False),
    "cached": Latitude(grow=False),
    "fixed-config": Latitude(swap=False),
    "uniform": Latitude(grow=False, swap=False),
    "lookahead": Latitude(grow=False, swap=False),
}


def known_policies() -> tuple[str, ...]:
    """Every name `make_policy` accepts, the parametrised ones by their pattern."""
    return (*POLICIES, "uniform", "uniform(CONFIG,INFER_PCT)", "cached", "cached(RULE)")


def make_policy(name: str) -> Placed:
    """The policy called `name`; for a snapshot with GPUs its plans fit on them (`placed`). Errors: UsageError listing the known
    ones."""
    return placed(_lookup(name)[0], _LATITUDE.get(name.strip().partition("(")[0], Latitude()))


def needs(name: str) -> Needs:
    """What the policy called `name` must be given. A uniform policy with a named configuration profiles nothing, like the
    original; `high` and `low` are read off the profiles. Errors: UsageError for an unknown policy."""
    return _lookup(name)[1]


def _lookup(name: str) -> tuple[Policy, Needs]:
    text = name.strip()
    if text in POLICIES:
        return POLICIES[text], _NEEDS.get(text, Needs())
    text = FAMILIES[text][0] if text in FAMILIES else text
    match = _UNIFORM.fullmatch(text)
    if match is not None and int(match["pct"]) <= 100:
        policy = partial(uniform, config=match["config"], infer_pct=int(match["pct"]))
        return policy, Needs(profiles=match["config"] in (HIGH, LOW), useless=True, infer_pct=int(match["pct"]))
    match = _CACHED.fullmatch(text)
    if match is not None and match["rule"] in RULES:
        return partial(cached, rule=match["rule"]), Needs(profiles=False, cached=True)
    raise UsageError(
        f"unknown policy '{name}'",
        subject=name,
        remedy=f"known: {', '.join(known_policies())}; CONFIG is high, low or an option's name, INFER_PCT is 0 to 100, "
        f"RULE is one of {', '.join(RULES)}",
    )


def expand(name: str) -> tuple[str, ...]:
    """The policies that one name stands for: itself, or for `uniform` and `cached` the whole family. Errors: UsageError."""
    make_policy(name)
    text = name.strip()
    return FAMILIES[text][1] if text in FAMILIES else (text,)


def expand_list(text: str) -> tuple[str, ...]:
    """A comma-separated list as typed (`thief-repeat,uniform,uniform(cfg1,40)`), expanded, doubles dropped, order kept.

    Errors: UsageError for an unknown or empty list.
    """
    names = [part.strip() for part in _SEPARATOR.split(text) if part.strip()]
    if not names:
        raise UsageError("no policy named", remedy=f"known: {', '.join(known_policies())}")
    return tuple(dict.fromkeys(each for name in names for each in expand(name)))
