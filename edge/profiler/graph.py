"""A query run over one clip with one setting after the other: what was computed once is not computed again. Card: VideoStorm,
section 4.

Improvement 2 of the paper's profiler keeps the output of every node under (clip, knobs of the node and of its ancestors). Here
it is kept
frame by frame under a *token* that says where it comes from: the node's transform, parameters and knob values, and the tokens of
what it
was given; for a node with state, of everything it was given since the clip began. So much more is found again than in the paper:

- a node that hands a frame on as it came, or holds it back (a rate knob), gives the token that it was given: what comes after it is
  computed once for all rates, because the frames of a low rate are among those of a high one;
- two nodes whose inputs happen to be the same share their outputs, whatever the knobs above them are called.

A setting is charged in full for its demand, cached or not; what profiling costs is only what was new (`Ledger`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edge.memo import Memo
from edge.queries.base import Cost, KnobValue, Meter, NodeSpec, Output, QuerySpec, Scene, Setting, Transform, run_over, total
from scheduler.types import Detections

#: What a node's transform is made by: (the node, the values of its knobs).
Make = Callable[[NodeSpec, Setting], Transform]
#: What stands before the query's nodes: decoding, which every setting needs whole, and making pictures of frames that are analysed.
SOURCE, PICTURE = "source", "picture"


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """What a query is profiled on. key: what identifies its pixels and times; scenes: its frames at the full rate, in order of
    time;
    seconds: of video that they stand for; decode: what decoding all of it took; picture: what turning one decoded frame into a
    picture
    takes, spent on frames that are analysed. Raises ValueError for no frames, or no time."""

    key: str
    scenes: Sequence[Scene]
    seconds: float
    decode: Cost = field(default_factory=Cost)
    picture: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        if not len(self.scenes) or not self.seconds > 0:
            raise ValueError(f"a clip needs frames and time, got {len(self.scenes)} frames in {self.seconds} s")


@dataclass(frozen=True, kw_only=True, eq=False)
class Item:
    """A frame on its way, and where it comes from."""

    token: str
    scene: Scene


@dataclass(frozen=True, kw_only=True, eq=False)
class Ran:
    """One setting over the clip. sinks: per node that no other takes, its scene for every frame of the clip, None where the
    frame went
    no further; costs: what each node takes for the whole clip, whether it really ran or not; work: token -> cost of everything it needs,
    decoding among it."""

    setting: Mapping[str, Any]
    sinks: Mapping[str, Sequence[Scene | None]]
    costs: Mapping[str, Cost]
    work: Mapping[str, Cost]

    def cost(self, nodes: Collection[str] | None = None) -> Cost:
        """Of these nodes (None: of all, and of decoding)."""
        return total(cost for node, cost in self.costs.items() if nodes is None or node in nodes)


class Ledger:
    """What one profiling run has spent: each piece of work once, however often it was needed."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.spent = Cost()

    def knows(self, tokens: Iterable[str]) -> bool:
        """Whether all of this work was done before."""
        return self._known.issuperset(tokens)

    def charge(self, ran: Ran) -> Cost:
        """What this setting added."""
        new = total(cost for token, cost in ran.work.items() if token not in self._known)
        self._known |= ran.work.keys()
        self.spent = self.spent + new
        return new


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept:
    """What a node made of a frame. passes: it gave on what it got; scene None (and not passes): the frame went no further."""

    cost: Cost
    passes: bool = False
    scene: Scene | None = None


class Graph:
    """A query over a clip. make: builds a node's transform; meter: what the thread has used so far; memo: keeps what nodes of
    `dear` say
    across runs (those that change no picture). Not thread-safe. Whatever a transform raises passes through `run`."""

    def __init__(
        self, spec: QuerySpec, clip: Clip, make: Make, *, meter: Meter, memo: Memo | None = None, dear: Collection[str] = ()
    ) -> None:
        self.spec, self.clip = spec, clip
        self._make, self._meter = make, meter
        self._memo, self._dear = memo, frozenset(dear)
        self._kept: dict[str, _Kept] = {}
        each = len(clip.scenes)
        self._source = [Item(token=_hash(clip.key, scene.frame.seq), scene=scene) for scene in clip.scenes]
        self._decode = {
            f"{SOURCE}/{i.token}": Cost(cpu_s=clip.decode.cpu_s / each, gpu_s=clip.decode.gpu_s / each) for i in self._source
        }

    def run(self, setting: Setting) -> Ran:
        """One setting over the whole clip. Raises UsageError for a setting that the query cannot have."""
        whole = self.spec.checked(setting)
        flows: dict[str, list[Item | None]] = {}
        work: dict[str, Cost] = dict(self._decode)
        costs = {SOURCE: self.clip.decode}
        for id in self.spec.order:
            node = self.spec.node(id)
            feeds = [flows[i] for i in node.inputs] or [list(self._source)]
            flows[id], mine = self._node(node, whole, feeds)
            costs[id] = total(mine.values())
            work.update(mine)
        sinks = {id: [None if item is None else item.scene for item in flows[id]] for id in self.spec.sinks}
        analysed = {i for scenes in sinks.values() for i, scene in enumerate(scenes) if scene is not None}
        pictures = {f"{PICTURE}/{self._source[i].token}": self.clip.picture for i in sorted(analysed)}
        costs[PICTURE] = total(pictures.values())
        return Ran(setting=whole, sinks=sinks, costs=costs, work=work | pictures)

    def is_free(self, setting: Setting, ledger: Ledger) -> bool:
        """Whether a setting asks nothing of the dear nodes that the ledger has not seen. What comes before them is run to find out."""
        whole = self.spec.checked(setting)
        flows: dict[str, list[Item | None]] = {}
        for id in self.spec.order:
            node = self.spec.node(id)
            feeds = [flows[i] for i in node.inputs] or [list(self._source)]
            if id in self._dear and not ledger.knows(token for token in self._tokens(node, whole, feeds) if token is not None):
                return False
            flows[id], _ = self._node(node, whole, feeds)
        return True

    def _tokens(self, node: NodeSpec, setting: Setting, feeds: Sequence[Sequence[Item | None]]) -> list[str | None]:
        values = _values(node, setting)
        rows = [_present(row) for row in zip(*feeds, strict=True)]
        return _tokens(_hash(node.transform, dict(node.params), values), rows, stateful=self._make(node, values).stateful)

    def _node(
        self, node: NodeSpec, setting: Setting, feeds: Sequence[Sequence[Item | None]]
    ) -> tuple[list[Item | None], dict[str, Cost]]:
        """(what it gives for every frame, token -> cost of what it did)."""
        values = _values(node, setting)
        transform = self._make(node, values)
        rows = [_present(row) for row in zip(*feeds, strict=True)]
        tokens = _tokens(_hash(node.transform, dict(node.params), values), rows, stateful=transform.stateful)
        self._fill(node, transform, rows, tokens)
        given: list[Item | None] = []
        costs: dict[str, Cost] = {}
        for row, token in zip(rows, tokens, strict=True):
            if row is None or token is None:
                given.append(None)
                continue
            kept = self._kept[token]
            costs[token] = kept.cost
            given.append(row[0] if kept.passes else _item(token, kept.scene))
        return given, costs

    def _fill(
        self, node: NodeSpec, transform: Transform, rows: Sequence[tuple[Item, ...] | None], tokens: Sequence[str | None]
    ) -> None:
        """Computes what is not known. A node with state is run over the clip from its start, another one on what is missing."""
        wanted = [(row, token) for row, token in zip(rows, tokens, strict=True) if row is not None and token is not None]
        missing = [(row, token) for row, token in wanted if not self._known(node, row, token)]
        if not missing:
            return
        todo = wanted if transform.stateful else missing
        feeds = [[row[i].scene for row, _ in todo] for i in range(len(todo[0][0]))]
        outputs = run_over(transform, feeds, meter=self._meter)
        for (row, token), output in zip(todo, outputs, strict=True):
            if (
                token not in self._kept
            ):  # what was measured first stays: a demand does not change because it was looked at again
                self._keep(node, row[0].scene, token, output)

    def _known(self, node: NodeSpec, row: tuple[Item, ...], token: str) -> bool:
        if token in self._kept:
            return True
        if self._memo is None or node.id not in self._dear:
            return False
        found = self._memo.json(_hash("node", token))
        if found is not None:
            self._kept[token] = _restored(found, row[0].scene)
        return found is not None

    def _keep(self, node: NodeSpec, got: Scene, token: str, output: Output) -> None:
        passes = output.scene is not None and _same(output.scene, got)
        self._kept[token] = _Kept(cost=output.cost, passes=passes, scene=None if passes else output.scene)
        plain = output.scene is None or output.scene.image is got.image
        if self._memo is not None and node.id in self._dear and plain:
            self._memo.keep_json(_hash("node", token), _kept_json(self._kept[token]))


def _same(given: Scene, got: Scene) -> bool:
    """Whether a node hands on what it was given: the very same things, and nothing told."""
    if given is got:
        return True
    names = [f.name for f in fields(Scene) if f.name != "told"]
    return not given.told and not got.told and all(getattr(given, name) is getattr(got, name) for name in names)


def _values(node: NodeSpec, setting: Setting) -> dict[str, KnobValue]:
    return {knob.name: setting[f"{node.id}.{knob.name}"] for knob in node.knobs}


def _present(row: Sequence[Item | None]) -> tuple[Item, ...] | None:
    """The inputs of one frame; None when one of them has held it back."""
    items = tuple(item for item in row if item is not None)
    return items if len(items) == len(row) else None


def _tokens(own: str, rows: Sequence[tuple[Item, ...] | None], *, stateful: bool) -> list[str | None]:
    """What a node's output for each frame depends on."""
    tokens: list[str | None] = []
    past = own
    for row in rows:
        if row is None:
            tokens.append(None)
            continue
        token = _hash(past, *(item.token for item in row))
        past = token if stateful else own
        tokens.append(token)
    return tokens


def _item(token: str, scene: Scene | None) -> Item | None:
    return None if scene is None else Item(token=token, scene=scene)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


# --- across runs ------------------------------------------------------------------------------------------------------


def _kept_json(kept: _Kept) -> dict[str, Any]:
    body: dict[str, Any] = {"cpu_s": kept.cost.cpu_s, "gpu_s": kept.cost.gpu_s, "passes": kept.passes}
    scene = kept.scene
    if scene is not None:
        body["scene"] = {
            "detections": _detections_json(scene.detections), "told": dict(scene.told),
            "regions": None if scene.regions is None else scene.regions.tolist(),
            "track_ids": None if scene.track_ids is None else scene.track_ids.tolist(),
        }  # fmt: skip
    return body


def _restored(body: Mapping[str, Any], got: Scene) -> _Kept:
    """From the memo; `got`: what the node was given, whose picture it did not change."""
    said, scene = body.get("scene"), None
    if said is not None:
        regions, track_ids = said["regions"], said["track_ids"]
        scene = got.with_(
            detections=_detections(said["detections"]), told=said["told"],
            regions=None if regions is None else np.array(regions, np.float32).reshape(-1, 4),
            track_ids=None if track_ids is None else np.array(track_ids, np.int64),
        )  # fmt: skip
    return _Kept(cost=Cost(cpu_s=body["cpu_s"], gpu_s=body["gpu_s"]), passes=body["passes"], scene=scene)


def _detections_json(found: Detections | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"xyxy": found.xyxy.tolist(), "score": found.score.tolist(), "class_id": found.class_id.tolist()}


def _detections(body: Mapping[str, Any] | None) -> Detections | None:
    if body is None:
        return None
    return Detections(
        xyxy=np.array(body["xyxy"], np.float32).reshape(-1, 4), score=np.array(body["score"], np.float32),
        class_id=np.array(body["class_id"], np.int64),
    )  # fmt: skip
