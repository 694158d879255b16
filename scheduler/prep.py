"""Preparation: what is found out about the last window before the next plan, one task at a time on the preparation share.

    glance, sample, choose   the window in progress, some labels of it, earlier versions on them: before all else (`scheduler.glance`)
    reference   the window that the serving model learned from, seen by it, where that is not known yet
    look        the last window as the serving model saw it, without labels: has it drifted?       (`scheduler.drift`)
    label       golden labels; a camera that neither drifted nor has more to learn gets the fewest, and is through
    probe       earlier versions on the held-out labels; a better one serves at once                (`scheduler.reuse`)
    profile     what each retraining would bring; cameras that share one are profiled once          (`scheduler.grouping`)
    reprofile   what the knobs of one camera or query are worth, where that has grown old; in the time that the others left

All cameras do one step before any does the next; within a step the camera with least quality comes first, because time may run out.
Where retrainings begin beside preparation (`EngineConfig.overlaps`), whole turns are planned instead (`scheduler.turns`): a camera's
labels, probe and profile, and its retraining, before the next one's.
Pure: the engine (`scheduler.engine`) changes its state and gives the commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler import admission, drift, glance, grouping, prep_share, reuse, together, turns
from scheduler import pooled as pooling
from scheduler.answers import SUSPECT
from scheduler.commands import (
    Command,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartReprofiling,
    StartRetraining,
)
from scheduler.ekya import microprofile
from scheduler.engine_state import BoxState, EngineConfig, Prep, PrepKind, StreamState
from scheduler.registry import Needs
from scheduler.types import RetrainConfig

ORDER: tuple[PrepKind, ...] = (
    "choose",
    "sample",
    "glance",
    "reference",
    "look",
    "label",
    "probe",
    "profile",
    "lesson",
    "reprofile",
)


#: Of the time left, what re-profiling may spend on its search; the rest is for the golden labels that it needs.
REPROFILE_FRAC = 0.5
#: What a gate by labels that are there costs a camera, in golden labels.
GATE_LABELS = 0.5


def chooses(needs: Needs) -> bool:
    """Does the policy decide by what a retraining is worth to this camera? Others (uniform, cached, a cloud) are baselines that do
    as they always do, so nothing is looked at, probed or shared."""
    return needs.profiles and not needs.useless and not needs.remote


def opening(state: BoxState, config: EngineConfig, needs: Needs) -> list[Prep]:
    """The first tasks of a window: looks, or none where nobody looks (labels come next)."""
    if not (chooses(needs) and (config.drift or config.reuse or config.group)):
        return []
    live = _learning(state)
    if config.overlaps:  # the others are looked at in their turn: whatever a look says, they are to be labelled
        live = [s for s in live if config.drift and s.lesson is None and _is_settled(s, config)]
    behind = [s for s in live if config.drift and _wants_reference(s, state)]
    return [
        *(_look(state, config, s, "reference", s.learned or 0) for s in behind),
        *(_look(state, config, s, "look", state.window - 1) for s in live),
    ]


def _learning(state: BoxState) -> list[StreamState]:
    return [s for s in state.ordered() if s.live and s.learns]


def _is_settled(stream: StreamState, config: EngineConfig) -> bool:
    """Would it be examined in full only if it drifted?"""
    return not stream.offered and drift.settled(stream.gains, min_gain=config.min_gain)


def _wants_reference(stream: StreamState, state: BoxState) -> bool:
    """The window it learned from has not been seen by the model that serves; the last window is looked at anyhow."""
    known = stream.reference is not None and stream.reference.version == stream.version
    return not known and stream.learned is not None and stream.learned != state.window - 1


def _look(state: BoxState, config: EngineConfig, stream: StreamState, kind: PrepKind, window: int) -> Prep:
    return Prep(job=state.job(stream.id, kind), stream=stream.id, kind=kind, window=window, frames=config.look_frames)


# --- how much of the device it gets -----------------------------------------------------------------------------------


def first_share_pct(config: EngineConfig, needs: Needs) -> float:
    """Before anything is known. A fixed split keeps what it promises to inference; learning of every kind has the rest."""
    if needs.infer_pct is not None and config.prep_auto:
        return max(float(config.quantum_pct), config.capacity_pct * (100 - needs.infer_pct) / 100)
    return float(config.prep_pct)


def share_pct(state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> float:
    """For the rest of this window's preparation: as chosen by `scheduler.prep_share`, where that is asked for."""
    live = [s for s in state.ordered() if s.live]
    if not (config.prep_auto and chooses(needs) and live):
        return first_share_pct(config, needs)
    seconds, spent_s = state.ends_s - state.opened_s, at_s - state.opened_s
    return prep_share.choose(
        [_work(s, state, config, needs) for s in live if s.learns],
        [prep_share.Watched(quality=s.believed(config.prior_quality), knobs=s.knobs) for s in live],
        left_s=seconds - spent_s, most_s=config.prep_until_frac * seconds - spent_s, capacity_pct=config.capacity_pct,
        quantum_pct=config.quantum_pct, speed_frac=state.delivered_frac,
    )  # fmt: skip


def _work(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> prep_share.Work:
    """Its labels, and its profile where it is examined in full: as dear as the last one, or as the labels."""
    label_gpu_s = wanted_labels(stream, config) * state.golden_gpu_s
    profile_gpu_s = label_gpu_s if stream.profile_gpu_s is None else stream.profile_gpu_s
    if not stream.full or recalls(stream, state, config, needs):
        profile_gpu_s = 0.0
    gain = prep_share.expected_gain(_own_gains(stream), full=stream.full)
    return prep_share.Work(gpu_s=label_gpu_s + profile_gpu_s, gain=gain)


def _own_gains(stream: StreamState) -> Sequence[float]:
    """What its own retrainings have won, where that tells what labels bring. It says nothing about a model that was offered from
    outside: a camera for which none was worth its cost would get a trickle of labels, and no gate lets anything in on those."""
    return () if stream.offered else stream.gains


# --- labels -----------------------------------------------------------------------------------------------------------


def label_tasks(state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> tuple[list[Prep], str]:
    """One labelling per learning camera that gets any, and what is to be told when the golden model is too slow for all."""
    live = _learning(state)
    if not live:
        return [], ""
    affordable = _affordable_labels(state, config, needs, at_s)
    if not any(s.look for s in live):
        return _even_labels(state, config, live, affordable)
    wanted = {s.id: wanted_labels(s, config) for s in live}
    asked = [drift.Need(id=s.id, frames=wanted[s.id], waited=s.waited) for s in live]
    given = drift.shared(asked, affordable, config.min_label_frames)
    told = ""
    if sum(given.values()) < sum(wanted.values()):
        told = _too_slow(state, f"{sum(given.values())} of {sum(wanted.values())} labels that are wanted fit this window")
    return [_label(state, s.id, given[s.id]) for s in live if given[s.id] > 0], told


def wanted_labels(stream: StreamState, config: EngineConfig) -> int:
    if stream.offered:
        return config.label_frames  # one window decides: what is not better goes
    if stream.full:
        known = stream.drift if config.drift else None
        settled = drift.settled(stream.gains, min_gain=config.min_gain)
        return drift.label_frames(known, settled, config.label_frames, config.min_label_frames)
    return min(config.min_label_frames, config.label_frames)


def _affordable_labels(state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> int:
    """How many labels the time left to preparation pays for, its part for labelling."""
    left_s = max(0.0, config.prep_until_frac * (state.ends_s - state.opened_s) - (at_s - state.opened_s))
    part = config.label_part_frac if needs.profiles else 1.0
    pct = state.prep_pct or first_share_pct(config, needs)
    return int(left_s * pct / 100 * state.delivered_frac * part / max(state.golden_gpu_s, 1e-6))


def _even_labels(state: BoxState, config: EngineConfig, live: list[StreamState], affordable: int) -> tuple[list[Prep], str]:
    """Nobody knows who drifted: the same for each. When the golden model is too slow for all, the sample shrinks; under the
    minimum, cameras take turns from window to window."""
    ids, told = [s.id for s in live], ""
    frames = min(config.label_frames, affordable // len(ids))
    if frames < config.label_frames:
        told = _too_slow(state, f"{max(frames, 0)} instead of {config.label_frames} labels per camera fit this window")
    if frames < config.min_label_frames:
        frames = config.min_label_frames
        turns = max(1, affordable // frames)
        first = (state.window * turns) % len(ids)
        ids = (ids + ids)[first : first + min(turns, len(ids))]
    return [_label(state, id, frames) for id in ids], told


def _too_slow(state: BoxState, text: str) -> str:
    return f"the golden model needs {state.golden_gpu_s:.2f} GPU-s a frame: {text}"


def _label(state: BoxState, stream: str, frames: int, name: str = "label") -> Prep:
    window = state.lesson(state.streams[stream])
    return Prep(job=state.job(stream, name), stream=stream, kind="label", window=window, frames=frames)


# --- whose turn it is, where retrainings begin beside preparation ----------------------------------------------------------


def turns_of(state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> turns.Chosen:
    """Whose turn it is in this window, with how many labels, and the share of all that learns (`scheduler.turns`)."""
    live, quantum = [s for s in state.ordered() if s.live], config.quantum_pct
    shares = range(quantum, config.capacity_pct - quantum + 1, quantum) if config.prep_auto else ()
    left_s = state.ends_s - at_s
    return turns.choose(
        [_turn(s, state, config, needs) for s in _to_label(state, config, at_s)],
        [prep_share.Watched(quality=s.believed(config.prior_quality), knobs=s.knobs) for s in live],
        left_s=left_s, most_s=left_s, capacity_pct=config.capacity_pct, shares_pct=[float(pct) for pct in shares] or [config.prep_pct],
        speed_frac=state.delivered_frac, tries=config.try_little,
    )  # fmt: skip


def _to_label(state: BoxState, config: EngineConfig, at_s: float) -> list[StreamState]:
    """Who may have a turn that begins now: not who had one, gave it up for a scene that is back, or has its lesson still to come."""
    waiting = [s for s in _learning(state) if not (s.taught_in and s.learned == state.lesson(s))]  # what that taught is learned
    if not config.learns_now:  # turns are chosen once in a window
        return waiting
    early = at_s < glance.lessons_from_s(state)
    return [
        s
        for s in waiting
        if s.measured is None and s.traits is None and s.id != state.at_work()
        and not (s.turned and s.done) and not (early and s.lesson is not None)
    ]  # fmt: skip


def _turn(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> turns.Turn:
    """All that the camera's learning takes, by what is known of it; one that is only measured takes its few labels, one with an offer
    all or none: few labels let no model in that the camera has not seen (`_own_gains`)."""
    least, most = min(config.min_label_frames, config.label_frames), wanted_labels(stream, config)
    waited = turns.MEASURED_GAIN * (1 + stream.waited)
    if not stream.full:
        return turns.Turn(id=stream.id, gain=waited, label_gpu_s=state.golden_gpu_s, fixed_gpu_s=0.0, least=most, most=most)
    if pool := pool_of(stream, state, config, needs):
        return turns.Turn(
            id=stream.id, gain=max(waited, expected_gain(stream, state, config)), pool=pool,
            label_gpu_s=state.golden_gpu_s + _taught_gpu_s(stream, state, config, needs) * (1 - 1 / together.JUDGED_OF),
            fixed_gpu_s=GATE_LABELS * state.golden_gpu_s, least=most if stream.offered else min(together.LEAST_LABELS, most), most=most,
        )  # fmt: skip
    return turns.Turn(
        id=stream.id, gain=max(waited, expected_gain(stream, state, config)),
        label_gpu_s=state.golden_gpu_s + _train_gpu_s(stream, config) / max(1, config.label_frames),
        fixed_gpu_s=_profile_gpu_s(stream, state, config, needs) + gate_gpu_s(state, config),
        least=most if stream.offered else min(least, most), most=most,
        holdout_frac=config.holdout_frac if config.count_taught else None,
    )  # fmt: skip


def pool_of(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> str:
    """With whom a camera learns in this window (`scheduler.together`): one customer, one architecture, one list of
    retrainings, labels of the same window. "": alone, as where too few are like it, where turns are not planned, or where nobody
    chooses who learns."""
    if not (config.together and config.overlaps and chooses(needs) and stream.learns):
        return ""
    key = lesson_key(stream, state, config)
    alike = sum(key == lesson_key(s, state, config) for s in _learning(state))
    return key if alike >= together.ENOUGH else ""


def lesson_key(stream: StreamState, state: BoxState, config: EngineConfig) -> str:
    """The same for cameras that can learn together. No customer's pictures teach another's model."""
    return f"{stream.customer}|{stream.arch}|{config_list(stream, config)}|{state.lesson(stream)}"


def _taught_gpu_s(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> float:
    """What learning from one label takes by the dearest of its retrainings; as much as the label itself where nobody knows."""
    costs = pooling.label_gpu_s(known_profiles(stream, state, config, needs))
    return max(costs.values(), default=state.golden_gpu_s)


def expected_gain(stream: StreamState, state: BoxState, config: EngineConfig) -> float:
    """What a retraining should bring a camera that is examined in full, by what its own and the box's others have won."""
    frac, here = turns.first_frac(_first_wins(state)), stream.scenes.present
    back = here is not None and here.visits > 1  # what there is to win is known: the drift is that of a scene that comes back
    drifted = stream.drift is not None and stream.drift.drifted and not back
    return turns.expected_gain(
        _own_gains(stream), _aged_quality(stream, config), frac, drifted=drifted, of_missing=config.left_of_missing,
        refusals=stream.refusals, lost=stream.believed(config.prior_quality) * stream.lost_frac(),
    )  # fmt: skip


def suspects(state: BoxState) -> list[StreamState]:
    """Cameras whose model seems to have lost much of its quality, and whose turn has not come in this window."""
    return [
        s
        for s in _learning(state)
        if s.lost_frac() >= SUSPECT and s.lesson is None and s.measured is None and s.candidate is None
        and not (s.admitted or s.turned or s.running) and s.id != state.at_work()
    ]  # fmt: skip


def _aged_quality(stream: StreamState, config: EngineConfig) -> float:
    """What the model may be worth by now that nobody has measured it for some windows."""
    ages = config.left_of_missing and bool(stream.gains)
    kept = 1.0 - stream.lost_frac()
    return max(0.0, stream.believed(config.prior_quality) * kept - turns.UNSEEN_LOSS * stream.waited * ages)


def _first_wins(state: BoxState) -> list[tuple[float, float]]:
    """(missing quality, gain) of the first retraining of every camera that had one, as far as is remembered."""
    first = [s.observations[0] for s in state.ordered() if s.observations]
    return [(1.0 - o.start_quality, o.realised_quality - o.start_quality) for o in first]


def gate_gpu_s(state: BoxState, config: EngineConfig) -> float:
    """What a gate costs; where labels that are there judge first, what it costs in the mean."""
    return config.gate_frames * state.golden_gpu_s * (admission.DOUBT_FRAC if config.gate_known else 1.0)


def _train_gpu_s(stream: StreamState, config: EngineConfig) -> float:
    """The cheapest of its retrainings with all labels that are wanted; 0 where nobody knows yet."""
    known = stream.profiles[-1] if stream.profiles else config.reference
    return min((option.cost_gpu_s for option in known), default=0.0)


def _profile_gpu_s(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> float:
    """As dear as its last one, or as the fewest labels; nothing where an earlier one is used again."""
    if recalls(stream, state, config, needs) or pooled(stream, state, config, needs):
        return 0.0
    return config.min_label_frames * state.golden_gpu_s if stream.profile_gpu_s is None else stream.profile_gpu_s


def turn_tasks(chosen: turns.Chosen, state: BoxState, config: EngineConfig, at_s: float) -> tuple[list[Prep], str]:
    """A labelling for each whose turn it is, in order, and what is to be told when not everybody gets what it should. What a window was
    like must be known of a model that may serve again (`scheduler.reuse`), so the camera is looked at first."""
    tasks: list[Prep] = []
    for id, frames in chosen.frames:
        stream = state.streams[id]
        if config.reuse and stream.full and stream.look is None and stream.lesson is None:
            tasks.append(_look(state, config, stream, "look", state.window - 1))
        tasks.append(_label(state, id, frames))
    if chosen.tried:
        tasks.append(_trial(state, config, chosen.tried))
    wanted = sum(wanted_labels(s, config) for s in _to_label(state, config, at_s))
    given = sum(frames for _, frames in chosen.frames)
    told = f"{given} of {wanted} labels that are wanted are worth their time in this window"
    return tasks, _too_slow(state, told) if given < wanted else ""


def _trial(state: BoxState, config: EngineConfig, id: str) -> Prep:
    """A few labels that say how long one takes. They judge nobody: two frames tell nothing of a model."""
    return Prep(
        job=state.job(id, "try"), stream=id, kind="sample", window=state.lesson(state.streams[id]),
        frames=min(turns.TRIED_LABELS, config.label_frames),
    )  # fmt: skip


def comes_too_late(task: Prep, state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> bool:
    """Is what a labelling begins no longer through when the window ends? Its labels would be of no use. The first turn of a window is
    begun in any case, because that is how the box learns how fast it is."""
    stream = state.streams[task.stream]
    first = all(s.measured is None for s in state.streams.values())
    if task.kind != "label" or not config.overlaps or not stream.full or first:
        return False
    rate = max(state.prep_pct, 1.0) / 100 * state.delivered_frac
    return _turn(stream, state, config, needs).gpu_s(task.frames) > (state.ends_s - at_s) * rate


def more_labels(state: BoxState, config: EngineConfig, stream: StreamState) -> Prep:
    """The full labelling of a camera that was spared it, because the few labels say it has become worse."""
    return _label(state, stream.id, config.label_frames, "relabel")


# --- what is known of a camera ----------------------------------------------------------------------------------------


def is_full(stream: StreamState, config: EngineConfig) -> bool:
    """Is the camera to be examined in full, or has it neither drifted nor anything more to learn? What came from outside
    is to be judged, and that takes labels."""
    if stream.offered:
        return True
    seen = stream.drift
    spared = config.drift and seen is not None and bool(seen.tests) and not seen.drifted
    return not (spared and drift.settled(stream.gains, min_gain=config.min_gain))


def fell(stream: StreamState, config: EngineConfig, believed: float | None, measured: float) -> bool:
    """A drift that only labels can see: the same pictures, but the model is wrong about them now."""
    return believed is not None and believed - measured > config.drift_drop


def probe_of(stream: StreamState, state: BoxState, config: EngineConfig) -> Prep | None:
    """The measurement of other versions that this window calls for, None when there is nothing to measure. What was offered from outside
    is measured first, also where earlier versions are not used again."""
    found = (*stream.offered, *(v for v in _worth_a_look(stream, state, config) if v not in stream.offered))
    if not found:
        return None
    job = state.job(stream.id, "probe")
    return Prep(job=job, stream=stream.id, kind="probe", window=state.lesson(stream), candidates=found)


def rival(stream: StreamState, config: EngineConfig) -> str | None:
    """The version that the serving one replaced, where it is to be asked whether that was right: after the swap, and after a fall."""
    return stream.replaced if not stream.asked or stream.fallen or not config.ask_again else None


def _worth_a_look(stream: StreamState, state: BoxState, config: EngineConfig) -> tuple[str, ...]:
    if not config.reuse or stream.lesson is not None:  # a glance has asked them
        return ()
    drifted = not config.drift or stream.drift is None or not stream.drift.tests or stream.drift.drifted
    return reuse.candidates(
        serving=stream.version, replaced=rival(stream, config), kept=stream.cached, signature=stream.signature, drifted=drifted,
        nearest=config.reuse_nearest, window=state.window, left=stream.left,
    )  # fmt: skip


def recalls(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> bool:
    """Is the camera's last profile new enough to be used again? Only where something good came of it since."""
    if config.profile_every <= 1 or config.group or not chooses(needs) or stream.profiled_in is None:
        return False
    won = bool(stream.gains) and turns.left_to_win(stream.gains) > 0
    return bool(stream.profiles) and won and state.window - stream.profiled_in < config.profile_every


def pooled(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> list[pooling.Profiled]:
    """The profiles that tell what this camera's retrainings are worth; none where there are too few, or each camera has its own: where
    all do one step together (not `overlaps`) they are profiled together, and what promises nothing is settled by that."""
    known = known_profiles(stream, state, config, needs) if config.profile_pool else []
    return known if len(known) >= max(1, config.profile_pool) else []


def known_profiles(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> list[pooling.Profiled]:
    """Profiles, not too old, of cameras with its model and its list of retrainings; its own is among them."""
    if not config.overlaps or not chooses(needs):
        return []
    names = {c.name for c in config_list(stream, config)}
    return [
        pooling.Profiled(options=s.profiles[-1], start=s.profiled_from, taught=s.profiled_on)
        for s in state.ordered()
        if s.profiles and s.profiled_in is not None and s.arch == stream.arch and state.window - s.profiled_in < pooling.LASTS_WINDOWS
        and {o.name for o in s.profiles[-1]} <= names
    ]  # fmt: skip


def profile_of(stream: StreamState, state: BoxState) -> Prep:
    return Prep(job=state.job(stream.id, "profile"), stream=stream.id, kind="profile", window=state.lesson(stream))


def reprofiling(state: BoxState) -> list[Prep]:
    """One camera's whose knobs, or a query's, are to be profiled anew: it takes long, so the others wait for other windows; they take
    turns."""
    old: list[tuple[str, str]] = []
    for s in state.ordered():
        if s.live:
            old += [(s.id, "")] if s.old_profile else []
            old += [(s.id, query) for query in sorted(s.old_queries)]
    if not old:
        return []
    stream, query = old[state.window % len(old)]
    return [Prep(job=state.job(stream, "reprofile"), stream=stream, kind="reprofile", window=state.window - 1, query=query)]


def in_order(state: BoxState, config: EngineConfig) -> list[Prep]:
    """The queue, step by step; cameras that are probed or profiled: the worst first. Where retrainings begin beside preparation, a
    camera that has its labels goes on before the next one gets any."""
    quality = {s.id: s.quality or 0.0 for s in state.streams.values()}

    def place(numbered: tuple[int, Prep]) -> tuple[float, float, str, int]:
        number, task = numbered
        if config.overlaps and task.kind in ("look", "label"):  # in turn: a look belongs to the labels behind it
            return ORDER.index("label"), 0.0, "", number
        if task.kind in ("probe", "profile"):
            if config.overlaps:
                return ORDER.index("reference") - 0.5, quality[task.stream], task.stream, number
            return ORDER.index(task.kind), quality[task.stream], task.stream, number
        return ORDER.index(task.kind), 0.0, "", number

    return [task for _, task in sorted(enumerate(state.queue), key=place)]


# --- who learns with whom ---------------------------------------------------------------------------------------------


def groups(state: BoxState, config: EngineConfig) -> tuple[grouping.Group, ...]:
    """Among the cameras that wait for their profile."""
    waiting = [state.streams[p.stream] for p in state.queue if p.kind == "profile"]
    return grouping.groups(
        [
            grouping.Candidate(
                id=s.id, kind=(s.arch, config_list(s, config)), signature=s.signature, quality=s.quality
            )
            for s in waiting
            if s.arch and s.alone != state.window - 1 and (s.drift is None or s.drift.drifted)
        ],
        distance_max=config.group_distance, members_max=config.group_max,
    )  # fmt: skip


def config_list(stream: StreamState, config: EngineConfig) -> tuple[RetrainConfig, ...]:
    """How this camera's model may be retrained."""
    return stream.retrain or config.retrain


def kept_configs(stream: StreamState, config: EngineConfig) -> tuple[RetrainConfig, ...]:
    """Those that are still profiled for it."""
    return tuple(c for c in config_list(stream, config) if stream.kept is None or c.name in stream.kept)


# --- commands ---------------------------------------------------------------------------------------------------------


def start(task: Prep, state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> Command:
    """What carries out a task that has been given its share."""
    version = state.streams[task.stream].version
    if task.kind in ("glance", "reference", "look"):
        return StartLook(job=task.job, stream=task.stream, window=task.window, version=version, frames=task.frames)
    if task.kind in ("sample", "label"):
        pool = pool_of(state.streams[task.stream], state, config, needs)
        return StartLabelling(
            job=task.job, stream=task.stream, window=task.window, frames=task.frames,
            holdout_frac=config.holdout_frac if task.kind == "label" else 1.0,
            version=version, remote=needs.remote,
            judges=together.judges(task.frames) if task.kind == "label" and pool else None,
        )  # fmt: skip
    if task.kind == "lesson":
        chosen = next(c for c in config_list(state.streams[task.stream], config) if c.name == task.config)
        return StartRetraining(
            job=task.job, stream=task.stream, window=task.window, version=version, config=chosen,
            members=task.members if len(task.members) > 1 else (),
        )  # fmt: skip
    if task.kind in ("choose", "probe"):
        return StartProbe(
            job=task.job, stream=task.stream, window=task.window, version=version, candidates=task.candidates
        )  # fmt: skip
    deadline_s = state.opened_s + config.prep_until_frac * (state.ends_s - state.opened_s)
    if task.kind == "reprofile":
        left_gpu_s = max(0.0, deadline_s - at_s) * task.share_pct / 100 * state.delivered_frac
        return StartReprofiling(job=task.job, stream=task.stream, budget_gpu_s=REPROFILE_FRAC * left_gpu_s, query=task.query)
    waiting = 1 + sum(p.kind == "profile" or (config.overlaps and p.kind == "label") for p in state.queue)
    return StartProfiling(
        job=task.job, stream=task.stream, window=task.window, version=version,
        configs=microprofile.families(kept_configs(state.streams[task.stream], config)), epochs=config.profile_epochs,
        data_frac=config.profile_data_frac,
        budget_gpu_s=max(0.0, deadline_s - at_s) * task.share_pct / 100 * state.delivered_frac / waiting, remote=needs.remote,
        lend=config.profile_lend,
    )  # fmt: skip
