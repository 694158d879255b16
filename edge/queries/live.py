"""The queries of a camera on what people are shown: the camera's worker has decoded and detected, the rest runs on a thread of its own.

The worker hands over each frame it has analysed (`on_shown`) and goes on at once: there is one place for a frame, and the newest wins. A
frame that was replaced before the thread came to it is counted as skipped. A node that does not come back is noticed when the next frame
comes, or when somebody asks for the status: its thread is given up, another goes on without it.

What runs here is not held to a share: tracks, zones and lines take about a millisecond a frame. What a query costs is metered, shown per
node, and part of what its camera is planned to need (`edge.profiler.asked`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from configs.errors import DriftboxError, UsageError, redact
from configs.schema.queries import QueryEntry
from edge.clock import Clock
from edge.inference import Shown
from edge.pool.turn import Turn, taken
from edge.queries.base import Cost, KnobValue, Meter, QuerySpec, Scene, Setting, Told, Tools, scene_of
from edge.queries.carried import QueryStates
from edge.queries.registry import query_spec
from edge.queries.runner import FaultRules, GivenUp, NodeStat, Outcome, QueryRunner, QueryState
from scheduler.knob_loop import together
from scheduler.videostorm.types import Utility

log = logging.getLogger("driftbox")


#: Frames over which a frame's cost is averaged, and fewest to say something.
COSTS_KEPT, COSTS_LEAST = 64, 16
#: Most of a frame's time until its deadline that its queries may claim.
AFTER_FRAC = 0.5

State = Literal["running", "waiting", "resting", "unusable"]


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node of a running query. cpu_s, gpu_s: mean of a frame; faults: how often it raised, hung, gave nonsense; late: how often a
    model that it asks gave the frame up."""

    id: str
    transform: str
    runs: int
    cpu_s: float
    gpu_s: float
    faults: Mapping[str, int]
    late: int
    boxes_left_out: int
    last_error: str


@dataclass(frozen=True, kw_only=True)
class QueryReport:
    """One query. state: `running`, `waiting` (no frame yet), `resting` (failed too often, tried again in `again_s`, None: not before a
    restart) or `unusable` (what it needs is not there). told: node id -> what it told of the newest frame, at_utc and lag_s: of that
    frame; frames: answered; failed_frames: on which a node failed."""

    name: str
    state: State
    reason: str = ""
    again_s: float | None = None
    setting: Setting
    told: Mapping[str, Told]
    at_utc: float | None = None
    lag_s: float | None = None
    frames: int = 0
    failed_frames: int = 0
    nodes: tuple[NodeReport, ...] = ()


def specs_of(
    entries: Iterable[QueryEntry], *, task: str, may_lag: bool = False
) -> tuple[tuple[QuerySpec, ...], dict[str, str]]:
    """The queries that can run, and the name and reason of each that cannot (a package that does not import, say). task, may_lag: of
    their camera."""
    usable, broken = [], {}
    for entry in entries:
        if not entry.enabled:
            continue
        try:
            usable.append(query_spec(entry, task=task, may_lag=may_lag))
        except Exception as error:  # ours, or whatever a stranger's class does
            broken[entry.name] = redact(str(error) if isinstance(error, DriftboxError) else f"{type(error).__name__}: {error}")
    return tuple(usable), broken


class CameraQueries:
    """Runs until `stop`. broken: queries that cannot run, and why; close: gives back what the tools hold.

    on_outcome: told each answer, in the queries' thread; what it raises is logged."""

    def __init__(
        self,
        specs: Iterable[QuerySpec],
        tools: Tools,
        *,
        clock: Clock,
        meter: Meter | None = None,
        rules: FaultRules | None = None,
        broken: Mapping[str, str] | None = None,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.camera_id = tools.camera_id
        self.broken = dict(broken or {})
        self.on_outcome = on_outcome
        self._close = close
        self.skipped = 0
        self._clock = clock
        self._rules = rules or FaultRules()
        self.runner = QueryRunner(specs, tools, meter=meter or cpu_meter(clock), clock_s=clock.monotonic_s, rules=self._rules)
        self._changed = threading.Condition()
        self._waiting: Scene | None = None  # the one place for a frame
        self._stepping = False
        self._thread: threading.Thread | None = None
        self._given_up: list[threading.Thread] = []
        self._stopping = False
        self._lags_s: dict[str, float] = {}
        self._spent_s: deque[tuple[float, float]] = deque(maxlen=COSTS_KEPT)  # a frame's (CPU of this thread, of the queue)
        self._costs_least = COSTS_LEAST

    # --- called by others ---------------------------------------------------------------------------------------------

    def on_shown(self, shown: Shown) -> None:
        """A frame the camera's worker has analysed. Returns at once and never raises; called by the worker's thread."""
        if not self.runner.queries:
            return
        try:
            self.offer(scene_of(shown.frame, shown=shown.detections))
        except Exception:  # whatever it is, the camera goes on
            log.exception("%s: a frame could not be handed to the queries", self.camera_id)

    def offer(self, scene: Scene) -> None:
        """A frame to look at. Returns at once; it takes the place of one that still waits."""
        if not self.runner.queries:
            return
        with self._changed:
            if self._stopping:
                return
            self._watch()
            self.skipped += self._waiting is not None
            self._waiting = scene
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"queries-{self.camera_id}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def behind(self) -> bool:
        """Whether a query that may lag has not come to the newest frame: who reads a recording for it waits (back-pressure goes to the
        front of the query, where frames are still encoded)."""
        with self._changed:
            full = self._waiting is not None
        return full and any(state.spec.may_lag and not state.reason for state in self.runner.queries.values())

    def pending(self) -> bool:
        """Whether the last frame was not taken yet."""
        return self._waiting is not None and not self._stopping

    def hand_over(self, wait_s: float) -> QueryStates | None:
        """What the queries remember after the last frame, for another box; None: nothing, or their thread does not come round."""
        with self._changed:
            return self.runner.carried() if self._changed.wait_for(self._idle, wait_s) else None

    def take_on(self, state: QueryStates, base_s: float, wait_s: float = 1.0) -> list[str]:
        """See `QueryRunner.take_on`. Before the first frame is told."""
        with self._changed:
            if not self._changed.wait_for(self._idle, wait_s):
                return ["the queries' thread is busy"]
            return self.runner.take_on(state, base_s)

    def _idle(self) -> bool:
        return self._waiting is None and not self._stepping

    def set_knobs(self, query: str, setting: Setting) -> None:
        """See `QueryRunner.set_knobs`. Raises UsageError, also for a query that is not there."""
        if query not in self.runner.queries:
            raise UsageError(f"camera {self.camera_id} has no query {query}", subject=self.camera_id)
        state = self.runner.queries[query]
        before = state.setting
        self.runner.set_knobs(query, setting)
        if state.setting != before:  # frames looked at in another way cost otherwise
            self._spent_s.clear()
            self._costs_least = COSTS_KEPT

    def front(self) -> dict[str, dict[str, KnobValue]]:
        """See `QueryRunner.front`."""
        return self.runner.front()

    def cost(self) -> Cost:
        """Of all frames so far."""
        return self.runner.cost

    def specs(self) -> dict[str, QuerySpec]:
        """Those that can run, by name."""
        return {name: state.spec for name, state in self.runner.queries.items()}

    def frame_cost_s(self, *, with_cpu: bool) -> float | None:
        """Seconds of compute that a frame takes with the knobs in force, mean of the last ones: what models of the box's queue spent for
        it and, `with_cpu`, this thread. None before the first few; after a knob was turned before so many that also a query that looks
        at few of them has done so."""
        spent = list(self._spent_s)
        if len(spent) < self._costs_least:
            return None
        return sum(queue_s + (cpu_s if with_cpu else 0.0) for cpu_s, queue_s in spent) / len(spent)

    def after_s(self, patience_s: float) -> float:
        """What models of the box's queue will need after a frame was answered, as far as it has to fit into the `patience_s` until the
        frame's own deadline for the queries to keep their lag goal. Never more than `AFTER_FRAC` of them: the frame itself is worth an
        answer, also where no query can be in time."""
        spent = [queue_s for _, queue_s in list(self._spent_s)]
        if len(spent) < COSTS_LEAST:
            return 0.0
        goal_s = max((state.spec.lag_goal_s for state in self.runner.queries.values()), default=0.0)
        needed_s = sum(spent) / len(spent) + patience_s - goal_s
        return min(max(0.0, needed_s), AFTER_FRAC * patience_s)

    def reports(self) -> tuple[QueryReport, ...]:
        """All queries, those that cannot run among them, by name. Returns at once; from any thread."""
        with self._changed:
            self._watch()
        now_s = self._clock.monotonic_s()
        running = [self._report(name, state, now_s) for name, state in self.runner.queries.items()]
        broken = [QueryReport(name=n, state="unusable", reason=why, setting={}, told={}) for n, why in self.broken.items()]
        return tuple(sorted([*running, *broken], key=lambda report: report.name))

    def utility(self) -> Utility | None:
        """What quality and lag of the camera are worth to all queries that run, None: none does."""
        return together([state.spec.utility() for state in self.runner.queries.values()])

    def weight(self) -> float:
        """What a frame of the camera is worth to them beside other cameras' (`Turn.weight`), as divisions of the shares count it."""
        utility = self.utility()
        return utility.quality_weight if utility is not None else 1.0

    def stop(self) -> None:
        """Ends the thread after the frame in work; does not wait for it."""
        with self._changed:
            self._stopping, self._waiting = True, None
            self._changed.notify_all()
        self._close()

    def is_alive(self) -> bool:
        """Whether the thread does what it should: it runs, or is not needed."""
        with self._changed:
            return self._stopping or self._thread is None or self._thread.is_alive()

    def begin_anew(self) -> None:
        """The next frame gets another thread; for one that has died."""
        with self._changed:
            if self._thread is not None and not self._thread.is_alive():
                self._thread = None

    def join(self, timeout_s: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (scene := self._next()) is not None:
            try:
                began_s = self._clock.thread_cpu_s()
                with taken(Turn(deadline_s=self._deadline_s(scene), weight=self.weight())) as turn:
                    outcomes = self.runner.step(scene)
                self._spent_s.append((self._clock.thread_cpu_s() - began_s, turn.spent_s))
            except GivenUp:
                return  # another thread goes on
            with self._changed:
                if threading.current_thread() is not self._thread:
                    return
                lag_s = max(0.0, self._clock.monotonic_s() - scene.at_s)
                self._lags_s.update({outcome.query: lag_s for outcome in outcomes})
                self._changed.notify_all()
            for outcome in outcomes:
                self._tell(outcome)

    def _deadline_s(self, scene: Scene) -> float:
        """Until when models that queries ask may answer: the longest of the lag goals."""
        goals_s = [state.spec.lag_goal_s for state in self.runner.queries.values()]
        began_s = self._clock.monotonic_s() if any(s.spec.may_lag for s in self.runner.queries.values()) else scene.at_s
        return began_s + max(goals_s)

    def _next(self) -> Scene | None:
        """The next frame; None: the end."""
        with self._changed:
            self._stepping = False
            self._changed.notify_all()
            while self._waiting is None and not self._stopping:
                self._changed.wait()
            scene, self._waiting = self._waiting, None
            self._stepping = scene is not None
            return None if self._stopping else scene

    def _tell(self, outcome: Outcome) -> None:
        try:
            self.on_outcome(outcome)
        except Exception:  # a listener's trouble is not the queries'
            log.exception("%s: an answer of the query %s could not be told", self.camera_id, outcome.query)

    def _watch(self) -> None:
        """Lock held. Gives the thread up when a node has not come back for too long."""
        busy = self.runner.busy()
        if busy is None or self._thread is None or self._clock.monotonic_s() - busy.since_s <= busy.most_s:
            return
        self._given_up = [thread for thread in self._given_up if thread.is_alive()]
        for_good = len(self._given_up) + 1 >= self._rules.threads_max
        if not self.runner.give_up(for_good=for_good):
            return
        log.warning("%s: the transform %s does not come back; its query rests", self.camera_id, busy.transform)
        self._given_up.append(self._thread)
        self._thread = None
        if self._waiting is not None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name=f"queries-{self.camera_id}", daemon=True)
            self._thread.start()

    # --- status -------------------------------------------------------------------------------------------------------

    def _report(self, name: str, state: QueryState, now_s: float) -> QueryReport:
        outcome, resting = state.outcome, bool(state.reason)
        again_s = state.rests_until_s - now_s
        return QueryReport(
            name=name,
            state="resting" if resting else "running" if outcome is not None else "waiting",
            reason=state.reason,
            again_s=max(0.0, again_s) if resting and again_s < float("inf") else None,
            setting=dict(state.setting),
            told=outcome.told if outcome is not None else {},
            at_utc=outcome.at_utc if outcome is not None else None,
            lag_s=self._lags_s.get(name),
            frames=state.frames,
            failed_frames=state.failed_frames,
            nodes=tuple(_node_report(id, state.spec.node(id).transform, state.stats[id]) for id in state.spec.order),
        )


def _node_report(id: str, transform: str, stat: NodeStat) -> NodeReport:
    runs = max(1, stat.runs)
    return NodeReport(
        id=id, transform=transform, runs=stat.runs, cpu_s=stat.cost.cpu_s / runs, gpu_s=stat.cost.gpu_s / runs,
        faults=dict(stat.faults), late=stat.late, boxes_left_out=stat.boxes_left_out, last_error=stat.last_error,
    )  # fmt: skip


def cpu_meter(clock: Clock) -> Meter:
    """CPU seconds of the calling thread."""
    return lambda: Cost(cpu_s=clock.thread_cpu_s())
