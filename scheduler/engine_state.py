"""What the engine knows and is told: its configuration, and the state that its events change. All of it serialisable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from scheduler.answers import Answers, lost_frac
from scheduler.codec import register
from scheduler.commands import SwapKind
from scheduler.drift import DriftConfig
from scheduler.events import GateDone
from scheduler.pricing import ChangePrice
from scheduler.reuse import Left
from scheduler.scenes import Scenes
from scheduler.types import (
    CachedModel,
    Drift,
    EpochReport,
    Gpu,
    KnobProfile,
    Look,
    Network,
    Observation,
    Plan,
    RetrainConfig,
    RetrainOption,
    Signature,
    Snapshot,
    Traits,
)
from scheduler.videostorm.allocate import Rules
from scheduler.videostorm.types import Utility

#: Part of the window by which preparation ends where retrainings begin beside it.
OVERLAP_UNTIL_FRAC = 0.9
#: Gains that are remembered per camera.
MAX_GAINS = 8

Phase = Literal["idle", "prepare", "planned", "stopped"]
PrepKind = Literal["glance", "sample", "choose", "reference", "look", "label", "probe", "profile", "lesson", "reprofile"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything a decision depends on besides events. Times in seconds, shares in percent of one GPU, qualities 0-1.

    quantum_auto: shares move in finer steps than quantum_pct where rounding would waste much (`scheduler.steps`); quantum_fits: and
    where a camera would go dark for nothing but rounding; False is what journals without them were decided with.
    job_max_pct: most that one learning job can use (on CPU lanes a job is one thread), None: no limit; it is never promised more.
    prep_pct: share for labelling and profiling while they run (inference keeps the rest); prep_auto: it is chosen anew in each window
    by what inference loses and learning brings (`scheduler.prep_share`), prep_pct being the first; prep_max_frac: latest part of the
    window by which they end; overlap: a camera's retraining begins when its own profile is there, beside the preparation of the
    others, cameras that promise most first (one pool of GPUs, no groups; else all wait for all). divide_prep: where it does, inference
    beside preparation is divided as plans divide it, before there is one, too; False (evenly) is what journals without it were decided
    with. label_frames: wanted golden labels
    per camera and window, shrunk when the golden model is too slow, but never under min_label_frames (then cameras take turns).
    golden_gpu_s: first guess of the cost of one label, corrected by measurement.
    prior_quality: assumed for a camera that was never measured, so that its inference is worth a share.
    reference: options measured once on other footage, for policies that never profile (only name and cost are used).
    cost_margin_frac: added to predicted retraining costs, because a retraining that misses the window's end is lost.
    gpus: the devices behind capacity_pct, empty: one pool; train_memory_mib: what one training job holds of a device's memory.
    network: link to a cloud, for the policy of that name.
    calibrate: correct predictions by what came of earlier ones (`scheduler.ekya.calibration`).
    hold_out: what came of predictions on other footage, measured before the box was put up; calibration begins with it.
    families: (configuration, family) where a family does not share its trials, as in a recorded trace; empty: those that do.
    profile_every: a camera is profiled in every so-many-th window that it learns in; in between its last profile is recalled, scaled to
    what its retrainings have really won (1: always profiled; not with groups).
    profile_pool: from so many cameras' profiles on the others are told by them and by what retrainings have won (`scheduler.pooled`), 0:
    each has its own, which is what journals without it were decided with.
    pool_layers: what others are told regards the layers that a configuration trains, and whether the camera has learned before; False is
    what journals without it were decided with.
    plain_splits: `uniform` is the paper's: what it trained serves at once, and is taken to cost what so many labels do (evaluations
    only: on a live box nothing serves without a gate).
    profile_lend: where trials of the head's families cost next to nothing, the others are not tried but borrow from them
    (`microprofile.options`).
    prune_every: windows between prunings of a camera's configurations (0: never); prune_frac: part of them that goes.
    react: plan anew when a running retraining leaves its prediction, by more than react_quality (0-1) or when an epoch takes less
    than react_fast or more than react_slow times what was predicted; never sooner than react_dwell_s after the last plan.
    change: what changing the shares of running jobs costs; a plan's changes that do not pay are left out (`scheduler.pricing`).
    slaq: objective by which the training budget moves between running retrainings after each epoch, None: shares stay as planned;
    leave_models: under policy `cached`, each window leaves a model trained on it, elsewhere and for free, as the paper assumes
    (virtual drivers only; a live box has the models that its earlier windows really left).
    slaq_age_s: after so long below its fair part a job's gains count double, None: never.
    try_again: a refused retraining leaves what was to win (`turns.as_if_won`), else what the gate saw of it is all that the next one is
    expected to win; False is what journals without it were decided with.
    count_taught: of a turn's labels those count that teach, not those that judge (`scheduler.turns`); False is what journals without it
    were decided with.
    left_of_missing: what a camera that has learned has left to win follows from what is missing to quality 1, and what nobody measures
    grows old (`turns.left_to_win`, `UNSEEN_LOSS`), else from what its newest retraining won; False is what journals without it were
    decided with.
    try_little: where no turn is worth it, a few labels tell how fast the device is (`turns.choose`), else a whole turn, and turns that
    are chosen anew within a window have the share that was chosen with them; False is what journals without it were decided with.
    weigh_frames: what few labelled frames say of a model is weighed against what was believed of it (`belief.weighed`); False is what
    journals without it were decided with.
    look_again: a lesson of several cameras that finds little is looked at again, on new labels, where those that are there leave doubt
    (`together.in_doubt`); False is what journals without it were decided with.
    least_quality: no camera is planned for as if its model were worth less: few labels cannot tell nothing from little, and a camera
    that is worth nothing is not watched; 0.0 is what journals without it were decided with.
    gate_margin, gate_risk: how much better a model must be to be admitted, and the chance that is taken of being wrong
    (`scheduler.admission`); gate_seeing: below which quality of its own it must be the surer, 0.0 is what journals without it were
    decided with; gate_known: what is labelled already judges first, and new labels are asked for only where that leaves doubt, False
    is what journals without it were decided with; shadow: an admitted retraining first runs beside the serving model.
    drift: look at each window before it is labelled, and spare a camera that does not drift and has nothing more to learn the full
    labelling, the probe and the profile; look_frames: of one look; drift_config: the detectors' settings; drift_drop: a measured
    quality so far below what was believed is a drift that no look has seen.
    reuse: measure earlier versions before anything is trained (`scheduler.reuse`), the replaced one and the reuse_nearest others;
    ask_again: the replaced one is asked again whenever labels say that the serving one has become worse by drift_drop; False (once, in
    the window after the swap) is what journals without it were decided with;
    glance: look at the window in progress too, and take up what fits it (`scheduler.glance`); False is what journals without it were
    decided with.
    learn_now: a camera that turns to a scene which it does not know, or is new, learns from the window in progress (where it is
    `overlap`), not from the one before; False is what journals without it were decided with.
    average: a scene that is back is served by the mean of its own lessons and the newest one (`scheduler.scenes.to_average`); False is
    what journals without it were decided with.
    together: cameras with one model share one lesson a window, where it is `overlap` (`scheduler.together`, `scheduler.lessons`), of
    the window in progress where it is `learn_now`; what they learn is not put off for drift then, so all are examined in full.
    knob_loop: between two plans knobs and inference shares are divided anew when what they rest on has changed
    (`scheduler.knob_loop`), by knob_rules and by what quality and lag are worth (knob_utility); else they stay as planned.
    say_lag: a lag goal of a recording that is missed is said, as quality goals are; False is what journals without it were decided with.
    group: cameras that drifted together and whose windows are no further apart than group_distance share one retraining, at most
    group_max of them (`scheduler.grouping`).
    """

    window_s: float = 200.0
    first_window_s: float = 60.0
    capacity_pct: int = 100
    quantum_pct: int = 5
    quantum_auto: bool = False
    quantum_fits: bool = False
    job_max_pct: float | None = None
    min_quality: float = 0.4
    prior_quality: float = 0.5
    policy: str = "thief-repeat"
    estimate: Literal["static", "hand-back"] = "hand-back"
    speed: tuple[tuple[float, float], ...] = ()
    prep_pct: int = 50
    prep_auto: bool = False
    overlap: bool = False
    divide_prep: bool = False
    weigh_frames: bool = False
    look_again: bool = False
    prep_max_frac: float = 0.4
    label_frames: int = 40
    min_label_frames: int = 8
    label_part_frac: float = 0.5
    holdout_frac: float = 0.4
    gate_frames: int = 16
    gate_margin: float = 0.0
    gate_risk: float = 0.25
    gate_seeing: float = 0.0
    gate_known: bool = False
    profile_pool: int = 0
    pool_layers: bool = False
    plain_splits: bool = False
    try_again: bool = False
    count_taught: bool = False
    left_of_missing: bool = False
    try_little: bool = False
    ask_again: bool = False
    least_quality: float = 0.0
    shadow: bool = False
    min_gain: float = 0.01
    cost_margin_frac: float = 0.15
    golden_gpu_s: float = 0.1
    profile_epochs: int = 3
    profile_data_frac: float = 0.5
    retrain: tuple[RetrainConfig, ...] = ()
    reference: tuple[RetrainOption, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    train_memory_mib: float = 0.0
    network: Network | None = None
    calibrate: bool = True
    profile_every: int = 1
    profile_lend: bool = False
    prune_every: int = 2
    prune_frac: float = 0.2
    react: bool = True
    react_quality: float = 0.05
    react_fast: float = 0.8
    react_slow: float = 1.25
    react_dwell_s: float = 10.0
    change: ChangePrice = ChangePrice()
    slaq: Literal["sum", "minmax", "finish"] | None = None
    slaq_age_s: float | None = None
    leave_models: bool = False
    hold_out: tuple[Observation, ...] = ()
    families: tuple[tuple[str, str], ...] = ()
    drift: bool = False
    look_frames: int = 24
    drift_config: DriftConfig = DriftConfig()
    drift_drop: float = 0.2
    reuse: bool = False
    reuse_nearest: int = 3
    glance: bool = False
    learn_now: bool = False
    average: bool = False
    together: bool = False
    group: bool = False
    group_distance: float = 0.3
    group_max: int = 4
    knob_loop: bool = False
    knob_rules: Rules = Rules(horizon_s=5.0, quantum_pct=2.0, exact_steps=100_000)
    knob_utility: Utility = Utility()
    say_lag: bool = False

    @property
    def glances(self) -> bool:
        """`glance`, where it can be: who learns with whom is decided by the last window."""
        return self.glance and self.reuse and not self.group

    @property
    def overlaps(self) -> bool:
        """`overlap`, where it can be: who shares a retraining is known only when all are labelled, and which device has room only when
        nothing else is about to take it."""
        return self.overlap and not self.group and not self.gpus

    @property
    def divides_prep(self) -> bool:
        """`divide_prep`, where preparation is one share of one pool."""
        return self.divide_prep and self.overlaps

    @property
    def learns_now(self) -> bool:
        """`learn_now`, where turns are planned one by one, so that one may begin later than the others."""
        return self.learn_now and self.glances and self.overlaps

    @property
    def prep_until_frac(self) -> float:
        """Part of the window by which preparation ends. Retrainings that begin beside it do not wait for it: only the last ones need
        what is left then."""
        return max(self.prep_max_frac, OVERLAP_UNTIL_FRAC) if self.overlaps else self.prep_max_frac


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a retraining should look like on its way. path: quality after 0, 1, ... epochs, empty when unknown; epoch_gpu_s: cost of
    an epoch, 0 when unknown."""

    path: tuple[float, ...] = ()
    epoch_gpu_s: float = 0.0


@dataclass(kw_only=True)
class Running:
    """A retraining in progress. option: as planned on (corrected, with margin and gate); raw: as the profiler gave it.
    start_quality: as measured, on the scale of the reports; lift: what planned ends lie above that scale (`calibration.present`).
    used_gpu_s, epoch: reported so far; losses: after each epoch; qualities: (epoch, quality) where it was measured.
    members: all cameras that learn from it when there are several."""

    job: str
    config: RetrainConfig
    option: RetrainOption
    raw: RetrainOption | None = None
    start_quality: float | None = None
    lift: float = 0.0
    started_s: float = 0.0
    used_gpu_s: float = 0.0
    epoch: int = 0
    measured_epoch_gpu_s: float = 0.0  # mean since `paced_from` (epoch, GPU-seconds used by then); 0: not known yet
    paced_from: tuple[int, float] = (0, 0.0)
    gate_gpu_s: float = 0.0  # part of the option's cost that comes after the last epoch
    losses: list[float] = field(default_factory=list)
    qualities: list[tuple[int, float]] = field(default_factory=list)
    expected: Expected = field(default_factory=Expected)
    in_budget: bool = True  # the newest plan gave it a share (SLAQ may take and give it back; a plan's pause it must not lift)
    below_fair_s: float = 0.0  # how long it has had less than its part of the training budget
    members: tuple[str, ...] = ()

    def note(self, report: EpochReport) -> None:
        """Adds an epoch's report to what is known."""
        if self.epoch == 0:  # the first epoch holds the job's start, so the pace is what later ones add
            self.paced_from = (report.epoch, report.gpu_s)
        epoch, used_gpu_s = self.paced_from
        if report.epoch > epoch:
            self.measured_epoch_gpu_s = max(0.0, (report.gpu_s - used_gpu_s) / (report.epoch - epoch))
        self.epoch, self.used_gpu_s = report.epoch, report.gpu_s
        if math.isfinite(report.loss):
            self.losses.append(report.loss)
        if report.quality is not None and math.isfinite(report.quality):
            self.qualities.append((report.epoch, report.quality))

    def pace_gpu_s(self) -> float:
        """GPU-seconds of an epoch: measured, else predicted."""
        return self.measured_epoch_gpu_s or self.expected.epoch_gpu_s or self.option.cost_gpu_s / self.config.epochs

    def left_gpu_s(self) -> float:
        """What it still needs, gate and margin included: the prediction's part for the epochs left, or the measured pace when that is
        slower (`react.refit` moves the prediction itself when the pace leaves it)."""
        if self.epoch <= 0:
            return self.option.cost_gpu_s
        left = max(0, self.config.epochs - self.epoch)
        pace = self.measured_epoch_gpu_s or self.used_gpu_s / self.epoch
        training_gpu_s = self.option.cost_gpu_s - self.gate_gpu_s
        return max(pace * left, training_gpu_s * left / self.config.epochs) + self.gate_gpu_s

    def length_gpu_s(self) -> float:
        """What the training takes in all, from its start to its last epoch, as far as is known now."""
        return self.used_gpu_s + max(0.0, self.left_gpu_s() - self.gate_gpu_s)

    def trained(self) -> bool:
        """All epochs are done: it only waits to be handed over, and must keep its share until then."""
        return self.epoch >= self.config.epochs


@dataclass(kw_only=True)
class StreamState:
    """One camera as the engine knows it. arch: of its model, '' unknown; retrain: its own configurations, empty: the box's;
    observations: what came of its predictions, newest last; profiles: its newest raw profiles; kept: configurations still profiled,
    None: all; cached: models of earlier windows, newest first.
    offered: those of them that came from outside and were never measured here;
    replaced: the version that the serving one took the place of (without `ask_again`: until that has been proved right); asked: it was
    measured beside the serving one; left: versions that were taken out
    again; learned: the window which the serving model learned from or was last judged on; reference: that window, seen by it;
    gains: what its newest retrainings won, 0 for a window in which nothing was worth one; refusals: of the newest of them, in a
    row; waited: windows without labels.
    The rest is of the current window only (`reset`)."""

    id: str
    knobs: tuple[KnobProfile, ...]
    version: str
    quality: float | None = None
    arch: str = ""
    utility: Utility | None = None  # of its queries
    old_profile: str = ""  # why its knobs are to be profiled anew; "": they are not
    old_queries: dict[str, str] = field(default_factory=dict)  # query -> why its knobs are to be profiled
    customer: str = ""  # whose it is, for `BoxState.shares_pct`
    unmet: bool = False  # its quality goal cannot be met now, and that was told
    late: bool = False  # its lag goal is not met, and that was told
    retrain: tuple[RetrainConfig, ...] = ()
    replaced: str | None = None
    asked: bool = False
    left: dict[str, Left] = field(default_factory=dict)
    learned: int | None = None
    reference: Look | None = None
    gains: list[float] = field(default_factory=list)
    refusals: int = 0
    waited: int = 0
    answers: Answers | None = None  # of its model, newest
    answers_then: Answers | None = None  # when its quality was measured, or the first of a model that has begun to serve
    answers_px: int = 0  # height of the pictures that both are of, 0: as the camera gives them
    alone: int = -1  # refused a shared retraining in that window: the next one it learns alone
    held_out: int = 0  # frames behind `quality`
    look: Look | None = None
    signature: Signature | None = None
    scene: Signature | None = None  # of the newest window that was glanced at
    scenes: Scenes = Scenes()
    taught_in: str = ""  # the lesson with others whose model it serves, "": none
    delivered: str = ""  # the version that it came with
    drift: Drift | None = None
    turned: bool = False  # to another scene, in this window
    lesson: int | None = None  # the window it learns from, where that is not the last one
    fresh: bool = True  # it joined in this window: nothing of it was sampled before
    full: bool = True  # this window is examined in full
    examined: bool = False  # ... and was
    swapping: SwapKind = "retrained"  # why `candidate` is to serve
    probed: float | None = None  # what a probe measured of `candidate`
    refused: bool = False  # the gate measured its retraining and kept the old model
    awaits: bool = False  # its labels are there, and it waits for the lesson with others
    pool: str = ""  # the lesson whose model it and others judge now
    seen: GateDone | None = None  # what its gate saw, while others still judge
    fallen: bool = False  # labels say that its model is worth much less than was believed
    leader: str | None = None  # whose retraining it shares
    followers: tuple[str, ...] = ()
    remark: str = ""  # for people, beside the plan
    reused: str | None = None
    measured: float | None = None  # by this window's labels; `quality` is what is believed
    live: bool = True
    learns: bool = True
    observations: list[Observation] = field(default_factory=list)
    profiles: list[tuple[RetrainOption, ...]] = field(default_factory=list)
    profiled: int = 0
    kept: tuple[str, ...] | None = None
    cached: tuple[CachedModel, ...] = ()
    offered: tuple[str, ...] = ()
    traits: Traits | None = None
    profile_gpu_s: float | None = None  # what its newest profile took
    profiled_in: int | None = None  # window of its newest profile
    profiled_from: float = 0.0  # quality that it was made from
    profiled_on: int = 0  # labels that it was made for
    taught: int = 0  # labels to learn from, in this window
    raw: tuple[RetrainOption, ...] = ()
    expected: dict[str, Expected] = field(default_factory=dict)
    judged: Running | None = None  # at the gate
    leaving: str | None = None  # the job whose model only later windows may choose
    observed: Observation | None = None
    gpu_pct: tuple[tuple[str, int], ...] = ()  # where its training share lies
    options: tuple[RetrainOption, ...] = ()
    running: Running | None = None
    gating: str | None = None  # the gate job
    gate_knows: bool = False  # it judges by what is labelled already
    candidate: str | None = None
    candidate_quality: float | None = None
    done: bool = False  # retrained (or failed to) in this window: not offered again
    knob: str | None = None
    infer_pct: float = 0.0
    train_pct: float = 0.0
    start_quality: float | None = None
    predicted: float | None = None
    retrained: str | None = None
    admitted: bool = False
    note: str = ""
    integral: float = 0.0  # of shown quality over time since `planned_s`
    integral_since_s: float = 0.0

    def knob_frac(self) -> float:
        return next((k.quality_frac for k in self.knobs if k.name == self.knob), 0.0)

    def believed(self, prior: float) -> float:
        """Quality of the serving model (0-1): what it is believed to be worth, `prior` before anybody has measured it."""
        return prior if self.quality is None else self.quality

    def answered(self, answers: Answers) -> None:
        """Its model's answers since the last ones. On smaller pictures every model finds less: those are no loss, and begin anew."""
        if answers.version != self.version or not answers.counts:
            return
        before, self.answers_px = (
            self.answers_px,
            next((k.height_px for k in self.knobs if k.name == self.knob), self.answers_px),
        )
        self.answers = answers
        if self.answers_then is None or self.answers_then.version != self.version or self.answers_px != before:
            self.answers_then = answers

    def lost_frac(self) -> float:
        """Part of its quality that its model seems to have lost since that was measured (0-1)."""
        return lost_frac(self.answers_then, self.answers)

    def is_measured(self) -> None:
        """Its quality is known: what its model may lose, it loses from now on."""
        self.answers_then = self.answers

    def shown_quality(self) -> float:
        """What people see now: quality of the serving model times what the knobs leave of it (phi * a0)."""
        return (self.quality or 0.0) * self.knob_frac()

    def has_learned(self) -> bool:
        """Has it a model of its own, or tried to make one?"""
        return bool(self.observations or self.cached or self.gains) or self.learned is not None

    def strange_lesson(self) -> bool:
        """Is what it learns in this window of another scene than it sees?"""
        return self.turned and self.lesson is None

    def begin_gains(self, gains: Sequence[float] = ()) -> None:
        """What its retrainings have won says nothing any more; gains: what is known instead, of the scene that it turned to."""
        self.gains, self.refusals = list(gains), 0

    def has_won(self, gain: float) -> None:
        """What one more retraining won, or 0 where nothing was worth one."""
        self.gains = [*self.gains, gain][-MAX_GAINS:]

    def reset(self) -> None:
        """For a new window: what the last one was about is forgotten."""
        self.options, self.running, self.gating, self.candidate = (), None, None, None
        self.candidate_quality, self.done, self.retrained, self.admitted = None, False, None, False
        self.start_quality, self.predicted, self.note = None, None, ""
        self.train_pct, self.gpu_pct = 0.0, ()
        self.raw, self.expected, self.judged, self.observed = (), {}, None, None
        self.traits, self.leaving, self.measured = None, None, None
        self.look, self.signature, self.drift, self.turned, self.lesson = None, None, None, False, None
        self.full, self.examined, self.swapping, self.probed = True, False, "retrained", None
        self.leader, self.followers, self.remark, self.reused, self.refused = None, (), "", None, False
        self.fallen, self.awaits, self.pool, self.seen = False, False, "", None


@dataclass(kw_only=True)
class Prep:
    """A task of preparation waiting for, or running on, the preparation share. window: which it is about; frames: to look at or to
    label; candidates: versions to probe; query: whose knobs are to be profiled, "": the stream's own; members,
    config: of a lesson, who learns and by which retraining (`stream` leads)."""

    job: str
    stream: str
    kind: PrepKind
    window: int = 0
    frames: int = 0
    candidates: tuple[str, ...] = ()
    query: str = ""
    members: tuple[str, ...] = ()
    config: str = ""
    started_s: float = 0.0  # of the part whose promise is not counted yet
    share_pct: float = 0.0
    promised_gpu_s: float = 0.0

    def integrate(self, at_s: float) -> None:
        """Adds what its share promised since it was last asked."""
        self.promised_gpu_s += self.share_pct / 100 * max(0.0, at_s - self.started_s)
        self.started_s = max(self.started_s, at_s)


@register
@dataclass(kw_only=True)
class BoxState:
    """All that changes. Serialisable, so that a journal segment can begin with it (`BoxEngine.checkpoint`)."""

    window: int = -1
    phase: Phase = "idle"
    opened_s: float = 0.0
    ends_s: float = 0.0
    planned_s: float | None = None  # the plan that says what to expect of the window: the last of its preparation
    foretold: bool = False  # ... has been made
    replanned_s: float = 0.0  # newest plan
    moved_s: float = 0.0  # newest plan or move of the training budget
    reacting: bool = False  # a reactive plan waits for the dwell to pass
    golden_gpu_s: float = 0.1
    infer_pct: float = 0.0  # what inference has together, as last planned
    prep_pct: float = 0.0  # share of preparation as last chosen, 0: not yet
    delivered_frac: float = 1.0  # part of a promised share that preparation really received
    tried_in: int | None = None  # newest window in which a few labels only told how fast the device is
    streams: dict[str, StreamState] = field(default_factory=dict)
    queue: list[Prep] = field(default_factory=list)
    active: Prep | None = None
    prepares: bool = False  # preparation has not ended yet; with overlap a plan may be in force meanwhile
    labels_due: bool = False  # what is labelled is decided when all looks are there
    groups_due: bool = False  # who learns with whom is decided when all labels are there
    predicted: float | None = None
    why: list[str] = field(default_factory=list)  # what made the next plan necessary
    notes: list[str] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)  # how often a camera was taken out, or its turn begun anew
    shares_pct: tuple[tuple[str, float], ...] = ()  # what customers are sure of on this box, by customer; empty: not divided

    def at_work(self) -> str:
        """The camera that preparation is at, '' nobody."""
        return self.active.stream if self.active is not None else ""

    def lesson(self, stream: StreamState) -> int:
        """The window that a camera learns from in this one."""
        return self.window - 1 if stream.lesson is None else stream.lesson

    def ordered(self) -> list[StreamState]:
        return [self.streams[key] for key in sorted(self.streams)]

    def job(self, stream: str, kind: str) -> str:
        """Unique for each start: a late answer from before a camera was taken out and put back must not count for the new one."""
        generation = self.generations.get(stream, 0)
        return f"{stream}/{kind}/{self.window}" + (f".{generation}" if generation else "")


@register
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """First line of a journal segment: an engine made from it continues exactly where the last one stood."""

    config: EngineConfig
    state: BoxState


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A plan with all that it was made from. Kept beside the state, for people (`edge.plan_book`): it decides nothing."""

    at_s: float
    window: int
    snapshot: Snapshot
    plan: Plan
    reasons: tuple[str, ...]
