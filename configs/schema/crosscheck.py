"""Rules that join several sections; they work on unvalidated data too, so that all problems are reported together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from configs.queries import own_models, query_problems
from configs.tasks import DETECTION

#: Sections and defaults the rules need; kept true by a test against the schema.
DEFAULTS: dict[tuple[str, str], int] = {
    ("gpus", "capacity_pct"): 100,
    ("scheduler", "quantum_pct"): 5,
    ("window", "prep_pct"): 50,
}


#: `scheduler.serving`: as the queries want it, and without a queue.
AUTO, OWN = "auto", "own"
#: Where models live in processes of their own, which no queue reaches.
_OUT_OF_REACH = "mps"
_ASKS_BESIDE = "asks a model beside the camera's own, which runs through the queue"


def cross_problems(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field path, text) of every broken rule. `data`: the configuration as plain mappings and lists, possibly wrong."""
    return [*_duplicate_cameras(data.get("cameras")), *_queries(data), *_shares(data), *_serving(data)]


def _duplicate_cameras(cameras: object) -> list[tuple[str, str]]:
    if not isinstance(cameras, Sequence) or isinstance(cameras, str):
        return []
    ids = [camera.get("id") if isinstance(camera, Mapping) else None for camera in cameras]
    counts = Counter(i for i in ids if isinstance(i, str))
    return [
        (f"cameras[{at}].id", f"id '{i}' is used by {counts[i]} cameras; every camera needs its own")
        for at, i in enumerate(ids)
        if isinstance(i, str) and counts[i] > 1 and i in ids[:at]
    ]


def _queries(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of every camera's queries: names that stand twice, what is wrong with their nodes, and models that nobody could run."""
    cameras, without_queue = data.get("cameras"), _without_queue(data)
    if not isinstance(cameras, Sequence) or isinstance(cameras, str):
        return []
    found: list[tuple[str, str]] = []
    for at, camera in enumerate(cameras):
        queries = camera.get("queries") if isinstance(camera, Mapping) else None
        if not isinstance(queries, Sequence) or isinstance(queries, str):
            continue
        task = camera.get("task", DETECTION)
        names: list[object] = []
        for number, query in enumerate(queries):
            if not isinstance(query, Mapping):
                continue
            path = f"cameras[{at}].queries[{number}]"
            name = query.get("name")
            if isinstance(name, str) and name in names:
                found.append((f"{path}.name", f"another query of this camera is called '{name}'; every query needs its own"))
            names.append(name)
            problems = query_problems(query, task if isinstance(task, str) else "")
            if not problems and without_queue and isinstance(task, str):
                problems = [(place, f"{_ASKS_BESIDE}: {without_queue}") for place in own_models(query, task)]
            found += [(f"{path}.{place}", text) for place, text in problems]
    return found


def _number(data: Mapping[str, Any], section: str, key: str) -> float:
    values = data.get(section)
    value = values.get(key) if isinstance(values, Mapping) else None
    return value if isinstance(value, int | float) else DEFAULTS[section, key]


def _word(data: Mapping[str, Any], section: str, key: str) -> object:
    values = data.get(section)
    return values.get(key) if isinstance(values, Mapping) else None


def _without_queue(data: Mapping[str, Any]) -> str:
    """Why there is no queue, and what to do; empty: there is one, or will be when the box starts."""
    if _word(data, "gpus", "backend") == _OUT_OF_REACH:
        return "there is none with gpus.backend: mps"
    if _word(data, "scheduler", "serving") == OWN:
        return "set scheduler.serving to orloj, and start the box again"
    return ""


def _serving(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Under MPS a camera's model is in a process of its own, where no queue can reach it."""
    serving = _word(data, "scheduler", "serving")
    if serving in (None, AUTO, OWN) or _word(data, "gpus", "backend") != _OUT_OF_REACH:
        return []
    return [
        ("scheduler.serving", "must be own with gpus.backend: mps, where each camera's model lives in a process of its own")
    ]


def _shares(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    capacity = _number(data, "gpus", "capacity_pct")
    return [
        (f"{section}.{key}", f"must not exceed gpus.capacity_pct ({capacity:g} pct)")
        for section, key in (("scheduler", "quantum_pct"), ("window", "prep_pct"))
        if _number(data, section, key) > capacity
    ]
