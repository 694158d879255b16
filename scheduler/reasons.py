"""A plan in words, one line per stream: for the log, the page and MQTT."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.types import Plan, RetrainOption, Snapshot, StreamPlan, StreamView


def reasons_of(snapshot: Snapshot, plan: Plan, remarks: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Why each stream of `plan` gets what it gets, in its order. remarks: what was found out about a stream before the plan."""
    views = {view.id: view for view in snapshot.streams}
    return tuple(_line(views[entry.id], entry, (remarks or {}).get(entry.id, "")) for entry in plan.streams)


def _line(view: StreamView, entry: StreamPlan, remark: str) -> str:
    learning = f"{_learning(view, entry)} ({remark})" if remark else _learning(view, entry)
    inference = f"inference '{entry.knobs}' on {entry.infer_pct} %" if entry.knobs is not None else "inference paused"
    return f"{entry.id}: {learning}; {inference}"


def _learning(view: StreamView, entry: StreamPlan) -> str:
    if entry.source == "cached":
        return f"the model '{entry.retrain}' of an earlier window fits this one best"
    option = next((o for o in view.retrain if o.name == entry.retrain), None)
    if option is None:
        return "no retraining now" if view.retrain else "nothing to retrain"
    gain = f"{view.quality:.3f} -> {_end(option)}"
    if entry.source == "cloud":
        return f"a cloud retrains '{option.name}', {gain}"
    return f"retrain '{option.name}' on {entry.train_pct} % ({option.cost_gpu_s:.1f} GPU-s), {gain}"


def _end(option: RetrainOption) -> str:
    return f"{option.end_quality:.3f}" + (f" +- {option.quality_sd:.3f}" if option.quality_sd > 0 else "")
