"""The box's brain: `BoxEngine.handle(event) -> list[Command]`. No clock, no I/O, no randomness; drivers do the rest.

One window (Ekya section 4, card section 1): open -> look at the last window's sample -> golden labels of it -> earlier models on them
-> micro-profile -> plan -> retrain -> gate on labels of the current window -> swap -> re-plan with what is freed -> close with
predicted against realised quality. What comes before the plan is in `scheduler.prep`.

What we changed against the paper, and why:
- Labelling, profiling and the gate run on a share of the same device and are paid from it: preparation on `prep_pct`, the gate on
  the retraining's own share (its cost is part of each option's cost). The paper leaves labelling outside.
- A retrained model serves only when it is better on labels of the *current* window, as surely as few frames can say
  (`scheduler.admission`): the recorded traces hold retrainings that lost 27 points (card, section 9).
- Cameras that neither drift nor have more to learn are only measured; earlier models are tried before new ones are made, and what a
  swap replaced comes back when it was better (`scheduler.reuse`); cameras may share a retraining (`scheduler.grouping`).
- A camera in a scene that it does not know learns from the window in progress (`EngineConfig.learns_now`), not from the last one.
- Retraining starts from the serving model, not from the pre-trained one, so a camera keeps what it has learned.
- A job whose window ends is dropped, as in the authors' code; its camera keeps its model.
- Predictions are corrected by what came of earlier ones (`scheduler.ekya.calibration`), and a retraining that leaves its prediction
  makes a new plan, never sooner than a dwell after the last (`scheduler.react`); the paper has one sentence on it.
- Between plans the training budget may move by SLAQ (`scheduler.budget`).
Decisions of one window's length are made here; what they know is in `scheduler.engine_state`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from configs.errors import ConfigError
from scheduler import (
    admission,
    belief,
    budget,
    drift,
    glance,
    knob_loop,
    lessons,
    prep,
    pricing,
    react,
    reuse,
    scenes,
    together,
    turns,
)
from scheduler.commands import (
    CancelJob,
    Command,
    Note,
    RejectModel,
    ReportPlan,
    ReportWindow,
    SetKnobs,
    SetShares,
    SetTimer,
    StartGate,
    StartRetraining,
    SwapKind,
    SwapModel,
    TurnToScene,
)
from scheduler.ekya import microprofile
from scheduler.ekya.cloud import snapshot_arrival_s
from scheduler.ekya.estimate import best_knobs
from scheduler.engine_state import BoxState, Checkpoint, Decided, EngineConfig, Expected, Phase, Prep, Running, StreamState
from scheduler.events import (
    Answered,
    AskedAnew,
    BoxStarted,
    CameraAdded,
    CameraHealth,
    CameraRemoved,
    ChangePriced,
    CustomerChanged,
    EpochDone,
    Event,
    GateDone,
    JobFailed,
    KnobsDue,
    KnobsMeasured,
    LabelDone,
    LearnedFrom,
    LearningSwitched,
    Load,
    LookDone,
    ModelRolledBack,
    ModelsOffered,
    ProbeDone,
    ProfileDone,
    ProfileOld,
    Reprofiled,
    RetrainDone,
    SharesOrdered,
    StopRequested,
    SwapDone,
    SwapFailed,
    TimerFired,
)
from scheduler.fleet import grants
from scheduler.reasons import reasons_of
from scheduler.registry import make_policy, needs
from scheduler.scenes import Lesson, Scene
from scheduler.slaq import Forecasts
from scheduler.slaq.reallocate import Goal
from scheduler.snapshots import division_of, snapshot_of
from scheduler.types import (
    CachedModel,
    Drift,
    KnobProfile,
    Look,
    Observation,
    Plan,
    RetrainOption,
    Signature,
    Snapshot,
    StreamOutcome,
    StreamPlan,
    Traits,
    WindowOutcome,
)
from scheduler.videostorm.types import Allocation

__all__ = ["BoxEngine", "BoxState", "Checkpoint", "EngineConfig", "Phase", "StreamState", "best_affordable"]

#: A plan as it was decided: in the customers' parts, one part where the box is not divided.
Parts = tuple[grants.Part, ...]
Decision = tuple[Snapshot, Parts]

PREP_DEADLINE = "prep-deadline"
WINDOW_END = "window-end"
REACT = "react"
GLANCE, LESSONS = "glance", "lessons"
#: Whoever drives the engine tells it before these timers what models have answered (`events.Answered`).
TOLD_AT = (LESSONS, WINDOW_END)
#: Of a window that was not glanced at.
NO_SIGNATURE = Signature(values=())
FADED = "its model finds less and is less sure than when it was measured"

#: Bounds of what is remembered per camera: observations, models of earlier windows.
MAX_OBSERVATIONS, MAX_CACHED = 60, 40

#: For people, beside the plan.
POOL_WAITS = "learns together with others from this window, when there is enough of it"
NEW_SCENE, KNOWN_SCENE = "it sees a new scene", "a scene that it knows is back"


class BoxEngine:
    """See the module. `handle` may raise nothing for any sequence of events; late answers of cancelled jobs are ignored."""

    def __init__(self, config: EngineConfig, state: BoxState | None = None) -> None:
        self._needs = needs(config.policy)
        # Baselines do as they always do: everything is prepared before anything is retrained, and inference stays as it was split.
        self.config = config if prep.chooses(self._needs) else replace(config, overlap=False, knob_loop=False)
        self.state = state or BoxState(golden_gpu_s=config.golden_gpu_s)
        self._policy = make_policy(config.policy)
        # A uniform policy believes nothing and is told the raw predictions.
        self._calibrates = config.calibrate and not self._needs.useless
        self._forecasts = Forecasts()
        self.decided: Decided | None = None  # the newest plan and what it was made from
        self._out: list[Command] = []
        self._handlers: dict[type[Event], Callable[..., None]] = {
            BoxStarted: self._box_started,
            CameraAdded: self._camera_added,
            CameraRemoved: self._camera_removed,
            SharesOrdered: self._shares_ordered,
            CustomerChanged: self._customer_changed,
            LearnedFrom: self._learned_from,
            LearningSwitched: self._learning_switched,
            AskedAnew: self._asked_anew,
            CameraHealth: self._camera_health,
            KnobsMeasured: self._knobs_measured,
            Answered: self._answered,
            ChangePriced: self._change_priced,
            KnobsDue: self._knobs_due,
            TimerFired: self._timer_fired,
            LookDone: self._look_done,
            LabelDone: self._label_done,
            ProbeDone: self._probe_done,
            ModelsOffered: self._models_offered,
            ProfileDone: self._profile_done,
            ProfileOld: self._profile_old,
            Reprofiled: self._reprofiled,
            EpochDone: self._epoch_done,
            RetrainDone: self._retrain_done,
            GateDone: self._gate_done,
            JobFailed: self._job_failed,
            SwapDone: self._swap_done,
            SwapFailed: self._swap_failed,
            ModelRolledBack: self._rolled_back,
            StopRequested: self._stop_requested,
        }

    def handle(self, event: Event) -> list[Command]:
        """Changes the state and returns what is to be done now, in order."""
        self._out = []
        if self.state.phase != "stopped":
            self._integrate(event.at_s)
            self._handlers[type(event)](event)
            for pool in sorted({s.pool for s in self.state.streams.values() if s.pool}):
                if not any(s.gating for s in self.state.streams.values() if s.pool == pool):
                    self._conclude(pool, event.at_s)
        return self._out

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(config=self.config, state=self.state)

    # --- box and cameras ----------------------------------------------------------------------------------------------

    def _box_started(self, event: BoxStarted) -> None:
        self.state.window = event.window - 1
        self._open_window(event.at_s, self.config.first_window_s)

    def _camera_added(self, event: CameraAdded) -> None:
        """Also changes a camera: one that is there already is taken out first."""
        if event.stream in self.state.streams:
            self._camera_removed(CameraRemoved(at_s=event.at_s, stream=event.stream))
        self.state.streams[event.stream] = StreamState(
            id=event.stream, knobs=event.knobs, version=event.version, quality=event.quality, integral_since_s=event.at_s,
            observations=list(event.observations[-MAX_OBSERVATIONS:]), cached=event.cached[:MAX_CACHED], offered=event.offered,
            retrain=event.retrain, replaced=event.replaced, arch=event.arch, utility=event.utility, learns=event.learns,
            customer=event.customer, delivered=event.delivered, scenes=event.scenes,
        )  # fmt: skip
        seen_last = event.scenes.present
        if seen_last is not None:
            self.state.streams[event.stream].scene = seen_last.signature
            self._out.append(TurnToScene(stream=event.stream, scene=seen_last.number))
        self._reshare(event.at_s)

    def _camera_removed(self, event: CameraRemoved) -> None:
        stream = self.state.streams.pop(event.stream, None)
        if stream is None:
            return
        self.state.generations[stream.id] = self.state.generations.get(stream.id, 0) + 1
        self._learns_no_more(stream, "its camera was taken out", event.at_s)

    def _shares_ordered(self, event: SharesOrdered) -> None:
        """A new division; the same again changes nothing. Shares that make no sense are left out: no camera is starved by a number."""
        shares = {customer: pct for customer, pct in event.shares_pct if math.isfinite(pct) and pct > 0}
        if self.state.shares_pct == tuple(sorted(shares.items())):
            return
        self.state.shares_pct = tuple(sorted(shares.items()))
        self.state.why.append("the fleet changed the customers' shares")
        self._reshare(event.at_s)

    def _customer_changed(self, event: CustomerChanged) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.customer == event.customer:
            return
        stream.customer = event.customer
        if self.state.shares_pct:
            self._reshare(event.at_s)

    def _learned_from(self, event: LearnedFrom) -> None:
        """What it learns or is judged by here counts more: that is newer."""
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.learned is not None or stream.version != event.version:
            return
        if 0 <= event.window < self.state.window:
            stream.learned = event.window

    def _learning_switched(self, event: LearningSwitched) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.learns == event.learns:
            return
        stream.learns = event.learns
        if not event.learns:
            self._learns_no_more(stream, "learning was switched off", event.at_s)
            stream.options, stream.remark = (), "learning is switched off"

    def _learns_no_more(self, stream: StreamState, why: str, at_s: float) -> None:
        """What a camera has under way is given up; what that frees is given out anew."""
        self._drop_training(stream, why)
        self.state.queue = [p for p in self.state.queue if p.stream != stream.id]
        self._disband(stream)
        if self.state.active and self.state.active.stream == stream.id:
            self._out.append(CancelJob(job=self.state.active.job, stream=stream.id))
            self.state.active = None
            self._next_prep(at_s)
            if self.state.prepares and self.state.phase == "planned":
                self._plan(at_s)
            elif self.state.prepares and self.state.active is None:  # a swap is waited for
                self._share_prep(at_s)
        else:
            self._reshare(at_s)

    def _asked_anew(self, event: AskedAnew) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is not None:
            stream.utility = event.utility
            stream.old_queries.clear()  # others are asked now, or with other knobs; what they lack is said again

    def _camera_health(self, event: CameraHealth) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.live == event.live:
            return
        stream.live = event.live
        self._reshare(event.at_s)

    def _answered(self, event: Answered) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is not None:
            stream.answered(event.answers)

    def _knobs_measured(self, event: KnobsMeasured) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is not None:
            stream.knobs = event.knobs

    def _change_priced(self, event: ChangePriced) -> None:
        self.config = replace(self.config, change=event.price)

    def _knobs_due(self, event: KnobsDue) -> None:
        """Between two plans: what inference has together is divided anew, learning keeps what it has."""
        found = knob_loop.reallocated(self.state, self.config, event.loads)
        if found is not None:
            self._divide(found)
            self._look_at_goals()
        self._look_at_lags(event.loads)

    def _divide(self, found: Allocation) -> None:
        """A camera without a share pauses."""
        for given in found.given:
            stream = self.state.streams[given.query]
            stream.infer_pct = given.share_pct
            self._set_knobs(stream, knob_loop.option_of(given))
        self._emit_shares()

    def _look_at_goals(self) -> None:
        """Says when a camera's quality goal cannot be met, and when it is met again."""
        for stream in self.state.ordered():
            unmet = knob_loop.unmet(stream)
            if unmet == stream.unmet or stream.utility is None or not self._is_known(stream):
                continue
            stream.unmet = unmet
            goal, shown = stream.utility.quality_goal, stream.shown_quality()
            text = f"quality {shown:.2f} is below the goal {goal:.2f} of its queries: the best that its share and model give"
            self._note(
                stream.id, "goal", text if unmet else f"quality {shown:.2f} meets the goal {goal:.2f} of its queries again"
            )

    def _pool(self, stream: StreamState) -> str:
        return prep.pool_of(stream, self.state, self.config, self._needs)

    def _is_known(self, stream: StreamState) -> bool:
        """Whether anything can be said of what people see: of a camera that gives no frames nothing. Journals without `say_lag` were
        decided by who said that it met its goal again when it went dark."""
        return stream.live or not self.config.say_lag

    def _look_at_lags(self, loads: Sequence[Load]) -> None:
        """Says when more of a recording waits than its queries allow, and when that is over."""
        for id, lag_s in knob_loop.turned_late(self.state, self.config, loads).items():
            stream = self.state.streams[id]
            stream.late = not stream.late
            if stream.utility is None:  # its queries are gone, and the goal with them
                continue
            goal = f"the lag goal {stream.utility.lag_goal_s:g} s of its queries"
            text = f", above {goal}" if stream.late else f" and meets {goal} again"
            self._note(id, "goal", f"its recording is {lag_s:g} s behind{text}")

    def _rolled_back(self, event: ModelRolledBack) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None:
            return
        self._drop_training(stream, event.reason or "the operator rolled the model back")
        if event.version != stream.version:  # nobody is to put back by itself what the operator took away
            stream.left = reuse.leave(stream.left, stream.version, self.state.window)
            stream.scenes = scenes.taken_back(stream.scenes, stream.version)
        stream.version, stream.quality, stream.done = event.version, None, True
        stream.taught_in = self._taught_in(stream, event.version)
        stream.replaced, stream.reference, stream.learned = None, None, None
        stream.begin_gains()
        self._reshare(event.at_s)

    def _stop_requested(self, event: StopRequested) -> None:
        self._cancel_all()
        self.state.phase = "stopped"

    # --- the window ---------------------------------------------------------------------------------------------------

    def _timer_fired(self, event: TimerFired) -> None:
        if event.timer == WINDOW_END:
            self._close_window(event.at_s)
            self._open_window(event.at_s, self.config.window_s)
        elif event.timer == PREP_DEADLINE and self.state.prepares:
            self._end_prep_early(event.at_s)
        elif event.timer == REACT and self.state.reacting:
            self._plan(event.at_s)
        elif event.timer == GLANCE:
            self._glance(event.at_s)
        elif event.timer == LESSONS:
            self._begin_lessons(event.at_s)

    def _open_window(self, at_s: float, seconds: float) -> None:
        state = self.state
        state.window += 1
        state.opened_s, state.ends_s = at_s, at_s + seconds
        state.planned_s, state.foretold, state.predicted, state.notes = None, False, None, []
        state.reacting, state.why = False, []
        for stream in state.streams.values():
            stream.reset()
        self._out.append(SetTimer(timer=WINDOW_END, at_s=state.ends_s))
        self._out.append(SetTimer(timer=PREP_DEADLINE, at_s=at_s + self.config.prep_until_frac * seconds))
        state.phase, state.prepares = "prepare", True
        # Nothing was sampled before the first window of a session, so there is nothing to learn from.
        learns = self._needs.labels and state.window > 0
        for stream in [s for s in state.ordered() if self.config.learns_now and self._pool(s)]:
            stream.lesson, stream.remark = state.window, POOL_WAITS
        state.queue = prep.opening(state, self.config, self._needs) if learns else []
        state.labels_due = learns
        glances = self.config.glance and prep.chooses(self._needs)
        if glances and (learns or self.config.learns_now):
            self._out.append(SetTimer(timer=GLANCE, at_s=glance.at_s(at_s, seconds)))
        if glances and self.config.learns_now:
            self._out.append(SetTimer(timer=LESSONS, at_s=glance.lessons_from_s(state)))
        self._next_prep(at_s)

    def _glance(self, at_s: float) -> None:
        """The window in progress is looked at before anything else that waits; where preparation has ended it goes on for that."""
        state, tasks = self.state, glance.tasks(self.state, self.config)
        if not tasks or state.phase not in ("prepare", "planned"):
            return
        state.queue = [*tasks, *state.queue]
        self._prepare_again(at_s, least_pct=float(self.config.prep_pct))

    def _begin_lessons(self, at_s: float) -> None:
        """There is enough of the window in progress to learn from: turns are chosen anew, among all that have not begun theirs."""
        state = self.state
        if self.config.learns_now:
            for stream in [s for s in prep.suspects(state) if not self._pool(s)]:  # else they have their turn with the others
                self._learn_now(stream, stream.scene or NO_SIGNATURE, FADED)
        begin = any(s.lesson == state.window for s in state.streams.values()) and not state.labels_due
        if not begin or state.phase not in ("prepare", "planned"):
            return
        for stream in state.streams.values():
            stream.signature = stream.signature or (stream.scene if stream.lesson == state.window else None)
        begun = state.at_work()
        state.queue = [p for p in state.queue if p.kind not in ("look", "label", "reprofile") or p.stream == begun]
        self._queue_turns(at_s)
        self._prepare_again(at_s, least_pct=0.0 if self.config.try_little else float(self.config.prep_pct))

    def _prepare_again(self, at_s: float, *, least_pct: float) -> None:
        """The next task; where preparation has ended it goes on, on its share, at least `least_pct`."""
        state = self.state
        ended = not state.prepares
        if ended:
            state.prepares, state.prep_pct = True, max(state.prep_pct, least_pct)
        self._next_prep(at_s)
        if ended:
            self._plan(at_s)

    # --- preparation --------------------------------------------------------------------------------------------------

    def _next_prep(self, at_s: float) -> None:
        """Starts the next task of preparation, or plans when none is left."""
        state = self.state
        if state.active is not None or not state.prepares:
            return
        if not state.queue and state.labels_due:
            self._queue_labels(at_s)
        self._leave_out_late(at_s)
        if state.queue and state.queue[0].kind == "profile":
            self._form_groups()
        if (lesson := lessons.due(state, self.config, self._needs, at_s)) is not None:
            state.queue.insert(0, lesson)
        if not state.queue:
            if not any(s.candidate and s.swapping != "retrained" for s in state.streams.values()):
                state.prepares = False
                self._plan(at_s)
            return  # else a swap is under way, and its camera's profile follows
        state.active = task = state.queue.pop(0)
        task.started_s = at_s
        if state.phase == "prepare":
            self._share_prep(at_s)
        else:
            self._emit_shares()
        self._out.append(prep.start(task, state, self.config, self._needs, at_s))

    def _leave_out_late(self, at_s: float) -> None:
        """Turns that would not end in this window are not begun; a shorter one behind them may."""
        late = {p.stream for p in self.state.queue if prep.comes_too_late(p, self.state, self.config, self._needs, at_s)}
        for id in late:
            self.state.streams[id].remark = "no time for its turn is left in this window"
        self.state.queue = [p for p in self.state.queue if p.stream not in late or p.kind not in ("look", "label")]

    def _queue_labels(self, at_s: float) -> None:
        state = self.state
        state.labels_due, state.groups_due = False, self.config.group
        for stream in state.streams.values():
            stream.full = bool(self._pool(stream)) or prep.is_full(stream, self.config)
        if self.config.overlaps:
            self._queue_turns(at_s)
        else:
            state.prep_pct = prep.share_pct(state, self.config, self._needs, at_s)
            self._queue_chosen(*prep.label_tasks(state, self.config, self._needs, at_s))
        labelled = {task.stream for task in state.queue if task.kind == "label"}
        for stream in state.streams.values():
            stream.waited += stream.id not in labelled

    def _queue_turns(self, at_s: float) -> None:
        chosen = prep.turns_of(self.state, self.config, self._needs, at_s)
        if chosen.tried and self.state.tried_in == self.state.window:
            chosen = replace(chosen, tried="")
        elif chosen.tried:
            self.state.tried_in = self.state.window
        self.state.prep_pct = chosen.share_pct
        self._queue_chosen(*prep.turn_tasks(chosen, self.state, self.config, at_s))

    def _queue_chosen(self, tasks: list[Prep], told: str) -> None:
        self.state.queue.extend([*tasks, *prep.reprofiling(self.state)])
        for task in tasks:
            if task.kind == "label":
                self.state.streams[task.stream].waited = 0
        if told:
            self._note("", "golden-slow", told)

    def _form_groups(self) -> None:
        """Cameras that drifted together wait for one of them to learn for all."""
        state = self.state
        if not state.groups_due:
            return
        state.groups_due = False
        for group in prep.groups(state, self.config):
            leader = state.streams[group.leader]
            leader.followers = group.followers
            leader.remark = f"learns for {', '.join(group.followers)} too: they drifted together"
            for id in group.followers:
                state.streams[id].leader = group.leader
                state.streams[id].remark = f"shares the retraining of {group.leader}: they drifted together"
            state.queue = [p for p in state.queue if p.stream not in group.followers]

    def _disband(self, leader: StreamState) -> None:
        """Those who waited for this camera's retraining go on by themselves, while there is time."""
        followers = [self.state.streams[id] for id in leader.followers if id in self.state.streams]
        leader.followers = ()
        for stream in followers:
            stream.leader, stream.remark = None, ""
            if self.state.prepares:
                self._enqueue(prep.profile_of(stream, self.state))

    def _enqueue(self, task: Prep) -> None:
        self.state.queue.append(task)
        self.state.queue = prep.in_order(self.state, self.config)

    def _ended(self, job: str, at_s: float, gpu_s: float) -> Prep | None:
        """The task of preparation that `job` was; None when it is no longer waited for."""
        task = self.state.active
        if task is None or task.job != job:
            return None
        self._learn_delivery(task, gpu_s)
        self.state.active = None
        return task

    def _end_prep_early(self, at_s: float) -> None:
        state = self.state
        if state.active is not None and state.active.kind == "lesson":  # its labels are paid for, and it was to end in time
            state.queue, state.labels_due = [], False
            return
        skipped = [p.stream for p in state.queue]
        if state.active:
            self._out.append(CancelJob(job=state.active.job, stream=state.active.stream))
            skipped.insert(0, state.active.stream)
            state.active = None
        state.queue, state.labels_due, state.prepares = [], False, False
        if skipped:
            self._note("", "prep-late", f"preparation ran out of time; not profiled: {', '.join(sorted(set(skipped)))}")
        self._plan(at_s)

    def _close_window(self, at_s: float) -> None:
        state = self.state
        for stream in state.ordered():
            _settle(stream, state.lesson(stream))
            stream.fresh = False
            if stream.running or stream.gating or stream.candidate:
                self._drop_training(stream, "not finished when the window ended")
        if state.active:
            self._out.append(CancelJob(job=state.active.job, stream=state.active.stream))
            state.active = None
        state.queue = []
        outcomes = tuple(self._outcome(s, at_s) for s in state.ordered())
        self._out.append(
            ReportWindow(
                outcome=WindowOutcome(
                    window=state.window,
                    opened_s=state.opened_s,
                    closed_s=at_s,
                    streams=outcomes,
                    predicted_quality=state.predicted,
                    realised_quality=_mean([o.realised_quality for o in outcomes]),
                    notes=tuple(state.notes),
                )  # fmt: skip
            )
        )

    def _outcome(self, stream: StreamState, at_s: float) -> StreamOutcome:
        span_s = at_s - self.state.planned_s if self.state.planned_s is not None else 0.0
        known = stream.start_quality is not None and span_s > 0
        return StreamOutcome(
            id=stream.id, start_quality=stream.start_quality, end_quality=stream.quality,
            predicted_quality=stream.predicted, realised_quality=stream.integral / span_s if known else None,
            retrained=stream.retrained, admitted=stream.admitted, note=stream.note, observation=stream.observed,
            drift=stream.drift, reused=stream.reused,
        )  # fmt: skip

    # --- answers of jobs ----------------------------------------------------------------------------------------------

    def _look_done(self, event: LookDone) -> None:
        task = self._ended(event.job, event.at_s, event.gpu_s)
        if task is None:
            return
        stream = self.state.streams[event.stream]
        if task.kind == "reference":
            stream.reference = event.look
        elif task.kind == "glance":
            self._glanced(stream, event.signature)
        else:
            stream.look, stream.signature = event.look, event.signature
            if self.config.drift:
                stream.drift = self._drift_of(stream, event.look)
        self._next_prep(event.at_s)

    def _glanced(self, stream: StreamState, now: Signature) -> None:
        """What is known of its scene, if that is another one than before; labels of the window in progress where another model seems to
        know it better."""
        before = stream.scenes.present
        near = glance.candidates(stream, now, self.config, self.state.window)
        stream.scenes, back = scenes.seen(
            stream.scenes, now, version=stream.version, gains=stream.gains, quality=stream.quality
        )
        stream.scene, here = now, stream.scenes.present
        has_new_model = stream.candidate is not None or stream.admitted or stream.reused is not None
        if before is not None and here is not None and here.number != before.number:
            stream.turned = True
            stream.begin_gains(back.gains if back is not None else ())
            stream.remark = NEW_SCENE if back is None else KNOWN_SCENE
            self._out.append(TurnToScene(stream=stream.id, scene=here.number))
            if back is not None and not has_new_model and back.version in glance.usable(stream):
                self._serve_scene(stream, back)
                return
            if self.config.learns_now and not self._pool(stream) and stream.candidate is None:
                gone = back is not None and not has_new_model  # else it would serve
                self._learn_now(stream, now, stream.remark + (", whose model is gone" if gone else ""))
        elif before is None and here is not None and self.config.learns_now and stream.fresh and not stream.has_learned():
            self._learn_now(stream, now, NEW_SCENE)
        known = glance.worth_asking(stream, near) if stream.turned else near
        if known and not has_new_model:
            self._enqueue(glance.labels(self.state, self.config, stream, known))

    def _learn_now(self, stream: StreamState, now: Signature, why: str) -> None:
        """A scene that has no model is learned from the window that shows it, as soon as there is enough of it."""
        self._give_turn_up(stream, why)
        self.state.generations[stream.id] = self.state.generations.get(stream.id, 0) + 1  # its jobs are others
        stream.lesson, stream.full, stream.done, stream.measured = self.state.window, True, False, None
        stream.look, stream.signature, stream.drift, stream.traits = None, now, None, None
        stream.remark = f"{why}: it learns from this window when there is enough of it"

    def _serve_scene(self, stream: StreamState, back: Scene) -> None:
        """A scene that is back has its own model at once: labels let it in when the scene was there, and the next ones measure it beside
        the one that it takes the place of."""
        self._give_turn_up(stream, KNOWN_SCENE)
        if back.quality is not None:
            stream.quality = back.quality
        lessons = self._to_average(stream, back)
        if back.version == stream.version and not lessons:
            return
        stream.remark = f"{KNOWN_SCENE}, and so is {back.version}"
        reason = "reuse: the scene is back that it served"
        if lessons:
            stream.scenes = scenes.averaging(stream.scenes, lessons)
            stream.remark = f"{KNOWN_SCENE}; the mean of its own and the newest lessons serves it"
            reason = f"reuse: the mean of {', '.join(lesson.version for lesson in lessons)}, since a known scene is back"
        stream.candidate, stream.swapping, stream.probed = back.version, "reuse", stream.quality
        stream.candidate_quality = stream.quality
        self._out.append(
            SwapModel(
                stream=stream.id,
                version=back.version,
                quality=stream.quality or 0.0,
                reason=reason,
                cause="reuse",
                mean_of=tuple(lesson.version for lesson in lessons),
            )  # fmt: skip
        )

    def _to_average(self, stream: StreamState, back: Scene) -> tuple[Lesson, ...]:
        if not self.config.average:
            return ()
        return scenes.to_average(stream.scenes, back, glance.usable(stream) - {stream.delivered})

    def _give_turn_up(self, stream: StreamState, why: str) -> None:
        """What the last window would have taught is of another scene."""
        self.state.queue = [p for p in self.state.queue if p.stream != stream.id]
        self._disband(stream)
        self._drop_training(stream, why)
        stream.options, stream.done = (), True

    def _drift_of(self, stream: StreamState, look: Look) -> Drift | None:
        """Against the window that the serving model learned from; None while that is not known."""
        if stream.reference is None or stream.reference.version != look.version:
            return None
        return drift.drift(stream.reference, look, self.config.drift_config)

    def _label_done(self, event: LabelDone) -> None:
        task = self._ended(event.job, event.at_s, event.gpu_s)
        if task is None:
            return
        stream = self.state.streams[event.stream]
        if event.golden_gpu_s is not None:
            self.state.golden_gpu_s = event.golden_gpu_s
        if task.kind == "sample":
            if event.holdout and task.candidates:
                self._enqueue(glance.probe(self.state, stream, task.candidates))
            self._next_prep(event.at_s)
            return
        believed, measured, stream.traits = stream.quality, _number(event.quality), event.traits
        stream.taught = event.train
        if measured is not None:
            stream.fallen = stream.fallen or prep.fell(stream, self.config, believed, measured)
            stream.measured = measured
            stream.is_measured()
            stream.quality = stream.start_quality = belief.take_measurement(
                stream, self.state, self.config, measured, event.holdout, calibrate=self._calibrates
            )
        if event.train and not self._needs.profiles and not self._needs.cached:
            stream.options = belief.unprofiled_options(stream, self.state, self.config)
        elif measured is None and event.train and self._pool(stream):
            self._await_lesson(stream, "no object in its labels that judge: it learns together with others")
        elif measured is None and event.holdout:
            if stream.full:
                stream.has_won(0.0)
            stream.remark = "no object in the labels that judge: nothing to learn, and nobody can say what its model is worth"
        elif self._needs.profiles and event.train and measured is not None:
            self._examine(stream, believed, measured)
        self._go_on_preparing(stream, event.at_s)

    def _examine(self, stream: StreamState, believed: float | None, measured: float) -> None:
        """What comes after a camera's labels: nothing, more labels, a probe or its profile."""
        if not stream.full:
            if prep.fell(stream, self.config, believed, measured):
                stream.full, stream.remark = True, "no drift was seen, but labels say that it is worse"
                self._enqueue(prep.more_labels(self.state, self.config, stream))
            else:
                stream.remark = "no drift and nothing more to learn: only measured"
            return
        probe = prep.probe_of(stream, self.state, self.config) if prep.chooses(self._needs) else None
        if probe is not None:
            self._enqueue(probe)
        else:
            self._profile(stream)

    def _profile(self, stream: StreamState) -> None:
        """What its retrainings would bring: by a new profile, or by an earlier one and what came of it."""
        if self._pool(stream):
            self._await_lesson(stream, "learns together with others")
            if lessons.wants_profile(stream, self.state, self.config, self._needs):
                self._enqueue(prep.profile_of(stream, self.state))
            return
        if known := prep.pooled(stream, self.state, self.config, self._needs):
            stream.raw = belief.pooled_options(stream, self.state, self.config, known)
            self._offer(stream, stream.raw)
            stream.remark = f"told by {len(known)} profiles of this box"
            return
        if not prep.recalls(stream, self.state, self.config, self._needs):
            self._enqueue(prep.profile_of(stream, self.state))
            return
        self._offer(stream, belief.recalled(stream, self.config))
        stream.remark = f"profile of window {stream.profiled_in} recalled"

    def _await_lesson(self, stream: StreamState, remark: str) -> None:
        stream.awaits, stream.remark = True, remark

    def _profile_old(self, event: ProfileOld) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None:
            return
        if event.query:
            stream.old_queries[event.query] = event.why
        else:
            stream.old_profile = event.why

    def _reprofiled(self, event: Reprofiled) -> None:
        task = self._ended(event.job, event.at_s, event.gpu_s)
        if task is None:
            return
        self._profiled_anew(task)
        self._next_prep(event.at_s)

    def _profiled_anew(self, task: Prep) -> None:
        """Or not to be tried again before somebody says so."""
        stream = self.state.streams[task.stream]
        if task.query:
            stream.old_queries.pop(task.query, None)
        else:
            stream.old_profile = ""

    def _offer(self, stream: StreamState, options: tuple[RetrainOption, ...]) -> None:
        """What the plan may choose from: options that help, or all where the policy does not care."""
        floor = float("-inf") if self._needs.useless else (stream.quality or 0.0) + self.config.min_gain
        stream.options = tuple(belief.priced(o, self.state, self.config) for o in options if o.end_quality > floor)

    def _go_on_preparing(self, stream: StreamState, at_s: float) -> None:
        """The next task; and where nobody waits for the others, a plan with what this camera may do now."""
        self._next_prep(at_s)
        if self.config.overlaps and stream.options and self.state.prepares:
            self._plan(at_s)

    def _models_offered(self, event: ModelsOffered) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is not None:
            stream.cached, stream.offered = event.cached[:MAX_CACHED], event.offered

    def _judge_offered(
        self, stream: StreamState, asked: tuple[str, ...], event: ProbeDone, chosen: reuse.Chosen | None
    ) -> None:
        """What came from outside is measured once: it is to serve, or its files go. One that is not in the answer is gone already."""
        if event.serving_quality is None or not math.isfinite(event.serving_quality):
            return  # nothing was measured: it waits for the next labels
        qualities = {p.version: p.quality for p in event.found}
        for version in [v for v in stream.offered if v in asked and (chosen is None or v != chosen.version)]:
            self._forget_offer(stream, version)
            if version in qualities:
                why = f"not better on this camera's labels: {qualities[version]:.3f} against {event.serving_quality:.3f}"
                self._out.append(RejectModel(stream=stream.id, version=version, reason=why))

    def _forget_offer(self, stream: StreamState, version: str) -> None:
        stream.offered = tuple(v for v in stream.offered if v != version)
        stream.cached = tuple(m for m in stream.cached if m.name != version)

    def _probe_done(self, event: ProbeDone) -> None:
        task = self._ended(event.job, event.at_s, event.gpu_s)
        if task is None:
            return
        stream = self.state.streams[event.stream]
        now = task.kind == "choose"
        chosen = reuse.choose(
            event.found, serving_quality=event.serving_quality, frames=event.frames,
            replaced=None if now else prep.rival(stream, self.config),
            margin=self.config.gate_margin, risk=self.config.gate_risk, belief=reuse.TURNED if now else admission.REUSED,
        )  # fmt: skip
        if now:
            self._chosen_now(stream, chosen, event)
            return
        never_served = chosen is not None and chosen.version in stream.offered
        self._judge_offered(stream, task.candidates, event, chosen)
        if stream.replaced in task.candidates:  # it has had its chance: a new drift brings it back, or a fall
            stream.asked = True
            if not self.config.ask_again:
                stream.replaced = None
        if chosen is None:
            self._profile(stream)
        else:
            self._take_up(stream, chosen, event.serving_quality or 0.0, shadow=never_served and self.config.shadow)
        self._go_on_preparing(stream, event.at_s)

    def _chosen_now(self, stream: StreamState, chosen: reuse.Chosen | None, event: ProbeDone) -> None:
        """What a glance came to. A camera that takes an earlier model up learns nothing more in this window: what is known of the last
        one is of another scene."""
        if chosen is not None and not stream.candidate:
            if stream.lesson is None:
                self._give_turn_up(stream, "the scene is one that an earlier model knows")
            stream.quality = event.serving_quality
            self._take_up(stream, chosen, event.serving_quality or 0.0)
        elif chosen is None and stream.turned and _number(event.serving_quality) is not None:
            stream.quality = event.serving_quality  # what was believed is of another scene
            stream.is_measured()
        self._next_prep(event.at_s)

    def _take_up(self, stream: StreamState, chosen: reuse.Chosen, serving_quality: float, *, shadow: bool = False) -> None:
        """Another version is to serve; when it does, its camera's profile begins from it. shadow: it has never served here."""
        kind: SwapKind = "rollback" if chosen.rollback else "reuse"
        figures = f"{chosen.quality:.3f} against {serving_quality:.3f} on the same labels"
        why = "live quality fell below what it replaced" if chosen.rollback else "an earlier model fits this window better"
        stream.remark = f"{kind} of {chosen.version}: {figures}"
        if chosen.rollback:
            self._note(stream.id, "rollback", f"{stream.version} goes back to {chosen.version}: {why} ({figures})")
        stream.candidate, stream.swapping, stream.probed = chosen.version, kind, chosen.quality
        # Profiles that nobody corrects compare with what was measured, corrected ones with what is believed.
        believed = (stream.quality or 0.0) + chosen.expected_gain
        stream.candidate_quality = min(1.0, max(0.0, believed)) if self._calibrates else chosen.quality
        self._out.append(
            SwapModel(
                stream=stream.id,
                version=chosen.version,
                quality=chosen.quality,
                reason=f"{kind}: {why}",
                shadow=shadow,
                cause=kind,
            )  # fmt: skip
        )

    def _profile_done(self, event: ProfileDone) -> None:
        if self._ended(event.job, event.at_s, event.gpu_s) is None:
            return
        stream = self.state.streams[event.stream]
        stream.profile_gpu_s = event.gpu_s
        configs = prep.kept_configs(stream, self.config)
        stream.raw = microprofile.options(event.trials, configs, n_train=event.n_train, lend=event.lend)
        stream.expected = react.expectations(event.trials, configs, n_train=event.n_train, lend=event.lend)
        corrected = belief.corrected(stream, self.state, self.config, calibrate=self._calibrates)
        spared = microprofile.borrowers(event.trials, configs) if event.lend else ()
        belief.remember_profile(stream, self.state, self.config, corrected, spared=spared)
        if corrected:
            stream.profiled_in, stream.profiled_from, stream.profiled_on = (
                self.state.window,
                stream.quality or 0.0,
                event.n_train,
            )
        if stream.awaits:  # it tells what the lesson costs
            self._next_prep(event.at_s)
            return
        self._offer(stream, corrected)
        stream.examined = bool(stream.raw)
        if not stream.options:
            self._disband(stream)
        self._go_on_preparing(stream, event.at_s)

    def _learn_delivery(self, task: Prep, gpu_s: float) -> None:
        """A machine that is busy with other things (or a job that cannot use all of its share) delivers less than promised; budgets
        and costs follow what was seen, or preparation would never end in time and retrainings would miss the window's end."""
        if gpu_s > 0 and task.promised_gpu_s > 0:
            seen = min(1.0, max(0.05, gpu_s / task.promised_gpu_s))
            self.state.delivered_frac = (self.state.delivered_frac + seen) / 2

    def _epoch_done(self, event: EpochDone) -> None:
        running = self._running(event.stream, event.report.job)
        if running is None:
            return
        running.note(event.report)
        if running.trained():
            return
        why = react.left_prediction(running, self.config) if self.config.react else ""
        if why:
            react.refit(running)
            self._replan_soon(event.at_s, f"{event.stream}: {why}")
        elif self.config.slaq is not None and self.state.phase == "planned":
            self._move_budget(event.at_s, self.config.slaq)

    def _replan_soon(self, at_s: float, why: str) -> None:
        """A plan for a reason of its own, not sooner than the dwell after the last one: shares must not oscillate."""
        self.state.why.append(why)
        due_s = self.state.replanned_s + self.config.react_dwell_s
        if at_s >= due_s:
            self._plan(at_s)
        elif not self.state.reacting:
            self.state.reacting = True
            self._out.append(SetTimer(timer=REACT, at_s=due_s))

    def _move_budget(self, at_s: float, objective: Goal) -> None:
        """SLAQ: what the plan gave to training moves between the retrainings that run, by what each promises per GPU-second. On
        several devices only between those that lie on the same one."""
        state, moved = self.state, False
        for group in budget.groups([s for s in state.ordered() if _exchangeable(s)], apart=bool(state.shares_pct)):
            shares = budget.moved(
                group, self.config, objective=objective, now_s=at_s, ends_s=state.ends_s, since_s=state.moved_s,
                forecasts=self._forecasts,
            )  # fmt: skip
            for stream in group:
                moved |= stream.train_pct != shares[stream.id]
                stream.train_pct = shares[stream.id]
                stream.gpu_pct = tuple((gpu, shares[stream.id]) for gpu, _ in stream.gpu_pct)
        state.moved_s = at_s
        if moved:
            self._emit_shares()

    def _retrain_done(self, event: RetrainDone) -> None:
        leaving = self.state.streams.get(event.stream)
        if leaving is not None and leaving.leaving == event.job:
            self._remember_model(leaving, event.candidate)
            return
        made = {event.stream: event.candidate, **dict(event.candidates)}
        task = self.state.active
        if task is not None and task.kind == "lesson" and self._ended(event.job, event.at_s, event.gpu_s):
            self._lesson_done(task, event, made)
            return
        running = self._running(event.stream, event.job)
        if running is None:
            for id, candidate in sorted(made.items()):
                self._out.append(RejectModel(stream=id, version=candidate, reason="came after its window"))
            return
        for note in event.notes:
            self._note(event.stream, "labels", note)
        leader = self.state.streams[event.stream]
        running.used_gpu_s = event.gpu_s
        leader.judged, leader.running = running, None
        others = [
            s
            for s in self.state.ordered()
            if s is not leader and s.id in made and s.id in running.members and s.arch == leader.arch
        ]
        judges = [leader, *(s for s in others if _is_free(s))]
        for stream in judges:
            stream.candidate, stream.swapping, stream.retrained = made.pop(stream.id), "retrained", running.config.name
        if self._needs.useless and self.config.plain_splits:
            self._emit_shares()
            self._out.extend(
                SwapModel(stream=s.id, version=s.candidate or "", quality=None, reason="without a gate") for s in judges
            )
        else:
            _split_share(leader, judges)
            gates = [self._gate(stream, known=self.config.gate_known) for stream in judges]
            self._emit_shares()
            self._out.extend(gates)
        for id, candidate in sorted(made.items()):
            self._out.append(RejectModel(stream=id, version=candidate, reason="its camera learns nothing now"))

    def _lesson_done(self, task: Prep, event: RetrainDone, made: dict[str, str]) -> None:
        """All who learned from it judge it: together where they are enough for that, else each as after a lesson of its own."""
        for note in event.notes:
            self._note(event.stream, "labels", note)
        judges = [s for s in self.state.ordered() if s.id in made and s.awaits and _is_free(s)]
        each_other = len(judges) >= together.ENOUGH
        for stream in judges:
            stream.awaits, stream.pool = False, task.job if each_other else ""
            stream.candidate, stream.swapping, stream.retrained = made.pop(stream.id), "retrained", task.config
            stream.judged = self._learned_with(stream, task, event.gpu_s / len(task.members))
        # Half of it is for whoever comes next: else that would stand still until all have judged.
        waits = bool(self.state.queue) or lessons.due(self.state, self.config, self._needs, event.at_s) is not None
        for stream in judges:
            stream.train_pct = self.state.prep_pct / len(judges) / (2 if waits else 1)
        gates = [self._gate(stream, known=self.config.gate_known or each_other) for stream in judges]
        self._emit_shares()
        self._out.extend(gates)
        for id, candidate in sorted(made.items()):
            self._out.append(RejectModel(stream=id, version=candidate, reason="its camera learns nothing now"))
        self._next_prep(event.at_s)

    def _learned_with(self, stream: StreamState, task: Prep, gpu_s: float) -> Running | None:
        """Its part of a lesson, to hold what comes of it against what was promised."""
        told = lessons.promised(stream, self.state, self.config, self._needs)
        option = next((o for o in told if o.name == task.config), None)
        config = next((c for c in prep.config_list(stream, self.config) if c.name == task.config), None)
        if option is None or config is None:
            return None
        start = stream.quality if stream.measured is None else stream.measured
        return Running(
            job=task.job, config=config, option=option, raw=option, start_quality=start, used_gpu_s=gpu_s, members=task.members
        )

    def _gate(self, stream: StreamState, *, known: bool) -> Command:
        """known: what is labelled already judges, at once and for nothing; what that leaves in doubt new labels decide."""
        job = self.state.job(stream.id, "gate")  # a second one after it is another job
        stream.gating = f"{job}/newest" if stream.gate_knows and not known else job
        stream.gate_knows = known
        return StartGate(
            job=stream.gating, stream=stream.id, window=self.state.window, version=stream.version, candidate=stream.candidate or "",
            frames=self.config.gate_frames, holdout_frac=self.config.holdout_frac, remote=self._needs.remote,
            older=stream.lesson is None or bool(stream.pool and not (stream.turned or stream.fresh)), known=known,
            least=1 if stream.pool else admission.MIN_KNOWN,
        )  # fmt: skip

    def _gate_done(self, event: GateDone) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.gating != event.job:
            return
        stream.gating = None
        if stream.pool:
            stream.seen = event
            self._emit_shares()
            return
        verdict = self._verdict(stream, event)
        if stream.gate_knows and admission.in_doubt(verdict):
            self._look_again([stream])
            return
        self._take_verdict(stream, event, verdict)
        if not verdict.admitted:
            self._plan(event.at_s)

    def _conclude(self, pool: str, at_s: float) -> None:
        """The verdict on a lesson's model: all who judge it have seen it."""
        judges = [s for s in self.state.ordered() if s.pool == pool]
        seen = [(s, s.seen) for s in judges if s.seen is not None]
        shown = [_seen(event) for _, event in seen]
        first = self.config.look_again and all(s.gate_knows for s in judges)
        if first and together.in_doubt(shown, margin=self.config.gate_margin, seeing=self.config.gate_seeing):
            self._look_again(judges)
            return
        told = together.verdicts(
            shown, margin=self.config.gate_margin, risk=self.config.gate_risk, seeing=self.config.gate_seeing
        )
        for (stream, event), verdict in zip(seen, told, strict=True):
            self._take_verdict(stream, event, verdict)
        for stream in judges:
            stream.pool, stream.seen = "", None
        self._plan(at_s)

    def _look_again(self, judges: Sequence[StreamState]) -> None:
        """New labels decide what those that were there leave in doubt."""
        gates = [self._gate(stream, known=False) for stream in judges]
        for stream in judges:
            stream.seen = None
        self._emit_shares()  # the jobs are others: they have the shares of the first
        self._out.extend(gates)

    def _take_verdict(self, stream: StreamState, event: GateDone, verdict: admission.Verdict) -> None:
        old, new = _number(event.serving_quality), _number(event.candidate_quality)
        expected = prep.expected_gain(stream, self.state, self.config)  # before this one is seen
        if old is not None:
            if not (self.config.weigh_frames and stream.pool):  # else it is the frames that its labels were measured on
                stream.quality = belief.weighed(stream.quality, old, event.frames, self.config)
            stream.is_measured()
        if old is not None and new is not None:
            gain = _number(event.gain)
            gain = new - old if gain is None else gain
            self._observe(stream, old, gain)
            if not stream.strange_lesson():  # it says nothing of what is to be won in this scene
                stream.has_won(gain)
        if verdict.admitted:
            stream.candidate_quality, stream.refusals = self._worth(stream, event, verdict), 0
            self._out.append(
                SwapModel(
                    stream=stream.id, version=event.candidate, quality=new, reason="better on labels of its window",
                    shadow=self.config.shadow,
                )
            )  # fmt: skip
            return
        stream.note = _refusal(old, new, verdict)
        stream.refused = old is not None and new is not None
        if stream.refused and not stream.strange_lesson():
            stream.refusals += 1
            if self.config.try_again:
                error = admission.error_of(event.gain_sd, event.frames)
                stream.gains[-1] = turns.as_if_won(verdict.gain, error, expected)
        if stream.leader is not None:
            stream.alone = self.state.window
        self._reject(stream, stream.note)
        stream.done = True

    def _worth(self, stream: StreamState, event: GateDone, verdict: admission.Verdict) -> float | None:
        """What an admitted model is believed to be worth."""
        new = _number(event.candidate_quality)
        if new is None:
            return stream.quality
        expected = min(1.0, max(0.0, stream.believed(self.config.prior_quality) + verdict.expected))
        return belief.weighed(expected, new, event.frames, self.config)

    def _verdict(self, stream: StreamState, event: GateDone) -> admission.Verdict:
        return admission.judge(
            _number(event.serving_quality), _number(event.candidate_quality), gain=event.gain, gain_sd=event.gain_sd,
            frames=event.frames, belief=belief.promised(stream.judged), margin=self.config.gate_margin, risk=self.config.gate_risk,
            seeing=self.config.gate_seeing,
        )  # fmt: skip

    def _observe(self, stream: StreamState, serving: float, gain: float) -> None:
        """What came of a prediction. The gate judges on newer frames than the profiler did, so what counts is the gain over the
        serving model on the same frames, put on top of where the profiler began."""
        job = stream.judged
        if job is None or job.raw is None or job.start_quality is None:
            return
        if job.raw.cost_gpu_s <= 0 or job.used_gpu_s <= 0:
            return  # nothing is learnt from what cost nothing; calibration wants costs above 0
        seen = Observation(
            stream=stream.id, window=self.state.window, option=job.raw.name, start_quality=job.start_quality,
            predicted_quality=job.raw.end_quality, predicted_gpu_s=job.raw.cost_gpu_s, realised_gpu_s=job.used_gpu_s,
            realised_quality=job.start_quality + gain, serving_quality=serving,
        )  # fmt: skip
        stream.observations = [*stream.observations, seen][-MAX_OBSERVATIONS:]
        stream.observed = seen

    def _job_failed(self, event: JobFailed) -> None:
        state = self.state
        stream = state.streams.get(event.stream)
        if stream is None:
            return
        if state.active is not None and state.active.job == event.job:
            self._prep_failed(state.active, stream, event)
        elif self._running(event.stream, event.job) or stream.gating == event.job:
            kind = "gate" if stream.gating == event.job else "retraining"
            stream.note = f"{kind} failed: {event.code}"
            self._note(stream.id, f"{kind}-failed", event.text or event.code)
            stream.pool = ""
            stream.running, stream.gating, stream.done = None, None, True
            if stream.candidate:
                self._reject(stream, stream.note)
            self._plan(event.at_s)

    def _prep_failed(self, task: Prep, stream: StreamState, event: JobFailed) -> None:
        """Without a look the camera counts as one that may have drifted; without a probe it is profiled as it is."""
        self._note(stream.id, f"{task.kind}-failed", event.text or event.code)
        self.state.active = None
        if task.kind == "reference":
            stream.learned = None  # its frames may be gone: that is not tried for ever
        elif task.kind == "probe":
            self._profile(stream)
        elif task.kind == "profile":
            self._disband(stream)
        elif task.kind == "lesson":
            for other in (self.state.streams[id] for id in task.members if id in self.state.streams):
                other.awaits, other.done, other.note = False, True, f"the lesson with others failed: {event.code}"
        elif task.kind == "reprofile":
            self._profiled_anew(task)  # said again when it is still old in a while
        self._next_prep(event.at_s)

    def _swap_done(self, event: SwapDone) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.candidate != (event.asked or event.version):
            return
        stream.offered = tuple(v for v in stream.offered if v != event.version)
        old, stream.version, stream.quality = stream.version, event.version, stream.candidate_quality
        stream.candidate, stream.learned, stream.reference = None, self.state.lesson(stream), None
        stream.held_out = self.config.gate_frames
        if stream.swapping in ("reuse", "rollback"):
            if event.asked:
                self._remember_mean(stream, event)
            self._serves_again(stream, old)
            self._go_on(stream, event.at_s)
            return
        stream.replaced, stream.asked, stream.admitted, stream.done = old, False, True, True
        stream.taught_in = stream.judged.job if stream.judged is not None and stream.judged.members else ""
        stream.scenes = scenes.learned(stream.scenes, Lesson(version=event.version, taught_in=stream.taught_in))
        if all(m.name != event.version for m in stream.cached):
            self._remember_model(stream, event.version)
        self._plan(event.at_s)

    def _serves_again(self, stream: StreamState, old: str) -> None:
        """What follows from taking an earlier version up: the one that served stays out for a while; it may come back at once only
        where reuse, not rollback, took its place (then it is the next one to be asked whether that was right)."""
        stream.left = reuse.leave(stream.left, old, self.state.window)
        if stream.swapping == "rollback":
            stream.scenes = scenes.taken_back(stream.scenes, old)
        stream.taught_in = self._taught_in(stream, stream.version)
        stream.replaced, stream.asked = old if stream.swapping == "reuse" else None, False
        stream.reused = stream.version
        if stream.lesson is None:  # else its labels are still to come
            stream.measured = stream.probed
        if not stream.turned:  # else what there is to win follows from the scene, not from the model
            stream.begin_gains()

    def _taught_in(self, stream: StreamState, version: str) -> str:
        return scenes.taught_in(stream.scenes, version) if self.config.average else ""

    def _go_on(self, stream: StreamState, at_s: float) -> None:
        """After a swap that a probe asked for, well or badly ended: the camera's profile, or a plan when preparation is over."""
        stream.swapping = "retrained"
        if self.state.prepares:
            if not (stream.done or stream.lesson is not None and stream.measured is None):
                self._profile(stream)
            self._next_prep(at_s)
        if self.state.phase == "planned":
            self._plan(at_s)

    def _remember_model(self, stream: StreamState, version: str) -> None:
        if stream.traits is not None:
            kept = CachedModel(name=version, traits=stream.traits, signature=stream.signature)
            stream.cached = (kept, *stream.cached)[:MAX_CACHED]

    def _remember_mean(self, stream: StreamState, event: SwapDone) -> None:
        """The mean of lessons may serve again, when a window looks like this one."""
        here = stream.scenes.present
        if here is not None:
            stream.scenes = scenes.averaging(stream.scenes, here.averaged, event.version)
        asked = next((m for m in stream.cached if m.name == event.asked), CachedModel(name=event.asked, traits=Traits()))
        kept = replace(asked, name=event.version, signature=stream.scene)
        stream.cached = (kept, *stream.cached)[:MAX_CACHED]

    def _swap_failed(self, event: SwapFailed) -> None:
        stream = self.state.streams.get(event.stream)
        if stream is None or stream.candidate != event.version:
            return
        self._note(stream.id, "swap-failed", event.text)
        if event.version in stream.offered:
            self._forget_offer(stream, event.version)
            self._out.append(RejectModel(stream=stream.id, version=event.version, reason=event.text))
        if stream.swapping in ("reuse", "rollback"):
            stream.left = reuse.leave(stream.left, event.version, self.state.window)
            stream.candidate, stream.remark = None, f"{stream.swapping} of {event.version} failed: the serving model stays"
            self._go_on(stream, event.at_s)
            return
        stream.note = "the swap failed; the old model stays"
        self._reject(stream, stream.note)
        stream.done = True
        self._plan(event.at_s)

    # --- planning -----------------------------------------------------------------------------------------------------

    def _plan(self, at_s: float) -> None:
        """Runs the policy on a snapshot of now and turns its plan into commands."""
        state = self.state
        remaining_s = state.ends_s - at_s
        if remaining_s <= 0 or state.phase == "idle":
            return
        first = not state.foretold
        for stream in state.streams.values() if first else ():
            stream.integral, stream.integral_since_s = 0.0, at_s
            if state.planned_s is None:
                stream.start_quality = stream.quality
        if first:
            state.planned_s, state.foretold = at_s, not state.prepares
        state.phase = "planned"
        snapshot, parts = self._decide(remaining_s)
        parts, saved = self._priced(snapshot, parts)
        plan = grants.whole(snapshot, parts)
        plan.check(snapshot.capacity_pct)
        if first:
            state.predicted = plan.expected_quality if any(s.quality is not None for s in state.streams.values()) else None
        reasons = (
            *(f"planned anew: {why}" for why in state.why),
            *saved,
            *grants.told(parts),
            *reasons_of(snapshot, plan, {s.id: s.remark for s in state.ordered()}),
        )
        self.decided = Decided(at_s=at_s, window=state.window, snapshot=snapshot, plan=plan, reasons=reasons)
        self._out.append(ReportPlan(window=state.window, plan=plan, reasons=reasons))
        state.replanned_s, state.moved_s, state.reacting, state.why = at_s, at_s, False, []
        self._apply(plan, snapshot, first)

    def _decide(self, remaining_s: float) -> Decision:
        """A snapshot and its plan, in the customers' parts. All that learns has one share while preparation goes on. Where a retraining
        runs beside it that has all of it, and preparation waits: whoever has the next turn waits for it too, of which the plan knows
        nothing. Where none does, preparation has it."""
        snapshot, parts = self._decide_on(remaining_s)
        if not self.state.prepares:
            return snapshot, parts
        planned_pct = sum(s.train_pct for part in parts for s in part.plan.streams)
        gates_pct = round(sum(s.train_pct for s in self.state.streams.values() if s.gating))
        if planned_pct == 0:
            left_pct = int(self.state.prep_pct) - gates_pct
            return self._decide_on(remaining_s, left_pct) if left_pct > 0 else (snapshot, parts)
        if planned_pct + gates_pct < self.state.prep_pct and len(parts) == 1:
            return snapshot, (self._hastened(parts[0], planned_pct, remaining_s),)
        return snapshot, parts

    def _hastened(self, part: grants.Part, planned_pct: int, remaining_s: float) -> grants.Part:
        """The plan with what its retrainings leave of the share of all that learns given to the largest of them, and inference as the
        policy divides the rest. What it expects is what the policy did: it knows nothing of those who wait."""
        first = max(part.plan.streams, key=lambda s: s.train_pct)
        more_pct = int(self._usable(first.train_pct + self.state.prep_pct - planned_pct)) - first.train_pct
        idle = self._inference_beside(remaining_s, planned_pct + max(0, more_pct))
        if more_pct <= 0 or idle is None:
            return part
        streams = tuple(
            replace(
                s, infer_pct=seen.infer_pct, knobs=seen.knobs, below_floor=seen.below_floor,
                train_pct=s.train_pct + (more_pct if s is first else 0),
            )
            for s, seen in zip(part.plan.streams, idle.streams, strict=True)
        )  # fmt: skip
        used_pct = sum(s.infer_pct + s.train_pct for s in streams)
        return replace(part, plan=replace(part.plan, streams=streams, spare_pct=part.snapshot.capacity_pct - used_pct))

    def _inference_beside(self, remaining_s: float, taken_pct: int) -> Plan | None:
        """What the policy gives to inference where so much is taken and nothing is retrained; None where nothing is left to give."""
        snapshot = snapshot_of(self.state, self.config, remaining_s, cached=False, reserved_pct=taken_pct)
        if snapshot.capacity_pct < snapshot.quantum_pct:
            return None
        return self._policy(_only_watched(snapshot))

    def _decide_on(self, remaining_s: float, reserved_pct: int = 0) -> Decision:
        """Retrainings that run may have come to need more memory than there is (a camera joined, a device's share is at a gate): then
        they are given up, because a plan that cannot be placed is never made."""

        def seen() -> Snapshot:
            cached = self._needs.cached
            return snapshot_of(self.state, self.config, remaining_s, cached=cached, reserved_pct=reserved_pct)

        snapshot = seen()
        try:
            return snapshot, grants.parts_of(snapshot, self._policy, division_of(self.state))
        except ConfigError as error:
            self._note("", "no-room", f"running retrainings were given up: {error.message}")
        for stream in self.state.ordered():
            if stream.running is not None:
                self._drop_training(stream, "its memory no longer fits")
                stream.done = True
        snapshot = seen()
        return snapshot, grants.parts_of(snapshot, self._policy, division_of(self.state))

    def _priced(self, snapshot: Snapshot, parts: Parts) -> tuple[Parts, tuple[str, ...]]:
        """The plan without changes of shares that do not pay, each customer's within its part, and what people read of it. A fixed split
        is what it is by definition."""
        if self._needs.useless:
            return parts, ()
        held = {
            s.id: pricing.Held(infer_pct=s.infer_pct, train_pct=s.train_pct if s.running is not None else None)
            for s in self.state.ordered()
        }
        priced = [pricing.worth_its_changes(part.plan, part.snapshot, held, self.config.change) for part in parts]
        kept = sorted(id for found in priced for id in found.kept)
        parts = tuple(replace(part, plan=found.plan) for part, found in zip(parts, priced, strict=True))
        if not kept:
            return parts, ()
        left = f"in the {snapshot.remaining_s:.0f} s that are left"
        return parts, (f"shares of {', '.join(kept)} stay: changing them costs more than it brings {left}",)

    def _apply(self, plan: Plan, snapshot: Snapshot, first: bool) -> None:
        starts: list[Command] = []
        for entry in plan.streams:
            stream = self.state.streams[entry.id]
            stream.infer_pct = entry.infer_pct
            if not stream.gating:
                stream.train_pct = entry.train_pct
                if stream.running is not None:
                    stream.running.in_budget = entry.train_pct > 0
                stream.gpu_pct = tuple(
                    (p.gpu, p.share_pct) for p in plan.placement if p.stream == entry.id and p.kind == "train"
                )
            if first:
                stream.predicted = entry.expected_quality if stream.quality is not None else None
            self._set_knobs(stream, entry.knobs)
            starts.extend(self._starts(stream, entry, snapshot))
        self.state.infer_pct = sum(s.infer_pct for s in self.state.streams.values() if s.live)
        self._emit_shares()
        self._look_at_goals()
        self._out.extend(starts)

    def _starts(self, stream: StreamState, entry: StreamPlan, snapshot: Snapshot) -> list[Command]:
        """What a plan begins for one stream."""
        if self._needs.cached and self.config.leave_models and stream.traits is not None and stream.leaving is None:
            left = self._leave_model(stream)
            stream.done = True  # what it leaves now is for later windows, also where a second plan is made in this one
            return [left, *self._reuse(stream, entry.retrain)]
        if entry.retrain is None or stream.running is not None:
            return []
        if entry.source == "cached":
            return self._reuse(stream, entry.retrain)
        if entry.source == "cloud":
            return [self._start_retraining(stream, entry.retrain, remote_s=snapshot_arrival_s(snapshot))]
        return [self._start_retraining(stream, entry.retrain)] if entry.train_pct > 0 else []

    def _leave_model(self, stream: StreamState) -> Command:
        """A model of the last window for later ones to choose from; it is not served now."""
        stream.leaving = self.state.job(stream.id, "keep")
        costs = {o.name: o.cost_gpu_s for o in self.config.reference}
        config = max(prep.config_list(stream, self.config), key=lambda c: costs.get(c.name, 0.0))
        return StartRetraining(
            job=stream.leaving, stream=stream.id, window=self.state.window - 1, version=stream.version, config=config, remote_s=0.0
        )  # fmt: skip

    def _reuse(self, stream: StreamState, version: str | None) -> list[Command]:
        """A model of an earlier window serves again; nobody has measured it on this one."""
        if version is None:
            return []
        stream.done = True
        if version == stream.version:
            return []
        stream.retrained, stream.candidate, stream.candidate_quality = version, version, None
        stream.swapping = "chosen"
        return [SwapModel(stream=stream.id, version=version, quality=None, reason="chosen for this window", cause="chosen")]

    def _start_retraining(self, stream: StreamState, name: str, *, remote_s: float | None = None) -> Command:
        config = next(c for c in prep.config_list(stream, self.config) if c.name == name)
        option = next(o for o in stream.options if o.name == name)
        job = self.state.job(stream.id, "train")
        members = self._members(stream)
        if members:  # one pool, thinned to what one camera's retraining costs
            config = replace(config, data_frac=config.data_frac / len(members))
        measured = stream.quality if stream.measured is None else stream.measured
        stream.running = Running(
            job=job, config=config, option=option, raw=next((o for o in stream.raw if o.name == name), None),
            start_quality=measured, lift=0.0 if measured is None or stream.quality is None else stream.quality - measured,
            gate_gpu_s=min(belief.gate_gpu_s(self.state, self.config), option.cost_gpu_s), started_s=self.state.replanned_s,
            expected=stream.expected.get(name, Expected()), members=members,
        )  # fmt: skip
        stream.retrained = name
        return StartRetraining(
            job=job, stream=stream.id, window=self.state.lesson(stream), version=stream.version, config=config, remote_s=remote_s,
            members=members,
        )  # fmt: skip

    def _members(self, stream: StreamState) -> tuple[str, ...]:
        """Who learns with this camera now; empty when nobody does."""
        others = (self.state.streams[id] for id in stream.followers if id in self.state.streams)
        ready = [other.id for other in others if _is_free(other)]
        return (stream.id, *ready) if ready else ()

    def _reshare(self, at_s: float) -> None:
        """Cameras came, went or changed: give the shares out anew under the rules of the current phase."""
        if self.state.phase == "prepare":
            self._share_prep(at_s)
            self._next_prep(at_s)  # what was waited for may be gone
        elif self.state.phase == "planned":
            self._next_prep(at_s)
            self._plan(at_s)

    # --- shares -------------------------------------------------------------------------------------------------------

    def _prep_share(self) -> float:
        live = [s for s in self.state.streams.values() if s.live]
        used = sum(s.infer_pct + (s.train_pct if s.running or s.gating else 0.0) for s in live)
        return self._usable(max(0.0, self.config.capacity_pct - used))

    def _usable(self, share_pct: float) -> float:
        return share_pct if self.config.job_max_pct is None else min(share_pct, self.config.job_max_pct)

    def _share_prep(self, at_s: float) -> None:
        """Inference starts at once on what preparation leaves; what it does not need goes to preparation."""
        share_pct = self.state.prep_pct or prep.first_share_pct(self.config, self._needs)
        for stream in self.state.ordered():
            if stream.live and not stream.gating:
                stream.train_pct = 0.0
        if not (self.config.divides_prep and prep.chooses(self._needs) and self._divide_beside(at_s, share_pct)):
            self._split_evenly(share_pct)
        self._emit_shares()

    def _divide_beside(self, at_s: float, share_pct: float) -> bool:
        """Inference as the policy divides what preparation leaves; False: it cannot say."""
        gates_pct = sum(s.train_pct for s in self.state.ordered() if s.live and s.gating)
        beside_pct = max(0, round(share_pct - gates_pct))
        snapshot = snapshot_of(self.state, self.config, self.state.ends_s - at_s, cached=False, reserved_pct=beside_pct)
        if snapshot.remaining_s <= 0 or snapshot.capacity_pct < snapshot.quantum_pct or not snapshot.streams:
            return False
        snapshot = _only_watched(snapshot)
        parts, _ = self._priced(snapshot, grants.parts_of(snapshot, self._policy, division_of(self.state)))
        for entry in grants.whole(snapshot, parts).streams:
            stream = self.state.streams[entry.id]
            stream.infer_pct = entry.infer_pct
            self._set_knobs(stream, entry.knobs)
        return True

    def _split_evenly(self, share_pct: float) -> None:
        live = [s for s in self.state.ordered() if s.live]
        evenly = grants.even_pct([s.id for s in live], self.config.capacity_pct - share_pct, division_of(self.state))
        for stream in live:
            knob = best_affordable(stream.knobs, evenly[stream.id])
            self._set_knobs(stream, knob.name if knob else None)
            stream.infer_pct = min(evenly[stream.id], knob.demand_pct) if knob else 0.0

    def _emit_shares(self) -> None:
        shares: dict[str, float] = {}
        for stream in self.state.ordered():
            if not stream.live:
                continue
            if stream.infer_pct > 0:
                shares[f"{stream.id}/infer"] = stream.infer_pct
            job = stream.running.job if stream.running else stream.gating
            if job and stream.train_pct > 0:
                shares[job] = self._usable(stream.train_pct)
        if self.state.active is not None:
            self.state.active.share_pct = shares[self.state.active.job] = self._prep_share()
        spare = self.config.capacity_pct - sum(shares.values())
        self._out.append(SetShares(shares_pct=tuple(sorted(shares.items())), spare_pct=max(0.0, spare)))

    def _set_knobs(self, stream: StreamState, knob: str | None) -> None:
        if stream.knob != knob:
            stream.knob = knob
            self._out.append(SetKnobs(stream=stream.id, knobs=knob))

    # --- small things -------------------------------------------------------------------------------------------------

    def _running(self, stream_id: str, job: str) -> Running | None:
        stream = self.state.streams.get(stream_id)
        running = stream.running if stream else None
        return running if running and running.job == job else None

    def _reject(self, stream: StreamState, reason: str) -> None:
        """Earlier versions that were to serve again stay what they were."""
        if stream.candidate and stream.swapping not in ("reuse", "rollback"):
            self._out.append(RejectModel(stream=stream.id, version=stream.candidate, reason=reason))
        stream.candidate = None

    def _drop_training(self, stream: StreamState, reason: str) -> None:
        for job in (stream.running.job if stream.running else None, stream.gating):
            if job:
                self._out.append(CancelJob(job=job, stream=stream.id))
                stream.note = reason
        self._reject(stream, reason)
        stream.running, stream.gating, stream.pool, stream.seen = None, None, "", None

    def _cancel_all(self) -> None:
        for stream in self.state.ordered():
            self._drop_training(stream, "the box was stopped")
        if self.state.active:
            self._out.append(CancelJob(job=self.state.active.job, stream=self.state.active.stream))
            self.state.active = None
        self.state.queue = []

    def _note(self, stream: str, code: str, text: str) -> None:
        self.state.notes.append(f"{stream}: {text}" if stream else text)
        self._out.append(Note(stream=stream, code=code, text=text))

    def _integrate(self, at_s: float) -> None:
        """Adds shown quality over the time since the last event (realised average of the window), and what preparation was promised."""
        if self.state.active is not None:
            self.state.active.integrate(at_s)
        for stream in self.state.streams.values():
            dt_s = max(0.0, at_s - stream.integral_since_s)
            if stream.live:
                stream.integral += stream.shown_quality() * dt_s
            stream.integral_since_s = at_s


def best_affordable(knobs: tuple[KnobProfile, ...], share_pct: float) -> KnobProfile | None:
    """The best knobs `share_pct` can carry; the cheapest when none fits but there is a share (frames will be skipped); else None."""
    cheapest = min(knobs, key=lambda k: (k.demand_pct, k.name), default=None) if share_pct > 0 else None
    return best_knobs(knobs, share_pct) or cheapest


def _only_watched(snapshot: Snapshot) -> Snapshot:
    """The same box with nothing to retrain."""
    return replace(snapshot, streams=tuple(replace(view, retrain=(), running=None) for view in snapshot.streams))


def _exchangeable(stream: StreamState) -> bool:
    """Does its training share belong to the budget that SLAQ may move?"""
    running = stream.running
    return stream.live and running is not None and running.in_budget and not running.trained()


def _settle(stream: StreamState, lesson: int) -> None:
    """lesson: the window it learned from. One that was examined in full and held nothing worth a retraining is from now on what the
    camera is compared with. One whose retraining did not end, or had to wait for others, says nothing."""
    if not stream.examined or stream.admitted or (stream.options and not stream.refused):
        return
    if not stream.refused and not stream.strange_lesson():
        stream.has_won(0.0)
    seen = stream.look is not None and stream.look.version == stream.version
    stream.learned, stream.reference = lesson, stream.look if seen else None


def _is_free(stream: StreamState) -> bool:
    """May a model that another camera trained be judged for this one?"""
    return stream.live and stream.learns and not (stream.done or stream.running or stream.gating or stream.candidate)


def _split_share(leader: StreamState, judges: list[StreamState]) -> None:
    """The gates of a shared retraining divide its share."""
    parts, gpu_pct, share_pct = len(judges), leader.gpu_pct, leader.train_pct
    for number, stream in enumerate(judges):
        stream.train_pct = share_pct / parts
        stream.gpu_pct = tuple((gpu, pct // parts + (number < pct % parts)) for gpu, pct in gpu_pct)


def _seen(event: GateDone) -> together.Seen:
    old, new, gain = _number(event.serving_quality), _number(event.candidate_quality), _number(event.gain)
    if gain is None and old is not None and new is not None:
        gain = new - old
    return together.Seen(serving=old, candidate=new, gain=gain, gain_sd=event.gain_sd, frames=event.frames)


def _refusal(serving: float | None, candidate: float | None, verdict: admission.Verdict) -> str:
    if serving is None:
        return "no labels to judge the retrained model by"
    if candidate is None:
        return "nobody can say what the retrained model is worth"
    if verdict.gain <= 0 or candidate <= serving:
        return "retrained model was not better"
    return (
        f"retrained model was better by {verdict.gain:.3f}, which few frames do not prove ({100 * verdict.chance:.0f} % sure)"
    )


def _number(value: float | None) -> float | None:
    """A quality that is not a number is none."""
    return value if value is not None and math.isfinite(value) else None


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
