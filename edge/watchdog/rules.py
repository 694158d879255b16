"""When is a worker in trouble, when is it started anew, when is it given up? Pure: time is an argument, the caller looks and acts.

A worker is in trouble when its thread has ended, when it has been silent for longer than it may, or when it does nothing but fail. Then
it is started anew: at once the first time, after growing pauses the next times, and only so often an hour. When that budget is spent
it is given up: a camera's worker takes its camera into quarantine, with the reason; the others go on, and the box says it is degraded.
A worker that has been well for a while has its budget back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Mode(StrEnum):
    """WELL; PAUSING: in trouble, and started anew when its pause is over; TRIED: started anew just now, not yet judged; GIVEN_UP: until
    somebody lifts it."""

    WELL = "well"
    PAUSING = "pausing"
    TRIED = "tried"
    GIVEN_UP = "given_up"


class Trouble(StrEnum):
    """What was wrong; a stable name for logs, metrics and pages."""

    DEAD = "dead"
    SILENT = "silent"
    FAILING = "failing"


class Act(StrEnum):
    """What is to be done now."""

    NOTHING = "nothing"
    RESTART = "restart"
    GIVE_UP = "give_up"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """silent_s: silence that is trouble; faults: failures in a row, without anything done between them, that are trouble; restarts:
    most of them in span_s; pause_s: before the second restart, doubled with each further one up to pause_max_s; well_s: a worker
    that was well for so long starts with a full budget; grace_s: nothing is judged for so long after a restart."""

    silent_s: float = 60.0
    faults: int = 20
    restarts: int = 5
    span_s: float = 3600.0
    pause_s: float = 2.0
    pause_max_s: float = 300.0
    well_s: float = 1800.0
    grace_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A look at a worker. silent_s: see `streams.pulse`; faults, done: how often it failed and succeeded so far, counts that rise;
    fault: its newest failure in words."""

    alive: bool
    silent_s: float = 0.0
    faults: int = 0
    done: int = 0
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    """What is remembered of a worker. restarts_s: when it was started anew, newest last; since_s: in this mode; forgiven: how many
    failures are not held against it, because something was done or it was started anew since; None: all up to the next look."""

    mode: Mode = Mode.WELL
    since_s: float = 0.0
    until_s: float = 0.0
    restarts_s: tuple[float, ...] = ()
    total_restarts: int = 0
    trouble: Trouble | None = None
    reason: str = ""
    done: int = 0
    forgiven: int | None = 0


def judge(state: State, seen: Seen, rules: Rules, *, at_s: float) -> tuple[State, Act]:
    """The next state, and what is to be done. Looks may come at any rate."""
    if state.mode is Mode.GIVEN_UP:
        return state, Act.NOTHING
    state = _counted(state, seen)
    if state.mode is Mode.TRIED and seen.alive and at_s < state.since_s + rules.grace_s:
        return state, Act.NOTHING
    trouble, reason = _trouble(state, seen, rules)
    if trouble is None:  # also when it came to itself during its pause
        return _well(state, rules, at_s), Act.NOTHING
    if state.mode is not Mode.PAUSING:
        return _in_trouble(state, seen, trouble, reason, rules, at_s)
    if at_s < state.until_s:
        return state, Act.NOTHING
    return _restarted(state, seen, at_s), Act.RESTART


def lifted(state: State, *, at_s: float) -> State:
    """Somebody wants it tried again: full budget, nothing held against it. How often it was started anew is still known."""
    return State(since_s=at_s, total_restarts=state.total_restarts, done=state.done, forgiven=None)


def could_not_restart(state: State, why: str, *, at_s: float) -> State:
    """The restart itself failed: it counts, and the next look decides anew."""
    return replace(state, mode=Mode.TRIED, since_s=at_s, reason=f"{state.reason}; it could not be started anew: {why}")


def pause_after_s(restarts: int, rules: Rules) -> float:
    """Pause before the next restart of a worker that was started anew so often lately; none before the first."""
    if restarts <= 0:
        return 0.0
    # Bounded before it is raised: 2.0 ** 2000 is no number.
    return float(min(rules.pause_max_s, rules.pause_s * 2.0 ** min(restarts - 1, 60)))


def _counted(state: State, seen: Seen) -> State:
    """A counter that went back belongs to a worker that was made anew."""
    if state.forgiven is None or seen.done != state.done or seen.faults < state.forgiven:
        return replace(state, done=seen.done, forgiven=seen.faults)
    return state


def _trouble(state: State, seen: Seen, rules: Rules) -> tuple[Trouble | None, str]:
    if not seen.alive:
        return Trouble.DEAD, "its thread has ended" + (f": {seen.fault}" if seen.fault else "")
    if seen.silent_s > rules.silent_s:
        return Trouble.SILENT, f"no sign of life for {seen.silent_s:.0f} s"
    failed = seen.faults - (state.forgiven or 0)
    if failed >= rules.faults:
        return Trouble.FAILING, f"it failed {failed} times and did nothing else" + (f": {seen.fault}" if seen.fault else "")
    return None, ""


def _in_trouble(state: State, seen: Seen, trouble: Trouble, reason: str, rules: Rules, at_s: float) -> tuple[State, Act]:
    lately = tuple(s for s in state.restarts_s if s > at_s - rules.span_s)
    told = replace(state, restarts_s=lately, trouble=trouble, reason=reason, since_s=at_s)
    if len(lately) >= rules.restarts:
        why = f"{reason}; {len(lately)} restarts within {rules.span_s / 60:.0f} min did not help"
        return replace(told, mode=Mode.GIVEN_UP, reason=why), Act.GIVE_UP
    pause_s = pause_after_s(len(lately), rules)
    if pause_s > 0:
        return replace(told, mode=Mode.PAUSING, until_s=at_s + pause_s), Act.NOTHING
    return _restarted(told, seen, at_s), Act.RESTART


def _restarted(state: State, seen: Seen, at_s: float) -> State:
    return replace(
        state, mode=Mode.TRIED, since_s=at_s, restarts_s=(*state.restarts_s, at_s), total_restarts=state.total_restarts + 1,
        forgiven=seen.faults,
    )  # fmt: skip


def _well(state: State, rules: Rules, at_s: float) -> State:
    if state.mode is not Mode.WELL:
        return replace(state, mode=Mode.WELL, since_s=at_s)
    if state.restarts_s and at_s - state.since_s >= rules.well_s:
        return replace(state, restarts_s=(), trouble=None, reason="")
    return state


def sentence(name: str, state: State) -> str:
    """Why a worker makes the box degraded; '' when it does not."""
    if state.mode is Mode.GIVEN_UP:
        return f"{name} is given up: {state.reason}"
    if state.mode is Mode.PAUSING:
        return f"{name} is to be started anew: {state.reason}"
    return ""
