"""What the controller's answers (its API, as the fleet view asks it) say. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Doc = Mapping[str, Any]


def cameras_of(box: Doc) -> list[dict[str, Any]]:
    """Those that a box reports."""
    return list(box["report"]["cameras"]) if box["report"] else []


def camera_count(state: Doc) -> int:
    return sum(len(cameras_of(box)) for box in state["boxes"])


def name_of(key: Doc) -> str:
    """HOME/CAMERA."""
    return f"{key['home']}/{key['camera']}"


def is_there(state: Doc, box: str, camera: str) -> bool:
    return any(c["camera"]["camera"] == camera for b in state["boxes"] if b["id"] == box for c in cameras_of(b))


def owner_of(state: Doc, camera: str) -> str:
    """The box that watches a camera (HOME/CAMERA): its home, unless somebody else holds its lease."""
    leased = (lease["box"] for lease in state["leases"] if name_of(lease["camera"]) == camera)
    return str(next(leased, camera.partition("/")[0]))


def on_its_way(state: Doc, camera: str) -> bool:
    return any(name_of(h["camera"]) == camera and h["phase"] not in ("done", "undone") for h in state["handoffs"])


def moved_to(state: Doc, camera: str, source: str) -> str | None:
    """Who watches it now, None while it is `source` or on its way."""
    found = owner_of(state, camera)
    return found if found != source and not on_its_way(state, camera) else None


def is_live(state: Doc, box: str, camera: str) -> bool:
    report = next(b for b in state["boxes"] if b["id"] == box)
    return any(name_of(c["camera"]) == camera and c["state"] == "live" for c in cameras_of(report))


def has_standby(state: Doc, camera: str) -> bool:
    return any(name_of(lease["camera"]) == camera and lease["standby"] for lease in state["leases"])


def qualities(state: Doc) -> dict[str, float]:
    """What is measured of every camera."""
    return {
        name_of(c["camera"]): float(c["quality"])
        for box in state["boxes"] for c in cameras_of(box) if c["quality"] is not None
    }  # fmt: skip


def given(state: Doc, customers: Collection[str]) -> dict[str, float] | None:
    """Every customer's share; None until each has one."""
    found = {g["customer"]: float(g["share_pct"]) for g in state["grants"]}
    return found if found.keys() >= set(customers) else None


def newest(course: Doc, name: str, *, count: int = 1, since_utc_s: float = 0.0) -> list[float] | None:
    """The newest values of a customer's course, oldest first; None while there are fewer since then."""
    found = [float(value) for at_utc_s, value in course[name] if at_utc_s >= since_utc_s]
    return found[-count:] if len(found) >= count else None


def ended(view: Doc, rollout: str) -> dict[str, Any] | None:
    """The rollout, once it goes no further."""
    return next((dict(row) for row in view["rollouts"] if row["id"] == rollout and row["state"] != "running"), None)


def decisions(view: Doc, rollout: str) -> int:
    """How many were taken on it, by rules and people; 0 before it begins."""
    return sum(len(row["decisions"]) for row in view["rollouts"] if row["id"] == rollout)


def words_of(state: Doc, rollout: str) -> list[dict[str, Any]]:
    """What each camera's gate said of what was offered."""
    return [
        dict(word) for box in state["boxes"] if box["report"]
        for word in box["report"]["confirmation"]["offers"] if word["rollout"] == rollout
    ]  # fmt: skip


def told_word(word: Doc) -> str:
    after = f" {word['after']:.2f}" if word["after"] is not None else ""
    why = f" ({word['problem']})" if word["stage"] in ("refused", "failed") else ""
    return f"{name_of(word['camera'])} {word['stage']}{after}{why}"


def told_numbers(found: Mapping[str, float], unit: str = "", digits: int = 2) -> str:
    return ", ".join(f"{name} {value:.{digits}f}{unit}" for name, value in sorted(found.items()))


def profile_of(made: Doc) -> tuple[float, dict[str, float]]:
    """Of `driftbox profile`: percent of a core that every frame needs, and the best quality at each rate (1/2: every second frame)."""
    kept: dict[str, float] = {}
    for option in made["options"]:
        name = f"1/{made['fps'] / option['fps']:.0f}"
        kept[name] = max(kept.get(name, 0.0), float(option["quality"]))
    best = max(made["options"], key=lambda option: (option["quality"], -option["device_s"]))
    return 100.0 * best["device_s"], kept
