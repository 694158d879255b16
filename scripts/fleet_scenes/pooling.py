"""Night falls, which no model knows. Boxes whose operators consent give samples, a model is trained on Ray and offered to one box after
another, and each camera's gate judges it on labels of its own."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fleet_scenes import reading
from fleet_scenes.demo import Demo, Failed, say
from streams.samples import SampleRef, SampleStore

#: Labelled pictures of the night that a model is trained on: so many together, and so many of every camera.
NIGHT_PICTURES, LEAST_OF_EACH = 140, 16
ROLLOUT = "night"


def pooling(demo: Demo) -> str:
    assert demo.ray is not None
    demo.end_rush()
    demo.cameras.turn("night")
    since_utc = time.time()
    say("night falls")
    key = demo.fleet("key")["file"]
    for box in demo.running.keys() - {"controller"}:
        demo.driftbox("models", "trust", key, "--data-dir", str(demo.folder / box))
    pictures = demo.wait(
        f"{NIGHT_PICTURES} labelled pictures of the night, {LEAST_OF_EACH} of every camera",
        lambda state: enough(night_pictures(demo, state, since_utc)),
        how_far=lambda state: told_pictures(night_pictures(demo, state, since_utc)),
    )
    say(f"labelled pictures of the night: {told_pictures(pictures)}")
    say(f"quality at night: {reading.told_numbers(reading.qualities(demo.get('state')))}")
    made = demo.fleet(
        "train", ROLLOUT, "--arch", "tinydet-edge", "--epochs", "12", "--batch", "4", "--lr", "0.002", "--workers", "2",
        "--ray", demo.ray.settings.address, "--soak-min", "0",
    )  # fmt: skip
    losses = f"{made['losses'][0]:.2f} to {made['losses'][-1]:.2f}"
    say(f"trained on {made['pictures']} pictures of {', '.join(made['boxes'])}; loss {losses}")
    row = demo.wait("every gate has judged, box by box", partial(reading.ended, rollout=ROLLOUT), of="view", how_far=decided)
    for decision in reversed(row["decisions"]):
        say(f"rollout: {decision['what']}: {decision['reason']}")
    state = demo.get("state")
    words = reading.words_of(state, ROLLOUT)
    say(f"quality at night now: {reading.told_numbers(reading.qualities(state))}")
    demo.picture("models", "#/models", ".way")
    demo.picture("boxes", "#/boxes", "td")
    about = f"{made['pictures']} pictures of {len(made['boxes'])} boxes, loss {losses}"
    return f"{about}; {ended_how(row, words)}"


def ended_how(row: dict[str, Any], words: list[dict[str, Any]]) -> str:
    """How a rollout went that goes no further, and what each gate said. Counted is what the controller took in: a box that knows already
    that the rollout has ended says nothing of it any more. Failed: no gate let the model in."""
    told = ", ".join(map(reading.told_word, words))
    serving = row["counts"]["serving"]
    if not serving:
        raise Failed(f"no gate let the model in: {told}")
    why = "" if row["state"] == "done" else f" ({row['reason']})"
    return f"{serving} of {sum(row['counts'].values())} gates let it in: {told}; the rollout is {row['state']}{why}"


def decided(view: dict[str, Any]) -> str:
    """How far the rollout is."""
    return f"{reading.decisions(view, ROLLOUT)} decisions"


def night_pictures(demo: Demo, state: dict[str, Any], since_utc: float) -> dict[str, int]:
    """Labelled training pictures since then, per camera."""
    return {
        reading.name_of(camera["camera"]): taken_since(demo, box["id"], camera["camera"], since_utc)
        for box in state["boxes"] if box["online"] for camera in reading.cameras_of(box)
    }  # fmt: skip


def enough(found: dict[str, int]) -> dict[str, int] | None:
    return found if found and sum(found.values()) >= NIGHT_PICTURES and min(found.values()) >= LEAST_OF_EACH else None


def told_pictures(found: dict[str, int]) -> str:
    return ", ".join(f"{camera} {count}" for camera, count in sorted(found.items()))


def taken_since(demo: Demo, box: str, camera: dict[str, str], since_utc: float) -> int:
    store = SampleStore(demo.folder / box / "samples")
    local = camera["camera"] if camera["home"] == box else f"{camera['home']}--{camera['camera']}"
    refs = store.usable(local, store.windows(local), "train")
    return sum(is_since(store, ref, since_utc) for ref in refs)


def is_since(store: SampleStore, ref: SampleRef, since_utc: float) -> bool:
    """Whether picture and labels are of since then. Labels that followed their camera here are as old as they were; the file is new."""
    labels = store.labels_or_none(ref)
    taken_utc = (store.root / f"{ref.name}.jpg").stat().st_mtime
    return labels is not None and min(labels.stored_utc, taken_utc) >= since_utc
