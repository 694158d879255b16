"""Runs the queries of one camera over its frames, one frame at a time: equal prefixes once, faults contained. No thread of its own:
who gives up on a node that hangs is `edge.queries.live`.

Sharing. Nodes with the same key (`edge.queries.base.node_keys`: transform, parameters, knobs, inputs) are one *cell*. When a knob of
one query changes, its cells part from those of the others; a stateful cell is forked, so both go on with what was learnt. Cells without
state join again when their keys are the same again; two trackers that went different ways stay two.

Faults. A transform that throws, gives nonsense or is given up costs its query this frame. After `FaultRules.in_a_row` such frames the
query rests, with the reason, and is tried again later with a fresh transform in the place of the one that failed; each time it fails at
once again it rests twice as long.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from configs.errors import JobCancelled, redact
from edge.pool.turn import TooLate
from edge.queries.base import (
    Cost,
    KnobValue,
    Meter,
    NodeSpec,
    QuerySpec,
    Scene,
    Setting,
    Told,
    Tools,
    Transform,
    node_keys,
    scene_of,
)
from edge.queries.carried import Crossings, NodeState, QueryStates, Stays, Tracks
from edge.queries.checks import Nonsense, checked
from edge.queries.registry import build_node, transform_class

#: Kinds of faults, as counted.
RAISED, NONSENSE, HUNG = "raised", "nonsense", "hung"
#: A model that a node asks gave the frame up: it counts, and is no fault.
LATE = "late"


class GivenUp(Exception):
    """The thread that ran a node was given up while the node did not come back; it must touch nothing any more."""


@dataclass(frozen=True, kw_only=True)
class FaultRules:
    """in_a_row: failed frames after which a query rests, one that hung: at once; rest_s, rest_most_s: for how long, the first time and
    at most; well_frames: good frames after which an earlier rest is forgotten; node_s: how long a node may take for one frame before
    its thread is given up, first_s: the same for its first frame and the one after a change of its knobs, for which it may load a
    model; threads_max: threads that may be given up and not have come back; then a query that hangs rests for good."""

    in_a_row: int = 5
    rest_s: float = 30.0
    rest_most_s: float = 600.0
    well_frames: int = 100
    node_s: float = 5.0
    first_s: float = 120.0
    threads_max: int = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A query's answer about one frame. told: node id -> what it tells, of those that tell something; scene: of its last node. None
    of both: the frame was left out by a rate."""

    query: str
    seq: int
    at_s: float
    at_utc: float
    told: Mapping[str, Told]
    scene: Scene | None = None


@dataclass(kw_only=True)
class NodeStat:
    """What a node of a query did. cost: of all its runs; shared nodes show the cost in every query that uses them; late: frames that a
    model it asks gave up."""

    runs: int = 0
    cost: Cost = field(default_factory=Cost)
    faults: Counter[str] = field(default_factory=Counter)
    late: int = 0
    boxes_left_out: int = 0
    last_error: str = ""


@dataclass(eq=False, kw_only=True)
class _Cell:
    """A node that runs for one or more queries. What is to be done to its transform is done by the thread that runs it, guarded like
    everything a stranger's code does. transform None: it is built when it is first needed; twin_of: its state comes from there; pending:
    knobs to be told; interrupted: the stream was; carries: its memory can go to another box."""

    key: str
    node: NodeSpec
    values: dict[str, KnobValue]
    stateful: bool
    carries: bool = False
    transform: Transform | None = None
    twin_of: _Cell | None = None
    pending: dict[str, KnobValue] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class Busy:
    """What runs now. since_s: on the runner's clock; most_s: how long it may take."""

    transform: str
    since_s: float
    most_s: float


@dataclass(frozen=True, eq=False)
class _Run:
    """What a cell did in this frame. ran False: it was not asked, since no scene came to it."""

    scene: Scene | None
    cost: Cost = field(default_factory=Cost)
    fault: str = ""  # kind
    error: str = ""
    left_out: int = 0
    ran: bool = True


@dataclass(eq=False, kw_only=True)
class QueryState:
    """One query as it runs. reason: why it rests, '' while it does not."""

    spec: QuerySpec
    setting: dict[str, KnobValue]
    stats: dict[str, NodeStat]
    outcome: Outcome | None = None
    frames: int = 0
    failed_frames: int = 0
    reason: str = ""
    rests_until_s: float = 0.0
    rests: int = 0
    proving: bool = False  # it has rested and not come through a frame since
    in_a_row: int = 0
    well: int = 0


class QueryRunner:
    """`step` is called by one thread at a time; everything else may be called beside it.

    meter: what the calling thread has used so far; clock_s: the time, for who watches over it. cost: of all frames and nodes, shared
    ones once."""

    def __init__(
        self,
        specs: Iterable[QuerySpec],
        tools: Tools,
        *,
        meter: Meter,
        clock_s: Callable[[], float],
        rules: FaultRules | None = None,
    ) -> None:
        self.rules = rules or FaultRules()
        self._tools, self._meter, self._clock_s = tools, meter, clock_s
        self._lock = threading.RLock()
        self.queries: dict[str, QueryState] = {}
        self._cells: dict[str, dict[str, _Cell]] = {}  # query -> node id -> cell
        self._epoch = 0  # rises when a thread is given up: what belongs to an older one is dead
        self._busy: _Cell | None = None
        self._busy_since_s, self._busy_anew = 0.0, False
        self.cost = Cost()
        self._size_px: tuple[int, int] | None = None
        self._last_s: float | None = None
        for spec in specs:
            self._add(spec)

    # --- knobs and cells ----------------------------------------------------------------------------------------------

    def _add(self, spec: QuerySpec) -> None:
        if spec.name in self.queries:
            raise ValueError(f"two queries are called {spec.name}")
        setting = spec.default_setting()
        self.queries[spec.name] = QueryState(spec=spec, setting=setting, stats={node.id: NodeStat() for node in spec.nodes})
        keys, known = node_keys(spec, setting), {cell.key: cell for cell in self._all_cells()}
        cells: dict[str, _Cell] = {}
        for id in spec.order:
            cells[id] = known.setdefault(keys[id], _new_cell(spec.node(id), keys[id], _values(spec, id, setting)))
        self._cells[spec.name] = cells

    def set_knobs(self, query: str, setting: Setting) -> None:
        """Takes effect with the next frame; what is not named keeps its value. State is kept. Raises UsageError for a knob or a value
        that the query does not have (then nothing changes), KeyError for an unknown query."""
        state = self.queries[query]
        with self._lock:
            wanted = state.spec.checked({**state.setting, **setting})
            if wanted == state.setting:
                return
            keys, cells = node_keys(state.spec, wanted), self._cells[query]
            for id in state.spec.order:
                if keys[id] != cells[id].key:
                    cells[id] = self._moved(query, id, keys[id], _values(state.spec, id, wanted))
            state.setting = wanted

    def _moved(self, query: str, id: str, key: str, values: dict[str, KnobValue]) -> _Cell:
        """The cell that a node has under its new key."""
        cell = self._cells[query][id]
        same = next((c for c in self._all_cells() if c.key == key and not c.stateful), None)
        if same is not None:
            return same
        if any(c is cell for name, cells in self._cells.items() for other, c in cells.items() if (name, other) != (query, id)):
            cell = _Cell(
                key=cell.key, node=cell.node, values=cell.values, stateful=cell.stateful, carries=cell.carries, twin_of=cell,
                pending=dict(cell.pending), interrupted=cell.interrupted,
            )  # fmt: skip
        cell.pending |= {name: value for name, value in values.items() if cell.values[name] != value}
        cell.key, cell.values = key, values
        return cell

    def _all_cells(self) -> Iterable[_Cell]:
        return [cell for cells in self._cells.values() for cell in cells.values()]

    def cells(self) -> int:
        """How many nodes really run, whatever number of queries shares them."""
        return len({id(cell) for cell in self._all_cells()})

    # --- on another box -----------------------------------------------------------------------------------------------

    def carried(self) -> QueryStates | None:
        """What the queries remember after the last frame; None: there was none. A package's own transforms are not in it. Not while
        `step` runs."""
        if self._size_px is None or self._last_s is None:
            return None
        nodes: dict[str, list[NodeState]] = {}
        for name, cells in self._cells.items():
            shape, nodes[name] = shapes(self.queries[name].spec), []
            for id, cell in cells.items():
                transform: object = (cell.twin_of or cell).transform
                if isinstance(transform, Carrying):
                    nodes[name].append(NodeState(id=id, shape=shape[id], state=transform.carried(self._last_s)))
        return QueryStates(size_px=self._size_px, nodes=nodes)

    def take_on(self, state: QueryStates, base_s: float) -> list[str]:
        """Goes on from another box's state, before the next frame; what begins anew, in words. base_s: when the frame was, by our
        clock, that the state was taken after. Not while `step` runs."""
        anew, done = list[str](), set[_Cell]()
        with self._lock:
            self._size_px, self._last_s = state.size_px, base_s
            for name, query in self.queries.items():
                shape, given = shapes(query.spec), {node.id: node for node in state.nodes.get(name, ())}
                for id, cell in self._cells[name].items():
                    if not cell.carries or cell in done:
                        continue
                    done.add(cell)
                    node = given.get(id)
                    why = "nothing came of it" if node is None else "it was asked otherwise" if node.shape != shape[id] else ""
                    if node is not None and not why:
                        why = self._taken_on(cell, node, base_s)
                    anew += [f"{name}.{id}: {why}"] if why else []
        return anew

    def _taken_on(self, cell: _Cell, node: NodeState, base_s: float) -> str:
        try:
            transform = build_node(cell.node, self._tools, cell.values)
            assert isinstance(transform, Carrying)
            transform.take_on(node.state, base_s)
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            return said_of(error)
        cell.transform, cell.twin_of, cell.pending, cell.interrupted = transform, None, {}, False
        return ""

    # --- frames -------------------------------------------------------------------------------------------------------

    def step(self, scene: Scene) -> list[Outcome]:
        """One frame through all queries that do not rest; the answers of those that came to one. scene: as `scene_of` gives it. Raises
        GivenUp when this thread was given up meanwhile; nothing a transform does raises."""
        now_s = self._clock_s()
        with self._lock:
            epoch = self._epoch
            plan = [(state, dict(self._cells[name])) for name, state in self.queries.items() if self._may_run(state, now_s)]
            twins = [cell for cell in self._all_cells() if cell.twin_of is not None]
        for cell in twins:  # before anything runs, so that both have seen the same frames
            self._part(cell, epoch)
        scene = self._placed(scene)
        done: dict[tuple[int, ...], _Run] = {}
        return [outcome for state, cells in plan if (outcome := self._one(state, cells, scene, done, now_s, epoch)) is not None]

    def _part(self, cell: _Cell, epoch: int) -> None:
        """Gives a cell its own copy of the state it shared."""
        source, cell.twin_of = cell.twin_of, None
        if source is None or source.transform is None:
            return
        with self._lock:
            self._busy, self._busy_since_s, self._busy_anew = cell, self._clock_s(), False
        try:
            twin = source.transform.fork()
        except Exception:  # a stranger's fork: the copy begins anew
            twin = None
        self._end(cell, twin, epoch)

    def _may_run(self, state: QueryState, now_s: float) -> bool:
        if state.reason and now_s < state.rests_until_s:
            return False
        state.reason = ""
        return True

    def _placed(self, scene: Scene) -> Scene:
        """The scene in the px of the camera's first picture, while its shape stays; another shape, or a time that runs backwards, is
        another stream to everybody who remembers."""
        own = scene.frame.size_px
        if self._size_px is None or not _same_shape(own, self._size_px):
            self._size_px = own
            self._interrupt()
        if self._last_s is not None and scene.at_s < self._last_s:
            self._interrupt()
        self._last_s = scene.at_s
        return scene if scene.size_px == self._size_px else scene_of(scene.frame, size_px=self._size_px, shown=scene.shown)

    def _interrupt(self) -> None:
        with self._lock:
            for cell in self._all_cells():
                cell.interrupted = True

    def _one(
        self, state: QueryState, cells: Mapping[str, _Cell], scene: Scene, done: dict[tuple[int, ...], _Run], now_s: float,
        epoch: int,
    ) -> Outcome | None:  # fmt: skip
        """One query's way through one frame. done: what cells gave in this frame already, by id() of the cell and of its inputs."""
        scenes: dict[str, Scene | None] = {}
        for id_ in state.spec.order:
            node, cell = state.spec.node(id_), cells[id_]
            inputs = [scenes[i] for i in node.inputs] if node.inputs else [scene]
            asked = (id(cell), *map(id, inputs))
            if asked not in done:
                done[asked] = self._run(cell, inputs, epoch)
            run = done[asked]
            self._note(state.stats[id_], run)
            if run.fault == LATE:
                return None
            if run.fault:
                self._failed(state, cell, id_, run, now_s)
                return None
            scenes[id_] = run.scene
        return self._answered(state, scenes, scene)

    def _run(self, cell: _Cell, inputs: Sequence[Scene | None], epoch: int) -> _Run:
        given = [scene for scene in inputs if scene is not None]
        if len(given) < len(inputs):
            return _Run(None, ran=False)
        pending, interrupted, transform = self._begin(cell)
        before = self._meter()
        try:
            transform = self._ready(cell, transform, pending, interrupted)
            out, left_out = checked(transform.process(given[0], given[1:]), given[0])
            run = _Run(out, self._meter() - before, left_out=left_out)
        except (TooLate, JobCancelled) as error:
            run = _Run(None, self._meter() - before, LATE, said_of(error))
        except Exception as error:  # whatever a transform raises costs its query this frame, and nobody else anything
            kind = NONSENSE if isinstance(error, Nonsense) else RAISED
            run = _Run(None, self._meter() - before, kind, said_of(error))
            transform = None if pending or interrupted else transform  # half of it may have been told: a fresh one is
        self._end(cell, transform, epoch)
        self.cost += run.cost
        return run

    def _ready(
        self, cell: _Cell, transform: Transform | None, pending: Mapping[str, KnobValue], interrupted: bool
    ) -> Transform:
        if transform is None:
            return build_node(cell.node, self._tools, cell.values)
        for name, value in pending.items():
            transform.update(name, value)
        if interrupted:
            transform.interrupt()
        return transform

    def _begin(self, cell: _Cell) -> tuple[dict[str, KnobValue], bool, Transform | None]:
        """From here on the thread may be given up. What is to be told to the transform, and the transform."""
        with self._lock:
            pending, interrupted = cell.pending, cell.interrupted
            self._busy, self._busy_since_s = cell, self._clock_s()
            self._busy_anew = cell.transform is None or bool(pending)
            cell.pending, cell.interrupted = {}, False
            return pending, interrupted, cell.transform

    def _end(self, cell: _Cell, transform: Transform | None, epoch: int) -> None:
        with self._lock:
            if epoch != self._epoch:
                raise GivenUp
            self._busy, cell.transform = None, transform

    def _note(self, stat: NodeStat, run: _Run) -> None:
        stat.runs += run.ran
        stat.cost += run.cost
        stat.boxes_left_out += run.left_out
        if run.fault == LATE:
            stat.late += 1
        elif run.fault:
            stat.faults[run.fault] += 1
            stat.last_error = run.error

    def _answered(self, state: QueryState, scenes: Mapping[str, Scene | None], scene: Scene) -> Outcome | None:
        state.in_a_row, state.proving = 0, False
        state.well += 1
        if state.well >= self.rules.well_frames:
            state.rests = 0
        last = [scenes[id] for id in state.spec.sinks]
        if all(found is None for found in last):
            return None
        state.frames += 1
        told = {id: found.told for id, found in scenes.items() if found is not None and found.told}
        frame = scene.frame
        state.outcome = Outcome(
            query=state.spec.name, seq=frame.seq, at_s=frame.captured_s, at_utc=frame.captured_utc, told=told,
            scene=next((found for found in reversed(last) if found is not None), None),
        )  # fmt: skip
        return state.outcome

    # --- faults -------------------------------------------------------------------------------------------------------

    def _failed(self, state: QueryState, cell: _Cell, node_id: str, run: _Run, now_s: float, *, for_good: bool = False) -> None:
        state.failed_frames += 1
        state.in_a_row += 1
        state.well = 0
        if state.in_a_row < self.rules.in_a_row and not state.proving and run.fault != HUNG:
            return
        rest_s = math.inf if for_good else min(self.rules.rest_most_s, self.rules.rest_s * 2 ** min(state.rests, 30))
        state.rests_until_s, state.reason = now_s + rest_s, f"{node_id}: {run.error}"
        state.rests += 1
        state.in_a_row, state.proving = 0, True
        with self._lock:
            cell.transform = None  # a fresh one when it is tried again

    def busy(self) -> Busy | None:
        """The transform that runs now; None: none."""
        with self._lock:
            cell, rules = self._busy, self.rules
            if cell is None:
                return None
            most_s = rules.first_s if self._busy_anew else rules.node_s
            return Busy(transform=cell.node.transform, since_s=self._busy_since_s, most_s=most_s)

    def give_up(self, *, for_good: bool = False) -> bool:
        """The thread inside `step` does not come back: its node is replaced by a fresh one, the queries that use it rest (for_good:
        until the box is started again), and `step` may be called by another thread. False: no node ran, and nothing happened."""
        with self._lock:
            cell = self._busy
            if cell is None:
                return False
            self._epoch += 1
            took_s = self._clock_s() - self._busy_since_s
            self._busy, cell.transform = None, None
            run = _Run(None, fault=HUNG, error=f"did not come back from one frame in {took_s:.0f} s")
            for name, cells in self._cells.items():
                for id_ in [i for i, c in cells.items() if c is cell]:
                    self._note(self.queries[name].stats[id_], run)
                    self._failed(self.queries[name], cell, id_, run, self._clock_s(), for_good=for_good)
            return True

    def front(self) -> dict[str, dict[str, KnobValue]]:
        """Query -> the knobs of its front (decode, detect, classify, motion) as set: what the camera's own worker is to do for all."""
        fronts = ("decode", "motion", "detect", "classify")
        with self._lock:
            return {
                name: {
                    path: value for path, value in state.setting.items()
                    if state.spec.node(path.partition(".")[0]).transform in fronts
                }
                for name, state in self.queries.items()
            }  # fmt: skip


@runtime_checkable
class Carrying(Protocol):
    """A transform whose memory can go to another box."""

    def carried(self, at_s: float) -> Tracks | Crossings | Stays: ...

    def take_on(self, state: Any, base_s: float) -> None:
        """ValueError: it is none of this transform's, or of another place."""


def shapes(spec: QuerySpec) -> dict[str, str]:
    """What each node asks, with all before it, whatever their knobs are: two nodes of one shape can go on with each other's state."""
    found: dict[str, str] = {}
    for id in spec.order:
        node = spec.node(id)
        text = json.dumps([node.transform, dict(node.params), [found[i] for i in node.inputs]], sort_keys=True, default=str)
        found[id] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return found


def _new_cell(node: NodeSpec, key: str, values: dict[str, KnobValue]) -> _Cell:
    kind = transform_class(node.transform)
    carries = all(hasattr(kind, name) for name in ("carried", "take_on"))
    return _Cell(key=key, node=node, values=values, stateful=kind.stateful, carries=carries)


def _values(spec: QuerySpec, id: str, setting: Setting) -> dict[str, KnobValue]:
    return {knob.name: setting[f"{id}.{knob.name}"] for knob in spec.node(id).knobs}


def _same_shape(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes may be one picture at two resolutions: encoders round heights to even numbers."""
    return abs(a[0] * b[1] - b[0] * a[1]) <= 0.02 * a[0] * b[1]


def said_of(error: BaseException) -> str:
    """What an operator reads of a fault."""
    return redact(f"{type(error).__name__}: {error}" if not isinstance(error, Nonsense) else str(error))[:300]
