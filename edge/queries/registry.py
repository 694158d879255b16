"""Transforms by name: the built-in ones and those that installed packages bring (entry point group `driftbox.transforms`); and queries
made of what the configuration says.

A package's transform is looked at before it is used; one that cannot be imported or lacks a method is refused by name. Who builds a
query of it contains that (`edge.queries.live`): the query is shown as out of use, its camera goes on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import EnvironmentLacking, UsageError
from configs.plug_ins import announced, package_of
from configs.queries import GROUP, TRANSFORMS, expanded
from configs.schema.queries import QueryEntry
from edge.queries.base import Knob, KnobValue, NodeSpec, QuerySpec, Setting, Tools, Transform, TransformKind
from edge.queries.facts import knob_of
from edge.queries.places import Count, Dwell, Lines, Track
from edge.queries.seen import Classify, Decode, Detect, MotionRegions
from edge.queries.text import Read

BUILT_IN: dict[str, TransformKind] = {
    kind.name: kind for kind in (Decode, MotionRegions, Detect, Classify, Track, Count, Lines, Dwell, Read)
}

#: How each method is called: number of positional arguments.
_CALLS = {"process": 2, "update": 2, "reset": 0, "interrupt": 0, "fork": 0}


def transform_class(name: str) -> TransformKind:
    """The class of that name. Raises UsageError for a name nobody has, or that two packages have; EnvironmentLacking for a package
    whose transform cannot be used; both say which package."""
    entries = [entry for entry in announced(GROUP) if entry.name == name]
    if name in BUILT_IN:
        return BUILT_IN[name]
    if not entries:
        raise UsageError(f"there is no transform {name!r}", subject=name, remedy=f"known: {', '.join(BUILT_IN)}")
    if len(entries) > 1:
        packages = ", ".join(package_of(entry) for entry in entries)
        raise UsageError(
            f"more than one package brings a transform {name!r}: {packages}", subject=name, remedy="uninstall all but one"
        )
    [entry] = entries
    try:
        kind: TransformKind = entry.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does while it is imported
        raise _broken(package_of(entry), name, f"{entry.value} cannot be imported ({type(error).__name__}: {error})") from error
    problems = problems_of(kind)
    if problems:
        raise _broken(package_of(entry), name, "; ".join(problems))
    return kind


def _broken(package: str, name: str, why: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the transform {name!r} of the package {package} cannot be used: {why}", subject=package,
        remedy="ask its maker for a version that fits this Driftbox (docs/serving.md), or uninstall it",
    )  # fmt: skip


def problems_of(kind: Any) -> list[str]:
    """What keeps an object from being a transform's class, in words; empty for one that can be used."""
    looked_at = kind
    if not inspect.isclass(looked_at):
        return ["the entry point must name a class"]
    wrong = [f"it has no {field}" for field in ("name", "knobs", "params", "stateful") if not hasattr(kind, field)]
    if not wrong and not all(isinstance(knob, Knob) for knob in kind.knobs):
        wrong.append("its knobs must be edge.queries.base.Knob")
    return wrong + [text for method, count in _CALLS.items() if (text := _problem_of_method(kind, method, count))]


def _problem_of_method(kind: type, name: str, count: int) -> str:
    method = getattr(kind, name, None)
    if not callable(method):
        return f"it has no method {name}"
    try:
        inspect.signature(method).bind(*[None] * (count + 1))
    except TypeError as error:
        return f"its method {name} cannot be called as Driftbox does ({error})"
    return ""


def build_node(node: NodeSpec, tools: Tools, values: Mapping[str, KnobValue] | None = None) -> Transform:
    """A fresh transform. values: of its knobs, by their own names; None: the defaults of `node`. Raises what `transform_class` raises,
    UsageError for parameters or knobs that it does not have."""
    kind = transform_class(node.transform)
    unknown = [name for name in node.params if name not in kind.params]
    if unknown:
        raise UsageError(
            f"{node.transform} has no parameter {unknown[0]}", subject=node.id,
            remedy=f"known: {', '.join(kind.params) or 'none'}",
        )  # fmt: skip
    transform = kind(node.params, tools)
    wanted = {knob.name: knob.default for knob in node.knobs} | dict(values or {})
    for name, value in wanted.items():
        transform.update(name, value)
    return transform


def build_query(spec: QuerySpec, tools: Tools, setting: Setting | None = None) -> dict[str, Transform]:
    """Fresh transforms of all nodes, by id. setting: None: the defaults."""
    values = spec.checked(setting or {})
    return {
        node.id: build_node(node, tools, {knob.name: values[f"{node.id}.{knob.name}"] for knob in node.knobs})
        for node in spec.nodes
    }


def query_spec(entry: QueryEntry, *, task: str, may_lag: bool = False) -> QuerySpec:
    """What the configuration says, as a query. entry: one that passed the configuration's checks; task, may_lag: of its camera. Raises
    what `transform_class` raises for a package's transform, UsageError for knobs that it does not have."""
    nodes = tuple(_node_spec(node) for node in expanded(entry.model_dump(), task))
    return QuerySpec(
        name=entry.name, nodes=nodes, quality_goal=entry.quality_goal, lag_goal_s=entry.lag_goal_s,
        quality_weight=entry.quality_weight, lag_weight_per_s=entry.lag_weight, quality_penalty=entry.quality_penalty,
        may_lag=may_lag,
    )  # fmt: skip


def _node_spec(node: Mapping[str, Any]) -> NodeSpec:
    return NodeSpec(
        id=node["id"], transform=node["transform"], inputs=tuple(node["inputs"]), params=dict(node["params"]),
        knobs=_knobs(node["transform"], node["knobs"]),
    )  # fmt: skip


def _knobs(transform: str, values: Mapping[str, Sequence[KnobValue]]) -> tuple[Knob, ...]:
    """A transform's knobs with the values that the operator allows."""
    facts = TRANSFORMS.get(transform)
    if facts is not None:
        return tuple(knob_of(knob, values.get(knob.name)) for knob in facts.knobs)
    declared = transform_class(transform).knobs
    unknown = [name for name in values if name not in {knob.name for knob in declared}]
    if unknown:
        known = ", ".join(knob.name for knob in declared) or "none"
        raise UsageError(f"{transform} has no knob {unknown[0]}", subject=transform, remedy=f"known: {known}")
    return tuple(
        Knob(name=knob.name, values=tuple(values.get(knob.name, knob.values)), unit=knob.unit, help=knob.help)
        if knob.name in values
        else knob
        for knob in declared
    )
