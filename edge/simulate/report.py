"""The answer of `simulate` for people."""

from __future__ import annotations

from typing import Any

from edge.console import print_table, say


def print_answer(answer: dict[str, Any], taken_s: float) -> None:
    """A row per policy, or for a sweep a row per point with a column per policy; then how fast it went."""
    if "points" in answer:
        _print_sweep(answer)
    else:
        _print_policies(answer["policies"])
    fixed = answer["fixed_configs"]
    if fixed and any("(high," in n or "(low," in n for n in _names(answer)):
        say(f"high is {fixed['high']}, low is {fixed['low']}: the ends of the Pareto front of the hold-out streams")
    runs = len(answer.get("points", [0])) * len(_names(answer))
    windows = runs * (answer["trace"]["windows"] + 1)
    say(f"{windows} windows in {taken_s:.1f} s: {60 * windows / max(taken_s, 1e-9):.0f} windows a minute")


def _names(answer: dict[str, Any]) -> list[str]:
    rows = answer["points"][0]["policies"] if "points" in answer else answer["policies"]
    return [row["policy"] for row in rows]


def _print_policies(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("policy", "mean quality", "retrainings", "admitted", "GPU-seconds", "plans"),
        [(r["policy"], r["mean_quality"], r["retrainings"], r["admitted"], round(r["gpu_s"]), r["plans"]) for r in rows],
    )


def _print_sweep(answer: dict[str, Any]) -> None:
    print_table(
        (*answer["sweep"], *_names(answer)),
        [(*(f"{v:g}" for v in p["at"].values()), *(r["mean_quality"] for r in p["policies"])) for p in answer["points"]],
    )
