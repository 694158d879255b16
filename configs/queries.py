"""What queries may be made of, known without importing any transform: names, parameters and knobs of the built-in ones, templates, and
what is wrong with a DAG. `edge.queries` holds the transforms themselves, and takes their knobs from here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from typing import Any, Literal

from configs.tasks import CLASSIFICATION
from configs.units import CLASSES

#: Entry point group of the transforms that installed packages bring.
GROUP = "driftbox.transforms"

#: No knob has a number so large.
KNOB_BELOW = 1e6

#: What a scene may hold beside its frame.
REGIONS, DETECTIONS, TRACKS = "regions", "detections", "tracks"


@dataclass(frozen=True, kw_only=True)
class KnobFacts:
    """A knob as a transform offers it: values, the default first; best: which of its values the golden configuration has.

    kind: what an operator may give it: a whole number or any number, from `least` on; a text; or one of `values` only (listed)."""

    name: str
    values: tuple[str | int | float | bool, ...]
    text: str
    kind: Literal["whole", "number", "text", "listed"]
    least: int = 0
    unit: str = ""
    best: Literal["first", "largest", "smallest"] = "first"

    def wrong(self, value: object) -> str:
        """What is wrong with a value that is to be allowed, in words; '' for nothing."""
        if self.kind == "listed":
            return "" if value in self.values else f"must be one of: {', '.join(map(str, self.values))}; not {value!r}"
        if self.kind == "text":
            return "" if isinstance(value, str) else f"must be text, not {value!r}"
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= self.least
        if number and (self.kind == "number" or isinstance(value, int)):
            return ""
        return f"must be a {'whole ' if self.kind == 'whole' else ''}number from {self.least} on, not {value!r}"

    def golden(self, values: Sequence[Any]) -> Any:
        """The best of `values`, which an operator may have chosen. 0 stands for all there is, so it is the largest."""
        if self.best == "first":
            return values[0]
        return min(values) if self.best == "smallest" else max(values, key=lambda value: value or math.inf)


@dataclass(frozen=True, kw_only=True)
class TransformFacts:
    """A built-in transform. params: its parameters; inputs: how many nodes it takes scenes from, at least and at most; needs, gives:
    what must be in the scene it gets, and what it adds."""

    text: str
    params: tuple[str, ...] = ()
    knobs: tuple[KnobFacts, ...] = ()
    inputs: tuple[int, int] = (1, 1)
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


_MODEL = KnobFacts(
    name="model", values=("",), kind="text", text="Known name or weights file; empty: the camera's own, which learns."
)

TRANSFORMS: dict[str, TransformFacts] = {
    "decode": TransformFacts(
        text="The camera's frames, at a rate and a resolution.", inputs=(0, 0),
        knobs=(
            KnobFacts(
                name="fps", values=(0, 5, 2, 1), kind="number", unit="frames/s", best="largest", text="Most frames taken; 0: every one."
            ),
            KnobFacts(
                name="height_px", values=(0, 480, 360, 240), kind="whole", unit="px", best="largest",
                text="Height they are reduced to; 0: as they come.",
            ),
        ),
    ),
    "motion": TransformFacts(
        text="What moves.", params=("memory_s", "max_regions"), gives=(REGIONS,),
        knobs=(
            KnobFacts(
                name="work_px", values=(320, 160), kind="whole", least=16, unit="px", best="largest",
                text="Longer side of the copy that is looked at.",
            ),
        ),
    ),
    "detect": TransformFacts(
        text="Objects in the picture.", params=("classes", "score_min"), gives=(DETECTIONS,),
        knobs=(
            _MODEL,
            KnobFacts(
                name="height_px", values=(0,), kind="whole", unit="px", best="largest",
                text="Height of the picture that the model gets; 0: as decoded.",
            ),
        ),
    ),
    "classify": TransformFacts(
        text="What the moving regions (or detections) show.", params=("classes", "score_min"), gives=(DETECTIONS,),
        knobs=(
            _MODEL,
            KnobFacts(
                name="crop_limit", values=(32, 16, 8, 4), kind="whole", least=1, unit="crops", best="largest",
                text="Most crops of a frame, the largest first.",
            ),
        ),
    ),
    "track": TransformFacts(
        text="Which detections are one object over time.", params=("lost_s", "start_score", "min_frames"), needs=(DETECTIONS,),
        gives=(TRACKS,),
        knobs=(
            KnobFacts(
                name="association", values=("bytetrack", "ocsort", "sort"), kind="listed",
                text="How detections are joined to tracks.",
            ),
        ),
    ),
    "count": TransformFacts(
        text="Objects in zones, per class.", params=("zones", "classes", "anchor"), needs=(DETECTIONS,)
    ),
    "lines": TransformFacts(
        text="Objects that cross lines, per class and direction.", params=("lines", "classes", "anchor", "min_frames"),
        needs=(TRACKS,),
    ),
    "dwell": TransformFacts(
        text="How long objects stay in zones.", params=("zones", "classes", "anchor", "least_s", "gap_s"), needs=(TRACKS,)
    ),
    "read": TransformFacts(
        text="Text in zones.", params=("zones", "score_min"),
        knobs=(
            KnobFacts(
                name="every", values=(1, 5, 25), kind="whole", least=1, unit="frames", best="smallest",
                text="Every how-many-th frame is read.",
            ),
        ),
    ),
}  # fmt: skip

#: Which transforms end a template, in front of which its other nodes stand.
TEMPLATES: tuple[str, ...] = ("count", "lines", "dwell", "read")
#: Which corner or side of a box says where an object is.
ANCHORS: tuple[str, ...] = ("bottom_center", "center", "corners")
#: The front of a template: of a camera that detects, and of one that classifies what moves.
_FRONTS: dict[str, tuple[str, ...]] = {"": ("decode", "detect"), CLASSIFICATION: ("decode", "motion", "classify")}


def known_transforms() -> tuple[str, ...]:
    """The built-in ones first, then those of installed packages, sorted. Reads package metadata only."""
    return (*TRANSFORMS, *sorted({entry.name for entry in metadata.entry_points(group=GROUP)} - set(TRANSFORMS)))


# --- templates --------------------------------------------------------------------------------------------------------


def expanded(entry: Mapping[str, Any], task: str) -> list[dict[str, Any]]:
    """The nodes of a query as plain mappings (id, transform, inputs, params, knobs), whether it was written as a template or node by
    node. Names of zones and lines in params are replaced by their corners, and a node that says none has all of the query's. entry: a
    query without problems (`query_problems`); task: of its camera."""
    nodes = _nodes_of_template(entry, task) if entry.get("template") else _nodes_as_written(entry)
    values = dict(entry.get("knobs") or {})
    for node in nodes:
        node["knobs"] = {
            **node["knobs"],
            **{k.partition(".")[2]: v for k, v in values.items() if k.partition(".")[0] == node["id"]},
        }
        node["params"] = {**_usual_params(entry, node["transform"]), **node["params"]}
        for what in ("zones", "lines"):
            if isinstance(chosen := node["params"].get(what), list | tuple):
                node["params"][what] = {name: entry[what][name] for name in chosen}
    return nodes


def _nodes_of_template(entry: Mapping[str, Any], task: str) -> list[dict[str, Any]]:
    template = entry["template"]
    front = ("decode",) if template == "read" else _FRONTS.get(task, _FRONTS[""])
    names = [*front, *(["track"] if TRACKS in TRANSFORMS[template].needs else []), template]
    inputs = [(), *((name,) for name in names)]
    return [
        {"id": name, "transform": name, "inputs": before, "params": {}, "knobs": {}}
        for name, before in zip(names, inputs, strict=False)
    ]


def _nodes_as_written(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = []
    for node in entry.get("nodes") or ():
        id = node.get("id") or node["transform"]
        nodes.append(
            {"id": id, "transform": node["transform"], "inputs": _inputs(node, nodes[-1]["id"] if nodes else None),
             "params": dict(node.get("params") or {}), "knobs": dict(node.get("knobs") or {})}
        )  # fmt: skip
    return nodes


def _inputs(node: Mapping[str, Any], before: str | None) -> tuple[str, ...]:
    """As written; else the node before it, if it takes one."""
    if node.get("inputs") is not None:
        return tuple(node["inputs"])
    facts = TRANSFORMS.get(node["transform"])
    takes_none = facts is not None and facts.inputs[1] == 0
    return () if before is None or takes_none else (before,)


def _usual_params(entry: Mapping[str, Any], transform: str) -> dict[str, Any]:
    """What a query says once for all of its nodes."""
    facts = TRANSFORMS.get(transform)
    takes = facts.params if facts is not None else ()
    usual: dict[str, Any] = {what: dict(entry[what]) for what in ("zones", "lines") if what in takes and entry.get(what)}
    if "classes" in takes and entry.get("classes") and transform not in ("detect", "classify"):
        usual["classes"] = list(entry["classes"])  # counted, not left out: detection is shared with other queries
    return usual


def own_models(entry: Mapping[str, Any], task: str) -> list[str]:
    """Nodes of a query that ask a model beside the camera's own: their places. entry: a query without problems."""
    usual = "classify" if task == CLASSIFICATION else "detect"
    found: list[str] = []
    for place, node in _with_places(entry, task) if _has_a_shape(entry) and not list(_of_form(entry)) else ():
        of_query = (entry.get("knobs") or {}).get(f"{node['id']}.model")
        models = of_query or node["knobs"].get("model") or ("",)
        asks = node["transform"] in ("detect", "classify")
        if asks and (node["transform"] != usual or any(model for model in models)):
            found.append(place)
    return found


# --- what is wrong ----------------------------------------------------------------------------------------------------


def query_problems(entry: Mapping[str, Any], task: str) -> list[tuple[str, str]]:
    """(path inside the query, text) of everything that one field alone does not show. entry: as read from YAML, perhaps of wrong types
    (which the schema reports); never raises."""
    if not _has_a_shape(entry):
        return []
    problems = list(_of_form(entry))
    if problems:
        return problems
    nodes = _with_places(entry, task)
    problems = [*_of_ids(nodes), *(p for place, node in nodes for p in _of_node(entry, place, node))]
    if not problems:
        problems = [*_of_order(nodes), *_of_needs(nodes)] or list(_of_values(entry, nodes))
    return problems


def _has_a_shape(entry: Mapping[str, Any]) -> bool:
    """Mappings and lists stand where they belong."""

    def mapping(value: object) -> bool:
        return value is None or isinstance(value, Mapping)

    nodes = entry.get("nodes")
    fields_are = all(mapping(entry.get(key)) for key in ("zones", "lines", "knobs"))
    nodes_are = nodes is None or (isinstance(nodes, list | tuple) and all(_is_node(node) for node in nodes))
    return fields_are and nodes_are and isinstance(entry.get("template", ""), str)


def _is_node(node: object) -> bool:
    if not isinstance(node, Mapping) or not isinstance(node.get("transform"), str) or not isinstance(node.get("id", ""), str):
        return False
    inputs = node.get("inputs")
    plain = all(node.get(key) is None or isinstance(node[key], Mapping) for key in ("params", "knobs"))
    return plain and (inputs is None or (isinstance(inputs, list | tuple) and all(isinstance(i, str) for i in inputs)))


def _of_form(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    template, nodes = entry.get("template") or "", entry.get("nodes") or ()
    if bool(template) == bool(nodes):
        yield "template", f"say either a template ({', '.join(TEMPLATES)}) or the nodes"
    elif template and template not in TEMPLATES:
        yield "template", f"there is no template {template!r}{_near(template, TEMPLATES)}; known: {', '.join(TEMPLATES)}"
    elif template == "lines" and not entry.get("lines"):
        yield "lines", "a query of template lines needs at least one line"
    elif template == "dwell" and not entry.get("zones"):
        yield "zones", "a query of template dwell needs at least one zone"


def _with_places(entry: Mapping[str, Any], task: str) -> list[tuple[str, dict[str, Any]]]:
    """Each node with the place it was written at."""
    if entry.get("template"):
        return [("template", node) for node in _nodes_of_template(entry, task)]
    return [(f"nodes[{at}]", node) for at, node in enumerate(_nodes_as_written(entry))]


def _of_ids(nodes: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for place, node in nodes:
        if node["id"] in seen:
            yield f"{place}.id", f"another node of this query is called {node['id']}; give each an id of its own"
        seen.add(node["id"])


def _of_node(entry: Mapping[str, Any], place: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name, known = node["transform"], known_transforms()
    if name not in known:
        yield f"{place}.transform", f"there is no transform {name!r}{_near(name, known)}; known: {', '.join(known)}"
        return
    facts = TRANSFORMS.get(name)
    if facts is None:  # a package's: it says itself what it takes, when it is loaded
        return
    least, most = facts.inputs
    if not least <= len(node["inputs"]) <= most:
        wanted = "no input: it takes the camera's frames" if most == 0 else f"{least} input{'s' if least > 1 else ''}"
        yield f"{place}.inputs", f"{name} takes {wanted}, not {len(node['inputs'])}"
    for param in node["params"]:
        if param not in facts.params:
            known_params = ", ".join(facts.params) or "none"
            yield (
                f"{place}.params.{param}",
                f"{name} has no parameter {param}{_near(param, facts.params)}; known: {known_params}",
            )
    for knob, values in node["knobs"].items():
        names = tuple(k.name for k in facts.knobs)
        if knob not in names:
            yield f"{place}.knobs.{knob}", f"{name} has no knob {knob}{_near(knob, names)}; known: {', '.join(names) or 'none'}"
        elif wrong := _wrong_choice(facts, knob, values):
            yield f"{place}.knobs.{knob}", wrong
    yield from _of_named(entry, place, node)
    for param, value in node["params"].items():
        wrong = _wrong_value(param, value)
        if param in facts.params and wrong:
            yield f"{place}.params.{param}", wrong


def _wrong_choice(facts: TransformFacts, knob: str, values: object) -> str:
    """What is wrong with the values that a knob of a built-in transform is allowed; '' for nothing, and for what the schema reports:
    what is no list, and numbers that no knob can have."""
    [known] = (k for k in facts.knobs if k.name == knob)
    listed = values if isinstance(values, list | tuple) else ()
    possible = [value for value in listed if not isinstance(value, int | float) or 0 <= value < KNOB_BELOW]
    return next((wrong for value in possible if (wrong := known.wrong(value))), "")


def _wrong_value(param: str, value: object) -> str:
    """What is wrong with a parameter's value; '' for nothing. Zones and lines are names, looked up elsewhere."""
    if param in ("zones", "lines"):
        return ""
    if param == "anchor":
        return "" if value in ANCHORS else f"must be one of: {', '.join(ANCHORS)}"
    if param == "classes":
        known = isinstance(value, list | tuple) and all(name in CLASSES for name in value)
        return "" if known else f"must be a list of classes: {', '.join(CLASSES)}"
    least, most = (1, 1000) if param in ("min_frames", "max_regions") else (0, 1) if "score" in param else (0, 86_400)
    number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if param == "memory_s":
        return "" if number and value else f"must be a number above {least}, at most {most}"
    whole = param not in ("min_frames", "max_regions") or isinstance(value, int)
    return "" if number and whole else f"must be a {'whole ' if least else ''}number from {least} to {most}"


def _of_named(entry: Mapping[str, Any], place: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Zones and lines that a node names."""
    for what in ("zones", "lines"):
        if what not in node["params"]:
            continue
        names, there = node["params"][what], tuple(entry.get(what) or ())
        if not isinstance(names, list | tuple):
            yield f"{place}.params.{what}", f"must be a list of names of the query's {what}"
            continue
        for name in names:
            if name not in there:
                yield f"{place}.params.{what}", f"the query has no {what[:-1]} {name!r}; it has: {', '.join(there) or 'none'}"
    if node["transform"] == "lines" and not (entry.get("lines") and node["params"].get("lines", True)):
        yield f"{place}.params.lines", "lines needs at least one of the query's lines"
    if node["transform"] == "dwell" and not (entry.get("zones") and node["params"].get("zones", True)):
        yield f"{place}.params.zones", "dwell needs at least one of the query's zones"


def _of_order(nodes: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    ids = [node["id"] for _, node in nodes]
    unknown = False
    for place, node in nodes:
        for wanted in node["inputs"]:
            if wanted not in ids:
                unknown = True
                yield f"{place}.inputs", f"there is no node {wanted!r}{_near(wanted, ids)}; nodes: {', '.join(ids)}"
    if unknown:
        return
    try:
        tuple(TopologicalSorter({node["id"]: node["inputs"] for _, node in nodes}).static_order())
    except CycleError as error:
        yield "nodes", f"the nodes run in a circle: {' -> '.join(error.args[1])}"


def _of_needs(nodes: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Nodes whose scene lacks what they need. A package's transform is taken to give anything."""
    by_id = {node["id"]: node for _, node in nodes}

    def given(id: str, seen: frozenset[str]) -> set[str]:
        node = by_id.get(id)
        if node is None or id in seen:
            return set()
        facts = TRANSFORMS.get(node["transform"])
        own = set(facts.gives) if facts else {REGIONS, DETECTIONS, TRACKS}
        return own.union(*(given(i, seen | {id}) for i in node["inputs"][:1]))

    found = []
    for place, node in nodes:
        facts = TRANSFORMS.get(node["transform"])
        has = set().union(*(given(i, frozenset()) for i in node["inputs"][:1]))
        lacks = [what for what in (facts.needs if facts else ()) if what not in has]
        makers = [name for name, f in TRANSFORMS.items() if set(lacks) & set(f.gives)]
        if lacks:
            found.append((f"{place}.inputs", f"{node['transform']} needs {lacks[0]}: put {' or '.join(makers)} before it"))
        if node["transform"] == "classify" and not has & {REGIONS, DETECTIONS}:
            found.append((f"{place}.inputs", "classify needs regions or detections: put motion or detect before it"))
    return found


def _of_values(entry: Mapping[str, Any], nodes: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """`knobs` of the query: `node.knob`."""
    by_id = {node["id"]: node for _, node in nodes}
    for path, values in (entry.get("knobs") or {}).items():
        id, _, knob = str(path).partition(".")
        if id not in by_id:
            yield (
                f"knobs.{path}",
                f"there is no node {id!r}{_near(id, tuple(by_id))}; write node.knob; nodes: {', '.join(by_id)}",
            )
            continue
        facts = TRANSFORMS.get(by_id[id]["transform"])
        names = tuple(k.name for k in facts.knobs) if facts else ()
        if facts and knob not in names:
            yield f"knobs.{path}", f"{id} has no knob {knob!r}{_near(knob, names)}; known: {', '.join(names) or 'none'}"
        elif facts and (wrong := _wrong_choice(facts, knob, values)):
            yield f"knobs.{path}", wrong


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
